"""A process of its own that fills or opens a folder, for who measures it or kills it.

usage: python -m benchmarks.herd_child fill-rows|fill-tables|open FOLDER COUNT

Invariants:
- It prints one JSON object on one line when it has done what it was asked.
- Who filled goes on with updates until it is killed; who opened ends cleanly.
- The clock of opening runs from the first call to the first answered row; memory is the most that
  the process ever held, queries among it.
"""

import json
import sys
import time
from pathlib import Path

import herd
from benchmarks.herd_peers import TABLE, select, spread, update
from benchmarks.herd_updates import fill
from engine.limits import MIB

TABLE_ROWS = 10


def main() -> None:
    """Do what the arguments say."""
    action, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if action == "open":
        _open(folder)
    else:
        _fill(folder, count, rows=action == "fill-rows")


def _open(folder: Path) -> None:
    start_s = time.perf_counter()
    opened = herd.open_herd(folder)
    with opened.connect(autocommit=True) as connection:
        assert connection.execute(select("?"), (1,)).fetchone() is not None
        opened_s = time.perf_counter() - start_s
        (rows,) = connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone() or (0,)
        tables = len(connection.execute("SELECT * FROM systables").fetchall())
    _say(seconds=opened_s, rows=rows, tables=tables)
    opened.close()


def _fill(folder: Path, count: int, *, rows: bool) -> None:
    opened = herd.open_herd(folder)
    keys = spread(1_000, count if rows else TABLE_ROWS)
    start_s = time.perf_counter()
    fill(opened, count if rows else TABLE_ROWS)
    with opened.connect(autocommit=True) as connection:
        if not rows:
            for number in range(1, count):
                _make(connection, f"table_{number}")
        _say(seconds=time.perf_counter() - start_s)
        while True:
            for key in keys:
                connection.execute(update("?"), (key,))


def _make(connection: herd.Connection, name: str) -> None:
    connection.execute(
        f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, kind INTEGER, amount BIGINT, note VARCHAR)"
    )
    given = [(number, 1, number, name) for number in range(TABLE_ROWS)]
    connection.executemany(
        f"INSERT INTO {name} (id, kind, amount, note) VALUES (?, ?, ?, ?)", given
    )


def _say(**measured: float) -> None:
    status = Path("/proc/self/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    print(json.dumps({**measured, "peak_mib": peak_kib * 1024 / MIB}), flush=True)


if __name__ == "__main__":
    main()
