"""The contract of a bookie over a wire: models of bookies behind it, or real ones."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.bookie.index_memory import MemoryIndex
from engine.bookie.service import BookieService
from engine.metadata.memory import MemoryTree
from engine.ports.clock import SystemClock
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from engine.transport.contract import Bookie
from tests.engine.transport.bookie_contract import Scenario
from tests.engine.transport.model_bookie import ModelBookie


class WiredBookies:
    """Models behind the wire of `serve`."""

    first: str
    second: str
    new_loop: Callable[[], asyncio.AbstractEventLoop] = staticmethod(asyncio.new_event_loop)

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    async def serve(self, bookies: list[Bookie], scenario: Scenario) -> None:
        """Run a scenario against bookies behind one server."""
        raise NotImplementedError

    def run_with_bookies(self, scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            runner.run(self._with_bookies(scenario))

    async def _with_bookies(self, scenario: Scenario) -> None:
        async with asyncio.timeout(60):
            await self.serve([ModelBookie(self.first), ModelBookie(self.second)], scenario)


class WiredServices(WiredBookies):
    """The real bookie behind it."""

    async def _with_bookies(self, scenario: Scenario) -> None:
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
