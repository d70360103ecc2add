"""Objects read by their ids: whole, a range, or as a stream, with several reads under way.

An object is cut into chunks of about one read's bytes. Chunks are fetched ahead of the caller, from
whatever parts they are in, and handed out in order.

Invariants:
- Pieces come in order, each once; an error comes after the pieces before it.
- Under way or held ahead of a stream's caller are at most `ahead_bytes` and one chunk.
- A list of parts is read as it is needed: no object has too many of them.
- A whole object is checked against the checksum in its id before its last piece is handed out.
- When the caller stops early, nothing is read on.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple

import google_crc32c

from blobit.assembling import Assembly, assembly_of
from blobit.errors import BlobCorrupt, BlobError, InvalidObjectId, RangeInvalid
from blobit.object_id import Kind, ObjectId, PartsParser
from blobit.reading import Readers

_extend = google_crc32c.extend

_LARGE_READS: Final = 4
_LARGE_AHEAD: Final = 2


class _Pace(NamedTuple):
    """How much is asked for with one read, and how much is fetched ahead of the caller.

    Ahead of the first piece little is fetched, so that it comes soon.
    """

    chunk_bytes: int
    ahead_bytes: int
    first_ahead_bytes: int = 0


def _large(readers: Readers) -> _Pace:
    """The pace for who wants all of it at once: fewer trips, more under way."""
    chunk_bytes = _LARGE_READS * readers.chunk_bytes
    ahead_bytes = _LARGE_AHEAD * chunk_bytes
    return _Pace(chunk_bytes, ahead_bytes, ahead_bytes)


class _Chunk(NamedTuple):
    """Entries of a part, and which of their bytes are wanted."""

    part: ObjectId
    first: int
    last: int
    skip_bytes: int
    wanted_bytes: int


async def read_whole(readers: Readers, name: ObjectId) -> bytes:
    """The whole object. Raises `BlobNotFound`, `BlobUnreadable`, `BlobCorrupt`."""
    if 0 < name.length <= name.entry_bytes and name.kind is not Kind.LIST:
        body = await readers.read_one(name)
        if _extend(0, body) != name.checksum:
            raise _wrong_checksum(name)
        return body
    # Pieces are let go as they come: held to the end, they would take the memory a second time.
    whole: Assembly | None = None
    checksum = 0
    async with aclosing(_bodies(readers, name, 0, name.length, _large(readers))) as chunks:
        async for bodies in chunks:
            whole = whole or assembly_of(name.length, readers.workers)
            for body in bodies:
                checksum = _extend(checksum, body)
                whole.write(body)
    if checksum != name.checksum:
        raise _wrong_checksum(name)
    return b"" if whole is None else whole.getvalue()


async def read_span(readers: Readers, name: ObjectId, offset: int, length: int) -> bytes:
    """`length` bytes from `offset` on; only the entries that hold them are read.

    Raises `RangeInvalid`, and what `read_whole` raises; entries are checked, the whole is not.
    """
    check_range(name, offset, length)
    span: Assembly | None = None
    async with aclosing(_bodies(readers, name, offset, offset + length, _large(readers))) as chunks:
        async for bodies in chunks:
            span = span or assembly_of(length, readers.workers)
            for body in bodies:
                span.write(body)
    return b"" if span is None else span.getvalue()


async def stream_span(
    readers: Readers, name: ObjectId, offset: int, length: int | None, ahead_bytes: int
) -> AsyncGenerator[bytes, None]:
    """Bytes from `offset` on, `length` of them or all, in pieces of about a mebibyte.

    Raises as `read_span` does, while iterating; of a whole object, a wrong checksum shows before
    the last piece comes.
    """
    wanted_bytes = name.length - offset if length is None else length
    check_range(name, offset, wanted_bytes)
    whole = wanted_bytes == name.length
    checksum = 0
    held = b""
    end = offset + wanted_bytes
    pace = _Pace(readers.chunk_bytes, ahead_bytes)
    async with aclosing(_bodies(readers, name, offset, end, pace)) as chunks:
        async for bodies in chunks:
            piece = bodies[0] if len(bodies) == 1 else b"".join(bodies)
            if whole:
                checksum = _extend(checksum, piece)
                held, piece = piece, held
            if piece:
                yield piece
    if whole and checksum != name.checksum:
        raise _wrong_checksum(name)
    if held:
        yield held


async def parts_of(readers: Readers, name: ObjectId) -> AsyncGenerator[ObjectId, None]:
    """The parts of an object, in order: itself, those that its list names, or none.

    Raises `BlobNotFound`, `BlobUnreadable`, `BlobCorrupt`.
    """
    if name.kind is not Kind.LIST:
        if name.length:
            yield name
        return
    parser = PartsParser()
    length = 0
    entries = max(1, readers.chunk_bytes // name.entry_bytes)
    for first in range(name.first_entry, name.last_entry + 1, entries):
        packed = await readers.read(name, first, min(first + entries - 1, name.last_entry))
        try:
            parts = parser.feed(b"".join(packed))
        except InvalidObjectId as error:
            raise BlobCorrupt(f"object {name}: {error}") from error
        for part in parts:
            length += part.length
            yield part
    try:
        parser.end()
    except InvalidObjectId as error:
        raise BlobCorrupt(f"object {name}: {error}") from error
    if length != name.length:
        raise BlobCorrupt(f"object {name}: its parts do not add up to its length")


def check_range(name: ObjectId, offset: int, length: int) -> None:
    """Raises `RangeInvalid` if the range does not lie within the object."""
    if offset < 0 or length < 0 or offset + length > name.length:
        raise RangeInvalid(
            f"{length} bytes from {offset} on: the object has {name.length}; ask within them"
        )


async def _chunks(
    readers: Readers, name: ObjectId, start: int, end: int, chunk_bytes: int
) -> AsyncGenerator[_Chunk, None]:
    """What to read for bytes `start` to `end` (not included) of an object."""
    part_start = 0
    async with aclosing(parts_of(readers, name)) as parts:
        async for part in parts:
            low, high = max(start - part_start, 0), min(end - part_start, part.length)
            step = max(1, chunk_bytes // part.entry_bytes) * part.entry_bytes
            while low < high:
                # All but the first begin at a multiple, so that chunks do not overlap.
                until = min(low - low % step + step, high)
                first, last = low // part.entry_bytes, (until - 1) // part.entry_bytes
                skip_bytes = low - first * part.entry_bytes
                yield _Chunk(
                    part,
                    part.first_entry + first,
                    part.first_entry + last,
                    skip_bytes,
                    until - low,
                )
                low = until
            part_start += part.length
            if part_start >= end and end < name.length:
                return


async def _bodies(
    readers: Readers, name: ObjectId, start: int, end: int, pace: _Pace
) -> AsyncGenerator[list[bytes], None]:
    """Bytes `start` to `end` (not included), chunk by chunk, some of them fetched ahead."""
    if start >= end:
        return
    ahead = _Ahead(readers, _chunks(readers, name, start, end, pace.chunk_bytes), pace)
    try:
        await ahead.fill()
        while ahead.reads:
            task, chunk = ahead.reads[0]
            bodies = await task
            ahead.take()
            await ahead.fill()
            yield _cut(bodies, chunk)
        if ahead.failure is not None:
            raise ahead.failure
    finally:
        await ahead.close()


class _Ahead:
    """The reads that are under way or wait for the caller."""

    def __init__(self, readers: Readers, chunks: AsyncGenerator[_Chunk, None], pace: _Pace) -> None:
        self.reads: deque[tuple[asyncio.Task[list[bytes]], _Chunk]] = deque()
        self.failure: BlobError | None = None
        self._readers = readers
        self._chunks = chunks
        self._pace = pace
        self._room_bytes = pace.first_ahead_bytes
        self._held_bytes = 0
        self._more = True
        self._loop = asyncio.get_running_loop()

    async def fill(self) -> None:
        """Begin reads as long as there is room; one is always under way."""
        while self._more and (not self.reads or self._held_bytes < self._room_bytes):
            try:
                chunk = await anext(self._chunks)
            except StopAsyncIteration:
                self._more = False
            except BlobError as error:
                # The caller gets what was read before it first.
                self._more, self.failure = False, error
            else:
                reading = self._readers.read_chunk(
                    chunk.part, chunk.first, chunk.last, chunk.wanted_bytes, self._pace.chunk_bytes
                )
                self.reads.append((self._loop.create_task(reading), chunk))
                self._held_bytes += chunk.wanted_bytes

    def take(self) -> None:
        """The caller has the first one."""
        _, chunk = self.reads.popleft()
        self._held_bytes -= chunk.wanted_bytes
        wider_bytes = max(self._pace.chunk_bytes, 2 * self._room_bytes)
        self._room_bytes = min(wider_bytes, self._pace.ahead_bytes)

    async def close(self) -> None:
        """Read nothing on."""
        tasks = [task for task, _ in self.reads]
        for task in tasks:
            task.cancel()
        # The caller hears of the first trouble; the others are nobody's.
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._chunks.aclose()


def _cut(bodies: list[bytes], chunk: _Chunk) -> list[bytes]:
    """Those of a chunk's bytes that are wanted."""
    if chunk.skip_bytes:
        bodies[0] = bodies[0][chunk.skip_bytes :]
    surplus_bytes = sum(map(len, bodies)) - chunk.wanted_bytes
    if surplus_bytes:
        bodies[-1] = bodies[-1][:-surplus_bytes]
    return bodies


def _wrong_checksum(name: ObjectId) -> BlobCorrupt:
    return BlobCorrupt(
        f"object {name}: its checksum is not that of the id; nothing of it may be trusted"
    )
