"""Sessions over a tablespace in memory, for the tests of SQL."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from engine.ports.system_workers import ThreadWorkers
from herd.errors import Error
from herd.settings import HerdSettings
from herd.sql.query import QueryEngine
from herd.sql.query_settings import QuerySettings
from herd.sql.session import Session
from herd.tablespace import Tablespace
from tests.herd.spaces import PATIENT, index_is_right, opened
from tests.herd.sql.querying import until

SETTINGS = QuerySettings(connections=2, threads=1)


class Asking:
    """Sessions of one tablespace; the first one is what `rows` and the others ask."""

    def __init__(self, space: Tablespace, engine: QueryEngine) -> None:
        self.space = space
        self.engine = engine
        self.session = self.another()

    def another(self, *, autocommit: bool = True) -> Session:
        """A session more."""
        return Session(self.space, self.engine, autocommit=autocommit)

    async def rows(
        self, text: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        """What a statement answers."""
        return list((await self.session.execute(text, parameters)).rows)

    async def count(self, text: str, parameters: Sequence[Any] = ()) -> int:
        """How many rows a statement changed."""
        return (await self.session.execute(text, parameters)).count

    async def run(self, *texts: str) -> None:
        """Statements one after the other."""
        for text in texts:
            await self.session.execute(text)

    async def error(self, text: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Error:
        """The error of a statement that must fail."""
        try:
            await self.session.execute(text, parameters)
        except Error as error:
            return error
        raise AssertionError(f"this should have failed: {text}")

    def check_indexes(self) -> None:
        """Fail unless all indexes of all tables are what their rows say."""
        for table in self.space.catalog.tables.values():
            index_is_right(self.space, table)


@asynccontextmanager
async def asking(settings: HerdSettings = PATIENT) -> AsyncIterator[Asking]:
    """A session of an empty tablespace."""
    async with opened(settings) as space:
        workers = ThreadWorkers(asyncio.get_running_loop())
        engine = QueryEngine(space, workers, settings=SETTINGS)
        try:
            yield Asking(space, engine)
        finally:
            await engine.close()
            await workers.close()


async def until_waiting(space: Tablespace, count: int) -> None:
    """Let others run until so many transactions wait for locks."""
    await until(lambda: sum(one.waiting is not None for one in space.transactions) >= count)


def at(error: Error, text: str) -> str:
    """What stands in a statement where an error says it is wrong."""
    assert error.place is not None, f"no place in {error!r}"
    return text[error.place :]
