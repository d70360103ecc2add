"""Compaction: what is alive in a mostly dead segment moves on, and the segment goes.

Invariants:
- Nothing is chosen but sealed segments of which the durable index knows every record.
- A live range is copied as a MOVE record through the journal's own queue. The index takes the new
  place only where it still points at the old one, live and in replay: whatever happened to the
  range meanwhile wins.
- Facts, fences, tombstones and notes of dropped segments are copied too; facts keep the position
  where they were first written, so that copies cannot pass for news.
- Bytes that do not match their digests are never copied. A segment with a header that cannot be
  read, or one that the index points at after all copying, stays where it is.
- A segment is removed only after the index is durable past all its moves and past the note that it
  was dropped: a crash at any moment leaves every range readable in one place or the other.
- Copying is throttled by bytes, and needs no writable bookie, only some free space.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from engine.bookie.index import PLACES_MAX, Index, Place, Position
from engine.bookie.indexing import TOMBSTONE, fact_key
from engine.bookie.scan import Flaw, Found, SegmentScan, first_flaw, segments_of
from engine.bookie.segment import FOLDER, Kind, Origin, Record, dropped_record, move_record, name_of
from engine.limits import ENTRY_ID_MAX, MIB
from engine.ports.clock import Clock
from engine.ports.disk import Disk
from engine.ports.workers import Workers
from engine.run import NO_ENTRY

T = TypeVar("T")

_COPY_BYTES: Final = 1 * MIB
_SURVEY_RECORDS: Final = 4_096
_LEDGERS_PER_PAGE: Final = 1_024
_RUNS: Final = (Kind.RUN, Kind.MOVE)


class Yard(Protocol):
    """What a bookie lends its compactor. All methods are called on the event loop."""

    @property
    def disk(self) -> Disk:
        """The bookie's folder."""
        ...

    @property
    def index(self) -> Index:
        """Read in threads, never written."""
        ...

    @property
    def salt(self) -> int:
        """The folder's salt."""
        ...

    @property
    def active_segment(self) -> int:
        """The segment that is written now."""
        ...

    async def write(self, records: Sequence[Record]) -> list[Position]:
        """Make records durable behind all that is queued, and hand them to the index in order."""
        ...

    async def checkpoint(self) -> None:
        """Wait until all that was written so far is durable in the index."""
        ...


@dataclass(frozen=True)
class CompactionSettings:
    """When a segment is worth its copying. Ratios are live bytes to all bytes of a segment."""

    minor_ratio: float = 0.2
    major_ratio: float = 0.8
    bytes_per_s: int = 64 * MIB
    free_bytes_min: int = 1 * MIB

    def __post_init__(self) -> None:
        assert 0 <= self.minor_ratio <= self.major_ratio <= 1
        assert self.bytes_per_s > 0 and self.free_bytes_min >= 0


@dataclass(frozen=True)
class CompactionRound:
    """What one round did. `kept` are segments that were chosen and could not be removed."""

    removed: tuple[int, ...]
    kept: tuple[int, ...]
    copied_bytes: int


@dataclass
class Survey:
    """What a first pass over a segment tells before anything is copied."""

    small_bytes: int = 0
    unreadable: bool = False


class Compactor:
    """Runs rounds; one at a time."""

    def __init__(
        self,
        yard: Yard,
        workers: Workers,
        clock: Clock,
        settings: CompactionSettings | None = None,
    ) -> None:
        self._yard = yard
        self._workers = workers
        self._clock = clock
        self._settings = settings or CompactionSettings()
        self._small_bytes: dict[int, int] = {}
        self._unreadable: set[int] = set()
        self._copied_bytes = 0
        self.last_round: CompactionRound | None = None

    async def compact(self, *, major: bool = False) -> CompactionRound:
        """Run one round over all segments whose live share is low enough.

        Raises `BookieUnavailable`, `Overloaded` (no space for copies), `OSError`; every range is
        readable then, and the next round begins anew.
        """
        ratio = self._settings.major_ratio if major else self._settings.minor_ratio
        sealed_below = self._yard.active_segment
        await self._yard.checkpoint()
        live = await self._in_thread(lambda: live_bytes(self._yard.index))
        sizes = await self._in_thread(lambda: _sizes(self._yard.disk, sealed_below))
        chosen = sorted((live.get(segment, 0), segment) for segment in sizes)
        removed: list[int] = []
        kept: list[int] = []
        before_bytes = self._copied_bytes
        for live_size, segment in chosen:
            small = self._small_bytes.get(segment, 0)
            if live_size + small > ratio * sizes[segment] or segment in self._unreadable:
                continue
            if not await self._has_space(live_size + small):
                kept.append(segment)
                continue
            if not await self._is_worth(segment, live_size, ratio * sizes[segment]):
                continue
            (removed if await self._empty(segment) else kept).append(segment)
        result = CompactionRound(tuple(removed), tuple(kept), self._copied_bytes - before_bytes)
        self.last_round = result
        return result

    async def _in_thread(self, work: Callable[[], T]) -> T:
        task = asyncio.ensure_future(self._workers.run(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Who cancels a round may close index and disk next: not under a thread that reads.
            await asyncio.wait([task])
            raise

    async def _has_space(self, size_bytes: int) -> bool:
        space = await self._in_thread(self._yard.disk.space)
        return space.free_bytes >= size_bytes + self._settings.free_bytes_min

    async def _is_worth(self, segment: int, live_size: int, most_bytes: float) -> bool:
        """Look through a segment first: facts count as live, unreadable headers forbid it."""
        survey = await self._survey(segment)
        self._small_bytes[segment] = survey.small_bytes
        if survey.unreadable:
            self._unreadable.add(segment)
        return not survey.unreadable and live_size + survey.small_bytes <= most_bytes

    async def _survey(self, segment: int) -> Survey:
        survey = Survey()
        lowest = await self._lowest()
        scan = SegmentScan(self._yard.disk, segment, self._yard.salt).records()
        small = _SmallRecords(self._yard.index, lowest)
        while await self._in_thread(lambda: _survey_some(scan, small, survey)):
            if survey.unreadable:
                break
        return survey

    async def _lowest(self) -> int:
        return (await self._in_thread(lambda: segments_of(self._yard.disk)))[0]

    async def _empty(self, segment: int) -> bool:
        """Copy all that lives in a segment, then remove it; False if it must stay."""
        lowest = await self._lowest()
        copier = _Copier(self._yard.disk, self._yard.index, segment, self._yard.salt, lowest)
        start_s, start_bytes = self._clock.monotonic(), self._copied_bytes
        while await self._in_thread(copier.fill):
            if copier.records:
                await self._yard.write(copier.records)
            self._copied_bytes += sum(record.size_bytes for record in copier.records)
            spent_s = self._clock.monotonic() - start_s
            due_s = (self._copied_bytes - start_bytes) / self._settings.bytes_per_s
            await asyncio.sleep(max(0.0, due_s - spent_s))
        await self._yard.checkpoint()
        if copier.unreadable or await self._in_thread(copier.is_pointed_at):
            self._unreadable.add(segment)
            return False
        await self._yard.write([dropped_record(segment)])
        await self._yard.checkpoint()
        await self._in_thread(lambda: _remove(self._yard.disk, segment))
        self._small_bytes.pop(segment, None)
        return True


def live_bytes(index: Index) -> dict[int, int]:
    """The bytes of each segment that the index points at. Reads all of it: run it in a thread.

    A record that was split counts once for each part, so the sum may be too high, never too low.
    """
    live: dict[int, int] = {}
    above = -1
    while True:
        page = index.ledgers(above, _LEDGERS_PER_PAGE)
        for ledger_id in page:
            for place in _places(index, ledger_id, 0, ENTRY_ID_MAX):
                live[place.segment] = live.get(place.segment, 0) + place.size_bytes
        if len(page) < _LEDGERS_PER_PAGE:
            return live
        above = page[-1]


class _SmallRecords:
    """Which records without entries are still needed; each only once in a segment."""

    def __init__(self, index: Index, lowest: int) -> None:
        self._index = index
        self._lowest = lowest
        self._seen: set[tuple[int, int, int, bytes]] = set()

    def keep(self, found: Found) -> Record | None:
        """The record to write for it, or None."""
        header = found.header
        if header.kind == Kind.DROPPED:
            # Below the lowest segment there is nothing whose absence must be explained.
            needed = header.first > self._lowest
        elif header.kind == Kind.TOMBSTONE:
            needed = True
        elif header.kind in (Kind.FACTS, Kind.FENCE):
            needed = self._index.fact(fact_key(TOMBSTONE, header.ledger_id)) is None
        else:
            return None
        first = header.first
        same = (header.kind, header.ledger_id, first if header.kind == Kind.DROPPED else 0)
        if not needed or (*same, found.head) in self._seen:
            return None
        self._seen.add((*same, found.head))
        lac = header.lac
        if header.kind == Kind.FACTS and first == NO_ENTRY:
            first, lac = found.segment, found.offset
        return Record(
            header.kind,
            header.ledger_id,
            first,
            header.entries,
            lac,
            header.length,
            found.head,
            b"",
        )


class _Copier:
    """Reads a segment piece by piece, in a thread, and makes the records that keep what lives."""

    def __init__(self, disk: Disk, index: Index, segment: int, salt: int, lowest: int) -> None:
        self.records: list[Record] = []
        self.unreadable = False
        self._index = index
        self._segment = segment
        self._found = SegmentScan(disk, segment, salt).records()
        self._small = _SmallRecords(index, lowest)
        self._spans: dict[int, list[tuple[int, int]]] = {}

    def fill(self) -> bool:
        """Make the next records, about a mebibyte of them; False at the end."""
        self.records = []
        size_bytes = looked_at_bytes = 0
        for found in self._found:
            if isinstance(found, Flaw):
                if found.ledger_id < 0:
                    self.unreadable = True
                else:
                    self._span(found.ledger_id, found.first, found.last)
                continue
            for record in self._copies(found):
                self.records.append(record)
                size_bytes += record.size_bytes
            looked_at_bytes += found.header.size_bytes
            if size_bytes >= _COPY_BYTES or looked_at_bytes >= 16 * _COPY_BYTES:
                return True
        return bool(self.records)

    def is_pointed_at(self) -> bool:
        """Whether the index still has a place in the segment."""
        return any(
            place.segment == self._segment
            for ledger_id, spans in self._spans.items()
            for first, last in spans
            for place in _places(self._index, ledger_id, first, last)
        )

    def _copies(self, found: Found) -> Iterator[Record]:
        header = found.header
        if header.kind not in _RUNS:
            record = self._small.keep(found)
            if record is not None:
                yield record
            return
        self._span(header.ledger_id, header.first, header.last)
        pieces = [
            place
            for place in _places(self._index, header.ledger_id, header.first, header.last)
            if (place.segment, place.offset) == (found.segment, found.offset)
        ]
        if not pieces or first_flaw(found) is not None:
            return
        run = found.run()
        for place in pieces:
            first, last = max(place.first, run.first), min(place.last, run.last)
            yield move_record(run.cut(first, last), Origin(found.segment, found.offset))

    def _span(self, ledger_id: int, first: int, last: int) -> None:
        spans = self._spans.setdefault(ledger_id, [])
        if spans and spans[-1][0] <= first <= spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
        else:
            spans.append((first, last))


def _survey_some(scan: Iterator[Found | Flaw], small: _SmallRecords, survey: Survey) -> bool:
    """Look at some records; False at the end."""
    for count, found in enumerate(scan, 1):
        if isinstance(found, Flaw):
            survey.unreadable = survey.unreadable or found.ledger_id < 0
        elif found.header.kind not in _RUNS:
            record = small.keep(found)
            survey.small_bytes += record.size_bytes if record is not None else 0
        if count == _SURVEY_RECORDS:
            return True
    return False


def _places(index: Index, ledger_id: int, first: int, last: int) -> Iterator[Place]:
    while True:
        found = index.find(ledger_id, first, last)
        yield from found
        if len(found) < PLACES_MAX:
            return
        first = found[-1].last + 1


def _sizes(disk: Disk, below: int) -> dict[int, int]:
    return {
        segment: disk.size(name_of(segment)) for segment in segments_of(disk) if segment < below
    }


def _remove(disk: Disk, segment: int) -> None:
    disk.remove(name_of(segment))
    disk.sync_folder(FOLDER)
