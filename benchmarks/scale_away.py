"""ZooKeeper is stopped for a minute while programs read, write and submit tasks.

Invariants:
- Each program is the only writer of its keys, so a value older than its last write is stale.
- A call is timed from its start to its answer, including all retries.
"""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import herdbook
from benchmarks.result import Result
from benchmarks.setting import Setting, note
from blobit.errors import BlobError
from broker.errors import BrokerError
from engine.errors import EngineError
from herd.errors import OperationalError
from herdbook.connecting import AsyncCluster

SUBJECT: Final = "scale"
_FIRST_S: Final = 2.0
"""Calls may take long during this time after ZooKeeper is stopped."""
_WARM_S: Final = 3.0
_PATIENCE_S: Final = 30.0
_TRIED_AGAIN: Final = (OperationalError, EngineError, BlobError, BrokerError)


class _Program:
    """Repeats one operation, and records how long each call took."""

    def __init__(self, name: str, step: Callable[[int], Awaitable[None]]) -> None:
        self.name = name
        self._step = step
        self.took: list[tuple[float, float]] = []
        """When each call began, and how many seconds it took."""
        self.failures = 0

    async def work(self) -> None:
        """Repeat the operation until cancelled."""
        for number in itertools.count():
            began_s = time.perf_counter()
            while True:
                try:
                    await self._step(number)
                    break
                except _TRIED_AGAIN:
                    self.failures += 1
                    assert time.perf_counter() - began_s < _PATIENCE_S
                    await asyncio.sleep(0.05)
            self.took.append((began_s, time.perf_counter() - began_s))
            await asyncio.sleep(0.01)

    def longest_s(self, from_s: float, to_s: float) -> float:
        """The longest call that began in a period."""
        return max((took for began, took in self.took if from_s <= began < to_s), default=0.0)


async def zookeeper_away(setting: Setting, url: str, processes: Iterable[int]) -> list[Result]:
    """The longest call of each kind while ZooKeeper is away, after the first two seconds."""
    away_s = setting.size(60, 6)
    [zookeeper] = [pid for pid in processes if _is_java(pid)]
    async with herdbook.connect_async(url) as book:
        programs = await _programs(book)
        working = [asyncio.create_task(program.work()) for program in programs]
        await asyncio.sleep(_WARM_S)
        os.kill(zookeeper, signal.SIGSTOP)
        stopped_s = time.perf_counter()
        try:
            await asyncio.sleep(away_s)
        finally:
            os.kill(zookeeper, signal.SIGCONT)
        ended_s = time.perf_counter()
        await asyncio.sleep(_WARM_S)
        for task in working:
            task.cancel()
        for ended in await asyncio.gather(*working, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
    for program in programs:
        note(f"{program.name}: {len(program.took):,} calls, {program.failures} retries")
        assert program.longest_s(stopped_s, ended_s - 1) > 0, f"{program.name} made no progress"
    return [
        Result(
            SUBJECT,
            f"zookeeper-away-{program.name}",
            round(program.longest_s(stopped_s + _FIRST_S, ended_s), 3),
            "s",
            1.0,
        )
        for program in programs
    ]


async def _programs(book: AsyncCluster) -> list[_Program]:
    session, reading, asking = [await book.herd.session() for _ in range(3)]
    await session.execute("CREATE TABLE milk (id INT PRIMARY KEY, n INT)")
    await session.execute("INSERT INTO milk VALUES (1, -1)")
    bucket = await book.blobs.create_bucket("away")
    tasks = await book.tasks()
    written = [-1]

    async def write(number: int) -> None:
        await session.execute("UPDATE milk SET n = ? WHERE id = 1", [number])
        written[0] = number

    async def read(_: int) -> None:
        least = written[0]
        [(found,)] = (await reading.execute("SELECT n FROM milk WHERE id = 1")).rows
        assert found >= least, f"stale: {found} was read after {least} was written"

    async def query(_: int) -> None:
        least = written[0]
        [(found,)] = (await asking.execute("SELECT max(n) FROM milk GROUP BY id % 2")).rows
        assert found >= least, f"stale: {found} was read after {least} was written"

    async def put(number: int) -> None:
        await bucket.put("calf", b"%d" % number)
        assert int(await bucket.get("calf")) == number, "stale"

    async def submit(number: int) -> None:
        handle = await tasks.submit("milk", b"%d" % number)
        task = await tasks.get(handle.id)
        assert task.id == handle.id

    steps = {"write": write, "read": read, "query": query, "put-get": put, "task": submit}
    return [_Program(name, step) for name, step in steps.items()]


def _is_java(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
