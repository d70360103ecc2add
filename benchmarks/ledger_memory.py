"""Memory: what ten million adds leave behind in the process.

Invariants:
- The process is measured after it has warmed up and again at the end; only growth counts.
- One writer, one ledger, one bookie throughout: nothing is closed in between to look smaller.
"""

import asyncio
import gc
import os
from pathlib import Path
from typing import Final

from benchmarks.ledger_append import BATCH_CALLERS, BATCH_ENTRIES, ENTRY, SUBJECT
from benchmarks.result import Result
from benchmarks.setting import Setting, run
from engine import cluster
from engine.limits import MIB

WARM_SHARE: Final = 0.2


def memory(setting: Setting) -> list[Result]:
    """Growth of the resident set from a fifth of the adds to all of them."""
    adds = setting.size(10_000_000, 500_000)
    with setting.scratch() as folder:
        growth_bytes = run(_grow(folder / "data", adds))
    return [Result(SUBJECT, "memory", round(growth_bytes / MIB, 2), "MiB", None)]


async def _grow(folder: Path, adds: int) -> int:
    async with cluster.open(folder) as engine:
        writer = await engine.create_ledger()

        async def caller(calls: int) -> None:
            batch = [ENTRY] * BATCH_ENTRIES
            for _ in range(calls):
                await writer.append_many(batch)

        async def append(count: int) -> None:
            calls = count // (BATCH_CALLERS * BATCH_ENTRIES)
            await asyncio.gather(*[caller(calls) for _ in range(BATCH_CALLERS)])

        await append(int(adds * WARM_SHARE))
        warm_bytes = _resident_bytes()
        await append(int(adds * (1 - WARM_SHARE)))
        grown_bytes = _resident_bytes() - warm_bytes
        await writer.close()
    return grown_bytes


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
