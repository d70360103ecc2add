"""The store's own error in an error of Spark's, which has it as the text of a traceback.

Invariants:
- What is found says the same, letter by letter, and is of the same class.
- No module is loaded, and nothing is called, because a text names it: classes are looked up among
  the errors that there are.
"""

import re
from collections.abc import Iterator
from typing import Final

from blobit.errors import BlobError
from engine.errors import EngineError
from herd.errors import Error

StoreError = EngineError | Error | BlobError
_ROOTS: Final[tuple[type[StoreError], ...]] = (EngineError, Error, BlobError)
_SAID: Final = re.compile(r"\b((?:engine|herd|blobit|broker|pipeline)\.[\w.]+): (.*)")


def cause(error: BaseException) -> StoreError | None:
    """What the store said in an error of Spark's; None for one that is not the store's.

    Of several it is the last: that which ended the job. Its class tells what to do, as it does
    without Spark.

    >>> said = "File 'x', line 1 herd.errors.NoSuchTable: there is no table cow [42P01]"
    >>> found = cause(RuntimeError(said))
    >>> type(found).__name__, str(found), found.retryable
    ('NoSuchTable', 'there is no table cow [42P01]', False)
    """
    if isinstance(error, _ROOTS):
        return error
    known = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _kinds(*_ROOTS)}
    for name, text in reversed(_SAID.findall(str(error))):
        kind = known.get(name)
        if kind is not None:
            return _made(kind, text.strip())
    return None


def _kinds(*kinds: type[StoreError]) -> Iterator[type[StoreError]]:
    for kind in kinds:
        yield kind
        yield from _kinds(*kind.__subclasses__())


def _made(kind: type[StoreError], text: str) -> StoreError:
    if issubclass(kind, Error):
        message, hint = _without_hint(text.removesuffix(f" [{kind.code}]"))
        return kind(message, hint=hint)
    try:
        return kind(text)
    except TypeError:
        # It is made of something else than its text.
        return EngineError(text) if issubclass(kind, EngineError) else BlobError(text)


def _without_hint(text: str) -> tuple[str, str]:
    """What stands before the last parentheses of a text that ends with some, and in them."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[place], 0)
        if not depth:
            if text[place] == "(" and text[:place].endswith(" "):
                return text[: place - 1], text[place + 1 : -1]
            break
    return text, ""
