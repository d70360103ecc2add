"""A worker that leaves, over a link that takes its time: what was on its way never began."""

import asyncio
import random

import pytest

from broker.commands import Spec
from broker.connection import Assigned, FromBroker, FromWorker, Hello, WorkerLimits, WorkerLink
from broker.errors import BrokerError
from broker.service import Broker
from broker.task import Mode, Status
from broker.worker.worker import Worker, WorkerSettings
from tests.broker.service.clocks import LoopClock
from tests.broker.service.yard import FakeWorker, opened, submitted
from tests.broker.worker.scripted import FakePlaces
from tests.simulation.virtual import elapse, virtually

WAY_S = 0.05


class FarLink:
    """A link whose messages take `WAY_S` each way, and keep their order."""

    def __init__(self, port: "FarPort", near: WorkerLink) -> None:
        self._port = port
        self._near = near
        self._in: asyncio.Queue[list[FromBroker] | BrokerError] = asyncio.Queue()
        self._out: asyncio.Queue[list[FromWorker]] = asyncio.Queue()
        self._ways = [asyncio.create_task(self._come()), asyncio.create_task(self._go())]

    async def _come(self) -> None:
        while True:
            try:
                messages = await self._near.receive()
            except BrokerError as error:
                self._in.put_nowait(error)
                return
            self._port.assigned += sum(isinstance(each, Assigned) for each in messages)
            await elapse(WAY_S)
            self._in.put_nowait(messages)

    async def _go(self) -> None:
        while True:
            messages = await self._out.get()
            await elapse(WAY_S)
            await self._near.send(messages)

    async def receive(self) -> list[FromBroker]:
        messages = await self._in.get()
        if isinstance(messages, BrokerError):
            raise messages
        return messages

    async def send(self, messages: list[FromWorker]) -> None:
        self._out.put_nowait(messages)

    async def fetch_code(self, name: str) -> bytes:
        return await self._near.fetch_code(name)

    async def close(self) -> None:
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)
        await self._near.close()


class FarPort:
    """A broker far away. `assigned`: how many assignments it has sent."""

    def __init__(self, broker: Broker) -> None:
        self.assigned = 0
        self._broker = broker

    async def connect(self, hello: Hello) -> FarLink:
        return FarLink(self, await self._broker.connect(hello))


@pytest.mark.parametrize("mode", [Mode.AT_LEAST_ONCE, Mode.AT_MOST_ONCE])
def test_what_is_on_its_way_to_an_idle_worker_that_leaves_waits_for_another_one(mode: Mode) -> None:
    async def script() -> None:
        async with opened() as broker:
            port, places = FarPort(broker), FakePlaces()
            settings = WorkerSettings("far", "p1", limits=WorkerLimits(4))
            worker = Worker(port, settings, (), LoopClock(), random.Random(1))
            places.worker = worker
            life = asyncio.create_task(worker.run(places))
            await worker.connected()
            await elapse(0.5)
            [task_id] = await submitted(broker, Spec("milk", mode=mode))
            while not port.assigned:
                await elapse(WAY_S / 10)
            worker.drain()
            assert await life, "nothing ran, so nothing was ended"
            task = broker.get(task_id)
            assert (task.status, task.attempts_spent, task.error) == (Status.WAITING, 0, "")
            other = await FakeWorker.connected(broker, "other")
            [run] = await other.until_runs(1)
            await other.finish(run)
            assert broker.get(task_id).status is Status.FINISHED

    virtually(script())
