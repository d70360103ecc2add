"""The machine's file system as a `Disk`.

Invariants:
- No name leaves the root: an absolute name, an empty part, `.` and `..` are refused.
- A file whose `sync()` failed once is dead: neither it nor a write is tried again on it.
- A half-made replacement has a hidden name that `names()` never lists.
- Nothing is created below a root that is not the same folder as when it was first used, for example
  below the mount point of a disk that was unmounted.
- If there is no space, the error is a `DiskFull`, which is also an `OSError` and names the file.
- A descriptor for reading closes only when no thread reads through it any more.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

from engine.errors import DiskFull
from engine.ports.disk import RootGone, Space

_PARTS_PER_CALL_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX"))
_READ_HANDLES_MAX: Final = 128
_REPLACING: Final = ".replacing"
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""The system's error numbers for a full disk."""
_ADVISE: Final = getattr(os, "posix_fadvise", None)
_NOT_NEEDED: Final[int] = getattr(os, "POSIX_FADV_DONTNEED", 0)
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)


@cache
def _machine() -> str:
    """What tells this machine from others, for as long as it runs."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename


class SystemDisk:
    """A `Disk` rooted at a folder of the file system.

    The root need not exist: `make_folder("")` makes it. Methods block, and any thread may call
    them; one `AppendFile` belongs to one thread at a time. Every error is an `OSError`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._lock = threading.Lock()
        self._handles: dict[str, _ReadHandle] = {}
        self._identity = self._look()

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; an absent folder has none."""
        try:
            found = os.listdir(self._path(folder))
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not _is_replacing(name))

    def make_folder(self, folder: str) -> None:
        """Make a folder and its parents, durably. It may exist."""
        self._check_root()
        path = self._path(folder)
        missing: list[Path] = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        with naming(path):
            for path in reversed(missing):
                path.mkdir(mode=0o700, exist_ok=True)
                _sync_folder(path.parent)
            # A folder that is there may be the work of a process that ended before it was synced.
            path = self._path(folder)
            while path != self.root:
                path = path.parent
                _sync_folder(path)
        self._identity = self._identity or self._look()

    def size(self, name: str) -> int:
        """The file's length in bytes."""
        return os.stat(self._path(name)).st_size

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""
        return self.read_each(name, [(offset, length)])[0]

    def read_each(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """`read` for many (offset, length) of one file, in the same order."""
        handle = self._handles.get(name) or self._open_read(name)
        descriptor, read = handle.descriptor, os.pread
        found = [read(descriptor, length, offset) for offset, length in ranges]
        for number, (offset, length) in enumerate(ranges):
            if len(found[number]) != length and found[number]:
                found[number] = _read_rest(descriptor, found[number], offset, length)
        return found

    def open_append(self, name: str, *, create: bool) -> "SystemAppendFile":
        """Open at the end. `create=True` makes a new file and fails if there is one."""
        flags = os.O_WRONLY | os.O_CLOEXEC
        if create:
            self._check_root()
            flags |= os.O_CREAT | os.O_EXCL
        path = self._path(name)
        with naming(path):
            return SystemAppendFile(path, os.open(path, flags, 0o666))

    def replace(self, name: str, data: bytes) -> None:
        """Set a small file's whole content atomically and durably."""
        self._check_root()
        path = self._path(name)
        replacing = path.with_name(f".{path.name}{_REPLACING}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with naming(path):
            descriptor = os.open(replacing, flags, 0o666)
            try:
                _write_whole(descriptor, [data], 0)
                _sync(descriptor)
            finally:
                os.close(descriptor)
            # Under the lock, so that no reader keeps a handle of the old content in the cache.
            with self._lock:
                os.replace(replacing, path)
                self._handles.pop(name, None)
            _sync_folder(path.parent)

    def truncate(self, name: str, length: int) -> None:
        """Cut a file and sync it."""
        path = self._path(name)
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            with naming(path):
                os.ftruncate(descriptor, length)
                _sync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        """Remove a file. Durable after `sync_folder`."""
        path = self._path(name)
        with self._lock:
            os.unlink(path)
            self._handles.pop(name, None)

    def sync_folder(self, folder: str) -> None:
        """Make new and removed names of a folder durable."""
        path = self._path(folder)
        with naming(path):
            _sync_folder(path)

    def space(self) -> Space:
        """How full the file system is, as an unprivileged user sees it."""
        self._check_root()
        state = os.statvfs(self.root)
        name = f"{_machine()} {state.f_fsid:x}"
        return Space(state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize, name)

    def _look(self) -> tuple[int, int] | None:
        """What identifies the root among folders; None if it does not exist."""
        try:
            found = os.stat(self.root)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def _check_root(self) -> None:
        if self._identity is not None and self._look() != self._identity:
            raise RootGone(
                errno.ENOENT,
                "the folder is missing, or was replaced by another one: is its disk mounted?",
                str(self.root),
            )

    def _open_read(self, name: str) -> "_ReadHandle":
        path = self._path(name)
        with self._lock:
            handle = _ReadHandle(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            if len(self._handles) >= _READ_HANDLES_MAX:
                self._handles.pop(next(iter(self._handles)))
            self._handles[name] = handle
        return handle

    def _path(self, name: str) -> Path:
        if not name:
            return self.root
        for part in name.split("/"):
            if part in ("", ".", "..") or "\0" in part or _is_replacing(part):
                raise PermissionError(errno.EACCES, "not a name within the disk's root", name)
        return self.root / name


class SystemAppendFile:
    """An `AppendFile` over a descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._end = self._reached = self._last = os.fstat(descriptor).st_size
        self._failed = False

    def write(self, parts: Sequence[bytes], ahead_bytes: int = 0) -> int:
        """Append all parts whole, with zeros ahead; return the bytes written.

        After an `OSError` a prefix of them may stand in the file.
        """
        if self._descriptor < 0 or self._failed:
            raise self._refusal()
        written = sum(map(len, parts)) if ahead_bytes else 0
        # No context manager: a journal calls this and `sync` for each write.
        try:
            if ahead_bytes and self._end + written > self._reached:
                _write_whole(self._descriptor, [*parts, bytes(ahead_bytes)], self._end)
                self._reached = self._end + written + ahead_bytes
            else:
                written = _write_whole(self._descriptor, parts, self._end)
        except OSError as error:
            _raise_named(error, self._path)
        self._last = self._end
        self._end += written
        return written

    def begin_sync(self) -> None:
        """Let the disk begin with what was written last, without waiting for it."""
        if _ADVISE is not None and self._descriptor >= 0:
            # Linux begins to write what is dirty of pages that are said not to be needed.
            try:
                _ADVISE(self._descriptor, self._last, self._end - self._last, _NOT_NEEDED)
            except OSError:
                pass

    def sync(self) -> None:
        """Make all that was written durable. After one failure every later call fails."""
        if self._descriptor < 0 or self._failed:
            raise self._refusal()
        try:
            _sync(self._descriptor)
        except OSError as error:
            self._failed = True
            _raise_named(error, self._path)

    def trim(self) -> None:
        """Cut off zeros that stand ahead, durably. After one failure every later call fails."""
        if self._descriptor < 0 or self._failed:
            raise self._refusal()
        if self._reached > self._end:
            with naming(self._path):
                os.ftruncate(self._descriptor, self._end)
            self._reached = self._end
            self.sync()

    def close(self) -> None:
        """Close without syncing. May be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _refusal(self) -> OSError:
        if self._descriptor < 0:
            return OSError(errno.EBADF, "the file is closed", str(self._path))
        return OSError(errno.EIO, "an earlier sync of the file failed", str(self._path))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an `OSError` of the block; for a full disk, raise `DiskFull`."""
    try:
        yield
    except OSError as error:
        _raise_named(error, path)


def _raise_named(error: OSError, path: Path) -> NoReturn:
    """Raise an error as `naming` does."""
    if (named := _named(error, path)) is not error:
        raise named from error
    # An error must not be its own cause: a search for the first cause would not end.
    raise error


def _named(error: OSError, path: Path) -> OSError:
    if isinstance(error, DiskFull):
        return error
    if error.errno in FULL:
        return disk_full_error(path)
    return OSError(error.errno, error.strerror, str(path)) if error.filename is None else error


def is_disk_full(error: BaseException) -> bool:
    """Whether an error of a library, mostly RocksDB, says that a disk is full."""
    return "No space left on device" in str(error) or "Disk quota exceeded" in str(error)


def existing(path: Path) -> Path:
    """A folder, or the nearest parent that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def disk_full_error(path: Path) -> DiskFull:
    """The error for a write of a file or folder whose disk is full."""
    free = ""
    with suppress(OSError):
        state = os.statvfs(path if path.exists() else path.parent)
        free = f", which has {state.f_bavail * state.f_frsize:,} bytes free"
    return DiskFull(f"{path} cannot be written: its disk is full{free}: free some space there")


class _ReadHandle:
    """A descriptor that closes with the last reference to it, be it the cache's or a reader's."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


def _is_replacing(name: str) -> bool:
    return name.startswith(".") and name.endswith(_REPLACING)


def _write_whole(descriptor: int, parts: Sequence[bytes], offset: int) -> int:
    if len(parts) > _PARTS_PER_CALL_MAX:
        chunks = range(0, len(parts), _PARTS_PER_CALL_MAX)
        total = 0
        for start in chunks:
            chunk = parts[start : start + _PARTS_PER_CALL_MAX]
            total += _write_whole(descriptor, chunk, offset + total)
        return total
    size = sum(map(len, parts))
    if not size:
        return 0
    written = os.pwritev(descriptor, parts, offset)
    if written != size:
        _write_rest(descriptor, memoryview(b"".join(parts))[written:], offset + written)
    return size


def _write_rest(descriptor: int, rest: memoryview, offset: int) -> None:
    """Go on after a short write: the error that cut it short, if any, comes now."""
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        if written == 0:
            raise OSError(errno.EIO, "the file takes no more bytes")
        rest, offset = rest[written:], offset + written


def _read_rest(descriptor: int, data: bytes, offset: int, length: int) -> bytes:
    """Go on after a short read, up to the end of the file."""
    pieces = [data]
    left = length - len(data)
    while left and (data := os.pread(descriptor, left, offset + length - left)):
        pieces.append(data)
        left -= len(data)
    return b"".join(pieces)


def _sync_fully(descriptor: int) -> None:
    """Where a usual sync leaves the bytes in the disk's own memory."""
    assert _FULL_SYNC is not None
    fcntl.fcntl(descriptor, _FULL_SYNC)


_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
if _FULL_SYNC is not None:
    _sync = _sync_fully


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
