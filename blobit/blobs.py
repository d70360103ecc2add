"""The blob store: bytes in, an id out; the id in, the bytes out.

Invariants:
- `put` returns an id only when every byte that the id covers is durable.
- A whole object is checked against the checksum in its id before its last byte is handed out.
- Memory is bounded for streams in both directions, whatever an object's length.
- Nothing but the id is needed to read: not the process that put, nor anything it remembers.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing
from typing import Any, Final, Protocol, runtime_checkable

import google_crc32c

from blobit.errors import BlobCorrupt, BlobsClosed, InvalidObjectId, RangeInvalid
from blobit.object_id import Kind, ObjectId, parse_parts
from blobit.read_ahead import read_ahead
from blobit.reading import Readers, read_entries
from blobit.settings import BlobSettings
from blobit.upload import Upload, put_shared
from blobit.writers import LedgerPool
from engine.ledger.client import LedgerClient
from engine.limits import MIB
from engine.ports.workers import Workers

FILE_READ_BYTES: Final = 1 * MIB
_END: Final = object()

_extend = google_crc32c.extend


@runtime_checkable
class ReadableFile(Protocol):
    """An open binary file, or whatever reads like one."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        ...


Source = bytes | bytearray | memoryview | AsyncIterable[bytes] | Iterable[bytes] | ReadableFile
"""What can be put: bytes, pieces of bytes that come one by one, or an open binary file."""


class AsyncBlobs:
    """Objects by id, on one event loop. `Blobs` is the same for code without one.

    >>> async def keep(blobs: AsyncBlobs) -> bytes:
    ...     object_id = await blobs.put(b"moo")
    ...     return await blobs.get(object_id)
    """

    def __init__(
        self,
        client: LedgerClient,
        settings: BlobSettings | None = None,
        workers: Workers | None = None,
    ) -> None:
        """`workers` read files and plain iterables; without them the event loop does, and waits."""
        self.settings = settings if settings is not None else BlobSettings()
        self._workers = workers
        self._pool = LedgerPool(client, self.settings)
        self._readers = Readers(client, self.settings.readers_max)
        self._closed = False

    async def put(self, source: Source) -> ObjectId:
        """Store an object and return its id, once it is durable.

        A ledger that fails on the way is replaced; the source is read only once. Raises
        `BlobNotStored`, `BlobsClosed`, and `TypeError` for what is no source of bytes.
        """
        self._check_open()
        if isinstance(source, bytearray | memoryview):
            source = bytes(source)
        if isinstance(source, bytes):
            if len(source) <= self.settings.shared_object_bytes_max:
                return await put_shared(self._pool, self.settings, source)
            return await self._put_pieces(_one(source))
        if isinstance(source, AsyncIterable):
            return await self._put_pieces(source)
        return await self._put_pieces(self._pieces(source))

    def upload(self) -> Upload:
        """Store an object piece by piece: `write` each, then `finish` for the id, or `abort`."""
        self._check_open()
        return Upload(self._pool, self.settings)

    async def get(self, object_id: ObjectId | str) -> bytes:
        """The whole object.

        Raises `InvalidObjectId`, `BlobNotFound`, `BlobUnreadable`, `BlobCorrupt`.
        """
        name = self._named(object_id)
        got: list[bytes] = []
        for part in await self._parts(name):
            async with aclosing(read_entries(self._readers, part, 0, part.length)) as pieces:
                got += [piece async for piece in pieces]
        whole = got[0] if len(got) == 1 else b"".join(got)
        if _extend(0, whole) != name.checksum:
            raise _wrong_checksum(name)
        return whole

    async def get_range(self, object_id: ObjectId | str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on; only the entries that hold them are read.

        Raises `RangeInvalid`, and what `get` raises; entries are checked, the whole object is not.
        """
        name = self._named(object_id)
        end = offset + length
        if offset < 0 or length < 0 or end > name.length:
            raise RangeInvalid(f"{length} bytes from {offset} on: the object has {name.length}")
        got: list[bytes] = []
        part_start = 0
        for part in await self._parts(name):
            low, high = max(offset, part_start), min(end, part_start + part.length)
            if low < high:
                span = (low - part_start, high - part_start)
                async with aclosing(read_entries(self._readers, part, *span)) as pieces:
                    got += [piece async for piece in pieces]
            part_start += part.length
        return b"".join(got)

    def stream(self, object_id: ObjectId | str) -> AsyncGenerator[bytes, None]:
        """The whole object in pieces of about a mebibyte, with some read ahead of the caller.

        Raises as `get` does, while iterating; a wrong checksum shows before the last piece comes.
        """
        name = self._named(object_id)
        return read_ahead(self._whole(name), self.settings.read_ahead_bytes)

    async def close(self) -> None:
        """End pending puts and close the open ledgers; the client stays open."""
        self._closed = True
        self._readers.close()
        await self._pool.close()

    async def __aenter__(self) -> "AsyncBlobs":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _put_pieces(self, pieces: AsyncIterable[bytes]) -> ObjectId:
        upload = Upload(self._pool, self.settings)
        try:
            async for piece in pieces:
                await upload.write(piece)
            return await upload.finish()
        finally:
            await upload.abort()

    async def _pieces(self, source: object) -> AsyncGenerator[bytes, None]:
        """The pieces of a file or a plain iterable, each made away from the event loop."""
        take: Callable[[], Any]
        if isinstance(source, ReadableFile):
            file = source
            take = lambda: file.read(FILE_READ_BYTES) or _END  # noqa: E731
        elif isinstance(source, Iterable) and not isinstance(source, str):
            rest = iter(source)
            take = lambda: next(rest, _END)  # noqa: E731
        else:
            raise TypeError(f"{type(source).__name__} is no source of bytes")
        while True:
            piece: Any = take() if self._workers is None else await self._workers.run(take)
            if piece is _END:
                return
            yield piece

    async def _parts(self, name: ObjectId) -> list[ObjectId]:
        """The parts of an object, in order."""
        if name.kind is Kind.DATA:
            return [name] if name.length else []
        stored = read_entries(self._readers, name, 0, name.stored_bytes)
        async with aclosing(stored) as pieces:
            packed = b"".join([piece async for piece in pieces])
        try:
            parts = parse_parts(packed)
        except InvalidObjectId as error:
            raise BlobCorrupt(f"object {name}: {error}") from error
        if sum(part.length for part in parts) != name.length:
            raise BlobCorrupt(f"object {name}: its parts do not add up to its length")
        return parts

    async def _whole(self, name: ObjectId) -> AsyncGenerator[bytes, None]:
        """All bytes; the last piece is held back until the checksum is right."""
        checksum = 0
        held = b""
        for part in await self._parts(name):
            async with aclosing(read_entries(self._readers, part, 0, part.length)) as pieces:
                async for piece in pieces:
                    checksum = _extend(checksum, piece)
                    if held:
                        yield held
                    held = piece
        if checksum != name.checksum:
            raise _wrong_checksum(name)
        if held:
            yield held

    def _named(self, object_id: ObjectId | str) -> ObjectId:
        self._check_open()
        return object_id if isinstance(object_id, ObjectId) else ObjectId.parse(object_id)

    def _check_open(self) -> None:
        if self._closed:
            raise BlobsClosed("the blob store is closed")


def _wrong_checksum(name: ObjectId) -> BlobCorrupt:
    return BlobCorrupt(f"object {name}: its checksum is not that of the id")


async def _one(source: bytes) -> AsyncGenerator[bytes, None]:
    yield source
