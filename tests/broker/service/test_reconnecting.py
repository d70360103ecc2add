"""Connects that are cut short, links that break at the wrong moment, bursts for many workers."""

import asyncio
from typing import Any

from msgspec.structs import replace

from broker.commands import Spec
from broker.connection import Completion, Done, Ended
from broker.leading.dispatching import Dispatching
from broker.task import Mode, Status
from tests.broker.service.yard import FakeWorker, opened, submitted
from tests.simulation.virtual import elapse, virtually


async def _cut_short(worker: FakeWorker, *running: tuple[int, int]) -> None:
    """Connect again, and go away before the answer."""
    hello = replace(worker.hello, running=running)
    connecting = asyncio.create_task(worker.broker.connect(hello))
    await asyncio.sleep(0)
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)


def test_a_connect_that_is_cut_short_keeps_no_task_for_ever() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            [task_id] = await submitted(broker, Spec("a", attempts_max=3))
            [run] = await worker.until_runs(1)
            await _cut_short(worker, (run.id, run.attempt))
            await elapse(2.5)
            assert broker.get(task_id).status is not Status.RUNNING
            assert broker.term.scheduler.running == 0 and not list(broker.term.crew)

    virtually(script())


def test_a_first_connect_that_is_cut_short_leaves_no_worker() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker, "other")
            worker.hello = replace(worker.hello, worker_id="new")
            await _cut_short(worker)
            await elapse(2.5)
            assert not [one for one in broker.term.crew if one.worker_id == "new"]

    virtually(script())


def test_an_end_that_was_told_and_not_logged_is_taken_back_with_its_session() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            [task_id] = await submitted(broker, Spec("a", attempts_max=3))
            [run] = await worker.until_runs(1)
            broker.term.completing.take = lambda link, done: None  # type: ignore[method-assign]
            ends = [Completion(run.id, run.attempt, Ended.FINISHED)]
            await worker.link.send([Done(worker.next(), worker.session, ends)])
            await elapse(2.5)
            assert broker.get(task_id).status is not Status.RUNNING

    virtually(script())


async def test_what_was_on_its_way_when_the_link_broke_never_began() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        again: list[asyncio.Task[FakeWorker]] = []
        begun = asyncio.Event()
        log = broker.term.dispatching._log

        def break_then(taken: Any, now_ms: int) -> None:
            log(taken, now_ms)
            if not again:
                again.append(asyncio.create_task(FakeWorker.connected(broker)))
                begun.set()

        broker.term.dispatching._log = break_then  # type: ignore[method-assign]
        ids = await submitted(broker, Spec("a"), Spec("a", mode=Mode.AT_MOST_ONCE))
        async with asyncio.timeout(5):
            await begun.wait()
            back = await again[0]
            runs = await back.until_runs(2)
            await back.finish(*runs)
        assert worker.runs == []
        assert {broker.get(task_id).status for task_id in ids} == {Status.FINISHED}


async def test_a_session_that_the_log_does_not_know_ends_and_is_not_tried_for_ever() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        member = broker.term.crew.get("worker")
        assert member is not None
        member.session += 7
        rounds = _counted(broker.term.dispatching)
        await submitted(broker, Spec("a"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not worker.link.open and len(rounds) < 5


def _counted(dispatching: Dispatching) -> list[None]:
    rounds: list[None] = []
    log = dispatching._log

    def counted(taken: Any, now_ms: int) -> None:
        rounds.append(None)
        log(taken, now_ms)

    dispatching._log = counted  # type: ignore[method-assign]
    return rounds


async def test_a_burst_goes_to_all_who_are_free() -> None:
    async with opened() as broker:
        workers = [await FakeWorker.connected(broker, f"w{n}", places=20) for n in range(5)]
        await submitted(broker, *[Spec("a") for _ in range(20)])
        async with asyncio.timeout(5):
            runs = [await worker.until_runs(4) for worker in workers]
        assert [len(taken) for taken in runs] == [4, 4, 4, 4, 4]


async def test_who_has_more_places_takes_what_the_others_cannot() -> None:
    async with opened() as broker:
        small = await FakeWorker.connected(broker, "small", places=1)
        big = await FakeWorker.connected(broker, "big", places=30)
        await submitted(broker, *[Spec("a") for _ in range(20)])
        async with asyncio.timeout(5):
            runs = [*await small.until_runs(1), *await big.until_runs(19)]
        assert len({run.id for run in runs}) == 20
