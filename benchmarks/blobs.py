"""The subject `blobs`: objects of two sizes, put and got, durable when the put returns.

Invariants:
- Puts and gets come from 64 callers, each with one call under way.
- Gets come after a reopen; every object is checked against its id.
- The limit is the one of the ledger for the same bytes, in objects.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import disk_limit
from benchmarks.ledger import Scenario
from benchmarks.result import Result
from benchmarks.setting import Setting, run
from blobit import AsyncBlobs, ObjectId
from engine import cluster
from engine.limits import KIB, MIB

SUBJECT: Final = "blobs"
CALLERS: Final = 64


def _scenario(name: str, size_bytes: int, full: int, quick: int) -> Scenario:
    def measure(setting: Setting) -> list[Result]:
        count = setting.size(full, quick)
        in_flight_bytes = CALLERS * size_bytes
        entries = size_bytes / disk_limit.ENTRY_BYTES
        with setting.scratch() as folder:
            before = disk_limit.append_rate(folder, 1, in_flight_bytes, setting.limit_s)
            put_rate, ids = run(_put(folder / "data", size_bytes, count))
            after = disk_limit.append_rate(folder, 1, in_flight_bytes, setting.limit_s)
            get_rate = run(_get(folder / "data", ids))
            read_limit = disk_limit.read_rate(folder, min(count * size_bytes, 400 * MIB))
        measured = (("put", put_rate, max(before, after)), ("get", get_rate, read_limit))
        return [
            Result(SUBJECT, f"{verb}-{name}", round(rate), "objects/s", round(limit / entries))
            for verb, rate, limit in measured
        ]

    return measure


async def _put(folder: Path, size_bytes: int, count: int) -> tuple[float, list[ObjectId]]:
    data = bytes(range(256)) * (size_bytes // 256)
    ids: list[ObjectId] = []

    async def caller(blobs: AsyncBlobs) -> None:
        for _ in range(count // CALLERS):
            ids.append(await blobs.put(data))

    async with cluster.open(folder) as engine, AsyncBlobs(engine) as blobs:
        start = time.perf_counter()
        await asyncio.gather(*[caller(blobs) for _ in range(CALLERS)])
        return len(ids) / (time.perf_counter() - start), ids


async def _get(folder: Path, ids: list[ObjectId]) -> float:
    async def caller(blobs: AsyncBlobs, rest: Iterator[ObjectId]) -> None:
        for object_id in rest:
            assert len(await blobs.get(object_id)) == object_id.length

    async with cluster.open(folder) as engine, AsyncBlobs(engine) as blobs:
        rest = iter(ids)
        start = time.perf_counter()
        await asyncio.gather(*[caller(blobs, rest) for _ in range(CALLERS)])
        return len(ids) / (time.perf_counter() - start)


SCENARIOS: Final[dict[str, Scenario]] = {
    "35KiB": _scenario("35KiB", 35 * KIB, 20_000, 4_000),
    "1MiB": _scenario("1MiB", MIB, 2_000, 256),
}
