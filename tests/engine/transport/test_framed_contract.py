"""Every transport reaches a bookie in the same way: in one process, and over a socket."""

import asyncio
import random
from pathlib import Path

import pytest

from engine.ports.clock import SystemClock
from engine.transport.framed_bookie import FramedTransport
from engine.transport.framed_server import FramedServer
from engine.transport.inprocess import InProcessTransport
from tests.engine.transport.bookie_contract import BOOKIE, SECOND, BookieContract, Scenario
from tests.engine.transport.model_bookie import ModelBookie


class TestInProcess(BookieContract):
    def run_with_bookies(self, scenario: Scenario) -> None:
        async def run() -> None:
            transport = InProcessTransport()
            transport.add(ModelBookie(BOOKIE))
            transport.add(ModelBookie(SECOND))
            async with asyncio.timeout(60):
                await scenario(transport)
            await transport.close()

        asyncio.run(run())


class TestFramed(BookieContract):
    @pytest.fixture(autouse=True)
    def _socket(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "bookies.sock")

    def run_with_bookies(self, scenario: Scenario) -> None:
        async def find(bookie_id: str) -> str:
            return f"unix:{self.path}"

        async def run() -> None:
            server = FramedServer(cluster_id="cluster")
            server.add(ModelBookie(BOOKIE))
            server.add(ModelBookie(SECOND))
            loop = asyncio.get_running_loop()
            listening = await loop.create_unix_server(server.accept, self.path)
            transport = FramedTransport(find, clock=SystemClock(), rng=random.Random(1))
            async with asyncio.timeout(60):
                await scenario(transport)
            await transport.close()
            listening.close()
            await server.close()

        asyncio.run(run())
