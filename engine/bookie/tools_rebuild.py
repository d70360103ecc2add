"""`rebuild-metadata`: a new metadata folder from the bookies' folders.

Invariants:
- The new store belongs to the cluster that the bookies' folders name; folders of two clusters, or a
  store of another one, are refused before anything is written.
- The bookies' folders are only read.
"""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

from engine.bookie.rebuild import RebuildReport, Remains, rebuild_metadata
from engine.bookie.tools_folder import BookieFolder
from engine.bookie.tools_gather import gather
from engine.errors import FolderDamaged, FolderMismatch
from engine.metadata.facts_log import open_log
from engine.metadata.local import LocalStore
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers


def rebuild_folder(
    folders: Sequence[BookieFolder], into: Path, rng: random.Random
) -> RebuildReport:
    """Read the folders and put what they remember into the local metadata folder `into`.

    Raises `FolderMismatch`, `FolderDamaged` (a bookie's identity), `MetadataUnavailable`,
    `FormatTooNew`, and `OSError` where a folder cannot be read.
    """
    cluster_id = _cluster_of(folders)
    remains = {folder.name: gather(folder).ledgers for folder in folders}
    return asyncio.run(_rebuild(cluster_id, remains, into, rng))


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
    cluster_id: str, remains: dict[str, dict[int, Remains]], into: Path, rng: random.Random
) -> RebuildReport:
    disk = SystemDisk(into)
    workers = ThreadWorkers(asyncio.get_running_loop())
    # A store that is made here must be that of the bookies: they refuse any other.
    log, _ = await workers.run(lambda: open_log(disk, cluster_id))
    if log.cluster_id != cluster_id:
        raise FolderMismatch(
            f"{into} is the metadata of cluster {log.cluster_id}, the bookies' is {cluster_id}"
        )
    store = await LocalStore.open(disk, workers, rng)
    try:
        return await rebuild_metadata(remains, store, rng)
    finally:
        await store.close()
