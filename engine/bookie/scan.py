"""Reading a whole journal, record by record, trusting nothing. For the tools and for compaction.

Invariants:
- Every byte of a segment is either in a record whose CRCs were checked, or in a `Flaw`: header,
  head and (`first_flaw`) every entry's digest.
- A bad record header hides the rest of its batch; a bad batch header hides all up to the next
  intact batch. Neither ends the scan.
- Nothing but zeros from the end of a batch to the end of the newest segment is what was put ahead
  of it, and not looked at; where the index promises more, it is missing.
- Only what follows the last intact batch header of the last segment can be a torn tail; all
  before it had been synced when that header was written.
- Memory is bounded by one chunk and one record, whatever the segments' sizes.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from engine.bookie.index import Position
from engine.bookie.segment import (
    FOLDER,
    ORIGIN_BYTES,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Header,
    Kind,
    SegmentHeader,
    decode_header,
    decode_segment_header,
    find_batch,
    head_of,
    name_of,
    number_of,
    seed_of,
)
from engine.limits import MIB
from engine.ports.disk import Disk
from engine.run import Run

_CHUNK_BYTES: Final = 4 * MIB
_MARKS: Final = (Kind.BATCH, Kind.SYNCED)
_RUNS: Final = (Kind.RUN, Kind.MOVE)


class Found(NamedTuple):
    """A record whose header and head are intact."""

    segment: int
    offset: int
    header: Header
    head: bytes
    body: bytes

    @property
    def position(self) -> Position:
        """Where the record begins."""
        return Position(self.segment, self.offset)

    def run(self) -> Run:
        """The run in a RUN or MOVE record; its digests are not checked."""
        assert self.header.kind in _RUNS
        table = self.head[ORIGIN_BYTES:] if self.header.kind == Kind.MOVE else self.head
        _, entries, _, _, _, ledger_id, first, lac, length = self.header
        return Run(ledger_id, first, entries, lac, length, table, self.body)


class Flaw(NamedTuple):
    """Bytes of a segment that are not what was written. Ids are -1 where they cannot be told."""

    segment: int
    offset: int
    size_bytes: int
    reason: str
    ledger_id: int = -1
    first: int = -1
    last: int = -1


def segments_of(disk: Disk) -> list[int]:
    """The numbers of a folder's segments, ascending."""
    numbers = (number_of(name) for name in disk.names(FOLDER))
    return sorted(number for number in numbers if number is not None)


def salt_of(disk: Disk) -> int | None:
    """The folder's salt, from the first segment whose header is intact; None if none is."""
    for segment in segments_of(disk):
        header = decode_segment_header(disk.read(name_of(segment), 0, SEGMENT_HEADER_BYTES))
        if header is not None and header.segment == segment:
            return header.salt
    return None


def check_format(disk: Disk) -> None:
    """Raise `FormatTooNew` for a journal that a newer version goes on with. Nothing is changed.

    The newest intact header says it: whoever raises the format begins a segment with it.
    """
    for segment in reversed(segments_of(disk)):
        # What cannot be read, or is damaged, is for the replay to tell.
        with suppress(OSError):
            if decode_segment_header(disk.read(name_of(segment), 0, SEGMENT_HEADER_BYTES)):
                return


def first_flaw(found: Found) -> Flaw | None:
    """The first entry of a run whose bytes are not those that were written, as a flaw."""
    if found.header.kind not in _RUNS:
        return None
    run = found.run()
    ids = (run.ledger_id, run.first, run.last)
    if len(run.table) != 8 * run.count or sum(run.lengths()) != len(run.body):
        return _flaw(found.segment, found.offset, found.header.size_bytes, "lengths differ", ids)
    corrupt = run.first_corrupt()
    if corrupt is None:
        return None
    ids = (run.ledger_id, corrupt, run.last)
    reason = "an entry's bytes do not match its digest"
    return _flaw(found.segment, found.offset, found.header.size_bytes, reason, ids)


class SegmentScan:
    """One pass over one segment. After it, `marked` is where its last intact batch begins.

    Of the `newest` segment the end is known after it, too, which zeros may follow.
    """

    def __init__(self, disk: Disk, segment: int, salt: int | None, *, newest: bool = False) -> None:
        self.segment = segment
        self.size_bytes = disk.size(name_of(segment))
        self.header: SegmentHeader | None = None
        self.marked = 0
        self._disk = disk
        self._salt = salt
        self._newest = newest
        self._seed = 0
        self._data = b""
        self._data_start = 0

    def records(self) -> Iterator[Found | Flaw]:
        """Every record and every flaw, in the order of their offsets. Raises `FormatTooNew`."""
        yield from self._open()
        if self._salt is None:
            return
        self._seed = seed_of(self._salt, self.segment)
        offset = batch_end = SEGMENT_HEADER_BYTES
        while offset < self.size_bytes:
            header = self._header_at(offset)
            starts = offset >= batch_end
            if header is None and starts and self._newest and self._is_blank(offset):
                self.size_bytes = batch_end = offset
                break
            if header is None or (header.kind in _MARKS) != starts:
                end = self._skip(offset, batch_end)
                yield self._flaw(offset, end - offset, "a record's header is unreadable")
                offset = batch_end = end
                continue
            end = offset + header.size_bytes
            if starts:
                self.marked = offset
                batch_end = offset + header.length
            if end > min(batch_end, self.size_bytes):
                end = min(batch_end, self.size_bytes)
                yield self._flaw(offset, end - offset, "a record is cut short", header)
            else:
                yield self._record(header, offset)
            offset = end
        if offset < batch_end:
            yield self._flaw(offset, batch_end - offset, "a batch is cut short")

    def _open(self) -> Iterator[Flaw]:
        first = self._load(0, SEGMENT_HEADER_BYTES)[:SEGMENT_HEADER_BYTES]
        self.header = decode_segment_header(first)
        if self.header is not None and self.header.segment == self.segment:
            if self._salt is None:
                self._salt = self.header.salt
            if self._salt == self.header.salt:
                return
        self.header = None
        size_bytes = min(SEGMENT_HEADER_BYTES, self.size_bytes)
        if self._salt is None:
            size_bytes = self.size_bytes
        yield self._flaw(0, size_bytes, "the segment's header is unreadable")

    def _record(self, header: Header, offset: int) -> Found | Flaw:
        data = self._load(offset, header.size_bytes)
        at = offset - self._data_start
        head = head_of(header, data, at)
        if head is None:
            return self._flaw(offset, header.size_bytes, "a record's head is damaged", header)
        start = at + RECORD_HEADER_BYTES + header.head_bytes
        body = data[start : start + header.body_bytes]
        return Found(self.segment, offset, header, head, body)

    def _header_at(self, offset: int) -> Header | None:
        data = self._load(offset, RECORD_HEADER_BYTES)
        return decode_header(data, offset - self._data_start, self._seed, offset)

    def _skip(self, offset: int, batch_end: int) -> int:
        """Where to go on after a bad header: the batch's end, or the next intact batch."""
        if offset < batch_end:
            return min(batch_end, self.size_bytes)
        at = offset + 1
        while at < self.size_bytes:
            # The overlap lets a header that crosses two chunks be found whole in the second.
            data = self._disk.read(name_of(self.segment), at, _CHUNK_BYTES + RECORD_HEADER_BYTES)
            found = find_batch(data, 0, self._seed, at)
            if found is not None:
                return at + found
            at += _CHUNK_BYTES
        return self.size_bytes

    def _is_blank(self, offset: int) -> bool:
        """Whether there are only zeros from here on."""
        for at in range(offset, self.size_bytes, _CHUNK_BYTES):
            if self._disk.read(name_of(self.segment), at, _CHUNK_BYTES).strip(b"\0"):
                return False
        return True

    def _load(self, offset: int, length: int) -> bytes:
        start, data = self._data_start, self._data
        if not start <= offset <= offset + length <= start + len(data):
            wanted = max(length, _CHUNK_BYTES)
            self._data = self._disk.read(name_of(self.segment), offset, wanted)
            self._data_start = offset
        return self._data

    def _flaw(
        self, offset: int, size_bytes: int, reason: str, header: Header | None = None
    ) -> Flaw:
        ids = (-1, -1, -1)
        if header is not None and header.kind in _RUNS:
            ids = (header.ledger_id, header.first, header.last)
        return _flaw(self.segment, offset, size_bytes, reason, ids)


class JournalScan:
    """One pass over all segments. After it, `dropped`, `torn` and `size_bytes` are known.

    `covered` is how far the index says the journal was synced: nothing before it is a torn tail.
    """

    def __init__(self, disk: Disk, covered: Position) -> None:
        self.segments = segments_of(disk)
        self.dropped: set[int] = set()
        self.torn: list[Flaw] = []
        self.size_bytes: dict[int, int] = {}
        self._disk = disk
        self._covered = covered
        self._salt = salt_of(disk)
        self._marked = Position(0, 0)
        self._headers: dict[int, SegmentHeader] = {}

    def records(self) -> Iterator[Found | Flaw]:
        """Every record and every flaw; missing and short segments come last."""
        for segment in self.segments:
            newest = segment == self.segments[-1]
            scan = SegmentScan(self._disk, segment, self._salt, newest=newest)
            late: list[Flaw] = []
            for found in scan.records():
                if isinstance(found, Flaw):
                    if not newest:
                        yield found
                    else:
                        late.append(found)
                    continue
                if found.header.kind == Kind.DROPPED:
                    self.dropped.add(found.header.first)
                yield found
            self.size_bytes[segment] = scan.size_bytes
            self._marked = Position(segment, scan.marked)
            if scan.header is not None:
                self._headers[segment] = scan.header
            for flaw in late:
                if self.is_torn(flaw):
                    self.torn.append(flaw)
                else:
                    yield flaw
        yield from self._missing()

    def is_torn(self, flaw: Flaw) -> bool:
        """After the pass: whether a flaw may be of a batch whose sync never ended."""
        at = Position(flaw.segment, flaw.offset)
        return at >= self._marked and at >= self._covered

    def _missing(self) -> Iterator[Flaw]:
        there = set(self.segments)
        for segment in self.segments:
            header = self._headers.get(segment)
            if header is None or not header.predecessor:
                continue
            size_bytes = self.size_bytes.get(header.predecessor)
            if header.predecessor_bytes <= SEGMENT_HEADER_BYTES:
                # Sealed before its first record: its header may never have reached the disk.
                continue
            if size_bytes is not None and size_bytes < header.predecessor_bytes:
                lost = header.predecessor_bytes - size_bytes
                yield Flaw(header.predecessor, size_bytes, lost, "the segment is cut short")
        size_bytes = self.size_bytes.get(self._covered.segment)
        if size_bytes is not None and size_bytes < self._covered.offset:
            lost = self._covered.offset - size_bytes
            yield Flaw(self._covered.segment, size_bytes, lost, "the segment is cut short")
        # Segments before the first one left were dropped long ago, their records with them.
        for segment in range(self.segments[0], self._last() + 1) if self.segments else ():
            if segment not in there and segment not in self.dropped:
                yield Flaw(segment, 0, 0, "the segment is missing")

    def _last(self) -> int:
        return max(self.segments[-1], self._covered.segment)


def _flaw(
    segment: int, offset: int, size_bytes: int, reason: str, ids: tuple[int, int, int]
) -> Flaw:
    return Flaw(segment, offset, size_bytes, reason, *ids)
