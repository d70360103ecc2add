"""So many bytes at once, first come, first served.

Invariants:
- Never more is taken than there is, except by one who wants more than the whole.
- Who comes later never overtakes who waits.
"""

import asyncio
from collections import deque


class ByteBudget:
    """So many bytes at once; who wants more waits, first come, first served.

    A taker of more than the whole budget waits for all of it and then takes more than there is.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take_now(self, size_bytes: int) -> bool:
        """Take the bytes if they are free and nobody waits; else False: `take` them."""
        if self._waiting or not self._fits(size_bytes):
            return False
        self._taken_bytes += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """Wait until the bytes are free, and take them."""
        if self.take_now(size_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size_bytes)
            else:
                # Whoever waits behind may fit now, once this turn is out of the way.
                self.give_back(0)
            raise

    def give_back(self, size_bytes: int) -> None:
        """Return what was taken."""
        self._taken_bytes -= size_bytes
        assert self._taken_bytes >= 0
        while self._waiting:
            wanted_bytes, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(wanted_bytes):
                    return
                self._taken_bytes += wanted_bytes
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, size_bytes: int) -> bool:
        return not self._taken_bytes or self._taken_bytes + size_bytes <= self._bytes_max
