"""The blob store: bytes in, an id out; the id in, the bytes out.

Invariants:
- `put` returns an id only when every byte that the id covers is durable.
- A whole object is checked against the checksum in its id before its last byte is handed out.
- Memory is bounded for streams in both directions, whatever an object's length.
- Nothing but the id is needed to read: not the process that put, nor anything it remembers.
"""

from collections.abc import AsyncGenerator

from blobit.errors import BlobsClosed
from blobit.object_id import ObjectId
from blobit.reading import Readers
from blobit.settings import BlobSettings
from blobit.sources import Source, put_source
from blobit.streaming import read_span, read_whole, stream_span
from blobit.upload import Upload
from blobit.writers import LedgerPools
from engine.ledger.client import LedgerClient
from engine.ports.workers import Workers


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
        self._pools = LedgerPools(client, self.settings)
        self._pool = self._pools.pool()
        self._readers = Readers(client, self.settings.readers_max, workers)
        self._closed = False

    async def put(self, source: Source) -> ObjectId:
        """Store an object and return its id, once it is durable.

        A ledger that fails on the way is replaced; the source is read only once. Raises
        `BlobNotStored`, `BlobsClosed`, and `TypeError` for what is no source of bytes.
        """
        self._check_open()
        return await put_source(self._pool, source, self._workers)

    def upload(self) -> Upload:
        """Store an object piece by piece: `write` each, then `finish` for the id, or `abort`."""
        self._check_open()
        return Upload(self._pool, self._workers)

    async def get(self, object_id: ObjectId | str) -> bytes:
        """The whole object.

        Raises `InvalidObjectId`, `BlobNotFound`, `BlobUnreadable`, `BlobCorrupt`.
        """
        return await read_whole(self._readers, self._named(object_id))

    async def get_range(self, object_id: ObjectId | str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on; only the entries that hold them are read.

        Raises `RangeInvalid`, and what `get` raises; entries are checked, the whole object is not.
        """
        return await read_span(self._readers, self._named(object_id), offset, length)

    def stream(self, object_id: ObjectId | str) -> AsyncGenerator[bytes, None]:
        """The whole object in pieces of about a mebibyte, with some read ahead of the caller.

        Raises as `get` does, while iterating; a wrong checksum shows before the last piece comes.
        """
        name = self._named(object_id)
        return stream_span(self._readers, name, 0, None, self.settings.read_ahead_bytes)

    async def close(self) -> None:
        """End pending puts and close the open ledgers; the client stays open."""
        self._closed = True
        self._readers.close()
        await self._pools.close()

    async def __aenter__(self) -> "AsyncBlobs":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _named(self, object_id: ObjectId | str) -> ObjectId:
        self._check_open()
        return object_id if isinstance(object_id, ObjectId) else ObjectId.parse(object_id)

    def _check_open(self) -> None:
        if self._closed:
            raise BlobsClosed("the blob store is closed")
