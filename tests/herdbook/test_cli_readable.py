"""What the commands print for people: nothing in it wants a programmer to be read."""

import asyncio
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine import cluster
from herdbook.cli.main import app
from herdbook.cli.store import print_table

ROOT = Path(__file__).parents[2]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def words(result: Result) -> str:
    """What was printed, without the lines of the table."""
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.replace("│", " ").split())


async def test_a_ledger_whose_bookies_are_away_is_not_called_whole(tmp_path: Path) -> None:
    async with cluster.open(tmp_path, bookies=3) as client:
        writer = await client.create_ledger(metadata={"app": b"[red]cow"})
        await writer.append(b"moo")
        await writer.close()
        ledger = ("--url", str(tmp_path))
        assert " all " in words(await asyncio.to_thread(call, "ledger", "ls", *ledger))
        await client.stop_bookie(0)
        await client.stop_bookie(2)
        assert "1 of 3 up" in words(await asyncio.to_thread(call, "ledger", "ls", *ledger))
        shown = words(await asyncio.to_thread(call, "ledger", "show", "1", *ledger))
        assert "1 of 3 up" in shown and "app: [red]cow" in shown
        assert f"from 0: {', '.join(writer.metadata.fragments[0].ensemble)}" in shown
        assert "None" not in shown and "[[" not in shown and "3/3/2" in shown
        info = await asyncio.to_thread(call, "bookie", "info", client.bookies[0], *ledger)
        assert info.exit_code == 1
        assert "None" not in info.stdout and "not registered" in info.stdout


def test_a_column_without_content_is_left_out_and_no_cell_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    address = "machine-in-a-rack-far-away.example.com:3181"
    print_table(("bookie", "boot", "address"), [("b1", "", address), ("b2", "", "")])
    printed = capsys.readouterr().out
    assert "boot" not in printed
    cells = "".join(line.split("│")[2].strip() for line in printed.splitlines() if "│" in line)
    assert address in cells


def test_a_table_of_no_rows_has_its_first_column(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("ledger", "state"), [])
    assert "ledger" in capsys.readouterr().out


def test_a_bookie_that_nobody_can_replace_is_told_of_once_and_not_for_ever(tmp_path: Path) -> None:
    async def fill() -> str:
        async with cluster.open(tmp_path, bookies=3) as client:
            writer = await client.create_ledger()
            await writer.append(b"moo")
            await writer.close()
            return client.bookies[0]

    leaving = asyncio.run(fill())
    answer = call("bookie", "decommission", leaving, "--timeout", "4", "--url", str(tmp_path))
    assert answer.exit_code == 1 and "1 ledgers still name bookie" in answer.stdout
    assert answer.stderr.count(f"no bookie can take the place of {leaving}") == 1
    assert "nobody is there to repair" in words(call("repair", "status", "--url", str(tmp_path)))
    refused = call("bookie", "forget", leaving, "--url", str(tmp_path))
    assert refused.exit_code == 1 and "not forgotten" in refused.stderr


def test_the_command_says_its_version() -> None:
    answer = call("--version")
    assert answer.exit_code == 0 and answer.stdout == f"herdbook {version('herdbook')}\n"


@pytest.mark.parametrize("group", ["bookie", "ledger", "repair", "zookeeper"])
def test_no_name_of_an_option_is_cut_at_80_columns(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    verbs = [[]] if group == "zookeeper" else [[], ["ls"], ["scrub"], ["decommission"]]
    for verb in verbs:
        told = call(group, *verb, "--help").stdout
        assert "…" not in told
        assert max((len(line) for line in told.splitlines()), default=0) <= 80
    if group == "bookie":
        assert "--zookeeper-password-file" in call(group, "--help").stdout


def test_the_demonstration_takes_a_folder_with_a_space_in_its_name() -> None:
    make = ["make", "--no-print-directory", "--dry-run", "demo", "FOLDER=/tmp/a b"]
    told = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert 'demo "/tmp/a b"' in told
