"""After a start: the journal past the index's position, read once more.

Invariants:
- Only the last batch of the newest segment may be cut, and only if nothing shows that it was
  synced: a later batch, a mark, or a later segment shows it.
- Bytes that were synced and are bad are damage: their ids become damaged places; where even a
  header is bad, nobody knows what it named, and `Replayed.unreadable` says so, durably.
- A missing or short segment is such damage too, unless a DROPPED record names it.
- When `replay` returns, what it found is durable in the index, and the journal's tail is synced.
- A segment sealed before its first record holds nothing; its header may be on no disk.
- A newest segment without a whole batch was never synced, and goes: its predecessor is the newest
  again, with what stands behind that seal, for it was to be written again in the segment that went.
- The index's position enters a segment only with a batch that is proven to be on the disk.
- A last batch that nothing proves synced is not built upon: after a failed sync the system shows
  bytes that are not on the disk and never will be. Its records are to be written again, in a new
  segment that seals this one before them.
"""

from typing import NamedTuple

from engine.bookie.batches import BatchScan
from engine.bookie.index import Index, Place, Position
from engine.bookie.indexing import (
    DAMAGE_KEY,
    DAMAGED,
    DROPPED,
    FACTS,
    FENCE,
    LAC,
    TOMBSTONE,
    Buried,
    Fact,
    Item,
    Moved,
    Overlay,
    apply_items,
    damaged,
    fact_key,
    pack_number,
    unpack_number,
)
from engine.bookie.scan import segments_of
from engine.bookie.segment import (
    FOLDER,
    SEGMENT_HEADER_BYTES,
    Header,
    Kind,
    Origin,
    Record,
    SegmentHeader,
    decode_segment_header,
    facts_of,
    name_of,
    origin_of,
)
from engine.bookie.segment_writer import Tail
from engine.errors import FolderMismatch
from engine.ports.disk import Disk
from engine.run import NO_ENTRY

_ITEMS_PER_BATCH = 1_024


class Replayed(NamedTuple):
    """Where the journal goes on, and whether a header could not be read this time.

    `again`: records that must be durable at a new place before the bookie serves.
    """

    tail: Tail
    unreadable: bool
    again: list[Record]


def replay(disk: Disk, index: Index, bookie_id: str, salt: int) -> Replayed:
    """Bring the index up to the journal's end. Runs in a thread.

    Raises `OSError`, `FolderMismatch` for another bookie's segment, `FormatTooNew`.
    """
    return _Replay(disk, index, bookie_id, salt).run()


class _Replay:
    def __init__(self, disk: Disk, index: Index, bookie_id: str, salt: int) -> None:
        self._disk = disk
        self._index = index
        self._bookie_id = bookie_id
        self._salt = salt
        self._segments = segments_of(disk)
        self._present = frozenset(self._segments)
        self._start = index.position()
        self._position = self._start
        self._items: list[Item] = []
        self._lacs: dict[int, int] = {}
        self._highest: dict[int, int] = {}
        self._buried: set[int] = set()
        self._facts: dict[int, bytes] = {}
        self._unreadable = False
        self._again: list[Record] = []
        self._proven_bytes = 0

    def run(self) -> Replayed:
        headers = {number: self._header(number) for number in self._wanted()}
        self._drop_torn(headers)
        numbers = sorted(headers)
        roll, end = False, 0
        for at, number in enumerate(numbers):
            newest = at + 1 == len(numbers)
            sealed = None if newest else self._sealed_bytes(headers[numbers[at + 1]], number)
            end = self._scan(number, sealed)
            roll = self._position.segment == number and self._position.offset > end
            # The segment's own header may have come with the very batch that was cut off.
            roll |= newest and end <= SEGMENT_HEADER_BYTES
            if end > SEGMENT_HEADER_BYTES or number == self._position.segment:
                self._position = Position(number, end)
        self._check_missing(numbers, headers)
        if self._unreadable:
            # Everything that was ever stored is in doubt, until the service knows a bound.
            self._items.append(Fact(DAMAGE_KEY, b""))
        self._emit()
        self._index.flush()
        roll |= bool(self._again)
        if not numbers:
            return Replayed(Tail(*self._start, True), self._unreadable, self._again)
        tail = Tail(numbers[-1], end, roll)
        if not roll:
            self._sync_tail(numbers[-1])
        return Replayed(tail, self._unreadable, self._again)

    def _wanted(self) -> list[int]:
        return [number for number in self._segments if number >= self._start.segment]

    def _header(self, number: int) -> SegmentHeader | None:
        data = self._disk.read(name_of(number), 0, SEGMENT_HEADER_BYTES)
        header = decode_segment_header(data)
        if header is None or header.segment != number:
            return None
        if header.bookie_id != self._bookie_id or header.salt != self._salt:
            raise FolderMismatch(f"segment {number} belongs to bookie {header.bookie_id}")
        return header

    def _drop_torn(self, headers: dict[int, SegmentHeader | None]) -> None:
        """Remove newest segments, header and all, that were never synced."""
        while headers:
            newest = max(headers)
            header = headers[newest]
            if newest <= self._start.segment or not self._was_never_synced(newest, header):
                self._unreadable |= header is None
                return
            self._disk.remove(name_of(newest))
            self._disk.sync_folder(FOLDER)
            del headers[newest]
            self._proven_bytes = 0
            if header is not None and header.predecessor in headers:
                # What was sealed had been synced; what stands behind it may have been, too.
                self._proven_bytes = header.predecessor_bytes

    def _was_never_synced(self, number: int, header: SegmentHeader | None) -> bool:
        """A segment's header and its first batch are synced together."""
        scan = BatchScan(self._disk, self._salt, number)
        if header is None:
            return scan.count_batches(2) < 2
        return next(scan.batches(SEGMENT_HEADER_BYTES, None), None) is None

    def _sealed_bytes(self, following: SegmentHeader | None, number: int) -> int:
        size_bytes = self._disk.size(name_of(number))
        if following is None:
            self._unreadable = True
            return size_bytes
        if following.predecessor != number:
            return size_bytes
        if following.predecessor_bytes > max(size_bytes, SEGMENT_HEADER_BYTES):
            self._unreadable = True
        return min(size_bytes, following.predecessor_bytes)

    def _check_missing(self, numbers: list[int], headers: dict[int, SegmentHeader | None]) -> None:
        """Every number between the index's position and the newest must be there or dropped."""
        self._emit()
        first = self._start.segment or (numbers[0] if numbers else 0)
        newest = numbers[-1] if numbers else self._start.segment
        for number in range(first, newest + 1):
            following = headers.get(number + 1)
            if following is not None and following.predecessor_bytes <= SEGMENT_HEADER_BYTES:
                continue
            if number and number not in self._present:
                dropped = self._index.fact(fact_key(DROPPED, number))
                self._unreadable |= dropped is None

    def _scan(self, number: int, sealed: int | None) -> int:
        """Replay one segment; returns where it ends, after cutting a torn tail."""
        start = SEGMENT_HEADER_BYTES
        if number == self._start.segment:
            start = max(start, self._start.offset)
        if sealed is not None and sealed <= SEGMENT_HEADER_BYTES:
            return SEGMENT_HEADER_BYTES
        scan = BatchScan(self._disk, self._salt, number)
        proven_bytes = self._proven_bytes if sealed is None else 0
        if scan.size_bytes < max(start, proven_bytes):
            self._unreadable = True
            return scan.size_bytes
        end = start
        for batch in scan.batches(start, sealed, proven_bytes):
            self._unreadable |= batch.unreadable
            if not batch.proven:
                self._again = [scan.record(offset, header) for offset, header in batch.records]
                if self._again:
                    if batch.end < scan.size_bytes:
                        # It is sealed before the batch: zeros ahead have no place there.
                        self._disk.truncate(name_of(number), batch.end)
                    return end
                # A mark proves what stands before it, but may itself be on no disk: cut it off.
                break
            for offset, header in batch.records:
                self._record(scan, number, offset, header)
            end = batch.end
            if len(self._items) >= _ITEMS_PER_BATCH:
                self._position = Position(number, end)
                self._emit()
        if sealed is None and end < scan.size_bytes:
            self._disk.truncate(name_of(number), end)
        return end

    def _record(self, scan: BatchScan, number: int, offset: int, header: Header) -> None:
        kind, ledger_id = header.kind, header.ledger_id
        head = scan.head(offset, header)
        if kind in (Kind.RUN, Kind.MOVE):
            segment = number if head is not None else DAMAGED
            place = Place(
                ledger_id,
                header.first,
                header.last,
                segment,
                offset,
                header.size_bytes,
                header.first,
            )
            self._place(place if head is not None else damaged(place), kind, head)
            if header.lac > self._lacs.get(ledger_id, -1):
                self._lacs[ledger_id] = header.lac
        elif kind == Kind.TOMBSTONE:
            self._buried.add(ledger_id)
            self._lacs.pop(ledger_id, None)
            self._items.append(Buried(ledger_id))
        elif kind == Kind.DROPPED:
            self._items.append(Fact(fact_key(DROPPED, header.first), b""))
        elif head is None:
            # Which key, which quorums: not known any more, and no other record says it.
            self._unreadable = True
        elif kind == Kind.FENCE and not self._is_buried(ledger_id):
            self._items.append(Fact(fact_key(FENCE, ledger_id), head))
        elif not self._is_buried(ledger_id) and self._is_news(header, head):
            self._facts[ledger_id] = head
            self._items.append(Fact(fact_key(FACTS, ledger_id), head))

    def _is_news(self, header: Header, head: bytes) -> bool:
        if header.kind != Kind.FACTS or header.first == NO_ENTRY:
            return header.kind == Kind.FACTS
        # Compaction copies old facts behind newer ones, and says so by naming their origin.
        ledger_id = header.ledger_id
        held = self._facts.get(ledger_id) or self._index.fact(fact_key(FACTS, ledger_id))
        if held is None:
            return True
        known, copied = facts_of(held), facts_of(head)
        return (copied.closed_last, copied.fragment_first) > (
            known.closed_last,
            known.fragment_first,
        )

    def _place(self, place: Place, kind: int, head: bytes | None) -> None:
        ledger_id = place.ledger_id
        if self._is_buried(ledger_id):
            return
        if kind == Kind.MOVE:
            origin = Origin(0, 0) if head is None else origin_of(head)
            # A segment is dropped only after the index has the moves; one rebuilt from nothing
            # finds the copy alone.
            self._items.append(Moved(place, origin, origin.segment not in self._present))
        elif place.first > self._highest_of(ledger_id):
            self._items.append(place)
        else:
            self._items.append(Overlay(place))
        self._highest[ledger_id] = max(self._highest_of(ledger_id), place.last)

    def _highest_of(self, ledger_id: int) -> int:
        highest = self._highest.get(ledger_id)
        if highest is None:
            last = self._index.last(ledger_id)
            highest = -1 if last is None else last.last
            self._highest[ledger_id] = highest
        return highest

    def _is_buried(self, ledger_id: int) -> bool:
        if ledger_id in self._buried:
            return True
        return self._index.fact(fact_key(TOMBSTONE, ledger_id)) is not None

    def _emit(self) -> None:
        items = self._items
        for ledger_id, lac in self._lacs.items():
            key = fact_key(LAC, ledger_id)
            held = self._index.fact(key)
            if held is None or unpack_number(held) < lac:
                items.append(Fact(key, pack_number(lac)))
        apply_items(self._index, items, self._position)
        self._items = []
        self._lacs = {}
        # Applied, so the index knows them.
        self._facts = {}

    def _sync_tail(self, number: int) -> None:
        file = self._disk.open_append(name_of(number), create=False)
        try:
            file.sync()
        finally:
            file.close()
        self._disk.sync_folder(FOLDER)
