"""Every transport reaches a bookie in the same way: in one process, and over a socket."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from engine.bookie.index_memory import MemoryIndex
from engine.bookie.service import BookieService
from engine.metadata.memory import MemoryTree
from engine.ports.clock import SystemClock
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from engine.transport.contract import Bookie, Transport
from engine.transport.framed_bookie import FramedTransport
from engine.transport.framed_server import FramedServer
from engine.transport.inprocess import InProcessTransport
from tests.engine.transport.bookie_contract import BookieContract, Scenario
from tests.engine.transport.model_bookie import ModelBookie


async def in_process(bookies: list[Bookie], scenario: Scenario) -> None:
    transport = InProcessTransport()
    for bookie in bookies:
        transport.add(bookie)
    await scenario(transport)
    await transport.close()


class TestInProcess(BookieContract):
    def run_with_bookies(self, scenario: Scenario) -> None:
        async def run() -> None:
            async with asyncio.timeout(60):
                bookies: list[Bookie] = [ModelBookie(self.first), ModelBookie(self.second)]
                await in_process(bookies, scenario)

        asyncio.run(run())


class TestFramed(BookieContract):
    new_loop: Callable[[], asyncio.AbstractEventLoop] = staticmethod(asyncio.new_event_loop)

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def run_with_bookies(self, scenario: Scenario) -> None:
        async def run() -> None:
            async with asyncio.timeout(60):
                await self.serve([ModelBookie(self.first), ModelBookie(self.second)], scenario)

        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            runner.run(run())

    async def serve(self, bookies: list[Bookie], scenario: Scenario) -> None:
        path = str(self.folder / "bookies.sock")

        async def find(bookie_id: str) -> str:
            return f"unix:{path}"

        server = FramedServer(cluster_id="cluster")
        for bookie in bookies:
            server.add(bookie)
        listening = await asyncio.get_running_loop().create_unix_server(server.accept, path)
        transport: Transport = FramedTransport(find, clock=SystemClock(), rng=random.Random(1))
        await scenario(transport)
        await transport.close()
        listening.close()
        await server.close()


class TestFramedOverUvloop(TestFramed):
    new_loop = staticmethod(uvloop.new_event_loop)


class TestServiceOverFrames(TestFramed):
    """The real bookie, through the socket."""

    def run_with_bookies(self, scenario: Scenario) -> None:
        async def run() -> None:
            workers = ThreadWorkers(asyncio.get_running_loop())
            store = MemoryTree("cluster").session()
            services: list[BookieService] = []
            for name in ("a", "b"):
                (self.folder / name).mkdir()
                service = await BookieService.start(
                    disk=SystemDisk(self.folder / name),
                    open_index=MemoryIndex,
                    workers=workers,
                    clock=SystemClock(),
                    rng=random.Random(name),
                    store=store,
                )
                services.append(service)
            self.first, self.second = (service.bookie_id for service in services)
            async with asyncio.timeout(60):
                await self.serve(list(services), scenario)
            for service in services:
                await service.close()
            await workers.close()

        asyncio.run(run())
