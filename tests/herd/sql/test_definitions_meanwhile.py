"""Statements that waited while somebody else changed definitions go by those that are there now."""

import asyncio
from typing import Any

import pytest

from herd.errors import NoSuchTable, SerializationFailure, UniqueViolation
from herd.sql.session import Session
from herd.table import open_table
from tests.engine.ledger.scripted import turns
from tests.herd.sql.sessions import Asking, asking

FAMILY = (
    "CREATE TABLE p (id INT PRIMARY KEY, x INT)",
    "CREATE TABLE c (id INT PRIMARY KEY, p INT REFERENCES p (id) ON DELETE CASCADE, v INT)",
    "INSERT INTO p VALUES (1, 1), (2, 2)",
    "INSERT INTO c VALUES (10, 1, 7)",
)


async def beside(on: Asking, definer: Session, definition: str, text: str) -> None:
    """A statement that begins while a transaction with a definition is open, which is committed."""
    await definer.execute("BEGIN")
    await definer.execute(definition)
    waiting = asyncio.ensure_future(on.session.execute(text))
    await turns(50)
    assert not waiting.done()
    await definer.execute("COMMIT")
    await waiting


async def test_children_that_go_with_their_parent_leave_no_entry_in_an_index_made_meanwhile() -> (
    None
):
    async with asking() as on:
        await on.run(*FAMILY)
        await beside(
            on, on.another(), "CREATE UNIQUE INDEX u ON c (v)", "DELETE FROM p WHERE id = 1"
        )
        on.check_indexes()
        await on.run("INSERT INTO c VALUES (11, 2, 7)")


async def test_an_index_that_its_parent_got_meanwhile_is_kept_by_everybody_afterwards() -> None:
    async with asking() as on:
        await on.run(*FAMILY)
        index = "CREATE UNIQUE INDEX u ON p (x)"
        await beside(on, on.another(), index, "INSERT INTO c VALUES (12, 2, 8)")
        await on.run("INSERT INTO p VALUES (3, 3)")
        with pytest.raises(UniqueViolation):
            await on.run("INSERT INTO p VALUES (4, 3)")
        on.check_indexes()


async def test_statements_go_on_over_the_end_of_an_index_build() -> None:
    async with asking() as on:
        await on.run(*FAMILY, "INSERT INTO c VALUES (11, 1, 8), (12, 1, 9)")
        writer = on.another()
        building = asyncio.ensure_future(on.session.execute("CREATE INDEX i ON c (v)"))
        updates = 0
        while not building.done():
            await writer.execute("UPDATE c SET v = v + 1 WHERE id > 10")
            await writer.execute("DELETE FROM c WHERE id = 12 AND v > 1000")
            updates += 1
        await building
        assert updates and await on.rows("SELECT v FROM c WHERE id = 10") == [(7,)]
        on.check_indexes()


async def test_children_whose_foreign_key_was_dropped_meanwhile_stay() -> None:
    async with asking() as on:
        await on.run(*FAMILY)
        (name,) = [key.name for key in on.space.catalog.table("c").foreign_keys]
        drop = f"ALTER TABLE c DROP CONSTRAINT {name}"
        await beside(on, on.another(), drop, "DELETE FROM p WHERE id = 1")
        assert await on.rows("SELECT id FROM c") == [(10,)]


@pytest.mark.parametrize("kind", ["update", "put", "delete"])
async def test_keys_and_values_go_to_the_rows_that_a_table_has_after_it_was_emptied(
    kind: str,
) -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 7)")
        table, definer = await open_table(on.space, "t"), on.another()
        await definer.execute("BEGIN")
        await definer.execute("TRUNCATE TABLE t")
        if kind == "update":
            call: asyncio.Future[Any] = asyncio.ensure_future(table.update(1, {"v": 8}))
        elif kind == "put":
            call = asyncio.ensure_future(table.put({"id": 1, "v": 8}))
        else:
            call = asyncio.ensure_future(table.delete(1))
        await turns(50)
        assert not call.done()
        await definer.execute("COMMIT")
        assert await call is {"update": False, "put": None, "delete": False}[kind]
        assert await on.rows("SELECT * FROM t") == ([(1, 8)] if kind == "put" else [])


async def test_keys_and_values_go_by_the_columns_of_a_table_that_was_made_anew() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 7)")
        table, definer = await open_table(on.space, "t"), on.another()
        await definer.execute("BEGIN")
        await definer.execute("DROP TABLE t")
        await definer.execute("CREATE TABLE t (id INT PRIMARY KEY, w TEXT, v INT)")
        call = asyncio.ensure_future(table.put({"id": 1, "v": 8}))
        await turns(50)
        assert not call.done()
        await definer.execute("COMMIT")
        await call
        assert await on.rows("SELECT * FROM t") == [(1, None, 8)]


async def test_keys_and_values_of_a_table_that_is_no_more_are_refused() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        table, definer = await open_table(on.space, "t"), on.another()
        await definer.execute("BEGIN")
        await definer.execute("DROP TABLE t")
        call = asyncio.ensure_future(table.put({"id": 1, "v": 8}))
        await turns(50)
        await definer.execute("COMMIT")
        with pytest.raises(NoSuchTable):
            await call


@pytest.mark.parametrize(
    "definition", ["TRUNCATE TABLE p", "DROP TABLE p", "ALTER TABLE p ADD COLUMN y INT DEFAULT 3"]
)
async def test_a_snapshot_never_shows_other_rows_than_its_own(definition: str) -> None:
    async with asking() as on:
        await on.run(FAMILY[0], FAMILY[2])
        reader = on.another()
        await reader.execute("BEGIN ISOLATION LEVEL SNAPSHOT")
        assert list((await reader.execute("SELECT count(*) FROM p")).rows) == [(2,)]
        await on.run(definition)
        for text in ("SELECT count(*) FROM p", "SELECT x FROM p WHERE id = 1", "DELETE FROM p"):
            with pytest.raises((SerializationFailure, NoSuchTable)):
                await reader.execute(text)
        await reader.execute("ROLLBACK")
        await on.run("CREATE TABLE q (id INT PRIMARY KEY)")
        await reader.execute("BEGIN ISOLATION LEVEL SNAPSHOT")
        await reader.execute("SELECT count(*) FROM q")
        await reader.execute("COMMIT")


@pytest.mark.parametrize(
    "definition", ["CREATE TABLE z (id INT PRIMARY KEY)", "CREATE VIEW z AS SELECT 1"]
)
async def test_a_snapshot_outlives_definitions_that_change_nothing_of_it(definition: str) -> None:
    async with asking() as on:
        await on.run(FAMILY[0], FAMILY[2])
        reader = on.another()
        await reader.execute("BEGIN ISOLATION LEVEL SNAPSHOT")
        assert list((await reader.execute("SELECT count(*) FROM p")).rows) == [(2,)]
        await on.run(definition, "INSERT INTO p VALUES (3, 3)")
        assert list((await reader.execute("SELECT count(*) FROM p")).rows) == [(2,)]
        await reader.execute("UPDATE p SET x = 9 WHERE id = 1")
        await reader.execute("COMMIT")
        assert await on.rows("SELECT * FROM p ORDER BY id") == [(1, 9), (2, 2), (3, 3)]
