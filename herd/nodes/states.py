"""Where the states of a node's replicas lie: one folder each below the node's data folder.

    node                 who this node is, and of which cluster
    spaces/UUID          a replica's state
    spaces/UUID.checkpoint   what a checkpoint has under way

Invariants:
- A state belongs to one tablespace by its uuid: another one of the same name begins anew.
- A folder belongs to one node of one cluster; it is refused elsewhere.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec

from engine.ports.workers import Workers
from engine.state.contract import State
from engine.state.rocks import open_rocks
from herd.errors import OperationalError, StorageFailed

_SPACES: Final = "spaces"
_NODE: Final = "node"
_CHECKPOINT: Final = ".checkpoint"


class States(Protocol):
    """The states of a node's replicas, by the uuid of their tablespace."""

    async def open(self, uuid: str) -> State:
        """Open a state, making it if it is not there. Raises `FolderError`, of the engine."""
        ...

    async def wipe(self, uuid: str) -> None:
        """Remove a state that is not open; it may be gone."""
        ...

    async def known(self) -> list[str]:
        """The states that are there."""
        ...

    def folder(self, uuid: str) -> Path | None:
        """Where checkpoints are put together; None where none are taken."""
        ...


class FolderStates:
    """States below a folder. Made anew at each start."""

    def __init__(self, path: Path, workers: Workers) -> None:
        self._path = path / _SPACES
        self._workers = workers

    async def open(self, uuid: str) -> State:
        """See `States.open`."""
        # Parents are not created: if the disk was unmounted, nothing is written below its mount
        # point.
        await self._workers.run(partial(self._path.mkdir, mode=0o700, exist_ok=True))
        return await open_rocks(self._path / uuid, self._workers)

    async def wipe(self, uuid: str) -> None:
        """See `States.wipe`."""
        for name in (uuid, uuid + _CHECKPOINT):
            await self._workers.run(partial(shutil.rmtree, self._path / name, ignore_errors=True))

    async def known(self) -> list[str]:
        """See `States.known`."""
        return await self._workers.run(self._names)

    def folder(self, uuid: str) -> Path:
        """See `States.folder`."""
        return self._path / (uuid + _CHECKPOINT)

    def _names(self) -> list[str]:
        if not self._path.is_dir():
            return []
        names = sorted(entry.name for entry in self._path.iterdir())
        return [name for name in names if not name.endswith(_CHECKPOINT)]


class Identity(msgspec.Struct, frozen=True):
    """Who a node is."""

    node_id: str
    cluster_id: str


def identity_of(path: Path, cluster_id: str, drawn: str) -> Identity:
    """Who the node of a folder is: as it says, or `drawn` for a folder that is new. Blocks.

    Raises `OperationalError` for the folder of another cluster, `StorageFailed`.
    """
    file = path / _NODE
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.is_file():
            found = msgspec.json.decode(file.read_bytes(), type=Identity)
        else:
            found = Identity(drawn, cluster_id)
            fresh = path / f"{_NODE}.new"
            fresh.write_bytes(msgspec.json.encode(found))
            fresh.replace(file)
    except (OSError, msgspec.MsgspecError) as error:
        raise StorageFailed(f"{file} cannot be used: {error}") from error
    _check_cluster(found, path, cluster_id)
    return found


def check_identity(path: Path, cluster_id: str) -> None:
    """Raise as `identity_of` for a folder that is not new. Nothing is created."""
    if (path / _NODE).is_file():
        identity_of(path, cluster_id, "")


def _check_cluster(found: Identity, path: Path, cluster_id: str) -> None:
    if found.cluster_id != cluster_id:
        raise OperationalError(
            f"{path} is of a node of another cluster", hint="take another folder, or a new one"
        )
