"""What can be asked of a broker, in this process or far away: one contract for every way in.

`Broker` is one on its leader; a client over a wire is another one, which finds the leader itself.

Invariants:
- Every call raises `BrokerError` and nothing else on purpose.
- A call that raises anything but `OutcomeUnknown` changed nothing.
"""

from collections.abc import Sequence
from typing import Protocol

from broker.answering import ResourceStatus, ScheduleStatus, WorkerStatus
from broker.commands import Answer, Refusal, Schedule, Spec
from broker.connection import Hello, WorkerLink
from broker.reading import TaskFilter, TaskPage
from broker.rollout_commands import Note, RolloutChange, RolloutRow
from broker.scheduling import Waiting
from broker.settings import Setting
from broker.task import CodePool, Status, Task, Transaction


class Calls(Protocol):
    """A broker. Times are in milliseconds of its clock."""

    async def submit(
        self, specs: Sequence[Spec], *, transaction: int = 0, atomic: bool = False
    ) -> list[int | Refusal]:
        """Take tasks; for each its id, or why it was not taken, in their order.

        `atomic`: all or none; `transaction`: they go when it is committed. Raises `InvalidTask`,
        `TooLarge`, `UnknownTransaction`.
        """
        ...

    async def begin(self, owner: str = "", ttl_ms: int | None = None) -> int:
        """Open a transaction of submits; its number."""
        ...

    async def commit(self, transaction: int) -> int:
        """Let all tasks of a transaction go; how many. Raises `UnknownTransaction`."""
        ...

    async def rollback(self, transaction: int) -> int:
        """Forget a transaction and its tasks; how many. Raises `UnknownTransaction`."""
        ...

    async def task(self, task_id: int) -> Task:
        """A task as it is. Raises `UnknownTask`."""
        ...

    async def payload(self, task: Task) -> bytes:
        """A task's payload."""
        ...

    async def result(self, task: Task) -> bytes:
        """What a task that is finished returned."""
        ...

    async def wait(self, task_id: int, timeout_ms: int | None = None) -> Task:
        """A task when it has ended. Raises `UnknownTask`, `WaitTimedOut`."""
        ...

    async def tasks(self, wanted: TaskFilter, above: int = 0, limit: int = 100) -> TaskPage:
        """Tasks with ids over `above` that are wanted, and where to go on."""
        ...

    async def cancel(self, task_ids: Sequence[int], by: str = "") -> list[Answer]:
        """End tasks: at once, or ask their workers to."""
        ...

    async def retry(self, task_ids: Sequence[int], by: str = "") -> list[Answer | Refusal]:
        """Begin ended tasks anew, or say what another task holds."""
        ...

    async def delete(self, task_ids: Sequence[int]) -> list[Answer]:
        """Remove ended tasks and their results now."""
        ...

    async def set(self, kind: str, name: str, setting: Setting | None, by: str = "") -> bool:
        """Change a setting; None takes it away. Whether it was another. Raises `InvalidSetting`."""
        ...

    async def settings_of(self, kind: str = "") -> list[tuple[str, str, Setting]]:
        """All settings of a kind, or of all kinds: kind, name, value."""
        ...

    async def set_schedule(self, schedule: Schedule, by: str = "") -> None:
        """Add or replace a schedule. Raises `InvalidTask`, `InvalidSetting`."""
        ...

    async def delete_schedule(self, name: str) -> None:
        """Remove a schedule. Raises `UnknownSchedule`."""
        ...

    async def pause_schedule(self, name: str, *, paused: bool = True, by: str = "") -> None:
        """Pause or resume a schedule; its `catch_up` decides about the times that it missed.

        Raises `UnknownSchedule`.
        """
        ...

    async def schedules(self) -> list[ScheduleStatus]:
        """All schedules, by name, and why the leader cannot evaluate some of them."""
        ...

    async def slots(self, above: str = "", limit: int = 1_000) -> list[tuple[str, int]]:
        """Slots that are held, and the task in each, by name."""
        ...

    async def put_code(
        self, name: str, archive: bytes, ttl_ms: int | None = None, by: str = ""
    ) -> None:
        """Keep an archive for workers as a code pool, for ever or so long. Raises `TooLarge`."""
        ...

    async def delete_code(self, name: str) -> None:
        """Remove a code pool that no task needs. Raises `UnknownCodePool`, `NotInState`."""
        ...

    async def code_pools(self) -> list[CodePool]:
        """Code pools by name, those too whose parts are still coming."""
        ...

    async def transactions(self, above: int = 0, limit: int = 1_000) -> list[Transaction]:
        """Open transactions."""
        ...

    async def workers(self, prefix: str = "") -> list[WorkerStatus]:
        """Workers, those too whose session ended a while ago; of names that begin so."""
        ...

    async def rollout(self, name: str) -> RolloutRow:
        """A roll-out's record. Raises `UnknownRollout`."""
        ...

    async def rollouts(self, above: str = "", limit: int = 100) -> list[RolloutRow]:
        """Roll-outs by name, those too that have ended."""
        ...

    async def held_clusters(self) -> list[tuple[str, str]]:
        """Clusters that a roll-out holds, and which one: all that have not ended."""
        ...

    async def rollout_notes(
        self, name: str, above: int = 0, limit: int = 1_000
    ) -> list[tuple[int, list[Note]]]:
        """What was noted of a roll-out, change by change, over a number of a change."""
        ...

    async def put_rollout(self, change: RolloutChange, by: str = "") -> list[int]:
        """Set a roll-out's record as it was seen, and submit its tasks; their ids.

        Raises `RolloutChanged`, `ClusterBusy`, `DuplicateTask`, `SlotBusy`, `NotInState`.
        """
        ...

    async def remove_rollout(self, name: str, version: int) -> None:
        """Forget a roll-out that has ended. Raises `RolloutChanged`, `NotInState`."""
        ...

    async def resources(self) -> list[ResourceStatus]:
        """Resources and types with their limits and their use."""
        ...

    async def queues(self) -> list[Waiting]:
        """What waits: a queue for each tenant, type and priority."""
        ...

    async def counts(self) -> dict[Status, int]:
        """How many tasks are in each state; of those that have ended, since the leader leads."""
        ...

    async def ended(self) -> dict[str, int]:
        """How many tasks of each tenant have ended since the leader leads; "other": of the rest."""
        ...

    async def now_ms(self) -> int:
        """The broker's time."""
        ...

    async def connect(self, hello: Hello) -> WorkerLink:
        """See `WorkerPort`."""
        ...
