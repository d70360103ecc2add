"""Walking through a segment's batches as replay needs it: what counts, what is damage. Reads only.

Invariants:
- A batch is `unreadable` if a header in it, or the bytes before it, could not be read although they
  had been synced.
- Of a segment that is not sealed, the last batch counts only if all of it is intact, digests too.
- Zeros up to the end of such a segment are what was put ahead: nothing behind them, no batch.
"""

from collections.abc import Iterator
from typing import NamedTuple

from engine.bookie.segment import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Header,
    Kind,
    Record,
    decode_header,
    find_batch,
    head_of,
    name_of,
    run_of,
    seed_of,
)
from engine.limits import MIB
from engine.ports.disk import Disk

_CHUNK_BYTES = 1 * MIB


class Batch(NamedTuple):
    """One batch: its records by offset, and where it ends.

    `unreadable`: bytes before it, or a header inside it, are damaged. `proven`: something written
    later shows that it was synced.
    """

    number: int
    start: int
    end: int
    records: list[tuple[int, Header]]
    unreadable: bool
    proven: bool


class BatchScan:
    """The batches of one segment file, read in chunks."""

    def __init__(self, disk: Disk, salt: int, segment: int) -> None:
        self.segment = segment
        self.size_bytes = disk.size(name_of(segment))
        self._disk = disk
        self._name = name_of(segment)
        self._seed = seed_of(salt, segment)
        self._chunk = b""
        self._chunk_start = 0

    def batches(
        self, start: int, sealed_bytes: int | None, proven_bytes: int = 0
    ) -> Iterator[Batch]:
        """The batches from a batch's start on.

        `sealed_bytes` is the length that is known to be synced; None: the newest segment, whose
        last batch may be torn and then ends the walk before it, unless it ends within
        `proven_bytes`, up to where even that segment is known to be synced. A last batch with no
        records and `unreadable` tells of damage up to the end.
        """
        end = self.size_bytes if sealed_bytes is None else sealed_bytes
        written = self._written_bytes() if sealed_bytes is None else 0
        at = start
        damaged_before = False
        while at < end:
            header = self.header(at)
            if header is None or header.kind not in (Kind.BATCH, Kind.SYNCED):
                following = self._find_batch(at + 1)
                if following is None:
                    if sealed_bytes is not None or at < proven_bytes:
                        yield Batch(0, at, min(end, proven_bytes or end), [], True, True)
                    return
                damaged_before, at = True, following
                continue
            batch_end = at + header.length
            newest = sealed_bytes is None and batch_end >= max(written, proven_bytes + 1)
            if newest and not self._is_intact(at, batch_end):
                if damaged_before:
                    yield Batch(0, at, at, [], True, True)
                return
            records, unreadable = self._records(at + RECORD_HEADER_BYTES, min(batch_end, end))
            unreadable |= damaged_before or batch_end > end
            yield Batch(header.ledger_id, at, min(batch_end, end), records, unreadable, not newest)
            damaged_before = False
            at = batch_end

    def header(self, offset: int) -> Header | None:
        """The intact record header at an offset, or None."""
        return decode_header(self._bytes(offset, RECORD_HEADER_BYTES), 0, self._seed, offset)

    def head(self, offset: int, header: Header) -> bytes | None:
        """The intact head of a record, or None."""
        data = self._bytes(offset, RECORD_HEADER_BYTES + header.head_bytes)
        return head_of(header, data, 0)

    def record(self, offset: int, header: Header) -> Record:
        """A whole intact record, to be written again."""
        start = RECORD_HEADER_BYTES + header.head_bytes
        data = self._bytes(offset, header.size_bytes)
        return Record(
            header.kind,
            header.ledger_id,
            header.first,
            header.entries,
            header.lac,
            header.length,
            data[RECORD_HEADER_BYTES:start],
            data[start:],
        )

    def count_batches(self, limit: int) -> int:
        """How many batch headers there are, counting no further than `limit`."""
        count, at = 0, 0
        while count < limit and (found := self._find_batch(at)) is not None:
            count, at = count + 1, found + 1
        return count

    def _records(self, start: int, end: int) -> tuple[list[tuple[int, Header]], bool]:
        records: list[tuple[int, Header]] = []
        at = start
        while at < end:
            header = self.header(at)
            if header is None or at + header.size_bytes > end:
                return records, True
            records.append((at, header))
            at += header.size_bytes
        return records, False

    def _is_intact(self, start: int, end: int) -> bool:
        """Whether a batch is all there: headers, heads and the digests of every entry."""
        if end > self.size_bytes:
            return False
        records, unreadable = self._records(start + RECORD_HEADER_BYTES, end)
        return not unreadable and all(
            self.is_record_intact(offset, header) for offset, header in records
        )

    def is_record_intact(self, offset: int, header: Header) -> bool:
        """Whether a record's head and, if it holds entries, every digest is right."""
        if header.kind not in (Kind.RUN, Kind.MOVE):
            return self.head(offset, header) is not None
        run = run_of(header, self._bytes(offset, header.size_bytes), 0)
        return run is not None and run.first_corrupt() is None

    def _written_bytes(self) -> int:
        """Where the zeros at the end begin, or that there are none."""
        at = self.size_bytes
        while at > 0:
            start = max(0, at - _CHUNK_BYTES)
            kept = len(self._disk.read(self._name, start, at - start).rstrip(b"\0"))
            if kept:
                return start + kept
            at = start
        return 0

    def _find_batch(self, start: int) -> int | None:
        """The offset of the first batch header from an offset on."""
        at = max(start, SEGMENT_HEADER_BYTES)
        while at < self.size_bytes:
            data = self._disk.read(self._name, at, _CHUNK_BYTES + RECORD_HEADER_BYTES)
            found = find_batch(data, 0, self._seed, at)
            if found is not None:
                return at + found
            at += _CHUNK_BYTES
        return None

    def _bytes(self, offset: int, length: int) -> bytes:
        at = offset - self._chunk_start
        if at < 0 or at + length > len(self._chunk):
            self._chunk = self._disk.read(self._name, offset, max(length, _CHUNK_BYTES))
            self._chunk_start = offset
            at = 0
        return self._chunk[at : at + length]
