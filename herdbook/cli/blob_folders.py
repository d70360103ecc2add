"""A local folder as objects are made of it, and as it is made of objects.

A file is an object of its bytes; `file-mode` (octal) and `file-mtime-ns` in its metadata say what
else it was. A symbolic link is an empty object whose `file-link` is where it points to. A folder
that holds nothing is an empty object whose name ends with a slash.

Invariants:
- Nothing is written outside of the folder that was named: a name that leads out of it is refused,
  and so is a way through a symbolic link below it.
- A file appears whole, under its name, or not at all.
- A walk lists every name below a folder: what cannot be stored comes with the reason.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import google_crc32c

from blobit.errors import BlobError, InvalidName
from blobit.naming import check_object_name
from engine.limits import MIB

Kind = Literal["file", "link", "folder"]
Links = Literal["keep", "follow", "skip"]

MODE: Final = "file-mode"
MTIME: Final = "file-mtime-ns"
LINK: Final = "file-link"
_READ_BYTES: Final = 4 * MIB
_MODE_BITS: Final = 0o777
"""What is kept of a mode: a file that comes back runs with nobody else's rights."""

_extend = google_crc32c.extend


class LocalItem(NamedTuple):
    """Something below a folder; `name` is relative to it, with slashes."""

    path: str
    name: str
    kind: Kind
    size_bytes: int
    metadata: dict[str, str]


class LeftOut(NamedTuple):
    """A name that is not stored, and why; `failed` if it should have been."""

    path: str
    reason: str
    failed: bool


class UnsafeName(BlobError):
    """The object's name leads out of the folder, or cannot be a file's. Fetch it by itself."""


def walk(folder: str, links: Links = "keep") -> Iterator[LocalItem | LeftOut]:
    """Everything below a folder, in order."""
    waiting = [(folder, "", frozenset({_identity(folder)}))]
    while waiting:
        path, name, above = waiting.pop()
        try:
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            yield LeftOut(path, error.strerror or "cannot be read", True)
            continue
        if not found and name:
            yield _checked(LocalItem(path, f"{name}/", "folder", 0, _mode_of(path)))
        folders = []
        for entry in found:
            below = f"{name}/{entry.name}" if name else entry.name
            item = _item(entry, below, links)
            if isinstance(item, str):
                identity = _identity(item)
                if identity in above:
                    yield LeftOut(item, "the link leads back to where it lies", True)
                else:
                    folders.append((item, below, above | {identity}))
            else:
                yield _checked(item)
        waiting += reversed(folders)


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def item_of(path: str, name: str) -> LocalItem:
    """One file, links followed. Raises `OSError` for what is none."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"{path} is a folder: say -r")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is no regular file")
    return LocalItem(path, name, "file", found.st_size, _attributes(found))


def _item(entry: "os.DirEntry[str]", name: str, links: Links) -> LocalItem | LeftOut | str:
    """What an entry is; the path of a folder to walk."""
    path = entry.path
    try:
        if entry.is_symlink() and links != "follow":
            if links == "skip":
                return LeftOut(path, "symbolic link", False)
            return LocalItem(path, name, "link", 0, {LINK: os.readlink(path)})
        found = entry.stat()
    except OSError as error:
        return LeftOut(path, error.strerror or "cannot be read", True)
    if stat.S_ISDIR(found.st_mode):
        return path
    if not stat.S_ISREG(found.st_mode):
        return LeftOut(path, "no regular file", False)
    return LocalItem(path, name, "file", found.st_size, _attributes(found))


def _checked(item: LocalItem | LeftOut) -> LocalItem | LeftOut:
    if isinstance(item, LeftOut):
        return item
    try:
        check_object_name(item.name)
        item.metadata.get(LINK, "").encode()
    except InvalidName as error:
        return LeftOut(item.path, str(error), True)
    except UnicodeEncodeError:
        return LeftOut(item.path, "where the link points to is no Unicode text", True)
    return item


def _attributes(found: os.stat_result) -> dict[str, str]:
    return {MODE: f"{found.st_mode & _MODE_BITS:o}", MTIME: str(found.st_mtime_ns)}


def _mode_of(path: str) -> dict[str, str]:
    try:
        return {MODE: f"{os.stat(path).st_mode & _MODE_BITS:o}"}
    except OSError:
        return {}


def read_file(path: str) -> bytes:
    """A file's bytes. Raises `OSError`."""
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def checksum_of(path: str, length: int | None = None, start: int = 0) -> int:
    """The CRC32C of a file, or of some bytes of it. Raises `OSError`."""
    checksum = 0
    left = length
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while left is None or left > 0:
            piece = file.read(_READ_BYTES if left is None else min(_READ_BYTES, left))
            if not piece:
                break
            checksum = _extend(checksum, piece)
            left = None if left is None else left - len(piece)
    return checksum


def length_of(path: str) -> int | None:
    """How long a regular file is; None: there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


class Destination:
    """A folder that objects become files in. Used by one thread at a time or by many."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._safe: set[str] = set()

    def path_of(self, name: str) -> str:
        """Where an object of a name, relative to the folder, goes. Raises `UnsafeName`."""
        parts = name.removesuffix("/").split("/")
        if not name or any(part in ("", ".", "..") for part in parts):
            raise UnsafeName(f"{name!r} leads out of the folder, or is no file's name: left out")
        return os.path.join(self.root, *parts)

    def prepare(self, path: str) -> None:
        """Make the folders above a path. Raises `UnsafeName` for a way through a link."""
        above = os.path.dirname(path)
        if above in self._safe:
            return
        os.makedirs(self.root, exist_ok=True)
        here = self.root
        for part in Path(os.path.relpath(above, self.root)).parts:
            here = os.path.join(here, part)
            if here in self._safe:
                continue
            try:
                os.mkdir(here)
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(here).st_mode):
                    raise UnsafeName(
                        f"{here} is a link or a file: nothing is written through it"
                    ) from None
            self._safe.add(here)
        self._safe.add(above)

    def part_of(self, path: str, etag: str) -> str:
        """Where the bytes of a version gather until they are complete; no link is there."""
        folder, name = os.path.split(path)
        version = hashlib.blake2b(f"{etag}/{name}".encode(), digest_size=12).hexdigest()
        part = os.path.join(folder, f".{version}.part")
        if os.path.islink(part):
            os.unlink(part)
        return part

    def write(self, path: str, etag: str, data: bytes, metadata: Mapping[str, str]) -> None:
        """Make a file of bytes. Raises `OSError`, `UnsafeName`."""
        self.prepare(path)
        part = self.part_of(path, etag)
        with open(part, "wb") as file:
            file.write(data)
        self.complete(path, part, metadata)

    def complete(self, path: str, part: str, metadata: Mapping[str, str]) -> None:
        """Give a complete file its attributes and its name."""
        self._set_attributes(part, metadata)
        try:
            os.replace(part, path)
        except OSError:
            os.unlink(part)
            raise

    def link(self, path: str, etag: str, target: str) -> None:
        """Make a symbolic link. Raises `OSError`, `UnsafeName`."""
        self.prepare(path)
        part = self.part_of(path, etag)
        if os.path.lexists(part):
            os.unlink(part)
        os.symlink(target, part)
        self.complete(path, part, {})

    def folder(self, path: str, metadata: Mapping[str, str]) -> None:
        """Make a folder. Raises `OSError`, `UnsafeName`."""
        self.prepare(path)
        try:
            os.mkdir(path)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise
        self._set_attributes(path, metadata)

    def _set_attributes(self, path: str, metadata: Mapping[str, str]) -> None:
        mode, mtime = metadata.get(MODE, ""), metadata.get(MTIME, "")
        if mode and set(mode) <= set("01234567"):
            os.chmod(path, int(mode, 8) & _MODE_BITS)
        if mtime.removeprefix("-").isdecimal():
            try:
                os.utime(path, ns=(int(mtime), int(mtime)))
            except OverflowError:
                return
