"""Which query runs next."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from herd.errors import InterfaceError, OperationalError
from herd.permits import Permits, asked_by
from herd.sql.duck import Work
from herd.sql.query_pool import QueryPool
from herd.sql.query_settings import QuerySettings
from tests.herd.sql.querying import until

SETTINGS = QuerySettings(connections=4, holding=1, share=2, waiting_max=3)


class Held:
    """Runs a query until the test ends it."""

    def __init__(self) -> None:
        self.running: list[str] = []
        """The texts of running queries, in the order in which they began."""
        self.ends: dict[str, asyncio.Event] = {}

    async def run(self, work: Work) -> pa.Table:
        """See `QueryRunner.run`."""
        self.running.append(work.sql)
        try:
            await self.ends.setdefault(work.sql, asyncio.Event()).wait()
        finally:
            self.running.remove(work.sql)
        return pa.table({})

    async def close(self) -> None:
        """See `QueryRunner.close`."""

    async def end(self, text: str) -> None:
        """End one query, so that others can begin."""
        self.ends.setdefault(text, asyncio.Event()).set()
        await settled()


async def settled() -> None:
    """Run everything that can run."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def pools(
    settings: QuerySettings = SETTINGS,
) -> AsyncIterator[tuple[Held, Callable[..., "asyncio.Task[pa.Table]"]]]:
    """The runner, and a function by which a user runs a query."""
    held = Held()
    pool = QueryPool(held, settings)

    def ask(user: str, text: str, **more: Any) -> "asyncio.Task[pa.Table]":
        async def run() -> pa.Table:
            asked_by.set(cast(Permits, SimpleNamespace(user=user)))
            return await pool.run(lambda: Work(text, (), {}), **more)

        return asyncio.ensure_future(run())

    asked: list[asyncio.Task[pa.Table]] = []

    def kept(user: str, text: str, **more: Any) -> "asyncio.Task[pa.Table]":
        asked.append(ask(user, text, **more))
        return asked[-1]

    try:
        yield held, kept
    finally:
        await pool.close()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_a_user_has_a_share_and_others_get_in_beside_it() -> None:
    async with pools() as (held, ask):
        for number in range(4):
            ask("ann", f"ann {number}")
        await settled()
        assert held.running == ["ann 0", "ann 1"]
        ask("ben", "ben 0")
        await settled()
        assert held.running == ["ann 0", "ann 1", "ben 0"]


async def test_a_free_place_goes_to_the_user_with_the_fewest_queries_running() -> None:
    async with pools() as (held, ask):
        for text in ("ann 0", "ann 1", "ben 0", "ben 1", "ann 2", "cleo 0", "dora 0", "cleo 1"):
            ask(text.split()[0], text)
        await settled()
        assert held.running == ["ann 0", "ann 1", "ben 0", "ben 1"]
        order = []
        for text in ("ann 0", "ben 0", "ann 1", "ben 1"):
            await held.end(text)
            order.append(held.running[-1])
        assert order == ["cleo 0", "dora 0", "ann 2", "cleo 1"]


async def test_too_many_waiting_queries_of_a_user_are_refused_and_others_wait_on() -> None:
    async with pools() as (held, ask):
        for number in range(5):
            ask("ann", f"ann {number}")
        await settled()
        with pytest.raises(OperationalError, match="3 queries of this user wait already"):
            await ask("ann", "ann 5")
        ask("ben", "ben 0")
        await settled()
        assert held.running == ["ann 0", "ann 1", "ben 0"]


async def test_a_query_that_waits_too_long_fails_and_a_cancelled_one_takes_no_place() -> None:
    settings = QuerySettings(connections=1, holding=1, wait_timeout_ms=1)
    async with pools(settings) as (held, ask):
        ask("ann", "ann 0")
        await settled()
        with pytest.raises(OperationalError, match="has waited 1 ms for other queries"):
            await ask("ben", "ben 0")
    async with pools(QuerySettings(connections=1)) as (held, ask):
        ask("ann", "ann 0")
        await settled()
        gone, last = ask("ben", "ben 0"), ask("cleo", "cleo 0")
        await settled()
        gone.cancel()
        await held.end("ann 0")
        assert held.running == ["cleo 0"] and gone.cancelled()
        await held.end("cleo 0")
        await last


async def test_a_query_that_is_cancelled_as_its_turn_comes_gives_the_place_on() -> None:
    async with pools(QuerySettings(connections=1)) as (held, ask):
        ask("ann", "ann 0")
        await settled()
        ben, last = ask("ben", "ben 0"), ask("cleo", "cleo 0")
        await settled()
        held.ends["ann 0"].set()
        await until(lambda: not held.running)
        ben.cancel()
        await settled()
        assert held.running == ["cleo 0"] and ben.cancelled()
        await held.end("cleo 0")
        await last


async def test_a_query_that_holds_locks_gets_a_place_although_all_are_taken() -> None:
    async with pools() as (held, ask):
        for text in ("ann 0", "ann 1", "ben 0", "ben 1"):
            ask(text.split()[0], text)
        await settled()
        ask("cleo", "cleo 0", holding=True)
        ask("dora", "dora 0", holding=True)
        await settled()
        assert held.running[-1] == "cleo 0"


async def test_a_query_of_an_owner_that_was_ended_meanwhile_does_not_begin() -> None:
    owner = object()
    held = Held()
    pool = QueryPool(held, QuerySettings(connections=1))
    asked = [
        asyncio.ensure_future(pool.run(lambda: Work("SELECT 1", (), {}), owner=owner))
        for _ in range(3)
    ]
    await settled()
    assert pool.busy == 1
    await pool.end(owner)
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(end) for end in ends] == [InterfaceError] * 3
    assert pool.busy == 0 and held.running == []
    await pool.close()
