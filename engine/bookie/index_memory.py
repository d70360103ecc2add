"""The index in memory: the twin for simulations, which forgets at a crash what was not flushed.

Invariants:
- What `crash()` leaves is the state at the last `flush()` or `close()`, position included.
- Order is that of the keys, never that of a hash.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from engine.bookie.index import BYTES_MAX, PLACES_MAX, Changes, Place, Position


class MemoryIndex:
    """An `Index` in dictionaries and sorted lists. Keep the object to "reopen" it."""

    def __init__(self) -> None:
        self._state = _State()
        self._flushed = _State()
        self._unflushed: list[Changes] = []

    def apply(self, changes: Changes) -> None:
        """Apply one batch in order."""
        self._state.apply(changes)
        self._unflushed.append(changes)

    def position(self) -> Position:
        """The position of the newest batch applied; (0, 0) when new."""
        return self._state.position

    def find(
        self, ledger_id: int, first: int, last: int, bytes_enough: int = BYTES_MAX
    ) -> list[Place]:
        """The places that overlap `first` to `last`, in order; see `Index.find`."""
        places = self._state.places.get(ledger_id, [])
        start = bisect_left(places, first, key=_last_of)
        end = start + min(bisect_right(places, last, key=_first_of) - start, PLACES_MAX)
        found: list[Place] = []
        for place in places[start:end]:
            if bytes_enough <= 0:
                break
            found.append(place)
            bytes_enough -= place.size_bytes
        return found

    def last(self, ledger_id: int) -> Place | None:
        """The place with the ledger's highest id."""
        places = self._state.places.get(ledger_id)
        return places[-1] if places else None

    def ledgers(self, above: int, limit: int) -> list[int]:
        """Ids of ledgers with at least one place, over `above`, in order."""
        return sorted(ledger for ledger in self._state.places if ledger > above)[:limit]

    def fact(self, key: bytes) -> bytes | None:
        """A small fact."""
        return self._state.facts.get(key)

    def facts(self, prefix: bytes, above: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Small facts whose key starts with `prefix` and is over `above`, in order."""
        keys = sorted(key for key in self._state.facts if key.startswith(prefix) and key > above)
        return [(key, self._state.facts[key]) for key in keys[:limit]]

    def flush(self) -> None:
        """Make everything applied so far durable."""
        for changes in self._unflushed:
            self._flushed.apply(changes)
        self._unflushed.clear()

    def unflushed_bytes(self) -> int:
        """None: a flush takes nothing of the disk."""
        return 0

    def close(self) -> None:
        """Flush; the object may be used again, as a reopened index."""
        self.flush()

    def crash(self) -> None:
        """Forget what was not flushed."""
        self._unflushed.clear()
        self._state = self._flushed.copy()


class _State:
    """Places, facts and position at one moment."""

    def __init__(self) -> None:
        self.places: dict[int, list[Place]] = {}
        self.facts: dict[bytes, bytes] = {}
        self.position = Position(0, 0)

    def copy(self) -> "_State":
        twin = _State()
        twin.places = {ledger: list(places) for ledger, places in self.places.items()}
        twin.facts = dict(self.facts)
        twin.position = self.position
        return twin

    def apply(self, changes: Changes) -> None:
        for place in changes.remove:
            self._remove(place)
        self._add(changes.add)
        for key, value in changes.facts:
            if value is None:
                self.facts.pop(key, None)
            else:
                self.facts[key] = value
        self.position = changes.position

    def _remove(self, place: Place) -> None:
        places = self.places.get(place.ledger_id, [])
        at = bisect_left(places, place.last, key=_last_of)
        if at < len(places) and places[at].last == place.last:
            del places[at]
        if not places:
            self.places.pop(place.ledger_id, None)

    def _add(self, added: Sequence[Place]) -> None:
        for place in added:
            places = self.places.setdefault(place.ledger_id, [])
            if not places or places[-1].last < place.first:
                places.append(place)
                continue
            insort(places, place, key=_first_of)
            at = bisect_left(places, place.first, key=_first_of)
            assert at == 0 or places[at - 1].last < place.first, place
            assert at + 1 == len(places) or place.last < places[at + 1].first, place


def _first_of(place: Place) -> int:
    return place.first


def _last_of(place: Place) -> int:
    return place.last
