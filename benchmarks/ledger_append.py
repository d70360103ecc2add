"""Appending: entries of 1 KiB, each durable before it is acknowledged.

Invariants:
- A caller never has two calls under way; more load means more callers.
- The limit is given as many copies, and at most as many bytes a sync, as the scenario has.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from benchmarks.disk_limit import ENTRY_BYTES
from benchmarks.result import Result
from benchmarks.setting import Setting
from engine import cluster
from engine.ledger.writer import LedgerWriter

SUBJECT: Final = "ledger"
ENTRY: Final = bytes(range(256)) * (ENTRY_BYTES // 256)
CALLERS_MANY: Final = 4_000
BATCH_CALLERS: Final = 16
BATCH_ENTRIES: Final = 256

Caller = Callable[[LedgerWriter], Coroutine[Any, Any, None]]


def e1_many(setting: Setting) -> list[Result]:
    """One bookie, 4,000 callers that each await one append at a time."""
    return _many(setting, "append-e1-many", bookies=1)


def e3_many(setting: Setting) -> list[Result]:
    """Three copies, two of them acknowledged, and 4,000 callers."""
    return _many(setting, "append-e3-many", bookies=3)


def e3_batch(setting: Setting) -> list[Result]:
    """Three copies and 16 callers that append 256 entries at a time."""
    calls = setting.size(100, 20)

    async def caller(writer: LedgerWriter) -> None:
        batch = [ENTRY] * BATCH_ENTRIES
        for _ in range(calls):
            await writer.append_many(batch)

    return _measure(setting, "append-e3-batch", 3, caller, BATCH_CALLERS, calls, BATCH_ENTRIES)


def e3_one(setting: Setting) -> list[Result]:
    """Three copies and a single caller: how long one append takes."""
    return _measure(setting, "append-e3-one", 3, *_single(setting.size(10_000, 2_000)))


def e3_one_busy(setting: Setting) -> list[Result]:
    """The same beside a Python thread of the same process that never stops computing."""
    single = _single(setting.size(3_000, 600))
    return _measure(setting, "append-e3-one-busy", 3, *single, busy=True)


def _many(setting: Setting, scenario: str, bookies: int) -> list[Result]:
    caller, _, calls, _ = _single(setting.size(100, 20))
    return _measure(setting, scenario, bookies, caller, CALLERS_MANY, calls)


def _single(calls: int) -> tuple[Caller, int, int, int]:
    """One caller that awaits one append at a time; callers, calls and entries a call."""

    async def caller(writer: LedgerWriter) -> None:
        append = writer.append
        for _ in range(calls):
            await append(ENTRY)

    return caller, 1, calls, 1


def _measure(
    setting: Setting,
    scenario: str,
    bookies: int,
    caller: Caller,
    callers: int,
    calls: int,
    entries: int = 1,
    *,
    busy: bool = False,
) -> list[Result]:
    """Let the callers append to a fresh ledger, a few times; the median counts."""
    total = callers * calls * entries

    async def once(engine: cluster.Engine) -> float:
        writer = await engine.create_ledger()
        start = time.perf_counter()
        await asyncio.gather(*[caller(writer) for _ in range(callers)])
        taken_s = time.perf_counter() - start
        assert writer.last_add_confirmed == total - 1
        await writer.close()
        return total / taken_s

    async def work(folder: Path) -> float:
        async with cluster.open(folder, bookies=bookies) as engine:
            with _computing() if busy else nullcontext():
                return await setting.median(lambda: once(engine))

    value, limit = setting.beside_limit(bookies, callers * entries * ENTRY_BYTES, work)
    return [Result(SUBJECT, scenario, round(value), "adds/s", round(limit))]


@contextmanager
def _computing() -> Iterator[None]:
    """A thread that holds the interpreter whenever it may."""
    stop = False

    def work() -> None:
        number = 0
        while not stop:
            number = (number * 31 + 7) % 1_000_003

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop = True
        thread.join()
