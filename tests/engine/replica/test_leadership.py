"""Who leads when each replica's metadata session is slow by itself: in virtual time."""

import asyncio
import math
from typing import Any

import pytest

from engine.errors import MetadataUnavailable, NotEnoughBookies, NotLeader, OutcomeUnknown
from engine.log import Position
from engine.log.log import ReplicatedLog
from engine.log.log_writer import LogWriter
from engine.metadata.liveness import PROCESSES
from engine.metadata.restoring import MARK
from engine.metadata.takeovers import Place
from engine.replica.contract import Role
from engine.replica.election import Election, Holding
from engine.replica.following import Following
from engine.replica.replica import Replica
from tests.engine.ledger.scripted import QUICK
from tests.engine.replica.held_replicas import LEASE_S, LIST, Replicas, reached, with_replicas
from tests.engine.replica.yard import LOG_SETTINGS
from tests.simulation.virtual import elapse

A = b"a"


def _value(replica: Replica) -> bytes | None:
    return replica.stale_read(lambda rows: rows.get(A))[0]


@pytest.mark.parametrize(("kind", "key"), [("get", MARK), ("create", LIST)])
def test_a_candidate_that_is_slow_after_its_election_deposes_no_leader(kind: str, key: str) -> None:
    async def script(made: Replicas) -> None:
        slow, elected = made.session("one"), asyncio.Event()

        def before(called: str, of: str) -> None:
            if (called, of) == (kind, key):
                elected.set()
                slow.hold()

        slow.before = before
        one = await made.start("one")
        await reached(elected.is_set)
        two = await made.leader("two")
        await two.propose(b"a=1")
        await elapse(LEASE_S / 3)
        made.session("two").hold()
        slow.before = lambda called, of: None
        slow.let_go()
        # One leads as soon as it may: two's lease has ended then, and not a moment earlier.
        for _ in range(400):
            if one.role is Role.LEADER:
                await one.propose(b"a=2")
                assert await one.read(lambda rows: rows.get(A)) == b"2"
            newest = b"2" if one.role is Role.LEADER else b"1"
            assert not (one.may_answer() and two.may_answer())
            assert not two.may_answer() or await made.epoch() == two.epoch
            assert not two.may_answer() or two.read_now(lambda rows: rows.get(A)) == newest
            await elapse(0.01)
        assert one.may_answer() and not two.may_answer()
        with pytest.raises((NotLeader, OutcomeUnknown)):
            await two.read(lambda rows: rows.get(A))

    with_replicas(script)


def test_an_idle_leader_that_lost_the_store_alone_ends_its_term_when_another_leads() -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        two = await made.start("two")
        await elapse(LEASE_S)
        told = asyncio.ensure_future(one.until_other_term(one.term))
        made.session("one").hold()
        assert await reached(lambda: not one.may_answer()) <= 1.1 * LEASE_S
        await reached(two.may_answer)
        assert not told.done()
        assert await reached(told.done) <= 1.5 * LEASE_S
        assert await told == 0 and one.role is Role.FOLLOWER
        assert await two.propose(b"a=1") == b"-"

    with_replicas(script)


@pytest.mark.parametrize("step", [("sync", ""), ("get", LIST), ("set", LIST)])
def test_a_deposed_leader_closed_while_ending_its_term_does_not_block_the_next_leader(
    step: tuple[str, str],
) -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        two = await made.start("two")
        session, ending = made.session("one"), asyncio.Event()

        def before(called: str, of: str) -> None:
            if (called, of) == step and one._leading is None:
                ending.set()
                session.hold()

        session.before = before
        stranger = ReplicatedLog(made.cluster.client(QUICK), "log", LOG_SETTINGS)
        await (await stranger.lead()).close()
        await reached(ending.is_set)
        closing = asyncio.create_task(one.close())
        await elapse(LEASE_S)
        session.before = lambda called, of: None
        session.let_go()
        await closing
        # The process of the first replica keeps running and renews its lease.
        await reached(two.may_answer)
        assert await two.propose(b"a=1") == b"-"

    with_replicas(script)


def test_a_replica_that_lost_the_lead_before_it_raised_the_epoch_does_not_raise_it() -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        two = await made.start("two")
        await elapse(LEASE_S)
        session, elected = made.session("two"), asyncio.Event()

        def before(called: str, of: str) -> None:
            if (called, of) == ("get", MARK):
                elected.set()
                session.hold()

        session.before = before
        epoch = (await one.log.list()).epoch
        await one.close()
        await reached(elected.is_set)
        two._room.stalled = lambda: True  # type: ignore[method-assign]
        await elapse(3 * LEASE_S)
        session.before = lambda called, of: None
        session.let_go()
        await elapse(LEASE_S)
        assert (await two.log.list()).epoch == epoch and two.role is Role.FOLLOWER
        two._room.stalled = lambda: False  # type: ignore[method-assign]
        await reached(two.may_answer)

    with_replicas(script)


def _hold_all_turns(replica: Replica) -> list[Place]:
    takeovers, others = replica._liveness.takeovers, list[Place]()
    while takeovers.free:
        others.append(Place(takeovers, lambda: None))
        assert others[-1].ask(0.0, first=True)
    return others


@pytest.mark.parametrize("trouble", ["ill", "cut off"])
def test_a_replica_that_cannot_lead_or_reach_the_store_when_its_turn_comes_passes_it_on(
    trouble: str,
) -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        two = await made.start("two")
        await elapse(LEASE_S)
        others = _hold_all_turns(two)
        takeovers, session = two._liveness.takeovers, made.session("two")
        epoch = (await one.log.list()).epoch
        await one.close()
        await reached(lambda: len(takeovers._waiting) == 1)
        if trouble == "ill":
            two._room.stalled = lambda: True  # type: ignore[method-assign]
        else:
            session.before = _away
        for place in others:
            place.leave()
        await elapse(LEASE_S)
        assert takeovers.free == len(others) and not two._election.turn.has_turn
        two._room.stalled = lambda: False  # type: ignore[method-assign]
        session.before = lambda called, of: None
        await reached(two.may_answer)
        assert two.epoch == epoch + 1

    with_replicas(script)


def _away(called: str, of: str) -> None:
    raise MetadataUnavailable(f"{called} {of}: it does not answer")


def test_a_replica_that_defers_waits_behind_those_that_do_not() -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        two = await made.start("two")
        two.defer(LEASE_S)
        await elapse(LEASE_S)
        others, granted = _hold_all_turns(two), list[str]()
        takeovers = two._liveness.takeovers
        await one.close()
        await reached(lambda: len(takeovers._waiting) == 1)
        older = Place(takeovers, lambda: granted.append("older"))
        older.ask(0.0, first=True)
        others.pop().leave()
        assert granted == ["older"]
        for place in [older, *others]:
            place.leave()
        await reached(two.may_answer)

    with_replicas(script)


def test_a_new_leader_removes_garbage_only_when_no_takeover_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep, swept = ReplicatedLog.sweep, list[str]()

    async def counted(log: ReplicatedLog, *given: Any) -> list[int]:
        swept.append(log.name)
        return await sweep(log, *given)

    async def script(made: Replicas) -> None:
        one = await made.start("one", elect=False)
        others = _hold_all_turns(one)
        await reached(one.may_answer)
        await elapse(30.0)
        assert not swept and one.may_answer()
        for place in others:
            place.leave()
        await elapse(30.0)
        assert swept == ["log"]

    monkeypatch.setattr(ReplicatedLog, "sweep", counted)
    with_replicas(script)


def test_a_replica_that_waits_for_its_turn_leaves_the_queue_when_another_one_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        two, three = await made.start("two"), await made.start("three")
        three.defer(LEASE_S)
        await elapse(LEASE_S)
        others, waiting = _hold_all_turns(two), two._liveness.takeovers._waiting
        tail, tails = Following.tail, list[Following]()

        async def counted(following: Following) -> None:
            tails.append(following)
            await tail(following)

        monkeypatch.setattr(Following, "tail", counted)
        await one.propose(b"a=1")
        await one.close()
        await reached(lambda: len(waiting) == 1)
        await reached(three.may_answer)
        await three.propose(b"a=2")
        await reached(lambda: _value(two) == b"2")
        assert not waiting and two._following not in tails, "it kept following"
        for place in others:
            place.leave()
        await elapse(LEASE_S)
        assert three.term == await made.epoch() and two.leader == three.address

    with_replicas(script)


def test_a_replica_closed_between_election_and_takeover_keeps_no_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    campaign = Election.campaign

    async def script(made: Replicas) -> None:
        one, elected = await made.leader("one"), asyncio.Event()

        async def cancelled(election: Election, *given: Any) -> Holding:
            holding = await campaign(election, *given)
            assert takeovers.free == free - 1 and two._running is not None
            two._running.cancel()
            elected.set()
            return holding

        monkeypatch.setattr(Election, "campaign", cancelled)
        two = await made.start("two")
        takeovers = two._liveness.takeovers
        free = takeovers.free
        await elapse(LEASE_S)
        await one.close()
        await reached(elected.is_set)
        await two.close()
        assert takeovers.free == free

    with_replicas(script)


def test_leaders_and_followers_know_when_the_log_was_written_last() -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        two = await made.start("two")
        await elapse(10.0)
        await one.propose(b"a=1")
        await reached(lambda: _value(two) == b"1")
        written_s = asyncio.get_running_loop().time()
        for replica in (one, two):
            assert written_s - 1.0 < replica._following.written_s <= written_s
        # A leader whose lease may have ended asks the log, again and again.
        entry = one.position
        made.session("one").hold()
        made.session("two").hold()
        await elapse(10 * LEASE_S)
        assert one.position > entry and one.role is Role.LEADER
        await reached(lambda: two.position == one.position)
        for replica in (one, two):
            assert replica._following.written_s <= written_s

    with_replicas(script)


def test_a_log_whose_takeover_failed_goes_behind_all_others_until_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lead, failing, ranks = ReplicatedLog.lead, True, list[float]()
    ask = Place.ask

    async def refused(log: ReplicatedLog, *given: Any) -> LogWriter:
        if failing:
            raise NotEnoughBookies("none answers")
        return await lead(log, *given)

    def noted(place: Place, written_s: float, *, first: bool) -> bool:
        ranks.append(written_s)
        return ask(place, written_s, first=first)

    async def script(made: Replicas) -> None:
        nonlocal failing
        one = await made.leader("one")
        two = await made.start("two")
        await elapse(LEASE_S)
        monkeypatch.setattr(ReplicatedLog, "lead", refused)
        monkeypatch.setattr(Place, "ask", noted)
        await one.close()
        await reached(lambda: len(ranks) > 3)
        assert ranks[0] > 0 and set(ranks[1:]) == {-math.inf}
        failing = False
        await reached(two.may_answer)
        assert not two._election.turn.has_turn
        ranks.clear()
        await two._leading.holding.resign()  # type: ignore[union-attr]
        await reached(lambda: len(ranks) > 0)
        assert ranks[0] > 0

    with_replicas(script)


def test_an_end_that_no_bookie_knows_any_more_keeps_nobody_from_leading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        await one.propose(b"a=1")
        written, end, told = one.position, ReplicatedLog.end, 0

        async def forgotten(log: ReplicatedLog) -> Position:
            nonlocal told
            told += 1
            return await end(log) if told > 1 else Position(written.ledger, written.entry + 1)

        monkeypatch.setattr(ReplicatedLog, "end", forgotten)
        two = await made.start("two")
        await elapse(LEASE_S)
        made.session("one").hold()
        await reached(two.may_answer, 4 * LEASE_S)
        assert told > 1 and _value(two) == b"1"

    with_replicas(script)


def test_writes_continue_in_the_same_term_while_nobody_reaches_the_store() -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        two = await made.start("two")
        await elapse(LEASE_S)
        term = one.term
        for session in made.sessions.values():
            session.hold()
        for number in range(6):
            await one.propose(b"a=%d" % number)
            await elapse(LEASE_S)
            assert one.term == term and not one.may_answer()
        idle_at = one.position
        await elapse(8 * LEASE_S)
        assert one.term == term
        assert one.position.entry - idle_at.entry <= 9, "one entry a lease asks the log"
        for session in made.sessions.values():
            session.let_go()
        await reached(one.may_answer)
        assert one.term == term and await one.read(lambda rows: rows.get(A)) == b"5"
        await two.wait_for(one.position)
        assert _value(two) == b"5"

    with_replicas(script)


def test_a_leader_that_was_ill_lets_others_be_elected_before_it_comes_back() -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        two = await made.start("two")
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

    with_replicas(script)


def test_a_leader_whose_process_record_is_deleted_stops_even_if_its_epoch_is_current() -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        term = one.term
        named = (await one.log.list()).leader
        assert named is not None
        await made.cluster.tree.session().delete(f"{PROCESSES}/{named.process}")
        await reached(lambda: one.term != term, LEASE_S)
        assert (await one.log.list()).epoch == term, "nobody else has led"
        await reached(one.may_answer)
        assert one.term == term + 1

    with_replicas(script)


def test_a_replica_that_is_alone_by_other_means_answers_at_once_without_a_lease() -> None:
    async def script(made: Replicas) -> None:
        one = await made.start("one", elect=False)
        assert await reached(one.may_answer) < 0.1
        assert await made.cluster.store.children(PROCESSES) == []
        assert (await one.log.list()).leader is None
        await one.close()
        assert not one.may_answer()

    with_replicas(script)


def test_only_a_leader_whose_lease_holds_may_answer() -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        two = await made.start("two")
        await elapse(LEASE_S)
        assert one.may_answer() and not two.may_answer()
        made.session("one").hold(requests=False, replies=True, notices=False)
        # It hears of no beat, so a moment later it does not know whether it still leads.
        await elapse(LEASE_S * 1.01)
        assert one.term and not one.may_answer() and not two.may_answer()
        made.session("one").let_go()
        await reached(one.may_answer)
        one._applier.failed = True
        assert not one.may_answer()
        one._applier.failed = False

    with_replicas(script)
