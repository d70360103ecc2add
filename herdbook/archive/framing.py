"""Checked frames, one behind the other: what the files of a backup are made of.

    magic(7) major(1)                       the file's head
    kind(1) size(8) crc32c(4) bytes         each frame; the checksum covers kind and bytes

Invariants:
- The last frame is of kind `END`; a file without it is not whole.
- A file is known by its name only when all of it is durable.
"""

import os
import struct
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

import google_crc32c

from engine.errors import CannotRead, FormatTooNew

END: Final = b"E"
_FRAME: Final = struct.Struct(">cQI")
_FRAME_BYTES_MAX: Final = 1 << 32
_PART: Final = ".part"


class FrameWriter:
    """Writes a new file, which has its name when the block ends well. Blocks."""

    def __init__(self, path: Path, magic: bytes, major: int) -> None:
        self._path = path
        self._part = path.with_name(path.name + _PART)
        self._head = magic + bytes((major,))
        self.size_bytes = len(self._head)

    def __enter__(self) -> "FrameWriter":
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        # Rows of users, with what their passwords are checked by, are in it.
        self._file = os.fdopen(os.open(self._part, flags, 0o600), "wb")
        self._file.write(self._head)
        return self

    def frame(self, kind: bytes, blob: bytes) -> None:
        """Write one frame."""
        checksum = google_crc32c.extend(google_crc32c.value(kind), blob)
        self._file.write(_FRAME.pack(kind, len(blob), checksum))
        self._file.write(blob)
        self.size_bytes += _FRAME.size + len(blob)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()
            if error is not None:
                self._part.unlink(missing_ok=True)
        if error is None:
            self._part.replace(self._path)


def read_frames(path: Path, magic: bytes, major: int) -> Generator[tuple[bytes, bytes], None, None]:
    """The frames of a file, `END` among them, each checked. Blocks.

    Raises `CannotRead` for what is damaged, cut short, or no such file, `FormatTooNew`, `OSError`.
    """
    with path.open("rb") as file:
        head = file.read(len(magic) + 1)
        if len(head) <= len(magic) or head[:-1] != magic:
            raise CannotRead(f"{path} is damaged: it does not begin as it should")
        if head[-1] > major:
            raise FormatTooNew.of(str(path), head[-1], major)
        while True:
            kind, blob = _read_frame(file, path)
            yield kind, blob
            if kind == END:
                if file.read(1):
                    raise CannotRead(f"{path} is damaged: there is more behind its end")
                return


def read_last(path: Path, size_bytes: int) -> bytes:
    """What a file's `END` says, which is of so many bytes; nothing else is read. Blocks.

    Raises `CannotRead` for a file that does not end so, `OSError`.
    """
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _FRAME.size - size_bytes))
        kind, blob = _read_frame(file, path)
    if kind != END or len(blob) != size_bytes:
        raise CannotRead(f"{path} is damaged: it does not end as it should")
    return blob


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Blocks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_frame(file: BinaryIO, path: Path) -> tuple[bytes, bytes]:
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        raise CannotRead(f"{path} is cut short")
    kind, size_bytes, checksum = _FRAME.unpack(head)
    # What claims more than there is must not be asked memory for.
    left = os.fstat(file.fileno()).st_size - file.tell()
    if size_bytes > min(left, _FRAME_BYTES_MAX):
        raise CannotRead(f"{path} is cut short, or damaged")
    blob = file.read(size_bytes)
    if google_crc32c.extend(google_crc32c.value(kind), blob) != checksum:
        raise CannotRead(f"{path} is damaged")
    return kind, blob
