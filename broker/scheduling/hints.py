"""What an operator should hear of: tasks whose kind no worker takes.

Invariants:
- A type and group is hinted at once for each time that no worker takes it for long.
- Nothing is said while a worker takes it, however busy or limited that worker is.
"""

from typing import Final

from broker.scheduling.picks import Hint
from broker.scheduling.queues import QueueKey
from broker.scheduling.take import Scheduler
from broker.scheduling.workers import WorkerView

_WORKERS_NAMED: Final = 3


class Hints:
    """Looks at a scheduler now and then. `after_ms`: how long is long."""

    def __init__(self, scheduler: Scheduler, after_ms: int) -> None:
        self._scheduler = scheduler
        self._after_ms = after_ms
        self._alone_since_ms: dict[tuple[str, int], int] = {}
        self._said: set[tuple[str, int]] = set()

    def look(self, now_ms: int) -> list[Hint]:
        """What is to be said at this moment."""
        workers = [one for one in self._scheduler.workers.values() if one.connected]
        alone = {
            (type_, group)
            for type_, group in self._scheduler.index.wanted
            if not any(one.runs(type_) and one.serves(group) for one in workers)
        }
        self._said &= alone
        self._alone_since_ms = {
            kind: self._alone_since_ms.get(kind, now_ms) for kind in sorted(alone)
        }
        due = {
            kind
            for kind, since_ms in self._alone_since_ms.items()
            if now_ms - since_ms >= self._after_ms and kind not in self._said
        }
        self._said |= due
        return self._worded(due, workers, now_ms) if due else []

    def _worded(
        self, due: set[tuple[str, int]], workers: list[WorkerView], now_ms: int
    ) -> list[Hint]:
        oldest: dict[tuple[str, int], tuple[int, int, QueueKey]] = {}
        for queue in self._scheduler.queues():
            kind = queue.key.type, queue.target.group
            if kind in due:
                found = queue.since_ms, queue.first_id, queue.key
                oldest[kind] = min(oldest.get(kind, found), found)
        return [
            Hint(type_, group, key.tenant, task_id, _text(key, group, task_id, workers))
            for (type_, group), (_, task_id, key) in sorted(oldest.items())
        ]


def _text(key: QueueKey, group: int, task_id: int, workers: list[WorkerView]) -> str:
    waits = f"task {task_id} of tenant {key.tenant!r} waits: no worker takes type {key.type!r}"
    if not workers:
        return f"{waits} of group {group}, as none is connected; start one that does"
    named = "; ".join(_described(one) for one in workers[:_WORKERS_NAMED])
    more = f" and {len(workers) - _WORKERS_NAMED} more" if len(workers) > _WORKERS_NAMED else ""
    return f"{waits} of group {group}; connected are {named}{more}"


def _described(worker: WorkerView) -> str:
    types = ", ".join(sorted(worker.types)) or "any"
    groups = ", ".join("any" if not group else str(group) for group in worker.groups)
    without = ", ".join(str(group) for group in sorted(worker.excluded))
    return (
        f"{worker.worker_id!r} (types: {types}; groups: {groups}"
        f"{f' but {without}' if without else ''})"
    )
