"""A replica of the example's map, embedded, with three bookies: commands of about 100 bytes.

Invariants:
- A caller never has two proposals under way; more load means more callers.
- The limit of a rate is the log alone: the same bodies appended as fast as it takes them.
- A stall is what callers saw, from the call of `propose` to its answer, while a snapshot is made.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.ledger import Scenario
from benchmarks.result import Result
from benchmarks.setting import Setting, note, run
from engine import cluster
from engine.log.log import ReplicatedLog
from engine.ports.system_workers import ThreadWorkers
from engine.replica.replica import Replica
from engine.replica.settings import ReplicaSettings
from engine.state.rocks import open_rocks
from examples.replicated_map import MapMachine, Put, encode

SUBJECT: Final = "replica"
BOOKIES: Final = 3
CALLERS_MANY: Final = 4_000
STALL_CALLERS: Final = 200
KEYS_MANY: Final = 10_000
COMMAND_BYTES: Final = 100
LOG_BATCH: Final = 1_000
LOG_BATCHES_UNDER_WAY: Final = 4
LEAD_TIMEOUT_MS: Final = 10_000


def command(number: int) -> bytes:
    """Puts a key; `COMMAND_BYTES` long."""
    bare = encode(Put(f"key {number:09d}", ""))
    found = encode(Put(f"key {number:09d}", "x" * (COMMAND_BYTES - len(bare) - 1)))
    assert len(found) == COMMAND_BYTES
    return found


def propose_many(setting: Setting) -> list[Result]:
    """4,000 callers that each await one proposal at a time."""
    return run(_rate(setting, "propose-many", CALLERS_MANY, setting.size(100, 20)))


def propose_one(setting: Setting) -> list[Result]:
    """A single caller."""
    return run(_rate(setting, "propose-one", 1, setting.size(10_000, 2_000)))


def snapshot_stall(setting: Setting) -> list[Result]:
    """200 callers beside the snapshot of a million keys: how long they wait, how many get through.

    The limit of the rate is the rate before and after it.
    """
    return run(_stall(setting, setting.size(1_000_000, 100_000)))


SCENARIOS: Final[dict[str, Scenario]] = {
    "propose-many": propose_many,
    "propose-one": propose_one,
    "snapshot-stall": snapshot_stall,
}


@asynccontextmanager
async def _opened(folder: Path) -> AsyncIterator[tuple[cluster.Engine, Replica]]:
    async with cluster.open(folder / "ledgers", bookies=BOOKIES) as engine:
        workers = ThreadWorkers(asyncio.get_running_loop())
        state = await open_rocks(folder / "state", workers)
        settings = ReplicaSettings(snapshot_entries=0)
        replica = await Replica.open(
            engine, "map", MapMachine(), state, settings=settings, elect=False
        )
        try:
            await replica.until_leading(LEAD_TIMEOUT_MS)
            yield engine, replica
        finally:
            await replica.close()
            await workers.close()


async def _rate(setting: Setting, scenario: str, callers: int, calls: int) -> list[Result]:
    commands = [command(number) for number in range(KEYS_MANY)]
    with setting.scratch() as folder:
        async with _opened(folder) as (engine, replica):
            before = await _log_rate(engine, commands, callers * calls, callers)
            value = await setting.median(lambda: _propose(replica, commands, callers, calls))
            after = await _log_rate(engine, commands, callers * calls, callers)
    return [Result(SUBJECT, scenario, round(value), "commands/s", round(max(before, after)))]


async def _propose(replica: Replica, commands: list[bytes], callers: int, calls: int) -> float:
    async def caller(number: int) -> None:
        propose = replica.propose
        for call in range(calls):
            await propose(commands[(number * 7_919 + call) % KEYS_MANY])

    start_s = time.perf_counter()
    await asyncio.gather(*[caller(number) for number in range(callers)])
    return callers * calls / (time.perf_counter() - start_s)


async def _log_rate(
    engine: cluster.Engine, commands: list[bytes], total: int, callers: int
) -> float:
    """Entries a second that the log takes from one who appends whole batches."""
    batch = commands[: min(LOG_BATCH, callers)]
    under_way = LOG_BATCHES_UNDER_WAY if callers > 1 else 1
    writer = await ReplicatedLog(engine, "limit").lead()
    rounds = max(1, total // len(batch) // under_way)

    async def appender() -> None:
        for _ in range(rounds):
            await writer.append_many(batch)

    start_s = time.perf_counter()
    await asyncio.gather(*[appender() for _ in range(under_way)])
    taken_s = time.perf_counter() - start_s
    await writer.close()
    return rounds * under_way * len(batch) / taken_s


async def _stall(setting: Setting, keys: int) -> list[Result]:
    with setting.scratch() as folder:
        async with _opened(folder) as (_, replica):
            await _fill(replica, keys)
            load = _Load(replica, keys)
            before = await load.during(asyncio.sleep(setting.limit_s * 4))
            beside = await load.during(replica.snapshot())
            after = await load.during(asyncio.sleep(setting.limit_s * 4))
    quiet_rate = statistics.mean([before.rate, after.rate])
    quiet_ms = max(before.p999_ms, after.p999_ms)
    note(f"snapshot of {keys:,} keys in {beside.seconds:.1f} s")
    return [
        Result(SUBJECT, "snapshot-stall", round(beside.p999_ms, 3), "ms p99.9", round(quiet_ms, 3)),
        Result(
            SUBJECT, "snapshot-rate", round(beside.rate), "commands/s beside it", round(quiet_rate)
        ),
    ]


async def _fill(replica: Replica, keys: int) -> None:
    waiting: list[asyncio.Future[bytes]] = []
    for number in range(keys):
        waiting.append(asyncio.ensure_future(replica.propose(command(number))))
        if len(waiting) == 10 * LOG_BATCH:
            await asyncio.gather(*waiting)
            waiting.clear()
    await asyncio.gather(*waiting)


class _Seen:
    """What callers saw in some time."""

    def __init__(self, waits_s: list[float], seconds: float) -> None:
        self.seconds = seconds
        self.rate = len(waits_s) / seconds
        self.p999_ms = 1000 * statistics.quantiles(waits_s, n=1000)[998]


class _Load:
    """Callers that propose as long as something else goes on."""

    def __init__(self, replica: Replica, keys: int) -> None:
        self._replica = replica
        # Spread over the whole map, and made before the clock runs.
        self._commands = [command(number) for number in range(0, keys, keys // KEYS_MANY)]

    async def during(self, other: Awaitable[object]) -> _Seen:
        """Propose until `other` has ended."""
        waits_s: list[float] = []
        ended = asyncio.ensure_future(other)
        start_s = time.perf_counter()
        await asyncio.gather(*[self._call(n, ended, waits_s) for n in range(STALL_CALLERS)])
        await ended
        return _Seen(waits_s, time.perf_counter() - start_s)

    async def _call(
        self, number: int, ended: "asyncio.Future[object]", waits_s: list[float]
    ) -> None:
        while not ended.done():
            number = (number + 7_919) % len(self._commands)
            body = self._commands[number]
            start_s = time.perf_counter()
            await self._replica.propose(body)
            waits_s.append(time.perf_counter() - start_s)
