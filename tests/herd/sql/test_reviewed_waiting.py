"""Long queries keep nobody waiting for ever, and those who hold locks not at all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from engine.ports.system_workers import ThreadWorkers
from herd.errors import OperationalError
from herd.sql.query import QueryEngine
from herd.sql.query_settings import QuerySettings
from tests.herd.spaces import PATIENT, opened
from tests.herd.sql.querying import until
from tests.herd.sql.sessions import SETTINGS, Asking

LONG = "SELECT sum(a.x * b.y) FROM range(300000) a(x), range(300000) b(y)"


@asynccontextmanager
async def asking(settings: QuerySettings) -> AsyncIterator[Asking]:
    async with opened(PATIENT) as space:
        workers = ThreadWorkers(asyncio.get_running_loop())
        engine = QueryEngine(space, workers, settings=settings)
        try:
            on = Asking(space, engine)
            await on.run("CREATE TABLE cow (id INT PRIMARY KEY, milk INT)")
            await on.run("INSERT INTO cow VALUES (1, 1)")
            yield on
        finally:
            await engine.close()
            await workers.close()


@asynccontextmanager
async def busy(on: Asking) -> AsyncIterator[None]:
    """All connections for those who only read are taken."""
    count = SETTINGS.connections
    queries = [asyncio.ensure_future(on.another().execute(LONG)) for _ in range(count)]
    await until(lambda: on.engine._pool.busy >= count)
    try:
        yield
    finally:
        for query in queries:
            query.cancel()
        await asyncio.gather(*queries, return_exceptions=True)


async def test_who_holds_locks_does_not_wait_for_long_queries() -> None:
    async with asking(SETTINGS) as on, busy(on):
        assert await on.count("UPDATE cow SET milk = 2 WHERE milk = 1") == 1
        assert await on.count("INSERT INTO cow SELECT id + 1, milk FROM cow") == 1
        await on.run("ALTER TABLE cow ADD COLUMN name TEXT")
        assert await on.count("DELETE FROM cow WHERE milk = 2") == 2


async def test_a_query_that_waits_too_long_for_its_turn_is_told() -> None:
    async with asking(replace(SETTINGS, wait_timeout_ms=50)) as on:
        async with busy(on):
            with pytest.raises(OperationalError, match="has waited 50 ms for other queries"):
                await on.rows("SELECT count(*) FROM cow")
            assert await on.rows("SELECT milk FROM cow WHERE id = 1") == [(1,)]
        assert await on.rows("SELECT count(*) FROM cow") == [(1,)]


async def test_a_query_that_runs_too_long_is_ended_and_its_transaction_goes_on() -> None:
    async with asking(replace(SETTINGS, run_timeout_ms=100)) as on:
        await on.run("BEGIN", "UPDATE cow SET milk = 5 WHERE id = 1")
        error = await on.error(LONG)
        assert type(error) is OperationalError and "100 ms" in str(error)
        assert on.engine._pool.busy == 0
        await on.run("COMMIT")
        assert await on.rows("SELECT milk FROM cow WHERE id = 1") == [(5,)]
