"""Stores on whose ground garbage lies: their clock stands still until a test moves it.

Invariants:
- What a test puts by `sealed` lies in ledgers that are closed; nothing else is sealed by itself.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from blobit import AsyncBlobs, AsyncBucket, BlobSettings, BucketSettings
from blobit.garbage_report import BucketGarbage
from blobit.garbage_settings import GarbageSettings
from engine.metadata.ledgers import LEDGERS
from engine.ports.clock import SystemClock
from tests.blobit.contract.stores import SMALL, Store, embedded

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BUCKET = "cows"


class StillClock(SystemClock):
    """The wall clock moves only when it is told to."""

    def __init__(self) -> None:
        self._wall_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self._wall_ms

    def pass_ms(self, time_ms: int) -> None:
        """So much time has passed."""
        self._wall_ms += time_ms


class Ground:
    """A store, its clock, and one bucket."""

    def __init__(self, store: Store, clock: StillClock, settings: BlobSettings) -> None:
        self.store = store
        self.blobs = store.blobs
        self.clock = clock
        self.settings = settings
        self.bucket: AsyncBucket

    async def sealed(self, objects: Mapping[str, bytes], bucket: str = BUCKET) -> None:
        """Put objects, as a process does that ends afterwards: its ledgers are sealed."""
        async with self.store.another(self.settings) as other:
            await (await other.bucket(bucket)).put_many(objects.items())
        self.clock.pass_ms(self.settings.garbage.settle_ms)

    async def collect(self, bucket: str = BUCKET, *, dry_run: bool = False) -> BucketGarbage:
        """A round for one bucket."""
        report = await self.blobs.collect(bucket, dry_run=dry_run)
        [found] = report.buckets
        return found

    async def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table."""
        rows = await self.blobs.rows("blobs")
        return [row async for row in rows.scan(table)]

    async def ledgers(self) -> list[int]:
        """The ledgers that have a row."""
        return [row["ledger_id"] for row in await self.rows("ledgers")]

    async def ledgers_there(self) -> list[int]:
        """The ledgers that there are in the ledger layer."""
        names = await self.blobs.client.store.children(LEDGERS)
        return sorted(int(name) for name in names if name.isdigit())


@asynccontextmanager
async def grounds(
    path: Path, bucket: BucketSettings | None = None, **garbage: Any
) -> AsyncIterator[Ground]:
    """A store with one bucket."""
    settings = replace(SMALL, garbage=GarbageSettings(**garbage))
    async with embedded(path, settings) as store:
        clock = store.blobs.client.clock = store.blobs.client.time.clock = StillClock()
        ground = Ground(store, clock, settings)
        ground.bucket = await store.blobs.create_bucket(BUCKET, bucket)
        yield ground


async def other_store(ground: Ground) -> AsyncBlobs:
    """Another process's store of the same buckets. Close it."""
    return ground.store.another(ground.settings)
