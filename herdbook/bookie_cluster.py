"""The way of a bookie process to its cluster: an existing one, or a new one that nobody mistakes.

Invariants:
- A cluster is made only for folders that are all new: a folder of another cluster, or of one that
  is not under the url, is refused before anything is made.
- Who makes a cluster is told so, and where.
- A folder that cannot be read or written keeps no other one out.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from engine.bookie.belonging import Belonging, belonging_of, remember_url
from engine.errors import FolderDamaged, FolderMismatch, NoSuchCluster
from engine.metadata.cluster_url import ClusterUrl
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from engine.ports.system_disk import SystemDisk

REBUILD = (
    "if its ZooKeeper has lost its data, bring them back first: "
    "python -m engine.bookie rebuild-metadata"
)
_LOG: Final = logging.getLogger(__name__)


class ClusterDoor:
    """Opens the metadata of a cluster for the bookies in some folders."""

    def __init__(
        self,
        where: ClusterUrl,
        settings: ZooKeeperSettings,
        folders: Sequence[Path],
        say: Callable[[str], None],
    ) -> None:
        self._where = where
        self._settings = settings
        self._folders = folders
        self._say = say

    async def open(self) -> ZooKeeperStore:
        """The cluster's metadata, made if all folders are new.

        Raises `FolderMismatch` for a folder of another cluster, `MetadataUnavailable`.
        """
        where, remembered = self._where, self._remembered()
        try:
            store = await ZooKeeperStore.connect(
                where.hosts, chroot=where.chroot, settings=self._settings, make=not remembered
            )
        except NoSuchCluster as error:
            raise FolderMismatch(
                f"there is no cluster at {where}, and {_told(remembered)}: check the path; "
                f"{REBUILD}"
            ) from error
        others = {
            folder: found
            for folder, found in remembered.items()
            if found is not None and found.cluster_id != store.cluster_id
        }
        if others:
            await store.close()
            raise FolderMismatch(
                f"cluster {store.cluster_id} is at {where}, and {_told(others)}: check the path"
            )
        if store.made:
            self._say(f"a new cluster was made at {where}: {store.cluster_id}")
        return store

    def remember(self) -> None:
        """Let the folders remember where their cluster is served, those that can."""
        for folder in self._folders:
            try:
                if self._known(folder) is not None:
                    remember_url(SystemDisk(folder), str(self._where))
            except (FolderDamaged, OSError) as error:
                _LOG.info("%s does not remember its cluster's url: %s", folder, error)

    def _remembered(self) -> dict[Path, Belonging | None]:
        """The folders that are not new; None for one that cannot be read."""
        found: dict[Path, Belonging | None] = {}
        for folder in self._folders:
            try:
                belonging = self._known(folder)
            except (FolderDamaged, OSError):
                found[folder] = None
            else:
                if belonging is not None:
                    found[folder] = belonging
        return found

    def _known(self, folder: Path) -> Belonging | None:
        return belonging_of(SystemDisk(folder)) if folder.is_dir() else None


def _told(remembered: Mapping[Path, Belonging | None]) -> str:
    folder, belonging = next(iter(remembered.items()))
    if belonging is None:
        return f"the folder {folder} is damaged and not new"
    return f"the bookie in {folder} belongs to {belonging}"
