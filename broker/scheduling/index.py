"""What waits, and by what it is found: queues, tenants, gates and turnstiles.

Invariants:
- A queue is known exactly while it holds something, and takes part in every turnstile that serves
  its target; but for those that `catch_up` still has to bring there, in bounded portions.
- A turnstile stands while a connected worker takes from its group, and a few for longer: one for
  all workers that leave out the same other groups, so that nobody steps over what he never takes.
- Tenants and gates without tasks and settings are forgotten in the course of other work, a few at
  a time; nothing is kept for names that came once.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from broker.scheduling.fair import Queue, Tenant, Turnstile, TurnstileKey
from broker.scheduling.gates import Gate
from broker.scheduling.mapping import MappingTable, UserMapping
from broker.scheduling.queues import QueueKey
from broker.settings import AGING_MS_NEVER, Target

_LOOKED_AT: Final = 4
"""How many that may be idle are looked at whenever a queue has run empty."""
_QUIET_MAX: Final = 10_000
"""So many absent tenants are remembered for the sake of their debts."""


_UNUSED_MAX: Final = 4


class Waiting(NamedTuple):
    """A queue as it stands. `since_ms`: since when its first task waits."""

    key: QueueKey
    target: Target
    length: int
    first_id: int
    since_ms: int


class Index:
    """Waiting tasks by all that the scheduler asks for."""

    def __init__(self, aging_ms: int, mapping: UserMapping | None) -> None:
        self.count = 0
        self.mapping = MappingTable(mapping)
        self.turnstiles: dict[TurnstileKey, Turnstile] = {}
        self.wanted: dict[tuple[str, int], int] = {}
        """How many queues there are of a type and group."""
        self._aging_ms = aging_ms or AGING_MS_NEVER
        self._queues: dict[QueueKey, Queue] = {}
        self._tenants: dict[str, Tenant] = {}
        self._gates: dict[tuple[str, str], Gate] = {}
        self._quiet: dict[Tenant | Gate, None] = {}
        self._unused: dict[TurnstileKey, None] = {}
        """Turnstiles without workers, who left first at the front."""
        self._behind: deque[tuple[Turnstile | None, Queue]] = deque()
        """Queues that are to enter a turnstile, or (None) to be mapped anew."""

    def push(self, key: QueueKey, ids: Sequence[int], since_ms: int) -> None:
        """Tasks wait from now on, in this order."""
        queue = self._queue(key)
        begins = not queue.ring
        if len(ids) == 1:
            queue.ring.push(ids[0], since_ms)
        else:
            queue.ring.push_many(ids, since_ms)
        self._add(queue, len(ids))
        if begins:
            queue.settle()
            self._enter(queue)

    def put_back(self, key: QueueKey, task_id: int, since_ms: int) -> None:
        """A task that was taken waits again, where it did."""
        queue = self._queue(key)
        begins = not queue.ring
        queue.ring.push_front(task_id, since_ms)
        self._add(queue, 1)
        queue.settle()
        if begins:
            self._enter(queue)
        else:
            queue.come_forward()

    def pop(self, queue: Queue) -> tuple[int, int]:
        """Take the first task of a queue: its id, and since when it has waited."""
        since_ms = queue.ring.head_since_ms
        task_id = queue.ring.pop()
        self._add(queue, -1)
        queue.settle()
        if queue.rank is None:
            self._retire(queue)
        return task_id, since_ms

    def pop_many(self, queue: Queue, count: int) -> list[tuple[int, int]]:
        """Take the first tasks of a queue, as `pop` does each."""
        taken = queue.ring.pop_many(count)
        self._add(queue, -count)
        queue.settle()
        if queue.rank is None:
            self._retire(queue)
        return taken

    def remove(self, key: QueueKey, task_id: int) -> None:
        """Take a task out of its queue."""
        queue = self._queues[key]
        queue.ring.remove(task_id)
        self._add(queue, -1)
        queue.settle()
        if queue.rank is None:
            self._retire(queue)

    def ids(self, key: QueueKey) -> list[int]:
        """What waits in a queue, in its order."""
        queue = self._queues.get(key)
        return queue.ring.ids() if queue is not None else []

    def length(self, key: QueueKey) -> int:
        """How many tasks wait in a queue."""
        queue = self._queues.get(key)
        return len(queue.ring) if queue is not None else 0

    def known_keys(self) -> list[QueueKey]:
        """The keys of all queues."""
        return list(self._queues)

    def queues(self) -> Iterator[Waiting]:
        """All queues."""
        for queue in self._queues.values():
            ring = queue.ring
            yield Waiting(queue.key, queue.target, len(ring), ring.head_id, ring.head_since_ms)

    def remap(self, tenant: str | None = None) -> None:
        """Ask again where tasks run: those of a tenant, or all. Done by `catch_up`."""
        self._behind.extend(
            (None, queue)
            for queue in self._queues.values()
            if tenant is None or queue.key.tenant == tenant
        )

    def open(self, key: TurnstileKey) -> None:
        """One more worker takes from a group, all but some. Done by `catch_up`."""
        turnstile = self.turnstiles.get(key)
        if turnstile is None:
            turnstile = self.turnstiles[key] = Turnstile(*key)
            self._behind.extend(
                (turnstile, queue)
                for queue in self._queues.values()
                if turnstile.serves(queue.target)
            )
        turnstile.workers += 1
        self._unused.pop(key, None)

    def close(self, key: TurnstileKey) -> None:
        """One worker less does. The turnstile stands for a while, as workers come back."""
        turnstile = self.turnstiles[key]
        turnstile.workers -= 1
        if not turnstile.workers:
            self._unused[key] = None
            if len(self._unused) > _UNUSED_MAX:
                oldest = next(iter(self._unused))
                del self._unused[oldest]
                self._take_down(self.turnstiles.pop(oldest))

    def _take_down(self, turnstile: Turnstile) -> None:
        for member, queue in turnstile.waiting():
            queue.members.remove(member)
            member.drop(queue)
        turnstile.close()

    @property
    def behind(self) -> bool:
        """Whether some queues are not yet where they belong."""
        return bool(self._behind)

    def catch_up(self, most: int) -> int:
        """Bring so many queues to where they belong; returns how many were looked at."""
        behind, looked = self._behind, 0
        while behind and looked < most:
            turnstile, queue = behind.popleft()
            looked += 1
            if self._queues.get(queue.key) is not queue:
                continue
            if turnstile is None:
                target = self.mapping.target(queue.key)
                if target != queue.target:
                    self._leave(queue)
                    queue.target = target
                    self._enter(queue)
            elif self.turnstiles.get(turnstile.key) is turnstile:
                if all(member.account.turnstile is not turnstile for member in queue.members):
                    self._enter_in(turnstile, queue)
        return looked

    def tenant(self, name: str) -> Tenant:
        """What is known of a tenant."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name)
        return tenant

    def tenants(self) -> Iterator[Tenant]:
        """All that are known: who wait, run, or have settings."""
        return iter(self._tenants.values())

    def gate(self, kind: str, name: str) -> Gate:
        """The gate of a type or a resource."""
        gate = self._gates.get((kind, name))
        if gate is None:
            gate = self._gates[kind, name] = Gate(kind, name)
        return gate

    def gates(self) -> Iterator[Gate]:
        """Those of all types and resources that are known."""
        return iter(self._gates.values())

    def gates_of(self, type_: str, resources: tuple[str, ...]) -> tuple[Gate, ...]:
        """Those that a task passes, but for its tenant's."""
        return (self.gate("type", type_), *[self.gate("resource", name) for name in resources])

    def quiet(self, *idle: Tenant | Gate) -> None:
        """These may be forgotten by now."""
        for one in idle:
            self._quiet[one] = None

    def _queue(self, key: QueueKey) -> Queue:
        queue = self._queues.get(key)
        if queue is None:
            target = self.mapping.target(key)
            queue = Queue(key, self.tenant(key.tenant), target, self._aging_ms)
            self._queues[key] = queue
        return queue

    def _add(self, queue: Queue, change: int) -> None:
        queue.tenant.waiting += change
        self.count += change

    def _enter(self, queue: Queue) -> None:
        wanted = queue.key.type, queue.target.group
        self.wanted[wanted] = self.wanted.get(wanted, 0) + 1
        for turnstile in self.turnstiles.values():
            self._enter_in(turnstile, queue)

    def _enter_in(self, turnstile: Turnstile, queue: Queue) -> None:
        if not turnstile.serves(queue.target):
            return
        member = turnstile.lane(queue.key.type, queue.target, self.gates_of).member(queue.tenant)
        member.queues.offer(queue, queue.rank)
        queue.members.append(member)
        if member.gate is None:
            member.enter()

    def _leave(self, queue: Queue) -> None:
        wanted = queue.key.type, queue.target.group
        self.wanted[wanted] -= 1
        if not self.wanted[wanted]:
            del self.wanted[wanted]
        for member in queue.members:
            self.quiet(*member.lane.gates)
            member.drop(queue)
        queue.members.clear()

    def _retire(self, queue: Queue) -> None:
        self._leave(queue)
        del self._queues[queue.key]
        self.quiet(queue.tenant)
        self._forget_idle()

    def _forget_idle(self) -> None:
        for _ in range(min(_LOOKED_AT, len(self._quiet))):
            one = next(iter(self._quiet))
            del self._quiet[one]
            if isinstance(one, Gate):
                if one.idle:
                    self._gates.pop((one.kind, one.name), None)
            elif one.idle or (one.absent and len(self._quiet) > _QUIET_MAX):
                del self._tenants[one.name]
                for turnstile in list(one.accounts):
                    turnstile.forget(one)
            elif one.absent:
                self._quiet[one] = None
