"""What who asks may see and change, whichever way they came: HTTP, gRPC, frames.

Tasks belong to tenants. Who administers the store may do all; anybody else sees the tasks of the
tenants that they may read, and submits and changes those of tenants that they may write to.

Invariants:
- What belongs to others is told as what there is not.
- Where tasks run, how long more than a month they are kept, how long more than a day a transaction
  stays open, and which object a payload is, administrators say. An object may be another tenant's.
- What a call asks for is counted before any of it is looked at.
- A slot is one lock for all tenants: that it is busy they are told, not by whose task.
- Settings, schedules, code, workers and roll-outs are administrators' business.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from broker.calls import Calls
from broker.commands import Refusal, Spec
from broker.errors import (
    AccessDenied,
    BrokerError,
    SlotBusy,
    TooLarge,
    UnknownTask,
    UnknownTransaction,
)
from broker.spec import DAY_MS, EDGES_MAX, TRANSACTION_TASKS_MAX
from broker.task import HOUR_MS, Task
from engine.access.principal import ALL, Principal

A = TypeVar("A")
EVERY_TENANT: Final = ALL
RETENTION_MS_MAX: Final = 30 * 24 * HOUR_MS
"""So long a tenant may have its ended tasks kept."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks. `tenants`: whose tasks they may see and change who are no administrators, "*" for
    everybody's; `readable`: those whose tasks they may only see."""

    name: str = ""
    admin: bool = True
    tenants: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()

    @staticmethod
    def of(principal: Principal) -> "Asking":
        """Who asks, by their grants.

        >>> from engine.access.principal import Grant
        >>> Asking.of(Principal("ann", grants=(Grant("tenant", "shop", "write"),))).acts("shop")
        True
        """
        changes = principal.named("tenant", "write")
        sees = principal.named("tenant", "read") - changes
        return Asking(principal.name, principal.admin, tuple(sorted(changes)), tuple(sorted(sees)))

    @property
    def everywhere(self) -> bool:
        """Whether they may act for every tenant."""
        return self.admin or EVERY_TENANT in self.tenants

    @property
    def sees_all(self) -> bool:
        """Whether they may see every tenant's tasks."""
        return self.everywhere or EVERY_TENANT in self.readable

    @property
    def seen(self) -> tuple[str, ...]:
        """The tenants whose tasks they may see who may not see all."""
        return self.tenants + self.readable

    @property
    def tenant(self) -> str:
        """The one tenant that they may act for, "" for all. Raises `AccessDenied` for several."""
        return "" if self.everywhere else self._only(self.tenants)

    @property
    def view(self) -> str:
        """The one tenant whose tasks they see, "" for all. Raises `AccessDenied` for several."""
        return "" if self.sees_all else self._only(self.seen)

    def _only(self, tenants: tuple[str, ...]) -> str:
        if len(tenants) == 1:
            return tenants[0]
        known = ", ".join(tenants)
        raise AccessDenied(f"say for which tenant: {known}" if known else f"{self.name} has none")

    def acts(self, tenant: str) -> bool:
        """Whether they may submit and change tasks of a tenant."""
        return self.everywhere or tenant in self.tenants

    def sees(self, tenant: str) -> bool:
        """Whether they may see tasks of a tenant."""
        return self.sees_all or tenant in self.seen

    def check_admin(self) -> None:
        """Raise `AccessDenied` for who is no administrator."""
        if not self.admin:
            raise AccessDenied(f"user {self.name} is no administrator")

    def check_acts(self) -> None:
        """Raise `AccessDenied` if the user may not act for any tenant."""
        if not (self.everywhere or self.tenants):
            raise AccessDenied(f"user {self.name} may not act for any tenant")

    def check_tenant(self, tenant: str) -> None:
        """Raise `AccessDenied` for who may not act for a tenant."""
        if not self.acts(tenant):
            raise AccessDenied(f"user {self.name} may only act for the tenant {_all(self.tenants)}")

    def check_seen(self, tenant: str) -> None:
        """Raise `AccessDenied` for who may not see a tenant's tasks."""
        if not self.sees(tenant):
            raise AccessDenied(f"user {self.name} may only see the tenant {_all(self.seen)}")


def _all(tenants: tuple[str, ...]) -> str:
    return ", ".join(tenants) or "of nobody"


async def seen_task(calls: Calls, who: Asking, task_id: int) -> Task:
    """A task that they may see. Raises `UnknownTask`."""
    task = await calls.task(task_id)
    if not who.sees(task.tenant):
        raise UnknownTask(f"there is no task {task_id}", task_id=task_id)
    return task


async def own_task(calls: Calls, who: Asking, task_id: int) -> Task:
    """A task that they may change. Raises `UnknownTask`, `AccessDenied` for one they only see."""
    task = await seen_task(calls, who, task_id)
    who.check_tenant(task.tenant)
    return task


async def check_specs(calls: Calls, who: Asking, specs: Sequence[Spec]) -> None:
    """Raise `AccessDenied` or `UnknownTask` where a task says what they may not say.

    Raises `TooLarge` for more tasks, or more parents, than one who is no administrator may submit.
    """
    if not who.admin:
        if len(specs) > TRANSACTION_TASKS_MAX:
            raise TooLarge(f"{len(specs):,} tasks at once; {TRANSACTION_TASKS_MAX:,} fit")
        if sum(len(spec.parents) for spec in specs) > EDGES_MAX:
            raise TooLarge(f"a batch has at most {EDGES_MAX:,} parents in all")
    for spec in specs:
        await _check_spec(calls, who, spec)


async def _check_spec(calls: Calls, who: Asking, spec: Spec) -> None:
    who.check_tenant(spec.tenant)
    if spec.payload_object and not who.admin:
        raise AccessDenied("which object a payload is, is for administrators to say")
    if who.everywhere:
        return
    if spec.fixed:
        raise AccessDenied("where tasks run, group and resources, is for administrators to say")
    if max(spec.retention_ms, spec.dead_retention_ms) > RETENTION_MS_MAX:
        days = RETENTION_MS_MAX // (24 * HOUR_MS)
        raise AccessDenied(f"more than {days} days of retention are for administrators to give")
    for parent in spec.parents:
        if parent.task_id:
            await seen_task(calls, who, parent.task_id)


def check_ttl(who: Asking, ttl_ms: int | None) -> None:
    """Raise `AccessDenied` for a transaction that may stay open longer than theirs may."""
    if ttl_ms is not None and ttl_ms > DAY_MS and not who.admin:
        raise AccessDenied("more than a day for a transaction is for administrators to give")


async def discreet(calls: Calls, who: Asking, answers: Sequence[A]) -> list[A]:
    """The same answers; of slots that are busy the task is named only to who may see it."""
    if who.everywhere:
        return list(answers)
    told: list[Any] = []
    for answer in answers:
        if isinstance(answer, Refusal) and answer.code == SlotBusy.code:
            if not await _sees(calls, who, answer.task_id):
                told.append(Refusal(answer.code, "the slot is held by a task of another tenant"))
                continue
        told.append(answer)
    return told


async def _sees(calls: Calls, who: Asking, task_id: int) -> bool:
    try:
        await seen_task(calls, who, task_id)
    except BrokerError:
        # Not theirs, gone, or asked too late: what was submitted is told in any case.
        return False
    return True


async def check_transaction(calls: Calls, who: Asking, number: int) -> None:
    """Raise `UnknownTransaction` for one that they have not begun; 0 is none."""
    if not number or who.everywhere:
        return
    found = await calls.transactions(number - 1, 1)
    if not any(each.id == number and each.owner == who.name for each in found):
        raise UnknownTransaction(f"there is no transaction {number}")
