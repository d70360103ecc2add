"""Whether a state's disk still takes what is committed.

Invariants:
- A disk that hangs is told from a slow one, though neither fails: it makes no progress.
"""

from engine.ports.clock import Clock
from engine.replica.settings import ReplicaSettings
from engine.state.contract import State


class Room:
    """Looks at a state now and then, as often as a lease is prolonged."""

    def __init__(self, state: State, settings: ReplicaSettings, clock: Clock) -> None:
        self._state = state
        self._settings = settings
        self._clock = clock
        self._unwritten_bytes = -1
        self._since_s = 0.0

    def stalled(self) -> bool:
        """Whether there has been no room, and no progress either, for too long."""
        unwritten_bytes, now_s = self._state.unwritten_bytes, self._clock.monotonic()
        full = unwritten_bytes > self._settings.unwritten_bytes_max
        if not full or unwritten_bytes != self._unwritten_bytes:
            self._unwritten_bytes = unwritten_bytes
            self._since_s = now_s
        return full and now_s - self._since_s > self._settings.stall_ms / 1000
