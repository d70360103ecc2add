"""The functions that the broker's benchmarks run, for its worker processes to import."""

import asyncio

from broker.worker import task


@task
def noop(payload: bytes) -> bytes:
    """Nothing, with a small result."""
    return b"done"


@task
async def pause_5_ms() -> None:
    """Wait as for a reply over a network."""
    await asyncio.sleep(0.005)
