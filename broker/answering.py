"""What a broker answers to who looks: tasks, queues, workers, limits and their use.

Invariants:
- Only a leader answers whose lease holds or whose log confirms the read, so no answer is stale.
- A look is bounded; long lists come in pages.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from broker import reading
from broker.commands import Schedule
from broker.errors import UnknownCodePool, UnknownRollout, UnknownTask
from broker.leading.term import Term
from broker.reading import TaskFilter, TaskPage
from broker.replicating import Replicated
from broker.rollout_commands import Note, RolloutRow
from broker.scheduling import Waiting
from broker.settings import Setting, decode_setting
from broker.task import CodePool, Status, Task, Transaction, WorkerSession
from broker.translating import translated
from engine.errors import EngineError
from engine.replica import ReadRows

T = TypeVar("T")
WAITING_TASKS: Final = "waiting_tasks"
WAITING_BYTES: Final = "waiting_bytes"
OF_A_TENANT: Final = (WAITING_TASKS, WAITING_BYTES)
"""Kinds of which a name is a tenant's."""


class WorkerStatus(msgspec.Struct, frozen=True):
    """A worker, and how much of it is used. `linked`: it can be told something now."""

    session: WorkerSession
    linked: bool = False
    running: int = 0
    places: int = 0
    types: tuple[str, ...] = ()
    """The types that it runs; none: any, or it is not connected."""


class ResourceStatus(msgspec.Struct, frozen=True):
    """A resource or a type: how many tasks hold a unit, and how many may (None: any number).

    Of a tenant with a quota, too: of the kind `WAITING_TASKS` how many wait, of `WAITING_BYTES` the
    bytes of their payloads, each as `running`.
    """

    kind: str
    name: str
    running: int
    limit: int | None
    paused: bool


class ScheduleStatus(Schedule):
    """A schedule, and why the leader cannot fire it although it is due (empty if it can)."""

    trouble: str = ""


class Answering:
    """The reads of a `Broker`, which is one."""

    replica: Replicated

    @property
    def term(self) -> Term:
        """What this leader has in memory. Raises `NotLeader`."""
        raise AssertionError("the broker says")

    @property
    def term_without_lease(self) -> Term:
        """What this leader has in memory, to propose commands. Raises `NotLeader`."""
        raise AssertionError("the broker says")

    def read(self, look: Callable[[ReadRows], T]) -> T:
        """What `look` finds in the rows of the leader, at once. Raises `NotLeader`."""
        try:
            return self.replica.read_now(look)
        except EngineError as error:
            raise translated(error) from error

    def get(self, task_id: int) -> Task:
        """A task as it is. Raises `UnknownTask`, `NotLeader`."""
        task = self.read(lambda rows: reading.get_task(rows, task_id))
        if task is None:
            raise UnknownTask(f"there is no task {task_id}", task_id=task_id)
        return task

    def payload_of(self, task: Task) -> bytes:
        """A task's payload."""
        return self.read(lambda rows: reading.payload_of(rows, task))

    def result_of(self, task: Task) -> bytes:
        """What a task that is finished returned."""
        return self.read(lambda rows: reading.result_of(rows, task))

    async def task(self, task_id: int) -> Task:
        """See `Calls`."""
        return self.get(task_id)

    async def payload(self, task: Task) -> bytes:
        """See `Calls`."""
        return self.payload_of(task)

    async def result(self, task: Task) -> bytes:
        """See `Calls`."""
        return self.result_of(task)

    async def tasks(self, wanted: TaskFilter, above: int = 0, limit: int = 100) -> TaskPage:
        """See `Calls`."""
        return self.read(lambda rows: reading.list_tasks(rows, wanted, above, limit))

    async def slots(self, above: str = "", limit: int = 1_000) -> list[tuple[str, int]]:
        """See `Calls`."""
        return self.read(lambda rows: reading.list_slots(rows, above, limit))

    async def schedules(self) -> list[ScheduleStatus]:
        """See `Calls`."""
        self.read(lambda rows: None)
        firing = self.term.firing
        return [
            ScheduleStatus(*(*msgspec.structs.astuple(schedule), firing.troubles.get(name, "")))
            for name, schedule in sorted(firing.schedules.items())
        ]

    def code(self, name: str) -> bytes:
        """A code pool's archive. Raises `UnknownCodePool`."""

        def look(rows: ReadRows) -> bytes | None:
            there = reading.get_pool(rows, name)
            return None if there is None else b"".join(reading.pool_parts(rows, name))

        found = self.read(look)
        if found is None:
            raise UnknownCodePool(f"there is no code pool {name}")
        return found

    async def fetch_code(self, name: str) -> bytes:
        """As `code`."""
        return self.code(name)

    async def code_pools(self) -> list[CodePool]:
        """See `Calls`."""
        return self.read(reading.list_pools)

    async def transactions(self, above: int = 0, limit: int = 1_000) -> list[Transaction]:
        """See `Calls`."""
        return self.read(lambda rows: reading.list_transactions(rows, above, limit))

    async def settings_of(self, kind: str = "") -> list[tuple[str, str, Setting]]:
        """See `Calls`."""
        found = self.read(lambda rows: reading.list_settings(rows, kind, None, 100_000))
        return [(kind, name, decode_setting(kind, name, row.value)) for kind, name, row in found]

    async def workers(self, prefix: str = "") -> list[WorkerStatus]:
        """See `Calls`."""
        rows = self.read(lambda rows: reading.list_workers(rows, "", 100_000, prefix))
        crew = self.term.crew
        found = []
        for session in rows:
            member = crew.get(session.worker_id)
            if member is None:
                found.append(WorkerStatus(session))
            else:
                places = member.known.limits.places
                linked = member.link is not None
                running, types = len(member.attempts), member.known.types
                found.append(WorkerStatus(session, linked, running, places, types))
        return found

    async def rollout(self, name: str) -> RolloutRow:
        """See `Calls`."""
        found = self.read(lambda rows: reading.get_rollout(rows, name))
        if found is None:
            raise UnknownRollout(f"there is no roll-out {name}")
        return found

    async def rollouts(self, above: str = "", limit: int = 100) -> list[RolloutRow]:
        """See `Calls`."""
        return self.read(lambda rows: reading.list_rollouts(rows, above, limit))

    async def held_clusters(self) -> list[tuple[str, str]]:
        """See `Calls`."""
        return self.read(reading.held_clusters)

    async def rollout_notes(
        self, name: str, above: int = 0, limit: int = 1_000
    ) -> list[tuple[int, list[Note]]]:
        """See `Calls`."""
        return self.read(lambda rows: reading.rollout_notes(rows, name, above, limit))

    async def resources(self) -> list[ResourceStatus]:
        """See `Calls`."""
        found = [
            ResourceStatus(gate.kind, gate.name, gate.used, gate.limit, gate.paused)
            for gate in self.term.scheduler.index.gates()
        ]
        for use in self.term.quotas.uses():
            tasks = (use.tasks, use.quota.tasks)
            size_bytes = (use.size_bytes, use.quota.payload_bytes)
            found.append(ResourceStatus(WAITING_TASKS, use.tenant, *tasks, False))
            found.append(ResourceStatus(WAITING_BYTES, use.tenant, *size_bytes, False))
        return found

    async def queues(self) -> list[Waiting]:
        """See `Calls`."""
        return list(self.term.scheduler.queues())

    async def counts(self) -> dict[Status, int]:
        """See `Calls`."""
        return {status: self.term.counts[status] for status in Status}

    async def ended(self) -> dict[str, int]:
        """See `Calls`."""
        return dict(self.term.ended.by_tenant)

    async def now_ms(self) -> int:
        """See `Calls`."""
        return self.term.time.now_ms()
