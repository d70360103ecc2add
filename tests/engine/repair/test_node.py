"""A node's loops: they run by themselves, outlive an absent store, and end when told to."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from engine.errors import MetadataUnavailable
from engine.metadata.contract import Page, Versioned
from engine.metadata.memory import FaultyStore
from engine.metadata.repairs import RepairItem
from engine.ports.clock import SystemClock
from engine.repair.node import RepairNode
from engine.repair.pace import Pace
from engine.repair.settings import RepairSettings
from tests.engine.repair.yard import SETTINGS, HandClock, Yard

NUMBERS = itertools.count()
QUICK = replace(
    SETTINGS,
    lost_bookie_grace_ms=30,
    open_ledger_grace_ms=30,
    look_interval_ms=20,
    retry_pause_ms=4,
    retry_pause_ms_max=20,
    scrub_interval_ms=0,
)


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that the loops do, with a deadline."""
    async with asyncio.timeout(20):
        for _ in itertools.count():
            if await reached():
                return
            await asyncio.sleep(0)


def node(yard: Yard, settings: RepairSettings = QUICK, store: object = None) -> RepairNode:
    return RepairNode(
        store=store or yard.tree.session(),  # type: ignore[arg-type]
        transport=yard.transport,
        clock=SystemClock(),
        rng=random.Random(next(NUMBERS)),
        settings=settings,
    )


async def test_a_node_notices_a_lost_bookie_and_repairs_its_ledgers_by_itself() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written()
    name = metadata.fragments[0].ensemble[0]
    nodes = [node(yard), node(yard)]
    for each in nodes:
        await each.start()
    await yard.lose(name)

    async def moved() -> bool:
        now = await yard.metadata(metadata.ledger_id)
        return name not in now.bookies() and await yard.queue.ids() == []

    await until(moved)
    assert sum(each.auditor.elected for each in nodes) == 1
    for each in nodes:
        await each.close()
    assert await yard.store.get("/repair/auditor") is None
    assert yard.lacking(await yard.metadata(metadata.ledger_id)) == []


class AbsentStore(FaultyStore):
    """A store that can be cut off as a whole."""

    absent = False
    refused = 0

    async def get(self, key: str) -> Versioned | None:
        self._check()
        return await super().get(key)

    async def children(self, prefix: str) -> list[str]:
        self._check()
        return await super().children(prefix)

    async def page(self, prefix: str, above: int = -1) -> Page:
        self._check()
        return await super().page(prefix, above)

    def _check(self) -> None:
        if self.absent:
            self.refused += 1
            raise MetadataUnavailable("cut off")


async def test_a_node_outlives_an_absent_metadata_store(caplog: pytest.LogCaptureFixture) -> None:
    """#2302: repair hung for ever after the store had been away for a moment."""
    yard = await Yard.of(3)
    metadata = await yard.written()
    store = AbsentStore(yard.tree.session())
    each = node(yard, store=store)
    await each.start()
    store.absent = True

    async def noticed() -> bool:
        return store.refused > 20

    await until(noticed)
    store.absent = False
    await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("look",)))

    async def empty() -> bool:
        return await yard.queue.ids() == []

    await until(empty)
    await each.close()
    assert each.repairer.counts.ledgers_whole == 1
    assert "failed and goes on" not in caplog.text, "an absent store is no defect"


async def test_the_auditor_scrubs_now_and_then() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written()
    del yard.bookies[0].entries[metadata.ledger_id][3]
    each = node(yard, replace(QUICK, scrub_interval_ms=40))
    await each.start()

    async def mended() -> bool:
        return yard.lacking(metadata) == []

    await until(mended)
    await each.close()
    assert each.repairer.counts.entries_written >= 1


async def test_copies_are_paced() -> None:
    clock = HandClock()
    pace = Pace(clock, 1_000)
    await pace.spend(50)
    started = asyncio.get_running_loop().time()
    await pace.spend(1)
    assert asyncio.get_running_loop().time() - started >= 0.04
