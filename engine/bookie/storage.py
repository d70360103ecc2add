"""A bookie's journal, index and memory as one: what is durable here, and where.

Invariants:
- Window and index together know everything that is durable; a look-up asks both.
- A record's item reaches the index writer before the position that covers it.
- A segment that vanished under a read means a move: the places are looked up again.
- Damage that a read finds is remembered, so that recovery and repair may write those ids again.
"""

import logging
from collections.abc import Callable, Sequence

from engine.bookie.folder import FolderIdentity
from engine.bookie.index import Index, Place, Position, enough
from engine.bookie.index_writer import IndexWriter
from engine.bookie.indexing import (
    DAMAGE_KEY,
    RETIRED_KEY,
    Fact,
    Moved,
    Released,
    damaged,
    held_ledgers,
    item_of,
    pack_number,
    unpack_number,
)
from engine.bookie.job import Job
from engine.bookie.journal import Journal
from engine.bookie.ledger_state import LedgerState, LedgerStates
from engine.bookie.measures import BookieMeasures
from engine.bookie.reading import Found, Gatherer, NeedsDisk, joined
from engine.bookie.segment import RECORD_HEADER_BYTES, Kind, Origin, Record, facts_of
from engine.bookie.segment_writer import SegmentWriter, Tail
from engine.bookie.settings import BookieSettings
from engine.bookie.window import RecentRuns, merge
from engine.limits import ENTRY_ID_MAX
from engine.ports.clock import Clock
from engine.ports.disk import Disk, Space
from engine.ports.workers import Workers
from engine.run import NO_ENTRY, Run
from engine.transport.contract import LedgerFacts

_LOOKUPS_MAX = 3
_EVERY_LEDGER = 2**64
_LOG = logging.getLogger("engine.bookie")


class Storage:
    """What a bookie service stands on. All of it is touched on the loop only."""

    def __init__(
        self,
        *,
        disk: Disk,
        workers: Workers,
        clock: Clock,
        settings: BookieSettings,
        identity: FolderIdentity,
        index: Index,
        tail: Tail,
        on_space: Callable[[Space], None],
        on_failure: Callable[[BaseException], None],
        measures: BookieMeasures,
    ) -> None:
        self.index = index
        self.measures = measures
        self.recent = RecentRuns(settings.recent_runs_bytes_max)
        self.writer = IndexWriter(index, workers, settings, disk.space, on_failure)
        self.states = LedgerStates(
            index, self.writer, settings.ledger_states_max, clock.monotonic()
        )
        segments = SegmentWriter(disk, clock, settings, identity.bookie_id, identity.salt, tail)
        self.journal = Journal(
            segments, workers, settings, self._on_records, self._on_batch, on_failure, measures
        )
        self._disk = disk
        self._workers = workers
        self._salt = identity.salt
        self._bookie_id = identity.bookie_id
        self._gap_bytes = settings.read_gap_bytes
        self._on_space = on_space
        self._on_failure = on_failure
        self._look_for_damage()

    # Damage

    def _look_for_damage(self) -> None:
        self._doubtful_to = self._read_doubt()
        self._retired_to = self._read_retired()
        self.fences_unsure_to = max(self._doubtful_to, self._retired_to)
        """Of ledgers up to this one a fence may have been lost here, lately or once."""

    def is_doubtful(self, ledger_id: int) -> bool:
        """Whether an unreadable header may have named the ledger: negatives are unknown then."""
        return ledger_id <= self._doubtful_to

    @property
    def has_damage(self) -> bool:
        """Whether any negative of this bookie is unknown."""
        return self._doubtful_to > NO_ENTRY

    async def set_doubt(self, value: bytes) -> None:
        """Set, durably, up to which ledger negatives are unknown."""
        self.writer.add(Fact(DAMAGE_KEY, value))
        await self.writer.flush()
        self._look_for_damage()

    async def clear_doubt(self) -> None:
        """Trust negatives again, durably; the ledgers in doubt take no normal append any more."""
        if not self.has_damage:
            return
        retired_to = max(self._retired_to, min(self._doubtful_to, ENTRY_ID_MAX))
        self.writer.add(Fact(RETIRED_KEY, pack_number(retired_to)))
        self.writer.add(Fact(DAMAGE_KEY, None))
        await self.writer.flush()
        self._look_for_damage()

    def mark_damaged(self, place: Place) -> None:
        """The record of a place cannot be read: its ids count as not held from now on."""
        _LOG.warning(
            "bookie %s: entries %d to %d of ledger %d are damaged, in segment %d at byte %d",
            self._bookie_id,
            place.first,
            place.last,
            place.ledger_id,
            place.segment,
            place.offset,
        )
        self.writer.add(Moved(damaged(place), Origin(place.segment, place.offset)))
        self.writer.reached(self.journal.end)

    def _read_doubt(self) -> int:
        value = self.index.fact(DAMAGE_KEY)
        if value is None:
            return NO_ENTRY
        return unpack_number(value) if value else _EVERY_LEDGER

    def _read_retired(self) -> int:
        value = self.index.fact(RETIRED_KEY)
        return NO_ENTRY if value is None else unpack_number(value)

    # Looking up

    async def find(
        self, state: LedgerState, first: int, last: int, max_bytes: int, *, verify: bool = False
    ) -> Found:
        """Runs from `first` on and why they end, as in a `ReadReply`; none crosses a stripe.

        `verify` also checks the digests: a run with other bytes than were written is damage.
        """
        # Without facts the stripes are not known; old folders hold facts that nobody checked.
        stripe_entries = 1 if state.facts is None else max(state.facts.stripe_entries, 1)
        found = Found()
        for _ in range(_LOOKUPS_MAX):
            newer = self.writer.window.find(state.ledger_id, first, last)
            if newer and newer[0].first <= first and not verify:
                try:
                    found = self._find_newest(state, newer, first, last, max_bytes)
                    found.runs = joined(found.runs, stripe_entries)
                    return found
                except NeedsDisk:
                    pass
            look = _Look(
                self, state.ledger_id, newer, first, last, max_bytes, verify, stripe_entries
            )
            found = await self._workers.run(look.run)
            if not found.vanished:
                break
        if found.damaged is not None:
            self.mark_damaged(found.damaged)
        return found

    def _find_newest(
        self, state: LedgerState, newer: list[Place], first: int, last: int, max_bytes: int
    ) -> Found:
        """Answer from memory, as far as the window goes without a gap: the index may fill gaps."""
        following = first
        for count, place in enumerate(newer):
            if place.first > following:
                newer = newer[:count]
                break
            following = place.last + 1
        gatherer = Gatherer(None, self._salt, self.recent, 1, 0)
        found = gatherer.gather(newer, False, first, last, max_bytes)
        if found.runs and state.stored < found.runs[-1].last + 1 <= last:
            # Nothing durable is higher, in the window or in the index.
            found.missing = (found.runs[-1].last + 1, last)
        return found

    async def release(self, ledger_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Remove entries from the index. Raises `BookieUnavailable`.

        This is not durable at once: after a crash the entries may be held again. While the disk has
        no room for the index, this waits, and the entries are removed later.
        """
        for first, last in ranges:
            self.writer.add(Released(ledger_id, first, last, self.journal.end))
        await self.writer.applied_all()

    async def held(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """The ranges of some ids that the index has, in order."""
        return await self._workers.run(lambda: self._held(ledger_id, first, last))

    def _held(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while first <= last and (places := self.index.find(ledger_id, first, last)):
            for place in places:
                low, high = max(place.first, first), min(place.last, last)
                if found and found[-1][1] + 1 == low:
                    low = found.pop()[0]
                found.append((low, high))
            first = places[-1].last + 1
        return found

    def ledgers(self, above: int, limit: int) -> list[int]:
        """Ids of ledgers of which anything but a tombstone is held, over `above`, in order."""
        found = {*self.writer.window.ledgers(above), *held_ledgers(self.index, above, limit)}
        return sorted(found)[:limit]

    def look_up(self, look: "_Look") -> Found:
        """In a thread: index, then disk."""
        older = self.index.find(look.ledger_id, look.first, look.last, look.max_bytes)
        places = merge(look.newer, older)
        complete = not enough(older, look.max_bytes)
        if not complete:
            # The index has more behind these: what the window has further on may follow a gap.
            places = [place for place in places if place.first <= older[-1].last]
        gatherer = Gatherer(
            self._disk, self._salt, self.recent, look.stripe_entries, self._gap_bytes
        )
        found = gatherer.gather(places, complete, look.first, look.last, look.max_bytes)
        found.runs = joined(found.runs, look.stripe_entries)
        if look.verify:
            _cut_at_corruption(found, places)
        return found

    # What the journal tells

    def place_runs(self, ledger_id: int, job: Job, *, overlay: bool) -> None:
        """Take a job's runs as durable."""
        segment = job.segment
        places: list[Place] = []
        add_recent = self.recent.add
        for run, offset in zip(job.runs, job.offsets[len(job.records) :], strict=True):
            first = run.first
            size_bytes = RECORD_HEADER_BYTES + len(run.table) + len(run.body)
            places.append(
                Place(ledger_id, first, first + run.count - 1, segment, offset, size_bytes, first)
            )
            add_recent(segment, offset, run)
        self.writer.add_places(ledger_id, places, overlay)

    def _on_records(self, job: Job) -> None:
        try:
            for record, offset in zip(job.records, job.offsets, strict=False):
                self._on_record(record, Position(job.segment, offset))
        except Exception as error:
            # The index cannot be read: what is durable must not be claimed, and nothing follows.
            job.error = error
            self._on_failure(error)

    def _on_record(self, record: Record, at: Position) -> None:
        item = item_of(record, at)
        if item is None:
            return
        kind, ledger_id = record.kind, record.ledger_id
        if kind == Kind.DROPPED:
            self.writer.add(item)
            return
        state = self.states.get(ledger_id)
        if state.deleted:
            return
        state.sequence = self.writer.sequence
        if kind == Kind.FACTS and not self._adopt(state, facts_of(record.head)):
            return
        if kind == Kind.TOMBSTONE:
            state.deleted = state.known = True
            state.highest = state.stored = NO_ENTRY
            self.writer.forget(ledger_id)
        elif kind == Kind.FENCE:
            state.known = state.fenced = state.fence_durable = True
            state.key_hash = record.head
        elif kind == Kind.RUN:
            state.known = True
            state.stored = max(state.stored, record.first + record.entries - 1)
            state.highest = max(state.highest, state.stored)
            state.learn_lac(record.lac)
            self.writer.note_lac(ledger_id, state.lac)
        self.writer.add(item)
        if kind != Kind.MOVE:
            state.wake()

    def _adopt(self, state: LedgerState, facts: LedgerFacts) -> bool:
        if state.facts is not None and state.facts != facts and not state.outdated_by(facts):
            return False
        state.adopt(facts)
        return True

    def _on_batch(self, end: Position, space: Space | None) -> None:
        self.writer.reached(end)
        if space is not None:
            self._on_space(space)

    async def close(self) -> None:
        """Write everything that is queued, leave the index flushed."""
        try:
            await self.journal.close()
        finally:
            self.measures.close()
            await self.writer.close()
            await self._close_index()

    async def _close_index(self) -> None:
        try:
            await self._workers.run(self.index.close)
        except Exception as error:
            # As on a full disk. What it did not flush the next start reads from the journal.
            _LOG.warning("bookie %s: its index was not flushed: %s", self._bookie_id, error)


class _Look:
    """One look-up for a pool thread."""

    __slots__ = (
        "first",
        "last",
        "ledger_id",
        "max_bytes",
        "newer",
        "storage",
        "stripe_entries",
        "verify",
    )

    def __init__(
        self,
        storage: Storage,
        ledger_id: int,
        newer: list[Place],
        first: int,
        last: int,
        max_bytes: int,
        verify: bool,
        stripe_entries: int,
    ) -> None:
        self.storage = storage
        self.stripe_entries = stripe_entries
        self.ledger_id = ledger_id
        self.newer = newer
        self.first = first
        self.last = last
        self.max_bytes = max_bytes
        self.verify = verify

    def run(self) -> Found:
        return self.storage.look_up(self)


def _cut_at_corruption(found: Found, places: Sequence[Place]) -> None:
    """End the runs before the first entry whose digest is wrong; its place is damaged."""
    for number, run in enumerate(found.runs):
        corrupt = run.first_corrupt()
        if corrupt is None:
            continue
        good: list[Run] = found.runs[:number]
        if corrupt > run.first:
            good.append(run.cut(run.first, corrupt - 1))
        place = next(place for place in places if place.first <= corrupt <= place.last)
        found.runs = good
        found.missing = None
        found.unknown = (corrupt, min(run.last, place.last))
        found.damaged = place._replace(first=corrupt)
        return
