"""Which logs a process takes over first, when the process that led hundreds of them is gone.

Invariants:
- At most `at_once` logs are taken over at a time. If all ran at once, each would take as long as
  all together.
- Of the logs that wait, the one that was written last goes first: its users are waiting for it.
- Every fourth turn goes to the log that has waited longest. So no log waits for ever, whatever
  comes after it.
- A cancelled caller never keeps a turn.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_LONGEST_EVERY: Final = 4


class Takeovers:
    """Turns for takeovers. All methods are called on one event loop."""

    def __init__(self, at_once: int) -> None:
        self.free = at_once
        """Free turns."""
        self._by_write: list[tuple[float, int, asyncio.Future[None]]] = []
        self._by_age: deque[asyncio.Future[None]] = deque()
        """The same that wait, in the order in which they came."""
        self._came = self._passed_on = 0

    @asynccontextmanager
    async def turn(self, written_s: float) -> AsyncIterator[None]:
        """Hold a turn for the block.

        `written_s` is when the log was written last, as far as is known; `-inf` if its last
        takeover failed: it then goes behind all others.
        """
        if self.free:
            self.free -= 1
        else:
            await self._wait(written_s)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, written_s: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._came += 1
        heapq.heappush(self._by_write, (-written_s, self._came, turn))
        self._by_age.append(turn)
        try:
            await turn
        except BaseException:
            if not turn.cancel() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        self._passed_on += 1
        by_age = self._passed_on % _LONGEST_EVERY == 0
        waiting = self._by_age if by_age else self._by_write
        while waiting:
            turn = self._by_age.popleft() if by_age else heapq.heappop(self._by_write)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._by_age.clear()
        self._by_write.clear()
        self.free += 1
