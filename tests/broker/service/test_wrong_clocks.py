"""Leaders whose wall clocks are wrong, one after the other, with an oracle of the good time."""

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broker import machine, schedules_rows
from broker.applying import Step
from broker.commands import Fire, Refusal, Schedule, Spec, decode_one
from broker.leading.cron import next_cron_ms
from broker.service import Broker
from broker.task import Backoff, Status
from tests.broker.service.clocks import LoopClock
from tests.broker.service.yard import FakeWorker, opened, submitted
from tests.engine.ledger.scripted import Cluster
from tests.simulation.virtual import elapse, virtually

WALL_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def _ahead_ms(broker: Broker, clock: LoopClock) -> int:
    return broker.term.time.now_ms() - clock.wall_ms()


def test_a_leader_whose_clock_is_briefly_a_day_ahead_purges_no_task() -> None:
    async def script() -> None:
        cluster = await Cluster.of(1)
        async with opened(cluster=cluster, clock=LoopClock()) as broker:
            worker = await FakeWorker.connected(broker)
            [ended] = await submitted(broker, Spec("a", retention_ms=DAY_MS // 2))
            [run] = await worker.until_runs(1)
            await worker.finish(run)
            await elapse(2)
        async with opened(cluster=cluster, clock=LoopClock(WALL_MS + DAY_MS)) as broker:
            await elapse(15)
            await submitted(broker, Spec("x"))
        async with opened(cluster=cluster, clock=LoopClock()) as broker:
            await elapse(2)
            assert broker.get(ended).status is Status.FINISHED

    virtually(script())


def test_a_leader_whose_clock_is_briefly_a_day_ahead_ends_no_task_and_leaves_no_trace() -> None:
    async def script() -> None:
        cluster = await Cluster.of(1)
        async with opened(cluster=cluster, clock=LoopClock()) as broker:
            now_ms = broker.term.time.now_ms()
            [later, dead] = await submitted(
                broker,
                Spec("tomorrow", due_ms=now_ms + DAY_MS // 2),
                Spec("by tonight", deadline_ms=now_ms + DAY_MS // 2),
            )
            await elapse(2)
        async with opened(cluster=cluster, clock=LoopClock(WALL_MS + DAY_MS)) as broker:
            worker = await FakeWorker.connected(broker)
            await elapse(2)
            await submitted(broker, Spec("x"))
            assert broker.get(later).status is Status.DELAYED
            assert broker.get(dead).status is Status.WAITING
            assert broker.term.withheld == {dead} and broker.check_memory() == []
            assert [run.type for run in await worker.until_runs(1)] == ["x"]
        for _ in range(3):
            clock = LoopClock()
            async with opened(cluster=cluster, clock=clock) as broker:
                await elapse(2)
                await submitted(broker, Spec("x"))
                assert abs(_ahead_ms(broker, clock)) < 100
                assert broker.get(later).status is Status.DELAYED
                assert broker.get(dead).status is Status.WAITING

    virtually(script())


def test_a_leader_asks_the_metadata_stores_server_before_it_believes_its_own_clock() -> None:
    async def script() -> None:
        cluster, server = await Cluster.of(1), LoopClock()
        async with opened(cluster=cluster, clock=LoopClock()) as broker:
            await submitted(broker, Spec("x"))
            await elapse(2)
        for days in (1, -1, 1):
            clock = LoopClock(WALL_MS + days * DAY_MS)
            async with opened(cluster=cluster, clock=clock, server=server) as broker:
                await elapse(700)
                assert abs(_ahead_ms(broker, server)) < 1_000
        # An outage of a day is confirmed, so nothing waits.
        clock, server = LoopClock(WALL_MS + DAY_MS), LoopClock(WALL_MS + DAY_MS)
        async with opened(cluster=cluster, clock=clock, server=server) as broker:
            assert abs(_ahead_ms(broker, server)) < 1_000 and not broker.term.time.doubtful

    virtually(script(), until_s=10_000.0)


def test_a_store_that_an_older_version_left_ahead_is_set_back_after_ten_minutes() -> None:
    async def script() -> None:
        cluster, clock = await Cluster.of(1), LoopClock()
        async with opened(cluster=cluster, clock=LoopClock(WALL_MS + DAY_MS)) as broker:
            now_ms = broker.term.time.now_ms()
            [dead] = await submitted(broker, Spec("x", deadline_ms=now_ms + 120_000))
            [young] = await submitted(broker, Spec("y", deadline_ms=now_ms + HOUR_MS))
            await elapse(2)
        async with opened(cluster=cluster, clock=clock) as broker:
            assert _ahead_ms(broker, clock) > DAY_MS - 10_000
            await elapse(590)
            assert broker.get(dead).status is Status.WAITING, "its time has not come by any clock"
            await elapse(60)
            assert abs(_ahead_ms(broker, clock)) < 1_000
            assert broker.get(dead).status is broker.get(young).status is Status.WAITING

    virtually(script())


def test_a_clock_that_is_corrected_while_its_machine_leads_is_followed_after_ten_minutes() -> None:
    async def script() -> None:
        for days in (1, -1):
            cluster, clock = await Cluster.of(1), LoopClock()
            async with opened(cluster=cluster, clock=clock) as broker:
                worker = await FakeWorker.connected(broker)
                [task_id] = await submitted(broker, Spec("x"))
                [run] = await worker.until_runs(1)
                await elapse(2)
                clock.wall_start_ms += days * DAY_MS
                term, beats = broker.term, 0
                while broker.term is term:
                    await worker.beat()
                    await elapse(1)
                    beats += 1
                assert 590 < beats < 620 and abs(_ahead_ms(broker, clock)) < 1_000
                again = await FakeWorker.connected(broker, running=((task_id, run.attempt),))
                await again.finish(run)
                assert broker.get(task_id).status is Status.FINISHED

    virtually(script())


@asynccontextmanager
async def _an_hour_behind() -> AsyncIterator[Broker]:
    """A leader whose clock is an hour behind the clock of the leader before it."""
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster, clock=LoopClock(WALL_MS + HOUR_MS)) as broker:
        await submitted(broker, Spec("x"))
        await elapse(2)
    async with opened(cluster=cluster, clock=LoopClock()) as broker:
        yield broker


def test_a_task_that_comes_to_its_deadline_in_a_queue_is_not_ended_while_that_is_in_doubt() -> None:
    async def script() -> None:
        async with _an_hour_behind() as broker:
            now_ms = broker.term.time.now_ms()
            specs = [Spec("y", deadline_ms=now_ms + after_ms) for after_ms in (5_000, 60_000)]
            late, other = await submitted(broker, *specs)
            await elapse(10)
            assert broker.term.withheld == {late} and broker.check_memory() == []
            worker = await FakeWorker.connected(broker, types=("y",))
            assert [run.id for run in await worker.until_runs(1)] == [other]
            await elapse(1)
            assert broker.get(late).status is Status.WAITING
            assert [int(answer) for answer in await broker.cancel([late])] == [1]
            assert not broker.term.withheld and broker.check_memory() == []

    virtually(script())


def test_a_leader_whose_clock_is_an_hour_behind_retries_as_soon_as_any_other() -> None:
    async def script() -> None:
        async with _an_hour_behind() as broker:
            assert broker.term.time.doubtful
            worker = await FakeWorker.connected(broker, types=("retried",))
            backoff = Backoff(1_000, jitter_percent=0)
            now_ms = broker.term.time.now_ms()
            [dated] = await submitted(broker, Spec("dated", due_ms=now_ms + 1_000))
            [task_id] = await submitted(broker, Spec("retried", attempts_max=9, backoff=backoff))
            [run] = await worker.until_runs(1)
            await worker.fail(run)
            transaction = await broker.begin(ttl_ms=1_000)
            assert broker.get(task_id).status is Status.DELAYED and broker.check_memory() == []
            await elapse(1.5)
            [again] = await worker.until_runs(1)
            assert (again.id, again.attempt) == (task_id, 2)
            assert transaction not in [each.id for each in await broker.transactions()]
            assert broker.get(dated).status is Status.DELAYED, "no other clock says that it is due"
            assert broker.check_memory() == []

    virtually(script())


def test_a_retry_and_a_schedule_that_began_in_a_wrong_time_go_on_in_the_right_one() -> None:
    async def script() -> None:
        cluster = await Cluster.of(1)
        often = Schedule("often", Spec("tick"), interval_ms=60_000)
        retried = Spec("retried", attempts_max=9, backoff=Backoff(5_000, jitter_percent=0))
        async with opened(cluster=cluster, clock=LoopClock()) as broker:
            await broker.set_schedule(often)
            await elapse(61)
        async with opened(cluster=cluster, clock=LoopClock(WALL_MS + DAY_MS)) as broker:
            worker = await FakeWorker.connected(broker, types=("retried",))
            [task_id] = await submitted(broker, retried)
            [run] = await worker.until_runs(1)
            for _ in range(61):
                await worker.beat()
                await elapse(1)
            await worker.fail(run)
            transaction = await broker.begin(ttl_ms=5_000)
            assert broker.term.firing.schedules["often"].next_due_ms > WALL_MS + DAY_MS
        async with opened(cluster=cluster, clock=LoopClock()) as broker:
            await elapse(6)
            assert broker.get(task_id).status is Status.WAITING
            assert transaction not in [each.id for each in await broker.transactions()]
            before = broker.term.firing.schedules["often"]
            await elapse(181)
            after = broker.term.firing.schedules["often"]
            assert after.fired - before.fired >= 2 and after.next_due_ms < WALL_MS + HOUR_MS

    virtually(script())


class _Fired:
    """The tasks that each due time has made, whoever applies the log and how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tasks: defaultdict[int, set[int]] = defaultdict(set)

        def heard(step: Step, wanted: Fire) -> bytes:
            answer = schedules_rows.fire(step, wanted)
            made = decode_one(answer)
            if isinstance(made, int) and made:
                self.tasks[wanted.due_ms].add(made)
            return answer

        monkeypatch.setitem(machine._APPLY, Fire, heard)


OFFSETS_MS = (0, 0, 120_000, -120_000, 3 * HOUR_MS, -3 * HOUR_MS, DAY_MS, -DAY_MS, 5 * DAY_MS)


class _History:
    """Drawn leaders over one log, and tasks whose ends are watched by the good time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.good = LoopClock()
        self.deadlines: dict[int, int] = {}
        self.dues: dict[int, int] = {}

    async def submit(self, broker: Broker) -> None:
        """Tasks whose moments are given by the good clock."""
        now_ms = self.good.wall_ms()
        for _ in range(3):
            after_ms = self.rng.choice((30_000, 400_000, HOUR_MS, 12 * HOUR_MS, 3 * DAY_MS))
            if self.rng.random() < 0.5:
                spec, kept = Spec("d", deadline_ms=now_ms + after_ms), self.deadlines
            else:
                spec, kept = Spec("l", due_ms=now_ms + after_ms), self.dues
            [answer] = await broker.submit([spec])
            if not isinstance(answer, Refusal):
                kept[answer] = now_ms + after_ms
                # Only by the time of a leader that is ahead it may have been due at once.
                if broker.get(answer).status is Status.WAITING:
                    self.dues.pop(answer, None)

    def ended_early(self, broker: Broker) -> set[int]:
        """Tasks that were ended, or let go, before their time by the good clock."""
        now_ms = self.good.wall_ms()
        early = {
            task_id
            for task_id, at_ms in self.deadlines.items()
            if now_ms < at_ms - 1_000 and broker.get(task_id).status is not Status.WAITING
        }
        return early | {
            task_id
            for task_id, at_ms in self.dues.items()
            if now_ms < at_ms - 1_000 and broker.get(task_id).status is not Status.DELAYED
        }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("served", [False, True])
def test_good_clocks_correct_the_time_after_any_wrong_clock_of_a_leader(
    seed: int, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired = _Fired(monkeypatch)

    async def script() -> None:
        history, cluster = _History(2 * seed + served), await Cluster.of(1)
        rng, forgiven = history.rng, set[int]()
        server = LoopClock() if served else None
        async with opened(cluster=cluster, clock=LoopClock(), server=server) as broker:
            await broker.set_schedule(Schedule("often", Spec("tick"), cron="*/7 * * * *"))
            start_ms = history.good.wall_ms()
            await history.submit(broker)
            await elapse(700)
        for _ in range(rng.randint(1, 4)):
            offset_ms, lasts_s = rng.choice(OFFSETS_MS), rng.choice((2, 50, 300, 900))
            clock = LoopClock(WALL_MS + offset_ms)
            async with opened(cluster=cluster, clock=clock, server=server) as broker:
                await history.submit(broker)
                for _ in range(lasts_s // 2):
                    await elapse(2)
                    if offset_ms <= 0 or served:
                        assert history.ended_early(broker) <= forgiven
                if served or lasts_s <= 50:
                    assert history.ended_early(broker) <= forgiven, (offset_ms, lasts_s)
                forgiven |= history.ended_early(broker)
        for _ in range(2):
            async with opened(cluster=cluster, clock=LoopClock(), server=server) as broker:
                await history.submit(broker)
                for _ in range(450):
                    await elapse(2)
                    assert history.ended_early(broker) <= forgiven
        assert {len(made) for made in fired.tasks.values()} == {1}, "no due time fires twice"
        async with opened(cluster=cluster, clock=LoopClock(), server=server) as broker:
            assert abs(_ahead_ms(broker, history.good)) <= 61_000
            often = broker.term.firing.schedules["often"]
            passed = _moments(start_ms, history.good.wall_ms() - 61_000)
            assert often.fired + often.skipped >= passed
            _check_happened(broker, history)

    virtually(script(), until_s=10_000.0)


def _moments(start_ms: int, end_ms: int) -> int:
    """How often the schedule was due from one moment to another by the good clock."""
    count = 0
    while (due_ms := next_cron_ms("*/7 * * * *", "UTC", start_ms) or end_ms + 1) <= end_ms:
        start_ms, count = due_ms, count + 1
    return count


def _check_happened(broker: Broker, history: _History) -> None:
    """What is due by the good clock has happened."""
    now_ms = history.good.wall_ms()
    for task_id, at_ms in history.dues.items():
        if at_ms < now_ms - 120_000:
            assert broker.get(task_id).status is not Status.DELAYED
