"""Objects of a bucket by name: 4 KiB, put with their committed rows and got, and a long listing.

Invariants:
- Three bookies, three copies, two of them acknowledged, for bytes and for names.
- 16 callers, each with one call under way: a put returns when the bytes and the row are durable.
- Gets come after a reopen: by the ids that the puts gave, by name in order, by name at random.
- The limit of puts is what the disk takes of the bytes alone, as for objects by id; that of gets is
  one thread that reads the same bytes from one file; that of the listing is what is promised.
"""

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from benchmarks import disk_limit
from benchmarks.blobit_data import BOOKIES, CALLERS, SUBJECT
from benchmarks.result import Result
from benchmarks.setting import Setting, note, run
from blobit import AsyncBlobs, AsyncBucket, ObjectId
from engine import cluster
from engine.limits import KIB
from engine.ports.system_workers import ThreadWorkers
from herd.store import open_herd

T = TypeVar("T")

TINY_BYTES: Final = 4 * KIB
LIST_S: Final = 1.0
_BUCKET: Final = "bench"
_PAGE_NAMES: Final = 1_000


def tiny(setting: Setting) -> list[Result]:
    """Objects of 4 KiB, put by name, got by the ids of the puts, by name, and by name at random."""
    count, rounds = setting.size(20_000, 2_000), setting.rounds
    in_flight_bytes, entries = CALLERS * TINY_BYTES, TINY_BYTES / disk_limit.ENTRY_BYTES
    with setting.scratch() as folder:
        before = disk_limit.append_rate(folder, BOOKIES, in_flight_bytes, setting.limit_s)
        put_rate, ids = run(_put(folder / "data", count, rounds))
        after = disk_limit.append_rate(folder, BOOKIES, in_flight_bytes, setting.limit_s)
        gets = run(_get(folder / "data", ids, rounds))
        read_limit = disk_limit.read_rate(folder, count * TINY_BYTES)
    measured = (
        ("put-4k", put_rate, max(before, after)),
        *[(name, rate, read_limit) for name, rate in gets.items()],
    )
    return [
        Result(SUBJECT, name, round(rate), "objects/s", round(limit / entries))
        for name, rate, limit in measured
    ]


def listing(setting: Setting) -> list[Result]:
    """All names of a bucket of 100,000, in pages of a thousand; the first time after a reopen."""
    count = setting.size(100_000, 10_000)
    with setting.scratch() as folder:
        value = run(_list(folder / "data", count))
    # With fewer names the same rate is asked for.
    limit = LIST_S * count / 100_000
    return [Result(SUBJECT, "list-100k", round(value, 3), "s", limit)]


@asynccontextmanager
async def _bucket(folder: Path) -> AsyncIterator[AsyncBucket]:
    async with cluster.open(folder, bookies=BOOKIES) as client:
        workers = ThreadWorkers(asyncio.get_running_loop())
        try:
            async with (
                open_herd(client, folder, workers) as herd,
                AsyncBlobs(client, None, workers, herd) as blobs,
            ):
                yield await blobs.create_bucket(_BUCKET, exist_ok=True)
        finally:
            await workers.close()


def _name(number: int) -> str:
    return f"year/month/day/object-{number:07d}"


async def _put(folder: Path, count: int, rounds: int) -> tuple[float, list[ObjectId]]:
    """Objects a second, and the ids of the last round's."""
    data = bytes(range(256)) * (TINY_BYTES // 256)
    rates: list[float] = []
    ids: list[ObjectId] = []
    async with _bucket(folder) as bucket:

        async def caller(numbers: Iterator[int]) -> None:
            for number in numbers:
                ids.append((await bucket.put(_name(number), data)).object_id)

        # Names of their own: the first put pays for code that was never run.
        await caller(iter(range(rounds * count, rounds * count + 10)))
        for done in reversed(range(rounds)):
            ids.clear()
            rest = iter(range(done * count, (done + 1) * count))
            begun_s = time.perf_counter()
            await asyncio.gather(*[caller(rest) for _ in range(CALLERS)])
            rates.append(count / (time.perf_counter() - begun_s))
    return statistics.median(rates), ids


async def _get(folder: Path, ids: Sequence[ObjectId], rounds: int) -> dict[str, float]:
    names = [_name(number) for number in range(len(ids))]
    shuffled = random.Random(7).sample(names, len(names))
    rates: dict[str, list[float]] = {"get-4k": [], "get-4k-named": [], "get-4k-random": []}
    for _ in range(rounds):
        async with _bucket(folder) as bucket:
            rates["get-4k"].append(await _get_all(bucket.core.blobs.get, ids))
        async with _bucket(folder) as bucket:
            rates["get-4k-named"].append(await _get_all(bucket.get, names))
            rates["get-4k-random"].append(await _get_all(bucket.get, shuffled))
    return {name: statistics.median(each) for name, each in rates.items()}


async def _get_all(get: Callable[[T], Awaitable[bytes]], wanted: Sequence[T]) -> float:
    rest = iter(wanted)

    async def caller() -> None:
        for each in rest:
            assert len(await get(each)) == TINY_BYTES

    begun_s = time.perf_counter()
    await asyncio.gather(*[caller() for _ in range(CALLERS)])
    return len(wanted) / (time.perf_counter() - begun_s)


async def _list(folder: Path, count: int) -> float:
    async with _bucket(folder) as bucket:
        begun_s = time.perf_counter()
        await bucket.put_many((_name(number), b"%d" % number) for number in range(count))
        note(f"{count:,} names put in {time.perf_counter() - begun_s:.1f} s")
    async with _bucket(folder) as bucket:
        begun_s = time.perf_counter()
        found, token = 0, ""
        while True:
            page = await bucket.list("year/", limit=_PAGE_NAMES, token=token)
            found, token = found + len(page.objects), page.token
            if not token:
                break
        taken_s = time.perf_counter() - begun_s
    assert found == count, found
    return taken_s
