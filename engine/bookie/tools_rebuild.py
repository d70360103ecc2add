"""`rebuild-metadata`: new metadata, in a folder or a cluster's ZooKeeper, from bookies' folders.

Invariants:
- The new store belongs to the cluster that the bookies' folders name; folders of two clusters, or a
  store of another one, are refused before anything is written.
- The bookies' folders are only read.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from engine.bookie.rebuild import RebuildReport, Remains, rebuild_metadata
from engine.bookie.tools_folder import BookieFolder
from engine.bookie.tools_gather import gather
from engine.errors import FolderDamaged, FolderMismatch
from engine.metadata.cluster_url import parse_url
from engine.metadata.contract import MetadataStore
from engine.metadata.facts_log import open_log
from engine.metadata.local import LocalStore
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers

if TYPE_CHECKING:
    from engine.metadata.zookeeper_settings import ZooKeeperSettings

OpenStore = Callable[[str], AbstractAsyncContextManager[MetadataStore]]
"""Opens the store to fill, given the cluster that it is to be of if it is made now."""


def rebuild_folder(
    folders: Sequence[BookieFolder], into: OpenStore, rng: random.Random
) -> RebuildReport:
    """Read the folders and put what they remember into the store that `into` opens.

    Raises `FolderMismatch`, `FolderDamaged` (a bookie's identity), `MetadataUnavailable`,
    `FormatTooNew`, and `OSError` where a folder cannot be read.
    """
    cluster_id = _cluster_of(folders)
    remains = {folder.name: gather(folder).ledgers for folder in folders}
    return asyncio.run(_rebuild(cluster_id, remains, into, rng))


def into_folder(folder: Path, rng: random.Random) -> OpenStore:
    """The metadata of a store in a folder, made if it is not there."""

    @asynccontextmanager
    async def opened(cluster_id: str) -> AsyncIterator[MetadataStore]:
        disk = SystemDisk(folder)
        workers = ThreadWorkers(asyncio.get_running_loop())
        # A store that is made here must be that of the bookies: they refuse any other.
        log, _ = await workers.run(lambda: open_log(disk, cluster_id))
        _check(log.cluster_id, cluster_id, str(folder))
        store = await LocalStore.open(disk, workers, rng)
        try:
            yield store
        finally:
            await store.close()

    return opened


def into_cluster(url: str, settings: "ZooKeeperSettings", rng: random.Random) -> OpenStore:
    """The metadata of a cluster in ZooKeeper, made under the url's path if there are none.

    Raises `InvalidRequest` for a malformed url.
    """
    # Kazoo loads on first use.
    from engine.metadata.zookeeper import ZooKeeperStore

    where = parse_url(url)

    @asynccontextmanager
    async def opened(cluster_id: str) -> AsyncIterator[MetadataStore]:
        store = await ZooKeeperStore.connect(
            where.hosts, chroot=where.chroot, settings=settings, rng=rng, cluster_id=cluster_id
        )
        try:
            _check(store.cluster_id, cluster_id, str(where))
            yield store
        finally:
            await store.close()

    return opened


def _check(found: str, cluster_id: str, where: str) -> None:
    if found != cluster_id:
        raise FolderMismatch(
            f"{where} is the metadata of cluster {found}, the bookies' is {cluster_id}"
        )


def _cluster_of(folders: Sequence[BookieFolder]) -> str:
    found: dict[str, BookieFolder] = {}
    for folder in folders:
        if folder.identity is None:
            raise FolderDamaged(f"{folder.path}: {folder.flaw}; leave it out, or restore the file")
        found.setdefault(folder.identity.cluster_id, folder)
    if len(found) != 1:
        names = ", ".join(f"{one.path} ({cluster_id})" for cluster_id, one in found.items())
        raise FolderMismatch(f"the folders belong to different clusters: {names}")
    return next(iter(found))


async def _rebuild(
    cluster_id: str,
    remains: dict[str, dict[int, Remains]],
    into: OpenStore,
    rng: random.Random,
) -> RebuildReport:
    async with into(cluster_id) as store:
        return await rebuild_metadata(remains, store, rng)
