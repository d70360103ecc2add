"""The broker's time: what every command of a term is stamped with.

It is the later of the last time that was logged and the wall clock at the takeover, and from there
on it goes as the monotonic clock does: a wall clock that is set while a leader leads moves nothing.

Invariants:
- It never goes back, neither within a term nor from one leader to the next.
- A wall clock that runs away from it is told, and not followed.
"""

from typing import Final

from engine.ports.clock import Clock

JUMP_ALARM_MS: Final = 60_000


class BrokerTime:
    """One term's time, in milliseconds since 1970-01-01 UTC."""

    def __init__(self, clock: Clock, last_logged_ms: int) -> None:
        self._clock = clock
        self._start_s = clock.monotonic()
        wall_ms = clock.wall_ms()
        self._start_ms = max(last_logged_ms, wall_ms)
        # A last logged time far ahead of this clock is told at the first look: one is wrong.
        self._jump_told_ms = 0
        self.jumps = 0
        """How often the wall clock was found somewhere else than before."""

    def now_ms(self) -> int:
        """The time now."""
        return self._start_ms + int((self._clock.monotonic() - self._start_s) * 1000)

    def jump_ms(self) -> int:
        """By how much the wall clock has moved against this time since it was last asked.

        0 unless that is more than a minute. Positive: the wall clock was set forward.
        """
        ahead_ms = self.now_ms() - self._clock.wall_ms()
        jump_ms = self._jump_told_ms - ahead_ms
        if abs(jump_ms) <= JUMP_ALARM_MS:
            return 0
        self._jump_told_ms = ahead_ms
        self.jumps += 1
        return jump_ms
