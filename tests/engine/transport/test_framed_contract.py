"""Every transport reaches a bookie in the same way: in one process, and over a socket."""

import asyncio
import random

import uvloop

from engine.ports.clock import SystemClock
from engine.transport.contract import Bookie, Transport
from engine.transport.framed_bookie import FramedTransport
from engine.transport.framed_server import FramedServer
from engine.transport.inprocess import InProcessTransport
from tests.engine.transport.bookie_contract import BookieContract, Scenario
from tests.engine.transport.model_bookie import ModelBookie
from tests.engine.transport.wired_bookies import WiredBookies, WiredServices


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


class TestFramed(WiredBookies, BookieContract):
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


class TestServiceOverFrames(WiredServices, TestFramed):
    """The real bookie, through the socket."""
