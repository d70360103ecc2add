"""Pins of checkpoints by machines whose clocks differ."""

import pytest

from engine.errors import NotFound
from engine.expiry import CLOCK_DIFFERENCE_MS
from engine.ledger.cluster_time import ClusterTime
from engine.log.position import Position
from engine.metadata.memory import MemoryTree
from herd.checkpoint.manifest import Locator, ManifestRecord
from herd.checkpoint.record import CheckpointList
from tests.broker.service.clocks import HandClock

NOW_MS = 10**12
PIN_MS = 1_500


def record(number: int) -> ManifestRecord:
    return ManifestRecord(number, Position(1, number), 1, 1, Locator(1, 0, 1, 0))


async def test_a_pin_lasts_as_long_as_requested_by_the_requesters_clock() -> None:
    store, ahead = MemoryTree("c").session(), HandClock(NOW_MS + CLOCK_DIFFERENCE_MS)
    mine = CheckpointList(store, "default", ClusterTime(HandClock(NOW_MS), store))
    theirs = CheckpointList(store, "default", ClusterTime(ahead, store))
    await mine.claim(1)
    await mine.add(record(1))
    await mine.pin("changes", 1, PIN_MS)
    ahead.wall += PIN_MS - 1
    await mine.add(record(2))
    await theirs.pin("reader", None, 60_000)
    for number in (3, 4):
        held = await theirs.add(record(number))
    assert [one.number for one in held.kept] == [1, 2, 3, 4]
    assert await theirs.pin("changes", 1, PIN_MS) == record(1)


async def test_a_pin_ends_when_it_is_over_by_every_clock() -> None:
    store, clock = MemoryTree("c").session(), HandClock(NOW_MS)
    checkpoints = CheckpointList(store, "default", ClusterTime(clock, store))
    await checkpoints.claim(1)
    await checkpoints.add(record(1))
    await checkpoints.pin("changes", 1, PIN_MS)
    clock.wall += PIN_MS + CLOCK_DIFFERENCE_MS
    for number in (2, 3):
        held = await checkpoints.add(record(number))
    assert [one.number for one in held.kept] == [2, 3] and held.pins == ()
    with pytest.raises(NotFound):
        await checkpoints.pin("changes", 1, PIN_MS)
