"""Reading after a reopen, and following a writer.

Invariants:
- Before anything is read, the engine that wrote it was closed and another one opened.
- Every read is counted and checked: as many entries as were written, none twice.
- The limit of a read is one thread that reads the same bytes from one file, in big pieces.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from benchmarks import disk_limit
from benchmarks.disk_limit import ENTRY_BYTES
from benchmarks.ledger_append import BATCH_ENTRIES, ENTRY, SUBJECT
from benchmarks.result import Result
from benchmarks.setting import Setting, run
from engine import cluster

LEDGERS_INTERLEAVED: Final = 1_000
PAUSE_S: Final = 0.001

Write = Callable[[cluster.Engine], Awaitable[list[int]]]


def sequential(setting: Setting) -> list[Result]:
    """One ledger from its first entry to its last."""
    batches = setting.size(4_000, 400)

    async def write(engine: cluster.Engine) -> list[int]:
        writer = await engine.create_ledger()
        for _ in range(0, batches, 10):
            waiting = [writer.append_many([ENTRY] * BATCH_ENTRIES) for _ in range(10)]
            await asyncio.gather(*waiting)
        await writer.close()
        return [writer.ledger_id]

    return _read(setting, "read-sequential", write, batches * BATCH_ENTRIES)


def interleaved(setting: Setting) -> list[Result]:
    """1,000 ledgers that were written an entry at a time in turn, read one after another."""
    entries = setting.size(250, 50)

    async def write(engine: cluster.Engine) -> list[int]:
        writers = [await engine.create_ledger() for _ in range(LEDGERS_INTERLEAVED)]
        for _ in range(entries):
            await asyncio.gather(*[writer.append(ENTRY) for writer in writers])
        for writer in writers:
            await writer.close()
        return [writer.ledger_id for writer in writers]

    return _read(setting, "read-interleaved", write, LEDGERS_INTERLEAVED * entries)


def tail_latency(setting: Setting) -> list[Result]:
    """From the call of append to the entry in a follower's hands, three copies."""
    samples = setting.size(4_000, 500)
    with setting.scratch() as folder:
        before = disk_limit.append_times(folder, 3, setting.limit_s)
        latencies = run(_follow(folder / "data", samples))
        after = disk_limit.append_times(folder, 3, setting.limit_s)
    quantiles = statistics.quantiles(latencies, n=100)
    limits = (min(before.p50_ms, after.p50_ms), min(before.p99_ms, after.p99_ms))
    return [
        Result(SUBJECT, f"tail-latency-{name}", round(value, 3), "ms", round(limit, 3))
        for name, value, limit in zip(
            ("p50", "p99"), (quantiles[49], quantiles[98]), limits, strict=True
        )
    ]


def _read(setting: Setting, scenario: str, write: Write, total: int) -> list[Result]:
    async def write_all(folder: Path) -> list[int]:
        async with cluster.open(folder) as engine:
            return await write(engine)

    async def read_all(folder: Path, ledgers: list[int]) -> float:
        async with cluster.open(folder) as engine:
            return await setting.median(lambda: _read_ledgers(engine, ledgers, total))

    with setting.scratch() as folder:
        ledgers = run(write_all(folder / "data"))
        limit_bytes = min(total, 400_000) * ENTRY_BYTES
        before = disk_limit.read_rate(folder, limit_bytes)
        value = run(read_all(folder / "data", ledgers))
        after = disk_limit.read_rate(folder, limit_bytes)
    return [Result(SUBJECT, scenario, round(value), "entries/s", round(max(before, after)))]


async def _read_ledgers(engine: cluster.Engine, ledgers: list[int], total: int) -> float:
    readers = [await engine.open_ledger(ledger_id) for ledger_id in ledgers]
    count = 0
    start = time.perf_counter()
    for reader in readers:
        async for batch in reader.read_batches(0, reader.last_add_confirmed):
            count += len(batch)
    taken_s = time.perf_counter() - start
    for reader in readers:
        await reader.close()
    assert count == total, (count, total)
    return total / taken_s


async def _follow(folder: Path, samples: int) -> list[float]:
    """Latencies in milliseconds, one for each entry."""
    sent: list[float] = []
    latencies: list[float] = []
    async with cluster.open(folder, bookies=3) as engine:
        writer = await engine.create_ledger()
        reader = await engine.open_ledger(writer.ledger_id, recover=False)

        async def follow() -> None:
            async for entry in reader.tail(0):
                latencies.append(1000 * (time.perf_counter() - sent[entry.entry_id]))

        following = asyncio.ensure_future(follow())
        for _ in range(samples):
            sent.append(time.perf_counter())
            await writer.append(ENTRY)
            await asyncio.sleep(PAUSE_S)
        await writer.close()
        await following
        await reader.close()
    assert len(latencies) == samples
    return latencies
