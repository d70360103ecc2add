"""SHOW CHECKPOINTS: what can be read with AS OF, and who keeps it."""

from pathlib import Path

import herd


def test_checkpoints_are_shown_with_their_numbers_and_places(tmp_path: Path) -> None:
    with herd.connect(tmp_path, autocommit=True) as connection:
        cursor = connection.cursor()
        assert cursor.execute("SHOW CHECKPOINTS").fetchall() == []
        cursor.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
        cursor.execute("CHECKPOINT")
        cursor.execute("INSERT INTO cow VALUES (1)")
        cursor.execute("CHECKPOINT")
        rows = cursor.execute("SHOW CHECKPOINTS").fetchall()
        assert [column[0] for column in cursor.description or ()] == (
            ["number", "ledger", "entry", "epoch", "taken", "pins"]
        )
        assert [row[0] for row in rows] == [1, 2]
        assert rows[0][1:3] < rows[1][1:3], "positions in the log"
        assert rows[0][4] <= rows[1][4]
        for number, there in ((1, 0), (2, 1)):
            counted = cursor.execute(f"SELECT count(*) FROM cow AS OF CHECKPOINT {number}")
            assert counted.fetchall() == [(there,)]
