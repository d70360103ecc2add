"""DuckDB, kept apart: connections that are sealed off, and one query's way through one.

Invariants:
- DuckDB sees the tables that a query was given and nothing else: no file, no extension, no
  variable of the program, no setting that a statement could change.
- A connection is used by one query at a time, and is not used again after a defect of DuckDB.
- Every error of DuckDB and Arrow becomes one of the database's, and keeps no reference to the
  original: an error never keeps the result, the connection or the memory of the query alive.
- A result is closed when its query ends in any way, without relying on garbage collection.
"""

import asyncio
import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb
import pyarrow as pa

from engine import limits
from engine.ports.workers import Workers
from herd import errors
from herd.arrow import described
from herd.reading import Size, TablePages
from herd.sql.query_settings import QuerySettings
from herd.translating import database_error

_INTERRUPT_S: Final = 0.05


@dataclass(slots=True)
class Work:
    """A query, and how to make its inputs in the thread that runs it."""

    sql: str
    parameters: Sequence[Any]
    inputs: Mapping[str, Callable[[], Any]]
    failures: list[BaseException] = field(default_factory=list)
    """The error that occurred while rows were read, which DuckDB would wrap."""
    close: Callable[[], None] = lambda: None
    """Called on the loop when no input is read any more."""
    small: Callable[[Iterable[Size]], bool] | None = None
    """Whether it costs little with inputs of such sizes; None: it may cost much with any. See
    `herd.sql.small_queries`.
    """


def open_duck(settings: QuerySettings, folder: str) -> duckdb.DuckDBPyConnection:
    """An isolated database in memory, with a folder for its files. Raises DuckDB's errors."""
    root = duckdb.connect(":memory:")
    quoted = folder.replace("'", "''")
    for name, value in (
        ("memory_limit", f"'{max(settings.memory_bytes // limits.MIB, 1)}MiB'"),
        ("temp_directory", f"'{quoted}'"),
        ("max_temp_directory_size", f"'{settings.disk_bytes // limits.MIB}MiB'"),
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


class Answer:
    """A query's result, as a stream."""

    def __init__(
        self, names: Sequence[str], reader: pa.RecordBatchReader, size_bytes_max: int
    ) -> None:
        self.names = names
        """The types of the columns, by their names in DuckDB."""
        self.schema: pa.Schema = reader.schema
        self._reader = reader
        self._size_bytes_max = size_bytes_max

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches. Raises `TooLarge` beyond the limit, and DuckDB's and Arrow's errors."""
        size_bytes = 0
        for batch in self._reader:
            size_bytes += batch.nbytes
            if size_bytes > self._size_bytes_max:
                raise errors.TooLarge(
                    f"the answer has more than {self._size_bytes_max} bytes",
                    hint="ask for it in parts",
                )
            yield batch


@contextmanager
def answered(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Sequence[Any],
    inputs: Mapping[str, Callable[[], Any]],
    *,
    settings: QuerySettings,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Answer]:
    """Make the inputs and run a query over them. Raises DuckDB's and Arrow's errors."""
    names: list[str] = []
    try:
        for name, make in inputs.items():
            connection.register(name, make())
            names.append(name)
            if stopped():
                raise errors.OperationalError("the query was cancelled")
        relation = connection.sql(sql, params=list(parameters))
        assert relation is not None, "only queries may run here"
        kinds = [str(kind) for kind in relation.types]
        reader = relation.to_arrow_reader(settings.batch_rows)
        try:
            yield Answer(kinds, reader, settings.result_bytes_max)
        finally:
            # An open result keeps its connection busy for the next user.
            reader.close()
    finally:
        for name in names:
            connection.unregister(name)


class _Running:
    """A query that runs in a thread."""

    def __init__(self) -> None:
        self.connection: duckdb.DuckDBPyConnection | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Interrupt it. May be called until it has ended."""
        self.cancelled = True
        if self.connection is not None:
            self.connection.interrupt()


class DuckThreads:
    """Runs queries in worker threads of this process. Opened by the first query.

    For programs that run their own queries: only DuckDB limits their memory.
    """

    def __init__(self, workers: Workers, settings: QuerySettings) -> None:
        self._workers = workers
        self._settings = settings
        self._opening: asyncio.Future[duckdb.DuckDBPyConnection] | None = None
        self._root: duckdb.DuckDBPyConnection | None = None
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._temporary = ""
        self._remove_files: weakref.finalize[..., DuckThreads] | None = None
        """Also called at the end of a program that does not close its store."""

    async def run(self, work: Work) -> pa.Table:
        """Run one query; see `QueryRunner.run`."""
        root = await self._opened()
        running = _Running()
        connection = self._idle.pop() if self._idle else None
        job = asyncio.ensure_future(
            self._workers.run(lambda: self._execute(root, connection, work, running))
        )
        job.add_done_callback(lambda done: self._done(root, running))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            while not job.done():
                # An interrupt that comes before DuckDB has begun is lost, so it is repeated.
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([job], timeout=_INTERRUPT_S)
            if not job.cancelled():
                job.exception()
            raise
        except errors.InternalError:
            await self._reopen(root)
            raise

    async def close(self) -> None:
        """Close all connections; see `QueryRunner.close`."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._root is not None:
            await self._reopen(self._root)
        if self._remove_files is not None:
            self._temporary = ""
            await self._workers.run(self._remove_files)

    def _done(self, root: duckdb.DuckDBPyConnection, running: _Running) -> None:
        if running.connection is not None and root is self._root:
            self._idle.append(running.connection)

    async def _opened(self) -> duckdb.DuckDBPyConnection:
        if self._root is not None:
            return self._root
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._workers.run(self._open))
            self._opening.add_done_callback(self._was_opened)
        return await asyncio.shield(self._opening)

    def _was_opened(self, opening: "asyncio.Future[duckdb.DuckDBPyConnection]") -> None:
        """Keep the connections, even if nobody waits for them any more."""
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._root = opening.result()

    async def _reopen(self, root: duckdb.DuckDBPyConnection) -> None:
        if self._root is root:
            idle, self._idle, self._root = self._idle, [], None
            await self._workers.run(lambda: _close([*idle, root]))

    def _open(self) -> duckdb.DuckDBPyConnection:
        """Runs in a thread. Raises the database's errors."""
        try:
            if not self._temporary:
                temporary = self._settings.temporary or None
                folder = self._temporary = tempfile.mkdtemp(prefix="herd-", dir=temporary)
                self._remove_files = weakref.finalize(
                    self, shutil.rmtree, folder, ignore_errors=True
                )
            return open_duck(self._settings, self._temporary)
        except Exception as error:
            failure = database_error(error)
        raise failure

    def _execute(
        self,
        root: duckdb.DuckDBPyConnection,
        connection: duckdb.DuckDBPyConnection | None,
        work: Work,
        running: _Running,
    ) -> pa.Table:
        """Runs in the thread. Its exceptions do not refer to DuckDB's objects."""
        running.connection = connection = connection or root.cursor()
        try:
            with answered(
                connection,
                work.sql,
                work.parameters,
                {name: _in_this_process(make) for name, make in work.inputs.items()},
                settings=self._settings,
                stopped=lambda: running.cancelled,
            ) as answer:
                batches = list(answer.batches())
                return described(pa.Table.from_batches(batches, answer.schema), answer.names)
        except Exception as error:
            failure = database_error(work.failures[0] if work.failures else error)
        # The error must not keep the result and its batches alive, so it has no frames or context.
        raise failure.with_traceback(None)


def _in_this_process(make: Callable[[], Any]) -> Callable[[], Any]:
    """The function that makes an input in the form that DuckDB reads here."""

    def made() -> Any:
        found = make()
        return found.table() if isinstance(found, TablePages) else found

    return made


def _close(connections: Sequence[duckdb.DuckDBPyConnection]) -> None:
    for connection in connections:
        connection.close()
