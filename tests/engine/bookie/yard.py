"""A bookie's storage without its service: journal writer, index, replay, on a disk in memory."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from engine.bookie.compaction import CompactionSettings, Compactor
from engine.bookie.index import Place, Position
from engine.bookie.index_memory import MemoryIndex
from engine.bookie.indexing import (
    DROPPED,
    FACTS,
    FENCE,
    Buried,
    Fact,
    Item,
    Moved,
    apply_items,
    fact_key,
    item_of,
)
from engine.bookie.job import Job
from engine.bookie.replay import replay
from engine.bookie.scan import Found, SegmentScan
from engine.bookie.segment import (
    Kind,
    Record,
    facts_record,
    fence_record,
    origin_of,
    run_record,
    tombstone_record,
)
from engine.bookie.segment_writer import SegmentWriter, Tail
from engine.bookie.settings import BookieSettings
from engine.run import Run
from engine.transport.contract import LedgerFacts
from tests.simulation.disk import SimDisk

SALT = 0x5EED
BOOKIE_ID = "00000000000000b1"
R = TypeVar("R")


class StillClock:
    """A clock at which a sleep costs nothing and takes no time."""

    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 1_000


class Inline:
    """Workers that run at once, on the loop."""

    async def run(self, work: Callable[[], R]) -> R:
        await asyncio.sleep(0)
        return work()


def body_of(ledger_id: int, entry_id: int, size_bytes: int = 100) -> bytes:
    """The bytes that a test expects of an entry."""
    return random.Random(ledger_id << 32 | entry_id).randbytes(size_bytes)


def run_of(ledger_id: int, first: int, count: int) -> Run:
    bodies = [body_of(ledger_id, entry_id) for entry_id in range(first, first + count)]
    return Run.pack(ledger_id, first, bodies, lac=first - 1, length_before=100 * first)


def facts_of(ledger_id: int) -> LedgerFacts:
    return LedgerFacts(ledger_id, 1, 1, 1, 256, b"k" * 32, 5, {}, 0, (BOOKIE_ID,))


class Yard:
    """What compaction borrows from a bookie, made of the bookie's own parts."""

    def __init__(self, seed: int = 1, segment_bytes: int = 8_192) -> None:
        self.disk = SimDisk(random.Random(seed))
        self.disk.make_folder("journal")
        self.index = MemoryIndex()
        self.salt = SALT
        self.settings = BookieSettings(segment_bytes=segment_bytes, reserve_bytes=0)
        self.moved = asyncio.Event()
        self._items: list[Item] = []
        self._open(Tail(0, 0, True))

    def _open(self, tail: Tail) -> None:
        self.writer = SegmentWriter(self.disk, StillClock(), self.settings, BOOKIE_ID, SALT, tail)

    @property
    def active_segment(self) -> int:
        return self.writer.position.segment

    def compactor(self, **settings: float) -> Compactor:
        made = CompactionSettings(**settings)  # type: ignore[arg-type]
        return Compactor(self, Inline(), StillClock(), made)  # type: ignore[arg-type]

    # What compaction asks for

    async def write(self, records: Sequence[Record]) -> list[Position]:
        await asyncio.sleep(0)
        positions = self.put(records)
        for record, at in zip(records, positions, strict=True):
            self._items += _items_of(record, at)
        if any(record.kind == Kind.MOVE for record in records):
            self.moved.set()
            await asyncio.sleep(0)
        return positions

    async def checkpoint(self) -> None:
        await asyncio.sleep(0)
        self.apply()
        self.index.flush()

    # What a test does

    def put(self, records: Sequence[Record]) -> list[Position]:
        job = Job(lambda job: None, records=records)
        self.writer.work([job])
        assert not job.refused
        return [Position(job.segment, offset) for offset in job.offsets]

    def apply(self) -> None:
        items, self._items = self._items, []
        apply_items(self.index, items, self.writer.position)

    def create(self, ledger_id: int) -> None:
        record = facts_record(facts_of(ledger_id))
        self.put([record])
        self._items.append(Fact(fact_key(FACTS, ledger_id), record.head))

    def fence(self, ledger_id: int) -> None:
        self.put([fence_record(ledger_id, b"k" * 32)])
        self._items.append(Fact(fact_key(FENCE, ledger_id), b"k" * 32))

    def append(self, ledger_id: int, first: int, count: int) -> None:
        record = run_record(run_of(ledger_id, first, count))
        (position,) = self.put([record])
        place = Place(ledger_id, first, first + count - 1, *position, record.size_bytes, first)
        self._items.append(place)
        self.apply()

    def bury(self, ledger_id: int) -> None:
        self.put([tombstone_record(ledger_id)])
        self._items.append(Buried(ledger_id))
        self.apply()

    def restart(self, *, power: bool = False, index_lost: bool = False) -> None:
        """End the process, with the machine if `power`, and replay."""
        if not power:
            self.writer.close()
        if power:
            self.disk.lose_power()
            self.index.crash()
        else:
            self.disk.restart()
        if index_lost:
            self.index = MemoryIndex()
        self._items = []
        replayed = replay(self.disk, self.index, BOOKIE_ID, SALT)
        assert not replayed.unreadable
        self._open(replayed.tail)
        for record, at in zip(replayed.again, self.put(replayed.again), strict=True):
            item = item_of(record, at)
            self._items += [] if item is None else [item]
        self.apply()

    def held(self, ledger_id: int) -> list[int]:
        """The ids of a ledger, each read and checked from where the index says it lies."""
        ids: list[int] = []
        for place in self.index.find(ledger_id, 0, 2**62):
            run = self.record_at(place).run().cut(place.first, place.last)
            for entry in run.entries():
                assert entry.body == body_of(ledger_id, entry.entry_id)
                ids.append(entry.entry_id)
        return ids

    def record_at(self, place: Place) -> Found:
        for found in SegmentScan(self.disk, place.segment, SALT).records():
            if isinstance(found, Found) and found.offset == place.offset:
                return found
        raise AssertionError(f"nothing at {place}")

    def segments(self) -> list[str]:
        return [name for name in self.disk.names("journal") if name.endswith(".segment")]


def _items_of(record: Record, at: Position) -> list[Item]:
    """What the index is told of a record that compaction writes."""
    if record.kind == Kind.DROPPED:
        return [Fact(fact_key(DROPPED, record.first), b"")]
    if record.kind == Kind.MOVE:
        last = record.first + record.entries - 1
        place = Place(record.ledger_id, record.first, last, *at, record.size_bytes, record.first)
        return [Moved(place, origin_of(record.head))]
    return []
