"""From what the journal says to what the index holds, the same way live and in replay.

Invariants:
- Items are applied in the journal's order, and a batch of them with the position they end at.
- An overlay leaves a ledger's ranges disjoint: what it covers goes, what sticks out stays.
- A MOVE, and a mark of damage, count only where the index still points at the record they name.
- Nothing of a buried ledger comes back. Released entries come back only if the index loses the
  release. That does no harm: they are released again.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from engine.bookie.index import PLACES_MAX, Changes, Index, Place, Position
from engine.bookie.segment import Kind, Origin, Record, origin_of

DAMAGED: Final = -1
"""The segment of a place whose ids were held and whose bytes cannot be read."""

_LEDGER: Final = struct.Struct(">cQ")
_NUMBER: Final = struct.Struct(">q")
_RELEASED: Final = struct.Struct(">QQQQ")
_RELEASED_MAX: Final = 64
"""The most released ranges that are remembered of a ledger. If there are more, they are joined into
one, which may include entries that were not released."""
_ID_MAX: Final = 2**63 - 1

DAMAGE_KEY: Final = b"U"
"""Set while a header of the journal was unreadable: of ledgers up to this id, negatives are
unknown. Empty: of all ledgers."""
RETIRED_KEY: Final = b"R"
"""Set when such a doubt was cleared: ledgers up to this id take no normal appends any more, for
what was unreadable may have been their fence."""
FACTS: Final = b"f"
FENCE: Final = b"x"
TOMBSTONE: Final = b"d"
LAC: Final = b"l"
DROPPED: Final = b"s"
RELEASED: Final = b"r"


class Overlay(NamedTuple):
    """A place that replaces whatever the index says of its ids."""

    place: Place


class Moved(NamedTuple):
    """A place that replaces only what lies in the record at `origin`.

    With `absent` it also takes ids of which the index knows nothing.
    """

    place: Place
    origin: Origin
    absent: bool = False


class Fact(NamedTuple):
    """A small fact; None removes it."""

    key: bytes
    value: bytes | None


class Buried(NamedTuple):
    """A ledger of which only the tombstone stays."""

    ledger_id: int


class Released(NamedTuple):
    """Entries that are given back because other bookies hold them.

    What the journal holds of them before `until` was released. What it holds after that was written
    later.
    """

    ledger_id: int
    first: int
    last: int
    until: Position


Item = Place | Overlay | Moved | Fact | Buried | Released
"""A bare `Place` is one whose ids are known to be in no other place."""


def fact_key(kind: bytes, number: int) -> bytes:
    """The key of a fact about a ledger (FACTS, FENCE, TOMBSTONE, LAC, RELEASED), or a segment
    (DROPPED).
    """
    return _LEDGER.pack(kind, number)


def number_of_key(key: bytes) -> int:
    """The ledger or segment that a fact's key names."""
    number: int = _LEDGER.unpack(key)[1]
    return number


def pack_number(number: int) -> bytes:
    """A number as a fact's value."""
    return _NUMBER.pack(number)


def unpack_number(value: bytes) -> int:
    """The number in a fact's value."""
    number: int = _NUMBER.unpack(value)[0]
    return number


def damaged(place: Place) -> Place:
    """The same ids, as damaged ones."""
    return place._replace(segment=DAMAGED, offset=0, size_bytes=0, record_first=place.first)


def apply_items(index: Index, items: Iterable[Item], position: Position) -> None:
    """Apply items in order; the last batch carries the position."""
    added: list[Place] = []
    facts: list[tuple[bytes, bytes | None]] = []
    for item in items:
        if type(item) is Place:
            added.append(item)
        elif type(item) is Fact:
            facts.append(item)
        else:
            # These look at the index first, so all before them must be in it.
            before = index.position()
            index.apply(Changes((), added, facts, before))
            added, facts = [], []
            if type(item) is Buried:
                _bury(index, item.ledger_id, before)
            elif type(item) is Overlay:
                _overlay(index, item.place, None, True, before)
            elif type(item) is Moved:
                _overlay(index, item.place, item.origin, item.absent, before)
            elif type(item) is Released:
                _release(index, item, before)
    index.apply(Changes((), added, facts, position))


def held_ledgers(index: Index, above: int, limit: int) -> list[int]:
    """Ids over `above` of which the index has a place, facts or a fence; `limit` of each kind."""
    found = index.ledgers(above, limit)
    for kind in (FACTS, FENCE):
        key = fact_key(kind, above) if above >= 0 else kind
        found += [number_of_key(key) for key, _ in index.facts(kind, key, limit)]
    return found


def item_of(record: Record, at: Position) -> Item | None:
    """What the index is to know of a record written at `at`; None of a kind that it need not."""
    kind, ledger_id = record.kind, record.ledger_id
    if kind in (Kind.RUN, Kind.MOVE):
        last = record.first + record.entries - 1
        place = Place(ledger_id, record.first, last, *at, record.size_bytes, record.first)
        return Overlay(place) if kind == Kind.RUN else Moved(place, origin_of(record.head))
    if kind == Kind.FACTS:
        return Fact(fact_key(FACTS, ledger_id), record.head)
    if kind == Kind.FENCE:
        return Fact(fact_key(FENCE, ledger_id), record.head)
    if kind == Kind.TOMBSTONE:
        return Buried(ledger_id)
    if kind == Kind.DROPPED:
        return Fact(fact_key(DROPPED, record.first), b"")
    return None


def gaps(places: Sequence[Place], first: int, last: int) -> list[tuple[int, int]]:
    """The ranges within `first` to `last` that disjoint places in order leave out.

    >>> gaps([Place(1, 2, 3, 1, 0, 0, 2)], 0, 5)
    [(0, 1), (4, 5)]
    >>> gaps([Place(1, 2, 3, 1, 0, 0, 2), Place(1, 8, 9, 1, 0, 0, 8)], 0, 2)
    [(0, 1)]
    """
    found: list[tuple[int, int]] = []
    for place in places:
        if place.first > last:
            break
        if place.first > first:
            found.append((first, place.first - 1))
        first = max(first, place.last + 1)
    if first <= last:
        found.append((first, last))
    return found


def _overlay(
    index: Index, place: Place, origin: Origin | None, absent: bool, position: Position
) -> None:
    held = _find_all(index, place)
    removed: list[Place] = []
    added: list[Place] = []
    for old in held:
        if origin is not None and (old.segment, old.offset) != origin:
            continue
        removed.append(old)
        if old.first < place.first:
            added.append(old._replace(last=place.first - 1))
        low, high = max(old.first, place.first), min(old.last, place.last)
        if origin is not None:
            added.append(place._replace(first=low, last=high))
        if old.last > place.last:
            added.append(old._replace(first=place.last + 1))
    if origin is None:
        added.append(place)
    elif absent:
        for low, high in gaps(held, place.first, place.last):
            added.append(place._replace(first=low, last=high))
    added.sort(key=lambda piece: piece.first)
    index.apply(Changes(removed, added, (), position))


def _find_all(index: Index, place: Place) -> list[Place]:
    held: list[Place] = []
    first = place.first
    while True:
        found = index.find(place.ledger_id, first, place.last)
        held += found
        if len(found) < PLACES_MAX:
            return held
        first = found[-1].last + 1


def released_of(index: Index, ledger_id: int) -> list[Released]:
    """The ranges of a ledger that were released since the index was created."""
    value = index.fact(fact_key(RELEASED, ledger_id)) or b""
    return [
        Released(ledger_id, first, last, Position(segment, offset))
        for first, last, segment, offset in _RELEASED.iter_unpack(value)
    ]


def _release(index: Index, released: Released, position: Position) -> None:
    ledger_id, first, last, _ = released
    known = [*released_of(index, ledger_id), released]
    if len(known) > _RELEASED_MAX:
        lowest, highest = min(one.first for one in known), max(one.last for one in known)
        known = [Released(ledger_id, lowest, highest, max(one.until for one in known))]
    value = b"".join(_RELEASED.pack(one.first, one.last, *one.until) for one in known)
    index.apply(Changes((), (), [(fact_key(RELEASED, ledger_id), value)], position))
    while held := index.find(ledger_id, first, last):
        kept = [old._replace(last=first - 1) for old in held if old.first < first]
        kept += [old._replace(first=last + 1) for old in held if old.last > last]
        index.apply(Changes(held, kept, (), position))
        first = held[-1].last + 1
        if first > last:
            return


def _bury(index: Index, ledger_id: int, position: Position) -> None:
    facts = [
        (fact_key(TOMBSTONE, ledger_id), b""),
        (fact_key(FACTS, ledger_id), None),
        (fact_key(FENCE, ledger_id), None),
        (fact_key(LAC, ledger_id), None),
        (fact_key(RELEASED, ledger_id), None),
    ]
    index.apply(Changes((), (), facts, position))
    while found := index.find(ledger_id, 0, _ID_MAX):
        index.apply(Changes(found, (), (), position))
