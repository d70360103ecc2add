"""Which logs a process takes over first, when the process that led hundreds of them is gone.

Invariants:
- At most `at_once` logs are taken over at a time. If all ran at once, each would take as long as
  all together.
- Of the logs that wait, the one that was used last goes first: its users are waiting for it.
- Every fourth turn goes to the log that has waited longest. So logs that cannot be taken over, and
  try again and again, do not keep the others waiting.
- A cancelled caller never keeps a turn.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

_LONGEST_EVERY: Final = 4


class Takeovers:
    """Turns for takeovers. All methods are called on one event loop."""

    def __init__(self, at_once: int) -> None:
        self.free = at_once
        """Free turns."""
        self._waiting: list[tuple[Callable[[], float], asyncio.Future[None]]] = []
        """In the order in which they came."""
        self._passed_on = 0

    @asynccontextmanager
    async def turn(self, used_s: Callable[[], float]) -> AsyncIterator[None]:
        """Hold a turn for the block.

        `used_s` tells when the log was used last. It is asked again whenever a turn is given: a
        log may be used while it waits.
        """
        if self.free:
            self.free -= 1
        else:
            await self._wait(used_s)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, used_s: Callable[[], float]) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((used_s, turn))
        try:
            await turn
        except BaseException:
            if not turn.cancel() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        self._waiting = [each for each in self._waiting if not each[1].done()]
        if not self._waiting:
            self.free += 1
            return
        self._passed_on += 1
        next_one = self._waiting[0]
        if self._passed_on % _LONGEST_EVERY:
            next_one = max(self._waiting, key=lambda each: each[0]())
        self._waiting.remove(next_one)
        next_one[1].set_result(None)
