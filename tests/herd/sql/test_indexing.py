"""CREATE INDEX and DROP INDEX: built beside writers, by one leader or the next."""

import asyncio
from typing import Any

import pytest

from engine.state.memory import MemoryState
from herd.errors import (
    NameTaken,
    NoSuchIndex,
    NoSuchTable,
    NotSupportedError,
    ProgrammingError,
    UniqueViolation,
)
from herd.schema import Building
from herd.settings import HerdSettings
from herd.sql import indexing
from herd.sql.query import QueryEngine
from herd.sql.session import Session
from tests.engine.ledger.scripted import Cluster
from tests.herd.spaces import index_is_right, opened
from tests.herd.sql.querying import until
from tests.herd.sql.sessions import Asking, asking, at

QUICK_DUTIES = HerdSettings(lock_timeout_ms=60_000, idle_timeout_ms=200)
COWS = "CREATE TABLE cow (id INT PRIMARY KEY, name TEXT, milk INT)"


async def filled(on: Asking, count: int) -> None:
    """A table of that many cows, each with its own milk."""
    await on.run(COWS)
    await on.session.execute_many(
        "INSERT INTO cow VALUES (?, ?, ?)", [(n, f"cow {n}", n) for n in range(count)]
    )


async def test_an_index_has_an_entry_for_every_row() -> None:
    async with asking() as on:
        await filled(on, 50)
        await on.run("CREATE INDEX i ON cow (milk)", "CREATE INDEX ON cow (name DESC, milk)")
        on.check_indexes()
        await on.run("UPDATE cow SET milk = 3 WHERE id < 5", "DELETE FROM cow WHERE id = 9")
        on.check_indexes()
        found = await on.rows("SHOW INDEXES FROM cow")
        assert [row[0] for row in found] == ["PRIMARY", "i", "cow_name_milk_index"]
        assert {row[3] for row in found} == {"ready"}


async def test_an_index_is_built_beside_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "PAGE_ROWS", 1)
    async with asking() as on:
        await filled(on, 60)
        other, changed = on.another(), 0
        building = asyncio.ensure_future(on.session.execute("CREATE UNIQUE INDEX i ON cow (milk)"))
        while not building.done():
            number = changed * 7 % 60
            await other.execute("UPDATE cow SET milk = milk + 1000 WHERE id = ?", (number,))
            if changed % 10 == 0:
                await other.execute("DELETE FROM cow WHERE id = ?", (number,))
                await other.execute("INSERT INTO cow VALUES (?, 'new', ?)", (number, -number - 1))
            changed += 1
        await building
        assert changed > 12, "it was built while others wrote"
        on.check_indexes()
        assert on.space.catalog.table("cow").indexes[0].state is Building.READY
        assert len(await on.rows("SELECT id FROM cow")) == 60


async def test_a_duplicate_ends_a_build_and_the_index_goes() -> None:
    async with asking() as on:
        await filled(on, 20)
        await on.run("UPDATE cow SET milk = 1 WHERE id = 15")
        error = await on.error("CREATE UNIQUE INDEX i ON cow (milk)")
        assert type(error) is UniqueViolation
        assert "1" in error.message
        assert on.space.catalog.table("cow").indexes == ()
        await on.run("INSERT INTO cow VALUES (100, 'again', 1)")
        await on.run("UPDATE cow SET milk = -id - 1", "CREATE UNIQUE INDEX i ON cow (milk)")
        on.check_indexes()


async def test_a_duplicate_that_a_writer_makes_is_refused_to_the_writer_or_ends_the_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexing, "PAGE_ROWS", 3)
    async with asking() as on:
        await filled(on, 30)
        other = on.another()
        building = asyncio.ensure_future(on.session.execute("CREATE UNIQUE INDEX i ON cow (milk)"))
        await until(lambda: bool(on.space.catalog.table("cow").indexes))
        refused = False
        try:
            await other.execute("UPDATE cow SET milk = 29 WHERE id = 0")
        except UniqueViolation:
            refused = True
        try:
            await building
        except UniqueViolation:
            assert not refused
        values = [row[0] for row in await on.rows("SELECT milk FROM cow")]
        unique = len(set(values)) == len(values)
        assert unique == bool(on.space.catalog.table("cow").indexes)
        on.check_indexes()


async def test_a_row_that_goes_before_the_build_has_come_to_it_takes_no_others_entry_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexing, "PAGE_ROWS", 1)
    async with asking() as on:
        await filled(on, 3)
        await on.run("UPDATE cow SET milk = 7 WHERE id <> 1")
        other, pages, build_page = on.another(), 0, indexing._build_page

        async def after_two_pages(*given: Any) -> bytes | None:
            nonlocal pages
            pages += 1
            if pages == 3:
                await other.execute("DELETE FROM cow WHERE id = 2")
            return await build_page(*given)

        monkeypatch.setattr(indexing, "_build_page", after_two_pages)
        await on.run("CREATE UNIQUE INDEX i ON cow (milk)")
        assert pages == 3
        on.check_indexes()
        with pytest.raises(UniqueViolation):
            await on.run("INSERT INTO cow VALUES (9, 'x', 7)")


def held_from_the_first_page_on(
    monkeypatch: pytest.MonkeyPatch, holder: Session, began: asyncio.Event
) -> None:
    """A transaction that begins beside a build, and keeps the lock of the cow 20."""
    build_page = indexing._build_page

    async def beside(*given: Any) -> bytes | None:
        if not began.is_set():
            await holder.execute("BEGIN")
            await holder.execute("UPDATE cow SET milk = 1000 WHERE id = 20")
            began.set()
        return await build_page(*given)

    monkeypatch.setattr(indexing, "_build_page", beside)


async def test_a_build_waits_for_a_locked_row_while_it_keeps_nobody_else_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asking(HerdSettings(lock_timeout_ms=100)) as on:
        await filled(on, 30)
        holder, other, began = on.another(), on.another(), asyncio.Event()
        held_from_the_first_page_on(monkeypatch, holder, began)
        building = asyncio.ensure_future(on.session.execute("CREATE UNIQUE INDEX i ON cow (milk)"))
        await began.wait()
        for number in range(20):
            await other.execute("UPDATE cow SET name = 'free' WHERE id = ?", (number,))
        # Longer than a statement waits for a lock.
        await asyncio.wait([building], timeout=0.5)
        assert not building.done()
        await holder.execute("COMMIT")
        await building
        on.check_indexes()


async def test_who_gives_up_the_wait_for_a_build_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asking() as on:
        await filled(on, 30)
        holder, began = on.another(), asyncio.Event()
        held_from_the_first_page_on(monkeypatch, holder, began)
        building = asyncio.ensure_future(on.session.execute("CREATE INDEX i ON cow (milk)"))
        await began.wait()
        building.cancel()
        await asyncio.gather(building, return_exceptions=True)
        await holder.execute("COMMIT")
        await until(lambda: on.space.catalog.table("cow").indexes[0].state is Building.READY)
        on.check_indexes()


async def test_inside_a_transaction_an_index_is_built_at_once() -> None:
    async with asking() as on:
        await filled(on, 10)
        await on.run("BEGIN", "INSERT INTO cow VALUES (50, 'late', 50)")
        await on.run("CREATE UNIQUE INDEX i ON cow (milk)")
        assert type(await on.error("INSERT INTO cow VALUES (51, 'x', 50)")) is UniqueViolation
        await on.run("COMMIT")
        on.check_indexes()
        await on.run("BEGIN", "CREATE INDEX j ON cow (name)", "ROLLBACK")
        assert [index.name for index in on.space.catalog.table("cow").indexes] == ["i"]
        on.check_indexes()


async def test_the_next_leader_goes_on_with_a_build() -> None:
    cluster, state = await Cluster.of(1), MemoryState()
    async with opened(state=state, cluster=cluster) as space:
        session = Session(space, _no_queries())
        await session.execute(COWS)
        await session.execute_many(
            "INSERT INTO cow VALUES (?, ?, ?)", [(n, f"cow {n}", n) for n in range(30)]
        )
        # What CREATE INDEX does first; its leader goes before the rest.
        transaction = space.begin()
        statement = session.plan("CREATE INDEX i ON cow (milk)").statement
        assert isinstance(statement, indexing.CreateIndex)
        found = statement.define(transaction, Building.BUILDING)
        assert found is not None
        transaction.set_catalog(*transaction.catalog.with_table(found[0]))
        await transaction.commit()
    async with opened(QUICK_DUTIES, state=MemoryState(), cluster=cluster) as space:
        assert space.catalog.table("cow").indexes[0].state is Building.BUILDING
        Session(space, _no_queries())
        await until(lambda: space.catalog.table("cow").indexes[0].state is Building.READY)
        index_is_right(space, space.catalog.table("cow"))


async def test_an_index_that_is_dropped_leaves_no_entries() -> None:
    async with asking() as on:
        await filled(on, 20)
        await on.run("CREATE INDEX i ON cow (milk)", "CREATE INDEX j ON cow (name)")
        table = on.space.catalog.table("cow")
        prefix = on.space.catalog.plan(table).indexes[0].prefix
        assert len(on.space.rows_scan(prefix, prefix + b"\xff", 100)) == 20
        await on.run("DROP INDEX i")
        await until(lambda: not on.space.rows_scan(prefix, prefix + b"\xff", 100))
        on.check_indexes()
        text = "DROP INDEX i"
        error = await on.error(text)
        assert type(error) is NoSuchIndex
        assert at(error, text) == "i"
        await on.run("DROP INDEX IF EXISTS i")


async def test_an_index_that_is_needed_stays() -> None:
    async with asking() as on:
        await on.run(
            "CREATE TABLE herd (id INT PRIMARY KEY, code INT UNIQUE)",
            "CREATE TABLE cow (id INT PRIMARY KEY, herd INT REFERENCES herd (code))",
        )
        error = await on.error("DROP INDEX herd_code_key")
        assert "DROP CONSTRAINT" in error.hint
        assert type(await on.error("ALTER TABLE herd DROP CONSTRAINT herd_code_key")) is (
            ProgrammingError
        )
        assert type(await on.error("DROP INDEX cow_herd_index")) is ProgrammingError
        await on.run("CREATE INDEX other ON cow (herd, id)", "DROP INDEX cow_herd_index")


async def test_what_is_no_index_is_refused() -> None:
    async with asking() as on:
        await on.run(COWS, "CREATE TABLE j (id INT PRIMARY KEY, a JSON)")
        await on.run("CREATE INDEX i ON cow (milk)", "CREATE INDEX IF NOT EXISTS i ON cow (name)")
        assert type(await on.error("CREATE INDEX i ON cow (name)")) is NameTaken
        assert type(await on.error("CREATE INDEX k ON sheep (name)")) is NoSuchTable
        assert type(await on.error("CREATE INDEX k ON cow (lower(name))")) is NotSupportedError
        text = "CREATE INDEX k ON cow (milk) WHERE milk > 1"
        assert type(await on.error(text)) is NotSupportedError
        assert (await on.error("CREATE INDEX k ON j (a)")).code == "42804"
        assert (await on.error("CREATE INDEX k ON cow (tail)")).code == "42703"
        await on.run("CREATE HASH INDEX k ON cow (name)", "CREATE BRIN INDEX l ON cow (name)")


def _no_queries() -> QueryEngine:
    """For statements that ask none."""
    return None  # type: ignore[return-value]
