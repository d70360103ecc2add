"""Putting a big file in parts, several at once, and going on with them in a later run.

Invariants:
- The object appears when all parts are there; until then the upload keeps them, a week by default.
- A part is passed over only if it has the length and the checksum of the file's bytes at its place.
- The object is made of the parts that this run has put or looked at, whoever else puts others.
- What is taken up again was begun for the same name with the same type and metadata, so also for a
  file that was not changed since.
"""

import asyncio
import threading
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from blobit.errors import ConditionFailed, NoSuchUpload, PartMissing
from engine.limits import MIB
from engine.ports.workers import Workers
from herdbook.cli.blob_folders import checksum_of
from herdbook.cli.blob_moving import Moving, first_error

if TYPE_CHECKING:
    from blobit import AsyncBucket, ObjectInfo, PartInfo

PARTED_BYTES_MIN: Final = 256 * MIB
"""Files of at least so many bytes are put in parts."""
PART_BYTES_MIN: Final = 64 * MIB
PARTS_MAX: Final = 8_000
PARTS_AT_ONCE: Final = 2
ATTEMPTS_MAX: Final = 3


class Slice:
    """Some bytes of a file, or all from a place on, as a file whose reading is told.

    It is read in one thread at a time, which opens it, and closed on the event loop.
    """

    def __init__(self, path: str, telling: Moving, start: int = 0, length: int | None = None):
        self._path = path
        self._telling = telling
        self._start = start
        self._left = length
        self._file: BinaryIO | None = None
        self._reading = threading.Lock()
        self._closed = False

    def read(self, size: int, /) -> bytes:
        """The next bytes; none at the end. Raises `OSError`, also for a slice cut short."""
        try:
            with self._reading:
                data = b"" if self._closed else self._next(size)
        finally:
            if self._closed:
                # Whoever closed it could not wait for this thread.
                self.close()
        if self._closed:
            raise OSError(f"{self._path} was closed while it was read")
        self._telling.moved(len(data))
        return data

    def close(self) -> None:
        """Let go of the file; never waits for the thread that reads."""
        self._closed = True
        if self._reading.acquire(blocking=False):
            try:
                if self._file is not None:
                    self._file.close()
            finally:
                self._reading.release()

    def _next(self, size: int) -> bytes:
        if self._file is None:
            self._file = open(self._path, "rb")  # noqa: SIM115
            self._file.seek(self._start)
        if self._left is None:
            return self._file.read(size)
        data = self._file.read(min(size, self._left))
        if self._left and not data:
            raise OSError(f"{self._path} became shorter while it was read")
        self._left -= len(data)
        return data


class PartedPut:
    """Puts one big file."""

    def __init__(self, bucket: "AsyncBucket", workers: Workers, telling: Moving) -> None:
        self._bucket = bucket
        self._workers = workers
        self._telling = telling

    async def put(
        self, path: str, size_bytes: int, name: str, asked: dict[str, Any]
    ) -> "ObjectInfo":
        """Put a file; `asked` is what `create_upload` takes. Raises what a put raises."""
        upload_id = await self._begun(name, asked)
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await self._go_on(upload_id, path, size_bytes)
            except (ConditionFailed, NoSuchUpload, PartMissing):
                # Another run went on with it, too, or has completed it: this one takes its own,
                # which only those go on with who begin later.
                upload_id = await self._bucket.create_upload(name, **asked)
        return await self._go_on(upload_id, path, size_bytes)

    async def _go_on(self, upload_id: str, path: str, size_bytes: int) -> "ObjectInfo":
        """Put the parts that an upload has not, and make the object of those seen here alone."""
        part_bytes = _part_bytes(size_bytes)
        starts = range(0, size_bytes, part_bytes)
        there = {part.number: part for part in await self._bucket.parts(upload_id)}
        turns = asyncio.Semaphore(PARTS_AT_ONCE)
        parts: dict[int, PartInfo] = {}

        async def put_one(number: int, start: int) -> None:
            length = min(part_bytes, size_bytes - start)
            async with turns:
                found = there.get(number)
                if found is not None and found.length == length:
                    look = partial(checksum_of, path, length, start)
                    if await self._workers.run(look) == found.checksum:
                        self._telling.moved(length)
                        parts[number] = found
                        return
                with closing(Slice(path, self._telling, start, length)) as piece:
                    parts[number] = await self._bucket.put_part(upload_id, number, piece)

        with first_error():
            async with asyncio.TaskGroup() as group:
                for number, start in enumerate(starts, 1):
                    group.create_task(put_one(number, start))
        named = [parts[number] for number in sorted(parts)]
        return await self._bucket.complete_upload(upload_id, parts=named)

    async def _begun(self, name: str, asked: dict[str, Any]) -> str:
        """An upload that was cut short and can be gone on with; else a new one."""
        wanted = (asked["content_type"], asked["metadata"])
        for upload in await self._bucket.uploads():
            if upload.name == name and (upload.content_type, upload.metadata) == wanted:
                return upload.upload_id
        return await self._bucket.create_upload(name, **asked)


def _part_bytes(size_bytes: int) -> int:
    """How long each part but the last is: the same in every run."""
    least = -(-size_bytes // PARTS_MAX)
    return max(PART_BYTES_MIN, -(-least // MIB) * MIB)
