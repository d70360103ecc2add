"""The scheduler alone: what a take costs however many wait, what an id weighs, what a flood delays.

Invariants:
- The garbage collector is on, and runs as it does in a broker.
- As many wait at the end of a measurement as at its beginning: what is taken is replaced.
- Only the takes are timed; ends and new tasks between them are not.
"""

import gc
import time
import tracemalloc
from typing import Final

from benchmarks.result import Result
from benchmarks.setting import Setting
from broker.connection import WorkerLimits
from broker.scheduling import QueueKey, Scheduler
from broker.settings import Limit, Mapping

SUBJECT: Final = "broker"
TENANTS: Final = 1_000
RESOURCES: Final = 50
PLACES: Final = 100
BATCH_IDS: Final = 25
WORKER: Final = "worker"


def take_100(setting: Setting) -> list[Result]:
    """100 tasks for one worker, with a thousand tenants; few waiting, and very many."""
    results: list[Result] = []
    for name, waiting in (("few", 100_000), ("many", setting.size(2_000_000, 200_000))):
        grown_bytes = weight_bytes(waiting)
        # What was weighed is rubbish by now; to clear it away is no part of a take.
        gc.collect()
        scheduler = filled(waiting)
        times_ms = sorted(_takes(scheduler, waiting, setting.size(5_000, 300)))
        p99_ms = times_ms[len(times_ms) * 99 // 100]
        results += [
            Result(
                SUBJECT, f"take-100-{name}-p50", round(times_ms[len(times_ms) // 2], 3), "ms", None
            ),
            Result(SUBJECT, f"take-100-{name}-p99", round(p99_ms, 3), "ms", None),
            Result(SUBJECT, f"take-100-{name}-max", round(times_ms[-1], 3), "ms", None),
            Result(SUBJECT, f"take-100-{name}-id", round(grown_bytes / waiting, 1), "bytes", None),
        ]
    return results


def flood(setting: Setting) -> list[Result]:
    """How many freed places another tenant's first task waits for, behind 100,000 of one tenant."""
    scheduler = Scheduler(aging_ms=60_000)
    scheduler.connect(WORKER, (), WorkerLimits(PLACES))
    count = setting.size(100_000, 10_000)
    scheduler.push_many(QueueKey("flood", "mow"), range(1, count + 1), 0)
    running = [pick.id for pick in scheduler.take(WORKER, PLACES, 0)]
    worst = 0
    for number in range(setting.size(1_000, 100)):
        own = count + 1 + number
        scheduler.push(QueueKey(f"small{number}", "mow"), own, number)
        freed = 0
        while own not in running:
            scheduler.release(running.pop(0))
            freed += 1
            running += [pick.id for pick in scheduler.take(WORKER, 1, number)]
        worst = max(worst, freed)
    return [Result(SUBJECT, "take-flood-places", worst, "places", None)]


def filled(waiting: int) -> Scheduler:
    """A scheduler in which so many wait: of a thousand tenants, two types, two priorities.

    Every tenant's tasks take a unit of one of fifty resources.
    """
    scheduler = Scheduler(aging_ms=60_000)
    for number in range(RESOURCES):
        scheduler.configure("resource", f"database{number}", Limit(PLACES))
    for number in range(TENANTS):
        mapping = Mapping(resources=(f"database{number % RESOURCES}",))
        scheduler.configure("mapping", f"tenant{number}", mapping)
    scheduler.connect(WORKER, (), WorkerLimits(PLACES))
    for first in range(0, waiting, BATCH_IDS):
        ids = range(first + 1, first + 1 + BATCH_IDS)
        scheduler.push_many(key_of(first // BATCH_IDS), ids, first // 1_000)
    return scheduler


def key_of(number: int) -> QueueKey:
    """The queue of one batch."""
    turn = number // TENANTS
    return QueueKey(f"tenant{number % TENANTS}", ("mow", "plough")[turn % 2], turn // 2 % 2)


def _takes(scheduler: Scheduler, waiting: int, rounds: int) -> list[float]:
    times_ms: list[float] = []
    following = waiting + 1
    for number in range(rounds):
        now_ms = (waiting + number * BATCH_IDS) // 1_000
        start = time.perf_counter()
        picks = scheduler.take(WORKER, PLACES, now_ms)
        times_ms.append((time.perf_counter() - start) * 1_000)
        assert len(picks) == PLACES
        for pick in picks:
            scheduler.release(pick.id)
            scheduler.push(pick.key, following, now_ms)
            following += 1
    return times_ms


def weight_bytes(waiting: int) -> int:
    """What a scheduler in which so many wait has asked for; the process's size would tell less,
    for it has room left over from what ran before."""
    tracemalloc.start()
    scheduler = filled(waiting)
    weighed_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scheduler.waiting == waiting
    return weighed_bytes
