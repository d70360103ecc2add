"""A bookie that compacts loses power at any moment, in virtual time, and forgets nothing."""

import asyncio
import random
from typing import Any

import pytest

from engine.bookie.compaction import CompactionSettings
from engine.bookie.index import Position
from engine.bookie.scan import Flaw, JournalScan
from engine.bookie.service import BookieService
from engine.bookie.settings import BookieSettings
from engine.bookie.upkeep import UpkeepSettings, start_upkeep
from engine.ledger.keys import key_hash, key_of
from engine.limits import MIB
from engine.metadata.memory import MemoryTree
from engine.run import Run
from engine.transport.contract import AppendReply, LedgerFacts, ReadRequest, Status
from tests.engine.bookie.yard import body_of, run_of
from tests.simulation.disk import SimDisk
from tests.simulation.index import SimIndexes
from tests.simulation.loop import Process, SimLoop
from tests.simulation.nodes import SimClock
from tests.simulation.workers import SimWorkers

KEY = key_of(b"")
ALIVE = 7
SETTINGS = BookieSettings(
    segment_bytes=8_192, recent_runs_bytes_max=0, index_delay_ms=5, reserve_bytes=0
)


class Barn:
    """One machine with one bookie, over its lives."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.rng = random.Random(seed)
        self.disk = SimDisk(random.Random(seed + 1))
        self.indexes = SimIndexes(random.Random(seed + 2))
        self.tree = MemoryTree("meadow")
        self.alive_entries = 0
        self.buried: list[int] = []
        self.removed = 0

    async def start(self, process: Process, workers: SimWorkers) -> BookieService:
        return await BookieService.start(
            disk=self.disk,
            open_index=self.indexes.open,
            workers=workers,
            clock=SimClock(self.loop, 0.0),
            rng=self.rng,
            store=self.tree.session(),
            settings=SETTINGS,
        )

    async def live(self, process: Process, workers: SimWorkers) -> None:
        """Write, delete and compact until the power goes."""
        service = await self.start(process, workers)
        upkeep = start_upkeep(
            service,
            disk=self.disk,
            workers=workers,
            clock=SimClock(self.loop, 0.0),
            store=self.tree.session(),
            settings=UpkeepSettings(compaction=CompactionSettings(free_bytes_min=0)),
        )
        while True:
            gone = 100 + len(self.buried)
            for number in range(20):
                await self.append(service, ALIVE, run_of(ALIVE, self.alive_entries, 1))
                self.alive_entries += 1
                await self.append(service, gone, run_of(gone, 6 * number, 6))
            await service.bury([gone])
            self.buried.append(gone)
            self.removed += len((await upkeep.compact(major=True)).removed)

    async def append(self, service: BookieService, ledger_id: int, run: Run) -> None:
        replied: asyncio.Future[AppendReply] = asyncio.get_running_loop().create_future()
        facts = LedgerFacts(ledger_id, 1, 1, 1, 256, key_hash(KEY), 0, {}, 0, ("b",))
        service.append([run], replied.set_result, key=KEY, facts=facts)
        assert (await replied).status is Status.OK

    async def check(self, service: BookieService) -> None:
        """Every acknowledged entry is there, and nothing of what was buried."""
        ids: list[int] = []
        while len(ids) < self.alive_entries:
            request = ReadRequest(ALIVE, len(ids), self.alive_entries - 1, 1 * MIB)
            reply = await service.read(request)
            assert reply.runs, (reply, len(ids), self.alive_entries)
            for run in reply.runs:
                for entry in run.entries():
                    assert entry.body == body_of(ALIVE, entry.entry_id)
                    ids.append(entry.entry_id)
        assert ids == list(range(self.alive_entries))
        for ledger_id in self.buried:
            reply = await service.read(ReadRequest(ledger_id, 0, 9, 1 * MIB))
            assert reply.status is Status.DELETED
        assert not service.damaged

    def workers(self, process: Process) -> SimWorkers:
        return SimWorkers(self.loop, process, self.disk, random.Random(self.rng.random()))


async def power_goes(barn: Barn, lives: int) -> None:
    for life in range(lives):
        process = Process(f"bookie#{life}")
        workers = barn.workers(process)
        barn.loop.spawn(process, barn.live(process, workers), "bookie")
        moment = asyncio.get_running_loop().create_future()
        barn.loop.call_later(barn.rng.uniform(0.05, 1.0), moment.set_result, None)
        await moment
        barn.loop.kill(process)
        workers.cut_power()
        barn.disk.lose_power()
        barn.indexes.crash()
        process = Process(f"visit#{life}")
        done = asyncio.get_running_loop().create_future()
        visiting = barn.loop.spawn(process, visit(barn, process, done), "visit")
        await done
        await visiting


async def visit(barn: Barn, process: Process, done: "asyncio.Future[Any]") -> None:
    try:
        service = await barn.start(process, barn.workers(process))
        await barn.check(service)
        await service.close()
        found = JournalScan(barn.disk, Position(0, 0)).records()
        assert not [one for one in found if isinstance(one, Flaw)]
    finally:
        done.set_result(None)


@pytest.mark.parametrize("seed", range(12))
def test_power_lost_while_a_bookie_compacts_loses_nothing(seed: int) -> None:
    loop = SimLoop(seed)  # type: ignore[abstract]
    barn = Barn(loop, seed)
    loop.run(power_goes(barn, lives=4), until_s=3_600)
    loop.close()
    assert barn.alive_entries > 40 and barn.removed > 4
