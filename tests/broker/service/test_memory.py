"""The broker for tests of programs that use one."""

import pytest

from broker.errors import TaskFailed
from broker.memory import MemoryBroker
from broker.task import Backoff, Status
from broker.worker import Registry, TaskContext, TryLater, task

REGISTRY = Registry()


@task(registry=REGISTRY)
async def double(number: int) -> int:
    return 2 * number


@task(registry=REGISTRY, attempts_max=3, backoff=Backoff(first_ms=1_000, jitter_percent=0))
def third_time(context: TaskContext) -> int:
    if context.attempt < 3:
        raise ValueError("not yet")
    return context.attempt


@task(registry=REGISTRY, at_most_once=True)
def once() -> None:
    raise ValueError("once and no more")


@task(registry=REGISTRY, attempts_max=2)
def patient() -> None:
    raise TryLater("too soon", after_ms=5_000)


async def test_tasks_run_when_the_test_says_so_and_time_passes_when_it_says_so() -> None:
    async with MemoryBroker(registry=REGISTRY) as broker:
        now = await broker.tasks.submit(double, {"number": 4})
        later = await broker.tasks.submit(double, {"number": 5}, delay_ms=60_000)
        assert (await now.get()).status is Status.WAITING
        assert await broker.run_waiting() == 1
        assert await now.wait() == 8
        await broker.advance(59_999)
        assert await broker.run_waiting() == 0
        await broker.advance(1)
        assert await broker.run_waiting() == 1
        assert await later.wait() == 10


async def test_retries_follow_the_clock_of_the_test() -> None:
    async with MemoryBroker(registry=REGISTRY) as broker:
        handle = await broker.tasks.submit(third_time)
        assert await broker.run_waiting() == 1
        await broker.advance(1_000)
        assert await broker.run_waiting() == 1
        await broker.advance(1_999)
        assert await broker.run_waiting() == 0
        await broker.advance(1)
        assert await broker.run_waiting() == 1
        assert await handle.wait() == 3
        slow = await broker.tasks.submit(patient)
        await broker.run_waiting()
        await broker.advance(4_999)
        assert (await slow.get()).status is Status.DELAYED
        await broker.advance(1)
        assert (await slow.get()).status is Status.WAITING


async def test_failures_are_the_errors_that_a_user_sees() -> None:
    async with MemoryBroker(registry=REGISTRY) as broker:
        handle = await broker.tasks.submit(once)
        unknown = await broker.tasks.submit("nobody")
        await broker.run_waiting(places=10)
        with pytest.raises(TaskFailed, match="once and no more"):
            await handle.wait()
        with pytest.raises(TaskFailed, match="no function"):
            await unknown.wait()


async def test_schedules_and_deadlines_follow_the_clock_of_the_test() -> None:
    async with MemoryBroker(registry=REGISTRY) as broker:
        await broker.tasks.schedule("hourly", double, {"number": 1}, cron="0 * * * *")
        expiring = await broker.tasks.submit(double, {"number": 1}, timeout_ms=1_000)
        await broker.advance(1_000)
        assert (await expiring.get()).error == "deadline_expired"
        await broker.advance(3 * 3_600_000)
        assert await broker.run_waiting() == 3
        [schedule] = await broker.tasks.schedules()
        assert (schedule.fired, schedule.skipped) == (3, 0)


async def test_the_same_calls_do_the_same_in_every_run() -> None:
    found = []
    for _ in range(2):
        async with MemoryBroker(registry=REGISTRY) as broker:
            for number in range(20):
                await broker.tasks.submit(double, {"number": number}, priority=number % 3)
            await broker.run_waiting(places=3)
            page = await broker.tasks.list()
            found.append([(one.id, one.finished_ms, one.events) for one in page.tasks])
    assert found[0] == found[1]
