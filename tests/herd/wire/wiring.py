"""Herds for the tests of sessions: in this process, and the same through a socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from herd.settings import HerdSettings
from herd.store import AsyncHerd, open_folder
from herd.wire.settings import WireSettings

PATIENT = HerdSettings(lock_timeout_ms=60_000)


@asynccontextmanager
async def other_opener(
    herd: AsyncHerd, path: Path, wire: WireSettings | None = None
) -> AsyncIterator[AsyncHerd]:
    """Another opener of a folder whose tablespaces `herd` runs, or may run."""
    other = AsyncHerd(herd.client, path, herd.workers, PATIENT, wire)
    try:
        yield other
    finally:
        await other.close()


@asynccontextmanager
async def embedded(path: Path) -> AsyncIterator[AsyncHerd]:
    """Tablespaces of this process."""
    async with open_folder(path, settings=PATIENT) as herd:
        yield herd


@asynccontextmanager
async def through_socket(path: Path) -> AsyncIterator[AsyncHerd]:
    """Tablespaces that another opener runs."""
    async with open_folder(path, settings=PATIENT) as herd:
        await herd.tablespace()
        async with other_opener(herd, path) as other:
            yield other
