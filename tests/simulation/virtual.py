"""Virtual time for a test of one component: seconds pass at once, the same in each run."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.simulation.loop import SimLoop, new_loop


def virtually(script: Coroutine[Any, Any, None], until_s: float = 2_000.0) -> None:
    """Run a coroutine in virtual time."""
    loop = new_loop(1)
    try:
        loop.run(script, until_s=until_s)
    finally:
        loop.close()


async def elapse(seconds: float) -> None:
    """Let virtual time pass."""
    assert isinstance(asyncio.get_running_loop(), SimLoop), "real time is not slept away"
    await asyncio.sleep(seconds)
