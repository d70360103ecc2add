"""Which logs a process takes over first, when the process that led hundreds of them is gone.

Invariants:
- At most `at_once` logs are taken over at a time. If all ran at once, each would take as long as
  all together.
- Of the logs that wait, the one that was written last goes first: its users are waiting for it.
- A log whose takeover failed waits behind all others until one succeeds. Otherwise logs that cannot
  be taken over would keep the rest waiting.
- A cancelled caller never keeps a turn.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Takeovers:
    """Turns for takeovers. All methods are called on one event loop."""

    def __init__(self, at_once: int) -> None:
        self.free = at_once
        """Free turns."""
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    @asynccontextmanager
    async def turn(self, written_s: float) -> AsyncIterator[None]:
        """Hold a turn for the block.

        `written_s` is when the log was written last, as far as is known; `-inf` if its last
        takeover failed.
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
        self._count += 1
        heapq.heappush(self._waiting, (-written_s, self._count, turn))
        try:
            await turn
        except BaseException:
            if not turn.cancel() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1
