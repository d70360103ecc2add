"""The calls of `Calls` over some wire: what they have in common whatever carries them.

Invariants:
- A batch is cut into messages that fit; once a part of it was taken, every failure of the rest is
  an unknown outcome.
- A wait has no end of its own at the server: it is asked for anew until the caller's time is up.
"""

from collections.abc import Sequence
from typing import Any, Final

from broker.answering import ResourceStatus, ScheduleStatus, WorkerStatus
from broker.batching import checked_all
from broker.commands import ITEMS_MAX, Answer, Refusal, Schedule, Spec, encode
from broker.errors import BrokerError, OutcomeUnknown, TooLarge, WaitTimedOut, error_of
from broker.reading import TaskFilter, TaskPage
from broker.rollout_commands import Note, RolloutChange, RolloutRow
from broker.scheduling import Waiting
from broker.settings import Setting, encode_setting
from broker.task import CodePool, Status, Task, Transaction
from engine.ports.clock import Clock

CODE_BYTES_MAX: Final = 7 * 1024 * 1024
WAIT_STEP_MS: Final = 50_000
"""So long one message asks to wait at most."""
_SUBMIT_BYTES: Final = 3 * 1024 * 1024


class CallsByName:
    """All of `Calls` but `connect`, by asking for a name with arguments: see `METHODS`."""

    code_bytes_max = CODE_BYTES_MAX

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def _ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        """What a call answers. Raises `BrokerError`."""
        raise AssertionError("the wire says")

    # Submitting

    async def submit(
        self, specs: Sequence[Spec], *, transaction: int = 0, atomic: bool = False
    ) -> list[int | Refusal]:
        """See `Calls`. What does not fit one message goes in several, unless it goes together."""
        related = bool(transaction) or atomic or any(spec.parents for spec in specs)
        cut = _parts(specs)
        parts = [specs] if related else cut
        answers: list[int | Refusal] = []
        for part in parts:
            try:
                answers += await self._ask("submit", part, transaction=transaction, atomic=atomic)
            except BrokerError as error:
                if not answers or isinstance(error, OutcomeUnknown):
                    raise
                text = f"{len(answers)} of {len(specs)} tasks were taken, then: {error.message}"
                raise OutcomeUnknown(text, leader=error.leader) from error
        return answers

    async def begin(self, owner: str = "", ttl_ms: int | None = None) -> int:
        """See `Calls`."""
        return int(await self._ask("begin", owner, ttl_ms))

    async def commit(self, transaction: int) -> int:
        """See `Calls`."""
        return int(await self._ask("commit", transaction))

    async def rollback(self, transaction: int) -> int:
        """See `Calls`."""
        return int(await self._ask("rollback", transaction))

    # Tasks

    async def task(self, task_id: int) -> Task:
        """See `Calls`."""
        found: Task = await self._ask("task", task_id)
        return found

    async def payload(self, task: Task) -> bytes:
        """See `Calls`."""
        return bytes(await self._ask("payload", task))

    async def result(self, task: Task) -> bytes:
        """See `Calls`."""
        return bytes(await self._ask("result", task))

    async def wait(self, task_id: int, timeout_ms: int | None = None) -> Task:
        """See `Calls`."""
        until_s = None
        if timeout_ms is not None:
            until_s = self._clock.monotonic() + timeout_ms / 1000
        while True:
            left_ms = WAIT_STEP_MS
            if until_s is not None:
                left_ms = min(left_ms, int((until_s - self._clock.monotonic()) * 1000))
            try:
                found: Task = await self._ask("wait", task_id, max(0, left_ms))
                return found
            except WaitTimedOut:
                if until_s is not None and self._clock.monotonic() >= until_s:
                    raise

    async def tasks(self, wanted: TaskFilter, above: int = 0, limit: int = 100) -> TaskPage:
        """See `Calls`."""
        found: TaskPage = await self._ask("tasks", wanted, above, limit)
        return found

    async def cancel(self, task_ids: Sequence[int], by: str = "") -> list[Answer]:
        """See `Calls`."""
        return list(await self._ask("cancel", task_ids, by))

    async def retry(self, task_ids: Sequence[int], by: str = "") -> list[Answer | Refusal]:
        """See `Calls`."""
        return [
            each if isinstance(each, Refusal) else Answer(each)
            for each in await self._ask("retry", task_ids, by)
        ]

    async def delete(self, task_ids: Sequence[int]) -> list[Answer]:
        """See `Calls`."""
        return list(await self._ask("delete", task_ids))

    # Settings and schedules

    async def set(self, kind: str, name: str, setting: Setting | None, by: str = "") -> bool:
        """See `Calls`."""
        packed = None if setting is None else encode_setting(setting)
        return bool(await self._ask("set", kind, name, packed, by))

    async def settings_of(self, kind: str = "") -> list[tuple[str, str, Setting]]:
        """See `Calls`."""
        return list(await self._ask("settings_of", kind))

    async def set_schedule(self, schedule: Schedule, by: str = "") -> None:
        """See `Calls`."""
        await self._ask("set_schedule", schedule, by)

    async def delete_schedule(self, name: str) -> None:
        """See `Calls`."""
        await self._ask("delete_schedule", name)

    async def pause_schedule(self, name: str, *, paused: bool = True, by: str = "") -> None:
        """See `Calls`."""
        await self._ask("pause_schedule", name, paused=paused, by=by)

    async def schedules(self) -> list[ScheduleStatus]:
        """See `Calls`."""
        return list(await self._ask("schedules"))

    # Code pools

    async def put_code(
        self, name: str, archive: bytes, ttl_ms: int | None = None, by: str = ""
    ) -> None:
        """See `Calls`. Over the wire an archive has at most `code_bytes_max`."""
        limit = self.code_bytes_max
        if len(archive) > limit:
            raise TooLarge(f"an archive of {len(archive)} bytes; {limit} fit the wire")
        await self._ask("put_code", name, archive, ttl_ms, by)

    async def delete_code(self, name: str) -> None:
        """See `Calls`."""
        await self._ask("delete_code", name)

    async def code_pools(self) -> list[CodePool]:
        """See `Calls`."""
        return list(await self._ask("code_pools"))

    # Looking

    async def slots(self, above: str = "", limit: int = 1_000) -> list[tuple[str, int]]:
        """See `Calls`."""
        return list(await self._ask("slots", above, limit))

    async def transactions(self, above: int = 0, limit: int = 1_000) -> list[Transaction]:
        """See `Calls`."""
        return list(await self._ask("transactions", above, limit))

    async def workers(self, prefix: str = "") -> list[WorkerStatus]:
        """See `Calls`."""
        return list(await self._ask("workers", prefix))

    async def rollout(self, name: str) -> RolloutRow:
        """See `Calls`."""
        found: RolloutRow = await self._ask("rollout", name)
        return found

    async def rollouts(self, above: str = "", limit: int = 100) -> list[RolloutRow]:
        """See `Calls`."""
        return list(await self._ask("rollouts", above, limit))

    async def held_clusters(self) -> list[tuple[str, str]]:
        """See `Calls`."""
        return list(await self._ask("held_clusters"))

    async def rollout_notes(
        self, name: str, above: int = 0, limit: int = 1_000
    ) -> list[tuple[int, list[Note]]]:
        """See `Calls`."""
        return list(await self._ask("rollout_notes", name, above, limit))

    async def put_rollout(self, change: RolloutChange, by: str = "") -> list[int]:
        """See `Calls`."""
        return list(await self._ask("put_rollout", change, by))

    async def remove_rollout(self, name: str, version: int) -> None:
        """See `Calls`."""
        await self._ask("remove_rollout", name, version)

    async def resources(self) -> list[ResourceStatus]:
        """See `Calls`."""
        return list(await self._ask("resources"))

    async def queues(self) -> list[Waiting]:
        """See `Calls`."""
        return list(await self._ask("queues"))

    async def counts(self) -> dict[Status, int]:
        """See `Calls`."""
        return dict(await self._ask("counts"))

    async def ended(self) -> dict[str, int]:
        """See `Calls`."""
        return dict(await self._ask("ended"))

    async def now_ms(self) -> int:
        """See `Calls`."""
        return int(await self._ask("now_ms"))


def _parts(specs: Sequence[Spec]) -> list[Sequence[Spec]]:
    """Cut a batch into messages that fit. Raises `InvalidTask`."""
    parts: list[Sequence[Spec]] = []
    start = size_bytes = 0
    for number, spec in enumerate(checked_all(specs)):
        bytes_more = len(encode(spec))
        full = number - start == ITEMS_MAX or size_bytes + bytes_more > _SUBMIT_BYTES
        if full and number > start:
            parts.append(specs[start:number])
            start, size_bytes = number, 0
        size_bytes += bytes_more
    parts.append(specs[start:])
    return parts


def error_told(code: str, message: str, task_id: int, leader: str) -> BrokerError:
    """The error that a broker elsewhere told in words, which carry the remedy already."""
    kind = type(error_of(code, ""))
    if kind.remedy:
        message = message.removesuffix(f" ({kind.remedy})")
    return kind(message, task_id=task_id, leader=leader)
