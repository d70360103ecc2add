"""Tasks for users: submit, wait, cancel, look; with an event loop.

    handle = await tasks.submit(resize, {"path": "elsa.jpg"}, tenant="acme")
    small = await handle.wait(timeout_ms=10_000)

Invariants:
- A call that returns is durable: what it changed survives whatever fails afterwards.
- A handle is only an id: it works as long as the task is kept, from wherever it came.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from random import Random
from types import TracebackType
from typing import Any, Final

from msgspec.structs import replace

from broker.answering import ScheduleStatus
from broker.calls import Calls
from broker.commands import Parent, Refusal, Schedule, Spec
from broker.describing import Arguments, Wanted, What, describe, options_of
from broker.errors import (
    BrokerError,
    SubmitRefused,
    TaskCancelled,
    TaskFailed,
    TaskLost,
)
from broker.payloads import kept, whole
from broker.ports import PayloadStore
from broker.reading import TaskFilter, TaskPage
from broker.refusing import CANCEL, DELETE, RETRY, check_answers
from broker.rollouts.rollouts import AsyncRollouts
from broker.settings import Limit as ResourceLimit
from broker.settings import Mapping as TenantMapping
from broker.settings import Pause, Rate, Setting, TenantLimits
from broker.task import PAYLOAD_BYTES_MAX, Rule, Status, Task
from broker.worker import Registry
from broker.worker.registry import REGISTRY, decode_result
from engine.ports.clock import Clock

_ENDS: Final[dict[Status, type[BrokerError]]] = {
    Status.ERROR: TaskFailed,
    Status.CANCELLED: TaskCancelled,
    Status.LOST: TaskLost,
}


class TaskHandle:
    """A task that was submitted."""

    def __init__(self, tasks: "AsyncTasks", task_id: int) -> None:
        self._tasks = tasks
        self.id = task_id

    async def wait(self, timeout_ms: int | None = None) -> Any:
        """Its result, when it has ended; see `AsyncTasks.wait`."""
        return await self._tasks.wait(self.id, timeout_ms)

    async def get(self) -> Task:
        """The task as it is. Raises `UnknownTask`."""
        return await self._tasks.get(self.id)

    async def cancel(self) -> None:
        """End it; see `AsyncTasks.cancel`."""
        await self._tasks.cancel([self.id])

    def __int__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"TaskHandle({self.id})"


class AsyncTransaction:
    """Submits that go all together when the block ends, or not at all if it raises."""

    def __init__(self, tasks: "AsyncTasks", ttl_ms: int | None) -> None:
        self._tasks = tasks
        self._ttl_ms = ttl_ms
        self.id = 0

    async def submit(self, what: What, arguments: Arguments = None, **options: Any) -> TaskHandle:
        """As `AsyncTasks.submit`; it waits for the transaction."""
        wanted = Wanted(what, arguments, options_of(options))
        [answer] = await self._tasks.send([wanted], transaction=self.id)
        return self._tasks.handle(answer)

    async def __aenter__(self) -> "AsyncTransaction":
        self.id = await self._tasks.calls.begin(ttl_ms=self._ttl_ms)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self._tasks.calls.commit(self.id)
        else:
            # What the block raised is what its author has to hear; the time ends it anyway.
            with suppress(BrokerError):
                await self._tasks.calls.rollback(self.id)


class AsyncTasks:
    """The tasks of one broker. `calls` is the broker, wherever it is, `payloads` has what is too
    big for its log."""

    def __init__(
        self,
        calls: Calls,
        clock: Clock,
        rng: Random,
        registry: Registry = REGISTRY,
        payloads: PayloadStore | None = None,
    ) -> None:
        self.calls = calls
        self.payloads = payloads
        self._clock = clock
        self._rng = rng
        self._registry = registry

    # Submitting

    async def submit(self, what: What, arguments: Arguments = None, **options: Any) -> TaskHandle:
        """Submit a task: a type or a function of `@task`, its arguments by name or as bytes.

        Options are those of `Options`. Raises `InvalidTask`, `SubmitRefused` (`SlotBusy`,
        `DuplicateTask`, ...), `OutcomeUnknown`.
        """
        [answer] = await self.send([Wanted(what, arguments, options_of(options))])
        return self.handle(answer)

    async def submit_many(
        self, wanted: Iterable[Wanted], *, atomic: bool = False
    ) -> list[TaskHandle | SubmitRefused]:
        """Submit many at once, which costs far less; each is a handle, or why it was refused.

        `atomic`: all or none.
        """
        answers = await self.send(list(wanted), atomic=atomic)
        return [_handle_or_refusal(self, answer) for answer in answers]

    async def chain(
        self, steps: Sequence[Wanted], rule: Rule = Rule.ON_SUCCESS
    ) -> list[TaskHandle]:
        """Submit tasks of which each begins when the one before has ended; all or none.

        `rule`: how that one must have ended; where it does not, the rest is cancelled.
        """
        parents = [(), *[(Parent(index=number, rule=rule),) for number in range(len(steps) - 1)]]
        return await self._related(steps, parents)

    async def group(
        self, members: Sequence[Wanted], then: Wanted, rule: Rule = Rule.ON_SUCCESS
    ) -> list[TaskHandle]:
        """Submit tasks that run side by side, and one, the last, for when all have ended."""
        after = tuple(Parent(index=number, rule=rule) for number in range(len(members)))
        return await self._related([*members, then], [*[()] * len(members), after])

    async def _related(
        self, wanted: Sequence[Wanted], parents: Sequence[tuple[Parent, ...]]
    ) -> list[TaskHandle]:
        specs = [
            replace(spec, parents=(*spec.parents, *more))
            for spec, more in zip(await self._described(wanted), parents, strict=True)
        ]
        return [self.handle(answer) for answer in await self.calls.submit(specs, atomic=True)]

    def transaction(self, ttl_ms: int | None = None) -> AsyncTransaction:
        """Submits that go together: `async with tasks.transaction() as t: await t.submit(...)`."""
        return AsyncTransaction(self, ttl_ms)

    async def send(
        self, wanted: Sequence[Wanted], *, transaction: int = 0, atomic: bool = False
    ) -> list[int | Refusal]:
        """Submit what is described; ids or refusals."""
        specs = await self._described(wanted)
        return await self.calls.submit(specs, transaction=transaction, atomic=atomic)

    async def _described(self, wanted: Sequence[Wanted]) -> list[Spec]:
        # The broker may be far away: its time is asked only where one counts from it.
        timed = any(one.options.delay_ms or one.options.timeout_ms for one in wanted)
        now_ms = await self.calls.now_ms() if timed else 0
        specs = [describe(self._registry, one, now_ms) for one in wanted]
        if any(len(spec.payload) > PAYLOAD_BYTES_MAX for spec in specs):
            return [await self._stored(spec) for spec in specs]
        return specs

    async def _stored(self, spec: Spec) -> Spec:
        """The same, its payload in the store if it is too big for the log."""
        where = await kept(self.payloads, spec.payload)
        return replace(spec, payload=where.data, payload_object=where.payload_id)

    def handle(self, answer: int | Refusal) -> TaskHandle:
        """The handle of a task. Raises what refused it."""
        if isinstance(answer, Refusal):
            raise answer.error
        return TaskHandle(self, answer)

    # Results

    async def wait(self, task_id: int, timeout_ms: int | None = None) -> Any:
        """A task's result, when it has ended, as its function's annotation says.

        Raises `TaskFailed`, `TaskCancelled`, `TaskLost`, `WaitTimedOut`, `UnknownTask`.
        """
        task = await self.calls.wait(int(task_id), timeout_ms)
        kind = _ENDS.get(task.status)
        if kind is not None:
            error = task.error or f"task {task.id} has ended as {task.status.name.lower()}"
            raise kind(error, task_id=task.id)
        function = self._registry.of(task.type)
        result = await self._result(task)
        return decode_result(result) if function is None else function.decode_result(result)

    async def _result(self, task: Task) -> bytes:
        if task.result_object:
            return await whole(self.payloads, b"", task.result_object)
        return await self.calls.result(task)

    async def get(self, task_id: int) -> Task:
        """A task as it is. Raises `UnknownTask`."""
        return await self.calls.task(int(task_id))

    async def payload(self, task_id: int) -> bytes:
        """What a task is called with. Raises `UnknownTask`, `PayloadMissing`."""
        task = await self.get(task_id)
        if task.payload_object:
            return await whole(self.payloads, b"", task.payload_object)
        return await self.calls.payload(task)

    async def list(
        self, wanted: TaskFilter | None = None, above: int = 0, limit: int = 100
    ) -> TaskPage:
        """Tasks in the order of their ids, a page at a time."""
        return await self.calls.tasks(wanted or TaskFilter(), above, limit)

    async def dead(self, above: int = 0, limit: int = 100) -> TaskPage:
        """Tasks that failed for good and wait for somebody to look at them."""
        return await self.calls.tasks(TaskFilter(dead=True), above, limit)

    # Ending and beginning anew

    async def cancel(self, task_ids: Iterable[int | TaskHandle], by: str = "") -> None:
        """End tasks: those that wait at once, those that run as soon as their worker can.

        Raises `UnknownTask`, `NotInState` for one that has another end already.
        """
        ids = [int(task_id) for task_id in task_ids]
        answers = await self.calls.cancel(ids, by)
        await check_answers(self.calls, ids, answers, CANCEL)

    async def retry(self, task_ids: Iterable[int | TaskHandle], by: str = "") -> None:
        """Begin ended tasks anew, dead letters among them; their history goes on.

        Raises `UnknownTask`, `NotInState`, `SlotBusy`, `DuplicateTask`.
        """
        ids = [int(task_id) for task_id in task_ids]
        answers = await self.calls.retry(ids, by)
        await check_answers(self.calls, ids, answers, RETRY)

    async def delete(self, task_ids: Iterable[int | TaskHandle]) -> None:
        """Remove ended tasks and their results now. Raises `UnknownTask`, `NotInState`."""
        ids = [int(task_id) for task_id in task_ids]
        await check_answers(self.calls, ids, await self.calls.delete(ids), DELETE)

    # Schedules

    async def schedule(
        self,
        name: str,
        what: What,
        arguments: Arguments = None,
        *,
        cron: str = "",
        zone: str = "UTC",
        every_ms: int = 0,
        catch_up: bool = True,
        **options: Any,
    ) -> None:
        """Submit a task again and again: by a cron expression in a time zone, or at intervals.

        Raises `InvalidTask`, `InvalidSetting`.
        """
        spec = describe(self._registry, Wanted(what, arguments, options_of(options)), 0)
        spec = await self._stored(spec)
        schedule = Schedule(name, spec, cron, zone, every_ms, catch_up)
        await self.calls.set_schedule(schedule)

    async def schedules(self) -> Sequence[ScheduleStatus]:
        """All schedules, by name. `trouble` says why a due schedule cannot fire."""
        return await self.calls.schedules()

    async def pause_schedule(self, name: str) -> None:
        """Let a schedule fire no more until `resume_schedule`. Raises `UnknownSchedule`."""
        await self.calls.pause_schedule(name, paused=True)

    async def resume_schedule(self, name: str) -> None:
        """Resume a schedule. With `catch_up` it fires once for all the times that it missed.

        Does nothing if the schedule is not paused. Raises `UnknownSchedule`.
        """
        await self.calls.pause_schedule(name, paused=False)

    async def delete_schedule(self, name: str) -> None:
        """Remove a schedule. Raises `UnknownSchedule`."""
        await self.calls.delete_schedule(name)

    # Limits

    async def set(self, kind: str, name: str, setting: Setting | None, by: str = "") -> bool:
        """Change any setting (see `broker.settings`). Raises `InvalidSetting`."""
        return await self.calls.set(kind, name, setting, by)

    async def set_limit(self, resource: str, limit: int | None) -> None:
        """At most so many tasks hold a resource at the same time; None: any number."""
        setting = None if limit is None else ResourceLimit(limit)
        await self.calls.set("resource", resource, setting)

    async def set_tenant(
        self, tenant: str, *, weight: float = 1.0, reserved: int = 0, maximum: int | None = None
    ) -> None:
        """A tenant's weight, its reserved places, and how many it may have at most."""
        await self.calls.set("tenant", tenant, TenantLimits(weight, reserved, maximum))

    async def map_tenant(
        self, tenant: str, group: int = 1, resources: tuple[str, ...] = ()
    ) -> None:
        """Where a tenant's tasks run and what they take; those that wait already, too."""
        await self.calls.set("mapping", tenant, TenantMapping(group, resources))

    async def set_rate(self, scope: str, per_second: float | None, burst: int = 1) -> None:
        """So many begin a second, of `tenant:NAME`, `type:NAME` or `resource:NAME`."""
        setting = None if per_second is None else Rate(per_second, burst)
        await self.calls.set("rate", scope, setting)

    async def pause(self, scope: str, reason: str = "") -> None:
        """Let nothing more begin of `tenant:NAME` or `type:NAME`; what runs goes on."""
        await self.calls.set("pause", scope, Pause(reason))

    async def resume(self, scope: str) -> None:
        """Take a pause away."""
        await self.calls.set("pause", scope, None)

    # Roll-outs

    @property
    def rollouts(self) -> AsyncRollouts:
        """Maintenance of clusters, node by node."""
        return AsyncRollouts(self.calls)

    # Workers

    def workers(
        self, processes: int, *, places: int | None = None, modules: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[None]:
        """Run this program's own task functions in child processes while the block lasts."""
        return self._workers(processes, places, modules)

    @asynccontextmanager
    async def _workers(
        self, processes: int, places: int | None, modules: Sequence[str]
    ) -> AsyncIterator[None]:
        from broker.worker.serving import embedded_workers

        async with embedded_workers(
            self.calls,
            processes,
            self._clock,
            self._rng,
            places=places,
            modules=modules,
            registry=self._registry,
            payloads=self.payloads,
        ):
            yield


def _handle_or_refusal(tasks: AsyncTasks, answer: int | Refusal) -> TaskHandle | SubmitRefused:
    if not isinstance(answer, Refusal):
        return TaskHandle(tasks, answer)
    error = answer.error
    if not isinstance(error, SubmitRefused):
        # The transaction, or the whole call: no task of it was looked at.
        raise error
    return error


__all__ = ["AsyncTasks", "AsyncTransaction", "TaskHandle", "Wanted"]
