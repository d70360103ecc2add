"""A closed tablespace is freed, with everything that was kept for it."""

import gc
import weakref

from herd.nodes.following import FollowerSession
from herd.tablespace import Tablespace
from tests.herd.sql.sessions import asking

STATEMENTS = (
    "CREATE TABLE cow (id BIGINT AUTO_INCREMENT PRIMARY KEY, milk INT, CHECK (milk < 100))",
    "CREATE TABLE calf (id INT PRIMARY KEY, cow BIGINT REFERENCES cow (id))",
    "INSERT INTO cow (milk) VALUES (1), (2)",
    "INSERT INTO calf VALUES (1, 1)",
    "UPDATE cow SET milk = 3 WHERE id = 1",
    "DELETE FROM calf WHERE id = 1",
    "CREATE INDEX by_milk ON cow (milk)",
    "SELECT milk FROM cow WHERE id = 1",
    "SELECT id FROM cow WHERE milk = 3",
    "SELECT sum(milk) FROM cow",
    "EXPLAIN SELECT sum(milk) FROM cow",
    "SELECT * FROM systables",
    "SELECT id FROM cow WHERE milk IN (" + ", ".join(map(str, range(1_000))) + ")",
    "ALTER TABLE cow ADD COLUMN name TEXT",
    "INSERT INTO cow (milk) VALUES (5)",
)


async def used() -> "weakref.ref[Tablespace]":
    """A tablespace that is closed after all kinds of statements."""
    async with asking() as on:
        for text in STATEMENTS:
            for _ in range(2 if text.startswith(("SELECT", "INSERT INTO cow")) else 1):
                await on.session.execute(text)
        other = on.another()
        await other.begin()
        await other.execute("INSERT INTO cow (milk) VALUES (7)")
        await other.commit()
        await other.close()
        await FollowerSession(on.space, on.engine).execute("SELECT sum(milk) FROM cow")
        return weakref.ref(on.space)


async def test_a_closed_tablespace_is_freed_after_every_kind_of_statement() -> None:
    space = await used()
    gc.collect()
    assert space() is None
