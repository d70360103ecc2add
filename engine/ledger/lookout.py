"""Looks again after each piece of news: news that comes during a look is not lost in it.

Invariants:
- After the newest news at least one whole look begins.
- One look at a time; much news costs two looks, the one under way and another one.
- A look that the metadata store did not answer is tried again until it is, or until `stop`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from engine.errors import MetadataUnavailable

_RETRY_S: Final = 0.5


class Lookout:
    """Calls `look`, on the event loop, as often as there are news."""

    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        self._look = look
        self._news = self._stopped = False
        self._task: asyncio.Task[None] | None = None

    def news(self) -> None:
        """Something may have changed."""
        self._news = True
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Look no more; a look under way is cancelled. Twice is harmless."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._news:
                self._news = False
                try:
                    await self._look()
                except MetadataUnavailable:
                    self._news = True
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._task = None
