"""Which folders a tool looks at, and that nobody writes there meanwhile.

Invariants:
- A folder whose store is in use is refused; while a tool looks, its owner cannot start.
- A tool opens folders for reading only: no byte in them changes.
"""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

from engine.bookie.folder import FILE_NAME, FolderIdentity, read_identity
from engine.bookie.index import Index
from engine.bookie.segment import FOLDER
from engine.errors import FolderError, FolderLocked, FolderMismatch
from engine.ports.disk import Disk
from engine.ports.system_disk import SystemDisk

LOCK: Final = "lock"
INDEX: Final = "index"


class BookieFolder(NamedTuple):
    """One bookie's folder. `identity` is None where it is missing or damaged; `flaw` says why."""

    path: Path
    disk: Disk
    identity: FolderIdentity | None
    flaw: str

    @property
    def name(self) -> str:
        """The bookie's id, or the folder's name where the id cannot be read."""
        return self.identity.bookie_id if self.identity is not None else self.path.name


@contextmanager
def quiet_folders(paths: Sequence[Path]) -> Iterator[list[BookieFolder]]:
    """The bookies in the folders given, which are bookies' own folders or whole stores'.

    Raises `FolderLocked` for one in use, `FolderMismatch` for one that holds neither.
    """
    found: list[BookieFolder] = []
    locks: list[Path] = []
    for path in paths:
        path = path.absolute()
        inside = [path] if _is_bookie(path) else _bookies_of(path)
        if not inside:
            raise FolderMismatch(f"{path} holds neither a bookie nor a store of bookies")
        # The lock is the store's; a bookie that runs alone has one of its own.
        for lock in (path / LOCK, *(bookie.parent / LOCK for bookie in inside)):
            if lock.is_file() and lock not in locks:
                locks.append(lock)
        found.extend(_open(bookie) for bookie in inside)
    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(_shared(lock))
        yield found


@contextmanager
def open_index(folder: BookieFolder) -> Iterator[Index]:
    """The folder's index, for reading. Raises `FolderMismatch` if there is none, `FormatTooNew`."""
    from engine.bookie.index_rocks import RocksIndex

    index = RocksIndex(folder.path / INDEX, read_only=True)
    try:
        yield index
    finally:
        index.close()


def _is_bookie(path: Path) -> bool:
    return (path / FILE_NAME).is_file() or (path / FOLDER).is_dir()


def _bookies_of(path: Path) -> list[Path]:
    return sorted(inside for inside in path.glob("bookie-*") if _is_bookie(inside))


def _open(path: Path) -> BookieFolder:
    disk = SystemDisk(path)
    try:
        identity = read_identity(disk)
    except FolderError as error:
        return BookieFolder(path, disk, None, str(error))
    flaw = "" if identity is not None else "the identity file is missing"
    return BookieFolder(path, disk, identity, flaw)


@contextmanager
def _shared(lock: Path) -> Iterator[IO[bytes]]:
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderLocked(
                f"{lock.parent} is in use: stop its owner first, then look again"
            ) from error
        yield file
