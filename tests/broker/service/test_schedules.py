"""Schedules that are paused, resumed, redeclared, or not understood, across changes of leader."""

from typing import Any

import pytest

from broker.commands import Schedule, SchedulePause, ScheduleSet, Spec
from broker.errors import BrokerError, InvalidTask
from broker.leading import cron
from broker.leading.firing import NEVER_MS
from broker.memory import MemoryBroker
from broker.reading import TaskFilter
from broker.service import Broker
from broker.task import Status
from engine.metadata.bookies import Registration
from tests.broker.service.clocks import LoopClock
from tests.broker.service.yard import opened
from tests.engine.ledger.scripted import Cluster
from tests.simulation.virtual import elapse, virtually

FIVE_MS = 300_000
NIGHTLY = "*/5 * * * *"


def _known(broker: Broker, name: str = "nightly") -> Schedule:
    return broker.term.firing.schedules[name]


class _Zones:
    """A machine that may lose its time zones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.missing = False
        found = cron._zone

        def zone(name: str) -> Any:
            if self.missing:
                raise InvalidTask(f"there is no time zone {name!r}")
            return found(name)

        monkeypatch.setattr(cron, "_zone", zone)


async def test_a_schedule_with_a_missing_time_zone_stays_due_until_a_leader_knows_the_zone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    zones = _Zones(monkeypatch)
    async with MemoryBroker() as memory:
        broker = memory.broker
        schedule = Schedule("nightly", Spec("backup"), cron=NIGHTLY, zone="Europe/Rome")
        await broker.set_schedule(schedule)
        await broker.set_schedule(Schedule("other", Spec("b"), interval_ms=FIVE_MS))
        await memory.advance(2 * FIVE_MS)
        zones.missing = True
        await memory.advance(3 * FIVE_MS)
        assert (_known(broker).fired, _known(broker, "other").fired) == (2, 5)
        due_ms = _known(broker).next_due_ms
        assert due_ms < memory.clock.wall_ms()
        troubles = {each.name: each.trouble for each in await memory.tasks.schedules()}
        assert troubles == {"nightly": "there is no time zone 'Europe/Rome'", "other": ""}
        said = [each for each in caplog.messages if "schedule nightly" in each]
        assert len(said) == 1 and "it stays due" in said[0]
        zones.missing = False
        await memory.advance(FIVE_MS)
        known = _known(broker)
        assert (known.fired, known.skipped) == (4, 2), "one made up for, then the next one"
        assert {each.trouble for each in await memory.tasks.schedules()} == {""}


def test_a_schedule_waits_for_room_on_a_full_disk_and_fires_once_for_all_missed_times() -> None:
    async def script() -> None:
        cluster = await Cluster.of(1)
        async with opened(cluster=cluster) as broker:
            for name, catch_up in (("nightly", True), ("often", False)):
                await broker.set_schedule(
                    Schedule(name, Spec("backup"), cron="* * * * *", catch_up=catch_up)
                )
            assert broker._capacity is not None
            full = Registration("b0", 1, writable=False)
            broker._capacity.note({"b0": full})
            await elapse(190)
            statuses = await broker.schedules()
            assert len(statuses) == 2 and all("full disks" in each.trouble for each in statuses)
            assert not (await broker.tasks(TaskFilter())).tasks
            broker._capacity.note({"b0": Registration("b0", 2)})
            await elapse(2)
            assert {each.trouble for each in await broker.schedules()} == {""}
            nightly, often = _known(broker), _known(broker, "often")
            assert nightly.fired == 1 and nightly.skipped >= 2
            assert often.fired == 0 and often.skipped == nightly.skipped + 1

    virtually(script())


def test_a_later_leader_that_knows_the_time_zone_fires_what_was_left_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zones = _Zones(monkeypatch)

    async def script() -> None:
        cluster = await Cluster.of(1)
        async with opened(cluster=cluster) as broker:
            schedule = Schedule("nightly", Spec("backup"), cron="* * * * *", zone="Europe/Rome")
            await broker.set_schedule(schedule)
            zones.missing = True
            await elapse(130)
            assert _known(broker).fired == 0 and _known(broker).next_due_ms < NEVER_MS
            for paused in (True, False):
                await broker.pause_schedule("nightly", paused=paused)
        zones.missing = False
        async with opened(cluster=cluster) as broker:
            await elapse(1)
            assert _known(broker).fired == 1 and _known(broker).skipped >= 1

    virtually(script())


def test_a_schedule_that_an_older_version_has_ended_fires_again() -> None:
    async def script() -> None:
        cluster = await Cluster.of(1)
        async with opened(cluster=cluster) as broker:
            await broker.set_schedule(Schedule("nightly", Spec("backup"), cron="* * * * *"))
            await broker.set_schedule(Schedule("paused", Spec("backup"), cron="* * * * *"))
            await broker.pause_schedule("paused")
            for name in ("nightly", "paused"):
                due_ms = _known(broker, name).next_due_ms
                command = SchedulePause(name, name == "paused", NEVER_MS, "", due_ms - 5)
                await broker.ask(command)
            await elapse(2)
        async with opened(cluster=cluster) as broker:
            await elapse(120)
            assert _known(broker).fired >= 1 and _known(broker).next_due_ms < NEVER_MS
            assert _known(broker, "paused").fired == 0

    virtually(script())


@pytest.mark.parametrize("catch_up", [False, True])
@pytest.mark.parametrize("resumed", [False, True])
async def test_resuming_a_due_schedule_drops_nothing(resumed: bool, catch_up: bool) -> None:
    async with MemoryBroker() as memory:
        broker = memory.broker
        schedule = Schedule("nightly", Spec("backup"), cron="0 3 * * *", catch_up=catch_up)
        await broker.set_schedule(schedule)
        due_ms = _known(broker).next_due_ms
        # Due by five ms: the loop was busy.
        memory.clock._passed_ms = due_ms - memory.clock._start_ms + 5
        if resumed:
            before = _known(broker)
            await broker.pause_schedule("nightly", paused=False, by="ann")
            assert _known(broker) == before
        await memory.advance(1_000)
        known = _known(broker)
        assert (known.fired, known.skipped, known.next_due_ms) == (1, 0, due_ms + 86_400_000)


@pytest.mark.parametrize(("catch_up", "fired", "skipped"), [(True, 1, 2), (False, 0, 3)])
async def test_a_resumed_schedule_handles_missed_times_by_its_rule(
    catch_up: bool, fired: int, skipped: int
) -> None:
    async with MemoryBroker() as memory:
        broker = memory.broker
        schedule = Schedule("nightly", Spec("backup"), cron="0 3 * * *", catch_up=catch_up)
        await broker.set_schedule(schedule)
        for _ in range(2):
            await broker.pause_schedule("nightly")
        memory.clock._passed_ms += 3 * 86_400_000
        assert (_known(broker).fired, _known(broker).skipped) == (0, 0)
        for _ in range(2):
            await broker.pause_schedule("nightly", paused=False)
        await memory.advance(1_000)
        known = _known(broker)
        assert (known.fired, known.skipped) == (fired, skipped)
        assert known.next_due_ms > memory.clock.wall_ms()


def test_pause_and_resume_fire_no_due_time_twice_while_some_replica_is_older(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script() -> None:
        async with opened() as broker:
            monkeypatch.setattr(type(broker.replica), "command_level", 1)
            proposed: list[Any] = []
            ask = broker.ask

            async def asked(command: Any) -> bytes:
                proposed.append(command)
                return await ask(command)

            monkeypatch.setattr(broker, "ask", asked)
            await broker.set_schedule(Schedule("tick", Spec("a"), interval_ms=1_000))
            await elapse(1.5)
            for paused, lasts_s in ((False, 0.0), (True, 3.0), (True, 0.0), (False, 1.0)):
                await broker.pause_schedule("tick", paused=paused)
                await elapse(lasts_s)
            pauses = [each for each in proposed if isinstance(each, SchedulePause)]
            assert [each.paused for each in pauses] == [True, False]
            assert not any(each.keep_due for each in pauses)
            assert not any(each.count_due for each in proposed if isinstance(each, ScheduleSet))
            known = _known(broker, "tick")
            assert (known.fired, known.skipped) == (3, 2)
            assert broker.term.counts[Status.WAITING] == 3
            transaction = await broker.begin()
            await broker.submit([Spec("a")] * 5, transaction=transaction)
            assert await broker.commit(transaction) == 5
            with pytest.raises(BrokerError):
                await broker.commit(transaction)

    virtually(script())


def test_a_due_schedule_with_another_rhythm_counts_what_it_drops() -> None:
    async def script() -> None:
        clock = LoopClock()
        async with opened(clock=clock) as broker:
            await elapse(2)
            await broker.set_schedule(Schedule("tick", Spec("a"), interval_ms=1_000))
            # The loop is busy past the due time.
            clock.ahead_s += 1.5
            await broker.set_schedule(Schedule("tick", Spec("a"), interval_ms=60_000))
            assert (_known(broker, "tick").fired, _known(broker, "tick").skipped) == (0, 1)

    virtually(script())


def test_a_code_pool_that_a_schedule_names_is_kept_after_it_expires() -> None:
    async def script() -> None:
        async with opened() as broker:
            await elapse(2)
            await broker.put_code("nightly", b"code", ttl_ms=30_000)
            await broker.put_code("unused", b"code", ttl_ms=30_000)
            spec = Spec("backup", codepool="nightly", retention_ms=0)
            await broker.set_schedule(Schedule("nightly", spec, interval_ms=100_000))
            await elapse(250)
            assert (_known(broker).fired, _known(broker).refused) == (2, 0)
            assert [pool.name for pool in await broker.code_pools()] == ["nightly"]
            [refused] = await broker.submit([spec])
            assert getattr(refused, "code", "") == "unknown_code_pool", "it is for the schedule"
            for task in (await broker.tasks(TaskFilter(), 0, 10)).tasks:
                await broker.cancel([task.id])
            with pytest.raises(BrokerError, match="schedule nightly needs code pool nightly"):
                await broker.delete_code("nightly")
            await broker.delete_schedule("nightly")
            await elapse(120)
            assert await broker.code_pools() == []

    virtually(script())


async def test_a_commit_is_seen_whole_as_soon_as_it_is_answered() -> None:
    async with MemoryBroker() as memory:
        broker = memory.broker
        transaction = await broker.begin()
        ids: list[Any] = []
        for count in (1_000, 1_000, 500):
            ids += await broker.submit([Spec("a")] * count, transaction=transaction)
        assert await broker.commit(transaction) == 2_500
        assert {broker.get(each).status for each in ids} == {Status.WAITING}
        assert [answer.name for answer in await broker.cancel([ids[-1]])] == ["DONE"]
        await memory.settled()
        assert broker.term.counts[Status.WAITING] == 2_499
        assert broker.term.counts[Status.PREPARED] == 0
        other = await broker.begin()
        more: list[Any] = []
        more += await broker.submit([Spec("a", slot="s")] + [Spec("a")] * 999, transaction=other)
        more += await broker.submit([Spec("a", slot="t")], transaction=other)
        assert await broker.rollback(other) == 1_001
        again = await broker.submit([Spec("b", slot="s"), Spec("b", slot="t")])
        assert all(isinstance(each, int) for each in again)
        with pytest.raises(BrokerError):
            broker.get(more[-1])
