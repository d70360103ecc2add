"""Replicas together: leading, following, taking over, and what each of them promises."""

import asyncio
from dataclasses import replace

import pytest

from engine.errors import (
    Deposed,
    FolderMismatch,
    HistoryMissing,
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    ReplicaFailed,
    StateDiverged,
)
from engine.log.log import ReplicatedLog
from engine.log.position import START
from engine.metadata.liveness import PROCESSES
from engine.replica import applier as applying
from engine.replica.contract import Role
from engine.replica.election import Holding
from engine.replica.entries import Request
from engine.replica.replica import Replica
from engine.state.memory import MemoryState
from herdbook.metrics import PrometheusMetrics
from tests.engine.replica.machines import Failing, Forgetful, Newer, Register
from tests.engine.replica.yard import LEASE_MS, LOG_SETTINGS, PATIENCE_MS, SETTINGS, until, yard

A = b"a"


def _value(replica: Replica, key: bytes = A) -> bytes | None:
    return replica.stale_read(lambda rows: rows.get(key))[0]


async def test_a_command_is_applied_by_the_leader_and_then_by_the_others() -> None:
    async with yard() as made:
        one = await made.leader("one")
        two = await made.start("two")
        assert await one.propose(b"a=1") == b"-"
        assert await one.propose(b"a=2") == b"1"
        assert await one.read(lambda rows: rows.get(A)) == b"2"
        await two.wait_for(one.position)
        assert two.stale_read(lambda rows: rows.get(A)) == (b"2", one.position)


async def test_a_follower_refuses_and_names_the_leader() -> None:
    async with yard() as made:
        await made.leader("one")
        two = await made.start("two")
        await until(lambda: two.leader == "one")
        for call in (lambda: two.propose(b"a=1"), lambda: two.read(lambda rows: None)):
            with pytest.raises(NotLeader) as refused:
                await call()
            assert refused.value.leader == "one"
        with pytest.raises(NotLeader):
            await two.snapshot()


async def test_a_leader_that_closes_is_followed_at_once_and_nothing_is_lost() -> None:
    async with yard() as made:
        one = await made.leader("one")
        two = await made.start("two")
        await one.propose(b"a=1")
        await until(lambda: two.leader == "one")
        await one.close()
        await two.until_leading(LEASE_MS * 3)
        assert await two.read(lambda rows: rows.get(A)) == b"1"
        assert two.epoch == 2 and one.role is Role.CLOSED
        with pytest.raises(NotLeader):
            one.propose(b"a=2")


async def test_a_leader_whose_store_is_gone_is_replaced_and_answers_no_more_reads() -> None:
    async with yard() as made:
        one = await made.leader("one")
        two = await made.start("two")
        await one.propose(b"a=1")
        # Its session hangs: every call fails, as behind a cut network.
        await made.stores["one"].close()
        await two.until_leading(PATIENCE_MS)
        await two.propose(b"a=2")
        with pytest.raises(NotLeader):
            await one.read(lambda rows: rows.get(A))
        with pytest.raises((OutcomeUnknown, NotLeader)):
            await one.propose(b"a=3")
        assert await two.read(lambda rows: rows.get(A)) == b"2"


async def test_what_is_read_now_is_the_newest_and_only_the_leader_can_tell() -> None:
    async with yard() as made:
        one = await made.leader("one", lease_ms=60_000)
        two = await made.start("two")
        assert (one.term, two.term) == (one.epoch, 0) and one.epoch > 0
        await one.propose(b"a=1")
        assert one.read_now(lambda rows: rows.get(A)) == b"1"
        await until(lambda: two.leader == "one")
        with pytest.raises(NotLeader) as refused:
            two.read_now(lambda rows: rows.get(A))
        assert refused.value.leader == "one"
        assert one._leading is not None
        holding = one._leading.holding
        assert isinstance(holding, Holding)

        def outlast(rows: object) -> None:
            holding._incarnation._lease_end_s = 0.0

        for look in (outlast, lambda rows: rows.get(A)):
            with pytest.raises(NotLeader):
                one.read_now(look)
        await one.close()
        assert one.term == 0


async def test_a_view_stays_as_it_was_while_the_replica_goes_on() -> None:
    async with yard() as made:
        one = await made.leader("one")
        two = await made.start("two")
        await one.propose(b"a=1")
        await two.wait_for(one.position)
        views = [one.view(), two.view()]
        await one.propose(b"a=2")
        await two.wait_for(one.position)
        assert [view.get(A) for view in views] == [b"1", b"1"]
        assert _value(one) == _value(two) == b"2"
        for view in views:
            view.close()
        await two.close()
        with pytest.raises(NotLeader):
            two.view()


async def test_a_deposed_leader_follows_the_new_one() -> None:
    async with yard() as made:
        one = await made.leader("one")
        await one.propose(b"a=1")
        usurper = await ReplicatedLog(made.client("usurper"), "log", LOG_SETTINGS).lead()
        with pytest.raises((Deposed, NotLeader)):
            await one.propose(b"a=2")
        await until(lambda: one.role is Role.LEADER and one.epoch > usurper.epoch)
        assert await one.propose(b"a=3") in (b"1", b"2")


async def test_a_retry_after_a_change_of_leaders_is_answered_not_done_again() -> None:
    async with yard() as made:
        one = await made.leader("one")
        session = await one.open_session()
        assert await one.propose(b"a=1", request=Request(session, 1)) == b"-"
        await one.propose(b"a=2")
        two = await made.start("two")
        await one.close()
        await two.until_leading(PATIENCE_MS)
        assert await two.propose(b"a=1", request=Request(session, 1)) == b"-"
        assert _value(two) == b"2"


async def test_proposals_of_one_turn_share_an_append_and_come_back_in_order() -> None:
    async with yard() as made:
        one = await made.leader("one")
        before = len(made.cluster.bookies[0].requests)
        results = await asyncio.gather(*[one.propose(b"a=%d" % n) for n in range(100)])
        assert results == [b"-"] + [b"%d" % n for n in range(99)]
        assert len(made.cluster.bookies[0].requests) - before <= 2


async def test_what_is_under_way_is_bounded() -> None:
    async with yard() as made:
        one = await made.leader(settings=replace(SETTINGS, pending_bytes_max=100))
        for bookie in made.cluster.bookies:
            bookie.holding = True
        waiting = [asyncio.ensure_future(one.propose(b"a=" + b"x" * 40)) for _ in range(2)]
        with pytest.raises(Overloaded):
            one.propose(b"a=" + b"x" * 40)
        for bookie in made.cluster.bookies:
            bookie.holding = False
            bookie.release()
        assert (await asyncio.gather(*waiting))[0] == b"-"
        await one.propose(b"a=" + b"x" * 40)


async def test_a_large_command_goes_in_parts_and_a_follower_gets_it_whole() -> None:
    async with yard() as made:
        one = await made.leader("one")
        two = await made.start("two")
        body = bytes(range(256)) * 40_000
        assert await one.propose(b"a=" + body) == b"-"
        await two.wait_for(one.position)
        assert _value(one) == _value(two) == body
        with pytest.raises(ReplicaFailed):
            # A row over the limit is the state machine's fault, on every replica.
            await one.propose(b"a=" + body * 2)
        await until(lambda: one.role is Role.FAILED)
        await until(lambda: two.role is Role.FAILED)


async def test_a_new_replica_on_an_empty_state_boots_from_the_snapshot() -> None:
    async with yard() as made:
        one = await made.leader(log_settings=replace(LOG_SETTINGS, roll_entries=10))
        for number in range(40):
            await one.propose(b"k%d=%d" % (number, number))
        at = await one.snapshot()
        await one.propose(b"a=1")
        await until(lambda: one.position > at)
        listed = await one.log.list()
        assert not listed.full_history and at >= listed.dropped_through > START
        two = await made.start("two")
        await two.wait_for(one.position)
        assert (_value(two, b"k3"), _value(two, b"k39"), _value(two)) == (b"3", b"39", b"1")


async def test_a_replica_that_was_off_until_the_log_was_truncated_comes_back() -> None:
    async with yard() as made:
        settings = replace(LOG_SETTINGS, roll_entries=10)
        one = await made.leader(log_settings=settings)
        state = _Kept()
        two = await made.start("two", state=state)
        await one.propose(b"a=1")
        await two.wait_for(one.position)
        await two.close()
        for number in range(40):
            await one.propose(b"a=%d" % number)
        await one.snapshot()
        assert state.position < (await one.log.list()).dropped_through
        again = await made.start("two again", state=state)
        await again.wait_for(one.position)
        assert _value(again) == b"39"


async def test_a_replica_with_the_whole_history_replays_it() -> None:
    async with yard() as made:
        one = await made.leader(log_settings=replace(LOG_SETTINGS, roll_entries=7))
        for number in range(50):
            await one.propose(b"a=%d" % number)
        assert len((await one.log.list()).ledgers) > 3
        two = await made.start("two")
        await two.wait_for(one.position)
        assert _value(two) == b"49"


async def test_without_snapshot_and_without_history_a_replica_refuses_to_start() -> None:
    async with yard() as made:
        one = await made.leader(log_settings=replace(LOG_SETTINGS, roll_entries=10))
        for number in range(40):
            await one.propose(b"a=%d" % number)
        await one.log.truncate(one.position)
        with pytest.raises(HistoryMissing, match="no snapshot"):
            await made.start("two")


async def test_snapshots_never_stop_proposals_and_older_ones_are_deleted() -> None:
    async with yard() as made:
        one = await made.leader()
        await asyncio.gather(*[one.propose(b"k%d=x" % n) for n in range(2_000)])
        ledgers = set(await made.client("look").list_ledgers())
        writing = asyncio.ensure_future(one.snapshot())
        done = 0
        while not writing.done():
            await one.propose(b"a=%d" % done)
            done += 1
        assert done > 1
        first = await writing
        assert await one.snapshot() > first
        now = set(await made.client("look again").list_ledgers())
        assert len(now - ledgers) == 1, "the newest snapshot alone"


async def test_the_leader_takes_snapshots_by_itself() -> None:
    async with yard() as made:
        one = await made.leader(settings=replace(SETTINGS, snapshot_entries=50))
        await asyncio.gather(*[one.propose(b"k%d=x" % n) for n in range(60)])
        newest = None
        async with asyncio.timeout(PATIENCE_MS / 1000):
            while newest is None:
                await asyncio.sleep(0)
                newest = await one._snapshots.newest()
        assert newest.log_entries >= 50 and newest.rows >= 60


async def test_a_snapshot_of_an_older_epoch_is_not_named() -> None:
    async with yard() as made:
        one = await made.leader()
        await one.propose(b"a=1")
        await one.snapshot()
        before = await made.cluster.store.get("/logs/log/snapshot")
        await one._snapshots.claim(one.epoch + 1)
        await one.propose(b"a=2")
        ledgers = await made.client("look").list_ledgers()
        with pytest.raises(Deposed):
            await one.snapshot()
        after = await made.cluster.store.get("/logs/log/snapshot")
        assert before is not None and after is not None
        assert after.version == before.version + 1, "only the claim"
        assert await made.client("look again").list_ledgers() == ledgers, "nothing is left behind"


async def test_commands_of_a_new_level_wait_until_every_replica_knows_them() -> None:
    async with yard() as made:
        one = await made.leader("one", machine=Newer())
        old = await made.start("old")
        await old.wait_for(one.position)
        if one._applier.summary.level == 1:
            with pytest.raises(InvalidRequest, match="level 2"):
                one.propose(b"a=1", level=2)
        await old.close()
        await until(lambda: one._applier.summary.level == 2)
        await one.propose(b"a=1", level=2)
        late = await made.start("late")
        await until(lambda: late.role is Role.FAILED)
        assert "level 2" in str(late.failure)
        two = await made.start("two", machine=Newer())
        await two.wait_for(one.position)


async def test_a_replica_with_another_state_stops_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(applying, "HASH_EVERY", 20)
    async with yard() as made:
        one = await made.leader("one")
        two = await made.start("two", machine=Forgetful())
        for number in range(40):
            await one.propose(b"lost=%d" % number)
        await until(lambda: two.role is Role.FAILED)
        assert isinstance(two.failure, StateDiverged)
        with pytest.raises(StateDiverged):
            _value(two)
        await one.propose(b"a=1")


async def test_a_leader_whose_machine_fails_steps_down_for_good() -> None:
    async with yard() as made:
        one = await made.leader("one", machine=Failing())
        await one.propose(b"a=1")
        with pytest.raises(ReplicaFailed, match="not total"):
            await one.propose(b"bad=1")
        await until(lambda: one.role is Role.FAILED)
        two = await made.leader("two")
        assert await two.read(lambda rows: rows.get(A)) == b"1"


async def test_one_that_is_no_candidate_never_leads() -> None:
    async with yard() as made:
        one = await made.leader("one")
        two = await made.start("two", candidate=False)
        await one.propose(b"a=1")
        await two.wait_for(one.position)
        await one.close()
        with pytest.raises(NotLeader):
            await two.until_leading(LEASE_MS * 3)


async def test_alone_by_other_means_it_leads_at_once_and_goes_on_after_a_restart() -> None:
    async with yard() as made:
        one = await made.leader("one", elect=False)
        await one.propose(b"a=1")
        await one.close()
        again = await made.leader("again", elect=False)
        assert await again.read(lambda rows: rows.get(A)) == b"1"
        assert (await again.log.list()).leader is None
        assert await made.cluster.store.children(PROCESSES) == []


async def test_the_state_of_another_log_is_refused() -> None:
    async with yard() as made:
        state = _Kept()
        one = await made.leader("one", state=state)
        await one.propose(b"a=1")
        await one.close()
        with pytest.raises(FolderMismatch):
            await Replica.open(made.client("two"), "another", Register(), state)


async def test_a_lost_session_costs_the_registration_and_not_the_lead() -> None:
    async with yard() as made:
        one = await made.leader("one")
        assert await made.cluster.store.children("/logs/log/replicas") == ["one"]
        await made.cluster.store.delete("/logs/log/replicas/one")
        one._members._forget()
        listed: list[str] = []
        async with asyncio.timeout(PATIENCE_MS / 1000):
            while listed != ["one"]:
                listed = await made.cluster.store.children("/logs/log/replicas")
                await asyncio.sleep(0)
        assert one.role is Role.LEADER and one.epoch == 1


async def test_a_replica_tells_what_it_does_once_a_batch_and_no_more_when_it_is_closed() -> None:
    async with yard() as made:
        metrics = PrometheusMetrics()
        one = await made.leader("one", metrics=metrics)
        await asyncio.gather(*[one.propose(b"a=%d" % n) for n in range(500)])
        told = metrics.text().decode()
        assert 'herdbook_replica_leader{log="log"} 1.0' in told
        assert 'herdbook_replica_commands_total{log="log"} 501.0' in told
        assert 'herdbook_replica_batches_total{log="log"} 2.0' in told
        assert 'herdbook_replica_entries{log="log"} 501.0' in told
        await one.close()
        assert "herdbook_replica_leader{" not in metrics.text().decode()


class _Kept(MemoryState):
    """A state that is still there after it was closed, as a folder is."""

    async def close(self) -> None:
        return None
