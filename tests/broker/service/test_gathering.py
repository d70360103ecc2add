"""What could not be durable any sooner is told together."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broker import commands
from broker.commands import Spec, decode_command
from broker.connection import Completion, Done, Ended, Run
from broker.service import Broker
from broker.task import Status
from engine.replica.leading import Waiter
from tests.broker.service.yard import FakeWorker, opened, submitted

TASKS = 20


@asynccontextmanager
async def _counted(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Broker, Counter[type]]]:
    """A broker, and how many commands of each kind it has proposed."""
    counts: Counter[type] = Counter()
    async with opened() as broker:
        propose = broker.replica.propose_for

        def counting(command: bytes, waiter: Waiter, level: int = 1) -> None:
            counts[type(decode_command(command))] += 1
            propose(command, waiter, level)

        monkeypatch.setattr(broker.replica, "propose_for", counting)
        yield broker, counts


async def _tell(worker: FakeWorker, run: Run) -> None:
    """Without waiting for the answer."""
    ended = [Completion(run.id, run.attempt, Ended.FINISHED)]
    await worker.link.send([Done(worker.next(), worker.session, ended)])


async def test_ends_that_come_while_others_are_on_their_way_are_one_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _counted(monkeypatch) as (broker, counts):
        worker = await FakeWorker.connected(broker, places=TASKS)
        ids = await submitted(broker, *[Spec("a")] * TASKS)
        for run in await worker.until_runs(TASKS):
            await _tell(worker, run)
            await asyncio.sleep(0)
        await worker.until(lambda: len(worker.acked) == TASKS)
        assert worker.acked == sorted(worker.acked)
        assert all(broker.get(task_id).status is Status.FINISHED for task_id in ids)
        assert 2 <= counts[commands.Finish] < TASKS // 2


async def test_tasks_that_come_while_others_are_assigned_are_one_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _counted(monkeypatch) as (broker, counts):
        worker = await FakeWorker.connected(broker, places=TASKS)
        asked = []
        for _ in range(TASKS):
            asked.append(asyncio.ensure_future(broker.submit([Spec("a")])))
            await asyncio.sleep(0)
        await worker.until_runs(TASKS)
        await asyncio.gather(*asked)
        assert counts[commands.Submit] > 4
        assert 2 <= counts[commands.Assign] < counts[commands.Submit]
