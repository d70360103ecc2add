"""Threads in which passwords are looked at: a small pool for a whole process.

To look at one takes milliseconds by design, and strangers decide how often it is done.

Invariants:
- However many passwords wait to be looked at, nothing but other passwords waits for them.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

R = TypeVar("R")
THREADS_MAX: Final = 2
_THREADS: Final = ThreadPoolExecutor(THREADS_MAX, "passwords")


class PasswordThreads:
    """`herdbook.access.authenticator.Threads` of any event loop."""

    async def run(self, work: Callable[[], R]) -> R:
        """Run a function in one of the threads, and wait for its result."""
        return await asyncio.get_running_loop().run_in_executor(_THREADS, work)
