"""A statement that takes longer than a transaction may be idle."""

import asyncio

from herd.settings import HerdSettings
from tests.herd.sql.querying import until
from tests.herd.sql.sessions import asking


async def test_a_statement_of_its_own_may_take_longer_than_others_may_be_idle() -> None:
    async with asking(HerdSettings(idle_timeout_ms=20)) as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, milk INT)")
        gate, ran = asyncio.Event(), on.engine.run

        async def slow(*given: object, **named: object) -> object:
            await gate.wait()
            return await ran(*given, **named)  # type: ignore[arg-type]

        on.engine.run = slow  # type: ignore[method-assign]
        adding = asyncio.ensure_future(on.count("INSERT INTO cow SELECT 1, 2"))
        await until(lambda: len(on.space.transactions) == 1)
        # It began later, and whoever is idle longer has been ended with it.
        idle = on.space.begin()
        await until(lambda: idle.ended)
        gate.set()
        assert await adding == 1
        assert await on.rows("SELECT milk FROM cow WHERE id = 1") == [(2,)]
