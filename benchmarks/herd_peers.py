"""What others do with the same table: SQLite in this process, PostgreSQL where it is installed.

Invariants:
- A commit of theirs is durable when it is answered, as ours is: SQLite in WAL mode with
  synchronous=FULL, PostgreSQL with fsync and synchronous_commit on.
- They get their quickest way: prepared statements, an integer key without an index beside it; many
  threads share one connection to SQLite, for it has one writer, and have one each to PostgreSQL.
- PostgreSQL is never required; it is used where `initdb`, `postgres` and psycopg are found.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.herd_postgres import postgres
from benchmarks.setting import Setting

TABLE: Final = "accounts"
FILL_ROWS: Final = 10_000
Row = tuple[int, int, int, str]


def row(number: int) -> Row:
    """A row of about 100 bytes."""
    return (number, number % 100, number * 7 % 1_000, f"note {number:09d} ".ljust(88, "x"))


def create(key: str) -> str:
    """The table's definition; `key` is the type of its key."""
    return (
        f"CREATE TABLE {TABLE} "
        f"(id {key} PRIMARY KEY, kind INTEGER NOT NULL, amount BIGINT NOT NULL, note VARCHAR(100))"
    )


AGGREGATE: Final = (
    f"SELECT kind, count(*), sum(amount), max(amount) FROM {TABLE} GROUP BY kind ORDER BY kind"
)


def insert(mark: str) -> str:
    """Adds a row."""
    return f"INSERT INTO {TABLE} (id, kind, amount, note) VALUES ({mark}, {mark}, {mark}, {mark})"


def update(mark: str) -> str:
    """Changes one row by its key."""
    return f"UPDATE {TABLE} SET amount = amount + 1 WHERE id = {mark}"


def select(mark: str) -> str:
    """Reads one row by its key."""
    return f"SELECT id, kind, amount, note FROM {TABLE} WHERE id = {mark}"


def batches(first: int, count: int) -> Iterator[list[Row]]:
    """Rows from a number on, in batches."""
    for start in range(first, first + count, FILL_ROWS):
        yield [row(number) for number in range(start, min(start + FILL_ROWS, first + count))]


def spread(count: int, rows: int) -> list[int]:
    """So many keys, all over a table."""
    return [number * 7_919 % rows for number in range(count)]


@dataclass(frozen=True, slots=True)
class Peer:
    """One that can be connected to, as often as one likes."""

    name: str
    mark: str
    key: str
    connect: Callable[[], Any]
    one_connection: bool
    """Whether threads should share one."""

    def fill(self, rows: int) -> None:
        """Make the table."""
        connection = self.connect()
        connection.execute(create(self.key))
        for batch in batches(0, rows):
            self._insert(connection, batch)
        connection.close()

    def insert_rate(self, first: int, count: int) -> float:
        """Rows a second, in transactions of `FILL_ROWS`."""
        connection, given = self.connect(), list(batches(first, count))
        start_s = time.perf_counter()
        for batch in given:
            self._insert(connection, batch)
        taken_s = time.perf_counter() - start_s
        connection.close()
        return count / taken_s

    def update_rate(self, keys: Sequence[int], threads: int = 1) -> float:
        """Updates a second, each a transaction of its own."""
        shared = self.connect() if self.one_connection else None
        turn = threading.Lock() if shared is not None and threads > 1 else nullcontext()
        statement = update(self.mark)

        def work(place: int) -> None:
            connection = shared or self.connect()
            for key in keys[place::threads]:
                with turn:
                    connection.execute(statement, (key,))
            if shared is None:
                connection.close()

        rate = len(keys) / at_once(threads, work)
        if shared is not None:
            shared.close()
        return rate

    def select_rate(self, keys: Sequence[int]) -> float:
        """Rows a second that one thread reads."""
        connection, statement = self.connect(), select(self.mark)
        cursor = connection.cursor()
        start_s = time.perf_counter()
        for key in keys:
            assert cursor.execute(statement, (key,)).fetchone() is not None
        taken_s = time.perf_counter() - start_s
        connection.close()
        return len(keys) / taken_s

    def aggregate_s(self) -> float:
        """How long the aggregate over the whole table takes."""
        connection = self.connect()
        start_s = time.perf_counter()
        assert connection.execute(AGGREGATE).fetchall()
        taken_s = time.perf_counter() - start_s
        connection.close()
        return taken_s

    def _insert(self, connection: Any, batch: list[Row]) -> None:
        connection.execute("BEGIN")
        connection.cursor().executemany(insert(self.mark), batch)
        connection.execute("COMMIT")


@contextmanager
def peers(setting: Setting, rows: int) -> Iterator[list[Peer]]:
    """Those that are there, each with a table of its own on the same disk."""
    with ExitStack() as stack:
        found = [sqlite(stack.enter_context(setting.scratch()) / "peer.sqlite")]
        connect = stack.enter_context(postgres(setting.folder))
        if connect is not None:
            found.append(Peer("postgres", "%s", "INTEGER", connect, one_connection=False))
        for peer in found:
            peer.fill(rows)
        yield found


def sqlite(path: Path) -> Peer:
    """SQLite with every commit on the disk."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    return Peer("sqlite", "?", "INTEGER", connect, one_connection=True)


def at_once(threads: int, work: Callable[[int], None]) -> float:
    """Run in so many threads; returns how long all of them took, in seconds."""
    failed: list[BaseException] = []

    def guarded(place: int) -> None:
        try:
            work(place)
        except BaseException as error:
            failed.append(error)

    running = [threading.Thread(target=guarded, args=(place,)) for place in range(threads)]
    start_s = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    taken_s = time.perf_counter() - start_s
    if failed:
        raise failed[0]
    return taken_s
