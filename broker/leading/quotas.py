"""Quotas: how many tasks of a tenant may wait to begin, and how many bytes their payloads have.

The leader counts: from the rows when its term begins, then by the changes in the log. A batch
reserves its room before it is proposed, and releases it when it is answered: by then it is counted.

Invariants:
- Submitted tasks above a quota are refused. Tasks on their way to the log count, too.
- Tasks of the broker itself (schedules, retries, roll-outs) count and are never refused.
- Setting a quota below the current use removes no task.
- A batch costs nothing here as long as no quota is set.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from broker.batching import encode_specs, expanded
from broker.commands import Refusal
from broker.errors import BatchRefused, TenantFull
from broker.settings import Quota
from broker.task import Status, Task

Answers = list[int | Refusal]
NOT_BEGUN: Final = frozenset((Status.WAITING, Status.DELAYED, Status.BLOCKED, Status.PREPARED))
"""States of tasks that count."""
EVERY_OTHER: Final = ""
"""The name of the quota of each tenant that has none of its own."""


class Wanted(NamedTuple):
    """A task to be submitted: its tenant, and the bytes of its payload."""

    tenant: str
    size_bytes: int


class Use(NamedTuple):
    """What a tenant with a quota uses of it."""

    tenant: str
    tasks: int
    size_bytes: int
    quota: Quota


class _Room:
    """What one tenant has waiting, and what is on its way to the log."""

    __slots__ = ("size_bytes", "taken", "taken_bytes", "tasks")

    def __init__(self) -> None:
        self.tasks = self.size_bytes = self.taken = self.taken_bytes = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to remember."""
        return not (self.tasks or self.taken)


class Quotas:
    """The quotas of one term, and what counts against them."""

    def __init__(self) -> None:
        self._quotas: dict[str, Quota] = {}
        self._rooms: dict[str, _Room] = {}

    @property
    def any(self) -> bool:
        """Whether there is a quota at all."""
        return bool(self._quotas)

    def set(self, tenant: str, quota: Quota | None) -> None:
        """Set a quota from the next batch on; None removes it."""
        if quota is None:
            self._quotas.pop(tenant, None)
        else:
            self._quotas[tenant] = quota

    def count(self, tenant: str, tasks: int, size_bytes: int) -> None:
        """Add waiting tasks; negative numbers remove them."""
        room = self._rooms.get(tenant)
        if room is None:
            room = self._rooms[tenant] = _Room()
        room.tasks += tasks
        room.size_bytes += size_bytes
        if room.empty:
            del self._rooms[tenant]

    def counted(self) -> dict[str, tuple[int, int]]:
        """How many tasks of each tenant wait to begin, and the bytes of their payloads."""
        return {
            tenant: (room.tasks, room.size_bytes)
            for tenant, room in self._rooms.items()
            if room.tasks
        }

    def uses(self) -> Iterator[Use]:
        """The use of each tenant with a quota: its own, or the one of all others."""
        others = self._quotas.get(EVERY_OTHER)
        names = {*self._quotas, *(self._rooms if others is not None else ())} - {EVERY_OTHER}
        for tenant in sorted(names):
            room = self._rooms.get(tenant) or _Room()
            quota = self._quotas.get(tenant, others)
            assert quota is not None
            yield Use(tenant, room.tasks, room.size_bytes, quota)

    @contextmanager
    def taking(self, wanted: Sequence[Wanted]) -> Iterator[list[Refusal | None]]:
        """Reserve room for the tasks of a batch during the block; for each, None or a refusal."""
        taken: list[Wanted] = []
        try:
            yield [self._take(one, taken) for one in wanted]
        finally:
            for one in taken:
                room = self._rooms[one.tenant]
                room.taken -= 1
                room.taken_bytes -= one.size_bytes
                if room.empty:
                    del self._rooms[one.tenant]

    def _take(self, one: Wanted, taken: list[Wanted]) -> Refusal | None:
        quota = self._quotas.get(one.tenant) or self._quotas.get(EVERY_OTHER)
        room = self._rooms.get(one.tenant) or _Room()
        if quota is not None:
            told = _above(quota, room, one)
            if told:
                return Refusal(TenantFull.code, told)
        self._rooms[one.tenant] = room
        room.taken += 1
        room.taken_bytes += one.size_bytes
        taken.append(one)
        return None


async def sent_within(
    quotas: Quotas,
    specs: Sequence[bytes],
    as_one: bool,
    send: Callable[[Sequence[bytes]], Awaitable[Answers]],
) -> Answers:
    """Send those tasks of a batch that the quotas allow. Returns the answers in order.

    `as_one`: all are refused if one is.
    """
    tasks = expanded(specs)
    wanted = [Wanted(task.tenant, len(task.payload)) for task in tasks]
    with quotas.taking(wanted) as refusals:
        if not any(refusals):
            return await send(specs)
        if as_one:
            other = Refusal(BatchRefused.code, "another task of the batch was refused")
            return [refusal or other for refusal in refusals]
        left = [task for task, refusal in zip(tasks, refusals, strict=True) if refusal is None]
        answers = iter(await send(encode_specs(left)) if left else ())
        return [refusal if refusal is not None else next(answers) for refusal in refusals]


def size_of(task: Task) -> int:
    """The bytes of a task's payload, as far as they are in the broker's rows."""
    return len(task.payload) + task.payload_bytes


def _above(quota: Quota, room: _Room, one: Wanted) -> str:
    tasks = room.tasks + room.taken
    if quota.tasks is not None and tasks >= quota.tasks:
        return f"tenant {one.tenant} has {tasks:,} tasks waiting (limit {quota.tasks:,})"
    size_bytes = room.size_bytes + room.taken_bytes
    if quota.payload_bytes is not None and size_bytes + one.size_bytes > quota.payload_bytes:
        return (
            f"tenant {one.tenant} has payloads of {size_bytes:,} bytes waiting, and may have "
            f"{quota.payload_bytes:,}; this one has {one.size_bytes:,}"
        )
    return ""
