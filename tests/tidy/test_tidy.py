"""The rules of the house hold for every file, and every rule can fail."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.tidy.rules import MACHINE_PATHS, REGISTRY_HOSTS, RULES, Rule, Source

ROOT = Path(__file__).parents[2]

ENTRY_POINTS = {
    "benchmarks.__main__": "python -m benchmarks",
    "benchmarks.herd_child": "python -m benchmarks.herd_child",
    "blobit.spark": "format('blobit') of Spark",
    "broker.worker.child": "python -m broker.worker.child",
    "engine.bookie.__main__": "python -m engine.bookie",
    "engine.spark": "format('ledger') of Spark",
    "herd.capture.spark": "format('herd-changes') of Spark",
    "herd.checkpoint.building": "python -m herd.checkpoint.building",
    "herd.spark": "format('herd') of Spark",
    "herdbook.__main__": "python -m herdbook",
    "herdbook.cli.main": "the command herdbook",
}

ENTRY = re.compile(r"herdbook\.[\w.]+:\w+")
"""What the table of a command's late parts names."""

SHIPPED_FAKES = {
    "broker.memory": "the broker in memory, for users' tests",
    "engine.bookie.index_memory": "the index of simulations, for users' tests too",
    "engine.metadata.memory": "the metadata store of simulations, for users' tests too",
}

BREAKS: dict[str, tuple[str, str]] = {
    "a_function_stays_short": ("engine/x.py", "def f():\n" + "    x = 1\n" * 51),
    "a_line_fits": ("engine/x.py", "x = '" + "x" * 100 + "'"),
    "a_module_says_what_it_is": ("engine/x.py", "x = 1"),
    "an_init_only_re_exports": ("engine/__init__.py", "def f(): ..."),
    "a_name_says_what_is_inside": ("engine/utils.py", ""),
    "nothing_is_left_unfinished": ("engine/x.py", "# TO" + "DO: later"),
    "no_machine_shows_through": ("engine/x.py", "x = '/ho" + "me/somebody/data'"),
    "a_test_neither_sleeps_nor_is_skipped": ("tests/test_x.py", "import time\ntime.sleep(1)"),
    "a_test_can_fail": ("tests/test_x.py", "def test_x():\n    x = 1"),
    "clocks_chance_files_and_threads_are_arguments": ("engine/x.py", "import time\ntime.time()"),
    "what_is_public_is_documented": ("engine/x.py", "def f(): ..."),
}


def tracked(suffix: str) -> list[Path]:
    """The project's files of a kind, as git knows them."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", f"*{suffix}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    # Whoever makes an environment of their own here has no files of the project in it.
    environments = {path.parent.name for path in ROOT.glob("*/pyvenv.cfg")}
    return [
        path
        for name in listing.stdout.split("\n")
        if name.split("/")[0] not in environments and (path := ROOT / name).is_file()
    ]


# What protoc writes has its own style.
SOURCES = [Source.read(ROOT, path) for path in tracked(".py") if not path.stem.endswith("_pb2")]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_every_file_keeps_the_rule(rule: Rule) -> None:
    broken = [f"{source.name}: {place}" for source in SOURCES for place in rule(source)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_every_rule_can_fail(rule: Rule) -> None:
    name, text = BREAKS[rule.__name__]
    assert list(rule(Source.parse(name, text)))


def test_every_module_is_used_by_another_or_is_an_entry_point() -> None:
    imported: set[str] = set()
    for source in SOURCES:
        if source.product:
            imported |= imports_of(source)
    modules = {
        source.name[:-3].replace("/", ".").removesuffix(".__init__")
        for source in SOURCES
        if source.product
    }
    dead = {
        module
        for module in modules - imported - set(ENTRY_POINTS) - set(SHIPPED_FAKES)
        if "." in module and not any(other.startswith(f"{module}.") for other in modules)
    }
    assert not dead


def imports_of(source: Source) -> set[str]:
    """Every module that a source imports, by its full name."""
    found: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and ENTRY.fullmatch(str(node.value)):
            found.add(str(node.value).partition(":")[0])
    return found


def test_every_document_has_one_title_and_shows_no_machine() -> None:
    for path in tracked(".md"):
        text = path.read_text()
        prose = "".join(text.split("```")[::2])
        titles = [line for line in prose.splitlines() if line.startswith("# ")]
        assert len(titles) == 1, path
        assert not MACHINE_PATHS.search(text) and not REGISTRY_HOSTS.search(text), path
