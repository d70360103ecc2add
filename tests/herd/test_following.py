"""Those who follow a tablespace's changes without an event loop of their own."""

from itertools import islice
from pathlib import Path

import herd
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
