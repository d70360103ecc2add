"""`tasks`: what became of a broker's tasks, by tenant and type.

One executor replays the broker's newest snapshot and the log that is kept behind it, and counts.

Invariants:
- The report is of one position of the log; no broker is asked.
- It says how far back it reaches: what ended before that and was removed is not in it.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from engine.place import for_tasks
from pipeline.durations import Durations
from pipeline.job import Job
from pipeline.submitting import submit
from pipeline.task_history import History, TypeHistory, plan_replay, read_history, release

LIMIT: Final = 1_000


class Times(msgspec.Struct, frozen=True):
    """Durations in milliseconds; the percentiles are up to 5 % too high."""

    count: int
    mean_ms: int
    median_ms: int
    p95_ms: int
    longest_ms: int


class TypeReport(msgspec.Struct, frozen=True):
    """The tasks of one tenant and type; the fields of `TypeHistory`."""

    tenant: str
    type: str
    tasks: int
    states: dict[str, int]
    removed: int
    attempts: int
    failures: int
    dead: int
    oldest_waiting_ms: int
    waits: Times
    runs: Times


class TasksReport(msgspec.Struct, frozen=True):
    """Tenants and types with the most tasks first; `types` says how many there are in all.

    `since_ms` is from when on nothing is left out, 0: from the first task on. Tasks that ended
    earlier count while the broker keeps them.
    """

    position: tuple[int, int] | None
    broker_ms: int
    since_ms: int
    tasks: int
    types: int
    rows: tuple[TypeReport, ...]


def tasks(job: Job, *, limit: int = LIMIT) -> TasksReport:
    """Count the tasks of the store's broker; of a store without one there are none.

    Raises `HistoryMissing`, `MetadataUnavailable`, `CannotRead`, and what Spark raises.
    """
    replay = plan_replay(job.place)
    if replay is None:
        return TasksReport(None, 0, 0, 0, 0, ())
    try:
        reached = msgspec.structs.replace(replay, place=for_tasks(replay.place))
        history = job.spark.sparkContext.parallelize([reached], 1).map(read_history).first()
    finally:
        release(replay)
    return report_of(history, limit)


def report_of(history: History, limit: int = LIMIT) -> TasksReport:
    """What is told of a history."""
    rows = sorted(map(_row_of, history.types), key=lambda row: (-row.tasks, row.tenant, row.type))
    return TasksReport(
        position=(history.position.ledger, history.position.entry),
        broker_ms=history.broker_ms,
        since_ms=history.since_ms,
        tasks=sum(row.tasks for row in rows),
        types=len(rows),
        rows=tuple(rows[:limit]),
    )


def _row_of(found: TypeHistory) -> TypeReport:
    return TypeReport(
        tenant=found.tenant,
        type=found.type,
        tasks=sum(found.states.values()),
        states=found.states,
        removed=found.removed,
        attempts=found.attempts,
        failures=found.failures,
        dead=found.dead,
        oldest_waiting_ms=found.oldest_waiting_ms,
        waits=_times_of(found.waits),
        runs=_times_of(found.runs),
    )


def _times_of(found: Durations) -> Times:
    return Times(
        count=found.count,
        mean_ms=found.mean_ms,
        median_ms=found.percentile(0.5),
        p95_ms=found.percentile(0.95),
        longest_ms=found.longest_ms,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The job as `spark-submit` runs it, with the options of `herdbook pipeline tasks`."""
    submit("tasks", arguments)


if __name__ == "__main__":
    main()
