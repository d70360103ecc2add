"""What each connected worker may take, and what runs on it.

Invariants:
- A limit is the lesser of the worker's own and the operator's.
- Counts are of running tasks, never below zero, and outlast a lost connection: what runs goes on.
- A type that is named in the places by type counts against its own number, every other type
  together against `any`, where that is named.
"""

from typing import TypeVar

from broker.connection import ANY_MODULE, WorkerLimits
from broker.scheduling.queues import QueueKey
from broker.settings import GROUP_ANY, TYPE_ANY, OperatorLimits

Name = TypeVar("Name")


def _least(own: dict[str, int], operators: dict[str, int]) -> dict[str, int]:
    both = own.keys() & operators.keys()
    return {**own, **operators, **{name: min(own[name], operators[name]) for name in both}}


class _WithModules(frozenset[str]):
    """Types, and all that are named as `module:function`."""

    def __contains__(self, name: object) -> bool:
        return frozenset.__contains__(self, name) or (isinstance(name, str) and ":" in name)


class WorkerView:
    """One worker as the scheduler sees it."""

    __slots__ = (
        "_by_resource",
        "_by_share",
        "_by_type",
        "_operators",
        "_own",
        "excluded",
        "groups",
        "places",
        "places_by_type",
        "resource_limits",
        "running",
        "share_percent",
        "types",
        "types_named",
        "worker_id",
    )

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.running = 0
        self.types: frozenset[str] = frozenset()
        self.types_named: tuple[str, ...] | None = ()
        """The same in their order; None: they stand for more."""
        self._own: WorkerLimits | None = None
        self._operators: OperatorLimits | None = None
        self._by_type: dict[str, int] = {}
        self._by_resource: dict[str, int] = {}
        self._by_share: dict[tuple[str, str], int] = {}
        self._merge()

    @property
    def turnstiles(self) -> list[tuple[int, frozenset[int]]]:
        """From which it takes, in its order, and what is left out there; none: not connected."""
        if self._own is None:
            return []
        left_out = {
            group: self.excluded & ({group} if group else self.excluded) for group in self.groups
        }
        return list(left_out.items())

    @property
    def connected(self) -> bool:
        """Whether it takes tasks."""
        return self._own is not None

    @property
    def idle(self) -> bool:
        """Whether forgetting it would change nothing."""
        return not (self.connected or self.running or self._operators is not None)

    @property
    def free(self) -> int:
        """How many more tasks it takes."""
        return max(0, self.places - self.running) if self.connected else 0

    def set_own(self, types: tuple[str, ...], limits: WorkerLimits | None) -> None:
        """What the worker says of itself; no limits: it is not connected."""
        self.types = _WithModules(types) if ANY_MODULE in types else frozenset(types)
        self.types_named = None if ANY_MODULE in types else tuple(dict.fromkeys(types))
        self._own = limits
        self._merge()

    def set_operators(self, limits: OperatorLimits | None) -> None:
        """What the operator says of it."""
        self._operators = limits
        self._merge()

    def _merge(self) -> None:
        own, operators = self._own or WorkerLimits(0), self._operators or OperatorLimits()
        places = own.places if operators.places is None else min(own.places, operators.places)
        self.places = places
        self.places_by_type = _least(own.places_by_type, operators.places_by_type)
        self.resource_limits = _least(own.resource_limits, operators.resources)
        percents = [one for one in (own.share_percent, operators.share_percent) if one]
        self.share_percent = min(percents, default=0)
        self.groups = tuple(dict.fromkeys(own.groups))
        self.excluded = frozenset(own.excluded)
        counted: dict[str, int] = {}
        for (_, type_), count in self._by_share.items():
            slot = self._counted_as(type_)
            counted[slot] = counted.get(slot, 0) + count
        self._by_type = counted

    def _counted_as(self, type_: str) -> str:
        return type_ if type_ in self.places_by_type else TYPE_ANY

    def runs(self, type_: str) -> bool:
        """Whether it ever takes tasks of a type."""
        if self.types and type_ not in self.types:
            return False
        return self.places > 0 and self._places_of(type_) > 0

    def serves(self, group: int) -> bool:
        """Whether it ever takes tasks of a group."""
        if group in self.excluded:
            return False
        return group in self.groups or GROUP_ANY in self.groups

    def _places_of(self, type_: str) -> int:
        return min(self.places, self.places_by_type.get(self._counted_as(type_), self.places))

    def has_room_for_type(self, type_: str) -> bool:
        """Whether it takes one more of a type now."""
        if self.types and type_ not in self.types:
            return False
        if not self.places_by_type:
            return True
        counted_as = self._counted_as(type_)
        limit = self.places_by_type.get(counted_as)
        return limit is None or self._by_type.get(counted_as, 0) < limit

    def has_room_for_resources(self, resources: tuple[str, ...]) -> bool:
        """Whether it takes one more that holds these resources."""
        limits, used = self.resource_limits, self._by_resource
        if not limits:
            return True
        return all(name not in limits or used.get(name, 0) < limits[name] for name in resources)

    def has_share_for(self, tenant: str, type_: str) -> bool:
        """Whether a tenant has less than its share of the places of a type here."""
        if not self.share_percent:
            return True
        share = max(1, self._places_of(type_) * self.share_percent // 100)
        return self._by_share.get((tenant, type_), 0) < share

    def room_for(self, key: QueueKey, resources: tuple[str, ...]) -> int:
        """How many more tasks that are alike it takes now."""
        counted_as = self._counted_as(key.type)
        rooms = [self.places - self.running]
        if counted_as in self.places_by_type:
            rooms.append(self.places_by_type[counted_as] - self._by_type.get(counted_as, 0))
        if self.share_percent:
            share = max(1, self._places_of(key.type) * self.share_percent // 100)
            rooms.append(share - self._by_share.get((key.tenant, key.type), 0))
        for name in resources:
            if name in self.resource_limits:
                rooms.append(self.resource_limits[name] - self._by_resource.get(name, 0))
        return min(rooms)

    def begin(self, key: QueueKey, resources: tuple[str, ...], count: int = 1) -> None:
        """So many tasks run here."""
        self._change(key, resources, count)

    def end(self, key: QueueKey, resources: tuple[str, ...], count: int = 1) -> None:
        """So many tasks run here no more."""
        self._change(key, resources, -count)

    def _change(self, key: QueueKey, resources: tuple[str, ...], change: int) -> None:
        self.running += change
        _count(self._by_type, self._counted_as(key.type), change)
        _count(self._by_share, (key.tenant, key.type), change)
        for name in resources:
            _count(self._by_resource, name, change)

    def use_of_resources(self) -> dict[str, int]:
        """How many units of each resource run here."""
        return dict(self._by_resource)


def _count(counts: dict[Name, int], name: Name, change: int) -> None:
    left = counts.get(name, 0) + change
    assert left >= 0, f"a count of {name} fell below zero"
    if left:
        counts[name] = left
    else:
        del counts[name]
