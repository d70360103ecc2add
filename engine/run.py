"""A run: consecutive entries of one ledger, the unit on the wire, in the journal and in the index.

Invariants:
- A run holds 1 to `RUN_ENTRIES_MAX` entries with consecutive ids, none over `ENTRY_BYTES_MAX`.
- Every entry has a digest, CRC32C(ledger id, entry id, body), made once by the writer and
  never recomputed on the way; cutting a run moves digests, it does not make new ones.
- `length` is the ledger's total of body bytes up to and including the run's last entry.
- `lac` is below `first`: a run never confirms its own entries.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate, repeat
from typing import Final

import google_crc32c
import msgspec

from engine.errors import CannotRead, InvalidRequest
from engine.limits import ENTRY_ID_MAX, RUN_ENTRIES_MAX

NO_ENTRY: Final = -1
"""The id before the first one: the LAC and the last entry of an empty ledger."""

_ID = struct.Struct(">QQ")
_ROW = struct.Struct(">II")
_crc = google_crc32c.value
_extend = google_crc32c.extend
_pack_id = _ID.pack
_pack_row = _ROW.pack


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One entry in a reader's hands; its digest has been checked.

    >>> Entry(7, 0, b"moo").body
    b'moo'
    """

    ledger_id: int
    entry_id: int
    body: bytes


class Run(msgspec.Struct, frozen=True, gc=False):
    """Consecutive entries of one ledger, packed.

    `table` holds, for each entry, its length and its digest (two big-endian u32);
    `body` holds the entries' bytes one behind the other.

    >>> run = Run.pack(7, 0, [b"moo", b"baa"], lac=-1, length_before=0)
    >>> run.last, run.length, [entry.body for entry in run.entries()]
    (1, 6, [b'moo', b'baa'])
    >>> [entry.entry_id for entry in run.cut(1, 1).entries()]
    [1]
    """

    ledger_id: int
    first: int
    count: int
    lac: int
    length: int
    table: bytes
    body: bytes

    @property
    def last(self) -> int:
        """The id of the run's last entry."""
        return self.first + self.count - 1

    @property
    def size_bytes(self) -> int:
        """The bytes that the run's table and bodies take."""
        return len(self.table) + len(self.body)

    @staticmethod
    def pack(
        ledger_id: int, first: int, bodies: Sequence[bytes], *, lac: int, length_before: int
    ) -> "Run":
        """Pack entries, making their digests. The caller has checked sizes and quorums."""
        count = len(bodies)
        assert 1 <= count <= RUN_ENTRIES_MAX
        assert NO_ENTRY <= lac < first <= ENTRY_ID_MAX - count
        if count == 1:
            body = bodies[0]
            table = _pack_row(len(body), _extend(_crc(_pack_id(ledger_id, first)), body))
            return Run(ledger_id, first, 1, lac, length_before + len(body), table, body)
        rows = [0] * (2 * count)
        rows[::2] = map(len, bodies)
        rows[1::2] = _digests(ledger_id, first, bodies)
        table = struct.pack(f">{2 * count}I", *rows)
        joined = b"".join(bodies)
        return Run(ledger_id, first, count, lac, length_before + len(joined), table, joined)

    def lengths(self) -> tuple[int, ...]:
        """The length of each entry, in order."""
        return struct.unpack(f">{2 * self.count}I", self.table)[::2]

    def digests(self) -> tuple[int, ...]:
        """The digest of each entry, in order."""
        return struct.unpack(f">{2 * self.count}I", self.table)[1::2]

    def entries(self) -> list[Entry]:
        """Unpack the entries and check each digest.

        Raises `CannotRead` naming the first entry whose bytes are not those that were written.
        """
        rows = struct.unpack(f">{2 * self.count}I", self.table)
        ledger_id, first, body = self.ledger_id, self.first, self.body
        if self.count == 1 and rows == (len(body), _extend(_crc(_pack_id(ledger_id, first)), body)):
            return [Entry(ledger_id, first, body)]
        ends = list(accumulate(rows[::2]))
        # Of many entries, `map` takes half the time of a loop.
        bodies = list(map(body.__getitem__, map(slice, [0, *ends[:-1]], ends)))
        # A slice past the end is only shorter, and the digests cannot tell what is behind it.
        if _digests(ledger_id, first, bodies) != rows[1::2] or ends[-1] != len(body):
            raise CannotRead(
                f"ledger {ledger_id}: entry {self.first_corrupt()} is corrupt in this copy"
            )
        return list(map(Entry, repeat(ledger_id), range(first, first + self.count), bodies))

    def first_corrupt(self) -> int | None:
        """The id of the first entry whose digest does not match, or None."""
        rows = struct.unpack(f">{2 * self.count}I", self.table)
        start = 0
        for index in range(self.count):
            end = start + rows[2 * index]
            seed = _crc(_pack_id(self.ledger_id, self.first + index))
            if end > len(self.body) or _extend(seed, self.body[start:end]) != rows[2 * index + 1]:
                return self.first + index
            start = end
        return None if start == len(self.body) else self.last

    def cut(self, first: int, last: int) -> "Run":
        """The part of the run from `first` to `last`, both within it."""
        assert self.first <= first <= last <= self.last
        if first == self.first and last == self.last:
            return self
        lengths = self.lengths()
        low, high = first - self.first, last - self.first + 1
        start = sum(lengths[:low])
        end = start + sum(lengths[low:high])
        length = self.length - (len(self.body) - end)
        lac = min(self.lac, first - 1)
        table = self.table[8 * low : 8 * high]
        return Run(self.ledger_id, first, high - low, lac, length, table, self.body[start:end])


def as_bytes(body: object) -> bytes:
    """An entry's bytes. Raises `InvalidRequest` for what is none."""
    if type(body) is bytes:
        return body
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise InvalidRequest(f"an entry is bytes, not {type(body).__name__}")


def _digests(ledger_id: int, first: int, bodies: Sequence[bytes]) -> tuple[int, ...]:
    """The digest of each of consecutive entries."""
    ids = map(_pack_id, repeat(ledger_id), range(first, first + len(bodies)))
    return tuple(map(_extend, map(_crc, ids), bodies))
