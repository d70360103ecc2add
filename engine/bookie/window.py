"""What the loop knows ahead of the index, and the newest runs.

Invariants:
- A place is in the window from its sync until the index has it; so window and index together always
  know everything that is durable.
- Where the two disagree the window is newer.
- The recent runs' bytes are bounded; what falls out is read from the disk.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from engine.bookie.index import Place
from engine.bookie.indexing import gaps
from engine.run import Run


class Window:
    """Places that are durable in the journal and not yet in the index."""

    def __init__(self) -> None:
        self._places: dict[int, list[Place]] = {}

    def add(self, ledger_id: int, places: Sequence[Place]) -> None:
        """Take places of one ledger, in order."""
        held = self._places.get(ledger_id)
        if held is None:
            self._places[ledger_id] = list(places)
        elif held[-1].last < places[0].first:
            held += places
        else:
            for place in places:
                _overlay(held, place)

    def find(self, ledger_id: int, first: int, last: int) -> list[Place]:
        """The places that overlap `first` to `last`, in order."""
        held = self._places.get(ledger_id)
        if held is None or held[-1].last < first:
            return []
        start = bisect_left(held, first, key=_last_of)
        return held[start : bisect_right(held, last, key=_first_of)]

    def last(self, ledger_id: int) -> int:
        """The highest id in the window of a ledger, or -1."""
        held = self._places.get(ledger_id)
        return held[-1].last if held else -1

    def ledgers(self, above: int) -> list[int]:
        """The ledgers in the window over `above`, in order."""
        return sorted(ledger_id for ledger_id in self._places if ledger_id > above)

    def retire(self, places: Sequence[Place]) -> None:
        """Forget places that the index has now."""
        start, count = 0, len(places)
        while start < count:
            place = places[start]
            held = self._places.get(place.ledger_id)
            if held is None:
                start += 1
                continue
            same = 0
            while same < len(held) and start + same < count and held[same] is places[start + same]:
                same += 1
            if same:
                del held[:same]
            else:
                at = (place.segment, place.offset)
                held[:] = [other for other in held if (other.segment, other.offset) != at]
            if not held:
                del self._places[place.ledger_id]
            start += same or 1

    def drop(self, ledger_id: int) -> None:
        """Forget a ledger."""
        self._places.pop(ledger_id, None)


def merge(newer: list[Place], older: list[Place]) -> list[Place]:
    """Places of the window over those of the index, disjoint and in order."""
    if not newer:
        return older
    if not older or older[-1].last < newer[0].first:
        return older + newer
    merged = list(newer)
    for place in older:
        for first, last in gaps(newer, place.first, place.last):
            merged.append(place._replace(first=first, last=last))
    merged.sort(key=_first_of)
    return merged


_NOWHERE: Final = 2**64


class RecentRuns:
    """The newest runs by the place of their record."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        # Of a plain dictionary the oldest key is found past all those that were removed.
        self._runs: OrderedDict[tuple[int, int], Run] = OrderedDict()
        self._oldest: tuple[int, int] | None = None

    def add(self, segment: int, offset: int, run: Run) -> None:
        """Remember a run; the oldest ones make room."""
        runs = self._runs
        if not runs:
            self._oldest = (segment, offset)
        runs[segment, offset] = run
        self._size_bytes += len(run.table) + len(run.body)
        if self._size_bytes > self._bytes_max:
            self._make_room()

    def _make_room(self) -> None:
        runs = self._runs
        while self._size_bytes > self._bytes_max:
            _, oldest = runs.popitem(last=False)
            self._size_bytes -= len(oldest.table) + len(oldest.body)
        self._oldest = next(iter(runs), None)

    def starts_at(self, segment: int) -> int:
        """From which offset of a segment on there may be any. May be called in any thread.

        Runs are added in the journal's order, so none lies before the oldest.
        """
        oldest = self._oldest
        if oldest is None or segment < oldest[0]:
            return _NOWHERE
        return oldest[1] if segment == oldest[0] else 0

    def get(self, segment: int, offset: int) -> Run | None:
        """The run whose record begins there. May be called in any thread."""
        return self._runs.get((segment, offset))


def _overlay(held: list[Place], place: Place) -> None:
    pieces = [place]
    for old in held:
        pieces += [
            old._replace(first=first, last=last)
            for first, last in gaps([place], old.first, old.last)
        ]
    pieces.sort(key=_first_of)
    held[:] = pieces


def _first_of(place: Place) -> int:
    return place.first


def _last_of(place: Place) -> int:
    return place.last
