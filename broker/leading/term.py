"""One term of a leader: all that it holds in memory, kept as the log tells.

Nothing here is durable. When a term begins it is built from the rows, before anybody is served;
from then on each change of a row is heard in the turn in which it is applied.

Invariants:
- What is in memory follows from the rows and from what this leader has under way, nothing else.
- A change is heard once, in the order of the log; hearing it proposes nothing in the same call.
- A running task counts for its worker from the moment it is taken until its attempt has ended.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

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
from broker.leading.proposing import Proposing
from broker.leading.quotas import NOT_BEGUN, Quotas, size_of
from broker.leading.timers import Key, Kind, Later, Timers
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
)
from broker.task import decode_setting as decode_setting_row
from engine.ports.clock import Clock
from engine.replica import ReadRows

_PAGE_ROWS: Final = 500
_WAITING: Final = Status.WAITING
_RUNNING: Final = Status.RUNNING
_FINISHED: Final = Status.FINISHED
_PlainKey = tuple[str, str, int, int, tuple[str, ...]]
"""What a `QueueKey` is made of."""
_logger = logging.getLogger(__name__)


class Term:
    """What a leader knows and does. Made by the broker when its replica leads."""

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
    ) -> None:
        """`time` is the term's time, by default the later of log and clock.

        `retime` is called when the wall clock has settled somewhere else.
        """
        self.number = replica.term
        self.scheduler = scheduler
        self.waits = Waits()
        self.quotas = Quotas()
        self.counts = [0] * (max(Status) + 1)
        """How many tasks are in each state, by its number; of those that ended, in this term."""
        self.ended = Ended()
        """How many tasks have ended in this term."""
        self._replica = replica
        self.drawn = drawn
        logged_ms, self.clock_facts = replica.stale_read(reading.time_of)[0]
        self.time = time or BrokerTime(clock, logged_ms)
        self.retime = retime
        self.redated: tuple[list[int], list[int]] = [], []
        """Tasks, and transactions, that wait from a moment that is still to come."""
        self.events = Events(self.time, self.number)
        self.timers = Timers(self.time, later, self._ring)
        self.proposing = Proposing(replica, self.time)
        self.leases = Leases(clock, settings.lease_ms)
        self.dispatching = Dispatching(scheduler, self.proposing, measures, self._payload, later)
        self.completing = Completing(self.proposing, drawn, measures.completed)
        self.crew = Crew(self.proposing, self.completing, self.leases, self.dispatching, drawn)
        self.cluster_limits = ClusterLimits(scheduler)
        self.firing = Firing(self.proposing, self.timers, self.events)
        self.housekeeping = Housekeeping(self, replica, settings, measures, later)
        self.ended_lately: dict[tuple[str, str], Task] = {}
        """Of each tenant and type the newest task that finished since the measures looked."""
        self._measures = measures
        self._held_back: set[int] = set()
        self._incoming: dict[_PlainKey, list[int]] = {}
        self._under_way = self.dispatching.under_way_tasks

    # The beginning and the end

    async def build(self) -> None:
        """Read what there is, in pages. Raises `EngineError` if the replica leads no more."""
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
            self.timers.set(Kind.TRANSACTION, transaction.id, transaction.expires_ms)
            if transaction.created_ms > now_ms:
                self.redated[1].append(transaction.id)
        for _, row in await self._all(keys.SCHEDULE):
            schedule = decode_schedule(row)
            self.firing.changed(schedule.name, schedule)
        orphans: dict[tuple[str, int], list[int]] = {}
        async for page in self._pages(keys.ACTIVE):
            waiting: dict[tuple[_PlainKey, int], list[int]] = {}
            for _, row in page:
                task = decode_task(row)
                if task.status is _WAITING and not self._held(task):
                    # It has waited since its last event, whoever led then.
                    since_ms = min(task.events[-1][0] if task.events else task.created_ms, now_ms)
                    waiting.setdefault((_plain_key(task), since_ms), []).append(task.id)
                self._adopt(task, orphans)
            for (queue, since_ms), ids in waiting.items():
                self._measures.came(queue[0], queue[1])
                self.scheduler.push_many(QueueKey(*queue), ids, since_ms)
        self.housekeeping.restore(orphans)

    def start(self) -> None:
        """Serve from now on."""
        self.timers.start()
        self.dispatching.start(self.crew, self._flush_incoming)
        self.housekeeping.start()
        self.events.tell(
            "term_began",
            address=self._replica.address,
            waiting=self.counts[_WAITING],
            running=self.counts[_RUNNING],
        )

    def drain(self) -> None:
        """Assign nothing more and take no more workers: another replica is to lead."""
        self.dispatching.stop()
        self.crew.drain()
        self.completing.flush()
        self.proposing.flush()

    def end(self, error: BrokerError) -> None:
        """Another replica leads, or soon will."""
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
            self.timers.set(Kind.DUE, task.id, task.due_ms)
            if task.events and task.events[-1][0] > self.time.now_ms():
                self.redated[0].append(task.id)
        elif status is Status.RUNNING:
            member = self.crew.get(task.worker_id)
            if member is not None and member.session == task.session:
                member.attempts[task.id] = task.attempt
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
                if task.cancel_asked:
                    self.crew.interrupt(task.id, task.worker_id, CANCELLED)
            else:
                orphans.setdefault((task.worker_id, task.session), []).append(task.id)
        if task.deadline_ms and status is not Status.PREPARED:
            self.timers.set(Kind.DEADLINE, task.id, task.deadline_ms)

    # What the log tells

    def changed(self, change: Change) -> None:
        """Hear of a change; the state machine's listener."""
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
            else:
                at_ms = change.transaction.expires_ms
                self.timers.set(Kind.TRANSACTION, change.transaction_id, at_ms)
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
                self._remove(task)

    def _finished(self, tasks: list[Task]) -> None:
        self.counts[_RUNNING] -= len(tasks)
        self.counts[_FINISHED] += len(tasks)
        self.ended.add(tasks)
        self.crew.heard_all(tasks)
        under_way, running_pick, waits = self._under_way, self.scheduler.running_pick, self.waits
        awaited = bool(waits)
        for task in tasks:
            task_id = task.id
            if task_id in under_way:
                under_way[task_id] = task
            pick = running_pick(task_id)
            if pick is not None:
                self.crew.took_back(task_id, pick.worker_id)
            if awaited:
                waits.ended(task)
            if task.deadline_ms:
                self.timers.remove(Kind.DEADLINE, task_id)
        self.ended_lately.update(newest(tasks))

    def _left_worker(self, task: Task) -> None:
        if task.id in self._under_way:
            self._under_way[task.id] = task
        pick = self.scheduler.running_pick(task.id)
        if pick is not None:
            self.crew.took_back(task.id, pick.worker_id)
        self.crew.heard(task.id, task.worker_id)

    def _task_changed(self, change: TaskChanged) -> None:
        before, after, task = change.before, change.after, change.task
        counts = self.counts
        begins = (after in NOT_BEGUN) - (before in NOT_BEGUN)
        if begins:
            self.quotas.count(task.tenant, begins, begins * size_of(task))
        under_way = task.id in self._under_way
        if under_way:
            self._under_way[task.id] = task
        if before is not None:
            if counts[before] or before not in FINAL_STATES:
                # Those that ended under another leader were not counted.
                counts[before] -= 1
            if before is Status.WAITING:
                if not under_way and after is not Status.WAITING:
                    self._remove(task)
            elif before is Status.DELAYED:
                self.timers.remove(Kind.DUE, task.id)
            elif before is Status.RUNNING and after is not Status.RUNNING:
                self._left_worker(task)
        if after is None:
            self.waits.gone(task.id, UnknownTask(f"task {task.id} was removed"))
            return
        counts[after] += 1
        if after is Status.RUNNING:
            if task.cancel_asked:
                self.crew.interrupt(task.id, task.worker_id, CANCELLED)
            return
        if after is Status.WAITING:
            if before is not Status.WAITING:
                self._push(task)
        elif after is Status.DELAYED:
            self.timers.set(Kind.DUE, task.id, task.due_ms)
        elif after in FINAL_STATES:
            self.ended.add((task,))
            self.waits.ended(task)
            if task.dead:
                self._measures.dead.add()
                self.events.dead(task)
            if task.deadline_ms:
                self.timers.remove(Kind.DEADLINE, task.id)
            return
        if task.deadline_ms and after is not Status.PREPARED:
            self.timers.set(Kind.DEADLINE, task.id, task.deadline_ms)

    def _held(self, task: Task) -> bool:
        """Keep a task out of the queues if it is past its deadline only by a time in doubt.

        To assign it would end it. Its deadline rings when the doubt is over.
        """
        deadline_ms = task.deadline_ms
        if not deadline_ms or not self.time.doubtful:
            return False
        held = deadline_ms <= self.time.now_ms() < self.time.ring_ms(deadline_ms)
        if held:
            self._held_back.add(task.id)
        return held

    def _push(self, task: Task, ids: Sequence[int] = ()) -> None:
        """It waits from now on, or `ids` that are alike: each kind goes into its queue at once,
        once a turn."""
        if self._held(task):
            return
        key = _plain_key(task)
        ids = ids or (task.id,)
        incoming = self._incoming.get(key)
        if incoming is None:
            self._incoming[key] = [*ids]
            self.dispatching.wake()
        else:
            incoming += ids

    def _remove(self, task: Task) -> None:
        if task.id in self._held_back:
            self._held_back.remove(task.id)
            return
        key = _plain_key(task)
        if key in self._incoming:
            self._flush_incoming()
        self.scheduler.remove(QueueKey(*key), task.id)

    def _flush_incoming(self) -> None:
        if self._incoming:
            incoming, self._incoming = self._incoming, {}
            now_ms = self.time.now_ms()
            for key, ids in incoming.items():
                self._measures.came(key[0], key[1])
                self.scheduler.push_many(QueueKey(*key), ids, now_ms)

    def _set(self, kind: str, name: str, value: bytes | None) -> None:
        try:
            setting = None if value is None else decode_setting(kind, name, value)
        except InvalidSetting as error:
            # Written by a newer version: better none than a term that cannot begin.
            _logger.error("a setting was left out: %s", error)
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

    def _payload(self, task: Task) -> bytes:
        """The payload that has a row of its own."""
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
        elif kind is Kind.SCHEDULE:
            self.firing.fire_all([str(name) for name in due])


def unheard(told: bytes | BrokerError) -> None:
    """What came of it is told by changes."""


def _page(first: bytes, end: bytes, rows: ReadRows) -> list[tuple[bytes, bytes]]:
    return rows.scan(first, end, _PAGE_ROWS)


def _plain_key(task: Task) -> _PlainKey:
    """The queue of a task; as a plain tuple, which costs a tenth of a named one."""
    if task.fixed:
        return (task.tenant, task.type, task.priority, task.group, task.resources)
    return (task.tenant, task.type, task.priority, 0, ())
