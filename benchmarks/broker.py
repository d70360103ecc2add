"""The broker, embedded, with three bookies: each command is fsynced at 3/3/2.

Invariants:
- A task counts when its result is durable, not when its function has returned.
- Worker processes are real ones, spawned before the time runs.
- A caller that submits one by one has one call under way.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import SystemRandom
from typing import Final

from benchmarks import broker_failover, broker_take
from benchmarks.broker_functions import noop, pause_5_ms
from benchmarks.broker_wire import submit_one_grpc
from benchmarks.ledger import Scenario
from benchmarks.result import Result
from benchmarks.setting import Setting, note, run
from broker.commands import Spec
from broker.connection import Assigned, Completion, Done, Ended, Hello, WorkerLimits
from broker.service import Broker
from broker.task import Status
from broker.worker.serving import embedded_workers
from engine import cluster
from engine.ports.clock import SystemClock
from engine.ports.system_workers import ThreadWorkers
from engine.replica.settings import ReplicaSettings
from engine.state.rocks import open_rocks

SUBJECT: Final = "broker"
BOOKIES: Final = 3
BATCH: Final = 1_000
UNDER_WAY: Final = 4
PROCESSES: Final = 2
PLACES: Final = 2_000
IO_PLACES: Final = 64
IO_AHEAD: Final = 3 * IO_PLACES
PAYLOAD: Final = b"x" * 50


def run_noop(setting: Setting) -> list[Result]:
    """Submit in batches, run in two worker processes, record the results; from end to end."""
    value = run(_run(setting, noop.__name__, setting.size(100_000, 10_000), PLACES))
    return [Result(SUBJECT, "run-noop", round(value), "tasks/s", None)]


def run_io(setting: Setting) -> list[Result]:
    """Tasks that wait 5 ms, 64 at a time, and three times as many ahead of them.

    The limit is what 64 places do without a broker: the same function, over and over.
    """
    count = setting.size(20_000, 4_000)
    before = run(_alone(setting.limit_s))
    value = run(_run(setting, pause_5_ms.__name__, count, IO_PLACES, ahead=IO_AHEAD))
    limit = max(before, run(_alone(setting.limit_s)))
    return [Result(SUBJECT, "run-io", round(value), "tasks/s", round(limit))]


def submit_one(setting: Setting) -> list[Result]:
    """A single caller, task by task."""
    return run(_submit(setting, "submit-one", 1, 1, setting.size(5_000, 500)))


def submit_batch(setting: Setting) -> list[Result]:
    """Batches of 1,000, a few under way."""
    batches = setting.size(200, 20) // UNDER_WAY
    return run(_submit(setting, "submit-batch", BATCH, UNDER_WAY, batches))


def dispatch_idle(setting: Setting) -> list[Result]:
    """From the acknowledged submit to the task's arrival at a worker, when nothing else is done."""
    return run(_dispatch(setting, setting.size(2_000, 300)))


def snapshot_stall(setting: Setting) -> list[Result]:
    """How long one caller's submits take beside a snapshot of many tasks.

    The limit is what they took without it.
    """
    return run(_stall(setting, setting.size(1_000_000, 50_000)))


SCENARIOS: Final[dict[str, Scenario]] = {
    "run-noop": run_noop,
    "run-io": run_io,
    "submit-one": submit_one,
    "submit-one-grpc": submit_one_grpc,
    "submit-batch": submit_batch,
    "dispatch-idle": dispatch_idle,
    "task-snapshot": snapshot_stall,
    "task-failover": broker_failover.failover,
    "take-100": broker_take.take_100,
    "take-flood": broker_take.flood,
}


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Broker]:
    """A broker that serves, on an empty folder."""
    async with cluster.open(folder / "ledgers", bookies=BOOKIES) as engine:
        workers = ThreadWorkers(asyncio.get_running_loop())
        state = await open_rocks(folder / "state", workers)
        settings = ReplicaSettings(snapshot_entries=0)
        broker = await Broker.open(engine, state, replica_settings=settings)
        try:
            yield broker
        finally:
            await broker.close()
            await workers.close()


async def _alone(limit_s: float) -> float:
    """How often a second the function ends, if each place calls it again at once."""
    start_s = time.perf_counter()

    async def place() -> int:
        count = 0
        while time.perf_counter() - start_s < limit_s:
            await pause_5_ms()
            count += 1
        return count

    counts = await asyncio.gather(*[place() for _ in range(IO_PLACES)])
    return sum(counts) / (time.perf_counter() - start_s)


async def _run(setting: Setting, type_: str, count: int, places: int, ahead: int = 0) -> float:
    with setting.scratch() as folder:
        async with opened(folder) as broker:
            working = embedded_workers(
                broker, PROCESSES, SystemClock(), SystemRandom(), places=places, ahead=ahead
            )
            async with working:
                await _through(broker, type_, BATCH)
                return await setting.median(lambda: _through(broker, type_, count))


async def _through(broker: Broker, type_: str, count: int) -> float:
    """Submit tasks and wait until all have their results; tasks a second."""
    payload = PAYLOAD if type_ == noop.__name__ else b""
    batches = iter([BATCH] * (count // BATCH))
    counts = broker.term.counts
    wanted = counts[Status.FINISHED] + count // BATCH * BATCH

    async def submitter() -> None:
        for size in batches:
            await broker.submit([Spec(type_, payload=payload) for _ in range(size)])

    start_s = time.perf_counter()
    await asyncio.gather(*[submitter() for _ in range(UNDER_WAY)])
    submitted_s = time.perf_counter() - start_s
    while counts[Status.FINISHED] < wanted:  # noqa: ASYNC110 (what is measured tells nobody)
        await asyncio.sleep(0.002)
    taken_s = time.perf_counter() - start_s
    note(f"{count:,} tasks of {type_}: submitted in {submitted_s:.2f} s, done in {taken_s:.2f} s")
    return count / taken_s


async def _submit(
    setting: Setting, scenario: str, batch: int, callers: int, calls: int
) -> list[Result]:
    async def measure() -> float:
        with setting.scratch() as folder:
            async with opened(folder) as broker:

                async def caller() -> None:
                    for _ in range(calls):
                        await broker.submit([Spec("a", payload=PAYLOAD) for _ in range(batch)])

                start_s = time.perf_counter()
                await asyncio.gather(*[caller() for _ in range(callers)])
                return callers * calls * batch / (time.perf_counter() - start_s)

    value = await setting.median(measure)
    return [Result(SUBJECT, scenario, round(value), "tasks/s", None)]


async def _dispatch(setting: Setting, count: int) -> list[Result]:
    waits_s: list[float] = []
    with setting.scratch() as folder:
        async with opened(folder) as broker:
            link = await broker.connect(
                Hello("worker", "process", "here", (), WorkerLimits(10), ())
            )
            await link.receive()
            for number in range(count):
                await broker.submit([Spec("a", payload=PAYLOAD)])
                start_s = time.perf_counter()
                while True:
                    messages = await link.receive()
                    runs = [
                        run for one in messages if isinstance(one, Assigned) for run in one.runs
                    ]
                    if runs:
                        break
                waits_s.append(time.perf_counter() - start_s)
                ended = [Completion(run.id, run.attempt, Ended.FINISHED) for run in runs]
                await link.send([Done(number + 1, link.session, ended)])
                await asyncio.sleep(0.002)
    cuts = statistics.quantiles(waits_s, n=100)
    return [
        Result(SUBJECT, "dispatch-idle-p50", round(1000 * cuts[49], 3), "ms", None),
        Result(SUBJECT, "dispatch-idle-p99", round(1000 * cuts[98], 3), "ms", None),
    ]


async def _stall(setting: Setting, count: int) -> list[Result]:
    with setting.scratch() as folder:
        async with opened(folder) as broker:
            for _ in range(count // BATCH):
                await broker.submit([Spec("a", payload=PAYLOAD) for _ in range(BATCH)])
            quiet_ms = await _longest_ms(broker, lambda ended: ended, 200)
            snapshot = asyncio.ensure_future(broker.replica.snapshot())
            beside_ms = await _longest_ms(broker, lambda _: snapshot.done(), 0)
            await snapshot
    return [Result(SUBJECT, "task-snapshot-longest", beside_ms, "ms", quiet_ms)]


async def _longest_ms(broker: Broker, ended: Callable[[bool], bool], calls: int) -> float:
    longest_s, number = 0.0, 0
    while not ended(number >= calls):
        start_s = time.perf_counter()
        await broker.submit([Spec("a", payload=PAYLOAD)])
        longest_s = max(longest_s, time.perf_counter() - start_s)
        number += 1
    return round(1000 * longest_s, 3)
