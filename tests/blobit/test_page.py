"""The page about blobs says what is so: its examples run, in the order in which they stand."""

import doctest
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from typer.main import get_command

from herdbook import blob_store
from herdbook.cli.main import app

_COMMAND_LINE: Any = get_command(app)
_PAGE = Path(__file__).parents[2] / "docs" / "blobs.md"
_BLOCK = re.compile(r"```(python|console)\n(.*?)```", re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", re.MULTILINE)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERDBOOK_URL", "./data")
    manual = tmp_path / "manual" / "below"
    manual.mkdir(parents=True)
    (tmp_path / "manual" / "a.txt").write_text("first\n")
    (manual / "b.txt").write_text("second")
    (tmp_path / "manual" / "link").symlink_to("a.txt")
    yield tmp_path
    blob_store.let_go(str(tmp_path / "data"))


def run(command: str) -> str:
    """What a command says, and its status if that is not 0."""
    before, _, after = command.rpartition(" | ")
    typed = " ".join(shlex.split(before)[1:]) + "\n" if before else None
    program, *arguments = shlex.split(after)
    if program == "diff":
        return differences(*map(Path, arguments[1:]))
    assert program == "herdbook"
    answer = CliRunner().invoke(_COMMAND_LINE, arguments, input=typed)
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer.output + (f"[{answer.exit_code}]\n" if answer.exit_code else "")


def differences(first: Path, second: Path) -> str:
    """Names and contents that two folders do not share."""

    def content(folder: Path) -> dict[str, Any]:
        return {
            str(path.relative_to(folder)): os.readlink(path)
            if path.is_symlink()
            else path.read_bytes()
            for path in folder.rglob("*")
            if path.is_symlink() or path.is_file()
        }

    one, other = content(first), content(second)
    return "".join(f"{name}\n" for name in one | other if one.get(name) != other.get(name))


def test_every_example_of_the_page_about_blobs_runs(place: Path) -> None:
    blocks = _BLOCK.findall(_PAGE.read_text())
    assert len(blocks) > 10
    names: dict[str, Any] = {}
    same = doctest.OutputChecker().check_output
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(_PAGE), "exec"), names)
            continue
        for command, wanted in _COMMAND.findall(text):
            got = run(command)
            assert same(wanted, got, flags), f"{command}\n{got}"
