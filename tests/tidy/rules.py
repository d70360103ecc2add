"""The rules of the house, each a function from a parsed source to the places that break it.

What is excepted stands here by name, with its reason, and nowhere else.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FUNCTION_LINES_MAX: Final = 50
COLUMNS_MAX: Final = 100
PRODUCT: Final = ("engine", "herd", "blobit", "broker", "herdbook", "pipeline", "benchmarks")

NAMES_THAT_SAY_NOTHING: Final = frozenset(
    {"utils", "util", "common", "helpers", "helper", "misc", "manager", "base"}
)
UNFINISHED: Final = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
MACHINE_PATHS: Final = re.compile(r"(?<![\w.])/(home|root|work|Users)/\w")
REGISTRY_HOSTS: Final = re.compile(r"(pypi|pythonhosted|npmjs|crates|maven)\.(org|io|com)")

BANNED_CALLS: Final = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep"},
    "os": {"open", "write", "writev", "fsync", "fdatasync", "rename", "replace", "unlink"},
    "random": {"random", "randint", "choice", "shuffle", "sample", "uniform", "getrandbits"},
    "threading": {"Thread", "Timer"},
}
DOORS: Final = {
    "engine/ports/": "the doors to clocks, files and threads themselves",
    "engine/folder/": "locks and sockets of a real folder; never runs in the simulation",
    "engine/cluster.py": "wires the real components together",
    "engine/bookie/__main__.py": "a command",
    "blobit/sync.py": "the thread that runs the event loop for callers without one",
}


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: its name inside the project, its text and its tree."""

    name: str
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, name: str, text: str) -> "Source":
        """Parse a text as the file of that name."""
        return cls(name, text, ast.parse(text))

    @classmethod
    def read(cls, root: Path, path: Path) -> "Source":
        """Read and parse a file below `root`."""
        return cls.parse(path.relative_to(root).as_posix(), path.read_text())

    @property
    def product(self) -> bool:
        """Whether it ships."""
        return self.name.split("/")[0] in PRODUCT

    @property
    def is_test(self) -> bool:
        """Whether it is part of the tests."""
        return self.name.startswith("tests/")


Rule = Callable[[Source], Iterator[str]]


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a source."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def a_function_stays_short(source: Source) -> Iterator[str]:
    """At most `FUNCTION_LINES_MAX` lines."""
    for function in functions(source):
        count = (function.end_lineno or function.lineno) - function.lineno + 1
        if count > FUNCTION_LINES_MAX:
            yield f"line {function.lineno}: {function.name} has {count} lines"


def a_line_fits(source: Source) -> Iterator[str]:
    """At most `COLUMNS_MAX` columns."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if len(line) > COLUMNS_MAX:
            yield f"line {number}: {len(line)} columns"


def a_module_says_what_it_is(source: Source) -> Iterator[str]:
    """A docstring; in the engine, where there are classes with behaviour, its invariants too."""
    if not source.text.strip():
        return
    docstring = ast.get_docstring(source.tree) or ""
    if not docstring and not source.name.endswith("__init__.py"):
        yield "no docstring"
    if source.name.startswith("engine/") and _has_state(source) and "Invariants" not in docstring:
        yield "the docstring lists no invariants"


def an_init_only_re_exports(source: Source) -> Iterator[str]:
    """Imports, `__all__`, a docstring, and what imports a name with its first use."""
    if not source.name.endswith("__init__.py") or not source.product:
        return
    for node in source.tree.body:
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_all = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not (is_import or is_text or is_all or is_typing):
            yield f"line {node.lineno}: more than a re-export"


def a_name_says_what_is_inside(source: Source) -> Iterator[str]:
    """No module or folder is called after nothing."""
    for part in Path(source.name).with_suffix("").parts:
        if part in NAMES_THAT_SAY_NOTHING:
            yield f"the name {part} says nothing"


def nothing_is_left_unfinished(source: Source) -> Iterator[str]:
    """No marks of work to come."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"line {number}: {line.strip()[:60]}"


def no_machine_shows_through(source: Source) -> Iterator[str]:
    """No paths of somebody's machine, no hosts of package registries."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if MACHINE_PATHS.search(line) or REGISTRY_HOSTS.search(line):
            yield f"line {number}: {line.strip()[:60]}"


def a_test_neither_sleeps_nor_is_skipped(source: Source) -> Iterator[str]:
    """`asyncio.sleep(0)`, which only yields, is no sleep; nor is time in the simulation.

    Of a process outside only looking again tells what it has come to.
    """
    exempt = ("tests/simulation/", "tests/acceptance/", "tests/crash_matrix/", "tests/operate/")
    if not source.is_test or source.name.startswith(exempt):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "asyncio.sleep"}:
            if not (node.args and ast.unparse(node.args[0]) == "0"):
                yield f"line {node.lineno}: sleeps"
        if isinstance(node, ast.Attribute) and node.attr in {"skip", "skipif", "xfail"}:
            yield f"line {node.lineno}: {node.attr}"


def a_test_can_fail(source: Source) -> Iterator[str]:
    """Each test asserts something, itself or through a function that says so by its name."""
    if not source.is_test:
        return
    for function in functions(source):
        if function.name.startswith("test_") and not any(map(_asserts, ast.walk(function))):
            yield f"line {function.lineno}: {function.name} asserts nothing"


def clocks_chance_files_and_threads_are_arguments(source: Source) -> Iterator[str]:
    """Only the doors call them."""
    if not source.name.startswith(("engine/", "blobit/")):
        return
    if any(source.name.startswith(door) for door in DOORS):
        return
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        module, _, name = called.rpartition(".")
        if called == "open" or name in BANNED_CALLS.get(module, set()):
            yield f"line {node.lineno}: {called}"


def what_is_public_is_documented(source: Source) -> Iterator[str]:
    """Classes and functions at the top of a module, unless their name says they are private."""
    if not source.product:
        return
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.name.startswith("_") and not ast.get_docstring(node):
                yield f"line {node.lineno}: {node.name} has no docstring"


RULES: Final[tuple[Rule, ...]] = (
    a_function_stays_short,
    a_line_fits,
    a_module_says_what_it_is,
    an_init_only_re_exports,
    a_name_says_what_is_inside,
    nothing_is_left_unfinished,
    no_machine_shows_through,
    a_test_neither_sleeps_nor_is_skipped,
    a_test_can_fail,
    clocks_chance_files_and_threads_are_arguments,
    what_is_public_is_documented,
)


def _has_state(source: Source) -> bool:
    """Whether a module has a class that keeps something and does something."""
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef):
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            if "__init__" in methods and len(methods) > 2:
                return True
    return False


def _asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert | ast.Raise):
        return True
    if not isinstance(node, ast.Call):
        return False
    return bool(re.search(r"raises|assert|check|verify|expect", ast.unparse(node.func)))
