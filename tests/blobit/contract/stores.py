"""Stores for the contract: names in this process, and names in a cluster's tablespaces.

Invariants:
- Both keep bytes on three bookies, three copies each, of which two have to be durable; names have
  a bookie of their own, so that tests may take away the others.
- In the cluster buckets share tablespaces of the pool, or each has its own, reached over frames.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from blobit import AsyncBlobs, AsyncBucket, BlobSettings, BucketSettings
from blobit.rows import AnyHerd
from engine.ports.clock import SystemClock
from engine.ports.system_workers import ThreadWorkers
from herd.settings import HerdSettings
from herd.store import AsyncHerd
from herd.wire.calling import Calling
from herd.wire.herd import RemoteHerd
from tests.engine.ledger.scripted import QUICK, Cluster
from tests.herd.wire.wiring import other_opener

SMALL = BlobSettings(
    entry_bytes=10,
    stream_entry_bytes=10,
    ledger_bytes_max=200,
    shared_object_bytes_max=50,
    shared_pending_bytes_max=100,
    stream_pending_bytes_max=60,
    batch_bytes=30,
    read_ahead_bytes=25,
    readers_max=4,
    streams_max=4,
    attempts_max=2,
)
"""Everything is of several entries, and most of it of several parts."""

_BYTES = replace(QUICK, ensemble=3, write_quorum=3, ack_quorum=2)
_NAMES = replace(
    QUICK,
    ensemble=1,
    write_quorum=1,
    ack_quorum=1,
    append_timeout_ms=10_000,
    read_timeout_ms=10_000,
)
_PATIENT = HerdSettings(lock_timeout_ms=60_000)


class LonelyBlobs(AsyncBlobs):
    """A store whose buckets have a tablespace of their own, unless one is named."""

    async def create_bucket(
        self, name: str, settings: BucketSettings | None = None, **more: Any
    ) -> AsyncBucket:
        """Make a bucket; see `AsyncBlobs.create_bucket`."""
        if settings is None or settings.tablespace is None:
            more = {"own_tablespace": True, **more}
        return await super().create_bucket(name, settings, **more)


class Store:
    """A store under test, and what it stands on."""

    def __init__(self, blobs: AsyncBlobs, cluster: Cluster, herd: AsyncHerd) -> None:
        self.blobs = blobs
        self.cluster = cluster
        self.herd = herd

    def another(self, settings: BlobSettings = SMALL, names: AnyHerd | None = None) -> AsyncBlobs:
        """Another store of the same buckets, as another process has it. Close it."""
        names = names if names is not None else self.blobs.herd
        return type(self.blobs)(self.blobs.client, settings, self.herd.workers, names)


@asynccontextmanager
async def _herd(path: Path) -> AsyncIterator[AsyncHerd]:
    workers = ThreadWorkers(asyncio.get_running_loop())
    client = (await Cluster.of(1)).client(_NAMES)
    # The name of its socket is drawn: no other test's, which may run at the same time.
    client.rng = random.Random(str(path))
    herd = AsyncHerd(client, path, workers, _PATIENT)
    try:
        yield herd
    finally:
        await herd.close()
        await workers.close()


@asynccontextmanager
async def _blobs(
    herd: AsyncHerd, names: AnyHerd, settings: BlobSettings, kind: type[AsyncBlobs] = AsyncBlobs
) -> AsyncIterator[Store]:
    cluster = await Cluster.of(3)
    async with kind(cluster.client(_BYTES), settings, herd.workers, names) as blobs:
        yield Store(blobs, cluster, herd)


@asynccontextmanager
async def embedded(path: Path, settings: BlobSettings = SMALL) -> AsyncIterator[Store]:
    """Names in this process."""
    async with _herd(path) as herd, _blobs(herd, herd, settings) as store:
        yield store


@asynccontextmanager
async def lonely(path: Path, settings: BlobSettings = SMALL) -> AsyncIterator[Store]:
    """Names elsewhere, each bucket's in a tablespace of its own."""
    async with clustered(path, settings, LonelyBlobs) as store:
        yield store


@asynccontextmanager
async def clustered(
    path: Path, settings: BlobSettings = SMALL, kind: type[AsyncBlobs] = AsyncBlobs
) -> AsyncIterator[Store]:
    """Names elsewhere, in tablespaces that buckets share."""
    async with _herd(path) as herd:
        await herd.tablespace("blobs", create=True)
        async with other_opener(herd, path) as other:
            remote = RemoteHerd(
                Calling(other._route, SystemClock(), random.Random(3), herd.workers)
            )
            async with _blobs(herd, remote, settings, kind) as store:
                yield store
