"""Those who follow a tablespace's changes without an event loop of their own."""

from itertools import islice
from pathlib import Path

import pytest

import herd
from engine.log import Position
from herd.changes import ChangeKind


def test_changes_come_to_threads_in_order_and_go_on_where_one_stopped(tmp_path: Path) -> None:
    with herd.open_herd(tmp_path) as book, book.connect(autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE cow (id INT PRIMARY KEY, milk INT) WITH (changes = 'full')")
        cursor.executemany("INSERT INTO cow VALUES (?, ?)", [(1, 10), (2, 20)])
        cursor.execute("UPDATE cow SET milk = milk + 1 WHERE id = 2")
        made, inserted = islice(book.changes(consumer="etl"), 2)
        assert [change.kind for change in made.changes] == [ChangeKind.DEFINE]
        assert [(change.kind, change.row) for change in inserted.changes] == [
            (ChangeKind.INSERT, {"id": 1, "milk": 10}),
            (ChangeKind.INSERT, {"id": 2, "milk": 20}),
        ]
        (updated,) = islice(book.changes(after=inserted.position, consumer="etl"), 1)
        (change,) = updated.changes
        assert change.kind is ChangeKind.UPDATE
        assert (change.before, change.row) == ({"id": 2, "milk": 20}, {"id": 2, "milk": 21})


def test_a_table_that_was_emptied_is_told_to_be_empty(tmp_path: Path) -> None:
    with herd.open_herd(tmp_path) as book, book.connect() as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO cow VALUES (1)")
        connection.commit()
        cursor.execute("INSERT INTO cow VALUES (7)")
        cursor.execute("TRUNCATE TABLE cow")
        cursor.execute("INSERT INTO cow VALUES (2)")
        connection.commit()
        _, emptied = islice(book.changes(), 2)
        assert [(change.kind, change.row) for change in emptied.changes] == [
            (ChangeKind.EMPTY, None),
            (ChangeKind.PUT, {"id": 2}),
        ]


def test_rows_of_a_restored_table_are_not_passed_over(tmp_path: Path) -> None:
    with herd.open_herd(tmp_path / "store") as book:
        with book.connect(autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
            cursor.execute("INSERT INTO cow VALUES (1)")
        book.back_up(tmp_path / "cows.herd")
        book.restore(tmp_path / "cows.herd", "copy")
        with pytest.raises(herd.OperationalError, match="was restored"):
            list(islice(book.changes("copy"), 1))
        with book.connect("copy", autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("CHECKPOINT")
            _, ledger, entry, *_ = cursor.execute("SHOW CHECKPOINTS").fetchall()[0]
            cursor.execute("INSERT INTO cow VALUES (2)")
        (added,) = islice(book.changes("copy", after=Position(ledger, entry)), 1)
        assert [change.row for change in added.changes] == [{"id": 2}]
