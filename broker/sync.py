"""Tasks for code without an event loop: a thin face over `AsyncTasks`.

    handle = book.tasks.submit(resize, {"path": "elsa.jpg"}, tenant="acme")
    small = handle.wait(timeout_ms=10_000)

Invariants:
- A call makes one hop to the process's background loop.
- A call on the loop's own thread, or in a forked child, raises; it never hangs.
- An interrupted wait abandons the wait, never what was submitted.
"""

from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from broker.answering import ScheduleStatus
from broker.describing import Arguments, Wanted, What
from broker.errors import BrokerUnavailable, SubmitRefused
from broker.reading import TaskFilter, TaskPage
from broker.rollouts.sync import Rollouts
from broker.settings import Setting
from broker.task import Rule, Task
from broker.tasks import AsyncTasks, AsyncTransaction, TaskHandle
from engine.errors import InvalidRequest
from engine.ports.system_loop import BackgroundLoop

R = TypeVar("R")


class Handle:
    """A task that was submitted."""

    def __init__(self, tasks: "Tasks", task_id: int) -> None:
        self._tasks = tasks
        self.id = task_id

    def wait(self, timeout_ms: int | None = None) -> Any:
        """Its result, when it has ended; see `Tasks.wait`."""
        return self._tasks.wait(self.id, timeout_ms)

    def get(self) -> Task:
        """The task as it is. Raises `UnknownTask`."""
        return self._tasks.get(self.id)

    def cancel(self) -> None:
        """End it; see `Tasks.cancel`."""
        self._tasks.cancel([self.id])

    def __int__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"Handle({self.id})"


class Transaction:
    """Submits that go all together when the block ends, or not at all if it raises."""

    def __init__(self, tasks: "Tasks", transaction: AsyncTransaction) -> None:
        self._tasks = tasks
        self._transaction = transaction

    def submit(self, what: What, arguments: Arguments = None, **options: Any) -> Handle:
        """As `Tasks.submit`; it waits for the transaction."""
        run = self._tasks.run
        made = run(lambda: self._transaction.submit(what, arguments, **options))
        return Handle(self._tasks, made.id)

    def __enter__(self) -> "Transaction":
        self._tasks.run(self._transaction.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tasks.run(lambda: self._transaction.__aexit__(kind, error, trace))


class Tasks:
    """The tasks of one broker. Any number of threads may use one at the same time."""

    def __init__(self, tasks: AsyncTasks, loop: BackgroundLoop) -> None:
        """`tasks` was made on `loop`."""
        self._tasks = tasks
        self._loop = loop

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a call on the loop, and wait for it. Raises `BrokerUnavailable` where none may be."""
        try:
            return self._loop.run(call)
        except InvalidRequest as error:
            raise BrokerUnavailable(str(error)) from None

    # Submitting

    def submit(self, what: What, arguments: Arguments = None, **options: Any) -> Handle:
        """Submit a task; see `AsyncTasks.submit`."""
        made = self.run(lambda: self._tasks.submit(what, arguments, **options))
        return Handle(self, made.id)

    def submit_many(
        self, wanted: Iterable[Wanted], *, atomic: bool = False
    ) -> list[Handle | SubmitRefused]:
        """Submit many at once; see `AsyncTasks.submit_many`."""
        many = list(wanted)
        made = self.run(lambda: self._tasks.submit_many(many, atomic=atomic))
        return [Handle(self, one.id) if isinstance(one, TaskHandle) else one for one in made]

    def chain(self, steps: Sequence[Wanted], rule: Rule = Rule.ON_SUCCESS) -> list[Handle]:
        """Submit tasks of which each begins when the one before has ended."""
        made = self.run(lambda: self._tasks.chain(steps, rule))
        return [Handle(self, one.id) for one in made]

    def group(
        self, members: Sequence[Wanted], then: Wanted, rule: Rule = Rule.ON_SUCCESS
    ) -> list[Handle]:
        """Submit tasks that run side by side, and one, the last, for when all have ended."""
        made = self.run(lambda: self._tasks.group(members, then, rule))
        return [Handle(self, one.id) for one in made]

    def transaction(self, ttl_ms: int | None = None) -> Transaction:
        """Submits that go together: `with tasks.transaction() as t: t.submit(...)`."""
        return Transaction(self, self._tasks.transaction(ttl_ms))

    # Results

    def wait(self, task_id: int, timeout_ms: int | None = None) -> Any:
        """A task's result, when it has ended; see `AsyncTasks.wait`."""
        return self.run(lambda: self._tasks.wait(task_id, timeout_ms))

    def get(self, task_id: int) -> Task:
        """A task as it is. Raises `UnknownTask`."""
        return self.run(lambda: self._tasks.get(task_id))

    def payload(self, task_id: int) -> bytes:
        """What a task is called with; see `AsyncTasks.payload`."""
        return self.run(lambda: self._tasks.payload(task_id))

    def list(self, wanted: TaskFilter | None = None, above: int = 0, limit: int = 100) -> TaskPage:
        """Tasks in the order of their ids, a page at a time."""
        return self.run(lambda: self._tasks.list(wanted, above, limit))

    def dead(self, above: int = 0, limit: int = 100) -> TaskPage:
        """Tasks that failed for good and wait for somebody to look at them."""
        return self.run(lambda: self._tasks.dead(above, limit))

    # Ending and beginning anew

    def cancel(self, task_ids: Iterable[int | Handle], by: str = "") -> None:
        """End tasks; see `AsyncTasks.cancel`."""
        ids = [int(task_id) for task_id in task_ids]
        self.run(lambda: self._tasks.cancel(ids, by))

    def retry(self, task_ids: Iterable[int | Handle], by: str = "") -> None:
        """Begin ended tasks anew; see `AsyncTasks.retry`."""
        ids = [int(task_id) for task_id in task_ids]
        self.run(lambda: self._tasks.retry(ids, by))

    def delete(self, task_ids: Iterable[int | Handle]) -> None:
        """Remove ended tasks and their results now; see `AsyncTasks.delete`."""
        ids = [int(task_id) for task_id in task_ids]
        self.run(lambda: self._tasks.delete(ids))

    # Schedules

    def schedule(self, name: str, what: What, arguments: Arguments = None, **how: Any) -> None:
        """Submit a task again and again; see `AsyncTasks.schedule`."""
        self.run(lambda: self._tasks.schedule(name, what, arguments, **how))

    def schedules(self) -> Sequence[ScheduleStatus]:
        """All schedules, by name. `trouble` says why a due schedule cannot fire."""
        return self.run(self._tasks.schedules)

    def pause_schedule(self, name: str) -> None:
        """Let a schedule fire no more until `resume_schedule`. Raises `UnknownSchedule`."""
        self.run(lambda: self._tasks.pause_schedule(name))

    def resume_schedule(self, name: str) -> None:
        """Let a schedule fire again, at its next due time. Raises `UnknownSchedule`."""
        self.run(lambda: self._tasks.resume_schedule(name))

    def delete_schedule(self, name: str) -> None:
        """Remove a schedule. Raises `UnknownSchedule`."""
        self.run(lambda: self._tasks.delete_schedule(name))

    # Limits

    def set(self, kind: str, name: str, setting: Setting | None, by: str = "") -> bool:
        """Change any setting (see `broker.settings`). Raises `InvalidSetting`."""
        return self.run(lambda: self._tasks.set(kind, name, setting, by))

    def set_limit(self, resource: str, limit: int | None) -> None:
        """At most so many tasks hold a resource at the same time; None: any number."""
        self.run(lambda: self._tasks.set_limit(resource, limit))

    def set_tenant(
        self, tenant: str, *, weight: float = 1.0, reserved: int = 0, maximum: int | None = None
    ) -> None:
        """A tenant's weight, its reserved places, and how many it may have at most."""
        self.run(
            lambda: self._tasks.set_tenant(
                tenant, weight=weight, reserved=reserved, maximum=maximum
            )
        )

    def map_tenant(self, tenant: str, group: int = 1, resources: tuple[str, ...] = ()) -> None:
        """Where a tenant's tasks run and what they take; those that wait already, too."""
        self.run(lambda: self._tasks.map_tenant(tenant, group, resources))

    def set_rate(self, scope: str, per_second: float | None, burst: int = 1) -> None:
        """So many begin a second, of `tenant:NAME`, `type:NAME` or `resource:NAME`."""
        self.run(lambda: self._tasks.set_rate(scope, per_second, burst))

    def pause(self, scope: str, reason: str = "") -> None:
        """Let nothing more begin of `tenant:NAME` or `type:NAME`; what runs goes on."""
        self.run(lambda: self._tasks.pause(scope, reason))

    def resume(self, scope: str) -> None:
        """Take a pause away."""
        self.run(lambda: self._tasks.resume(scope))

    # Roll-outs

    @property
    def rollouts(self) -> Rollouts:
        """Maintenance of clusters, node by node."""
        return Rollouts(self._tasks.rollouts, self.run)

    # Workers

    @contextmanager
    def workers(
        self, processes: int, *, places: int | None = None, modules: Sequence[str] = ()
    ) -> Iterator[None]:
        """Run this program's own task functions in child processes while the block lasts."""
        working = self._tasks.workers(processes, places=places, modules=modules)
        self.run(working.__aenter__)
        try:
            yield
        except BaseException as error:
            # On the loop an interrupt would end the loop; there it is a cancelled block.
            left = error if isinstance(error, Exception) else CancelledError()
            self.run(lambda: working.__aexit__(type(left), left, None))
            raise
        self.run(lambda: working.__aexit__(None, None, None))
