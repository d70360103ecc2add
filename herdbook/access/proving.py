"""Threads that check passwords, and the queue for them.

Checking one takes milliseconds by design, and unknown clients decide how often it is done.

Invariants:
- However many passwords wait to be checked, only other passwords wait for them.
- The number of waiting passwords and their time are limited: further ones are refused at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, TypeVar

R = TypeVar("R")
THREADS_MAX: Final = 2
_THREADS: Final = ThreadPoolExecutor(THREADS_MAX, "passwords")


class PasswordThreads:
    """`herdbook.access.authenticator.Threads` of any event loop."""

    async def run(self, work: Callable[[], R]) -> R:
        """Run a function in one of the threads, and wait for its result."""
        return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


class TooManyWait(Exception):
    """Too many passwords wait already, or the turn did not come in time. Try again in a moment."""


class Turns:
    """Lets `at_once` callers work at a time, and `waiting_max` more wait for up to `wait_s`."""

    def __init__(self, at_once: int, waiting_max: int, wait_s: float) -> None:
        assert at_once > 0 and waiting_max >= 0 and wait_s > 0
        self._free = asyncio.Semaphore(at_once)
        self._waiting_max = waiting_max
        self._waiting = 0
        self._wait_s = wait_s

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the block. Raises `TooManyWait`."""
        if not self._free.locked():
            await self._free.acquire()
        else:
            await self._wait()
        try:
            yield
        finally:
            self._free.release()

    async def _wait(self) -> None:
        if self._waiting >= self._waiting_max:
            raise TooManyWait("too many passwords wait to be checked")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise TooManyWait("checking passwords takes too long") from None
        finally:
            self._waiting -= 1
