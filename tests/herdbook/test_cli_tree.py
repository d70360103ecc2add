"""Every command of the tree: what its help says, what it prints, and how it ends."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from herdbook.cli import main
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
    **{f"user {each}": "prints nothing" for each in ("add", "passwd", "rm", "grant", "revoke")},
    "user token": "its output is the token",
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


# Errors

WITHOUT_STORE = {
    "completion": "needs no store",
    "demo": "makes a store of its own",
    "dev": "makes a cluster of its own",
    "serve": "makes the folder that is named",
    "store restore": "makes the store that is named",
    "zookeeper": "needs no store",
}


def called_on(store: str, name: str) -> list[str]:
    """The arguments of a command's first example, for that store."""
    arguments = next(calls_in(EXAMPLES[name][0]))
    if "--url" in arguments:
        place = arguments.index("--url")
        del arguments[place : place + 2]
    taken = [store if word == "./data" or "://" in word else word for word in arguments]
    taken = [word for word in taken if word != "--create"]
    spellings = options_of(TREE[name])
    named = ["--url", store] if "--url" in spellings else []
    return [*taken, *named, *(["--yes"] if "--yes" in spellings else [])]


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder to call from, where no other rule names a store."""
    folder = tmp_path_factory.mktemp("nowhere")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("XDG_CONFIG_HOME", str(folder))
        for variable in ("HERDBOOK_URL", "HERDBOOK_CONFIG"):
            patched.delenv(variable, raising=False)
        for file in ("photos", "elsa.jpg", "cows.csv", "cows.herd"):
            (folder / file).write_bytes(b"")
        (folder / "restart.json").write_bytes(b"{}")
        (folder / "farm.py").write_text("from broker.worker import task\n")
        yield folder


@pytest.mark.parametrize("store", ["missing", "herdbook://", "http://nobody"])
@pytest.mark.parametrize("name", sorted(TREE.keys() - GROUPS - WITHOUT_STORE.keys()))
def test_a_store_that_is_not_there_is_told_in_one_line(
    nowhere: Path, name: str, store: str
) -> None:
    before = sorted(nowhere.rglob("*"))
    ended = CliRunner().invoke(app, called_on(store, name), prog_name="herdbook")
    assert isinstance(ended.exception, SystemExit)
    assert ended.exit_code in (1, 2)
    assert (ended.stderr.count("\n"), ended.stdout) == (1, "")
    assert sorted(nowhere.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["blobb"], "Error: No such command 'blobb'. Did you mean 'blob'? (herdbook --help"),
        (["--nothing"], "Error: No such option: --nothing (herdbook --help"),
        (["blob", "put"], "Error: Missing argument 'FILE'. (herdbook blob put --help"),
        (["bookie", "lss"], "Error: No such command 'lss'. Did you mean 'ls'? (herdbook bookie"),
        (["ledger", "show", "x"], "Error: Invalid value for 'ledger_id'"),
    ],
)
def test_a_wrong_call_is_told_in_one_line_that_names_the_help(
    arguments: list[str], said: str
) -> None:
    ended = CliRunner().invoke(app, arguments, prog_name="herdbook")
    assert ended.exit_code == 2
    assert ended.stderr.startswith(said)
    assert ended.stderr.endswith("--help tells more)\n")
    assert ended.stderr.count("\n") == 1


def test_an_error_that_nobody_expected_is_a_line_too_unless_its_place_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("the sky\nis falling")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    said = "RuntimeError: the sky is falling (HERDBOOK_TRACEBACK=1 shows where)\n"
    assert capsys.readouterr() == ("", said)
    monkeypatch.setenv("HERDBOOK_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="is falling"):
        main.main()
