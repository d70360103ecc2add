"""The gRPC wire reaches a bookie as every other transport does."""

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
from engine.transport.contract import Bookie
from engine.transport.grpc_server import GrpcServer
from tests.engine.transport.bookie_contract import BookieContract, Scenario
from tests.engine.transport.grpc_wiring import GrpcTransport
from tests.engine.transport.model_bookie import ModelBookie


class TestGrpc(BookieContract):
    new_loop: Callable[[], asyncio.AbstractEventLoop] = staticmethod(asyncio.new_event_loop)

    def run_with_bookies(self, scenario: Scenario) -> None:
        async def run() -> None:
            async with asyncio.timeout(60):
                await serve([ModelBookie(self.first), ModelBookie(self.second)], scenario)

        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            runner.run(run())


class TestGrpcOverUvloop(TestGrpc):
    new_loop = staticmethod(uvloop.new_event_loop)


class TestServiceOverGrpc(BookieContract):
    """The real bookie, through the public wire."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

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
                await serve(list(services), scenario)
            for service in services:
                await service.close()
            await workers.close()

        asyncio.run(run())


async def serve(bookies: list[Bookie], scenario: Scenario) -> None:
    """Run a scenario against bookies behind one server."""
    server = await GrpcServer.start(
        {bookie.bookie_id: bookie for bookie in bookies}, listen="localhost:0"
    )
    transport = GrpcTransport(f"localhost:{server.port}")
    await scenario(transport)
    await transport.close()
    await server.close()
