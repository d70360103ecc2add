"""What a checkpoint of a million rows costs those who write meanwhile.

Invariants:
- 64 tasks update as fast as they are answered, before, during and after; what they see counts.
- The checkpoint is the table's first: every page is built and stored.
- The limit is the better of what they see before and after it: its rate, its slowest thousandth.
"""

import asyncio
import time
from collections.abc import Awaitable
from itertools import count
from pathlib import Path
from typing import Final

import herd
from benchmarks.herd_peers import update
from benchmarks.herd_updates import CALLERS_MANY, SUBJECT, fill
from benchmarks.result import Result
from benchmarks.setting import Setting, note, run
from herd.aio import AsyncConnection

_SHARE_SLOW: Final = 0.001


class Seen:
    """What callers saw in some time."""

    def __init__(self, waits_s: list[float], seconds: float) -> None:
        waits_s.sort()
        self.seconds = seconds
        self.rate = len(waits_s) / seconds
        self.p999_ms = 1000 * waits_s[-1 - int(len(waits_s) * _SHARE_SLOW)]
        self.slowest_ms = 1000 * waits_s[-1]


def checkpoint(setting: Setting) -> list[Result]:
    """How long updates wait while it is taken, and how many get through."""
    rows = setting.size(1_000_000, 5_000)
    with setting.scratch() as folder:
        with herd.open_herd(folder / "data") as opened:
            fill(opened, rows)
        before, beside, after = run(_seen(folder / "data", rows, setting.size(4, 1) / 2))
    note(
        f"checkpoint of {rows:,} rows in {beside.seconds:.1f} s; "
        f"slowest update {beside.slowest_ms:.1f} ms"
    )
    quiet_ms = min(before.p999_ms, after.p999_ms)
    quiet_rate = max(before.rate, after.rate)
    return [
        Result(SUBJECT, "checkpoint-p999", round(beside.p999_ms, 3), "ms", round(quiet_ms, 3)),
        Result(
            SUBJECT, "checkpoint-throughput", round(beside.rate), "updates/s", round(quiet_rate)
        ),
    ]


async def _seen(folder: Path, rows: int, quiet_s: float) -> tuple[Seen, Seen, Seen]:
    async with herd.open_folder(folder) as opened:
        space = await opened.tablespace()
        callers = [await opened.connect(autocommit=True) for _ in range(CALLERS_MANY)]
        # Code that runs for the first time, and caches that are empty, are not the checkpoint's.
        await _during(callers, rows, asyncio.sleep(quiet_s / 2))
        before = await _during(callers, rows, asyncio.sleep(quiet_s))
        beside = await _during(callers, rows, space.checkpoint())
        after = await _during(callers, rows, asyncio.sleep(quiet_s))
        return before, beside, after


async def _during(callers: list[AsyncConnection], rows: int, other: Awaitable[object]) -> Seen:
    """Update until `other` has ended."""
    waits_s: list[float] = []
    ended = asyncio.ensure_future(other)
    numbers, statement, clock = count(), update("?"), time.perf_counter

    async def caller(connection: AsyncConnection) -> None:
        execute = connection.cursor().execute
        while not ended.done():
            key = next(numbers) * 7_919 % rows
            start_s = clock()
            await execute(statement, (key,))
            waits_s.append(clock() - start_s)

    start_s = clock()
    await asyncio.gather(*[caller(connection) for connection in callers])
    taken_s = clock() - start_s
    await ended
    return Seen(waits_s, taken_s)
