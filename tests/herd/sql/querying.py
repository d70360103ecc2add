"""A query engine over a tablespace in memory, for the tests of queries."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from engine.ports.system_workers import ThreadWorkers
from herd.arrow import python_rows
from herd.columns import ColumnSettings
from herd.schema import Table, View
from herd.sql.parsing import parse
from herd.sql.query import QueryEngine
from herd.sql.query_settings import QuerySettings
from herd.tablespace import Tablespace
from herd.transaction import Transaction
from herd.types import TEXT, ColumnType, Kind
from tests.herd.spaces import columns, insert, made, opened

SETTINGS = QuerySettings(connections=2, threads=1)
DOUBLE = ColumnType(Kind.DOUBLE)
INTEGER = ColumnType(Kind.INTEGER)


class Asked:
    """A tablespace, and its queries as text."""

    def __init__(self, space: Tablespace, engine: QueryEngine) -> None:
        self.space = space
        self.engine = engine

    async def rows(
        self, text: str, parameters: Sequence[Any] = (), transaction: Transaction | None = None
    ) -> list[tuple[Any, ...]]:
        """What a query answers."""
        tree = parse(text).tree
        assert tree is not None
        return python_rows(await self.engine.run(tree, parameters, transaction))

    async def view(self, name: str, query: str, names: tuple[str, ...] = ()) -> None:
        """Make a view."""
        transaction = self.space.begin()
        view = View(name, query, names)
        transaction.set_catalog(*transaction.catalog.with_view(view, replace=False))
        await transaction.commit()

    async def put(self, table: Table, *rows: list[Any]) -> None:
        """Insert rows and commit."""
        transaction = self.space.begin()
        await insert(transaction, table, *rows)
        await transaction.commit()


@asynccontextmanager
async def asked(settings: ColumnSettings | None = None) -> AsyncIterator[Asked]:
    """An engine over an empty tablespace."""
    async with opened() as space:
        workers = ThreadWorkers(asyncio.get_running_loop())
        engine = QueryEngine(space, workers, settings=SETTINGS, columns=settings)
        try:
            yield Asked(space, engine)
        finally:
            await engine.close()
            await workers.close()


async def until(true: Callable[[], bool]) -> None:
    """Let everything else run until something is true."""
    for _ in range(1_000_000):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


async def cows(on: Asked) -> Table:
    """A table of four cows: a is the key, b a herd's number, c the name, d the milk."""
    shape = columns(INTEGER, INTEGER, TEXT, DOUBLE)
    table = await made(on.space, "cows", shape)
    await on.put(
        table,
        [1, 1, "Alma", 10.0],
        [2, 1, "Berta", 20.0],
        [3, 2, "Cilli", None],
        [4, None, "Dora", 5.5],
    )
    return table
