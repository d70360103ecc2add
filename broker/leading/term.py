"""One term of a leader: its memory, which follows the log.

Nothing here is durable. When a term begins, the memory is built from the rows before any call is
served. From then on, it is updated by each change of a row, in the turn of the event loop in which
the change is applied.

Invariants:
- The memory depends only on the rows and on the commands that this leader has under way.
- Changes arrive once, in the order of the log. Handling one proposes nothing in the same call.
- A task takes a place of its worker from when it is picked until its attempt has ended.
- `place_of` decides where a task is. One function moves it: on every change of its row, and when
  the log has answered its assignment.
- An exception in here does not fail the state machine. `wrong` is called, and the broker builds a
  new memory from the rows.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from broker import keys, reading
from broker.applying import (
    Change,
    GraphPending,
    RolloutChanged,
    ScheduleChanged,
    SessionChanged,
    SettingChanged,
    TaskChanged,
    TasksAssigned,
    TasksCame,
    TasksFinished,
    TransactionChanged,
)
from broker.commands import LEVEL, Due, Expire, ExpireTransactions, decode_schedule
from broker.connection import Refused
from broker.errors import BrokerError, InvalidSetting, UnknownTask
from broker.leading.clock import BrokerTime
from broker.leading.cluster_limits import ClusterLimits
from broker.leading.completing import Completing
from broker.leading.crew import Crew
from broker.leading.dispatching import CANCELLED, OVERDUE, Dispatching
from broker.leading.events import Events
from broker.leading.firing import Firing
from broker.leading.housekeeping import Housekeeping
from broker.leading.leases import Leases
from broker.leading.measures import Ended, TermMeasures, newest
from broker.leading.place import Place, place_of
from broker.leading.proposing import Proposing
from broker.leading.quotas import NOT_BEGUN, Quotas, size_of
from broker.leading.timers import Handle, Key, Kind, Later, Timers
from broker.leading.waits import Waits
from broker.replicating import Replicated
from broker.scheduling import Pick, QueueKey, Scheduler
from broker.settings import BrokerSettings, Limit, Quota, decode_setting
from broker.task import (
    FINAL_STATES,
    SessionState,
    Status,
    Task,
    decode_task,
    decode_transaction,
    decode_worker,
    waits_since_ms,
)
from broker.task import decode_setting as decode_setting_row
from engine.ports.clock import Clock
from engine.replica import ReadRows

T = TypeVar("T")
_PAGE_ROWS: Final = 500
_HELD_LOOK_MS: Final = 1_000
_WAITING: Final = Status.WAITING
_RUNNING: Final = Status.RUNNING
_FINISHED: Final = Status.FINISHED
_PlainKey = tuple[str, str, int, int, tuple[str, ...]]
"""What a `QueueKey` is made of."""
Wrong = Callable[[str], None]
"""Called with a reason when the memory of a term may be wrong."""
_logger = logging.getLogger(__name__)


def unmended(why: str) -> None:
    """The default callback: do nothing."""


class Term:
    """A leader's memory and duties. Made by the broker when its replica leads."""

    def __init__(
        self,
        replica: Replicated,
        clock: Clock,
        later: Later,
        drawn: Callable[[], int],
        settings: BrokerSettings,
        scheduler: Scheduler,
        measures: TermMeasures,
        time: BrokerTime | None = None,
        retime: Callable[[], None] = lambda: None,
        wrong: Wrong = unmended,
        lack: Callable[[], str] = str,
    ) -> None:
        """`time` is the term's time, by default the later one of the log and the clock.

        `retime` is called when the wall clock has settled at another time, `wrong` when the memory
        does not match the rows. `lack` says why new data finds no room; "" if it does.
        """
        later = _guarded(later, wrong)
        self.number = replica.term
        self.scheduler = scheduler
        self.waits = Waits()
        self.quotas = Quotas()
        self.counts = [0] * (max(Status) + 1)
        """How many tasks are in each state, by its number. Ended tasks: only those of this term."""
        self.ended = Ended()
        """How many tasks have ended in this term."""
        self._replica = replica
        self.drawn = drawn
        logged_ms, self.clock_facts = replica.stale_read(reading.time_of)[0]
        self.time = time or BrokerTime(clock, logged_ms)
        self.retime = retime
        self.owners: dict[int, str] = {}
        """The owners of open transactions, by number; "": a part of the cluster."""
        self.waits_to_restart: tuple[list[int], list[int]] = [], []
        """Tasks and transactions whose wait began at a time that is now in the future."""
        self.events = Events(self.time, self.number)
        self.timers = Timers(self.time, later, self._ring)
        self.wrong = wrong
        self.proposing = Proposing(replica, self.time, wrong)
        self._measures = measures
        self._make_duties(clock, later, settings, lack)
        self.ended_lately: dict[tuple[str, str], Task] = {}
        """For each tenant and type, the newest task that finished since the metrics last looked."""
        self.withheld: set[int] = set()
        """Waiting tasks in no queue: it is in doubt whether their deadline has passed."""
        self.incoming: dict[_PlainKey, list[int]] = {}
        """Tasks that arrived in this turn of the event loop and are not in their queue yet."""
        self._under_way = self.dispatching.under_way_tasks

    def _make_duties(
        self, clock: Clock, later: Later, settings: BrokerSettings, lack: Callable[[], str]
    ) -> None:
        """Make the parts that act on the memory."""
        self.leases = Leases(clock, settings.lease_ms)
        self.dispatching = Dispatching(
            *(self.scheduler, self.proposing, self._measures, self._payload),
            later,
        )
        self.completing = Completing(self.proposing, self.drawn, self._measures.completed)
        self.crew = Crew(
            *(self.proposing, self.completing, self.leases, self.dispatching),
            *(self.drawn, self._replica.may_answer, self.wrong),
        )
        self.cluster_limits = ClusterLimits(self.scheduler)
        self.firing = Firing(self.proposing, self.timers, self.events, lack)
        self.housekeeping = Housekeeping(self, self._replica, settings, self._measures, later)

    # The beginning and the end

    async def build(self) -> None:
        """Read the rows, in pages. Raises `EngineError` if the replica does not lead any more."""
        now_ms = self.time.now_ms()
        for key, row in await self._all(keys.SETTING):
            kind, name = keys.split_setting(key)
            self._set(kind, name, decode_setting_row(row).value)
        for _, holder in await self._all(keys.CLUSTER):
            look = partial(reading.get_rollout, name=holder.decode())
            rollout = self._replica.stale_read(look)[0]
            if rollout is not None:
                self.cluster_limits.holds(rollout)
        for _, row in await self._all(keys.WORKER):
            worker = decode_worker(row)
            self.crew.restore(worker)
            self.housekeeping.session(worker, gone=False)
        for _, row in await self._all(keys.TRANSACTION):
            transaction = decode_transaction(row)
            since_ms = transaction.created_ms
            self.owners[transaction.id] = transaction.owner
            self.timers.set(Kind.TRANSACTION, transaction.id, transaction.expires_ms, since_ms)
            if transaction.created_ms > now_ms:
                self.waits_to_restart[1].append(transaction.id)
        for _, row in await self._all(keys.SCHEDULE):
            schedule = decode_schedule(row)
            self.firing.changed(schedule.name, schedule)
        orphans: dict[tuple[str, int], list[int]] = {}
        async for page in self._pages(keys.ACTIVE):
            waiting: dict[tuple[_PlainKey, int], list[int]] = {}
            for _, row in page:
                task = decode_task(row)
                if task.status is _WAITING and not self._held(task):
                    # It has waited since its last event, which another leader may have logged.
                    since_ms = min(task.events[-1][0] if task.events else task.created_ms, now_ms)
                    waiting.setdefault((_plain_key(task), since_ms), []).append(task.id)
                self._adopt(task, orphans)
            for (queue, since_ms), ids in waiting.items():
                self._measures.came(queue[0], queue[1])
                self.scheduler.push_many(QueueKey(*queue), ids, since_ms)
        self.housekeeping.restore(orphans)

    def start(self) -> None:
        """Begin to serve."""
        self.timers.start()
        self.dispatching.start(self.crew, self._flush_incoming, self._answered)
        self.housekeeping.start()
        self.events.tell(
            "term_began",
            address=self._replica.address,
            waiting=self.counts[_WAITING],
            running=self.counts[_RUNNING],
        )

    def drain(self) -> None:
        """Assign no more tasks and accept no more workers: another replica is to lead."""
        self.dispatching.stop()
        self.crew.drain()
        self.completing.flush()
        self.proposing.flush()

    def end(self, error: BrokerError) -> None:
        """End the term: another replica leads, or soon will."""
        self.events.flush()
        self.events.tell("term_ended", why=error.message, leader=error.leader)
        self.housekeeping.stop()
        self.timers.stop()
        self.dispatching.stop()
        self.crew.end(Refused(error.message, error.leader))
        self.proposing.end(error)
        self.waits.end(error)

    async def _all(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        return [row async for page in self._pages(kind) for row in page]

    async def _pages(self, kind: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        first, end = kind, keys.end_of(kind)
        while True:
            look = partial(_page, first, end)
            page, _ = self._replica.stale_read(look)
            if page:
                yield page
                first = page[-1][0] + b"\x00"
            if len(page) < _PAGE_ROWS:
                return
            await asyncio.sleep(0)

    def _adopt(self, task: Task, orphans: dict[tuple[str, int], list[int]]) -> None:
        status = task.status
        self.counts[status] += 1
        if status in NOT_BEGUN:
            self.quotas.count(task.tenant, 1, size_of(task))
        if status is Status.DELAYED:
            self.timers.set(Kind.DUE, task.id, task.due_ms, waits_since_ms(task))
            if waits_since_ms(task) > self.time.now_ms():
                self.waits_to_restart[0].append(task.id)
        elif status is Status.RUNNING:
            if self._occupy(task):
                if task.cancel_asked:
                    self.crew.interrupt(task.id, task.worker_id, CANCELLED)
            else:
                orphans.setdefault((task.worker_id, task.session), []).append(task.id)
        if task.deadline_ms and status is not Status.PREPARED:
            self.timers.set(Kind.DEADLINE, task.id, task.deadline_ms)

    # What the log tells

    def changed(self, change: Change) -> None:
        """Handle a change. This is the state machine's listener."""
        if type(change) is not TaskChanged:
            self._other_changed(change)
            return
        task = change.task
        if change.before is None and change.after is _WAITING and not task.deadline_ms:
            self.counts[_WAITING] += 1
            self.quotas.count(task.tenant, 1, size_of(task))
            self._push(task)
        else:
            self._task_changed(change)

    def _other_changed(self, change: Change) -> None:
        if isinstance(change, TasksCame):
            self.counts[_WAITING] += len(change.ids)
            self.quotas.count(change.task.tenant, len(change.ids), change.payload_bytes)
            self._push(change.task, change.ids)
        elif isinstance(change, TasksAssigned):
            self._assigned(change.tasks)
        elif isinstance(change, TasksFinished):
            self._finished(change.tasks)
        elif isinstance(change, SessionChanged):
            worker = change.worker
            if not change.gone:
                self.events.session(worker)
            if worker.state is not SessionState.CONNECTED or change.gone:
                self.crew.session_ended(worker.worker_id, worker.session)
            else:
                self.crew.session_began(worker)
            self.housekeeping.session(worker, gone=change.gone)
        elif isinstance(change, SettingChanged):
            self._set(change.kind, change.name, change.value)
            self.dispatching.wake()
            event = "setting_removed" if change.value is None else "setting_changed"
            self.events.tell(event, kind=change.kind, name=change.name)
        elif isinstance(change, ScheduleChanged):
            self.firing.changed(change.name, change.schedule)
        elif isinstance(change, TransactionChanged):
            if change.transaction is None:
                self.timers.remove(Kind.TRANSACTION, change.transaction_id)
                self.owners.pop(change.transaction_id, None)
            else:
                self.owners[change.transaction_id] = change.transaction.owner
                at_ms, since_ms = change.transaction.expires_ms, change.transaction.created_ms
                self.timers.set(Kind.TRANSACTION, change.transaction_id, at_ms, since_ms)
        elif isinstance(change, RolloutChanged):
            self.cluster_limits.changed(change)
            self.dispatching.wake()
        elif isinstance(change, GraphPending):
            self.housekeeping.settle()

    def _assigned(self, tasks: list[Task]) -> None:
        self.counts[_WAITING] -= len(tasks)
        self.counts[_RUNNING] += len(tasks)
        under_way, count = self._under_way, self.quotas.count
        for task in tasks:
            count(task.tenant, -1, -size_of(task))
            if task.id in under_way:
                under_way[task.id] = task
            else:
                self._settle(task, Place.QUEUED, Place.TAKEN)

    def _finished(self, tasks: list[Task]) -> None:
        self.counts[_RUNNING] -= len(tasks)
        self.counts[_FINISHED] += len(tasks)
        self.ended.add(tasks)
        under_way, waits = self._under_way, self.waits
        awaited = bool(waits)
        freed = []
        for task in tasks:
            task_id = task.id
            if task_id in under_way:
                under_way[task_id] = task
            else:
                freed.append(task_id)
            if awaited:
                waits.ended(task)
            if task.deadline_ms:
                self.timers.remove(Kind.DEADLINE, task_id)
        self.crew.forget(tasks)
        self.dispatching.freed(freed)
        self.ended_lately.update(newest(tasks))

    def _task_changed(self, change: TaskChanged) -> None:
        before, after, task = change.before, change.after, change.task
        counts = self.counts
        begins = (after in NOT_BEGUN) - (before in NOT_BEGUN)
        if begins:
            self.quotas.count(task.tenant, begins, begins * size_of(task))
        if before is not None and (counts[before] or before not in FINAL_STATES):
            # Tasks that ended under another leader were not counted.
            counts[before] -= 1
        if after is not None:
            counts[after] += 1
        under_way = task.id in self._under_way
        if under_way and (before is not after or self._under_way[task.id] is not None):
            # If this stays None, the task is unchanged and goes back to its old place in the queue.
            self._under_way[task.id] = task
        self._settle(task, place_of(before, under_way), place_of(after, under_way))
        if before is _RUNNING and after is not _RUNNING:
            self.crew.forget((task,))
        self._set_moments(before, after, task)
        if after is None:
            self.waits.gone(task.id, UnknownTask(f"task {task.id} was removed"))
        elif after is _RUNNING:
            if not under_way:
                self._occupy(task)
            if task.cancel_asked:
                self.crew.interrupt(task.id, task.worker_id, CANCELLED)
        elif after in FINAL_STATES:
            self.ended.add((task,))
            self.waits.ended(task)
            if task.dead:
                self._measures.dead.add()
                self.events.dead(task)

    def _set_moments(self, before: Status | None, after: Status | None, task: Task) -> None:
        """Set the timers of a task."""
        if after is Status.DELAYED:
            self.timers.set(Kind.DUE, task.id, task.due_ms, waits_since_ms(task))
        elif before is Status.DELAYED:
            self.timers.remove(Kind.DUE, task.id)
        if not task.deadline_ms:
            return
        if after is None or after in FINAL_STATES:
            self.timers.remove(Kind.DEADLINE, task.id)
        elif after is not Status.PREPARED and after is not _RUNNING:
            self.timers.set(Kind.DEADLINE, task.id, task.deadline_ms)

    def _held(self, task: Task) -> bool:
        """Withhold a task from the queues if it is in doubt whether its deadline has passed.

        Assigning the task would end it. The timer of its deadline fires when the doubt is over. A
        task that reaches its deadline in a queue is removed from the queue then.
        """
        deadline_ms = task.deadline_ms
        if not deadline_ms or not self.time.doubtful:
            return False
        held = self._in_doubt(task)
        if held:
            self.withheld.add(task.id)
        elif self.time.ring_ms(deadline_ms) > deadline_ms > self.time.now_ms():
            self._hold_at(task.id, deadline_ms)
        return held

    def _in_doubt(self, task: Task) -> bool:
        """Whether a task's deadline has passed by this time, but not by every clock."""
        return task.deadline_ms <= self.time.now_ms() < self.time.ring_ms(task.deadline_ms)

    def _hold_at(self, task_id: int, at_ms: int) -> None:
        self.timers.set(Kind.HOLD, task_id, at_ms, since_ms=at_ms)

    def _hold(self, task_ids: list[int]) -> None:
        """Withhold tasks whose deadlines have passed by this time, and are in doubt."""
        for task_id in task_ids:
            task = self._waiting(task_id)
            if task_id in self._under_way:
                # It goes back to its queue if the assignment comes to nothing.
                self._hold_at(task_id, self.time.now_ms() + _HELD_LOOK_MS)
            elif task is not None and task_id not in self.withheld and self._in_doubt(task):
                self._remove(task)
                self.withheld.add(task_id)

    # Where tasks are

    def _settle(self, task: Task, was: Place, now: Place) -> None:
        """Move a task from one place to another. This is the only function that does."""
        if was is now:
            return
        if was is Place.QUEUED:
            self._remove(task)
        elif was is Place.TAKEN:
            self.dispatching.freed((task.id,))
        if now is Place.QUEUED:
            self._push(task)
        elif now is Place.TAKEN and not self._occupy(task):
            self.wrong(f"task {task.id} runs in a session that has ended")

    def _answered(self, untold: list[int], told: list[Task], refused: bool) -> int:
        """Put back tasks whose assignment was answered, but that are not sent.

        `told`: tasks whose rows have changed since they were picked, as they are now. The rows of
        `untold` have not changed, so these wait. If the state machine `refused` them, this is
        checked. Returns how many wait.
        """
        for task in told:
            self._settle(task, Place.TAKEN, place_of(task.status, False))
        if refused:
            astray = [task_id for task_id in untold if self._waiting(task_id) is None]
            if astray:
                self.dispatching.freed(astray)
                untold = [task_id for task_id in untold if task_id not in astray]
                self.wrong(f"task {astray[0]} was in a queue and does not wait")
        self.scheduler.restore(untold)
        return len(untold)

    def _waiting(self, task_id: int) -> Task | None:
        """The task, if its row says that it waits."""
        key = keys.numbered(keys.ACTIVE, task_id)
        row = self._replica.stale_read(lambda rows: rows.get(key))[0]
        task = None if row is None else decode_task(row)
        return task if task is not None and task.status is _WAITING else None

    def _occupy(self, task: Task) -> bool:
        """Let a running task take a place of its worker. False if the task's session has ended.

        May be called twice. If the worker has reported the end of the attempt, its place stays
        free.
        """
        member = self.crew.get(task.worker_id)
        if member is None or member.session != task.session:
            return False
        if task.id in member.told:
            return True
        member.attempts[task.id] = task.attempt
        if self.scheduler.running_pick(task.id) is None:
            self.scheduler.occupy(
                Pick(
                    task.id,
                    QueueKey(*_plain_key(task)),
                    task.group,
                    task.resources,
                    task.worker_id,
                    task.started_ms,
                )
            )
        return True

    def _push(self, task: Task, ids: Sequence[int] = ()) -> None:
        """Queue a task, or all of `ids`, which are alike.

        They enter their queue together with all others of this turn of the event loop."""
        if self._held(task):
            return
        key = _plain_key(task)
        ids = ids or (task.id,)
        incoming = self.incoming.get(key)
        if incoming is None:
            self.incoming[key] = [*ids]
            self.dispatching.wake()
        else:
            incoming += ids

    def _remove(self, task: Task) -> None:
        if task.id in self.withheld:
            self.withheld.remove(task.id)
            return
        key = _plain_key(task)
        if key in self.incoming:
            self._flush_incoming()
        self.scheduler.remove(QueueKey(*key), task.id)

    def _flush_incoming(self) -> None:
        if self.incoming:
            incoming, self.incoming = self.incoming, {}
            now_ms = self.time.now_ms()
            for key, ids in incoming.items():
                self._measures.came(key[0], key[1])
                self.scheduler.push_many(QueueKey(*key), ids, now_ms)

    def _set(self, kind: str, name: str, value: bytes | None) -> None:
        try:
            setting = None if value is None else decode_setting(kind, name, value)
        except InvalidSetting as error:
            # A newer version wrote it. Without this, the term could not begin.
            _logger.error("a setting was ignored: %s", error)
            return
        if kind == "quota":
            assert setting is None or isinstance(setting, Quota)
            self.quotas.set(name, setting)
            return
        if kind == "resource":
            assert setting is None or isinstance(setting, Limit)
            self.cluster_limits.configure(name, setting)
            return
        self.scheduler.configure(kind, name, setting)

    def look(self, look: Callable[[ReadRows], T]) -> T:
        """Read the rows. Raises `EngineError` when the term is over."""
        return self._replica.stale_read(look)[0]

    def _payload(self, task: Task) -> bytes:
        """A payload that is stored in a row of its own."""
        key = keys.numbered(keys.PAYLOAD, task.id)
        return self._replica.stale_read(lambda rows: rows.get(key))[0] or b""

    # What is due

    def _ring(self, kind: Kind, due: list[Key]) -> None:
        now_ms = self.time.now_ms()
        ids = [key for key in due if isinstance(key, int)]
        if kind is Kind.DUE:
            self.proposing.send(Due(ids, now_ms), unheard)
        elif kind is Kind.DEADLINE:
            waiting = []
            for task_id in ids:
                worker_id = self.dispatching.worker_of(task_id)
                if worker_id:
                    self.crew.interrupt(task_id, worker_id, OVERDUE)
                else:
                    waiting.append(task_id)
            if waiting:
                self.proposing.send(Expire(waiting, now_ms), unheard)
        elif kind is Kind.TRANSACTION:
            whole = self.proposing.level >= LEVEL
            self.proposing.send(ExpireTransactions(now_ms, whole), unheard)
        elif kind is Kind.HOLD:
            self._hold(ids)
        elif kind is Kind.SCHEDULE:
            self.firing.fire_all([str(name) for name in due])


def _guarded(later: Later, wrong: Wrong) -> Later:
    """The same, but a call that raises is logged and reported, so that no duty silently stops."""

    def guarded(seconds: float, call: Callable[[], None]) -> Handle:
        def made() -> None:
            try:
                call()
            except Exception:
                _logger.exception("a duty of the leader failed")
                wrong("a duty of the leader failed")

        return later(seconds, made)

    return guarded


def unheard(told: bytes | BrokerError) -> None:
    """Ignore the answer: the listener hears of the changes."""


def _page(first: bytes, end: bytes, rows: ReadRows) -> list[tuple[bytes, bytes]]:
    return rows.scan(first, end, _PAGE_ROWS)


def _plain_key(task: Task) -> _PlainKey:
    """The key of a task's queue, as a plain tuple: ten times cheaper than a named one."""
    if task.fixed:
        return (task.tenant, task.type, task.priority, task.group, task.resources)
    return (task.tenant, task.type, task.priority, 0, ())
