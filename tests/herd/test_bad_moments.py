"""A disk that is full, a leader that is gone: one clear error, nothing lost, and on it goes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from engine.ports.system_workers import ThreadWorkers
from engine.transport.contract import Status
from herd import errors
from herd.sql.query import QueryEngine
from herd.sql.session import Session
from herd.tablespace import Tablespace
from tests.engine.ledger.scripted import Cluster
from tests.herd import spaces
from tests.herd.sql.querying import until


@asynccontextmanager
async def sessions(space: Tablespace) -> AsyncIterator[Session]:
    """A session over a tablespace in memory."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    engine = QueryEngine(space, workers)
    try:
        yield Session(space, engine)
    finally:
        await engine.close()
        await workers.close()


async def test_a_full_disk_is_told_and_work_goes_on_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spaces, "LOG", replace(spaces.LOG, turn_timeout_ms=50))
    cluster = await Cluster.of(1)
    client = cluster.client
    monkeypatch.setattr(
        cluster,
        "client",
        lambda settings: client(replace(settings, append_timeout_ms=300, quarantine_ms=5)),
    )
    async with spaces.opened(cluster=cluster) as space, sessions(space) as session:
        await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        await session.execute("INSERT INTO cow VALUES (1, 'x')")
        cluster.bookies[0].append_status = Status.READ_ONLY
        with pytest.raises(errors.OperationalError) as caught:
            await session.execute("INSERT INTO cow VALUES (2, 'x')")
        assert type(caught.value) in (errors.CommitUnknown, errors.LeaderUnavailable)
        await until(lambda: space.term == 0)
        with pytest.raises(errors.LeaderUnavailable) as again:
            await session.execute("INSERT INTO cow VALUES (3, 'x')")
        assert again.value.code == "57P03" and again.value.retryable
        assert "usable bookies" in str(again.value) and "try again" in again.value.hint
        cluster.bookies[0].append_status = Status.OK
        await until(lambda: space.term != 0)
        await session.execute("INSERT INTO cow VALUES (4, 'x')")
        found = await session.execute("SELECT id FROM cow WHERE id <> 2 ORDER BY id")
        assert list(found.rows) == [(1,), (4,)]


async def test_without_a_leader_statements_say_so_and_go_on_with_the_next_one() -> None:
    async with spaces.opened() as space, sessions(space) as session:
        await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        await session.execute("INSERT INTO cow VALUES (1, 'Elsa')")
        await session.execute("BEGIN")
        await session.execute("UPDATE cow SET name = 'Resi' WHERE id = 1")
        other = Session(space, session.query)
        leading = space.replica._leading
        assert leading is not None
        leading.over.set()
        await until(lambda: space.term == 0)
        for text in ("INSERT INTO cow VALUES (2, 'x')", "UPDATE cow SET name = 'y'", "BEGIN"):
            with pytest.raises(errors.LeaderUnavailable) as caught:
                await other.execute(text)
            assert caught.value.code == "57P03" and caught.value.hint
        await until(lambda: space.term != 0)
        for text in ("SELECT * FROM cow", "INSERT INTO cow VALUES (2, 'x')"):
            with pytest.raises(errors.TransactionEnded):
                await session.execute(text)
        with pytest.raises(errors.TransactionEnded):
            await session.commit()
        found = await session.execute("SELECT id, name FROM cow")
        assert list(found.rows) == [(1, "Elsa")]
        await other.execute("INSERT INTO cow VALUES (2, 'x')")
