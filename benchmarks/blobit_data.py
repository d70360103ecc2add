"""Objects by id: 64 KiB and 64 MiB, put and got, and how soon the first byte of a big one is there.

Invariants:
- Three bookies, three copies, two of them acknowledged; a put returns when its bytes are durable.
- 16 callers, each with one call under way.
- Gets come after a reopen, with readers that know nothing; every object is checked against its id.
- The limit of puts is three files that take the same bytes at once, up to `LIMIT_BYTES_MAX`, synced
  whenever as many bytes wait as the callers can have under way.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks import disk_limit
from benchmarks.ledger_cluster import started_cluster
from benchmarks.result import Result
from benchmarks.setting import Setting, run
from blobit import AsyncBlobs, ObjectId
from engine import cluster
from engine.ledger.client import LedgerClient
from engine.limits import KIB, MIB
from engine.ports.system_workers import ThreadWorkers

SUBJECT: Final = "blobit"
BOOKIES: Final = 3
CALLERS: Final = 16
SMALL_BYTES: Final = 64 * KIB
BIG_BYTES: Final = 64 * MIB
FIRST_BYTE_MS: Final = 10.0
LIMIT_BYTES_MAX: Final = 512 * MIB
_READ_BYTES_MAX: Final = 400 * MIB


def small(setting: Setting) -> list[Result]:
    """Objects of 64 KiB, many of which share a ledger."""
    return _puts_and_gets(setting, "64k", SMALL_BYTES, setting.size(16_000, 1_600))


def big(setting: Setting) -> list[Result]:
    """Objects of 64 MiB, each of which has a ledger alone while it is put."""
    return _puts_and_gets(setting, "64m", BIG_BYTES, setting.size(32, 16))


def big_grpc(setting: Setting) -> list[Result]:
    """Gets of 64 MiB from bookies in processes of their own, over the public wire."""
    count = setting.size(32, 8)

    async def work(folder: Path) -> float:
        async with started_cluster(folder, BOOKIES, "grpc") as (client, _):
            async with opened(client) as blobs:
                _, ids = await put_all(blobs.put, BIG_BYTES, count)
            # Another store knows no reader; the connections are there.
            async with opened(client) as blobs:
                return await get_all(blobs.get, ids)

    with setting.scratch() as folder:
        rate = run(work(folder / "data"))
        limit = _megabytes(disk_limit.read_rate(folder, _READ_BYTES_MAX))
    value = rate * BIG_BYTES / 1e6
    return [Result(SUBJECT, "get-64m-grpc", round(value), "MB/s", round(limit))]


def first_byte(setting: Setting) -> list[Result]:
    """From the call of `stream` to the first piece of 1 GiB, with a reader that knows nothing."""
    length = setting.size(1024 * MIB, 256 * MIB)

    async def work(folder: Path) -> float:
        async with cluster.open(folder, bookies=BOOKIES) as client, opened(client) as blobs:
            object_id = await blobs.put(_pieces(length))
        times_ms: list[float] = []
        async with cluster.open(folder, bookies=BOOKIES) as client:
            for _ in range(20):
                async with opened(client) as blobs:
                    begun_s = time.perf_counter()
                    async with aclosing(blobs.stream(object_id)) as stream:
                        await anext(stream)
                        times_ms.append(1000 * (time.perf_counter() - begun_s))
        # The first one pays for code that was never run: that is a caller's, too.
        return max(times_ms[0], statistics.median(times_ms))

    with setting.scratch() as folder:
        value = run(work(folder / "data"))
    return [Result(SUBJECT, "first-byte", round(value, 3), "ms", FIRST_BYTE_MS)]


@asynccontextmanager
async def opened(client: LedgerClient) -> AsyncIterator[AsyncBlobs]:
    """A store of objects as `herdbook.open_async` has it."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with AsyncBlobs(client, workers=workers) as blobs:
            yield blobs
    finally:
        await workers.close()


def _puts_and_gets(setting: Setting, name: str, size_bytes: int, count: int) -> list[Result]:
    in_flight_bytes = CALLERS * size_bytes
    with setting.scratch() as folder:
        total_bytes = min(count * size_bytes, LIMIT_BYTES_MAX)
        before = disk_limit.same_bytes_rate(folder, BOOKIES, total_bytes, in_flight_bytes)
        put_rate, ids = run(_put(folder / "data", size_bytes, count, setting.rounds))
        after = disk_limit.same_bytes_rate(folder, BOOKIES, total_bytes, in_flight_bytes)
        get_rate = run(_get(folder / "data", ids, setting.rounds))
        read_limit = disk_limit.read_rate(folder, min(total_bytes, _READ_BYTES_MAX))
    limits = (max(before, after), read_limit)
    return [
        _result(f"{verb}-{name}", rate, size_bytes, limit)
        for verb, rate, limit in zip(("put", "get"), (put_rate, get_rate), limits, strict=True)
    ]


def _result(scenario: str, rate: float, size_bytes: int, limit: float) -> Result:
    """Small objects are counted, of big ones the bytes."""
    if size_bytes >= MIB:
        value = rate * size_bytes / 1e6
        return Result(SUBJECT, scenario, round(value), "MB/s", round(_megabytes(limit)))
    entries = size_bytes / disk_limit.ENTRY_BYTES
    return Result(SUBJECT, scenario, round(rate), "objects/s", round(limit / entries))


async def _put(
    folder: Path, size_bytes: int, count: int, rounds: int
) -> tuple[float, list[ObjectId]]:
    rates: list[float] = []
    ids: list[ObjectId] = []
    async with cluster.open(folder, bookies=BOOKIES) as client, opened(client) as blobs:
        for _ in range(rounds):
            rate, ids = await put_all(blobs.put, size_bytes, count)
            rates.append(rate)
    return statistics.median(rates), ids


async def _get(folder: Path, ids: Sequence[ObjectId], rounds: int) -> float:
    rates: list[float] = []
    for _ in range(rounds):
        async with cluster.open(folder, bookies=BOOKIES) as client, opened(client) as blobs:
            rates.append(await get_all(blobs.get, ids))
    return statistics.median(rates)


async def put_all(
    put: Callable[[bytes], Awaitable[ObjectId]], size_bytes: int, count: int
) -> tuple[float, list[ObjectId]]:
    """Objects a second that the callers put, and their ids."""
    data = bytes(range(256)) * (size_bytes // 256)
    ids: list[ObjectId] = []

    async def caller() -> None:
        for _ in range(count // CALLERS or 1):
            ids.append(await put(data))

    begun_s = time.perf_counter()
    await asyncio.gather(*[caller() for _ in range(min(CALLERS, count))])
    return len(ids) / (time.perf_counter() - begun_s), ids


async def get_all(get: Callable[[ObjectId], Awaitable[bytes]], ids: Sequence[ObjectId]) -> float:
    """Objects a second that the callers get, in the order in which they were put."""

    async def caller(rest: Iterator[ObjectId]) -> None:
        for object_id in rest:
            assert len(await get(object_id)) == object_id.length

    rest = iter(ids)
    begun_s = time.perf_counter()
    await asyncio.gather(*[caller(rest) for _ in range(CALLERS)])
    return len(ids) / (time.perf_counter() - begun_s)


def _megabytes(entries: float) -> float:
    return entries * disk_limit.ENTRY_BYTES / 1e6


async def _pieces(length: int) -> AsyncGenerator[bytes, None]:
    piece = bytes(range(256)) * (MIB // 256)
    for _ in range(length // MIB):
        yield piece
