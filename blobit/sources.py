"""What can be put: bytes, pieces of bytes that come one by one, or an open binary file.

Invariants:
- A source is read once, in order, and never ahead of what the store takes.
- Files and plain iterables are read away from the event loop, where there are workers.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, Final, Protocol, runtime_checkable

from blobit.object_id import ObjectId
from blobit.upload import Upload, put_shared
from blobit.writers import LedgerPool
from engine.limits import MIB
from engine.ports.workers import Workers

FILE_READ_BYTES: Final = 1 * MIB
_END: Final = object()


@runtime_checkable
class ReadableFile(Protocol):
    """An open binary file, or whatever reads like one."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        ...


Source = bytes | bytearray | memoryview | AsyncIterable[bytes] | Iterable[bytes] | ReadableFile
"""What can be put: bytes, pieces of bytes that come one by one, or an open binary file."""


async def put_source(
    pool: LedgerPool,
    source: Source,
    workers: Workers | None = None,
    part_ended: Callable[[ObjectId], Awaitable[None]] | None = None,
) -> ObjectId:
    """Store an object in a pool's ledgers and return its id, once it is durable.

    A ledger that fails on the way is replaced; the source is read only once. `workers` read files
    and plain iterables, and compress. `part_ended` is as `Upload` takes it. Raises `BlobNotStored`,
    `BlobsClosed`, what the source raises, and `TypeError` for what is no source of bytes.
    """
    if isinstance(source, bytearray | memoryview):
        source = bytes(source)
    if isinstance(source, bytes) and len(source) <= pool.settings.shared_object_bytes_max:
        return await put_shared(pool, source, workers)
    upload = Upload(pool, workers, part_ended)
    try:
        if isinstance(source, bytes):
            await upload.write(source)
        else:
            async for piece in pieces_of(source, workers):
                await upload.write(piece)
        return await upload.finish()
    finally:
        await upload.abort()


def pieces_of(source: Source, workers: Workers | None = None) -> AsyncIterable[bytes]:
    """The pieces of a source. Raises `TypeError` for what is no source of bytes."""
    if isinstance(source, bytes | bytearray | memoryview):
        whole = iter([bytes(source)])
        return _taken(lambda: next(whole, _END), None)
    if isinstance(source, AsyncIterable):
        return source
    if isinstance(source, ReadableFile):
        file = source
        return _taken(lambda: file.read(FILE_READ_BYTES) or _END, workers)
    other: object = source
    if isinstance(other, Iterable) and not isinstance(other, str):
        rest = iter(other)
        return _taken(lambda: next(rest, _END), workers)
    raise TypeError(f"{type(source).__name__} is no source of bytes")


async def _taken(take: Callable[[], Any], workers: Workers | None) -> AsyncGenerator[bytes, None]:
    while True:
        piece: Any = take() if workers is None else await workers.run(take)
        if piece is _END:
            return
        yield piece
