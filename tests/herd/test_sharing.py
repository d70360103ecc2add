"""Openers share what is open, and nobody opens it again before it is closed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from herd.sharing import Sharing


class Door:
    """What is opened; it takes some turns of the loop to close."""

    def __init__(self) -> None:
        self.open = self.most = self.times = 0
        self.may_close = asyncio.Event()
        self._sharing = Sharing[int]()

    async def use(self) -> int:
        """Open the folder, or share what is open; how often it had been opened then."""
        async with self._sharing.use("folder", self.opening) as number:
            return number

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[int]:
        self.open += 1
        self.times += 1
        self.most = max(self.most, self.open)
        try:
            yield self.times
        finally:
            try:
                await self.may_close.wait()
            finally:
                self.open -= 1


async def test_a_caller_that_comes_during_a_close_waits_and_opens_it_again() -> None:
    door = Door()
    first = asyncio.ensure_future(door.use())
    for _ in range(3):
        await asyncio.sleep(0)
    later = [asyncio.ensure_future(door.use()) for _ in range(2)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not first.done() and door.open == 1
    door.may_close.set()
    assert await first == 1
    assert all([await each > 1 for each in later])
    assert (door.open, door.most) == (0, 1)


async def test_a_close_that_is_cancelled_leaves_the_way_free() -> None:
    door = Door()
    first = asyncio.ensure_future(door.use())
    for _ in range(3):
        await asyncio.sleep(0)
    later = asyncio.ensure_future(door.use())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    door.may_close.set()
    assert await later == 2
    assert (door.open, door.most) == (0, 1)
