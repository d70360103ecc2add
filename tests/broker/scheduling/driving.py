"""What the tests of the scheduler share: workers, tasks and takes in a line each."""

from collections import Counter
from collections.abc import Sequence

from broker.connection import WorkerLimits
from broker.scheduling import Pick, QueueKey, Scheduler

WORKER = "worker"
TYPE = "resize"


def limits(
    places: int = 100,
    *,
    by_type: dict[str, int] | None = None,
    groups: tuple[int, ...] = (0,),
    excluded: tuple[int, ...] = (),
    resources: dict[str, int] | None = None,
    share_percent: int = 0,
) -> WorkerLimits:
    """A worker's limits."""
    return WorkerLimits(places, by_type or {}, groups, excluded, resources or {}, share_percent)


def scheduler_with(given: WorkerLimits | None = None, *, aging_ms: int = 0) -> Scheduler:
    """A scheduler with one worker."""
    scheduler = Scheduler(aging_ms=aging_ms)
    scheduler.connect(WORKER, (), given or limits())
    return scheduler


def push(scheduler: Scheduler, tenant: str, ids: Sequence[int], type_: str = TYPE) -> None:
    """Tasks of a tenant wait."""
    scheduler.push_many(QueueKey(tenant, type_), ids, 0)


def run_one(scheduler: Scheduler, now_ms: int = 0) -> Pick | None:
    """Take one task and end it."""
    picks = scheduler.take(WORKER, 1, now_ms)
    for pick in picks:
        scheduler.release(pick.id)
    return picks[0] if picks else None


def tenants_of(picks: Sequence[Pick]) -> Counter[str]:
    """How many of each tenant."""
    return Counter(pick.tenant for pick in picks)


def ids_of(picks: Sequence[Pick]) -> list[int]:
    """Their ids, in order."""
    return [pick.id for pick in picks]
