"""What a leader has to do at some moment: one heap, woken once for all that is due together.

Invariants:
- A key has at most one moment of a kind; a later call moves it.
- What was removed or moved costs memory for a while and never rings.
- Entries that ring no more are at most as many as those that will, and a thousand.
"""

import enum
import heapq
from collections.abc import Callable
from typing import Final, Protocol

from broker.leading.clock import BrokerTime

Key = int | str
_STALE_KEPT: Final = 1_000
_RING_MAX: Final = 1_000


class Kind(enum.IntEnum):
    """What happens at a moment."""

    DUE = 0
    DEADLINE = 1
    TRANSACTION = 2
    SCHEDULE = 3
    PURGE = 4
    INTERRUPT = 5
    HOLD = 6


class Handle(Protocol):
    """A call to come, which may be cancelled."""

    def cancel(self) -> None:
        """Let it not come."""
        ...


Later = Callable[[float, Callable[[], None]], Handle]
"""`loop.call_later`."""


class Timers:
    """Moments of a term. `ring(kind, keys)` is called with all that is due, in order of moments."""

    def __init__(
        self, time: BrokerTime, later: Later, ring: Callable[[Kind, list[Key]], None]
    ) -> None:
        self._time = time
        self._later = later
        self._ring = ring
        self._heap: list[tuple[int, Kind, Key]] = []
        self._moments: dict[Kind, dict[Key, int]] = {kind: {} for kind in Kind}
        self._count = 0
        self._handle: Handle | None = None
        self._wakes_ms = 0
        self._paused = True

    def __len__(self) -> int:
        return self._count

    def set(self, kind: Kind, key: Key, at_ms: int, since_ms: int = 0) -> None:
        """Ring for a key at a moment, and at no other that was set for it.

        Later than that, while it is not sure that the moment is over: see `BrokerTime.ring_ms`.
        """
        at_ms = self._time.ring_ms(at_ms, since_ms)
        moments = self._moments[kind]
        before = moments.get(key)
        if before == at_ms:
            return
        if before is None:
            self._count += 1
        moments[key] = at_ms
        heapq.heappush(self._heap, (at_ms, kind, key))
        self._tidy()
        if not self._paused and (self._handle is None or at_ms < self._wakes_ms):
            self._wake()

    def remove(self, kind: Kind, key: Key) -> None:
        """Ring no more for a key, if that was to come."""
        if self._moments[kind].pop(key, None) is not None:
            self._count -= 1

    def moment(self, kind: Kind, key: Key) -> int | None:
        """When it rings for a key, if it will."""
        return self._moments[kind].get(key)

    def moments(self, kind: Kind) -> dict[Key, int]:
        """When it rings for each key of a kind."""
        return dict(self._moments[kind])

    def start(self) -> None:
        """Ring from now on; until then moments only gather."""
        self._paused = False
        self._wake()

    def stop(self) -> None:
        """Never ring again."""
        self._paused = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wake(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap and not self._paused:
            self._wakes_ms = self._heap[0][0]
            wait_ms = max(0, self._wakes_ms - self._time.now_ms())
            self._handle = self._later(wait_ms / 1000, self._due)

    def _due(self) -> None:
        self._handle = None
        now_ms = self._time.now_ms()
        due: dict[Kind, list[Key]] = {}
        taken = 0
        # Only so many at a time: the rest is due at once again, after what else waits.
        while self._heap and self._heap[0][0] <= now_ms and taken < _RING_MAX:
            at_ms, kind, key = heapq.heappop(self._heap)
            moments = self._moments[kind]
            if moments.get(key) == at_ms:
                del moments[key]
                self._count -= 1
                due.setdefault(kind, []).append(key)
                taken += 1
        for kind, keys in due.items():
            if not self._paused:
                self._ring(kind, keys)
        if not self._paused:
            self._wake()

    def _tidy(self) -> None:
        if len(self._heap) > 2 * self._count + _STALE_KEPT:
            self._heap = [
                (at_ms, kind, key)
                for kind, moments in self._moments.items()
                for key, at_ms in moments.items()
            ]
            heapq.heapify(self._heap)
