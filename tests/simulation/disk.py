"""A disk in memory that remembers what was synced, and fails in the ways that disks fail.

Invariants:
- File data and folder entries become durable separately: by `sync` and by `sync_folder`.
- `lose_power` keeps all that is durable. Of the rest it keeps, drops or tears any sector, in any
  order, and any new or removed name; what is left is durable from then on.
- Zeros that stand ahead of a file's data are as durable as its length: once synced they are there
  after a power loss, wherever the data ends.
- After a failed sync the data looks written, later syncs succeed, and a power loss drops it.
- Every fault comes from the generator given or from a call by name; none from elsewhere.
"""

import errno
import random
from collections.abc import Sequence
from typing import Final

from engine.ports.disk import Space

SECTOR_BYTES: Final = 512


class PowerLoss(BaseException):
    """The machine ends in the middle of disk work. Nobody may catch it."""


class Inode:
    """A file's content, under whatever name.

    `proven_bytes` were synced before the newest sync: what stands behind them shows that. The file
    is `reach` long, with zeros behind the data; `durable_reach` of that is on the platter.
    """

    __slots__ = ("data", "durable_reach", "forgotten", "proven_bytes", "reach", "synced_bytes")

    def __init__(self, data: bytes = b"", synced_bytes: int = 0, proven_bytes: int = 0) -> None:
        self.data = bytearray(data)
        self.synced_bytes = synced_bytes
        self.proven_bytes = proven_bytes
        self.reach = self.durable_reach = len(data)
        self.forgotten: list[tuple[int, int]] = []

    @property
    def size_bytes(self) -> int:
        """How long the file is."""
        return max(len(self.data), self.reach)

    def fill(self) -> None:
        """Take the zeros ahead for data, as whoever opens the file does."""
        self.data += bytes(self.size_bytes - len(self.data))

    def after_power_loss(self, rng: random.Random) -> "Inode":
        """What the platter holds: the durable part, and any part of the rest."""
        data = bytearray(self.data)
        for start, end in self.forgotten:
            data[start:end] = bytes(end - start)
        synced = self.synced_bytes
        fate = rng.random()
        if fate < 0.35:
            del data[synced:]
        elif fate < 0.7:
            del data[rng.randint(synced, len(data)) :]
        elif fate < 0.9:
            _tear(data, synced, rng)
        reach = self.durable_reach
        if self.reach > reach and rng.random() < 0.5:
            reach = self.reach
        data += bytes(max(0, reach - len(data)))
        return Inode(bytes(data), len(data), min(self.proven_bytes, len(data)))


def _tear(data: bytearray, synced: int, rng: random.Random) -> None:
    """Sectors reach the platter in any order: some of the unsynced ones are holes."""
    start = synced
    while start < len(data):
        end = min(start - start % SECTOR_BYTES + SECTOR_BYTES, len(data))
        if rng.random() < 0.5:
            torn = rng.randint(start, end)
            data[torn:end] = bytes(end - torn)
        start = end
    del data[rng.randint(synced, len(data)) :]


class SimAppendFile:
    """An open file of a `SimDisk`."""

    def __init__(self, disk: "SimDisk", inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._open = True

    def write(self, parts: Sequence[bytes], ahead_bytes: int = 0) -> int:
        self._check_open()
        inode, data = self._inode, b"".join(parts)
        end = len(inode.data) + len(data)
        reach = end + ahead_bytes if end > inode.reach else inode.reach
        room = self._disk.room_bytes()
        if reach - inode.size_bytes > room:
            inode.data += data[:room]
            raise OSError(errno.ENOSPC, "simulated: no space left")
        self._disk.operate("write", failing_share=0.5, partial=(inode, data))
        inode.data += data
        inode.reach = reach
        return len(data)

    def begin_sync(self) -> None:
        """Power losses keep any part of what is not synced: there is nothing to begin."""

    def sync(self) -> None:
        self._check_open()
        inode = self._inode
        try:
            self._disk.operate("sync")
        except OSError:
            inode.forgotten.append((inode.synced_bytes, len(inode.data)))
            inode.synced_bytes = len(inode.data)
            raise
        if len(inode.data) > inode.synced_bytes:
            inode.proven_bytes = inode.synced_bytes
        inode.synced_bytes = len(inode.data)
        inode.durable_reach = inode.size_bytes

    def trim(self) -> None:
        self._check_open()
        inode = self._inode
        if inode.reach > len(inode.data):
            self._disk.operate("trim")
            inode.reach = inode.durable_reach = len(inode.data)

    def close(self) -> None:
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise OSError(errno.EBADF, "the file is closed")


class SimDisk:
    """One folder tree; implements `engine.ports.disk.Disk`."""

    def __init__(self, rng: random.Random, *, total_bytes: int = 1 << 30) -> None:
        self.rng = rng
        self.total_bytes = total_bytes
        self.reads_fail = False
        self.fail_after: int | None = None
        self.lose_power_after: int | None = None
        self.operations = 0
        self._folders: dict[str, bool] = {"": True}
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}

    # The contract

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        found = [name[len(prefix) :] for name in self._names if name.startswith(prefix)]
        folders = [
            name[len(prefix) :] for name in self._folders if name and name.startswith(prefix)
        ]
        return sorted({name.split("/")[0] for name in found + folders if name})

    def make_folder(self, folder: str) -> None:
        parts = folder.split("/")
        for count in range(1, len(parts) + 1):
            self._folders["/".join(parts[:count])] = True

    def size(self, name: str) -> int:
        return self._inode(name).size_bytes

    def read(self, name: str, offset: int, length: int) -> bytes:
        inode = self._inode(name)
        if self.reads_fail:
            raise OSError(errno.EIO, f"simulated: cannot read {name}")
        found = bytes(inode.data[offset : offset + length])
        behind = min(offset + length, inode.size_bytes) - max(offset, len(inode.data))
        return found + bytes(max(0, behind))

    def read_each(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(name, offset, length) for offset, length in ranges]

    def open_append(self, name: str, *, create: bool) -> SimAppendFile:
        _check_name(name)
        if not create:
            self._inode(name).fill()
            return SimAppendFile(self, self._inode(name))
        if name in self._names:
            raise FileExistsError(errno.EEXIST, "exists", name)
        if name.rpartition("/")[0] not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", name)
        self.operate("create")
        inode = Inode()
        self._names[name] = inode
        return SimAppendFile(self, inode)

    def replace(self, name: str, data: bytes) -> None:
        _check_name(name)
        if name.rpartition("/")[0] not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", name)
        old = self._names[name].size_bytes if name in self._names else 0
        if len(data) - old > self.room_bytes():
            raise OSError(errno.ENOSPC, "simulated: no space left")
        self.operate("replace")
        self._names[name] = self._durable_names[name] = Inode(data, len(data))

    def truncate(self, name: str, length: int) -> None:
        inode = self._inode(name)
        self.operate("truncate")
        del inode.data[length:]
        inode.data.extend(bytes(length - len(inode.data)))
        inode.forgotten = [(start, min(end, length)) for start, end in inode.forgotten]
        inode.forgotten = [(start, end) for start, end in inode.forgotten if start < end]
        inode.synced_bytes = inode.reach = inode.durable_reach = length
        inode.proven_bytes = min(inode.proven_bytes, length)

    def remove(self, name: str) -> None:
        self._inode(name)
        self.operate("remove")
        del self._names[name]

    def sync_folder(self, folder: str) -> None:
        self.operate("sync folder")
        for name in self._changed_names():
            if name.rpartition("/")[0] == folder:
                self._settle(name, new=True)

    def space(self) -> Space:
        return Space(self.total_bytes, self.room_bytes())

    # Faults

    def operate(
        self,
        what: str,
        *,
        failing_share: float = 0.0,
        partial: tuple[Inode, bytes] | None = None,
    ) -> None:
        """Count one changing operation; let it fail if its turn has come.

        A write that ends in mid-air leaves a part of its data behind.
        """
        self.operations += 1
        if self.lose_power_after is not None:
            self.lose_power_after -= 1
            if self.lose_power_after < 0:
                self._leave_part(partial, 1.0)
                raise PowerLoss(what)
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                self.fail_after = None
                self._leave_part(partial, failing_share)
                raise OSError(errno.EIO, f"simulated: {what} failed")

    def _leave_part(self, partial: tuple[Inode, bytes] | None, share: float) -> None:
        if partial is not None and self.rng.random() < share:
            inode, data = partial
            inode.data += data[: self.rng.randint(0, len(data))]

    def lose_power(self) -> None:
        """Forget what is not durable, wholly or in part."""
        for name in self._changed_names():
            self._settle(name, new=self.rng.random() < 0.5)
        self._names = {
            name: inode.after_power_loss(self.rng) for name, inode in self._durable_names.items()
        }
        self._durable_names = dict(self._names)
        self.restart()

    def restart(self) -> None:
        """A new process: faults that were waiting are gone, the page cache is as it was."""
        self.fail_after = self.lose_power_after = None
        self.reads_fail = False

    def damage(self, prefix: str) -> tuple[str, int, int] | None:
        """Change or zero some bytes of one synced sector under a folder, as an old disk does.

        Never of what the newest sync wrote: damage of a last batch, with nothing behind it that
        shows its sync, cannot be told from a batch that was torn, and no bookie promises to.
        Returns name, offset and length of the damage; None if there is nothing to damage.
        """
        names = [
            name
            for name, inode in self._names.items()
            if name.startswith(prefix) and inode.proven_bytes > SECTOR_BYTES
        ]
        if not names:
            return None
        name = self.rng.choice(sorted(names))
        inode = self._names[name]
        start = self.rng.randrange(SECTOR_BYTES, inode.proven_bytes)
        if self.rng.random() < 0.5:
            inode.data[start] ^= 1 << self.rng.randrange(8)
            return name, start, 1
        start -= start % SECTOR_BYTES
        end = min(start + SECTOR_BYTES, inode.proven_bytes)
        inode.data[start:end] = bytes(end - start)
        return name, start, end - start

    def room_bytes(self) -> int:
        """Bytes that can still be written."""
        return max(0, self.total_bytes - sum(inode.size_bytes for inode in self._names.values()))

    def _inode(self, name: str) -> Inode:
        _check_name(name)
        try:
            return self._names[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", name) from None

    def _changed_names(self) -> list[str]:
        names, durable = self._names, self._durable_names
        return [
            name for name in sorted({*names, *durable}) if names.get(name) is not durable.get(name)
        ]

    def _settle(self, name: str, *, new: bool) -> None:
        """Make one name's present state the durable one, or drop it at a power loss."""
        if not new:
            return
        if name in self._names:
            self._durable_names[name] = self._names[name]
        else:
            del self._durable_names[name]


def _check_name(name: str) -> None:
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise PermissionError(errno.EPERM, "the name leaves the root", name)
