"""Bytes that may be held at once, and waiting for some of them to be given back.

Invariants:
- What is taken is given back exactly once; the budget never goes below zero.
- Those who wait are let on in the order in which they came.
"""

import asyncio
from collections import deque


class ByteBudget:
    """`bytes_max` bytes. All methods are called on the event loop."""

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, size_bytes: int) -> None:
        """Take what is here already, room or not."""
        self.held_bytes += size_bytes

    async def acquire(self, size_bytes: int) -> None:
        """Wait until there is room for that much, or nothing else is held; then take it."""
        await self._wait(self.bytes_max - size_bytes)
        self.take(size_bytes)

    async def relief(self) -> None:
        """If there is too much, wait until half of the budget is free."""
        if self.held_bytes > self.bytes_max:
            await self._wait(self.bytes_max // 2)

    def give(self, size_bytes: int) -> None:
        """Give back."""
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0
        self._let_on()

    async def _wait(self, held_bytes_max: int) -> None:
        held_bytes_max = max(held_bytes_max, 0)
        if self.held_bytes <= held_bytes_max and not self._waiting:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((held_bytes_max, turn))
        try:
            await turn
        finally:
            self._waiting.remove((held_bytes_max, turn))
            asyncio.get_running_loop().call_soon(self._let_on)

    def _let_on(self) -> None:
        """One at a time: the next one is let on when this one has taken its bytes."""
        if self._waiting:
            held_bytes_max, turn = self._waiting[0]
            if self.held_bytes <= held_bytes_max and not turn.done():
                turn.set_result(None)
