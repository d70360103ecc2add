"""What a folder and a cluster have in common, with an event loop and without one.

Invariants:
- What has no event loop runs on the one background loop of the process.
- What its program forgets is closed when the process ends; in a forked child closing does nothing.
"""

import atexit
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Self

from blobit import AsyncBlobs, Blobs
from engine.following import Following, singly
from engine.ledger.client import LedgerClient
from engine.log import START, Position, ReplicatedLog
from engine.ports.system_loop import background_loop
from engine.sync import Ledgers
from herd.aio import AsyncConnection
from herd.connection import Connection
from herd.errors import ProgrammingError
from herd.hopping import Hopper
from herd.opening import Herd
from herd.store import DEFAULT, AsyncHerd
from herd.table import AsyncTable, Table
from herd.wire.herd import RemoteHerd

if TYPE_CHECKING:
    from broker.sync import Tasks
    from herd.changes import CommittedTransaction
    from herdbook.book import AsyncBook
    from herdbook.connecting import AsyncCluster


class AsyncOpened:
    """Ledgers, blobs and tables as long as they are open, for code with an event loop."""

    def __init__(
        self, ledgers: LedgerClient, blobs: AsyncBlobs, herd: AsyncHerd | RemoteHerd
    ) -> None:
        self.ledgers = ledgers
        """The ledger layer: create, open, list and delete ledgers."""
        self.blobs = blobs
        """Buckets of named objects, and objects by id."""
        self.herd = herd
        """Tablespaces: make, list, back up and restore them."""

    async def sql(self, tablespace: str = DEFAULT, *, autocommit: bool = False) -> AsyncConnection:
        """A connection for SQL in a tablespace. Close it. Raises what is in `herd.errors`."""
        return await self.herd.connect(tablespace, autocommit=autocommit)

    async def table(self, name: str, tablespace: str = DEFAULT) -> AsyncTable:
        """A table as keys and values, without SQL. Raises `herd.errors.NoSuchTable`."""
        return await self.herd.table(name, tablespace)

    async def changes(
        self,
        tablespace: str = DEFAULT,
        after: tuple[int, int] = START,
        *,
        follow: bool = True,
        tables: Sequence[str] = (),
        consumer: str = "",
    ) -> "AsyncGenerator[CommittedTransaction, None]":
        """A tablespace's committed transactions, in order; see `Opened.changes`.

        Close it (`contextlib.aclosing`) when it is left before its end.
        """
        from herd.changes import changes
        from herd.reading_log import log_of
        from herd.translating import translating

        name = tablespace.lower()
        if name != DEFAULT and name not in await self.herd.names():
            raise ProgrammingError(f"there is no tablespace {name}", hint="herd.names() lists them")
        with translating():
            last = None if follow else await ReplicatedLog(self.ledgers, log_of(name)).end()
        found = changes(
            self.ledgers, name, Position(*after), last=last, tables=tables, consumer=consumer
        )
        async with aclosing(found):
            async for transaction in found:
                yield transaction


class Opened:
    """Ledgers, blobs, tables and tasks as long as they are open; a context manager.

    Any number of threads may use one. In a forked child, on the loop's own thread and after
    `close` every call raises what its part has for that; none hangs.
    """

    def __init__(self, opening: "AbstractAsyncContextManager[AsyncBook | AsyncCluster]") -> None:
        self._loop = background_loop()
        self._opening = opening
        self._book = self._loop.run(opening.__aenter__)
        self._closed = False
        self._tasks: Tasks | None = None
        self._hopper = Hopper(self._loop)
        self.ledgers = Ledgers(self._book.ledgers, self._loop)
        """The ledger layer: create, open, list and delete ledgers."""
        self.blobs = Blobs(self._book.blobs, self._loop)
        """Buckets of named objects, and objects by id."""
        self.herd = Herd(self._book.herd, self._hopper)
        """Tablespaces: make, list, back up and restore them."""
        atexit.register(self.close)

    @property
    def url(self) -> str:
        """What another process opens it by, too: a folder's absolute path, or a cluster's url."""
        return self._book.url

    @property
    def tasks(self) -> "Tasks":
        """Tasks: submit, wait, schedule; a folder's run, too. Raises `BrokerUnavailable`."""
        if self._tasks is None:
            # Loaded on first use, like all of the broker: most programs have no tasks.
            from broker.sync import Tasks

            self._tasks = Tasks(self._loop.run(self._book.tasks), self._loop)
        return self._tasks

    def sql(self, tablespace: str = DEFAULT, *, autocommit: bool = False) -> Connection:
        """A connection of PEP 249 to a tablespace. Close it. Raises what is in `herd.errors`.

        >>> import herdbook, tempfile
        >>> with herdbook.open(tempfile.mkdtemp()) as book:
        ...     with book.sql(autocommit=True) as connection:
        ...         _ = connection.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        ...         _ = connection.execute("INSERT INTO cow VALUES (1, 'Elsa'), (2, 'Resi')")
        ...         connection.execute("SELECT name FROM cow ORDER BY id").fetchall()
        [('Elsa',), ('Resi',)]
        """
        return self.herd.connect(tablespace, autocommit=autocommit)

    def table(self, name: str, tablespace: str = DEFAULT) -> Table:
        """A table as keys and values, without SQL: get, put, update, delete, scan.

        SQL sees the same rows. Raises `herd.errors.NoSuchTable`.

        >>> import herdbook, tempfile
        >>> with herdbook.open(tempfile.mkdtemp()) as book:
        ...     with book.sql(autocommit=True) as connection:
        ...         _ = connection.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        ...     cows = book.table("cow")
        ...     cows.put({"id": 3, "name": "Zenzi"})
        ...     cows.get(3), cows.delete(3), list(cows.scan())
        ({'id': 3, 'name': 'Zenzi'}, True, [])
        """
        return self.herd.table(name, tablespace)

    def changes(
        self,
        tablespace: str = DEFAULT,
        after: tuple[int, int] = START,
        *,
        follow: bool = True,
        tables: Sequence[str] = (),
        consumer: str = "",
    ) -> "Following[CommittedTransaction]":
        """A tablespace's committed transactions, in order, from a position on.

        With `follow` it waits for more until `stop()` is called, by whatever thread; without it
        ends with what is committed now. `after` is the `position` of the last transaction that was
        dealt with, `tables` names those of interest (none: all). With a name as `consumer`, what it
        needs to go on is kept for a week after it last asked. Raises, while iterating,
        `herd.errors.StorageFailed` when the log no longer reaches back so far, and
        `ProgrammingError` for a tablespace that is not there.

        >>> import herdbook, tempfile
        >>> with herdbook.open(tempfile.mkdtemp()) as book:
        ...     with book.sql(autocommit=True) as connection:
        ...         _ = connection.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        ...         _ = connection.execute("INSERT INTO cow VALUES (1, 'Elsa'), (2, 'Resi')")
        ...     for transaction in book.changes(follow=False):
        ...         for change in transaction.changes:
        ...             print(change.table.name, change.kind.value, change.row)
        cow define None
        cow put {'id': 1, 'name': 'Elsa'}
        cow put {'id': 2, 'name': 'Resi'}
        """
        found = self._book.changes(
            tablespace, after, follow=follow, tables=tables, consumer=consumer
        )
        return Following(singly(found), self._loop, self._hopper.call)

    def close(self) -> None:
        """Let go of it. May be called twice; in a forked child it does nothing.

        Raises `InvalidRequest` on the loop's own thread: it is still open then.
        """
        if self._loop.usable and not self._closed:
            self._loop.check()
            self._closed = True
            self._loop.run(self._end)
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _end(self) -> None:
        await self._opening.__aexit__(None, None, None)
