"""The same connections and cursors for code with an event loop: every call that works is awaited.

    async with await herd.aio.connect("./data") as connection:
        cursor = await connection.execute("SELECT * FROM cows WHERE id = ?", (1,))
        async for row in cursor: ...

Invariants:
- Any number of tasks may use one connection; its statements run one after the other.
- Rows of a large result are made of columns in a worker's thread, not on the loop.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from engine.ports.workers import Workers
from herd import errors
from herd.errors import InterfaceError, ProgrammingError
from herd.fetching import BATCH_ROWS, PAGE_ROWS, Fetching, Row, data_frame, polars_frame
from herd.reaching import open_any
from herd.store import DEFAULT

if TYPE_CHECKING:
    import pyarrow

    from engine.metadata.zookeeper_settings import ZooKeeperSettings
    from engine.transport.security import Security
    from herd.sql.session import Session
    from herd.wire.session import RemoteSession

Parameters = Sequence[Any] | Mapping[str, Any]
_ROWS_ON_LOOP_MAX: Final = 500


class AsyncConnection:
    """A session in one tablespace; see `herd.connection.Connection`."""

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError

    def __init__(
        self,
        session: "Session | RemoteSession",
        workers: Workers,
        let_go: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`let_go` is awaited once, when the connection is closed."""
        self.session = session
        self.workers = workers
        self._let_go = let_go
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.session.transaction is not None

    @property
    def autocommit(self) -> bool:
        """Whether each statement outside BEGIN is a transaction of its own."""
        return self.session.autocommit

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        self.check()
        if self.session.transaction is not None and on != self.session.autocommit:
            raise ProgrammingError("a transaction is open", hint="commit or roll back first")
        self.session.autocommit = bool(on)

    @property
    def isolation_level(self) -> str:
        """What transactions that begin from now on see: READ COMMITTED or SNAPSHOT."""
        return str(self.session.isolation.value)

    async def set_isolation_level(self, level: str) -> None:
        """Change it; not the transaction's that is open."""
        await self.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")

    def cursor(self) -> "AsyncCursor":
        """A new cursor. Cursors of one connection share its transaction."""
        self.check()
        return AsyncCursor(self)

    async def execute(self, operation: str, parameters: Parameters = ()) -> "AsyncCursor":
        """Run a statement in a new cursor, which is returned."""
        return await self.cursor().execute(operation, parameters)

    async def executemany(self, operation: str, rows: Iterable[Sequence[Any]]) -> "AsyncCursor":
        """Run a statement once for each tuple of parameters in a new cursor; all or nothing."""
        return await self.cursor().executemany(operation, rows)

    async def commit(self) -> None:
        """Commit the open transaction, durably; without one nothing happens."""
        self.check()
        await self.session.commit()

    async def rollback(self) -> None:
        """Take back what the open transaction did; without one nothing happens."""
        self.check()
        await self.session.rollback()

    async def close(self) -> None:
        """Roll back what is open, and let go. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.session.close()
        finally:
            if self._let_go is not None:
                await self._let_go()

    def check(self) -> None:
        """Raise `InterfaceError` if it is closed."""
        if self._closed:
            raise InterfaceError("the connection is closed", hint="connect again")

    async def __aenter__(self) -> "AsyncConnection":
        self.check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self._closed:
                if kind is None:
                    await self.commit()
                else:
                    await self.rollback()
        finally:
            await self.close()


class AsyncCursor(Fetching):
    """Runs statements of a connection and fetches what they answer."""

    def __init__(self, connection: AsyncConnection) -> None:
        super().__init__()
        self.connection = connection

    async def execute(self, operation: str, parameters: Parameters = ()) -> "AsyncCursor":
        """Run a statement; see `Cursor.execute`. Returns the cursor."""
        self._check()
        self.connection.check()
        self._result = None
        self._take(await self.connection.session.execute(operation, parameters))
        return self

    async def executemany(self, operation: str, rows: Iterable[Sequence[Any]]) -> "AsyncCursor":
        """Run a statement once for each tuple of parameters: all of them or, on an error, none."""
        self._check()
        self.connection.check()
        self._result = None
        self._take(await self.connection.session.execute_many(operation, rows))
        return self

    async def fetchone(self) -> Row | None:
        """The next row, None after the last one."""
        self.connection.check()
        await self._ready(1)
        return self._one()

    async def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next rows, at most `size` (default: `arraysize`)."""
        self.connection.check()
        await self._ready(self.arraysize if size is None else size)
        return self._many(size)

    async def fetchall(self) -> list[Row]:
        """All rows that are left."""
        self.connection.check()
        await self._ready(len(self._answered().rows))
        return self._all()

    async def fetch_arrow_table(self) -> "pyarrow.Table":
        """All rows that are left as an Arrow table, without making Python values of them."""
        self.connection.check()
        return self._arrow()

    fetch_arrow = fetch_arrow_table

    async def fetch_record_batch(
        self, rows_per_batch: int = BATCH_ROWS
    ) -> "pyarrow.RecordBatchReader":
        """All rows that are left, as Arrow batches of at most so many rows."""
        self.connection.check()
        return self._batches(rows_per_batch)

    async def fetch_df(self) -> Any:
        """All rows that are left as a data frame of pandas, made in a worker's thread.

        Raises `NotSupportedError` where pandas is not installed.
        """
        table = await self.fetch_arrow_table()
        return await self.connection.workers.run(lambda: data_frame(table))

    async def fetch_polars(self) -> Any:
        """All rows that are left as a data frame of polars, made in a worker's thread.

        Raises `NotSupportedError` where polars is not installed.
        """
        table = await self.fetch_arrow_table()
        return await self.connection.workers.run(lambda: polars_frame(table))

    async def close(self) -> None:
        """Forget the rows; `rowcount` stays. May be called twice."""
        self._forget_rows()

    def __aiter__(self) -> AsyncIterator[Row]:
        return self

    async def __anext__(self) -> Row:
        row = await self.fetchone()
        if row is None:
            raise StopAsyncIteration
        return row

    async def __aenter__(self) -> "AsyncCursor":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ready(self, count: int) -> None:
        """See that the next rows need not be made on the loop, unless they are few."""
        result = self._answered()
        left = len(result.rows) - self._next
        if result.table is None or left <= _ROWS_ON_LOOP_MAX:
            return
        held = self._page_start + len(self._page) - self._next if self._page else 0
        if min(count, left) > held:
            table, start = result.table, self._next
            self._page = await self.connection.workers.run(
                lambda: self._of_columns(table, start, max(count, PAGE_ROWS))
            )
            self._page_start = start


async def connect(
    where: str | PathLike[str],
    tablespace: str = DEFAULT,
    *,
    autocommit: bool = False,
    bookies: int = 1,
    security: "Security | None" = None,
    zookeeper: "ZooKeeperSettings | None" = None,
    follower: bool = False,
) -> AsyncConnection:
    """Connect to a tablespace of a folder, or of a cluster's url. Close the connection.

    The same as `herd.connect`: a folder is made if it is not there, and connections of one loop to
    the same place share it. Raises what `herd.connect` raises.
    """
    stack = AsyncExitStack()
    try:
        opening = open_any(where, bookies=bookies, security=security, zookeeper=zookeeper)
        herd = await stack.enter_async_context(opening)
        session = await herd.session(tablespace, autocommit=autocommit, follower=follower)
    except BaseException:
        await stack.aclose()
        raise
    return AsyncConnection(session, herd.workers, stack.aclose)
