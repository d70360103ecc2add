"""Whether new data finds room: on the registered bookies, and on disks of this machine.

Invariants:
- It refuses nothing that makes room: logs, snapshots and checkpoints are written from the reserve
  (`uses_reserve`), and deletions ask nothing here.
- It goes by the newest registrations that anybody of this client has seen, so nobody waits for it.
- Threads look at the disks, every `_LOOK_S` and more often at one that is short of room: one that
  hangs does not stop the event loop, nor the looks at the others. Who asks reads what the latest
  look found. What is written in between, and does not fit, the bookies refuse.
- A disk that does not answer keeps its latest answer; one that answers with an error is not full.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from engine.errors import DiskFull
from engine.limits import MIB
from engine.metadata.bookies import Registration
from engine.ports.disk import Disk, Space
from engine.ports.workers import Workers

_LOOK_S: Final = 0.2
_LOOK_SHORT_S: Final = 0.02
"""A log that writes to a disk without room ends its leader's term, and reads with it."""
_FIRST_LOOK_S: Final = 1.0
"""So long a start waits for the disks: one that hangs must not keep the others from serving."""
_START_BYTES: Final = 2 * MIB
"""What opening a folder may write: its metadata anew, a segment, the files of each RocksDB."""
_REMEDY: Final = "delete data, or make room there; reads and deletions go on"
_EXHAUSTED: Final = "make room there: not even deletions can be stored; reads go on"


class WatchedDisk(NamedTuple):
    """A disk of this machine that new data needs.

    `kept_bytes` says of its size, and of whether it is full by now, with how much free it takes no
    new data; with less than `exhausted_bytes` free it takes nothing.
    """

    path: str
    space: Callable[[], Space]
    kept_bytes: Callable[[int, bool], int]
    exhausted_bytes: int


class _Short(NamedTuple):
    """What a disk lacks: room for new data, and, unless "", even for deletions."""

    lack: str
    exhausted: str


class Capacity:
    """For one client: `check()` before new data is written."""

    def __init__(self, bookies_min: int) -> None:
        self._bookies_min = bookies_min
        self._short: dict[str, _Short] = {}
        self._of_bookies_exhausted = ""
        # Hot paths read these: each is an attribute, written when something is learned.
        self.lack = ""
        """Why new data finds no room; "" if it does."""
        self.lack_on_disks = ""
        """Why a disk of this machine has no room for new data; "" if all have."""
        self.lack_on_bookies = ""
        """Why new data finds no room on the bookies; "" if it does."""
        self.exhausted = ""
        """Why not even deletions can be stored; "" if they can."""

    @asynccontextmanager
    async def watching(self, disks: Iterable[WatchedDisk], workers: Workers) -> AsyncIterator[None]:
        """Count these disks of this machine, too, as long as the block lasts.

        Each has been looked at once when the block begins, unless it takes too long to answer.
        """
        looking: dict[str, asyncio.Task[None]] = {}
        looked: list[asyncio.Event] = []
        for disk in disks:
            looked.append(asyncio.Event())
            looks = self._keep_looking(disk, workers, looked[-1])
            looking[disk.path] = asyncio.create_task(looks)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_LOOK_S):
                    for each in looked:
                        await each.wait()
            yield
        finally:
            for task in looking.values():
                task.cancel()
            await asyncio.gather(*looking.values(), return_exceptions=True)
            for path in looking:
                self._short.pop(path, None)
            self._tell()

    def look(self, disk: WatchedDisk) -> None:
        """Look at a disk in this thread, which waits for it: for a process that does just that."""
        self._note_space(disk, _space(disk))

    def note(self, registered: Mapping[str, Registration], leaving: Collection[str] = ()) -> None:
        """The registrations are these now."""
        staying = [found for name, found in registered.items() if name not in leaving]
        full = [found for found in staying if not found.writable]
        exhausted = [found for found in full if found.exhausted]
        self.lack_on_bookies = self._of_bookies_exhausted = ""
        if full and len(staying) - len(full) < self._bookies_min:
            self.lack_on_bookies = _told_of(full, len(staying), _REMEDY)
        if exhausted and len(staying) - len(exhausted) < self._bookies_min:
            self._of_bookies_exhausted = _told_of(exhausted, len(staying), _EXHAUSTED)
        self._tell()

    def check_disks(self) -> None:
        """Raise `DiskFull` if a disk of this machine has no room for new data."""
        if self.lack_on_disks:
            raise DiskFull(self.lack_on_disks)

    def check(self) -> None:
        """Raise `DiskFull` if new data finds no room."""
        if self.lack:
            raise DiskFull(self.lack)

    def check_log(self) -> None:
        """Raise `DiskFull` if a log finds no room for another entry, whatever it says."""
        if self.exhausted:
            raise DiskFull(self.exhausted)

    async def _keep_looking(
        self, disk: WatchedDisk, workers: Workers, looked: asyncio.Event
    ) -> None:
        while True:
            self._note_space(disk, await workers.run(partial(_space, disk)))
            looked.set()
            await asyncio.sleep(_LOOK_SHORT_S if disk.path in self._short else _LOOK_S)

    def _note_space(self, disk: WatchedDisk, space: Space | None) -> None:
        full = disk.path in self._short
        if space is None or space.free_bytes >= disk.kept_bytes(space.total_bytes, full):
            self._short.pop(disk.path, None)
        elif space.free_bytes >= disk.exhausted_bytes:
            kept_bytes = disk.kept_bytes(space.total_bytes, False)
            self._short[disk.path] = _Short(_told(disk.path, space.free_bytes, kept_bytes), "")
        else:
            free = f"the disk of {disk.path} has {space.free_bytes:,} bytes free"
            self._short[disk.path] = _Short(*[f"{free}: {_EXHAUSTED}"] * 2)
        self._tell()

    def _tell(self) -> None:
        short = self._short.values()
        exhausted = next((found.exhausted for found in short if found.exhausted), "")
        self.lack_on_disks = exhausted or next((found.lack for found in short), "")
        self.lack = self.lack_on_disks or self.lack_on_bookies
        self.exhausted = exhausted or self._of_bookies_exhausted


def _space(disk: WatchedDisk) -> Space | None:
    """How full a disk is; None where it answers with an error, which is not to be full."""
    try:
        return disk.space()
    except OSError:
        return None


class Keeping(Protocol):
    """What says how much of a disk is kept: the settings of bookies."""

    @property
    def reserve_bytes(self) -> int:
        """With less free nothing is stored."""
        ...

    def kept_bytes(self, total_bytes: int, *, full: bool = False) -> int:
        """With less free no new data is stored."""
        ...


def watched(path: Path, disk: Disk, keeping: Keeping) -> WatchedDisk:
    """The disk of a folder, of which as much is kept as bookies keep."""
    return WatchedDisk(
        str(path),
        disk.space,
        lambda total_bytes, full: keeping.kept_bytes(total_bytes, full=full),
        keeping.reserve_bytes,
    )


def require_room(path: Path, disk: Disk, keeping: Keeping) -> None:
    """Raise `DiskFull` where a folder's disk has no room for a start, or for anything after it."""
    needed_bytes = keeping.reserve_bytes + _START_BYTES
    free_bytes = disk.space().free_bytes
    if free_bytes < needed_bytes:
        raise DiskFull(
            f"{path} cannot be opened: a start needs {needed_bytes:,} bytes free on its disk, "
            f"which has {free_bytes:,}: make room there"
        )


def _told(path: str, free_bytes: int, kept_bytes: int) -> str:
    kept = f"the last {kept_bytes:,} are kept for deletions"
    if free_bytes >= kept_bytes:
        kept += ", and new data waits until as many again are free"
    return f"the disk of {path} has {free_bytes:,} bytes free, and {kept}: {_REMEDY}"


def _told_of(full: Collection[Registration], count: int, remedy: str) -> str:
    names = ", ".join(sorted(found.bookie_id for found in full))
    return f"{len(full)} of {count} bookies have full disks ({names}): {remedy}"
