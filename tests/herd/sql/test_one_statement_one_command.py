"""A statement is one command in the log, or none: what fails at its last row changes nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engine.ports.system_workers import ThreadWorkers
from engine.state.memory import MemoryState
from herd.errors import CheckViolation, Error, ForeignKeyViolation, UniqueViolation, ValueTooLong
from herd.sql.query import QueryEngine
from herd.sql.session import Session
from tests.engine.ledger.scripted import Cluster
from tests.herd.spaces import opened
from tests.herd.sql.querying import SETTINGS


@asynccontextmanager
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    """A session in a tablespace whose state begins empty, so that all comes from the log."""
    async with opened(cluster=cluster, state=MemoryState()) as space:
        workers = ThreadWorkers(asyncio.get_running_loop())
        engine = QueryEngine(space, workers, settings=SETTINGS)
        try:
            yield Session(space, engine)
        finally:
            await engine.close()
            await workers.close()


async def prepare(session: Session) -> None:
    await session.execute("CREATE TABLE herd (id INT PRIMARY KEY)")
    await session.execute(
        "CREATE TABLE cow (id INT PRIMARY KEY, tag VARCHAR(4) UNIQUE, milk INT CHECK (milk < 99),"
        " herd INT REFERENCES herd (id))"
    )
    await session.execute("INSERT INTO herd VALUES (1), (2)")
    await session.execute("INSERT INTO cow VALUES (1, 'a', 1, 1), (2, 'b', 2, 1), (3, 'c', 98, 1)")


REFUSED: list[tuple[str, type[Error]]] = [
    ("UPDATE cow SET milk = milk + 1", CheckViolation),
    ("UPDATE cow SET tag = 'same'", UniqueViolation),
    ("UPDATE cow SET tag = CASE WHEN id = 3 THEN 'too long' ELSE 'x' || id END", ValueTooLong),
    ("UPDATE cow SET herd = id", ForeignKeyViolation),
    ("INSERT INTO cow VALUES (4, 'd', 1, 1), (5, 'e', 1, 1), (1, 'f', 1, 1)", UniqueViolation),
    ("INSERT INTO cow SELECT id + 3, tag || 'x', milk + (id = 3)::INT, 1 FROM cow", CheckViolation),
    ("DELETE FROM herd", ForeignKeyViolation),
]


@pytest.mark.parametrize(("statement", "error"), REFUSED, ids=[one[0] for one in REFUSED])
async def test_a_statement_that_fails_at_its_last_row_writes_nothing(
    statement: str, error: type[Error]
) -> None:
    cluster = await Cluster.of(1)
    async with session(cluster) as one:
        await prepare(one)
        at = one.space.replica.position
        before = (await one.execute("SELECT * FROM cow ORDER BY id")).rows
        with pytest.raises(error):
            await one.execute(statement)
        assert one.space.replica.position == at, "something of it is in the log"
        assert (await one.execute("SELECT * FROM cow ORDER BY id")).rows == before
        assert len(one.space.locks) == 0


async def test_who_reads_the_log_has_the_same_rows_after_statements_that_failed() -> None:
    cluster = await Cluster.of(1)
    async with session(cluster) as one:
        await prepare(one)
        for number, (statement, error) in enumerate(REFUSED):
            with pytest.raises(error):
                await one.execute(statement)
            await one.execute("INSERT INTO herd VALUES (?)", [100 + number])
        rows = (await one.execute("SELECT * FROM cow ORDER BY id")).rows
        herds = (await one.execute("SELECT * FROM herd ORDER BY id")).rows
    async with session(cluster) as other:
        assert (await other.execute("SELECT * FROM cow ORDER BY id")).rows == rows
        assert (await other.execute("SELECT * FROM herd ORDER BY id")).rows == herds


async def test_a_statement_over_many_rows_is_one_command() -> None:
    cluster = await Cluster.of(1)
    async with session(cluster) as one:
        await prepare(one)
        seen: list[object] = []
        one.space.watch(lambda position, command: seen.append(command))
        await one.execute("UPDATE cow SET milk = 0")
        await one.execute("INSERT INTO herd SELECT id + 10 FROM herd")
        await one.execute_many("INSERT INTO herd VALUES (?)", [(n,) for n in range(100, 200)])
        await one.execute("DELETE FROM cow WHERE herd IN (SELECT id FROM herd WHERE id < 5)")
        assert len(seen) == 4
