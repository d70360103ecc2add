"""The store under test: a real folder with small sizes, a wall clock that leaps, and crashes.

A crash here is that of the program above the bookies: nothing is closed, ledgers stay open with
whatever was on its way, rows say what they said.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from blobit import AsyncBlobs, AsyncBucket, BlobSettings, BucketSettings
from blobit.garbage_settings import GarbageSettings
from engine import cluster
from engine.limits import KIB
from engine.ports.clock import SystemClock
from engine.ports.system_workers import ThreadWorkers
from herd.store import open_herd

HOUR_MS: Final = 3_600_000
TTL_MS: Final = 5 * HOUR_MS
UPLOAD_TTL_MS: Final = 40 * HOUR_MS
SETTINGS: Final = BlobSettings(
    entry_bytes=256,
    stream_entry_bytes=512,
    ledger_bytes_max=96 * KIB,
    shared_object_bytes_max=2 * KIB,
    shared_pending_bytes_max=64 * KIB,
    stream_pending_bytes_max=4 * KIB,
    batch_bytes=1 * KIB,
    read_ahead_bytes=2 * KIB,
    readers_max=8,
    streams_max=3,
    ledgers_open_max=14,
    upload_ttl_ms=UPLOAD_TTL_MS,
    garbage=GarbageSettings(
        grace_ms=HOUR_MS, settle_ms=60_000, abandoned_ms=2 * HOUR_MS, orphan_ms=HOUR_MS
    ),
)
BUCKETS: Final = {
    "plain": BucketSettings(),
    "packed": BucketSettings(compression="zstd"),
    "fleeting": BucketSettings(ttl_ms=TTL_MS),
}
"""Where objects are put: as they are, compressed, and for some hours only."""


class LeapingClock(SystemClock):
    """The system's clock, whose wall time a test moves ahead."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        """The time that everybody in the store believes."""
        return super().wall_ms() + self.ahead_ms


class Store:
    """A store that can be opened again. On one event loop."""

    def __init__(self, folder: Path) -> None:
        self.clock = LeapingClock()
        self.buckets: dict[str, AsyncBucket] = {}
        self.client: cluster.Engine
        self.blobs: AsyncBlobs
        self._folder = folder
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Open the folder, making the buckets if they are not there."""
        stack = self._stack = AsyncExitStack()
        self.client = await stack.enter_async_context(cluster.open(self._folder))
        self.client.clock = self.client.time.clock = self.clock
        workers = ThreadWorkers(asyncio.get_running_loop())
        stack.push_async_callback(workers.close)
        herd = await stack.enter_async_context(open_herd(self.client, self._folder, workers))
        self.blobs = AsyncBlobs(self.client, SETTINGS, workers, herd)
        self.buckets = {
            name: await self.blobs.create_bucket(name, settings, exist_ok=True)
            for name, settings in BUCKETS.items()
        }

    async def close(self) -> None:
        """Close it in order."""
        await self.blobs.close()
        await self._stack.aclose()

    async def crash(self) -> None:
        """End it without closing anything of the store of objects; what it was doing ends, too."""
        doing = [task for task in asyncio.all_tasks() if _is_of_the_store(task)]
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)
        await self._stack.aclose()

    async def ledgers_of_buckets(self) -> list[int]:
        """The ledgers that say that they belong to a bucket."""
        found: list[int] = []
        for ledger_id in await self.client.list_ledgers():
            metadata = await self.client.ledger_metadata(ledger_id)
            if "bucket" in metadata.custom:
                found.append(ledger_id)
        return found


def _is_of_the_store(task: "asyncio.Task[Any]") -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and Path(code.co_filename).parent.name == "blobit"
