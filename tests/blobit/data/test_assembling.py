"""Long objects put together in place: the same bytes, and no memory for what is not there."""

import asyncio
import io
import random
import resource

import pytest

from blobit import assembling
from blobit.assembling import IN_PLACE_BYTES_MIN, READY_BYTES, assembly_of
from engine.limits import MIB
from engine.ports.system_workers import ThreadWorkers


@pytest.mark.parametrize("length", [1, IN_PLACE_BYTES_MIN - 1, IN_PLACE_BYTES_MIN, 9 * MIB + 5])
async def test_pieces_of_any_size_come_out_as_one(length: int) -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    rng, whole = random.Random(length), random.Random(1).randbytes(length)
    assembly = assembly_of(length, workers)
    start = 0
    while start < length:
        end = min(length, start + rng.randint(0, MIB))
        assembly.write(whole[start:end])
        start = end
    assert assembly.getvalue() == whole
    await workers.close()


async def test_memory_is_taken_as_it_is_written_not_as_an_id_says() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assembly = assembly_of(8 * 1024 * MIB, workers)
    assembly.write(bytes(3 * MIB))
    await workers.run(lambda: None)
    await workers.close()
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < (READY_BYTES + 32 * MIB) // 1024


async def test_an_object_longer_than_any_memory_grows_as_it_comes() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    assert isinstance(assembly_of(2**62, workers), io.BytesIO)
    assert isinstance(assembly_of(9 * MIB, None), io.BytesIO)
    await workers.close()


async def test_where_there_is_no_such_way_pieces_are_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assembling, "_IN_PLACE", False)
    workers = ThreadWorkers(asyncio.get_running_loop())
    assert isinstance(assembly_of(9 * MIB, workers), io.BytesIO)
    await workers.close()
