"""Answers that get lost on the way: what is asked again, what is asked about, what is not known."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.ports.clock import SystemClock
from herd.errors import CommitUnknown, SessionLost, TransactionEnded
from herd.wire import messages
from herd.wire.calling import Calling
from herd.wire.guest import Guest
from herd.wire.herd import RemoteHerd
from herd.wire.local import LocalChannel
from herd.wire.messages import decode_call
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings
from tests.herd.wire.test_route import NodeOf
from tests.herd.wire.wiring import embedded

SOON = WireSettings(patience_ms=1_000)


class Lossy:
    """A way to a server on which calls, or answers, of some kinds get lost."""

    def __init__(self, service: HerdService) -> None:
        self.lost_calls: list[type] = []
        self.lost_answers: list[type] = []
        self.asked: list[type] = []
        self.dead = False
        self._service = service
        self._guest = Guest(service)
        self.over = False

    async def channel(self, tablespace: str) -> "Lossy":
        """A new connection if the last one was lost."""
        if self.dead:
            raise SessionLost("nobody answers")
        if self.over:
            self._guest = Guest(self._service)
            self.over = False
        return self

    def moved(self, tablespace: str, leader: str) -> bool:
        """It stays where it is."""
        return False

    async def ask(self, message: bytes) -> bytes:
        """An answer, unless it is to get lost."""
        kind = type(decode_call(message))
        self.asked.append(kind)
        if kind in self.lost_calls:
            self.lost_calls.remove(kind)
            await self._lose()
        answer = await LocalChannel(self._guest).ask(message)
        if kind in self.lost_answers:
            self.lost_answers.remove(kind)
            await self._lose()
        return answer

    async def close(self) -> None:
        """End what is left."""
        await self._guest.close()

    async def _lose(self) -> None:
        self.over = True
        await self._guest.close()
        raise SessionLost("lost on the way")


@asynccontextmanager
async def lossy(path: Path) -> AsyncIterator[tuple[Lossy, RemoteHerd]]:
    """A herd over such a way, with a table of one cow."""
    async with embedded(path) as herd:
        route = Lossy(HerdService(NodeOf(herd), herd.workers))
        clock, rng = SystemClock(), random.Random(3)
        remote = RemoteHerd(Calling(route, clock, rng, herd.workers, SOON))
        session = await remote.session()
        await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, n INT)")
        await session.execute("INSERT INTO cow VALUES (1, 0)")
        try:
            yield route, remote
        finally:
            await route.close()


async def number_of(remote: RemoteHerd) -> int:
    """What stands in the only row."""
    found = await (await remote.session()).execute("SELECT n FROM cow WHERE id = 1")
    number: int = found.rows[0][0]
    return number


@pytest.mark.parametrize("words", [True, False])
async def test_a_commit_whose_answer_got_lost_is_known_to_be_done(
    tmp_path: Path, words: bool
) -> None:
    async with lossy(tmp_path) as (route, remote):
        session = await remote.session(autocommit=False)
        await session.execute("UPDATE cow SET n = 1 WHERE id = 1")
        route.lost_answers.append(messages.Commit)
        if words:
            await session.execute("COMMIT")
        else:
            await session.commit()
        assert session.transaction is None
        assert await number_of(remote) == 1
        assert route.asked.count(messages.Commit) == 1


async def test_a_commit_that_got_lost_is_known_not_to_be_done(tmp_path: Path) -> None:
    async with lossy(tmp_path) as (route, remote):
        session = await remote.session(autocommit=False)
        await session.execute("UPDATE cow SET n = 1 WHERE id = 1")
        route.lost_calls.append(messages.Commit)
        with pytest.raises(TransactionEnded) as raised:
            await session.commit()
        assert raised.value.retryable and session.transaction is None
        assert await number_of(remote) == 0
        await session.execute("UPDATE cow SET n = 2 WHERE id = 1")
        await session.commit()
        assert await number_of(remote) == 2


async def test_a_commit_that_nobody_can_be_asked_about_is_unknown(tmp_path: Path) -> None:
    async with lossy(tmp_path) as (route, remote):
        session = await remote.session(autocommit=False)
        await session.execute("UPDATE cow SET n = 1 WHERE id = 1")
        route.lost_answers.append(messages.Commit)
        route.dead = True
        with pytest.raises(CommitUnknown):
            await session.commit()
        route.dead = False
        assert await number_of(remote) == 1


async def test_a_change_outside_a_transaction_is_not_made_twice(tmp_path: Path) -> None:
    async with lossy(tmp_path) as (route, remote):
        session, table = await remote.session(), await remote.table("cow")
        route.lost_answers.append(messages.Execute)
        with pytest.raises(CommitUnknown) as raised:
            await session.execute("UPDATE cow SET n = n + 1 WHERE id = 1")
        assert not raised.value.retryable and raised.value.hint
        route.lost_answers.append(messages.Update)
        with pytest.raises(CommitUnknown):
            await table.update(1, {"n": 5})
        assert await number_of(remote) == 5
        assert (await session.execute("UPDATE cow SET n = n + 1 WHERE id = 1")).count == 1


async def test_what_only_looks_is_asked_again(tmp_path: Path) -> None:
    async with lossy(tmp_path) as (route, remote):
        session, table = await remote.session(), await remote.table("cow")
        for text in ("SELECT n FROM cow", "/* a */ with c AS (SELECT 1) SELECT * FROM c"):
            route.lost_answers.append(messages.Execute)
            assert (await session.execute(text)).count == 1
        route.lost_answers.append(messages.Get)
        assert await table.get(1) == {"id": 1, "n": 0}
        route.lost_calls.append(messages.Scan)
        assert [row["id"] async for row in table.scan()] == [1]


async def test_the_first_statement_of_a_transaction_is_begun_again(tmp_path: Path) -> None:
    async with lossy(tmp_path) as (route, remote):
        session = await remote.session(autocommit=False)
        route.lost_answers.append(messages.Execute)
        await session.execute("UPDATE cow SET n = n + 1 WHERE id = 1")
        await session.commit()
        assert await number_of(remote) == 1


async def test_a_statement_that_got_lost_ends_its_transaction(tmp_path: Path) -> None:
    async with lossy(tmp_path) as (route, remote):
        session = await remote.session(autocommit=False)
        await session.execute("UPDATE cow SET n = 1 WHERE id = 1")
        route.lost_calls.append(messages.Execute)
        with pytest.raises(SessionLost) as raised:
            await session.execute("INSERT INTO cow VALUES (2, 2)")
        assert raised.value.retryable and session.transaction is not None
        with pytest.raises(TransactionEnded):
            await session.execute("INSERT INTO cow VALUES (3, 3)")
        with pytest.raises(TransactionEnded):
            await session.commit()
        assert (await session.execute("SELECT id, n FROM cow")).rows[:] == [(1, 0)]


async def test_a_result_whose_rest_got_lost_is_asked_for_again(tmp_path: Path) -> None:
    async with lossy(tmp_path) as (route, remote):
        session = await remote.session()
        route.lost_answers.append(messages.Fetch)
        text = "SELECT i, repeat('x', 100) FROM range(40000) r(i)"
        assert (await session.execute(text)).count == 40_000
        assert route.asked.count(messages.Fetch) > 4
        assert route._service.results_bytes == 0


async def test_a_rollback_that_got_lost_needs_nothing_more(tmp_path: Path) -> None:
    async with lossy(tmp_path) as (route, remote):
        session = await remote.session(autocommit=False)
        await session.execute("UPDATE cow SET n = 1 WHERE id = 1")
        route.lost_answers.append(messages.Rollback)
        await session.rollback()
        await session.execute("UPDATE cow SET n = 2 WHERE id = 1")
        route.lost_calls.append(messages.Close)
        await session.close()
        assert await number_of(remote) == 0
