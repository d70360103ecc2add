"""The page of all errors, made of the classes: what each means, and what follows from it."""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Final

import blobit.errors
import broker.errors
import engine.errors
import herd.errors

_HEAD: Final = """# Errors

This page is made of the code by `make docs`.

Each layer has one root, so that `except` takes as much as is meant; what stands indented is a kind
of what stands above it. Not found and cannot be read are different answers everywhere. *Outcome
unknown* means that it may have happened.
"""

LAYERS: Final = (
    ("Ledgers", engine.errors, "EngineError"),
    ("Tables", herd.errors, "Error"),
    ("Objects", blobit.errors, "BlobError"),
    ("Tasks", broker.errors, "BrokerError"),
)


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_layer(*layer) for layer in LAYERS)


def errors_of(module: ModuleType, root: str) -> Iterator[tuple[int, type[BaseException]]]:
    """The errors below a module's root, each with its depth, as a tree is read."""

    def below(error: type[BaseException], depth: int) -> Iterator[tuple[int, type[BaseException]]]:
        yield depth, error
        for each in sorted(error.__subclasses__(), key=_place):
            if each.__module__ == module.__name__:
                yield from below(each, depth + 1)

    return below(getattr(module, root), 0)


def _place(error: type[BaseException]) -> int:
    """Where a class stands in its file."""
    return inspect.getsourcelines(error)[1]


def _layer(title: str, module: ModuleType, root: str) -> str:
    rows = [f"\n## {title}: `{module.__name__}`\n\n| error | |\n| --- | --- |\n"]
    seen = set()
    for depth, error in errors_of(module, root):
        if error not in seen:
            seen.add(error)
            words = " ".join((inspect.getdoc(error) or "").split()).replace("|", "/")
            rows.append(f"| {'· ' * depth}`{error.__name__}` | {words} |\n")
    return "".join(rows)
