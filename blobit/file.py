"""An object as a file: readable and seekable, of one version from its first byte to its last.

    with bucket.open("2024/elsa.jpg") as file:
        file.seek(-4, io.SEEK_END)
        file.read()

Invariants:
- All bytes are of the version that was opened. When compaction moved it the file goes on; when it
  was overwritten or deleted, and its bytes are gone, `ObjectChanged` is raised.
- Who reads on where the last read ended is read ahead for; who jumps gets what was asked for.
- At most `WINDOW_BYTES_MAX` are held for the reader, and as many are on their way.
"""

import asyncio
import io
import os
from bisect import bisect_right
from concurrent.futures import Future
from itertools import accumulate
from typing import Any, Final, Protocol

from blobit.blobs import AsyncBlobs
from blobit.errors import BlobNotFound, BlobsClosed, NoSuchObject, ObjectChanged
from blobit.object_id import ObjectId
from blobit.tables import ObjectInfo
from engine.errors import InvalidRequest
from engine.limits import KIB, MIB
from engine.ports.system_loop import BackgroundLoop

BUFFER_BYTES: Final = 64 * KIB
WINDOW_BYTES_MIN: Final = 256 * KIB
WINDOW_BYTES_MAX: Final = 4 * MIB


class Statable(Protocol):
    """What tells the present version of an object: a bucket."""

    @property
    def bucket_id(self) -> int | None:
        """Whose ledgers alone are read; None: anybody's."""
        ...

    async def stat(self, name: str) -> ObjectInfo:
        """The object of a name. Raises `NoSuchObject`."""
        ...


class ObjectVersion:
    """One version of a named object, read by its id. On an event loop."""

    def __init__(self, blobs: AsyncBlobs, bucket: Statable, info: ObjectInfo) -> None:
        self.info = info
        self._blobs = blobs
        self._bucket = bucket
        self._layout: tuple[list[ObjectId], list[int]] | None = None
        """The parts, and where each begins."""

    async def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on, which lie within the object.

        Raises `ObjectChanged`, `BlobUnreadable`, `BlobCorrupt`.
        """
        try:
            return await self._read(offset, length)
        except BlobNotFound as error:
            await self._follow(error)
        return await self._read(offset, length)

    async def _read(self, offset: int, length: int) -> bytes:
        layout = self._layout
        if layout is None:
            found = await self._blobs.parts_of(
                self.info.object_id, bucket_id=self._bucket.bucket_id
            )
            layout = (found, list(accumulate((part.length for part in found), initial=0)))
            self._layout = layout
        parts, starts = layout
        got: list[bytes] = []
        end = offset + length
        number = bisect_right(starts, offset) - 1
        while offset < end:
            part, start = parts[number], starts[number]
            size = min(end, start + part.length) - offset
            own = self._bucket.bucket_id
            got.append(await self._blobs.get_range(part, offset - start, size, bucket_id=own))
            offset += size
            number += 1
        return got[0] if len(got) == 1 else b"".join(got)

    async def _follow(self, error: BlobNotFound) -> None:
        """Its ledger has gone: the row tells where it lies now, if it is the same version."""
        name = self.info.name
        try:
            found = await self._bucket.stat(name)
        except NoSuchObject:
            raise ObjectChanged(f"{name} was deleted while it was read") from error
        if found.etag != self.info.etag:
            raise ObjectChanged(f"{name} was overwritten while it was read") from error
        self.info = found
        self._layout = None


class ObjectFile(io.RawIOBase):
    """An object's bytes for one thread at a time; `open_object` puts a buffer around it."""

    def __init__(self, loop: BackgroundLoop, version: ObjectVersion) -> None:
        self._loop = loop
        self._version = version
        self._length = version.info.length
        self._position = 0
        self._start = 0
        self._held = memoryview(b"")
        self._ahead: tuple[int, Future[bytes]] | None = None
        self._window_bytes = WINDOW_BYTES_MIN

    @property
    def info(self) -> ObjectInfo:
        """What is known of the version that is read."""
        return self._version.info

    @property
    def name(self) -> str:
        """The object's name."""
        return self._version.info.name

    @property
    def mode(self) -> str:
        """As files have it."""
        return "rb"

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a place, also past the end, where nothing is read. Raises `ValueError`."""
        self._check_open()
        origins = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}
        if whence not in origins:
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        position = origins[whence] + offset
        if position < 0:
            raise ValueError(f"{position} is before the beginning")
        self._position = position
        return position

    def tell(self) -> int:
        """The place of the next byte."""
        self._check_open()
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """The next bytes into a buffer, perhaps fewer than fit; 0 at the end.

        Raises `ObjectChanged`, `BlobUnreadable`, `BlobCorrupt`, `BlobsClosed` in a forked child.
        """
        self._check_open()
        with memoryview(buffer).cast("B") as into:
            wanted = min(len(into), self._length - self._position)
            if wanted <= 0:
                return 0
            piece = self._here(wanted)[:wanted]
            into[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def readall(self) -> bytes:
        """Everything from here on."""
        self._check_open()
        got: list[bytes] = []
        while self._position < self._length:
            piece = self._here(min(WINDOW_BYTES_MAX, self._length - self._position))
            self._position += len(piece)
            got.append(bytes(piece))
        return b"".join(got)

    def close(self) -> None:
        """Let go of what was read ahead."""
        if not self.closed:
            self._forget_ahead()
            self._held = memoryview(b"")
        super().close()

    def _here(self, wanted: int) -> memoryview:
        """What is held from the present place on; at least one byte."""
        position = self._position
        if not self._start <= position < self._start + len(self._held):
            self._fill(position, wanted)
        return self._held[position - self._start :]

    def _fill(self, position: int, wanted: int) -> None:
        self._check_process()
        in_a_row = position == self._start + len(self._held)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == position:
            data = self._wait(ahead[1])
        else:
            if ahead is not None:
                ahead[1].cancel()
            data = self._wait(self._begin(position, min(wanted, WINDOW_BYTES_MAX)))
        self._start, self._held = position, memoryview(data)
        if not in_a_row:
            self._window_bytes = WINDOW_BYTES_MIN
            return
        following = position + len(data)
        if following < self._length:
            self._ahead = (following, self._begin(following, self._window_bytes))
            self._window_bytes = min(2 * self._window_bytes, WINDOW_BYTES_MAX)

    def _begin(self, offset: int, size: int) -> "Future[bytes]":
        size = min(size, self._length - offset)
        return asyncio.run_coroutine_threadsafe(self._version.read(offset, size), self._loop.loop)

    def _wait(self, reading: "Future[bytes]") -> bytes:
        try:
            return reading.result()
        except BaseException:
            reading.cancel()
            raise

    def _forget_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and self._loop.usable:
            ahead[1].cancel()

    def _check_process(self) -> None:
        """Nobody answers in a forked child: what was begun before the fork would never come."""
        try:
            self._loop.check()
        except InvalidRequest as error:
            raise BlobsClosed(str(error)) from error

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")


def open_object(
    loop: BackgroundLoop, blobs: AsyncBlobs, bucket: Statable, info: ObjectInfo
) -> io.BufferedReader:
    """A buffered file of one version of an object, for threads. Close it."""
    return io.BufferedReader(ObjectFile(loop, ObjectVersion(blobs, bucket, info)), BUFFER_BYTES)
