"""DuckDB, kept apart: connections in a bounded pool, run in worker threads, sealed off.

Invariants:
- DuckDB sees the tables that a query was given and nothing else: no file, no extension, no
  variable of the program, no setting that a statement could change.
- A connection is used by one query at a time, and is not used again after a defect of DuckDB.
- Every error of DuckDB and Arrow becomes one of the database's, and keeps no reference to the
  original: an error never keeps the result, the connection or the memory of the query alive.
- A result is closed when its query ends in any way, without relying on garbage collection.
- Closing ends what runs, and waits for that: no connection is closed under a query.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb
import pyarrow as pa

from engine import limits
from engine.ports.workers import Workers
from herd import errors
from herd.arrow import described
from herd.translating import database_error

_BATCH_ROWS: Final = 65_536
_INTERRUPT_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Bounds of a tablespace's queries. Sizes in bytes.

    `connections` queries run at a time, each with DuckDB's `threads`, and `holding` more of
    transactions that hold locks: those never wait for others' long queries alone. `memory_bytes` is
    what all of them may hold; past it they use files. `result_bytes_max` bounds one answer.
    A query waits `wait_timeout_ms` at most for its turn and runs `run_timeout_ms` at most.
    """

    connections: int = 2
    holding: int = 2
    wait_timeout_ms: int = 30_000
    run_timeout_ms: int = 3_600_000
    threads: int = 2
    memory_bytes: int = 512 * limits.MIB
    result_bytes_max: int = 1024 * limits.MIB
    temporary: str = ""
    """Where those files lie; "": in the system's folder for such."""


class Running:
    """A query that runs, for who may want to end it."""

    def __init__(self) -> None:
        self.connection: duckdb.DuckDBPyConnection | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Interrupt it. May be called until it has ended."""
        self.cancelled = True
        if self.connection is not None:
            self.connection.interrupt()


@dataclass(slots=True)
class Work:
    """A query, and how to make what it reads, in the thread that runs it."""

    sql: str
    parameters: Sequence[Any]
    inputs: Mapping[str, Callable[[], Any]]
    failures: list[BaseException] = field(default_factory=list)
    """What went wrong while rows were read, which DuckDB would wrap."""
    close: Callable[[], None] = lambda: None
    """Called on the loop when nothing is read any more."""


class DuckPool:
    """The connections of one query engine. Opened by the first query."""

    def __init__(self, workers: Workers, settings: QuerySettings) -> None:
        self._workers = workers
        self._settings = settings
        self._room = asyncio.Semaphore(settings.connections)
        self._holding_room = asyncio.Semaphore(settings.holding)
        self._opening = asyncio.Lock()
        self._root: duckdb.DuckDBPyConnection | None = None
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._temporary = ""
        self._closed = False
        self._running: dict[asyncio.Future[pa.Table], Running] = {}

    async def run(self, make: "Callable[[], Work]", *, holding: bool = False) -> pa.Table:
        """Run a query. `make` is called on the loop when there is room, just before it starts.

        `holding`: others wait for locks that whoever asks this holds. Raises the database's errors.
        A caller that is cancelled waits for the query's end.
        """
        room = self._holding_room if holding and self._room.locked() else self._room
        await self._enter(room)
        try:
            root = await self._opened()
            work, running = make(), Running()
            connection = self._idle.pop() if self._idle else None
            job = asyncio.ensure_future(
                self._workers.run(lambda: self._execute(root, connection, work, running))
            )
            self._running[job] = running
            job.add_done_callback(lambda done: self._done(root, work, done))
            try:
                return await self._until_done(job, running)
            except errors.InternalError:
                await self._reopen(root)
                raise
        finally:
            room.release()

    async def _enter(self, room: asyncio.Semaphore) -> None:
        try:
            async with asyncio.timeout(self._settings.wait_timeout_ms / 1000):
                await room.acquire()
        except TimeoutError:
            raise errors.OperationalError(
                f"other queries have kept this one waiting for {self._settings.wait_timeout_ms} ms",
                hint="cancel those, or try it again",
            ) from None

    async def _until_done(self, job: "asyncio.Future[pa.Table]", running: Running) -> pa.Table:
        try:
            async with asyncio.timeout(self._settings.run_timeout_ms / 1000):
                return await _shielded(job, running)
        except TimeoutError:
            raise errors.OperationalError(
                f"the query was ended after {self._settings.run_timeout_ms} ms",
                hint="ask for less at a time",
            ) from None
        except errors.Error as error:
            if self._closed and running.cancelled:
                raise errors.InterfaceError("closed while the query ran") from error
            raise

    @property
    def busy(self) -> int:
        """How many queries are in DuckDB."""
        return len(self._running)

    async def close(self) -> None:
        """End what runs, and close all connections; may be called twice."""
        self._closed = True
        async with self._opening:
            while self._running:
                await _interrupt(self._running)
            if self._root is not None:
                await self._reopen(self._root)
        if self._temporary:
            folder, self._temporary = self._temporary, ""
            await self._workers.run(lambda: shutil.rmtree(folder, ignore_errors=True))

    def _done(
        self, root: duckdb.DuckDBPyConnection, work: Work, job: "asyncio.Future[pa.Table]"
    ) -> None:
        running = self._running.pop(job)
        if not job.cancelled():
            # The waiting caller may have been cancelled.
            job.exception()
        work.close()
        if running.connection is not None and root is self._root:
            self._idle.append(running.connection)

    async def _opened(self) -> duckdb.DuckDBPyConnection:
        async with self._opening:
            if self._closed:
                raise errors.InterfaceError("the query engine is closed")
            if self._root is None:
                self._root = await self._workers.run(self._open)
            return self._root

    async def _reopen(self, root: duckdb.DuckDBPyConnection) -> None:
        if self._root is root:
            idle, self._idle, self._root = self._idle, [], None
            await self._workers.run(lambda: _close([*idle, root]))

    def _open(self) -> duckdb.DuckDBPyConnection:
        """Runs in a thread. Raises the database's errors."""
        try:
            if not self._temporary:
                temporary = self._settings.temporary or None
                self._temporary = tempfile.mkdtemp(prefix="herd-", dir=temporary)
            return self._configured(duckdb.connect(":memory:"))
        except Exception as error:
            failure = database_error(error)
        raise failure

    def _configured(self, root: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
        settings = self._settings
        folder = self._temporary.replace("'", "''")
        for name, value in (
            ("memory_limit", f"'{settings.memory_bytes // limits.MIB}MiB'"),
            ("temp_directory", f"'{folder}'"),
            ("threads", str(settings.threads)),
            ("TimeZone", "'UTC'"),
            ("error_on_division_by_zero", "false"),
            ("autoinstall_known_extensions", "false"),
            ("autoload_known_extensions", "false"),
            ("python_enable_replacements", "false"),
            ("enable_external_access", "false"),
            ("lock_configuration", "true"),
        ):
            root.execute(f"SET GLOBAL {name} = {value}")
        return root

    def _execute(
        self,
        root: duckdb.DuckDBPyConnection,
        connection: duckdb.DuckDBPyConnection | None,
        work: Work,
        running: Running,
    ) -> pa.Table:
        """Runs in the thread. Its exceptions do not refer to DuckDB's objects."""
        running.connection = connection = connection or root.cursor()
        try:
            return self._answer(connection, work, running)
        except Exception as error:
            failure = database_error(work.failures[0] if work.failures else error)
        # The error must not keep the result and its batches alive, so it has no frames or context.
        raise failure.with_traceback(None)

    def _answer(
        self, connection: duckdb.DuckDBPyConnection, work: Work, running: Running
    ) -> pa.Table:
        names: list[str] = []
        try:
            for name, make in work.inputs.items():
                connection.register(name, make())
                names.append(name)
                if running.cancelled:
                    raise errors.OperationalError("the query was cancelled")
            return self._fetch(connection, work)
        finally:
            for name in names:
                connection.unregister(name)

    def _fetch(self, connection: duckdb.DuckDBPyConnection, work: Work) -> pa.Table:
        relation = connection.sql(work.sql, params=list(work.parameters))
        assert relation is not None, "only queries come here"
        names = [str(kind) for kind in relation.types]
        reader = relation.to_arrow_reader(_BATCH_ROWS)
        batches: list[pa.RecordBatch] = []
        size_bytes = 0
        try:
            for batch in reader:
                size_bytes += batch.nbytes
                if size_bytes > self._settings.result_bytes_max:
                    raise errors.TooLarge(
                        f"the answer is over {self._settings.result_bytes_max} bytes",
                        hint="ask for it in parts",
                    )
                batches.append(batch)
            return described(pa.Table.from_batches(batches, reader.schema), names)
        finally:
            # An open result keeps its connection busy for the next user.
            reader.close()


async def _shielded(job: "asyncio.Future[pa.Table]", running: Running) -> pa.Table:
    """What a query answers; it has ended when this one has, by whatever way."""
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        while not job.done():
            await _interrupt({job: running})
        if not job.cancelled():
            job.exception()
        raise


async def _interrupt(jobs: "Mapping[asyncio.Future[pa.Table], Running]") -> None:
    """Tell queries to end. One that comes before DuckDB has begun is lost: it is said again."""
    for running in jobs.values():
        running.cancel()
    await asyncio.wait(jobs, timeout=_INTERRUPT_S)


def _close(connections: Sequence[duckdb.DuckDBPyConnection]) -> None:
    for connection in connections:
        connection.close()
