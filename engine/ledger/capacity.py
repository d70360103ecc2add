"""Whether new data finds room: on the registered bookies, and on disks of this machine.

Invariants:
- It refuses nothing that makes room: logs, snapshots and checkpoints are written from the reserve
  (`uses_reserve`), and deletions ask nothing here.
- It goes by the newest registrations that anybody of this client has seen, so nobody waits for it.
- While there is room disks are asked at most every `_KNOWN_S`, else each time: what is left of a
  reserve may be gone with the next write. One that does not answer is not called full.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from engine.errors import DiskFull
from engine.limits import MIB
from engine.metadata.bookies import Registration
from engine.ports.clock import Clock
from engine.ports.disk import Disk, Space

_KNOWN_S: Final = 0.2
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


class Capacity:
    """For one client: `check()` before new data is written."""

    def __init__(self, clock: Clock, bookies_min: int) -> None:
        self._clock = clock
        self._bookies_min = bookies_min
        self._disks: dict[str, WatchedDisk] = {}
        self._full: set[str] = set()
        self._asked_s = float("-inf")
        self._of_disks = self._of_disks_exhausted = ""
        self._of_bookies = self._of_bookies_exhausted = ""

    def watch(self, disk: WatchedDisk) -> Callable[[], None]:
        """Count a disk of this machine, too; returns the way to stop."""
        self._disks[disk.path] = disk
        self._asked_s = float("-inf")
        return lambda: self._forget(disk)

    def note(self, registered: Mapping[str, Registration], leaving: Collection[str] = ()) -> None:
        """The registrations are these now."""
        staying = [found for name, found in registered.items() if name not in leaving]
        full = [found for found in staying if not found.writable]
        exhausted = [found for found in full if found.exhausted]
        self._of_bookies = self._of_bookies_exhausted = ""
        if full and len(staying) - len(full) < self._bookies_min:
            self._of_bookies = _told_of(full, len(staying), _REMEDY)
        if exhausted and len(staying) - len(exhausted) < self._bookies_min:
            self._of_bookies_exhausted = _told_of(exhausted, len(staying), _EXHAUSTED)

    @property
    def lack(self) -> str:
        """Why new data finds no room; "" if it does."""
        return self.lack_on_disks or self._of_bookies

    @property
    def lack_on_disks(self) -> str:
        """Why a disk of this machine has no room for new data; "" if all have."""
        if self._disks:
            self._ask()
        return self._of_disks

    @property
    def lack_on_bookies(self) -> str:
        """Why new data finds no room on the bookies; "" if it does."""
        return self._of_bookies

    def check_disks(self) -> None:
        """Raise `DiskFull` if a disk of this machine has no room for new data."""
        if lack := self.lack_on_disks:
            raise DiskFull(lack)

    @property
    def exhausted(self) -> str:
        """Why not even deletions can be stored; "" if they can."""
        if self._disks:
            self._ask()
        return self._of_disks_exhausted or self._of_bookies_exhausted

    def check(self) -> None:
        """Raise `DiskFull` if new data finds no room."""
        if lack := self.lack:
            raise DiskFull(lack)

    def check_log(self) -> None:
        """Raise `DiskFull` if a log finds no room for another entry, whatever it says."""
        if exhausted := self.exhausted:
            raise DiskFull(exhausted)

    def _forget(self, disk: WatchedDisk) -> None:
        if self._disks.get(disk.path) is disk:
            del self._disks[disk.path]
            self._full.discard(disk.path)
            self._of_disks = self._of_disks_exhausted = ""
            self._asked_s = float("-inf")

    def _ask(self) -> None:
        now_s = self._clock.monotonic()
        roomy = not self._full and not self._of_bookies
        if roomy and now_s - self._asked_s < _KNOWN_S:
            return
        self._asked_s = now_s
        self._of_disks = self._of_disks_exhausted = ""
        for disk in self._disks.values():
            try:
                space = disk.space()
            except OSError:
                continue
            kept_bytes = disk.kept_bytes(space.total_bytes, disk.path in self._full)
            if space.free_bytes >= kept_bytes:
                self._full.discard(disk.path)
                continue
            self._full.add(disk.path)
            kept_bytes = disk.kept_bytes(space.total_bytes, False)
            self._of_disks = _told(disk.path, space.free_bytes, kept_bytes)
            if space.free_bytes < disk.exhausted_bytes:
                free = f"the disk of {disk.path} has {space.free_bytes:,} bytes free"
                self._of_disks = self._of_disks_exhausted = f"{free}: {_EXHAUSTED}"


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
