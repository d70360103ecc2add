"""Completion as a shell asks for it, and as bash itself carries it out."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import herdbook
from herdbook.cli.completing import complete
from herdbook.cli.completion import SCRIPTS, Shell
from herdbook.cli.main import COMMANDS, app


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = str(tmp_path_factory.mktemp("store"))
    with herdbook.open(folder) as book:
        book.blobs.create_bucket("photos")
        book.blobs.create_bucket("post")
        book.herd.create_tablespace("sales")
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("HERDBOOK_URL", folder)
            yield folder


def words(line: str) -> list[str]:
    """What is suggested at the end of a line."""
    root: Any = get_command(app)
    return [found.word for found in complete(root, line)]


def test_commands_are_completed_at_every_depth() -> None:
    assert words("herdbook ") == list(COMMANDS)
    assert words("herdbook che") == ["check-backup", "checkpoint"]
    assert words("herdbook task rollout re") == ["resume", "remove"]
    assert words("herdbook bookie de") == ["decommission"]
    assert words("herdbook nothing ") == []


def test_options_are_completed_with_what_they_mean() -> None:
    assert words("herdbook blob put --con") == ["--content-type"]
    assert words("herdbook blob put a.jpg photos/ --if-") == ["--if-absent"]
    root: Any = get_command(app)
    told = {each.word: each.meaning for each in complete(root, "herdbook ledger ls --")}
    assert told["--degraded"] == "Only those that wait for a replica."
    assert "--help" in told


def test_where_a_value_is_wanted_that_nobody_knows_the_shell_is_left_to_files() -> None:
    assert words("herdbook blob put --content-type ") == []
    assert words("herdbook sql -f ") == []
    assert words("herdbook backup ") == []


def test_names_of_buckets_and_tablespaces_come_from_the_store(store: str) -> None:
    assert words("herdbook blob ls ph") == ["photos/"]
    assert words("herdbook blob rb p") == ["photos", "post"]
    assert words("herdbook pipeline usage --bucket po") == ["post"]
    assert words("herdbook checkpoint . -t sa") == []
    assert words(f"herdbook checkpoint {shlex.quote(store)} -t sa") == ["sales"]
    assert words("herdbook sql -t s") == ["sales"]
    assert words("herdbook herd check sa") == ["sales"]


def test_a_store_that_is_not_there_suggests_nothing_and_is_not_made(tmp_path: Path) -> None:
    assert words(f"herdbook blob ls --url {tmp_path}/none ") == []
    assert words("herdbook blob ls --url 'herdbook://nobody invalid ") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", Shell)
def test_each_shell_has_a_script_that_asks_this_command(shell: Shell) -> None:
    told = CliRunner().invoke(app, ["completion", shell])
    assert told.stdout == SCRIPTS[shell]
    assert f"herdbook completion {shell} --line" in told.stdout


def test_bash_completes_by_the_script(tmp_path: Path, store: str) -> None:
    command = tmp_path / "herdbook"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m herdbook "$@"\n')
    command.chmod(0o755)
    asked = "".join(
        f"COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}; _herdbook; "
        'echo "${COMPREPLY[@]}"\n'
        for line in ("herdbook ledger re", "herdbook blob cat ph")
    )
    ended = subprocess.run(
        ["bash", "--norc", "-c", f'eval "$(herdbook completion bash)"\n{asked}'],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == ["read recover", "photos/"]
    assert ended.stderr == ""
