"""Repair's loops go on, whatever meets them: one that ended in silence would repair nothing more.

Invariants:
- A loop that fails in a way nobody thought of is told in the log, counted, and begun again.
- It is begun again after a pause: a fault that lasts costs little.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from engine.repair.outlook import Workshop

_LOG: Final = logging.getLogger("engine.repair")


def keep_on(
    workshop: Workshop, name: str, loop: Callable[[], Awaitable[None]]
) -> "asyncio.Task[None]":
    """Run a loop as a task of its own until it is cancelled; `name` is for the log."""

    async def run() -> None:
        while True:
            try:
                await loop()
                return
            except Exception as error:
                tell(workshop, name, error)
            await asyncio.sleep(workshop.settings.look_interval_ms / 1000)

    return asyncio.get_running_loop().create_task(run())


def tell(workshop: Workshop, what: str, error: Exception) -> None:
    """Note a failure that is a defect, of this program or of a value that it read."""
    workshop.mishaps += 1
    _LOG.error("repair: %s failed and goes on", what, exc_info=error)
