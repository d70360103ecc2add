"""What who may act for one tenant alone may touch.

Invariants:
- What belongs to others is told as what there is not.
- Where tasks run, and how long more than a month they are kept, administrators say.
- A slot is one lock for all tenants: that it is busy they are told, not by whose task.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from broker.commands import Refusal, Spec
from broker.errors import AccessDenied, BrokerError, SlotBusy, UnknownTask, UnknownTransaction
from broker.http.desk import Desk
from broker.http.logins import Asking
from broker.task import HOUR_MS, Task

A = TypeVar("A")
RETENTION_MS_MAX: Final = 30 * 24 * HOUR_MS
"""So long a tenant may have its ended tasks kept."""


async def seen_task(desk: Desk, who: Asking, task_id: int) -> Task:
    """A task that they may see. Raises `UnknownTask`."""
    task = await desk.calls.task(task_id)
    if not who.sees(task.tenant):
        raise UnknownTask(f"there is no task {task_id}", task_id=task_id)
    return task


async def check_spec(desk: Desk, who: Asking, spec: Spec) -> None:
    """Raise `AccessDenied` or `UnknownTask` where a task says what they may not say."""
    who.check_tenant(spec.tenant)
    if who.everywhere:
        return
    if spec.fixed:
        raise AccessDenied("where tasks run, group and resources, is for administrators to say")
    if spec.retention_ms > RETENTION_MS_MAX:
        days = RETENTION_MS_MAX // (24 * HOUR_MS)
        raise AccessDenied(f"more than {days} days of retention are for administrators to give")
    for parent in spec.parents:
        if parent.task_id:
            await seen_task(desk, who, parent.task_id)


async def discreet(desk: Desk, who: Asking, answers: Sequence[A]) -> list[A]:
    """The same answers; of slots that are busy the task is named only to who may see it."""
    if who.everywhere:
        return list(answers)
    told: list[Any] = []
    for answer in answers:
        if isinstance(answer, Refusal) and answer.code == SlotBusy.code:
            if not await _sees(desk, who, answer.task_id):
                told.append(Refusal(answer.code, "the slot is held by a task of another tenant"))
                continue
        told.append(answer)
    return told


async def _sees(desk: Desk, who: Asking, task_id: int) -> bool:
    try:
        await seen_task(desk, who, task_id)
    except BrokerError:
        # Not theirs, gone, or asked too late: what was submitted is told in any case.
        return False
    return True


async def check_transaction(desk: Desk, who: Asking, number: int) -> None:
    """Raise `UnknownTransaction` for one that they have not begun; 0 is none."""
    if not number or who.everywhere:
        return
    found = await desk.calls.transactions(number - 1, 1)
    if not any(each.id == number and each.owner == who.name for each in found):
        raise UnknownTransaction(f"there is no transaction {number}")
