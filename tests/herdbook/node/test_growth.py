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


def due(growth: Growth, *sizes_mib: int) -> list[bool]:
    """Whether a collection is due at each second, given the memory at that second."""
    return [growth.is_due(size_mib * MIB) for size_mib in sizes_mib]


def test_a_short_peak_of_memory_causes_no_collection() -> None:
    assert not any(due(Growth(100 * MIB), *[100, 400, 500, 400, 120] * 10))


def test_lasting_growth_causes_a_collection_and_the_next_one_needs_more_growth() -> None:
    growth = Growth(100 * MIB)
    assert due(growth, 200, 200, 200, 200, 200) == [False] * 4 + [True]
    growth.collected(180 * MIB)
    assert not any(due(growth, *[270] * 10))
    assert due(growth, *[280] * 5)[-1]


def test_growth_is_measured_from_the_lowest_memory_since_the_last_collection() -> None:
    growth = Growth(500 * MIB)
    assert not any(due(growth, *[200] * 10))
    assert due(growth, *[300] * 5)[-1]


def test_very_large_growth_causes_a_collection_at_once() -> None:
    assert due(Growth(100 * MIB), 900) == [True]


async def test_a_server_collects_when_it_has_grown_and_restores_pythons_threshold_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes_mib = iter([100, *[300] * 5, 150])
    collected = asyncio.Event()
    before = gc.get_threshold()
    monkeypatch.setattr(growth, "_EACH_S", 0.0)
    monkeypatch.setattr(growth, "_resident_bytes", lambda: next(sizes_mib, 150) * MIB)
    monkeypatch.setattr(gc, "collect", lambda: collected.set())
    task = asyncio.create_task(collecting())
    await collected.wait()
    assert gc.get_threshold()[:2] == before[:2] and gc.get_threshold()[2] > 1_000_000
    assert next(sizes_mib, None) is None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gc.get_threshold() == before


async def test_if_the_memory_cannot_be_read_the_threshold_of_python_is_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = gc.get_threshold()
    monkeypatch.setattr(growth, "_resident_bytes", lambda: None)
    await collecting()
    assert gc.get_threshold() == before
