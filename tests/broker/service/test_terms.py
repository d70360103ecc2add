"""Leaders that come and go: what the next one finds, and what nobody loses."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from broker.commands import Schedule, Spec
from broker.connection import Completion, Ended
from broker.errors import BrokerError, NotLeader
from broker.leading.firing import FIRED_A_TURN
from broker.leading.term import Term
from broker.machine import BrokerMachine
from broker.memory import MemoryReplica
from broker.service import Broker
from broker.settings import BrokerSettings, Limit
from broker.task import Mode, Status
from engine.errors import StateFailed
from engine.log.position import Position
from engine.replica import ReadRows
from engine.replica.settings import ReplicaSettings
from engine.state.memory import MemoryState
from tests.broker.service import yard
from tests.broker.service.clocks import LoopClock
from tests.broker.service.yard import CLIENT, LOG, SETTINGS, FakeWorker, opened, submitted
from tests.engine.ledger.scripted import Cluster
from tests.simulation.virtual import elapse, virtually

T = TypeVar("T")
REPLICA = ReplicaSettings(snapshot_entries=0, duties_ms=1_000, level_settle_ms=0, retry_pause_ms=5)


class _Three:
    """Three brokers on one log."""

    def __init__(self) -> None:
        self.brokers: dict[str, Broker] = {}

    async def leader(self, *without: str) -> Broker:
        """Who serves, when somebody does."""
        async with asyncio.timeout(30):
            while True:
                for name, broker in self.brokers.items():
                    if broker.serving and name not in without:
                        return broker
                await elapse(0.05)


@asynccontextmanager
async def three() -> AsyncIterator[_Three]:
    cluster, made = await Cluster.of(1), _Three()
    cluster.client_clock = LoopClock()
    for name in ("one", "two", "three"):
        client = cluster.client(replace(CLIENT, lease_ms=300), store=cluster.tree.session())
        made.brokers[name] = await Broker.open(
            client,
            MemoryState(),
            settings=SETTINGS,
            address=name,
            elect=True,
            replica_settings=REPLICA,
            log_settings=LOG,
        )
    try:
        yield made
    finally:
        for broker in made.brokers.values():
            await broker.close()


def test_the_next_leader_goes_on_with_everything() -> None:
    async def script() -> None:
        async with three() as made:
            first = await made.leader()
            await first.set("resource", "db", Limit(2))
            worker = await FakeWorker.connected(first, places=2)
            ids = await submitted(
                first, *[Spec("a", payload=b"%d" % n, attempts_max=0) for n in range(5)]
            )
            now_ms = first.term.time.now_ms()
            [later] = await submitted(first, Spec("b", due_ms=now_ms + 1_500))
            await submitted(first, Spec("b", slot="one", deadline_ms=now_ms + 100_000))
            runs = await worker.until_runs(2)
            await first.close()
            second = await made.leader()
            assert second is not first
            back = await FakeWorker.connected(
                second, places=8, running=tuple((run.id, run.attempt) for run in runs)
            )
            assert back.welcome is not None and len(back.welcome.keep) == 2
            await back.finish(*runs)
            rest = await back.until_runs(5)
            assert {run.id for run in rest if run.type == "a"} == set(ids[2:])
            assert [run.payload for run in rest if run.type == "a"] == [b"2", b"3", b"4"]
            assert later in {run.id for run in rest}
            await back.finish(*rest)
            assert second.term.scheduler.running == second.term.scheduler.waiting == 0
            assert {second.get(task_id).status for task_id in ids} == {Status.FINISHED}

    virtually(script())


def test_a_worker_that_did_not_come_back_is_lost_after_a_whole_lease_of_the_new_leader() -> None:
    async def script() -> None:
        async with three() as made:
            first = await made.leader()
            worker = await FakeWorker.connected(first)
            [task_id] = await submitted(first, Spec("a", mode=Mode.AT_MOST_ONCE))
            await worker.until_runs(1)
            await elapse(1.5)
            await first.close()
            second = await made.leader()
            await elapse(1.8)
            assert second.get(task_id).status is Status.RUNNING
            await elapse(0.8)
            assert second.get(task_id).status is Status.LOST

    virtually(script())


def test_followers_say_who_leads_and_workers_are_sent_there() -> None:
    async def script() -> None:
        async with three() as made:
            leader = await made.leader()
            follower = next(one for one in made.brokers.values() if one is not leader)
            with pytest.raises(NotLeader) as caught:
                await follower.submit([Spec("a")])
            assert caught.value.leader == leader.replica.address
            worker = await FakeWorker.connected(follower)
            assert worker.refused is not None
            assert worker.refused.leader == leader.replica.address

    virtually(script())


def test_who_waits_for_a_result_is_told_when_the_leader_goes() -> None:
    async def script() -> None:
        async with three() as made:
            leader = await made.leader()
            worker = await FakeWorker.connected(leader)
            [task_id] = await submitted(leader, Spec("a"))
            await worker.until_runs(1)
            waiting = asyncio.create_task(leader.wait(task_id))
            await elapse(0.01)
            await leader.replica.give_way(1_000)
            with pytest.raises(BrokerError):
                await waiting
            with pytest.raises(BrokerError):
                while True:
                    await worker.listen()

    virtually(script())


def test_a_completion_that_the_old_leader_did_not_log_is_told_again_to_the_new_one() -> None:
    async def script() -> None:
        async with three() as made:
            first = await made.leader()
            worker = await FakeWorker.connected(first)
            [task_id] = await submitted(first, Spec("a"))
            [run] = await worker.until_runs(1)
            await first.close()
            second = await made.leader()
            back = await FakeWorker.connected(second, running=((run.id, run.attempt),))
            await back.finish(run, result=b"late")
            task = await second.wait(task_id)
            assert second.result_of(task) == b"late"

    virtually(script())


def test_a_schedule_fires_once_for_each_due_time_whoever_leads() -> None:
    async def script() -> None:
        async with three() as made:
            leader = await made.leader()
            await leader.set_schedule(Schedule("tick", Spec("tick"), interval_ms=1_000))
            await elapse(3.2)
            await leader.close()
            second = await made.leader()
            known = second.term.firing.schedules["tick"]
            await elapse(2.0)
            known = second.term.firing.schedules["tick"]
            assert known.fired + known.skipped in (5, 6)
            assert second.term.counts[Status.WAITING] == known.fired

    virtually(script())


def test_what_a_schedule_missed_is_made_up_for_once_or_not_at_all() -> None:
    async def script() -> None:
        cluster, clock = await Cluster.of(1), LoopClock()
        state = MemoryState()
        async with opened(cluster=cluster, state=state, clock=clock) as broker:
            for name, catch_up in (("late", True), ("never", False)):
                schedule = Schedule(name, Spec("a"), cron="0 * * * *", catch_up=catch_up)
                await broker.set_schedule(schedule)
        clock.wall_start_ms += 5 * 3_600_000
        async with opened(cluster=cluster, clock=clock) as broker:
            await elapse(60.1)
            late = broker.term.firing.schedules["late"]
            never = broker.term.firing.schedules["never"]
            assert (late.fired, late.skipped) == (1, 4)
            assert (never.fired, never.skipped) == (0, 5)
            now_ms = broker.term.time.now_ms()
            assert now_ms < late.next_due_ms == never.next_due_ms <= now_ms + 3_600_000

    virtually(script())


def test_many_schedules_that_were_missed_are_fired_a_few_in_a_turn() -> None:
    async def script() -> None:
        cluster, clock = await Cluster.of(1), LoopClock()
        names = [f"s{number}" for number in range(3 * FIRED_A_TURN)]
        async with opened(cluster=cluster, state=MemoryState(), clock=clock) as broker:
            for name in names:
                await broker.set_schedule(Schedule(name, Spec("a"), cron="* * * * *"))
        clock.wall_start_ms += 12 * 3_600_000
        async with opened(cluster=cluster, clock=clock) as broker:
            fired: list[int] = []
            fire_all = broker.term.firing.fire_all

            def counted(names: Sequence[str]) -> None:
                fired.append(len(names))
                fire_all(names)

            broker.term.firing.fire_all = counted  # type: ignore[method-assign]
            await elapse(60.1)
            assert fired[-1] <= FIRED_A_TURN
            schedules = broker.term.firing.schedules
            assert {schedules[name].fired for name in names} == {1}

    virtually(script())


def test_a_task_has_waited_as_long_under_the_next_leader() -> None:
    async def script() -> None:
        async with three() as made:
            first = await made.leader()
            [early] = await submitted(first, Spec("a"))
            since_ms = first.get(early).created_ms
            await elapse(2.0)
            await submitted(first, Spec("a"), Spec("b"))
            await first.close()
            second = await made.leader()
            await elapse(1.0)
            waiting = {one.key.type: one for one in await second.queues()}
            assert (waiting["a"].length, waiting["a"].first_id) == (2, early)
            assert waiting["a"].since_ms == since_ms
            assert since_ms + 2_000 <= waiting["b"].since_ms < since_ms + 2_100
            assert second.term.counts[Status.WAITING] == 3

    virtually(script())


def test_what_ended_under_another_leader_is_not_counted_off() -> None:
    async def script() -> None:
        async with three() as made:
            first = await made.leader()
            worker = await FakeWorker.connected(first)
            ids = await submitted(first, *[Spec("a") for _ in range(3)])
            one, two, last = await worker.until_runs(3)
            await worker.finish(one, two)
            await worker.fail(last)
            await first.close()
            second = await made.leader()
            await second.delete(ids[:2])
            await second.retry(ids[2:])
            assert second.term.counts[Status.FINISHED] == second.term.counts[Status.ERROR] == 0
            assert second.term.counts[Status.WAITING] == 1

    virtually(script())


def test_paused_schedules_and_bad_ones() -> None:
    async def script() -> None:
        async with opened() as broker:
            await broker.set_schedule(Schedule("tick", Spec("a"), interval_ms=100))
            await broker.pause_schedule("tick")
            await elapse(1.0)
            assert broker.term.counts[Status.WAITING] == 0
            await broker.pause_schedule("tick", paused=False)
            await elapse(0.25)
            assert broker.term.counts[Status.WAITING] == 3
            tick = broker.term.firing.schedules["tick"]
            assert (tick.fired, tick.skipped) == (3, 9), "one for all that it missed, then two"
            await broker.delete_schedule("tick")
            for name, schedule in (
                ("cron", Schedule("x", Spec("a"), cron="61 * * * *")),
                ("zone", Schedule("x", Spec("a"), cron="0 * * * *", zone="Rome")),
                ("neither", Schedule("x", Spec("a"))),
            ):
                with pytest.raises(BrokerError):
                    await broker.set_schedule(schedule)
                assert not broker.term.firing.schedules, name
            for call in (broker.delete_schedule, broker.pause_schedule):
                with pytest.raises(BrokerError, match="no schedule"):
                    await call("tick")

    virtually(script())


def test_a_wall_clock_that_jumps_moves_no_timer() -> None:
    async def script() -> None:
        clock = LoopClock()
        async with opened(clock=clock) as broker:
            worker = await FakeWorker.connected(broker)
            due_ms = broker.term.time.now_ms() + 1_000
            await submitted(broker, Spec("a", due_ms=due_ms))
            clock.wall_start_ms += 3_600_000
            await elapse(0.5)
            assert not worker.link._said
            clock.wall_start_ms -= 7_200_000
            [run] = await worker.until_runs(1)
            assert broker.term.time.jumps == 2
            await worker.tell(Completion(run.id, run.attempt, Ended.FINISHED))

    virtually(script())


def test_a_leader_that_gives_way_leaves_nothing_unknown() -> None:
    async def script() -> None:
        async with three() as made:
            first = await made.leader()
            worker = await FakeWorker.connected(first, places=5)
            ids = await submitted(first, *[Spec("a") for _ in range(5)])
            runs = await worker.until_runs(5)
            last = asyncio.create_task(submitted(first, Spec("b")))
            telling = asyncio.create_task(worker.finish(*runs[:4]))
            await asyncio.sleep(0)
            await first.give_way()
            ids += await last
            await telling
            second = await made.leader()
            back = await FakeWorker.connected(second, running=((runs[4].id, 1),))
            assert back.welcome is not None and back.welcome.keep == ((runs[4].id, 1),)
            await back.finish(runs[4], *await back.until_runs(1))
            assert {second.get(task_id).status for task_id in ids} == {Status.FINISHED}

    virtually(script())


async def test_a_broker_whose_replica_has_failed_tells_everybody_who_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        [task_id] = await submitted(broker, Spec("a"))
        await worker.until_runs(1)
        waiting = asyncio.create_task(broker.wait(task_id))
        await asyncio.sleep(0)

        def broken(*_: object) -> bytes:
            raise ArithmeticError("a defect")

        monkeypatch.setattr(broker.machine, "apply", broken)
        with pytest.raises(BrokerError):
            await submitted(broker, Spec("a"))
        with pytest.raises(BrokerError):
            await waiting
        with pytest.raises(BrokerError):
            while True:
                await worker.listen()
        with pytest.raises(BrokerError):
            broker.get(task_id)


def test_an_opening_takes_as_long_as_there_are_tasks_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = Term.build

    async def slow(term: Term) -> None:
        await elapse(5.0)
        await build(term)

    async def script() -> None:
        monkeypatch.setattr(Term, "build", slow)
        monkeypatch.setattr(yard, "REPLICA", replace(yard.REPLICA, stall_ms=1_000))
        async with opened() as broker:
            assert broker.serving

    virtually(script())


def test_a_term_that_could_not_begin_for_once_begins_at_the_next_try() -> None:
    class Faulty(MemoryReplica):
        failures = 1

        def stale_read(self, look: Callable[[ReadRows], T]) -> tuple[T, Position]:
            if self.failures:
                self.failures -= 1
                raise StateFailed("the disk could not read, once")
            return super().stale_read(look)

    async def script() -> None:
        machine = BrokerMachine()
        broker = Broker(LoopClock(), random.Random(1), machine, BrokerSettings())
        replica = Faulty(machine)
        broker.start(replica)
        await broker.until_serving(1_000)
        assert not replica.failures and await broker.submit([Spec("a")]) == [1]
        await broker.close()

    virtually(script())
