"""How fast repair may go: a budget of bytes, or of reads, that fills with time.

Invariants:
- Over any stretch of time no more is spent than the rate allows, and one step besides.
- A rate of 0 never waits.
"""

import asyncio

from engine.ports.clock import Clock


class Pace:
    """The budget of all of one node's repair together."""

    def __init__(self, clock: Clock, a_second: int) -> None:
        assert a_second >= 0
        self._clock = clock
        self._a_second = a_second
        self._free_s = 0.0

    async def spend(self, amount: int) -> None:
        """Wait until earlier steps are paid for, then take this one."""
        if self._a_second == 0:
            return
        now = self._clock.monotonic()
        start = max(now, self._free_s)
        self._free_s = start + amount / self._a_second
        if start > now:
            await asyncio.sleep(start - now)
