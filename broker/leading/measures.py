"""The metrics of a leader.

Invariants:
- Counters count batches and gauges are read on demand: only dead letters cost something per task.
- Latencies are sampled: one task per tenant and type of each batch sent, and the newest ended task
  of each at every look.
- The number of tenants and of types with metrics of their own is bounded. All others share one.
- Queues are counted at most once a second, however many metrics are read.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.task import Status, Task
from engine.ports.metrics import Histogram, Metrics

if TYPE_CHECKING:
    from broker.leading.term import Term

_SHOWN: Final = (
    Status.WAITING,
    Status.DELAYED,
    Status.BLOCKED,
    Status.PREPARED,
    Status.RUNNING,
)


LABELS_MAX: Final = 50
"""For tenants and for types each, so latencies have at most about the square of this."""
OTHER: Final = "other"
_FRESH_MS: Final = 1_000
_Waiting = dict[tuple[str, str], tuple[int, int]]
"""How many tasks of a tenant or type wait, and since when the first one waits."""


class Ended:
    """How many tasks of each tenant have ended. Tenants after the first thousand share a count."""

    TENANTS_MAX: Final = 1_000

    def __init__(self) -> None:
        self.by_tenant: dict[str, int] = {}

    def add(self, tasks: Iterable[Task]) -> None:
        """Count tasks that have ended."""
        known = self.by_tenant
        for task in tasks:
            tenant = task.tenant
            if tenant not in known and len(known) >= self.TENANTS_MAX:
                tenant = OTHER
            known[tenant] = known.get(tenant, 0) + 1


class TermMeasures:
    """Counters of a broker, and gauges of its current term."""

    def __init__(self, metrics: Metrics, term: "Callable[[], Term | None]") -> None:
        self.dispatched = metrics.counter(
            "herdbook_broker_dispatched_total", "Attempts that were sent to workers."
        )
        self.completed = metrics.counter(
            "herdbook_broker_completed_total", "Ends of attempts that workers reported."
        )
        self.lost = metrics.counter(
            "herdbook_broker_leases_expired_total", "Sessions of workers that were lost."
        )
        self.jumps = metrics.counter(
            "herdbook_broker_clock_jumps_total", "Jumps of the wall clock by over a minute."
        )
        self.dead = metrics.counter(
            "herdbook_broker_dead_letters_total", "Tasks that failed for good."
        )
        self.mended = metrics.counter(
            "herdbook_broker_memory_mended_total",
            "How often a leader rebuilt its memory because it differed from the rows.",
        )
        self._metrics = metrics
        self._term = term
        self._waited: dict[tuple[str, str], Histogram] = {}
        self._ran: dict[tuple[str, str], Histogram] = {}
        self._labels: dict[str, set[str]] = {"tenant": set(), "type": set()}
        self._counted: tuple[Term | None, int, _Waiting] = (None, 0, {})
        self._ends: list[Callable[[], None]] = [
            metrics.gauge(
                "herdbook_broker_oldest_waiting_seconds",
                "When the task that has waited longest began to wait.",
                lambda: self._oldest_s("", ""),
            ),
            *(_tasks_in_state(metrics, term, status) for status in _SHOWN),
            _schedules_in_trouble(metrics, term),
            metrics.gauge(
                "herdbook_broker_workers",
                "Workers with a session.",
                lambda: _asked(term, lambda one: len(list(one.crew))),
            ),
        ]

    def came(self, tenant: str, type_: str) -> None:
        """Tasks of a tenant and a type have arrived."""
        if tenant not in self._labels["tenant"]:
            self._label("tenant", tenant)
        if type_ not in self._labels["type"]:
            self._label("type", type_)

    def sent(self, tasks: Sequence[Task]) -> None:
        """A batch of attempts was sent to a worker."""
        for task in newest(tasks).values():
            waited_ms = task.started_ms - max(task.created_ms, task.due_ms)
            self._histogram(
                self._waited,
                "herdbook_broker_dispatch_seconds",
                "How long tasks waited from when they might begin until they were assigned.",
                task,
            ).observe(waited_ms / 1000)

    def ran(self, tasks: Iterable[Task]) -> None:
        """Measure how long these tasks ran."""
        for task in tasks:
            self._histogram(
                self._ran,
                "herdbook_broker_run_seconds",
                "How long attempts took from their assignment to their end.",
                task,
            ).observe((task.finished_ms - task.started_ms) / 1000)

    def _histogram(
        self, known: dict[tuple[str, str], Histogram], name: str, says: str, task: Task
    ) -> Histogram:
        tenant = self._label("tenant", task.tenant)
        type_ = self._label("type", task.type)
        found = known.get((tenant, type_))
        if found is None:
            found = self._metrics.histogram(name, says, tenant=tenant, type=type_)
            known[tenant, type_] = found
        return found

    def _label(self, kind: str, name: str) -> str:
        """The name to report under. Adds gauges for a new name, while there are few names."""
        known = self._labels[kind]
        if name in known:
            return name
        if len(known) >= LABELS_MAX:
            return OTHER
        known.add(name)
        labels = {kind: name}
        self._ends += [
            self._metrics.gauge(
                f"herdbook_broker_{kind}_waiting",
                f"Tasks that wait for a worker, by {kind}.",
                lambda: self._waiting().get((kind, name), (0, 0))[0],
                **labels,
            ),
            self._metrics.gauge(
                f"herdbook_broker_{kind}_oldest_waiting_seconds",
                f"When the task that has waited longest began to wait, by {kind}.",
                lambda: self._oldest_s(kind, name),
                **labels,
            ),
        ]
        return name

    def _waiting(self) -> _Waiting:
        """The waiting tasks, counted at most a second ago; the key ("", "") is for all."""
        term = self._term()
        if term is None:
            return {}
        now_ms = term.time.now_ms()
        whose, at_ms, found = self._counted
        if whose is not term or now_ms >= at_ms + _FRESH_MS:
            found = {}
            for queue in term.scheduler.queues():
                key, since_ms = queue.key, queue.since_ms
                for one in (("", ""), ("tenant", key.tenant), ("type", key.type)):
                    count, oldest_ms = found.get(one, (0, since_ms))
                    found[one] = count + queue.length, min(oldest_ms, since_ms)
            self._counted = term, now_ms, found
        return found

    def _oldest_s(self, kind: str, name: str) -> float:
        since_ms = self._waiting().get((kind, name), (0, 0))[1]
        term = self._term()
        return (term.time.now_ms() - since_ms) / 1000 if since_ms and term is not None else 0.0

    def end(self) -> None:
        """Remove the gauges."""
        for end in self._ends:
            end()


def newest(tasks: Iterable[Task]) -> dict[tuple[str, str], Task]:
    """The last task of each tenant and type."""
    return {(task.tenant, task.type): task for task in tasks}


def _tasks_in_state(
    metrics: Metrics, term: "Callable[[], Term | None]", status: Status
) -> Callable[[], None]:
    return metrics.gauge(
        "herdbook_broker_tasks",
        "Tasks that have not ended, by their state.",
        partial(_count, term, status),
        state=status.name.lower(),
    )


def _schedules_in_trouble(
    metrics: Metrics, term: "Callable[[], Term | None]"
) -> Callable[[], None]:
    return metrics.gauge(
        "herdbook_broker_schedules_in_trouble",
        "Schedules that are due and that the leader cannot fire.",
        lambda: _asked(term, lambda one: len(one.firing.troubles)),
    )


def _count(term: "Callable[[], Term | None]", status: Status) -> float:
    return _asked(term, lambda one: one.counts[status])


def _asked(term: "Callable[[], Term | None]", ask: "Callable[[Term], float]") -> float:
    found = term()
    return 0.0 if found is None else ask(found)
