"""One command while it is applied: the rows, the time, and what is written once at its end.

Invariants:
- Time does not go back: a command with an older time happens at the newest time so far. Only
  `SetTime` sets it back.
- Counters, rows of what is to be purged and uses of code pools are written once a command.
- Changes are noted for a listener only, and nothing here depends on whether there is one.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from broker.commands import ITEMS_MAX, Schedule
from broker.keys import (
    ACTIVE,
    COUNTERS,
    EXPIRY,
    FINAL,
    POOL,
    UNSETTLED,
    named,
    numbered,
    pack_ids,
    paired,
    unpack_ids,
)
from broker.rollout_commands import RolloutRow
from broker.task import (
    CodePool,
    Counters,
    Status,
    Task,
    Transaction,
    Unsettled,
    WorkerSession,
    decode_counters,
    decode_pool,
    decode_task,
    encode,
)
from engine.replica.contract import Rows


class TaskChanged(msgspec.Struct, frozen=True, gc=False):
    """A task is new (`before` None), in another state, or gone (`after` None).

    `task` is as the command left it. Keep it, but do not change it.
    """

    before: Status | None
    after: Status | None
    task: Task


class TasksCame(msgspec.Struct, frozen=True, gc=False):
    """New tasks wait, which are alike in all but id and payload; `task` stands for each of them.

    `payload_bytes` are those of all their payloads together.
    """

    task: Task
    ids: range
    payload_bytes: int


class TasksAssigned(msgspec.Struct, frozen=True, gc=False):
    """Tasks that waited run now. As `TaskChanged`, of many at once."""

    tasks: list[Task]


class TasksFinished(msgspec.Struct, frozen=True, gc=False):
    """Tasks that ran have a result. As `TaskChanged`, of many at once."""

    tasks: list[Task]


class SessionChanged(msgspec.Struct, frozen=True):
    """A worker's session began or ended; `gone`: its row was removed."""

    worker: WorkerSession
    gone: bool = False


class SettingChanged(msgspec.Struct, frozen=True):
    """A setting has a new value; None: it was removed."""

    kind: str
    name: str
    value: bytes | None


class ScheduleChanged(msgspec.Struct, frozen=True):
    """A schedule is new, changed or fired; None: it was removed."""

    name: str
    schedule: Schedule | None


class TransactionChanged(msgspec.Struct, frozen=True):
    """A transaction was opened or grew; None: it has ended."""

    transaction_id: int
    transaction: Transaction | None


class PoolChanged(msgspec.Struct, frozen=True):
    """A code pool is there, or has gone (None)."""

    name: str
    pool: CodePool | None


class RolloutChanged(msgspec.Struct, frozen=True):
    """A roll-out has begun, changed its record, or ended."""

    row: RolloutRow


class GraphPending(msgspec.Struct, frozen=True):
    """Work is left, of graphs or transactions, for more commands: `Settle` until it answers 0."""


Change = (
    TaskChanged
    | TasksCame
    | TasksAssigned
    | TasksFinished
    | SessionChanged
    | SettingChanged
    | ScheduleChanged
    | TransactionChanged
    | PoolChanged
    | RolloutChanged
    | GraphPending
)
Listener = Callable[[Change], None]

_COUNTERS_KEY: Final = COUNTERS


class Step:
    """A command being applied."""

    __slots__ = (
        "_expiring",
        "_pool_uses",
        "changes",
        "counters",
        "delete",
        "drawn",
        "get",
        "now_ms",
        "pending",
        "put",
        "scan",
        "settling",
        "time_before_ms",
    )

    def __init__(self, rows: Rows, now_ms: int, heard: bool, drawn: int = 0) -> None:
        self.get = rows.get
        self.put = rows.put
        self.delete = rows.delete
        self.scan = rows.scan
        found = self.get(_COUNTERS_KEY)
        self.counters = Counters() if found is None else decode_counters(found)
        self.time_before_ms = self.counters.now_ms
        """The time of the previous command."""
        self.now_ms = self.counters.now_ms = max(now_ms, self.counters.now_ms)
        self.drawn = drawn
        self.changes: list[Change] | None = [] if heard else None
        self.settling: deque[tuple[int, Status]] = deque()
        """Tasks that have ended and have children."""
        self.pending = False
        """Something is left for `Settle`."""
        self._expiring: dict[int, list[int]] = {}
        self._pool_uses: dict[str, int] = {}

    def active(self, task_id: int) -> Task | None:
        """A task that has not ended."""
        row = self.get(numbered(ACTIVE, task_id))
        return None if row is None else decode_task(row)

    def final(self, task_id: int) -> Task | None:
        """A task that has ended."""
        row = self.get(numbered(FINAL, task_id))
        return None if row is None else decode_task(row)

    def store(self, before: Status | None, task: Task) -> None:
        """Write a task that has not ended."""
        self.put(numbered(ACTIVE, task.id), encode(task))
        if self.changes is not None:
            self.changes.append(TaskChanged(before, task.status, task))

    def changed(self, change: Change) -> None:
        """Note something for the listener."""
        if self.changes is not None:
            self.changes.append(change)

    def purge_later(self, task_id: int, expire_ms: int) -> None:
        """A task that has ended is to go at that moment: see `purge_ms`."""
        ids = self._expiring.get(expire_ms)
        if ids is None:
            self._expiring[expire_ms] = [task_id]
        else:
            ids.append(task_id)

    def use_pool(self, name: str, more: int) -> None:
        """So many more tasks name a code pool, fewer if negative."""
        self._pool_uses[name] = self._pool_uses.get(name, 0) + more

    def pool(self, name: str) -> CodePool | None:
        """A code pool, whole or not, without the uses that this command adds."""
        row = self.get(named(POOL, name))
        return None if row is None else decode_pool(row)

    def close(self) -> None:
        """Write what is written once a command."""
        for expire_ms, ids in self._expiring.items():
            self._write_expiry(expire_ms, ids)
        for name, more in self._pool_uses.items():
            pool = self.pool(name)
            if pool is not None and more:
                pool.tasks += more
                self.put(named(POOL, name), encode(pool))
        for parent, status in self.settling:
            self.put(numbered(UNSETTLED, parent), encode(Unsettled(status)))
        if self.settling or self.pending:
            self.changed(GraphPending())
        self.put(_COUNTERS_KEY, encode(self.counters))

    def _write_expiry(self, expire_ms: int, ids: list[int]) -> None:
        for start in range(0, len(ids), ITEMS_MAX):
            some = ids[start : start + ITEMS_MAX]
            key = paired(EXPIRY, expire_ms, some[0])
            there = self.get(key)
            if there is not None:
                # The same task ended before within the same millisecond.
                some = sorted({*unpack_ids(there), *some})
            self.put(key, pack_ids(some))


def purge_ms(task: Task) -> int:
    """When a task that has ended was kept long enough."""
    return task.finished_ms + (task.dead_retention_ms if task.dead else task.retention_ms)
