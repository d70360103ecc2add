"""Whether a history of registers is linearizable: each call as if done at one instant of its own.

The search is the one of Wing and Gong in Lowe's just-in-time order: calls are put in order only
when one of them returns, and what is known then is a set of configurations (a value, and which of
the calls under way have had their instant). At a quiet point, when nothing is under way, one
configuration a value is left: histories are cut there, so that their length costs nothing.

Invariants:
- A call of unknown outcome returns at infinity, and may never have had an instant at all.
- Of two configurations that differ only in calls of unknown outcome, the one that used fewer of
  them allows everything that the other does; the other is dropped.
- A call of unknown outcome has its instant just before one that looks at what it left, if ever.
- A call that changes nothing has its instant as soon as it fits: waiting gains nothing.
- The verdict comes at the return of one call: what lies before it is the shortest failing prefix.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

Value = str | None
"""What a register holds; None: it was never written, or was removed."""

CONFIGURATIONS_MAX: Final = 1_000_000


class Kind(Enum):
    """What a call does."""

    READ = "read"
    WRITE = "write"
    COMPARE_AND_SET = "compare and set"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call on one register, and what came of it.

    `called` and `returned` are on one clock; `returned` is infinite when the outcome is unknown.
    `value` was read, or was to be written; `expected` and `done` are a compare-and-set's.
    """

    client: str
    key: str
    kind: Kind
    called: float
    returned: float
    value: Value
    expected: Value = None
    done: bool = True

    @property
    def unknown(self) -> bool:
        """Whether it may have happened or not."""
        return math.isinf(self.returned)

    def __str__(self) -> str:
        when = f"{self.called:.6f} to {'?' if self.unknown else format(self.returned, '.6f')}"
        if self.kind is Kind.READ:
            what = f"read {self.value!r}"
        elif self.kind is Kind.WRITE:
            what = f"wrote {self.value!r}"
        else:
            said = "unknown" if self.unknown else "done" if self.done else "refused"
            what = f"set {self.value!r} if it was {self.expected!r}: {said}"
        return f"{when} {self.client} {what}"


@dataclass(frozen=True, slots=True)
class Witness:
    """Why a history is not linearizable: no order of these calls explains the last of them.

    `values` are what the register may have held at the quiet point before the first of `calls`;
    calls of unknown outcome from before it stand first.
    """

    key: str
    calls: tuple[Operation, ...]
    values: tuple[Value, ...]
    prefix_calls: int

    def __str__(self) -> str:
        held = " or ".join(map(repr, self.values))
        lines = "\n  ".join(map(str, self.calls))
        return (
            f"key {self.key!r} is not linearizable after {self.prefix_calls} calls. It held {held} "
            f"when nothing was under way; then no order explains the last of:\n  {lines}"
        )


class Undecided(AssertionError):
    """Too many calls were under way at once to tell in bounded memory."""


def check(history: Iterable[Operation], initial: Value = None) -> Witness | None:
    """None if every register's calls are linearizable, else the witness of the first that fails.

    Every register holds `initial` at first. Raises `Undecided`.
    """
    for key, calls in by_key(history).items():
        witness = _check_register(key, calls, initial)
        if witness is not None:
            return witness
    return None


def by_key(history: Iterable[Operation]) -> dict[str, list[Operation]]:
    """The calls on each register, in the order of their beginnings."""
    keys: dict[str, list[Operation]] = {}
    for operation in sorted(history, key=lambda one: one.called):
        keys.setdefault(operation.key, []).append(operation)
    return keys


def _check_register(key: str, calls: Sequence[Operation], initial: Value) -> Witness | None:
    search = _Search(initial)
    quiet_values, quiet_from = search.values, 0
    returns: list[tuple[float, int]] = []
    for number, operation in enumerate([*calls, None]):
        now = math.inf if operation is None else operation.called
        # An end and a beginning at one instant overlap: nobody can say which came first.
        while returns and returns[0][0] < now:
            _, ended = heapq.heappop(returns)
            if not search.returns(ended):
                before = [one for one in calls[:quiet_from] if one.unknown]
                since = [one for one in calls[quiet_from:number] if one is not calls[ended]]
                shown = (*before, *since, calls[ended])
                return Witness(key, shown, quiet_values, number)
        if not returns:
            quiet_values, quiet_from = search.values, number
        if operation is None or (operation.unknown and operation.kind is Kind.READ):
            continue
        search.begins(number, operation)
        if not operation.unknown:
            heapq.heappush(returns, (operation.returned, number))
    return None


_Key = tuple[Value, int]
_Configurations = dict[_Key, list[int]]


class _Search:
    """All that one register may have come to.

    Configurations are kept as (value, known calls that had their instant) -> sets of unknown calls
    that were used, none of them part of another; sets are bits of a number.
    """

    def __init__(self, initial: Value) -> None:
        self._configurations: _Configurations = {(initial, 0): [0]}
        self._known: dict[int, tuple[int, Operation]] = {}
        self._unknown: list[tuple[int, Operation]] = []
        self._free_bits: list[int] = []

    @property
    def values(self) -> tuple[Value, ...]:
        """What the register may hold, if nothing is under way."""
        return tuple(dict.fromkeys(value for value, _ in self._configurations))

    def begins(self, number: int, operation: Operation) -> None:
        """A call is under way from now on."""
        if operation.unknown:
            self._unknown.append((1 << len(self._unknown), operation))
            return
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self._known)
        self._known[number] = (bit, operation)
        self._settle()

    def returns(self, number: int) -> bool:
        """A call has ended: it had its instant. False if there is no way that it can have."""
        bit, _ = self._known[number]
        found: _Configurations = {}
        seen: _Configurations = {}
        # Fewest unknown calls first, so that what is found early makes the rest superfluous.
        order = 0
        queue: list[tuple[int, int, _Key, int]] = []
        for key, used_sets in self._configurations.items():
            for used in used_sets:
                heapq.heappush(queue, (used.bit_count(), order, key, used))
                order += 1
        while queue:
            _, _, key, used = heapq.heappop(queue)
            if not _add(seen, key, used):
                continue
            if order > CONFIGURATIONS_MAX:
                raise Undecided(f"more than {CONFIGURATIONS_MAX} ways to order the calls under way")
            if key[1] & bit:
                _add(found, (key[0], key[1] & ~bit), used)
                continue
            for next_key, next_used in self._steps(key, used):
                heapq.heappush(queue, (next_used.bit_count(), order, next_key, next_used))
                order += 1
        del self._known[number]
        self._free_bits.append(bit)
        self._configurations = found
        return bool(found)

    def _steps(self, key: _Key, used: int) -> Iterable[tuple[_Key, int]]:
        """Each call under way has its instant next, where that changes something."""
        value, known = key
        for bit, operation in self._known.values():
            if not known & bit and _changes(operation, value):
                yield self._settled(operation.value, known | bit), used
        for bit, operation in self._unknown:
            useful = not used & bit and self._wanted(operation.value, known, used | bit)
            if useful and _changes(operation, value):
                yield self._settled(operation.value, known), used | bit

    def _wanted(self, value: Value, known: int, used: int) -> bool:
        """Whether some call under way can have its instant at this value only, or at this one too.

        A call of unknown outcome that nobody looks at next may as well have its instant later.
        """
        return any(
            not known & bit and _looks_for(operation, value)
            for bit, operation in self._known.values()
        ) or any(
            not used & bit and operation.kind is not Kind.WRITE and operation.expected == value
            for bit, operation in self._unknown
        )

    def _settled(self, value: Value, known: int) -> _Key:
        """The calls that fit this value and leave it as it is have their instants now."""
        for bit, operation in self._known.values():
            if not known & bit and _fits_unchanged(operation, value):
                known |= bit
        return value, known

    def _settle(self) -> None:
        settled: _Configurations = {}
        for (value, known), used_sets in self._configurations.items():
            for used in used_sets:
                _add(settled, self._settled(value, known), used)
        self._configurations = settled


def _add(configurations: _Configurations, key: _Key, used: int) -> bool:
    """Add one, unless another makes it superfluous; those that it makes superfluous go."""
    sets = configurations.setdefault(key, [])
    if any(other & used == other for other in sets):
        return False
    sets[:] = [other for other in sets if used & other != used]
    sets.append(used)
    return True


def _changes(operation: Operation, value: Value) -> bool:
    """Whether it can have its instant at this value and sets another one, or the same anew."""
    if operation.kind is Kind.WRITE:
        return True
    if operation.kind is Kind.READ:
        return False
    return (operation.done or operation.unknown) and operation.expected == value


def _looks_for(operation: Operation, value: Value) -> bool:
    """Whether what the register holds decides if it can have its instant, and this value fits."""
    if operation.kind is Kind.WRITE:
        return False
    if operation.kind is Kind.READ:
        return operation.value == value
    return operation.done == (operation.expected == value)


def _fits_unchanged(operation: Operation, value: Value) -> bool:
    """Whether it can have its instant at this value and leaves it as it is."""
    if operation.kind is Kind.READ:
        return operation.value == value
    if operation.kind is Kind.WRITE:
        # Not even of the same value: later it could set that one back.
        return False
    if not operation.done:
        return operation.expected != value
    return operation.expected == value == operation.value
