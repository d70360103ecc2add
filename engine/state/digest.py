"""A hash over all rows of a state, in order: two states are equal if theirs are.

    row     msgpack: an array of two, key and value as binary
    hash    BLAKE2b of 16 bytes over the rows, one behind the other

Invariants:
- It depends on the rows alone, never on how they were cut into pages.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from engine.limits import KIB
from engine.state.contract import Row, Snapshot, State

_PAGE_BYTES: Final = 256 * KIB
_DIGEST_BYTES: Final = 16

_encode = msgspec.msgpack.Encoder().encode


def packed_rows(rows: Sequence[Row]) -> memoryview:
    """Rows one behind the other, without the array around them."""
    packed = memoryview(_encode(rows))
    # An array's own header is 1, 3 or 5 bytes, as it has under 16, under 65,536 or more elements.
    return packed[1 if len(rows) < 16 else 3 if len(rows) < 65_536 else 5 :]


class RowsDigest:
    """The hash of rows that come page by page."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=_DIGEST_BYTES)

    def update(self, packed: bytes | memoryview) -> None:
        """Take rows in, as `packed_rows` gives them. May run in a thread."""
        self._hash.update(packed)

    def text(self) -> str:
        """The hash of all rows so far, as hexadecimal digits."""
        return self._hash.hexdigest()


def digest(state: State) -> str:
    """The hash of a state's rows and position, for tests and checks; nothing may be uncommitted.

    It reads everything at once: some microseconds a row. Raises `StateFailed`.
    """
    snapshot = state.snapshot()
    try:
        return digest_of(snapshot)
    finally:
        snapshot.close()


def digest_of(snapshot: Snapshot) -> str:
    """The hash of a snapshot's rows and position. Raises `StateFailed`."""
    taken = RowsDigest()
    above: bytes | None = None
    while page := snapshot.page(above, _PAGE_BYTES):
        taken.update(packed_rows(page))
        above = page[-1][0]
    taken.update(_encode(snapshot.position))
    return taken.text()
