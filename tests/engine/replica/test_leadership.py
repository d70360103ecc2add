"""Who leads when each replica's metadata session is slow by itself: in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import NotLeader, OutcomeUnknown
from engine.log import Position
from engine.log.log import ReplicatedLog
from engine.log.log_list import decode_list
from engine.metadata.liveness import PROCESSES
from engine.metadata.restoring import MARK
from engine.replica.contract import Role
from engine.replica.replica import Replica
from engine.replica.settings import ReplicaSettings
from engine.state.memory import MemoryState
from tests.engine.ledger.scripted import QUICK, Cluster
from tests.engine.metadata.held import HeldSession
from tests.engine.replica.machines import Register
from tests.engine.replica.yard import LOG_SETTINGS, on_the_loops_clock
from tests.simulation.virtual import elapse, virtually

LEASE_S = 1.5
LIST = "/logs/log/list"
A = b"a"


class _Sea:
    """Replicas with the default lease, each with a session of its own that can be held."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sessions: dict[str, HeldSession] = {}
        self.replicas: list[Replica] = []

    def session(self, name: str) -> HeldSession:
        """The session of a replica, before or after it was started."""
        if name not in self.sessions:
            self.sessions[name] = HeldSession(self.cluster.tree, 100 + len(self.sessions))
        return self.sessions[name]

    async def start(self, name: str, **how: Any) -> Replica:
        """Start a replica; it need not lead."""
        # A call that hangs is told to nobody: the replica waits for as long as the store takes.
        settings = replace(QUICK, metadata_timeout_ms=100_000)
        replica = await Replica.open(
            self.cluster.client(settings, store=self.session(name)),
            "log",
            Register(),
            MemoryState(),
            address=name,
            replica_id=name,
            settings=ReplicaSettings(snapshot_entries=0, retry_pause_ms=5),
            log_settings=LOG_SETTINGS,
            **how,
        )
        self.replicas.append(replica)
        return replica

    async def leader(self, name: str) -> Replica:
        """Start a replica and wait until it leads."""
        replica = await self.start(name)
        await reached(lambda: replica.may_answer())
        return replica

    async def epoch(self) -> int:
        """The epoch that the log's list has."""
        found = await self.cluster.store.get(LIST)
        return 0 if found is None else decode_list(found.value).epoch

    async def close(self) -> None:
        """Close all, with sessions that answer again."""
        for session in self.sessions.values():
            session.before = session.after = lambda kind, key: None
            session.let_go()
        for replica in self.replicas:
            await replica.close()


def at_sea(script: Callable[[_Sea], Coroutine[Any, Any, None]]) -> None:
    """Run a script in virtual time."""

    async def run() -> None:
        cluster = await on_the_loops_clock()
        sea = _Sea(cluster)
        try:
            await script(sea)
        finally:
            await sea.close()

    virtually(run())


async def reached(condition: Callable[[], bool], within_s: float = 60.0) -> float:
    """Wait for it in small steps; returns how long it took. Fails when the time is over."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not condition():
        assert loop.time() - began_s < within_s, "not in time"
        await elapse(0.01)
    return loop.time() - began_s


def _value(replica: Replica) -> bytes | None:
    return replica.stale_read(lambda rows: rows.get(A))[0]


@pytest.mark.parametrize(("kind", "key"), [("get", MARK), ("create", LIST)])
def test_a_candidate_that_is_slow_after_its_election_deposes_no_leader(kind: str, key: str) -> None:
    async def script(sea: _Sea) -> None:
        slow, elected = sea.session("one"), asyncio.Event()

        def before(called: str, of: str) -> None:
            if (called, of) == (kind, key):
                elected.set()
                slow.hold()

        slow.before = before
        one = await sea.start("one")
        await reached(elected.is_set)
        two = await sea.leader("two")
        await two.propose(b"a=1")
        await elapse(LEASE_S / 3)
        sea.session("two").hold()
        slow.before = lambda called, of: None
        slow.let_go()
        # One leads as soon as it may: two's lease has ended then, and not a moment earlier.
        for _ in range(400):
            if one.role is Role.LEADER:
                await one.propose(b"a=2")
                assert await one.read(lambda rows: rows.get(A)) == b"2"
            newest = b"2" if one.role is Role.LEADER else b"1"
            assert not (one.may_answer() and two.may_answer())
            assert not two.may_answer() or await sea.epoch() == two.epoch
            assert not two.may_answer() or two.read_now(lambda rows: rows.get(A)) == newest
            await elapse(0.01)
        assert one.may_answer() and not two.may_answer()
        with pytest.raises((NotLeader, OutcomeUnknown)):
            await two.read(lambda rows: rows.get(A))

    at_sea(script)


def test_an_idle_leader_that_lost_the_store_alone_ends_its_term_when_another_leads() -> None:
    async def script(sea: _Sea) -> None:
        one = await sea.leader("one")
        two = await sea.start("two")
        await elapse(LEASE_S)
        told = asyncio.ensure_future(one.until_other_term(one.term))
        sea.session("one").hold()
        assert await reached(lambda: not one.may_answer()) <= 1.1 * LEASE_S
        await reached(two.may_answer)
        assert not told.done()
        assert await reached(told.done) <= 1.5 * LEASE_S
        assert await told == 0 and one.role is Role.FOLLOWER
        assert await two.propose(b"a=1") == b"-"

    at_sea(script)


def test_an_end_that_no_bookie_knows_any_more_keeps_nobody_from_leading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(sea: _Sea) -> None:
        one = await sea.leader("one")
        await one.propose(b"a=1")
        written, end, told = one.position, ReplicatedLog.end, 0

        async def forgotten(log: ReplicatedLog) -> Position:
            nonlocal told
            told += 1
            return await end(log) if told > 1 else Position(written.ledger, written.entry + 1)

        monkeypatch.setattr(ReplicatedLog, "end", forgotten)
        two = await sea.start("two")
        await elapse(LEASE_S)
        sea.session("one").hold()
        await reached(two.may_answer, 4 * LEASE_S)
        assert told > 1 and _value(two) == b"1"

    at_sea(script)


def test_writes_continue_in_the_same_term_while_nobody_reaches_the_store() -> None:
    async def script(sea: _Sea) -> None:
        one = await sea.leader("one")
        two = await sea.start("two")
        await elapse(LEASE_S)
        term = one.term
        for session in sea.sessions.values():
            session.hold()
        for number in range(6):
            await one.propose(b"a=%d" % number)
            await elapse(LEASE_S)
            assert one.term == term and not one.may_answer()
        idle_at = one.position
        await elapse(8 * LEASE_S)
        assert one.term == term
        assert one.position.entry - idle_at.entry <= 9, "one entry a lease asks the log"
        for session in sea.sessions.values():
            session.let_go()
        await reached(one.may_answer)
        assert one.term == term and await one.read(lambda rows: rows.get(A)) == b"5"
        await two.wait_for(one.position)
        assert _value(two) == b"5"

    at_sea(script)


def test_a_leader_that_was_ill_lets_others_be_elected_before_it_comes_back() -> None:
    async def script(sea: _Sea) -> None:
        one = await sea.leader("one")
        two = await sea.start("two")
        two.defer(LEASE_S)
        await elapse(LEASE_S)
        ill = True
        one._room.stalled = lambda: ill  # type: ignore[method-assign]
        await reached(lambda: one.term == 0, 2 * LEASE_S)
        ill = False
        await reached(two.may_answer, 2 * LEASE_S)
        term = two.term
        await two.close()
        await reached(one.may_answer, 3 * LEASE_S)
        assert one.term > term

    at_sea(script)


def test_a_leader_whose_process_record_is_deleted_stops_even_if_its_epoch_is_current() -> None:
    async def script(sea: _Sea) -> None:
        one = await sea.leader("one")
        term = one.term
        named = (await one.log.list()).leader
        assert named is not None
        await sea.cluster.tree.session().delete(f"{PROCESSES}/{named.process}")
        await reached(lambda: one.term != term, LEASE_S)
        assert (await one.log.list()).epoch == term, "nobody else has led"
        await reached(one.may_answer)
        assert one.term == term + 1

    at_sea(script)


def test_a_replica_that_is_alone_by_other_means_answers_at_once_without_a_lease() -> None:
    async def script(sea: _Sea) -> None:
        one = await sea.start("one", elect=False)
        assert await reached(one.may_answer) < 0.1
        assert await sea.cluster.store.children(PROCESSES) == []
        assert (await one.log.list()).leader is None
        await one.close()
        assert not one.may_answer()

    at_sea(script)


def test_only_a_leader_whose_lease_holds_may_answer() -> None:
    async def script(sea: _Sea) -> None:
        one = await sea.leader("one")
        two = await sea.start("two")
        await elapse(LEASE_S)
        assert one.may_answer() and not two.may_answer()
        sea.session("one").hold(requests=False, replies=True, notices=False)
        # It hears of no beat, so a moment later it does not know whether it still leads.
        await elapse(LEASE_S * 1.01)
        assert one.term and not one.may_answer() and not two.may_answer()
        sea.session("one").let_go()
        await reached(one.may_answer)
        one._applier.failed = True
        assert not one.may_answer()
        one._applier.failed = False

    at_sea(script)
