"""Objects as lines: each line once, in whichever share it begins.

A line ends with a line feed, perhaps behind a carriage return, or with the object. A share of a big
object begins with the first line that begins in it, and ends with the last one that does, which may
reach into the next share.

Invariants:
- All shares of an object together have every line once.
- A block is whole lines of one object, about `BLOCK_BYTES` of them.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple

from blobit.errors import BlobUnreadable
from blobit.object_id import ObjectId
from blobit.reading import Readers
from blobit.snapshot.planning import Share
from blobit.streaming import stream_span
from engine.limits import MIB

BLOCK_BYTES: Final = 4 * MIB
LINE_BYTES_MAX: Final = 256 * MIB
_AHEAD_BYTES: Final = 8 * MIB
_FEED: Final = b"\n"


class Block(NamedTuple):
    """Lines of an object, by its number; `offset` is where in the object they begin."""

    number: int
    offset: int
    data: bytes


async def blocks_of(
    readers: Readers, object_id: ObjectId, number: int, share: Share
) -> AsyncGenerator[Block, None]:
    """The lines of an object that begin in a share. Raises `BlobError`. Close it."""
    ranges = share.ranges(object_id.length, BLOCK_BYTES)
    if not ranges:
        return
    begin, end = ranges.start, min(ranges.stop, object_id.length)
    # The byte before tells whether a line begins here.
    at = max(begin - 1, 0)
    skipping, held = begin > 0, b""
    pieces = stream_span(readers, object_id, at, object_id.length - at, _AHEAD_BYTES)
    async with aclosing(pieces) as stream:
        async for piece in stream:
            held += piece
            if skipping:
                feed = held.find(_FEED)
                if feed < 0:
                    # All of it belongs to a line that began before.
                    at, held = at + len(held), b""
                    if at >= end:
                        return
                    continue
                at, held, skipping = at + feed + 1, held[feed + 1 :], False
            if at >= end:
                return
            if at + len(held) >= end:
                last = held.find(_FEED, end - 1 - at)
                if last >= 0:
                    yield Block(number, at, held[: last + 1])
                    return
            elif len(held) >= BLOCK_BYTES and (last := held.rfind(_FEED)) >= 0:
                yield Block(number, at, held[: last + 1])
                at, held = at + last + 1, held[last + 1 :]
            if len(held) > LINE_BYTES_MAX:
                raise BlobUnreadable(
                    f"object {object_id}: the line at byte {at} is longer than {LINE_BYTES_MAX}"
                )
    if held and not skipping:
        yield Block(number, at, held)


def split_lines(data: bytes) -> list[bytes]:
    """The lines of a block, without what ends them.

    >>> split_lines(b"a\\r\\n\\nb")
    [b'a', b'', b'b']
    """
    lines = data.split(_FEED)
    if not lines[-1]:
        lines.pop()
    if b"\r" in data:
        lines = [line[:-1] if line.endswith(b"\r") else line for line in lines]
    return lines


def offsets_of(data: bytes, lines: int) -> list[int]:
    """Where the lines of a block begin in it."""
    found, at = [0], data.find(_FEED)
    while at >= 0 and len(found) < lines:
        found.append(at + 1)
        at = data.find(_FEED, at + 1)
    return found
