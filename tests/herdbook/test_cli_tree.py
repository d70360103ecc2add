"""Every command of the tree: what its help says, what it prints, and how it ends."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from herdbook.cli.examples import EXAMPLES, EXIT_STATUS
from herdbook.cli.late import tree
from herdbook.cli.main import COMMANDS, app

ROOT: Any = get_command(app)
TREE: dict[str, Any] = {" ".join(path): command for path, command in tree(ROOT) if path}
GROUPS = {name for name, command in TREE.items() if hasattr(command, "commands")}
COLUMNS_MAX = 80

WITHOUT_JSON = {
    "blob cat": "its output is the object's bytes",
    "completion": "its output is a shell's script",
    "bookie": "serves until it is told to stop; its first line is an address",
    "herd node": "serves until it is told to stop",
    "task serve": "serves until it is told to stop; its first line is an address",
    "worker": "works until it is told to stop",
    "zookeeper": "serves until it is told to stop; its first line is an address",
}


def calls_in(example: str) -> Iterator[list[str]]:
    """The arguments of each call of the command that an example has."""
    words = list(shlex.shlex(example, posix=True, punctuation_chars=True))
    lexer = shlex.shlex(example, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words = list(lexer)
    call: list[str] | None = None
    for word in [*words, ";"]:
        if set(word) <= set("|&;<>"):
            if call and call[0] == "herdbook":
                yield call[1:]
            call = None if set(word) & set("<>") else []
        elif call is not None or word == "herdbook":
            call = [*(call or []), word]


def options_of(command: Any) -> set[str]:
    """All spellings of a command's options."""
    return {word for each in command.params for word in (*each.opts, *each.secondary_opts)}


def test_the_help_of_the_whole_is_a_table_of_contents() -> None:
    told = CliRunner().invoke(app, ["--help"]).stdout
    headings = [line for line in told.splitlines() if re.fullmatch(r"[A-Z]\w+:", line)]
    assert headings == ["Options:", "Start:", "Data:", "Tasks:", "Operate:", "Develop:"]
    listed = re.findall(r"^  ([a-z][\w-]*) {2,}\S.*\.$", told, re.MULTILINE)
    assert listed == list(COMMANDS)
    assert max(map(len, told.splitlines())) <= COLUMNS_MAX


@pytest.mark.parametrize("name", TREE)
def test_every_command_says_what_it_does_shows_how_and_tells_its_statuses(name: str) -> None:
    told = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="herdbook").stdout
    assert f"Usage: herdbook {name}" in told
    assert TREE[name].help
    for example in EXAMPLES[name]:
        assert f"    {example}" in told
    assert " ".join(EXIT_STATUS.split()) in " ".join(told.split())


def test_no_example_is_of_a_command_that_is_not_there() -> None:
    assert [name for name in EXAMPLES if name and name not in TREE] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_a_call_that_the_command_takes(name: str) -> None:
    called = [call for example in EXAMPLES[name] for call in calls_in(example)]
    assert called
    for arguments in called:
        command, path = ROOT, []
        while arguments[:1] and arguments[0] in getattr(command, "commands", {}):
            path.append(arguments.pop(0))
            command = TREE[" ".join(path)]
        assert " ".join(path).startswith(name)
        command.make_context(path[-1], arguments)


@pytest.mark.parametrize("name", sorted(TREE.keys() - GROUPS))
def test_every_command_that_prints_something_prints_json_where_asked(name: str) -> None:
    assert ("--json" in options_of(TREE[name])) != (name in WITHOUT_JSON)
