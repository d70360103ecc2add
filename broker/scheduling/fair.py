"""Whose turn it is: start-time fair queueing over tenants, a minimum for some of them first.

Every group of workers, and that of all groups, has an order of its own: a turnstile. In it tenants
have a start tag that grows by 1 / weight with each task that begins; the lowest goes next. Below it
come lanes (what is alike in type, group and resources), and in a lane the tenants that wait there.

Invariants:
- The virtual time of a turnstile never goes back. It is the start tag of the last task that began
  by weight; a tenant that comes, or comes back, starts there, not earlier: nobody saves up turns.
- Among equal tags, who was not served since it came goes first: the next place is a newcomer's own.
- What a tenant has in several lanes goes by aged priority, as what it has in one.
- A tenant below its reserved minimum comes before all that are not. Such turns move no virtual
  time, and run a tenant into debt by no more than its minimum.
- A queue that has ids takes part in every turnstile that its group is served by, a lane with a
  member too, unless it is parked at a gate; empty ones take no part and are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

from broker.scheduling.gates import Gate
from broker.scheduling.heap import LazyHeap
from broker.scheduling.queues import QueueKey, Ring
from broker.settings import GROUP_ANY, Target, TenantLimits

Turn = tuple[bool, float, bool, int, int]
"""Below the minimum first, then the start tag, then newcomers, then who came first; a tenant's own
by rank."""
GatesOf = Callable[[str, tuple[str, ...]], tuple[Gate, ...]]
TurnstileKey = tuple[int, frozenset[int]]
"""The group, and the ones that are left out of it."""
_UNSET: Final = TenantLimits()
_RANK: Final = attrgetter("rank")


class Tenant:
    """What holds for a tenant everywhere. `waiting`: how many of its tasks wait."""

    __slots__ = ("accounts", "cost", "gate", "name", "reserved", "set", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.gate = Gate("tenant", name)
        self.accounts: dict[Turnstile, Account] = {}
        self.waiting = 0
        self.apply(None)

    def apply(self, limits: TenantLimits | None) -> None:
        """Other limits from now on; None: the usual ones."""
        self.set = limits is not None
        limits = limits or _UNSET
        self.cost = 1 / limits.weight
        self.reserved = limits.reserved
        self.gate.limit = limits.maximum

    @property
    def has_minimum(self) -> bool:
        """Whether as many of its tasks run as are reserved for it."""
        return self.gate.used >= self.reserved

    @property
    def absent(self) -> bool:
        """Whether nothing of it waits or runs, and nothing is set for it."""
        return not (self.set or self.waiting) and self.gate.idle

    @property
    def idle(self) -> bool:
        """Whether forgetting it would change nothing."""
        return self.absent and all(account.settled for account in self.accounts.values())

    def come_forward(self) -> None:
        """Its turn may be nearer than before."""
        for account in self.accounts.values():
            for member in account.members:
                if member.gate is None:
                    member.enter()


class Account:
    """A tenant in one turnstile. `members`: where it waits."""

    __slots__ = ("members", "number", "served", "start", "tenant", "turnstile")

    def __init__(self, tenant: Tenant, turnstile: Turnstile) -> None:
        self.tenant = tenant
        self.turnstile = turnstile
        self.members: dict[Member, None] = {}
        self.start = 0.0
        self.served = False
        self.number = 0

    @property
    def settled(self) -> bool:
        """Whether it would start where a new one does."""
        return not self.members and self.start <= self.turnstile.virtual

    def come(self) -> None:
        """It waits again after it did not."""
        self.start = max(self.start, self.turnstile.virtual)
        self.served = False
        self.number = self.turnstile.next_number()

    def charge(self) -> None:
        """One of its tasks begins; called before the tenant's use is counted."""
        turnstile, cost = self.turnstile, self.tenant.cost
        begin = max(self.start, turnstile.virtual)
        if self.tenant.has_minimum:
            turnstile.virtual = begin
            self.start = begin + cost
        else:
            debt = cost * max(1, self.tenant.reserved)
            self.start = max(begin, min(begin + cost, turnstile.virtual + debt))
        turnstile.latest = max(turnstile.latest, self.start)
        self.served = True
        self.number = turnstile.next_number()

    def charge_many(self, count: int) -> None:
        """As `charge` so often; the tenant has its minimum."""
        assert self.tenant.has_minimum
        turnstile, cost = self.turnstile, self.tenant.cost
        begin = start = max(self.start, turnstile.virtual)
        for _ in range(count):
            begin, start = start, start + cost
        turnstile.virtual, self.start = begin, start
        turnstile.latest = max(turnstile.latest, start)
        self.served = True
        self.number = turnstile.next_number()


class Queue:
    """Ids that are alike in all that the order looks at. `members`: where it takes part.

    `rank`: its order among its tenant's queues; the least has the highest aged priority.
    """

    __slots__ = ("aging_ms", "key", "members", "rank", "ring", "target", "tenant")

    def __init__(self, key: QueueKey, tenant: Tenant, target: Target, aging_ms: int) -> None:
        self.key = key
        self.tenant = tenant
        self.target = target
        self.aging_ms = aging_ms
        self.ring = Ring()
        self.rank: int | None = None
        self.members: list[Member] = []

    def settle(self) -> None:
        """The first id is another one than before.

        Waiting raises all queues alike, so that the moment of looking is no part of the rank.
        """
        if self.ring:
            self.rank = self.ring.head_since_ms - self.key.priority * self.aging_ms
        else:
            self.rank = None

    def come_forward(self) -> None:
        """Its first id has waited longer than the one before."""
        for member in self.members:
            member.queues.offer(self, self.rank)
            if member.gate is None:
                member.enter()


class Member:
    """A tenant in a lane."""

    __slots__ = ("account", "gate", "lane", "queues")

    def __init__(self, account: Account, lane: Lane) -> None:
        self.account = account
        self.lane = lane
        self.gate: Gate | None = None
        self.queues: LazyHeap[Queue] = LazyHeap(_RANK)

    def enter(self) -> None:
        """Take part in the lane, and the lane in its shelf. Parked ones do not."""
        assert self.gate is None
        self.lane.members.offer(self, self.turn())
        self.lane.enter()

    def turn(self) -> Turn | None:
        """Its place in the order; None: it has nothing."""
        rank = self.queues.first_key()
        if rank is None:
            return None
        account = self.account
        tenant = account.tenant
        minimum = tenant.gate.used >= tenant.reserved
        return (minimum, account.start, account.served, account.number, rank)

    def drop(self, queue: Queue) -> None:
        """A queue takes no part any more."""
        self.queues.drop(queue)
        if not len(self.queues):
            self.lane.drop(self)


class Lane:
    """What is alike in group, type and resources, and so begins or does not begin alike.

    `pool`: where it takes part; None: in the shelf itself.
    """

    __slots__ = ("by_tenant", "gates", "group", "members", "pool", "resources", "shelf")

    def __init__(
        self, shelf: Shelf, group: int, resources: tuple[str, ...], gates: tuple[Gate, ...]
    ) -> None:
        self.shelf = shelf
        self.group = group
        self.resources = resources
        self.gates = gates
        self.pool: Pool | None = None
        self.by_tenant: dict[Tenant, Member] = {}
        self.members: LazyHeap[Member] = LazyHeap(Member.turn)
        for gate in gates:
            gate.lanes += 1

    def enter(self) -> None:
        """Take part, if anybody takes part here."""
        if not len(self.members):
            return
        if self.pool is None:
            self.shelf.lanes.offer(self, self.members.bound())
        else:
            self.pool.lanes.offer(self, self.members.bound())
            if self.pool.gate is None:
                self.pool.enter()

    def turn(self) -> Turn | None:
        """That of the tenant who is next here."""
        turn: Turn | None = self.members.first_key()
        return turn

    def member(self, tenant: Tenant) -> Member:
        """A tenant's place here."""
        member = self.by_tenant.get(tenant)
        if member is None:
            account = self.shelf.turnstile.account(tenant)
            if not account.members:
                account.come()
            member = self.by_tenant[tenant] = Member(account, self)
            account.members[member] = None
        return member

    def drop(self, member: Member) -> None:
        """A tenant waits no more here."""
        self.members.drop(member)
        if member.gate is not None:
            member.gate.leave(member)
        del self.by_tenant[member.account.tenant]
        del member.account.members[member]
        if not self.by_tenant:
            self.shelf.drop(self)


class Pool:
    """Lanes of a shelf that have met one gate closed: together they wait for it, and go on.

    So a gate that opens wakes one thing, however many lanes lead through it. `gate`: where it is
    parked, None while it takes part in the shelf; `at`: the gate that it is for.
    """

    __slots__ = ("at", "gate", "lanes", "shelf")

    def __init__(self, shelf: Shelf, at: Gate) -> None:
        self.shelf = shelf
        self.at = at
        self.gate: Gate | None = None
        self.lanes: LazyHeap[Lane] = LazyHeap(Lane.turn)

    def enter(self) -> None:
        """Take part in the shelf, if anybody takes part here."""
        assert self.gate is None
        if len(self.lanes):
            self.shelf.lanes.offer(self, self.lanes.bound())

    def turn(self) -> Turn | None:
        """That of the lane that is next here."""
        turn: Turn | None = self.lanes.first_key()
        return turn


def _turn_of(item: Lane | Pool) -> Turn | None:
    return item.turn()


class Shelf:
    """The lanes of one type in a turnstile: some by themselves, some in pools."""

    __slots__ = ("_inside", "_pools", "by_key", "lanes", "turnstile", "type")

    def __init__(self, turnstile: Turnstile, type_: str) -> None:
        self.turnstile = turnstile
        self.type = type_
        self.by_key: dict[tuple[int, tuple[str, ...]], Lane] = {}
        self.lanes: LazyHeap[Lane | Pool] = LazyHeap(_turn_of)
        self._pools: dict[Gate, Pool] = {}
        self._inside: dict[Pool, int] = {}

    def turn(self) -> Turn | None:
        """That of the lane that is next, which is `settled`."""
        turn: Turn | None = self.lanes.first_key()
        return turn

    def settled(self) -> Lane:
        """The lane whose turn was found last; nothing has changed since."""
        item = self.lanes.settled()
        return item.lanes.settled() if isinstance(item, Pool) else item

    @property
    def alone(self) -> bool:
        """Whether only one lane takes part."""
        if len(self.lanes) != 1:
            return False
        (item,) = self.lanes
        return not isinstance(item, Pool) or len(item.lanes) == 1

    def pool(self, lane: Lane, gate: Gate) -> Pool:
        """From now on a lane waits for a gate with all others that do."""
        pool = self._pools.get(gate)
        if pool is None:
            pool = self._pools[gate] = Pool(self, gate)
            self._inside[pool] = 0
        if lane.pool is not pool:
            self._leave(lane)
            lane.pool = pool
            self._inside[pool] += 1
            lane.enter()
        return pool

    def drop(self, lane: Lane) -> None:
        """Nobody waits in a lane any more."""
        self._leave(lane)
        for gate in lane.gates:
            gate.lanes -= 1
        del self.by_key[lane.group, lane.resources]
        if not self.by_key:
            del self.turnstile.shelves[self.type]
            self.turnstile.rest()

    def _leave(self, lane: Lane) -> None:
        pool, lane.pool = lane.pool, None
        if pool is None:
            self.lanes.drop(lane)
            return
        pool.lanes.drop(lane)
        self._inside[pool] -= 1
        if not self._inside[pool]:
            self.lanes.drop(pool)
            if pool.gate is not None:
                pool.gate.leave(pool)
            del self._inside[pool], self._pools[pool.at]


class Turnstile:
    """The order of all that workers of one group may take; of `GROUP_ANY`: of all but some."""

    __slots__ = (
        "_number",
        "accounts",
        "excluded",
        "group",
        "latest",
        "shelves",
        "virtual",
        "workers",
    )

    def __init__(self, group: int, excluded: frozenset[int]) -> None:
        self.group = group
        self.excluded = excluded
        self.virtual = 0.0
        self.latest = 0.0
        """The latest start tag of all."""
        self.shelves: dict[str, Shelf] = {}
        self.accounts: dict[Tenant, Account] = {}
        self.workers = 0
        """How many connected workers take from it."""
        self._number = 0

    def next_number(self) -> int:
        """A number that grows."""
        self._number += 1
        return self._number

    @property
    def key(self) -> TurnstileKey:
        """What tells turnstiles apart."""
        return self.group, self.excluded

    def waiting(self) -> list[tuple[Member, Queue]]:
        """All that takes part."""
        return [
            (member, queue)
            for shelf in self.shelves.values()
            for lane in shelf.by_key.values()
            for member in lane.by_tenant.values()
            for queue in member.queues
        ]

    def rest(self) -> None:
        """If nobody waits any more, all begin anew, without debts."""
        if not self.shelves:
            self.virtual = self.latest

    def serves(self, target: Target) -> bool:
        """Whether what has that target takes part."""
        return self.group in (GROUP_ANY, target.group) and target.group not in self.excluded

    def account(self, tenant: Tenant) -> Account:
        """A tenant's account here."""
        account = self.accounts.get(tenant)
        if account is None:
            account = self.accounts[tenant] = tenant.accounts[self] = Account(tenant, self)
        return account

    def lane(self, type_: str, target: Target, gates_of: GatesOf) -> Lane:
        """Where tasks of a type and target wait. `gates_of`: the gates of a type and resources."""
        shelf = self.shelves.get(type_)
        if shelf is None:
            shelf = self.shelves[type_] = Shelf(self, type_)
        key = target.group, target.resources
        lane = shelf.by_key.get(key)
        if lane is None:
            gates = gates_of(type_, target.resources)
            lane = shelf.by_key[key] = Lane(shelf, target.group, target.resources, gates)
        return lane

    def forget(self, tenant: Tenant) -> None:
        """A tenant is idle."""
        del self.accounts[tenant]
        del tenant.accounts[self]

    def close(self) -> None:
        """Nobody takes from it any more, and nothing waits here."""
        assert not self.shelves
        for tenant in list(self.accounts):
            self.forget(tenant)
