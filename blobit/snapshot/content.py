"""The bytes of many objects, read in the order in which they lie.

Objects that lie side by side in a ledger are read as one row; big ones, and those that are lists of
parts, by themselves. Some rows are under way while the caller deals with those before.

Invariants:
- An object's bytes are handed out only if they have the checksum of its id; an error names the
  object, and nothing is left out.
- Held ahead of the caller are at most `ROWS_AHEAD` rows of about `ROW_BYTES`, or one big object
  each.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import google_crc32c

from blobit.errors import BlobCorrupt, BlobError
from blobit.object_id import Kind, ObjectId
from blobit.reading import Readers
from blobit.streaming import read_whole
from engine.limits import ENTRY_BYTES_MAX, MIB

ROW_BYTES: Final = 4 * MIB
ROWS_AHEAD: Final = 3
_SKIPPED_BYTES_MAX: Final = 128 * 1024
_READ_BYTES: Final = ENTRY_BYTES_MAX
_extend = google_crc32c.extend

T = TypeVar("T")
Told = Callable[[int, BlobError], Exception]
"""What the caller hears of an object, by its number, that cannot be read."""


class Wanted(NamedTuple):
    """An object to be read, and the caller's number for it."""

    number: int
    object_id: ObjectId


class Bodies(NamedTuple):
    """The bytes of some objects, each in pieces."""

    wanted: Sequence[Wanted]
    pieces: list[list[bytes]]


def in_order(wanted: Sequence[Wanted]) -> list[Wanted]:
    """As they lie in the ledgers."""
    return sorted(wanted, key=lambda one: (one.object_id.ledger_id, one.object_id.first_entry))


def rows_of(wanted: Sequence[Wanted], row_bytes: int = ROW_BYTES) -> list[list[Wanted]]:
    """What is read together, of objects that are in order."""
    rows: list[list[Wanted]] = []
    size_bytes, before = 0, None
    for one in wanted:
        name = one.object_id
        if before is not None and _follows(before, name) and size_bytes < row_bytes:
            rows[-1].append(one)
        else:
            rows.append([one])
            size_bytes = 0
        size_bytes += name.length
        before = name
    return rows


async def read_bodies(
    readers: Readers, wanted: Sequence[Wanted], told: Told, row_bytes: int = ROW_BYTES
) -> AsyncGenerator[Bodies, None]:
    """The bytes of objects, row by row, in the order in which they lie.

    Raises, while iterating, what `told` makes of `BlobNotFound`, `BlobUnreadable` and
    `BlobCorrupt`. Close it.
    """
    rows = rows_of(in_order(wanted), row_bytes)
    reads = ahead((partial(_read, readers, row, told) for row in rows), ROWS_AHEAD)
    async with aclosing(reads) as coming:
        async for bodies in coming:
            yield bodies


async def ahead(
    calls: Iterable[Callable[[], Coroutine[Any, Any, T]]], count: int
) -> AsyncGenerator[T, None]:
    """What calls return, in their order, while `count` of them are under way. Close it."""
    loop, rest = asyncio.get_running_loop(), iter(calls)
    coming = deque(loop.create_task(call()) for call in islice(rest, count))
    try:
        while coming:
            found = await coming[0]
            coming.popleft()
            coming.extend(loop.create_task(call()) for call in islice(rest, 1))
            yield found
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)


async def _read(readers: Readers, row: Sequence[Wanted], told: Told) -> Bodies:
    ids = [one.object_id for one in row]
    if len(ids) == 1:
        return Bodies(row, [await _alone(readers, row[0], told)])
    try:
        pieces = await readers.read_row(ids, _READ_BYTES)
        for name, bodies in zip(ids, pieces, strict=True):
            _check(name, bodies)
    except BlobError:
        # One of them is to blame, and only that one is to be named.
        pieces = [await _alone(readers, one, told) for one in row]
    return Bodies(row, pieces)


async def _alone(readers: Readers, one: Wanted, told: Told) -> list[bytes]:
    try:
        return [await read_whole(readers, one.object_id)] if one.object_id.length else []
    except BlobError as error:
        raise told(one.number, error) from error


def _follows(before: ObjectId, name: ObjectId) -> bool:
    """Whether both are read as one row: little lies between them, and neither is a list."""
    if Kind.LIST in (before.kind, name.kind) or not before.length or not name.length:
        return False
    if before.ledger_id != name.ledger_id or name.entry_count > 1 + ROW_BYTES // name.entry_bytes:
        return False
    skipped = name.first_entry - before.last_entry - 1
    # Entries of others are about as big as this one's.
    return skipped >= 0 and skipped * min(name.entry_bytes, name.length) <= _SKIPPED_BYTES_MAX


def _check(name: ObjectId, bodies: Sequence[bytes]) -> None:
    checksum = 0
    for body in bodies:
        checksum = _extend(checksum, body)
    if checksum != name.checksum:
        raise BlobCorrupt(f"object {name}: its checksum is not that of the id")
