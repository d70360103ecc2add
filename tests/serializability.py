"""Which isolation a history of transactions shows: a search for cycles of dependencies.

Transactions append values to lists and read whole lists. A list that was read tells the order of
the appends to it, so who came before whom is known and not guessed. After Adya's thesis (1999) and
Elle (Kingsbury, Alvaro, VLDB 2020); for snapshot isolation after Cerone and Gotsman (2018).

    appended(T, k, v)   T put v at the end of list k       read(T, k, values)   T saw this list

Dependencies: `ww`, T's append is followed by S's; `wr`, S saw T's; `rw`, T saw a list that S's
append came next to; `rt`, T had ended before S began, by one clock.

    G0            a circle of ww                      write cycles
    G1a           a read of what was rolled back      aborted read
    G1b           a read of half a transaction        intermediate read
    G1c           a circle of ww, wr and rt           circular information flow, stale writes
    G-single      a circle with one rw                read skew, lost updates among it
    G-nonadjacent a circle in which no two rw meet    what snapshot isolation excludes, too
    G2            any other circle                    write skew

Invariants:
- Every value is appended once in a whole history; a transaction that repeats one is refused.
- A transaction of unknown outcome counts as committed if anybody saw one of its appends.
- Nothing is guessed: appends that nobody ever saw have no place in an order.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple

Value = int
Version = tuple[Value, ...]


class Outcome(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


class Kind(Enum):
    """What a history shows."""

    G0 = "G0"
    G1A = "G1a"
    G1B = "G1b"
    G1C = "G1c"
    G_SINGLE = "G-single"
    G_NONADJACENT = "G-nonadjacent"
    G2 = "G2"
    LOST = "lost append"
    """A committed append that a later, longer read does not have."""
    INCOMPATIBLE = "incompatible orders"
    """Two reads of one list, neither of which begins with the other."""
    REPEATED = "an append done twice"
    OWN = "own changes not seen"


READ_COMMITTED: Final = frozenset(
    (
        *(Kind.G0, Kind.G1A, Kind.G1B, Kind.G1C),
        *(Kind.LOST, Kind.INCOMPATIBLE, Kind.REPEATED, Kind.OWN),
    )
)
"""What READ COMMITTED may not show."""
SNAPSHOT: Final = READ_COMMITTED | {Kind.G_SINGLE, Kind.G_NONADJACENT}
SERIALIZABLE: Final = SNAPSHOT | {Kind.G2}


class Append(NamedTuple):
    """A value put at the end of a list."""

    key: str
    value: Value


class Read(NamedTuple):
    """A list as it was seen, the transaction's own appends among it."""

    key: str
    values: Version


Step = Append | Read


@dataclass(frozen=True)
class Transaction:
    """What one transaction did, in its order; of one that failed, as far as it came."""

    name: str
    steps: tuple[Step, ...]
    outcome: Outcome = Outcome.COMMITTED
    began: float = -math.inf
    """When its client began it, and when it heard of the end: what is infinite orders nothing."""
    ended: float = math.inf


@dataclass(frozen=True)
class Anomaly:
    """Something that a level of isolation may exclude, and the transactions that show it."""

    kind: Kind
    names: tuple[str, ...]
    words: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.words}"


class Dependency(Enum):
    """Why one transaction comes before another."""

    WW = "ww"
    WR = "wr"
    RT = "rt"
    RW = "rw"


@dataclass
class _Graph:
    """Who comes before whom, and why: by name, in the order in which it was found out."""

    edges: dict[str, dict[str, set[Dependency]]] = field(default_factory=dict)

    def add(self, before: str, after: str, why: Dependency) -> None:
        if before != after:
            self.edges.setdefault(before, {}).setdefault(after, set()).add(why)
            self.edges.setdefault(after, {})

    def only(self, *kinds: Dependency) -> Mapping[str, Sequence[str]]:
        wanted = set(kinds)
        return {
            name: [after for after, why in found.items() if why & wanted]
            for name, found in self.edges.items()
        }

    def words(self, circle: Sequence[str], kinds: Sequence[Dependency]) -> str:
        """A circle in words; `kinds` are those that may stand for a step, the best first."""
        told = []
        for before, after in zip(circle, [*circle[1:], circle[0]], strict=True):
            why = self.edges[before][after]
            told.append(f"{before} -{next(kind.value for kind in kinds if kind in why)}->")
        return f"{' '.join(told)} {circle[0]}"


def check(
    history: Sequence[Transaction], last: Mapping[str, Version] | None = None
) -> list[Anomaly]:
    """What a history shows, the worst first; at most one circle of each kind, the worst kinds.

    `last` are the lists as they were in the end, if somebody looked: then nothing may be missing.
    """
    return _Check(history, last or {}).run()


class _Check:
    def __init__(self, history: Sequence[Transaction], last: Mapping[str, Version]) -> None:
        self._history = history
        self._last = last
        self._found: list[Anomaly] = []
        self._by_value: dict[tuple[str, Value], Transaction] = {}
        self._final: dict[tuple[str, str], Value] = {}
        """The last append of each transaction to each list."""
        self._lists: dict[str, Version] = {}
        self._graph = _Graph()

    def run(self) -> list[Anomaly]:
        self._index()
        self._order_lists()
        committed = [one for one in self._history if self._happened(one)]
        for transaction in committed:
            self._check_own(transaction)
            self._check_reads(transaction)
        self._check_lost(committed)
        if any(one.kind in (Kind.INCOMPATIBLE, Kind.REPEATED) for one in self._found):
            # Without one order of a list its circles would be none.
            return self._sorted()
        self._add_dependencies(committed)
        self._add_real_time(committed)
        self._search()
        return self._sorted()

    def _sorted(self) -> list[Anomaly]:
        order = list(Kind)
        return sorted(self._found, key=lambda one: order.index(one.kind))

    def _index(self) -> None:
        for transaction in self._history:
            for step in transaction.steps:
                if isinstance(step, Append):
                    known = self._by_value.setdefault((step.key, step.value), transaction)
                    assert known is transaction, f"{step} is appended twice"
                    self._final[transaction.name, step.key] = step.value
        seen = {
            (step.key, value)
            for transaction in self._history
            if transaction.outcome is Outcome.COMMITTED
            for step in transaction.steps
            if isinstance(step, Read)
            for value in step.values
        }
        seen |= {(key, value) for key, values in self._last.items() for value in values}
        self._seen = {self._by_value[one].name for one in seen if one in self._by_value}

    def _happened(self, transaction: Transaction) -> bool:
        if transaction.outcome is Outcome.UNKNOWN:
            return transaction.name in self._seen
        return transaction.outcome is Outcome.COMMITTED

    def _others(self, transaction: Transaction, read: Read) -> Version:
        """A list that was seen, without the reader's own appends at its end."""
        values = read.values
        while values and self._by_value.get((read.key, values[-1])) is transaction:
            values = values[:-1]
        return values

    # What single reads tell

    def _order_lists(self) -> None:
        looks = [
            (transaction.name, step.key, step.values)
            for transaction in self._history
            if transaction.outcome is Outcome.COMMITTED
            for step in transaction.steps
            if isinstance(step, Read)
        ]
        looks += [("the last look", key, values) for key, values in self._last.items()]
        for name, key, values in looks:
            known = self._lists.get(key, ())
            shorter, longer = sorted((known, values), key=len)
            if longer[: len(shorter)] != shorter:
                words = f"{name} saw {key} as {values}, others as {known}"
                self._tell(Kind.INCOMPATIBLE, [name], words)
            elif len(set(values)) != len(values):
                self._tell(Kind.REPEATED, [name], f"{name} saw {key} as {values}")
            else:
                self._lists[key] = longer

    def _check_own(self, transaction: Transaction) -> None:
        """Whether a transaction saw each list as it had seen it, with its own appends."""
        own: dict[str, list[Value]] = {}
        for step in transaction.steps:
            if isinstance(step, Append):
                own.setdefault(step.key, []).append(step.value)
                continue
            mine = tuple(own.get(step.key, ()))
            if mine and step.values[-len(mine) :] != mine:
                self._tell(
                    Kind.OWN,
                    [transaction.name],
                    f"{transaction.name} saw {step.key} as {step.values} after it appended {mine}",
                )

    def _check_reads(self, transaction: Transaction) -> None:
        for step in transaction.steps:
            if not isinstance(step, Read):
                continue
            for place, value in enumerate(step.values):
                writer = self._by_value.get((step.key, value))
                if writer is transaction:
                    continue
                if writer is None or writer.outcome is Outcome.ROLLED_BACK:
                    who = "nobody" if writer is None else f"{writer.name}, which was rolled back,"
                    names = (
                        [transaction.name] if writer is None else [writer.name, transaction.name]
                    )
                    words = f"{transaction.name} saw {value} in {step.key}, which {who} appended"
                    self._tell(Kind.G1A, names, words)
                elif self._is_half(writer, step, place, transaction):
                    self._tell(
                        Kind.G1B,
                        [writer.name, transaction.name],
                        f"{transaction.name} saw {step.key} as {step.values}, "
                        f"in the middle of {writer.name}",
                    )

    def _is_half(self, writer: Transaction, read: Read, place: int, reader: Transaction) -> bool:
        """Whether what somebody else, or nothing, follows is not its writer's last append."""
        after = read.values[place + 1] if place + 1 < len(read.values) else None
        following = None if after is None else self._by_value.get((read.key, after))
        if following is writer:
            return False
        return self._final[writer.name, read.key] != read.values[place]

    def _check_lost(self, committed: Iterable[Transaction]) -> None:
        for transaction in committed:
            for step in transaction.steps:
                if not isinstance(step, Append) or step.key not in self._last:
                    continue
                if step.value not in self._last[step.key]:
                    words = f"{step.value} of {transaction.name} is not in {step.key} in the end"
                    self._tell(Kind.LOST, [transaction.name], words)

    # What they tell together

    def _add_dependencies(self, committed: Sequence[Transaction]) -> None:
        happened = {transaction.name for transaction in committed}
        for key, values in self._lists.items():
            writers = [self._by_value.get((key, value)) for value in values]
            for before, after in pairwise(writers):
                if before is not None and after is not None:
                    self._add(before, after, Dependency.WW, happened)
        for reader in committed:
            for step in reader.steps:
                if isinstance(step, Read) and reader.outcome is Outcome.COMMITTED:
                    self._add_read(reader, step.key, self._others(reader, step), happened)

    def _add_real_time(self, committed: Sequence[Transaction]) -> None:
        """Who had ended before another began; what follows from others' order is left out."""
        for after in committed:
            earlier = [one for one in committed if one.ended < after.began]
            newest = max([one.began for one in earlier], default=0.0)
            for before in earlier:
                if before.ended >= newest:
                    self._graph.add(before.name, after.name, Dependency.RT)

    def _add_read(self, reader: Transaction, key: str, seen: Version, happened: set[str]) -> None:
        """The reader comes after whom it saw last, and before who appended next to that."""
        order = self._lists[key]
        writer = self._by_value.get((key, seen[-1])) if seen else None
        if writer is not None:
            self._add(writer, reader, Dependency.WR, happened)
        following = self._by_value.get((key, order[len(seen)])) if order[len(seen) :] else None
        # If its own append is next, what it saw was the newest.
        if following is not None and following is not reader:
            self._add(reader, following, Dependency.RW, happened)

    def _add(
        self, before: Transaction, after: Transaction, why: Dependency, happened: set[str]
    ) -> None:
        if before.name in happened and after.name in happened:
            self._graph.add(before.name, after.name, why)

    def _search(self) -> None:
        graph, ww, rw = self._graph, Dependency.WW, Dependency.RW
        kinds = tuple(Dependency)
        informed = graph.only(ww, Dependency.WR, Dependency.RT)
        written = self._tell_circle(Kind.G0, find_circle(graph.only(ww)), (ww,))
        if written or self._tell_circle(Kind.G1C, find_circle(informed), kinds):
            return
        if self._tell_circle(Kind.G_SINGLE, _circle_with(graph, rw, informed), kinds):
            return
        if not self._tell_circle(Kind.G_NONADJACENT, _circle_of_rw_apart(graph), kinds):
            self._tell_circle(Kind.G2, _circle_with(graph, rw, graph.only(*kinds)), kinds)

    def _tell_circle(
        self, kind: Kind, circle: Sequence[str] | None, kinds: Sequence[Dependency]
    ) -> bool:
        if circle:
            self._tell(kind, circle, self._graph.words(circle, kinds))
        return bool(circle)

    def _tell(self, kind: Kind, names: Sequence[str], words: str) -> None:
        self._found.append(Anomaly(kind, tuple(names), words))


def _circle_with(
    graph: _Graph, why: Dependency, back: Mapping[str, Sequence[str]]
) -> list[str] | None:
    """A circle that goes by one dependency of a kind and comes back by others, a short one."""
    reachable = _components(graph.only(*Dependency))
    for before, found in graph.edges.items():
        for after, kinds in found.items():
            if why in kinds and reachable[before] == reachable[after]:
                path = _path(back, after, before)
                if path is not None:
                    return [before, *path[:-1]]
    return None


def _circle_of_rw_apart(graph: _Graph) -> list[str] | None:
    """A closed walk with some rw, after each of which comes something else."""
    steps: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for before, found in graph.edges.items():
        for mark in ("", "!"):
            names[before + mark] = before
            ahead = steps.setdefault(before + mark, [])
            for after, kinds in found.items():
                if kinds - {Dependency.RW}:
                    ahead.append(after)
                if Dependency.RW in kinds and not mark:
                    ahead.append(after + "!")
    circle = find_circle(steps)
    return None if circle is None else [names[name] for name in circle]


def find_circle(steps: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The names on a shortest circle through the first node that is on any, or None."""
    components = _components(steps)
    for name, ahead in steps.items():
        for after in ahead:
            if components[after] == components[name]:
                path = _path(steps, after, name)
                assert path is not None, "they are in one component"
                return [name, *path[:-1]] if after != name else [name]
    return None


def _path(steps: Mapping[str, Sequence[str]], first: str, last: str) -> list[str] | None:
    """A shortest way from one to the other, both among it."""
    came: dict[str, str] = {first: ""}
    ahead = [first]
    for name in ahead:
        if name == last:
            way = [name]
            while came[way[-1]]:
                way.append(came[way[-1]])
            return way[::-1]
        for after in steps.get(name, ()):
            if after not in came:
                came[after] = name
                ahead.append(after)
    return None


def _components(steps: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Which strongly connected component each node is in. Tarjan's, without recursion."""
    found: dict[str, int] = {}
    low: dict[str, int] = {}
    order: dict[str, int] = {}
    stack: list[str] = []
    for root in steps:
        if root in order:
            continue
        work: list[tuple[str, Iterator[str]]] = [(root, iter(steps[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        while work:
            name, ahead = work[-1]
            after = next(ahead, None)
            if after is None:
                work.pop()
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[name])
                if low[name] == order[name]:
                    while True:
                        member = stack.pop()
                        found[member] = order[name]
                        if member == name:
                            break
            elif after not in order:
                order[after] = low[after] = len(order)
                stack.append(after)
                work.append((after, iter(steps.get(after, ()))))
            elif after not in found:
                low[name] = min(low[name], order[after])
    return found
