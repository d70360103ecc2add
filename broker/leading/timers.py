"""A leader's timers: one heap, which wakes once for all timers that are due together.

Invariants:
- A key has at most one timer of a kind. Setting it again moves it.
- A timer that was removed or moved stays in the heap for a while and never fires.
- The heap has at most as many of these as of live timers, plus a thousand.
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
    """What a timer is for."""

    DUE = 0
    DEADLINE = 1
    TRANSACTION = 2
    SCHEDULE = 3
    PURGE = 4
    INTERRUPT = 5
    HOLD = 6


class Handle(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


Later = Callable[[float, Callable[[], None]], Handle]
"""`loop.call_later`."""


class Timers:
    """The timers of a term. `ring(kind, keys)` is called with all that are due, in order."""

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
        """Set the timer of a key. This replaces an earlier time.

        It fires later while the broker's time is in doubt: see `BrokerTime.ring_ms`.
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
        """Remove the timer of a key, if it has one."""
        if self._moments[kind].pop(key, None) is not None:
            self._count -= 1

    def moment(self, kind: Kind, key: Key) -> int | None:
        """When the timer of a key fires, if it has one."""
        return self._moments[kind].get(key)

    def moments(self, kind: Kind) -> dict[Key, int]:
        """When the timer of each key of a kind fires."""
        return dict(self._moments[kind])

    def start(self) -> None:
        """Begin to fire. Until then, timers are only collected."""
        self._paused = False
        self._wake()

    def stop(self) -> None:
        """Stop for good."""
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
        # Bounded, so that other work on the event loop gets its turn before the rest.
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
