"""Files as an argument: the only door to the file system for data the engine must not lose.

The contract (`tests/engine/ports/disk_contract.py` runs it over every implementation):
- Names are relative to the disk's root, with `/` between folders.
- What was written is durable only after `sync()` of that file, and, for a new or removed name,
  after `sync_folder()` of its folder. A crash may keep, drop or tear everything else.
- A failed `sync()` says nothing about what is on the disk; it is never tried again.
- Errors are `OSError`; a missing file is `FileNotFoundError`, a root that vanished `RootGone`.
- A root that vanished is not created again.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Space(NamedTuple):
    """Bytes on the file system that holds a disk's root; `name` tells it from any other."""

    total_bytes: int
    free_bytes: int
    name: str = ""


class RootGone(OSError):
    """The disk's root is gone, or was replaced by another folder; it is not used any more."""


class AppendFile(Protocol):
    """A file that only grows."""

    def write(self, parts: Sequence[bytes], ahead_bytes: int = 0) -> int:
        """Append all parts, one behind the other, whole; return the bytes written.

        Where the file has to grow for them it grows by `ahead_bytes` zeros more, which what is
        written next replaces: a sync that finds its bytes' place given already is quicker. Until
        `trim`, and after a crash, so many zeros may stand behind what was written.
        """
        ...

    def begin_sync(self) -> None:
        """Let the disk begin with what was written last, without waiting for it.

        It makes the `sync` that follows quicker, tells nothing, and never fails.
        """
        ...

    def sync(self) -> None:
        """Make all that was written durable (`fdatasync`)."""
        ...

    def trim(self) -> None:
        """Cut off zeros that stand ahead, durably."""
        ...

    def close(self) -> None:
        """Close without syncing. May be called twice."""
        ...


class Disk(Protocol):
    """One folder."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; an absent folder has none."""
        ...

    def make_folder(self, folder: str) -> None:
        """Make a folder and its parents, durably. It may exist."""
        ...

    def size(self, name: str) -> int:
        """The file's length in bytes."""
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""
        ...

    def read_each(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """`read` for many (offset, length) of one file, in the same order."""
        ...

    def open_append(self, name: str, *, create: bool) -> AppendFile:
        """Open at the end. `create=True` makes a new file and fails if there is one."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Set a small file's whole content atomically and durably."""
        ...

    def truncate(self, name: str, length: int) -> None:
        """Cut a file and sync it."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file. Durable after `sync_folder`."""
        ...

    def sync_folder(self, folder: str) -> None:
        """Make new and removed names of a folder durable."""
        ...

    def space(self) -> Space:
        """How full the file system is."""
        ...
