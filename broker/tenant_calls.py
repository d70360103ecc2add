"""A broker as one who asks may use it: `Calls`, with the rules of `broker.access` before each.

Invariants:
- Every call of the contract is one of three: of tasks that are somebody's, of an administrator, of
  anybody. One that is new belongs to an administrator until it is sorted in here.
- What a caller shows of a task is never believed: its row is looked at again.
- Who a change is by is who asks, whatever they say.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from broker.access import (
    EVERY_TENANT,
    Asking,
    check_specs,
    check_transaction,
    check_ttl,
    discreet,
    own_task,
    seen_task,
)
from broker.answering import OF_A_TENANT, ResourceStatus
from broker.calls import Calls
from broker.commands import ITEMS_MAX, Answer, Refusal, Spec
from broker.connection import Hello, WorkerLink
from broker.errors import AccessDenied, TooLarge
from broker.reading import TaskFilter, TaskPage
from broker.scheduling import Waiting
from broker.task import Status, Task, Transaction

OF_ANYBODY: Final = frozenset({"now_ms", "counts", "workers"})
"""They name no task and no tenant."""
_TYPE: Final = "type"


async def resources_seen(calls: Calls, who: Asking) -> list[ResourceStatus]:
    """Resources, and the types of waiting and running tasks and the quotas that a user may see."""
    found = await calls.resources()
    if who.sees_all:
        return found
    types = {each.key.type for each in await calls.queues() if who.sees(each.key.tenant)}
    for tenant in who.seen:
        running = TaskFilter(frozenset([Status.RUNNING]), tenant)
        types |= {task.type for task in (await calls.tasks(running, 0, ITEMS_MAX)).tasks}
    seen = dict.fromkeys(OF_A_TENANT, who.sees) | {_TYPE: types.__contains__}
    return [each for each in found if each.kind not in seen or seen[each.kind](each.name)]


class TenantCalls:
    """The calls of one who is no administrator. What is not defined here they may not ask."""

    def __init__(self, calls: Calls, who: Asking) -> None:
        self._calls = calls
        self._who = who

    def __getattr__(self, name: str) -> Any:
        if name in OF_ANYBODY:
            return getattr(self._calls, name)

        async def refuse(*_: Any, **__: Any) -> None:
            self._who.check_admin()

        return refuse

    async def submit(
        self, specs: Sequence[Spec], *, transaction: int = 0, atomic: bool = False
    ) -> list[int | Refusal]:
        """See `Calls`."""
        who = self._who
        await check_transaction(self._calls, who, transaction)
        await check_specs(self._calls, who, specs)
        own = [msgspec.structs.replace(spec, submitter=who.name) for spec in specs]
        answers = await self._calls.submit(own, transaction=transaction, atomic=atomic)
        return await discreet(self._calls, who, answers)

    async def begin(self, owner: str = "", ttl_ms: int | None = None) -> int:
        """See `Calls`."""
        self._who.check_acts()
        check_ttl(self._who, ttl_ms)
        return await self._calls.begin(self._who.name, ttl_ms)

    async def commit(self, transaction: int) -> int:
        """See `Calls`."""
        await check_transaction(self._calls, self._who, transaction)
        return await self._calls.commit(transaction)

    async def rollback(self, transaction: int) -> int:
        """See `Calls`."""
        await check_transaction(self._calls, self._who, transaction)
        return await self._calls.rollback(transaction)

    async def transactions(self, above: int = 0, limit: int = 1_000) -> list[Transaction]:
        """See `Calls`; their own."""
        found = await self._calls.transactions(above, limit)
        return [each for each in found if each.owner == self._who.name]

    async def task(self, task_id: int) -> Task:
        """See `Calls`."""
        return await seen_task(self._calls, self._who, task_id)

    async def payload(self, task: Task) -> bytes:
        """See `Calls`."""
        return await self._calls.payload(await seen_task(self._calls, self._who, task.id))

    async def result(self, task: Task) -> bytes:
        """See `Calls`."""
        return await self._calls.result(await seen_task(self._calls, self._who, task.id))

    async def wait(self, task_id: int, timeout_ms: int | None = None) -> Task:
        """See `Calls`."""
        await seen_task(self._calls, self._who, task_id)
        return await self._calls.wait(task_id, timeout_ms)

    async def tasks(self, wanted: TaskFilter, above: int = 0, limit: int = 100) -> TaskPage:
        """See `Calls`; a page may have fewer than were asked for."""
        who = self._who
        if wanted.tenant:
            who.check_seen(wanted.tenant)
        elif not who.sees_all and len(who.seen) == 1:
            wanted = msgspec.structs.replace(wanted, tenant=who.view)
        page = await self._calls.tasks(wanted, above, limit)
        return TaskPage([task for task in page.tasks if who.sees(task.tenant)], page.above)

    async def cancel(self, task_ids: Sequence[int], by: str = "") -> list[Answer]:
        """See `Calls`."""
        await self._check_own(task_ids)
        return await self._calls.cancel(task_ids, self._who.name)

    async def retry(self, task_ids: Sequence[int], by: str = "") -> list[Answer | Refusal]:
        """See `Calls`."""
        await self._check_own(task_ids)
        answers = await self._calls.retry(task_ids, self._who.name)
        return await discreet(self._calls, self._who, answers)

    async def delete(self, task_ids: Sequence[int]) -> list[Answer]:
        """See `Calls`."""
        await self._check_own(task_ids)
        return await self._calls.delete(task_ids)

    async def queues(self) -> list[Waiting]:
        """See `Calls`; those of tenants that they see."""
        return [each for each in await self._calls.queues() if self._who.sees(each.key.tenant)]

    async def resources(self) -> list[ResourceStatus]:
        """See `Calls`; only types and quotas of tenants that the caller may see."""
        return await resources_seen(self._calls, self._who)

    async def connect(self, hello: Hello) -> WorkerLink:
        """See `Calls`."""
        check_works(self._who)
        return await self._calls.connect(hello)

    async def _check_own(self, task_ids: Sequence[int]) -> None:
        if len(task_ids) > ITEMS_MAX:
            raise TooLarge(f"{len(task_ids):,} tasks at once; {ITEMS_MAX:,} fit")
        for task_id in task_ids:
            await own_task(self._calls, self._who, task_id)


def check_works(who: Asking) -> None:
    """Raise `AccessDenied` for whose workers may not take tasks.

    A worker takes what waits in its groups, whoever's it is: it needs the right to all tenants.
    """
    if not who.everywhere:
        raise AccessDenied(
            f"user {who.name} may not take tasks: a worker needs the grant tenant {EVERY_TENANT} "
            "write"
        )


def as_seen_by(calls: Calls, who: Asking) -> Calls:
    """The calls as somebody may make them."""
    return calls if who.admin else TenantCalls(calls, who)
