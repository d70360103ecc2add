"""The scheduler: which waiting task begins next, on which worker.

Times are arguments, so that it is the same in a simulation. Nothing of it is durable: a new leader
builds it from the tasks' rows.

Invariants:
- A task is waiting, or running, or not here; a running one counts at its worker, its tenant, its
  type and each of its resources, and is counted off exactly once.
- No limit is passed, of whatever kind; one that fell below its use stops nothing.
- Nothing that may begin waits while a worker that takes it has a place and asks.
- What a take costs depends on what it takes, never on how many wait.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from broker.connection import WorkerLimits
from broker.scheduling.fair import Lane, Member, Pool, Shelf, Turn, Turnstile
from broker.scheduling.gates import Gate
from broker.scheduling.index import Index, Waiting
from broker.scheduling.mapping import UserMapping
from broker.scheduling.picks import Pick
from broker.scheduling.queues import QueueKey
from broker.scheduling.workers import WorkerView
from broker.settings import (
    Limit,
    Mapping,
    OperatorLimits,
    Rate,
    Setting,
    TenantLimits,
    check_setting,
    scope_of,
)

PORTION_QUEUES: Final = 500
"""So many queues are moved at one moment, so that the loop stays free."""
REMAP_MS: Final = 60_000
"""So often a mapping function is asked anew for what waits, whether or not that was asked for."""


class Scheduler:
    """Waiting tasks, workers, and the limits between them.

    `aging_ms`: waiting so long counts as one priority more; 0: never.
    """

    def __init__(self, *, aging_ms: int = 0, mapping: UserMapping | None = None) -> None:
        self.workers: dict[str, WorkerView] = {}
        self.index = Index(aging_ms, mapping)
        self._running: dict[int, Pick] = {}
        self._opened: dict[Gate, None] = {}
        self._alarms: list[tuple[int, int, Gate]] = []
        self._alarm_number = 0
        self._remap_ms = 0
        """When the mapping function is asked again."""
        self._moment_ms = -1
        self._portion = 0

    # What waits

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return self.index.count

    @property
    def running(self) -> int:
        """How many tasks run, or were taken to run."""
        return len(self._running)

    def push(self, key: QueueKey, task_id: int, since_ms: int) -> None:
        """A task waits from now on. It is not here already."""
        self.index.push(key, (task_id,), since_ms)

    def push_many(self, key: QueueKey, ids: Sequence[int], since_ms: int) -> None:
        """Tasks of one kind wait from now on, in this order. None of them is here already."""
        if ids:
            self.index.push(key, ids, since_ms)

    def remove(self, key: QueueKey, task_id: int) -> None:
        """A waiting task begins no more. One that was taken meanwhile is not touched."""
        if task_id not in self._running:
            self.index.remove(key, task_id)

    def queues(self) -> Iterator[Waiting]:
        """All queues that hold something."""
        return self.index.queues()

    # Workers

    def connect(self, worker_id: str, types: tuple[str, ...], limits: WorkerLimits) -> None:
        """A worker takes tasks, from now on within these limits. `types`: none means any."""
        worker = self._worker(worker_id)
        before = worker.turnstiles
        worker.set_own(types, limits)
        for key in worker.turnstiles:
            self.index.open(key)
        for key in before:
            self.index.close(key)

    def disconnect(self, worker_id: str) -> None:
        """A worker takes nothing more. What runs there counts until it is released."""
        worker = self.workers.get(worker_id)
        if worker is not None and worker.connected:
            before = worker.turnstiles
            worker.set_own((), None)
            for key in before:
                self.index.close(key)
            self._forget_idle(worker)

    def free(self, worker_id: str) -> int:
        """How many more tasks a worker takes."""
        worker = self.workers.get(worker_id)
        return worker.free if worker is not None else 0

    def _worker(self, worker_id: str) -> WorkerView:
        worker = self.workers.get(worker_id)
        if worker is None:
            worker = self.workers[worker_id] = WorkerView(worker_id)
        return worker

    def _forget_idle(self, worker: WorkerView) -> None:
        if worker.idle:
            del self.workers[worker.worker_id]

    # Taking and giving back

    def take(self, worker_id: str, count: int, now_ms: int) -> list[Pick]:
        """Up to `count` tasks to begin on a worker, no more than it has places for."""
        self._open_gates(now_ms)
        worker = self.workers.get(worker_id)
        picks: list[Pick] = []
        if worker is not None and self.index.count and self._up_to_date(now_ms):
            count = min(count, worker.free)
            for key in worker.turnstiles:
                if len(picks) < count:
                    turn = _Turn(self, worker, self.index.turnstiles[key], now_ms)
                    turn.take(count, picks)
        return picks

    def _up_to_date(self, now_ms: int) -> bool:
        """Whether every queue is where it belongs. At one moment only so many are brought there."""
        index = self.index
        if index.mapping.function is not None and now_ms >= self._remap_ms:
            if self._remap_ms:
                index.remap()
            self._remap_ms = now_ms + REMAP_MS
        if not index.behind:
            return True
        if now_ms != self._moment_ms:
            self._moment_ms, self._portion = now_ms, PORTION_QUEUES
        self._portion -= index.catch_up(self._portion)
        return not index.behind

    def release(self, task_id: int) -> Pick | None:
        """A task runs no more: it has ended, was lost, or goes back. None: it did not run here."""
        pick = self._running.pop(task_id, None)
        if pick is None:
            return None
        self._count_off(pick, 1)
        return pick

    def release_many(self, task_ids: Iterable[int]) -> int:
        """As `release` of each; how many of them ran here. Costs less where they are alike."""
        alike: dict[tuple[str, QueueKey, tuple[str, ...]], tuple[Pick, int]] = {}
        count = 0
        for task_id in task_ids:
            pick = self._running.pop(task_id, None)
            if pick is not None:
                count += 1
                kind = (pick.worker_id, pick.key, pick.resources)
                alike[kind] = pick, alike[kind][1] + 1 if kind in alike else 1
        for pick, number in alike.values():
            self._count_off(pick, number)
        return count

    def _count_off(self, pick: Pick, count: int) -> None:
        worker = self.workers[pick.worker_id]
        worker.end(pick.key, pick.resources, count)
        self._forget_idle(worker)
        tenant = self.index.tenant(pick.tenant)
        gates = self.index.gates_of(pick.type, pick.resources)
        had_minimum = tenant.has_minimum
        for gate in (tenant.gate, *gates):
            gate.release(count)
            self._may_open(gate)
        if had_minimum and not tenant.has_minimum:
            tenant.come_forward()
        self.index.quiet(tenant, *gates)

    def restore(self, task_ids: Sequence[int]) -> None:
        """Tasks that were taken did not begin: each waits again, where it did before.

        In the order in which they were taken. What is not running is left alone.
        """
        for task_id in reversed(task_ids):
            pick = self.release(task_id)
            if pick is not None:
                for gate in self._gates_of(pick):
                    if gate.bucket is not None:
                        gate.bucket.give_back()
                self.index.put_back(pick.key, task_id, pick.since_ms)

    def occupy(self, pick: Pick) -> None:
        """A task runs already: a new leader found it so. Its worker need not be connected."""
        assert pick.id not in self._running
        for gate in self._gates_of(pick):
            gate.used += 1
        self.run(pick, self._worker(pick.worker_id))

    def running_pick(self, task_id: int) -> Pick | None:
        """What is known of a running task."""
        return self._running.get(task_id)

    def picks(self) -> Iterator[Pick]:
        """All tasks that are running, or were taken to run."""
        return iter(self._running.values())

    def opens_soon(self, gate: Gate) -> bool:
        """Whether the tasks parked at a gate are considered again in the next take."""
        return gate in self._opened

    def run(self, pick: Pick, worker: WorkerView) -> None:
        """Count a task that has passed its gates."""
        worker.begin(pick.key, pick.resources)
        self._running[pick.id] = pick

    def run_many(self, picks: Sequence[Pick], worker: WorkerView) -> None:
        """Count tasks that are alike and have passed their gates."""
        worker.begin(picks[0].key, picks[0].resources, len(picks))
        self._running.update((pick.id, pick) for pick in picks)

    def _gates_of(self, pick: Pick) -> tuple[Gate, ...]:
        tenant = self.index.tenant(pick.tenant)
        return (tenant.gate, *self.index.gates_of(pick.type, pick.resources))

    # Gates

    def park(self, item: Pool | Member, gate: Gate, now_ms: int) -> None:
        """Something met a closed gate."""
        gate.park(item)
        self._set_alarm(gate, now_ms)

    def wake_ms(self) -> int | None:
        """When to take again: a rate lets more through then, or (0) queues are being moved.

        None: nothing but limits is in the way.
        """
        if self.index.behind:
            return 0
        alarms = self._alarms
        while alarms and alarms[0][2].alarm_ms != alarms[0][0]:
            heappop(alarms)
        return alarms[0][0] if alarms else None

    def _set_alarm(self, gate: Gate, now_ms: int) -> None:
        if gate.bucket is None or gate.alarm_ms is not None or not gate.has_room():
            return
        if not gate.bucket.ready(now_ms):
            gate.alarm_ms = gate.bucket.ready_ms()
            self._alarm_number += 1
            heappush(self._alarms, (gate.alarm_ms, self._alarm_number, gate))

    def _may_open(self, gate: Gate) -> None:
        if gate.parked and gate.has_room():
            self._opened[gate] = None

    def _open_gates(self, now_ms: int) -> None:
        while self._alarms and self._alarms[0][0] <= now_ms:
            at_ms, _, gate = heappop(self._alarms)
            if gate.alarm_ms == at_ms:
                gate.alarm_ms = None
                self._opened[gate] = None
        if self._opened:
            opened, self._opened = self._opened, {}
            for gate in opened:
                if gate.opens(now_ms):
                    gate.wake()
                elif gate.parked:
                    self._set_alarm(gate, now_ms)

    # Settings

    def configure(self, kind: str, name: str, setting: Setting | None) -> None:
        """A setting counts from the next take on; None takes it away. Raises `InvalidSetting`."""
        if setting is not None:
            check_setting(kind, name, setting)
        if kind in ("resource", "type"):
            assert setting is None or isinstance(setting, Limit)
            gate = self.index.gate(kind, name)
            gate.limit = None if setting is None else setting.limit
            self._changed(gate)
        elif kind == "tenant":
            assert setting is None or isinstance(setting, TenantLimits)
            tenant = self.index.tenant(name)
            tenant.apply(setting)
            self._changed(tenant.gate)
            tenant.come_forward()
        elif kind == "worker":
            assert setting is None or isinstance(setting, OperatorLimits)
            worker = self._worker(name)
            worker.set_operators(setting)
            self._forget_idle(worker)
        elif kind == "mapping":
            assert setting is None or isinstance(setting, Mapping)
            self.index.mapping.set(name, setting)
            self.remap(name or None)
        else:
            self._configure_scoped(kind, name, setting)

    def _configure_scoped(self, kind: str, name: str, setting: Setting | None) -> None:
        scope, rest = scope_of(kind, name)
        gate = self.index.tenant(rest).gate if scope == "tenant" else self.index.gate(scope, rest)
        if kind == "rate":
            assert setting is None or isinstance(setting, Rate)
            gate.set_rate(setting)
        else:
            gate.paused = setting is not None
        self._changed(gate)

    def _changed(self, gate: Gate) -> None:
        self._may_open(gate)
        self.index.quiet(self.index.tenant(gate.name) if gate.kind == "tenant" else gate)

    def remap(self, tenant: str | None = None) -> None:
        """Ask again where tasks run that wait: those of a tenant, or all."""
        self.index.remap(tenant)


class _Turn:
    """One worker takes from one turnstile."""

    def __init__(
        self, scheduler: Scheduler, worker: WorkerView, turnstile: Turnstile, now_ms: int
    ) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._turnstile = turnstile
        self._now_ms = now_ms
        self._pools_aside: list[Pool] = []
        self._members_aside: list[Member] = []

    def take(self, count: int, picks: list[Pick]) -> None:
        """Add tasks until there are `count`, or no more that may begin here."""
        number = 0
        shelves: list[tuple[Turn, int, Shelf]] = []
        for shelf in self._shelves():
            first = shelf.turn()
            if first is not None:
                number += 1
                shelves.append((first, number, shelf))
        heapify(shelves)
        while shelves and len(picks) < count:
            turn, number, shelf = shelves[0]
            first = shelf.turn()
            if first is None or not self._worker.has_room_for_type(shelf.type):
                heappop(shelves)
                continue
            if first != turn:
                heapreplace(shelves, (first, number, shelf))
                if shelves[0][2] is not shelf:
                    continue
            lane = shelf.settled()
            if self._passes(lane):
                member = lane.members.settled()
                if self._admits(member):
                    alike = 1
                    if len(shelves) == 1 and shelf.alone:
                        alike = self._alike(member, count - len(picks))
                    if alike > 1:
                        picks += self._pick_many(member, alike)
                    else:
                        picks.append(self._pick(member))
        for pool in self._pools_aside:
            if pool.gate is None:
                pool.enter()
        for member in self._members_aside:
            member.enter()

    def _shelves(self) -> list[Shelf]:
        shelves, types = self._turnstile.shelves, self._worker.types
        if not types:
            return list(shelves.values())
        if self._worker.types_named is not None and len(types) < len(shelves):
            return [shelves[name] for name in self._worker.types_named if name in shelves]
        return [shelf for name, shelf in shelves.items() if name in types]

    def _passes(self, lane: Lane) -> bool:
        """Whether a lane's tasks may begin; else it waits with others, for this turn or longer."""
        for gate in lane.gates:
            if not gate.opens(self._now_ms):
                pool = lane.shelf.pool(lane, gate)
                if pool.gate is None:
                    lane.shelf.lanes.drop(pool)
                    self._scheduler.park(pool, gate, self._now_ms)
                return False
        if self._worker.has_room_for_resources(lane.resources):
            return True
        for gate in lane.gates:
            if gate.kind == "resource" and not self._worker.has_room_for_resources((gate.name,)):
                pool = lane.shelf.pool(lane, gate)
                if pool.gate is None:
                    lane.shelf.lanes.drop(pool)
                    self._pools_aside.append(pool)
                break
        return False

    def _admits(self, member: Member) -> bool:
        """Whether a tenant's tasks may begin; else it stands aside, as lanes do."""
        tenant, lane = member.account.tenant, member.lane
        if not tenant.gate.opens(self._now_ms):
            lane.members.drop(member)
            self._scheduler.park(member, tenant.gate, self._now_ms)
            return False
        if not self._worker.has_share_for(tenant.name, lane.shelf.type):
            lane.members.drop(member)
            self._members_aside.append(member)
            return False
        return True

    def _alike(self, member: Member, wanted: int) -> int:
        """How many tasks of one queue come next, whatever else there is; its lane is alone."""
        lane, tenant = member.lane, member.account.tenant
        if len(lane.members) > 1 or len(member.queues) > 1 or not tenant.has_minimum:
            return 1
        queue = member.queues.settled()
        rooms = [gate.room for gate in (tenant.gate, *lane.gates)]
        room = self._worker.room_for(queue.key, lane.resources)
        return min(wanted, len(queue.ring), room, *[one for one in rooms if one is not None])

    def _pick_many(self, member: Member, count: int) -> list[Pick]:
        queue = member.queues.settled()
        lane, scheduler, worker = member.lane, self._scheduler, self._worker
        member.account.charge_many(count)
        for gate in (member.account.tenant.gate, *lane.gates):
            gate.use_many(count)
        key, group, resources, worker_id = queue.key, lane.group, lane.resources, worker.worker_id
        picks = [
            Pick(task_id, key, group, resources, worker_id, since_ms)
            for task_id, since_ms in scheduler.index.pop_many(queue, count)
        ]
        scheduler.run_many(picks, worker)
        return picks

    def _pick(self, member: Member) -> Pick:
        queue = member.queues.settled()
        lane, scheduler = member.lane, self._scheduler
        member.account.charge()
        # Before the queue may run empty, so that nothing in use is forgotten with it.
        for gate in (member.account.tenant.gate, *lane.gates):
            gate.use()
        task_id, since_ms = scheduler.index.pop(queue)
        pick = Pick(
            task_id, queue.key, lane.group, lane.resources, self._worker.worker_id, since_ms
        )
        scheduler.run(pick, self._worker)
        return pick
