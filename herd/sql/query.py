"""Any SELECT, by DuckDB, over the tables of one transaction's catalog.

Invariants:
- All tables of a query are read as of one moment: what is committed then, or the snapshot of a
  SNAPSHOT transaction, with the transaction's own changes.
- A leader's answer holds all that was committed before the question: it looks at its lease.
- The event loop resolves names and takes references; rows are read in worker threads.
"""

import datetime
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
from sqlglot import exp

from engine.ports.workers import Workers
from engine.state.contract import Snapshot
from herd.arrow import python_rows
from herd.catalog import Catalog, rows_of
from herd.columns import ColumnCache, ColumnSettings
from herd.errors import Error, NotSupportedError, TransactionEnded
from herd.indexed import Indexed
from herd.reading import Reading, Size, Want
from herd.schema import Table
from herd.sql.by_index import Way, short_way
from herd.sql.completing import complete
from herd.sql.duck import DuckThreads, Work
from herd.sql.parsing import is_long, mark_long
from herd.sql.prepared import Prepared, PreparedQueries
from herd.sql.query_pool import QueryPool
from herd.sql.query_settings import QuerySettings
from herd.sql.ranges import range_of
from herd.sql.resolving import CheckpointWanted, Source
from herd.sql.system import system_table
from herd.tablespace import Tablespace
from herd.transaction import Transaction
from herd.turns import ROWS_AT_ONCE, read_long

T = TypeVar("T")


class Kept(Protocol):
    """A table as a checkpoint has it."""

    failures: list[BaseException]
    """As a `Reading` has them."""

    def read(self, want: Want) -> Any:
        """Something that DuckDB can read as a table, again and again. In a thread."""
        ...

    def describe(self, want: Want) -> str:
        """How it is read, for people."""
        ...


class KeptTables(Protocol):
    """A checkpoint, kept until it is closed."""

    catalog: Catalog
    """What it defines: the same object for all who open the same checkpoint."""

    def table(self, table: Table) -> Kept:
        """One of its tables."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


Checkpoints = Callable[[int], Awaitable[KeptTables]]
"""The checkpoint with some number, `NEWEST` for the newest."""

_LOOKS_MAX: Final = 5
_EPOCH: Final = datetime.datetime(1970, 1, 1)


class QueryEngine:
    """The queries of one tablespace replica. All methods on the event loop."""

    def __init__(
        self,
        space: Tablespace,
        workers: Workers,
        *,
        settings: QuerySettings | None = None,
        columns: ColumnSettings | None = None,
        pool: QueryPool | None = None,
    ) -> None:
        """`pool` runs the queries of several tablespaces; without it they run in threads."""
        self._space = space
        self._prepared = PreparedQueries(space.name)
        self.workers = workers
        bounds = space.settings
        self._owns_pool = pool is None
        settings = settings or QuerySettings(memory_bytes=bounds.query_bytes)
        self._pool = pool or QueryPool(DuckThreads(workers, settings), settings)
        columns = columns or ColumnSettings(bytes_max=bounds.columns_bytes)
        self.columns = ColumnCache(space, workers, columns)
        self.checkpoints: Checkpoints | None = None
        """Set by who keeps checkpoints; without it AS OF CHECKPOINT is refused."""

    async def run(
        self,
        tree: exp.Expr,
        parameters: Sequence[Any] = (),
        transaction: Transaction | None = None,
        *,
        moment: datetime.datetime | None = None,
        stale: bool = False,
    ) -> pa.Table:
        """What a query answers. The tree stays as it is; its parameters are numbered from 1.

        `moment` is CURRENT_TIMESTAMP. `stale`: as this replica has the rows, leader or not. Raises
        the errors of the database; ends the query when the caller is cancelled.
        """
        if not isinstance(tree, exp.Query | exp.Values):
            raise NotSupportedError(f"{tree.key.upper()} is no query")
        query = _Query(self, tree, parameters, transaction, moment, stale)
        return await query.answer()

    async def built(self, make: Callable[[], exp.Expr], *, long: bool) -> exp.Expr:
        """Build a query with `make`. A long one is built, and later planned, in a thread."""
        if not long:
            return make()
        tree = await read_long(self.workers, make)
        mark_long(tree)
        return tree

    async def off_loop(self, count: int, make: Callable[[], T]) -> T:
        """The result of `make`, called in a thread if `count` rows or columns are many."""
        if count <= ROWS_AT_ONCE:
            return make()
        return await self.workers.run(make)

    async def explain(
        self, tree: exp.Expr, parameters: Sequence[Any] = (), transaction: Transaction | None = None
    ) -> str:
        """How a query would be answered: what is read of each table, and DuckDB's plan."""
        query = _Query(self, tree, parameters, transaction, None, False)
        found = await query.answer(explain=True)
        plan = "\n".join(str(row[-1]) for row in python_rows(found))
        return "\n".join([*query.described, plan])

    async def close(self) -> None:
        """End what is kept for queries. May be called twice."""
        await self.columns.close()
        await (self._pool.close() if self._owns_pool else self._pool.end(self))


class _Query:
    """One query, from its names to its answer."""

    def __init__(
        self,
        engine: QueryEngine,
        tree: exp.Expr,
        parameters: Sequence[Any],
        transaction: Transaction | None,
        moment: datetime.datetime | None,
        stale: bool,
    ) -> None:
        self._engine = engine
        self._space = engine._space
        self._tree = tree
        self._parameters = parameters
        self._transaction = transaction
        self._moment = moment or _EPOCH + datetime.timedelta(
            milliseconds=self._space.clock.wall_ms()
        )
        self._stale = stale
        self._turn = Lock()
        self._checkpoints: dict[int, KeptTables] = {}
        self._past: dict[int, Catalog] = {}
        """What those define."""
        self._kept: dict[str, Kept] = {}
        self._ways: dict[str, Way] = {}
        self.described: list[str] = []
        self._read: list[Table] = []
        """The tables that the query reads."""
        self._sizes: list[Size | None] = []
        """How much is read of each table."""

    async def answer(self, *, explain: bool = False) -> pa.Table:
        """Run it."""
        try:
            await self._prepare()
            return await self._run(explain=explain)
        finally:
            await self._let_go()

    async def _run(self, *, explain: bool) -> pa.Table:
        try:
            holding = self._transaction is not None and bool(self._transaction.locks)
            return await self._engine._pool.run(
                lambda: self._work(explain), owner=self._engine, holding=holding
            )
        except Error as error:
            await self._complete(error)
            if self._transaction is not None and self._transaction.ended:
                raise TransactionEnded("the transaction was ended during the query") from error
            raise

    async def _complete(self, error: Error) -> None:
        if not is_long(self._tree):
            complete(error, self._tree, lambda: self._read)
            return
        tables = self._read
        await self._engine.workers.run(lambda: complete(error, self._tree, lambda: tables))

    def _catalog(self) -> Catalog:
        if self._transaction is not None:
            return self._transaction.catalog
        return self._space.catalog

    def _prepared(self) -> tuple[Prepared, list[Any]]:
        query = self._engine._prepared.of(self._tree, self._catalog(), self._past)
        return query, query.values(self._parameters, self._moment)

    async def _prepare(self) -> None:
        """See that the rows of all tables can be taken in one turn."""
        for _ in range(_LOOKS_MAX):
            catalog = self._catalog()
            query, values = await self._prepared_for(catalog)
            self._kept.clear()
            self._read = [one.table for one in query.sources if one.table is not None]
            for source in query.sources:
                await self._prepare_source(source, len(query.sources), values)
            if not (self._stale or (self._transaction and self._transaction.follows)):
                await self._space.until_readable()
            if self._catalog() is catalog:
                return

    async def _prepared_for(self, catalog: Catalog) -> tuple[Prepared, list[Any]]:
        """What `_prepared` answers, once all checkpoints are open that the query reads."""
        prepared, workers = self._engine._prepared, self._engine.workers
        while True:
            try:
                if is_long(self._tree):
                    await prepared.prepare_long(self._tree, catalog, self._past, workers)
                return self._prepared()
            except CheckpointWanted as wanted:
                number = wanted.number
            if self._engine.checkpoints is None:
                raise NotSupportedError("AS OF CHECKPOINT: this replica keeps no checkpoints")
            checkpoint = await self._engine.checkpoints(number)
            self._checkpoints[number] = checkpoint
            self._past[number] = checkpoint.catalog

    async def _let_go(self) -> None:
        """Keep no checkpoint any more."""
        while self._checkpoints:
            await self._checkpoints.popitem()[1].close()

    async def _prepare_source(self, source: Source, sources: int, values: list[Any]) -> None:
        table = source.table
        if table is None:
            return
        if source.checkpoint is not None:
            self._kept[source.name] = self._checkpoints[source.checkpoint].table(table)
            return
        defines = self._transaction is not None and self._transaction.defines
        if await self._has_way(source, sources, values):
            return
        whole = range_of(source, sources, values) == rows_of(table)
        if whole and not defines:
            await self._engine.columns.prepare(table, source.columns)

    async def _has_way(self, source: Source, sources: int, values: list[Any]) -> bool:
        """Whether a table is read by an index."""
        self._ways.pop(source.name, None)
        table, engine = source.table, self._engine
        if table is None or not self._is_committed(table):
            return False
        kept = engine.columns.statistics(table)
        rows_kept = None if kept is None else kept[0]
        plan = self._catalog().plan(table)
        way = await short_way(self._space, engine.workers, plan, source, sources, values, rows_kept)
        if way is not None:
            self._ways[source.name] = way
        return way is not None

    def _is_committed(self, table: Table) -> bool:
        """Whether a table's definition is not one of the query's own transaction.

        The entries of what that has built are not in any snapshot.
        """
        if self._transaction is None or not self._transaction.defines:
            return True
        return self._space.catalog.tables.get(table.id) is table

    def _reading(self, source: Source, table: Table, snapshot: Snapshot | None) -> Reading:
        """A table at this moment, or at a snapshot's."""
        way = self._ways.get(source.name)
        if way is None or way.table is not table or not self._is_committed(table):
            return self._engine.columns.capture(table, source.columns, snapshot, self._turn)
        name = way.by.definition.name
        if snapshot is None:
            view, turn = self._space.view(), Lock()
            return Indexed(table, name, way.ranges, view, turn, owned=True, rows=way.rows)
        return Indexed(table, name, way.ranges, snapshot, self._turn, owned=False, rows=way.rows)

    def _work(self, explain: bool) -> Work:
        """Everything the thread needs, taken in one turn of the event loop."""
        if self._transaction is not None:
            self._transaction.check()
        query, values = self._prepared()
        readings: list[Reading] = []
        inputs: dict[str, Callable[[], Any]] = {}
        sql = f"EXPLAIN {query.sql}" if explain else query.sql
        work = Work(sql, values, inputs, close=partial(_close, readings))
        self._sizes.clear()
        try:
            for source in query.sources:
                inputs[source.name] = self._input(source, len(query.sources), readings, work)
        except BaseException:
            work.close()
            raise
        small = query.small(values)
        work.small = small if small is not None and small(self._sizes) else None
        return work

    def _input(
        self, source: Source, sources: int, readings: list[Reading], work: Work
    ) -> Callable[[], Any]:
        table, transaction = source.table, self._transaction
        if table is None:
            made = system_table(source.system, self._space, self._catalog(), self._engine.columns)
            self.described.append(f"{source.system}: {made.num_rows} rows, made for this query")
            self._sizes.append(Size(made.num_rows, made.nbytes))
            return lambda: made
        first, end = range_of(source, sources, work.parameters)
        kept = self._kept.get(source.name)
        if kept is not None:
            past = Want(source.columns, source.hidden, first, end)
            kept.failures = work.failures
            self.described.append(f"{table.name}: {kept.describe(past)}")
            self._sizes.append(None)
            return lambda: kept.read(past)
        want = Want(source.columns, source.hidden, first, end)
        if transaction is not None:
            want.own = transaction.own_changes(first, end)
        snapshot = transaction.snapshot() if transaction is not None else None
        reading = self._reading(source, table, snapshot)
        reading.failures = work.failures
        readings.append(reading)
        self._sizes.append(reading.size(want))
        self.described.append(f"{table.name}: {reading.describe(want)}")
        return lambda: reading.read(want)


def _close(readings: Sequence[Reading]) -> None:
    for reading in readings:
        reading.close()
