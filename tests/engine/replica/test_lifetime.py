"""How replicas begin and end, and what those outside of their lives are told."""

import random
from dataclasses import replace

import pytest

from engine.errors import (
    EngineError,
    FolderMismatch,
    HistoryMissing,
    LevelTooNew,
    NotLeader,
    ReplicaFailed,
    SessionFull,
)
from engine.replica import sessions
from engine.replica.contract import Role
from engine.replica.election import Holding
from engine.replica.entries import Request
from engine.replica.replica import Replica
from engine.state.cutting import VALUE_BYTES_MAX
from engine.state.memory import MemoryState
from tests.engine.replica.machines import Newer, Register
from tests.engine.replica.yard import LOG_SETTINGS, until, yard


class _Counting(MemoryState):
    """One that counts how often it was closed, and is still there."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("why", [FolderMismatch, LevelTooNew, HistoryMissing])
async def test_a_replica_that_cannot_start_lets_go_of_all_it_was_given(
    why: type[EngineError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with yard() as made:
        state = _Counting()
        log_settings = replace(LOG_SETTINGS, roll_entries=10)
        one = await made.leader("one", machine=Newer(), state=state, log_settings=log_settings)
        await until(lambda: one._applier.summary.level == 2)
        for number in range(40):
            await one.propose(b"a=%d" % number)
        if why is HistoryMissing:
            await one.log.truncate(one.position)
            state = _Counting()
        await one.close()
        state.closed = 0
        client = made.client("two")
        watched = 0

        def watch(*_: object) -> object:
            nonlocal watched
            watched += 1
            return unwatch

        def unwatch() -> None:
            nonlocal watched
            watched -= 1

        monkeypatch.setattr(client.store, "watch", watch)
        monkeypatch.setattr(client.store, "watch_session", watch)
        name = "another" if why is FolderMismatch else "log"
        with pytest.raises(why):
            await Replica.open(client, name, Register(), state)
        assert (state.closed, watched) == (1, 0)


async def test_a_leader_whose_store_is_silent_names_nobody_to_ask() -> None:
    async with yard() as made:
        one = await made.leader("one")
        assert one._leading is not None
        holding = one._leading.holding
        assert isinstance(holding, Holding)
        holding._incarnation._lease_end_s = 0.0
        with pytest.raises(NotLeader, match="lease has run out") as refused:
            one.read_now(lambda rows: None)
        assert refused.value.leader == ""
        await one.close()
        for call in (lambda: one.propose(b"a=1"), lambda: one.stale_read(lambda rows: None)):
            with pytest.raises(NotLeader, match="is closed") as refused:
                call()
            assert refused.value.leader == ""


@pytest.mark.parametrize("elect", [False, True])
async def test_a_replica_whose_client_was_closed_stops_with_a_word(elect: bool) -> None:
    async with yard() as made:
        leader = await made.leader("one", elect=elect)
        replicas = [leader] if not elect else [leader, await made.start("two")]
        for replica in replicas:
            await replica._client.close()
            await until(lambda replica=replica: replica.role is Role.FAILED)  # type: ignore[misc]
            with pytest.raises(ReplicaFailed, match="client was closed"):
                replica.propose(b"a=1")


async def test_a_session_that_is_full_says_so_and_goes_on_when_its_floor_rises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "RESULTS_MAX", 2)
    async with yard() as made:
        one = await made.leader("one")
        session = await one.open_session()
        for sequence in (1, 2):
            await one.propose(b"a=%d" % sequence, request=Request(session, sequence))
        with pytest.raises(SessionFull, match="floor"):
            await one.propose(b"a=3", request=Request(session, 3))
        assert await one.propose(b"a=4", request=Request(session, 3, floor=3)) == b"2"


async def test_the_largest_row_goes_through_the_log_and_through_a_snapshot() -> None:
    async with yard() as made:
        one = await made.leader("one", log_settings=replace(LOG_SETTINGS, roll_entries=4))
        value = random.Random(1).randbytes(VALUE_BYTES_MAX)
        await one.propose(b"a=" + value)
        two = await made.start("two")
        await two.wait_for(one.position)
        await one.snapshot()
        for number in range(8):
            await one.propose(b"b=%d" % number)
        await one.snapshot()
        assert not (await one.log.list()).full_history
        three = await made.start("three")
        await three.wait_for(one.position)
        for replica in (one, two, three):
            assert replica.stale_read(lambda rows: rows.get(b"a"))[0] == value


async def test_who_waits_for_another_term_hears_of_each_and_of_the_end() -> None:
    async with yard() as made:
        one = await made.start("one")
        term = await one.until_other_term(0)
        assert term == one.term > 0
        assert await one.until_other_term(0) == term
        await one.give_way(1_000)
        assert await one.until_other_term(term) != term
        await one.close()
        with pytest.raises(NotLeader, match="closed"):
            while True:
                await one.until_other_term(one.term)
