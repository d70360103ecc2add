"""Changes that are not in the storage yet, laid over its rows.

What reads see is one dict; what is written is the same changes in parts of some whole commits each,
because a write keeps the interpreter for itself as long as it takes.

Invariants:
- The parts, one after the other, make the dict; each ends with a commit.
- An overlay's entry, also one that removes a row, hides what lies below it.
- Keys stay once they are in: so those that a dict has taken in last are those not sorted yet.
- A sealed overlay never changes; threads may read it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final

from engine.limits import KIB
from engine.log.position import START, Position
from engine.state.contract import Row

PART_ROWS_MAX: Final = 256
PART_BYTES_MAX: Final = 64 * KIB
_INSORT_KEYS_MAX: Final = 32


class Part:
    """Commits that are written together, and the position of the last of them."""

    __slots__ = ("position", "rows", "size_bytes")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.position = START
        self.size_bytes = 0


class Overlay:
    """Changes by key; None removes a row."""

    __slots__ = ("_ordered", "parts", "position", "rows", "sealed", "size_bytes")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.parts: list[Part] = []
        self.position = START
        self.size_bytes = 0
        self.sealed = False
        self._ordered: list[bytes] = []

    def take(self, changes: dict[bytes, bytes | None], position: Position) -> int:
        """Take a commit in. Returns the bytes of its changes, whatever they replace."""
        assert not self.sealed
        size_bytes = sum(map(len, changes)) + sum(map(len, filter(None, changes.values())))
        self.rows.update(changes)
        self.size_bytes += size_bytes
        self.position = position
        part = self._part(len(changes), size_bytes)
        part.rows.update(changes)
        part.size_bytes += size_bytes
        part.position = position
        return size_bytes

    def _part(self, rows: int, size_bytes: int) -> Part:
        """The part that so many more rows and bytes belong to."""
        if self.parts:
            last = self.parts[-1]
            fits = last.size_bytes + size_bytes <= PART_BYTES_MAX
            if fits and len(last.rows) + rows <= PART_ROWS_MAX:
                return last
        self.parts.append(Part())
        return self.parts[-1]

    def clear(self) -> None:
        """Forget all changes."""
        assert not self.sealed and not self.parts
        self.rows.clear()
        self.size_bytes = 0
        self._ordered.clear()

    def between(self, first: bytes, end: bytes | None) -> range:
        """Which of `ordered()` are from `first` on and under `end`."""
        keys = self.ordered()
        start = bisect_left(keys, first)
        return range(start, len(keys) if end is None else bisect_left(keys, end, start))

    def ordered(self) -> list[bytes]:
        """All keys in order. Sorting waits until somebody scans."""
        missing = len(self.rows) - len(self._ordered)
        if missing:
            fresh = list(islice(reversed(self.rows), missing))
            if self.sealed:
                # Perhaps in two threads at once: each makes its own list.
                self._ordered = sorted(self._ordered + fresh)
            elif missing <= _INSORT_KEYS_MAX:
                for key in fresh:
                    insort(self._ordered, key)
            else:
                self._ordered += fresh
                self._ordered.sort()
        return self._ordered


def laid_over(
    below: Iterator[Row], overlays: Sequence[Overlay], first: bytes, end: bytes | None
) -> Iterator[Row]:
    """Rows below with overlays over them, the newest overlay first, in order of keys."""
    touched = []
    for overlay in overlays:
        places = overlay.between(first, end) if overlay.rows else range(0)
        if places:
            touched.append((overlay, map(overlay.ordered().__getitem__, places)))
    if not touched:
        return below
    changed = touched[0][1] if len(touched) == 1 else merge(*[keys for _, keys in touched])
    return _merged(below, changed, [overlay.rows for overlay, _ in touched])


def _merged(
    below: Iterator[Row], changed: Iterator[bytes], layers: list[dict[bytes, bytes | None]]
) -> Iterator[Row]:
    row = next(below, None)
    previous = b""
    for key in changed:
        if key == previous:
            continue
        previous = key
        while row is not None and row[0] < key:
            yield row
            row = next(below, None)
        if row is not None and row[0] == key:
            row = next(below, None)
        value = next(layer[key] for layer in layers if key in layer)
        if value is not None:
            yield key, value
    if row is not None:
        yield row
        yield from below
