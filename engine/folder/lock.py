"""The lock of a folder: who owns it, and where the owner listens.

The file `lock` in the folder is locked (`flock`) by the owner as long as it lives; its content, one
JSON object, tells later openers how to reach it.

Invariants:
- At most one process holds the lock; the system lets go of it when that process ends, however.
- The content is a hint: whoever reads it checks the nonce with whom it finds there.
- Nothing is written into a folder that is neither empty nor one of ours.
"""

import errno
import fcntl
import os
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from engine.errors import EngineError, FolderError, FolderMismatch, FormatTooNew
from engine.folder.modes import create_private, make_private
from engine.ports.system_disk import FULL, disk_full_error, naming

LOCK_NAME: Final = "lock"
METADATA_NAME: Final = "metadata"
BOOKIE_PREFIX: Final = "bookie-"
FORMAT_MAJOR: Final = 1
_CONTENT_BYTES_MAX: Final = 4096


class Ownership(msgspec.Struct, frozen=True):
    """What the owner writes into the lock file."""

    process: int
    nonce: str
    address: str
    format_major: int = FORMAT_MAJOR


class FolderLock:
    """The lock file of one folder, open. Made by `FolderLock.of`."""

    def __init__(self, root: Path, file: FileIO) -> None:
        self.root = root
        self.held = False
        self._file = file

    @classmethod
    def of(cls, root: Path) -> "FolderLock":
        """Create the folder if it is missing, for this user alone, and open its lock file.

        Raises `FolderMismatch` for a file, or for a folder that is not a store's; `FolderError` for
        one that cannot be used.
        """
        try:
            create_private(root)
            check_layout(root)
            make_private(root)
            return cls(root, _open(root))
        except (FileExistsError, NotADirectoryError) as error:
            raise FolderMismatch(f"{root} is not a folder: choose another path") from error
        except OSError as error:
            if error.errno in FULL:
                raise disk_full_error(root) from error
            raise FolderError(f"{root} cannot be used: {error.strerror}") from error

    def try_take(self) -> bool:
        """Become the owner if there is none. Tells whether this is so now."""
        if self.held:
            return True
        self._reopen_if_replaced()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise FolderError(f"{self.root} cannot be locked: {error.strerror}") from error
        self.held = True
        return True

    def read(self) -> Ownership | None:
        """What the owner wrote; None if it has not yet. Raises `FormatTooNew`."""
        self._reopen_if_replaced()
        content = os.pread(self._file.fileno(), _CONTENT_BYTES_MAX, 0)
        try:
            found = msgspec.json.decode(content, type=Ownership)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if found.format_major > FORMAT_MAJOR:
            raise FormatTooNew.of(f"the lock of {self.root}", found.format_major, FORMAT_MAJOR)
        return found

    def told(self) -> Ownership | None:
        """What the owner wrote, for people: None also if it cannot be read."""
        try:
            return self.read()
        except (EngineError, OSError, ValueError):
            return None

    def publish(self, ownership: Ownership | None) -> None:
        """Tell where this process listens; None: nowhere any more."""
        assert self.held
        content = b"" if ownership is None else msgspec.json.encode(ownership)
        assert len(content) <= _CONTENT_BYTES_MAX
        with naming(self.root / LOCK_NAME):
            self._file.truncate(0)
            os.pwrite(self._file.fileno(), content, 0)

    def release(self) -> None:
        """Let another process own the folder."""
        if self.held:
            self.held = False
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release and close. May be called twice."""
        self.held = False
        self._file.close()

    def descriptor(self) -> int:
        """The file's descriptor, for the guard against forks."""
        return self._file.fileno()

    def _reopen_if_replaced(self) -> None:
        """Open the lock file again if the folder was removed and created again.

        Otherwise the old owner and a new one could both lock it. The folder is not created here:
        its disk may have been unmounted. Raises `FolderError`.
        """
        if self.held:
            return
        try:
            found = os.stat(self.root / LOCK_NAME)
            opened = os.fstat(self._file.fileno())
            if (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino):
                return
            file = (self.root / LOCK_NAME).open("r+b", buffering=0)
        except OSError as error:
            raise FolderError(
                f"{self.root} is missing or cannot be used: mount its disk ({error.strerror})"
            ) from error
        self._file.close()
        self._file = file


def number_of(name: str) -> int | None:
    """The number in the name of a bookie's folder inside a store's folder; None if not one."""
    number = name.removeprefix(BOOKIE_PREFIX)
    return int(number) if name.startswith(BOOKIE_PREFIX) and number.isdecimal() else None


def bookie_count(root: Path) -> int:
    """How many bookies a store's folder has."""
    numbers = (number_of(path.name) for path in root.glob(f"{BOOKIE_PREFIX}*"))
    return max(filter(None, numbers), default=0)


def _open(root: Path) -> FileIO:
    (root / LOCK_NAME).touch(mode=0o600)
    return (root / LOCK_NAME).open("r+b", buffering=0)


def is_locked(root: Path) -> bool:
    """Whether another process holds a folder's lock now. This creates no file."""
    try:
        with (root / LOCK_NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def check_layout(root: Path) -> None:
    """Raise `FolderMismatch` for a folder that is not a store's, `OSError` if it cannot be read."""
    # Neither hidden files nor what a fresh file system holds make a folder somebody's.
    names = [path.name for path in root.iterdir() if path.name[0] != "."]
    names = [name for name in names if name != "lost+found"]
    ours = [name for name in names if name in (LOCK_NAME, METADATA_NAME)]
    if names and not ours:
        raise FolderMismatch(f"{root} holds other things ({names[0]}): choose an empty folder")
