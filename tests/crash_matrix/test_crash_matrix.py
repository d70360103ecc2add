"""A few rounds of the matrix, one a way to run a folder, and the matrix itself."""

from pathlib import Path

import pytest

from tests.crash_matrix.__main__ import ROWS, Book, shares, table
from tests.crash_matrix.client import notes_of
from tests.crash_matrix.rounds import Outcome, made
from tests.crash_matrix.rows import CommandRow, Row, Runs

NAMED = {row.name: row for row in ROWS}
CHOSEN = ("open", "guests", "serve", "worker-alone")


@pytest.mark.parametrize("name", CHOSEN)
def test_killed_processes_restart_and_have_everything_acknowledged(
    name: str, tmp_path: Path
) -> None:
    with made(NAMED[name], tmp_path / "site", "", "suite") as rounds:
        outcome = rounds.round(1, f"suite/{name}")
    # How long it takes beside all other tests is no matter of this one.
    assert not (outcome.not_started or outcome.lost or outcome.faults), outcome
    assert outcome.looked_at > 0


def test_the_matrix_reports_what_did_not_start_and_what_was_lost(tmp_path: Path) -> None:
    """A command that ends when it is given again, and a note of what nobody ever stored."""
    once = Row("once", (Runs("tests.crash_matrix.once {data} {notes}"),), kinds="")
    with made(once, tmp_path / "once", "", "s") as rounds:
        told = rounds.round(0, "s")
    assert "a second time" in told.not_started[0] and not told.good
    forgets = Row(
        "forgets", (Runs("tests.crash_matrix.once {data}/.. {notes} task 99 7"),), kinds=""
    )
    with made(forgets, tmp_path / "forgets", "", "s") as rounds:
        told = rounds.round(0, "s")
    assert set(told.lost) == {"task 99 7"} and not told.not_started


def test_rounds_are_distributed_by_weight_and_can_be_resumed(tmp_path: Path) -> None:
    rows: list[Row | CommandRow] = [Row("a", (), weight=3), CommandRow("b", weight=1)]
    assert shares(rows, 10) == {"a": 7, "b": 3}
    assert sum(shares(ROWS, 300).values()) == 300
    book = Book(tmp_path / "rounds.jsonl")
    book.add(Outcome("open", 0, slow_s=1.25, looked_at=3))
    book.add(Outcome("open", 1, lost=["row 7"], not_started=["no"]))
    again = Book(tmp_path / "rounds.jsonl")
    assert again.outcomes == book.outcomes
    assert again.has("open", 1) and not again.has("open", 2)
    assert table(again.outcomes)[1].split() == ["open", "2", "1", "0", "1", "0", "3", "1.2", "s"]


def test_a_note_that_a_kill_truncated_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"row 7\ntask 1 8\nrow 1")
    assert notes_of(tmp_path / "notes") == [("row", "7"), ("task", "1 8")]
    assert notes_of(tmp_path / "none") == []
