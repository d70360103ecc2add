"""When a server makes full collections of garbage."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from engine.limits import MIB
from herdbook.node import growth
from herdbook.node.growth import Growth, collecting


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def due(growth: Growth, *sizes_mib: int, now_s: float = 10.0) -> list[bool]:
    """Whether a collection is due, for each value of the memory."""
    return [growth.is_due(size_mib * MIB, now_s) for size_mib in sizes_mib]


def test_a_short_peak_of_memory_causes_no_collection() -> None:
    assert not any(due(Growth(100 * MIB, 0.0), *[100, 400, 450, 400, 120] * 10))


def test_lasting_growth_causes_a_collection_and_the_next_one_needs_more_growth() -> None:
    growth = Growth(100 * MIB, 0.0)
    assert due(growth, 200, 200, 200, 200, 200) == [False] * 4 + [True]
    growth.collected(180 * MIB, 10.0, 0.0)
    assert not any(due(growth, *[270] * 10))
    assert due(growth, *[280] * 5)[-1]


def test_growth_is_measured_from_the_lowest_memory_since_the_last_collection() -> None:
    growth = Growth(500 * MIB, 0.0)
    assert not any(due(growth, *[200] * 10))
    assert due(growth, *[300] * 5)[-1]


def test_a_large_server_collects_after_a_quarter_of_growth() -> None:
    growth = Growth(4_000 * MIB, 0.0)
    assert not any(due(growth, *[4_900] * 10))
    assert due(growth, *[5_100] * 5)[-1]


def test_very_large_growth_causes_a_collection_at_once() -> None:
    assert due(Growth(100 * MIB, 0.0), 400, 500) == [False, True]


def test_after_a_long_collection_the_next_one_waits() -> None:
    growth = Growth(100 * MIB, 0.0)
    growth.collected(100 * MIB, 10.0, 1.5)
    assert not any(due(growth, *[900] * 10, now_s=39.0))
    assert due(growth, 900, now_s=41.0) == [True]


def test_a_server_that_does_not_grow_collects_every_five_minutes() -> None:
    growth = Growth(100 * MIB, 0.0)
    assert due(growth, 100, now_s=299.0) == [False]
    assert due(growth, 100, now_s=301.0) == [True]
    growth.collected(100 * MIB, 301.0, 0.1)
    assert due(growth, 100, now_s=600.0) == [False]


async def test_a_server_collects_when_it_has_grown_and_restores_pythons_threshold_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes_mib = iter([100, *[300] * 5, 150])
    collected = asyncio.Event()
    before = gc.get_threshold()
    monkeypatch.setattr(growth, "_EACH_S", 0.0)
    monkeypatch.setattr(growth, "_resident_bytes", lambda file: next(sizes_mib, 150) * MIB)
    monkeypatch.setattr(gc, "collect", lambda: collected.set())
    task = asyncio.create_task(collecting())
    await collected.wait()
    assert gc.get_threshold()[:2] == before[:2] and gc.get_threshold()[2] > 1_000_000
    assert next(sizes_mib, None) is None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gc.get_threshold() == before


async def test_pythons_threshold_is_restored_in_whatever_order_two_servers_end() -> None:
    before = gc.get_threshold()
    first, second = (asyncio.create_task(collecting()) for _ in range(2))
    await asyncio.sleep(0)
    for task in (first, second):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert gc.get_threshold() == before
