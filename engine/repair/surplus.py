"""Gives back entries that a bookie of this node holds but that their ledger assigns to others.

Repair moves replicas to other bookies, and writers replace bookies that have already stored
entries. If such a bookie holds entries of a closed ledger outside the fragments that name it, these
are surplus: nobody reads them.

    two looks at the metadata  ->  withhold the ledger  ->  count in the metadata  ->  remove

No entry is removed that a repair is about to rely on. A repair reads or writes a replica before it
names the bookie in the metadata. While a ledger is withheld, reads are answered as if the bookie
were away, and appends wait. So a repair that found the entries here did so before the count, with
older metadata, and is refused when it names the bookie (`LedgerMetadata.released`). A later repair
finds that the entries are missing, and writes them again.

The metadata may be wrong: restored from an old backup, or rebuilt while some bookies were missing.
Then it names old bookies, or an old end. So the metadata alone is not trusted. It must agree with
what the bookie remembers of the ledger, and the bookies that it names must show the entries.

Invariants:
- Only closed ledgers have surplus, and only if each bookie of a fragment stores all entries of the
  fragment. A ledger that was written here within `surplus_quiet_ms`, or that waits for repair, has
  none: its repair may have read the entries here.
- Entries are given back only after two looks, at least half an interval apart, found the same
  metadata, in which they belong to other bookies. Each of these bookies must then show the first
  and the last of the entries, with the same bytes as here. An entry that is damaged here must be
  the same on all of them.
- If the bookie remembers a fragment, an end, a time of creation or a key that the metadata does not
  have, it gives back nothing of that ledger. Entries after the end stay.
- Fences, facts and tombstones stay.
- Nothing is given back while repair is switched off or the store is being restored.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from engine.errors import CannotRead, EngineError, FormatTooNew, NoSuchLedger
from engine.ledger.reading import ask, intact_runs
from engine.metadata.ledgers import Held, LedgerMetadata
from engine.metadata.restoring import check_not_under_way
from engine.repair.keeping_on import keep_on
from engine.repair.ledger_repair import extents
from engine.repair.outlook import Workshop
from engine.run import NO_ENTRY
from engine.transport.contract import LedgerFacts, ReadReply, ReadRequest, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_LEDGERS_PER_PAGE: Final = 256

Ids = tuple[int, int]
"""The first and the last of a range of entry ids."""


class Holder(Protocol):
    """The part of a bookie that the node needs to find its surplus and give it back."""

    @property
    def bookie_id(self) -> str:
        """The random id of the bookie's folder."""
        ...

    async def ledgers(self, above: int, limit: int) -> list[int]:
        """The ids over `above` of ledgers of which more than a tombstone is held, in order."""
        ...

    def written_s(self, ledger_id: int) -> float:
        """The monotonic second of the newest write, or a later one if it is not remembered."""
        ...

    def facts_of(self, ledger_id: int) -> LedgerFacts | None:
        """The newest facts that the bookie remembers of a ledger."""
        ...

    async def held(self, ledger_id: int, ids: Ids) -> list[Ids]:
        """The ranges of these ids that are held, including damaged ones, in order."""
        ...

    async def release(
        self,
        ledger_id: int,
        ranges: "Sequence[Ids]",
        unwritten_since_s: float,
        agreed: "Callable[[], Awaitable[bool]]",
    ) -> bool:
        """Withhold the ledger, and remove entries if `agreed` returns True.

        Returns False if nothing was removed: the ledger is in use, was written since
        `unwritten_since_s`, or the disk is full.
        """
        ...


class _Seen(NamedTuple):
    """The metadata by which some entries are surplus, and when it was first seen."""

    since_s: float
    metadata: LedgerMetadata


class Surplus:
    """Gives back the local bookies' surplus. `released` counts these entries since the start."""

    def __init__(self, workshop: Workshop, bookies: Sequence[Holder]) -> None:
        self.released = 0
        self._workshop = workshop
        self._bookies = bookies
        self._seen: dict[str, dict[int, _Seen]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to look at the bookies regularly, unless the interval is 0."""
        assert self._task is None
        if self._bookies and self._workshop.settings.surplus_interval_ms:
            self._task = keep_on(self._workshop, "the search for surplus entries", self._run)

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        interval_s = self._workshop.settings.surplus_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            for bookie in self._bookies:
                with contextlib.suppress(EngineError):
                    await self.look(bookie)

    async def look(self, bookie: Holder) -> None:
        """Look at each ledger of a bookie once. Give back what was surplus the last time, too.

        Raises `EngineError`. What was given back before the error stays given back.
        """
        seen = self._seen.setdefault(bookie.bookie_id, {})
        above = -1
        while True:
            if not await self._may_go_on():
                return
            page = await bookie.ledgers(above, _LEDGERS_PER_PAGE)
            if not page:
                return
            for ledger_id in page:
                found = await self._see_to(bookie, ledger_id, seen.pop(ledger_id, None))
                if found is not None:
                    seen[ledger_id] = found
            above = page[-1]

    async def _may_go_on(self) -> bool:
        """Whether entries may be given back now. Raises `EngineError`."""
        workshop = self._workshop
        if await workshop.queue.disabled() is not None:
            return False
        await workshop.store.sync()
        await check_not_under_way(workshop.store)
        return True

    async def _see_to(self, bookie: Holder, ledger_id: int, seen: _Seen | None) -> _Seen | None:
        """Give back the surplus of one ledger, or remember it for the next look."""
        settings, now_s = self._workshop.settings, self._workshop.clock.monotonic()
        if now_s - bookie.written_s(ledger_id) < settings.surplus_quiet_ms / 1000:
            return None
        try:
            found = await self._workshop.ledgers.read(ledger_id)
        except (NoSuchLedger, CannotRead, FormatTooNew):
            return None
        metadata = found.metadata
        surplus = await _surplus(bookie, metadata)
        if not surplus or not agrees(bookie.facts_of(ledger_id), metadata):
            return None
        if seen is None or seen.since_s < bookie.written_s(ledger_id):
            return _Seen(now_s, metadata)
        if _but_released(seen.metadata) != _but_released(metadata):
            return _Seen(now_s, metadata)
        if now_s - seen.since_s < settings.surplus_interval_ms / 1000 / 2:
            return seen
        if await self._are_elsewhere(bookie, metadata, surplus):
            agreed = partial(self._count, found)
            if await bookie.release(ledger_id, surplus, seen.since_s, agreed):
                self.released += sum(last - first + 1 for first, last in surplus)
                return None
        return seen

    async def _are_elsewhere(
        self, bookie: Holder, metadata: LedgerMetadata, ranges: Sequence[Ids]
    ) -> bool:
        """Whether all bookies that a range belongs to have its first and its last entry."""
        for fragment, end in extents(metadata):
            for first, last in ranges:
                first, last = max(first, fragment.first), min(last, end)
                for entry_id in {first, last} if first <= last else ():
                    names = [bookie.bookie_id, *fragment.ensemble]
                    if not await self._have_the_same(metadata, names, entry_id):
                        return False
        return True

    async def _have_the_same(
        self, metadata: LedgerMetadata, names: Sequence[str], entry_id: int
    ) -> bool:
        context = self._workshop.context(metadata)
        request = ReadRequest(metadata.ledger_id, entry_id, entry_id, 1)
        asked = asyncio.gather(*(ask(context, name, request) for name in names))
        try:
            async with asyncio.timeout(self._workshop.settings.read_timeout_ms / 1000):
                replies = await asked
        except TimeoutError:
            return False
        runs = [intact_runs(reply, entry_id) for reply in replies]
        if _damaged(replies[0], entry_id):
            # Of no use to anybody.
            del runs[0]
        if not all(runs):
            return False
        return len({each[0].cut(entry_id, entry_id).table for each in runs}) == 1

    async def _count(self, seen: Held) -> bool:
        """Count in the metadata that entries are given back; False if anything has changed.

        The ledger is withheld here now. A ledger that is being repaired is in the queue until its
        repair is done.
        """
        try:
            if await self._workshop.queue.read(seen.metadata.ledger_id) is not None:
                return False
            await self._workshop.ledgers.update(seen, partial(_counted, seen.metadata))
        except (EngineError, _Changed):
            return False
        return True


def _damaged(reply: ReadReply, entry_id: int) -> bool:
    """Whether a bookie holds an entry but cannot return it as it was written."""
    if reply.status is not Status.OK:
        return False
    if reply.unknown is not None and reply.unknown[0] <= entry_id <= reply.unknown[1]:
        return True
    first = reply.runs[0] if reply.runs else None
    return first is not None and first.first == first.first_corrupt() == entry_id


class _Changed(Exception):
    """The metadata is not the same as when it was seen."""


def _counted(seen: LedgerMetadata, current: LedgerMetadata) -> LedgerMetadata:
    if current != seen:
        raise _Changed
    return msgspec.structs.replace(current, released=current.released + 1)


def agrees(facts: LedgerFacts | None, metadata: LedgerMetadata) -> bool:
    """Whether the metadata agrees with what a bookie remembers, and no replica is missing."""
    if facts is None or metadata.degraded:
        return False
    same = (facts.created_ms, facts.key_hash) == (metadata.created_ms, metadata.key_hash)
    begins = facts.fragment_first in {fragment.first for fragment in metadata.fragments}
    ends = facts.closed_last in (NO_ENTRY - 1, metadata.last_entry)
    return same and begins and ends


def _but_released(metadata: LedgerMetadata) -> LedgerMetadata:
    """The metadata without what changes when a bookie gives entries back."""
    return msgspec.structs.replace(metadata, released=0, token=0)


async def _surplus(bookie: Holder, metadata: LedgerMetadata) -> list[Ids]:
    """The entries that a bookie holds but that the ledger does not assign to it."""
    if not metadata.closed or metadata.ensemble_size != metadata.write_quorum:
        return []
    surplus: list[Ids] = []
    for ids in elsewhere(metadata, bookie.bookie_id):
        surplus += await bookie.held(metadata.ledger_id, ids)
    return surplus


def elsewhere(metadata: LedgerMetadata, bookie_id: str) -> list[Ids]:
    """The entry ids that a closed ledger does not assign to a bookie.

    >>> from engine.metadata.ledgers import Fragment, State
    >>> fragments = Fragment(0, ("a",)), Fragment(5, ("b",)), Fragment(9, ("a",))
    >>> ledger = LedgerMetadata(
    ...     7, 1, 1, 1, fragments, b"", 0, 0, State.CLOSED, last_entry=19, length=1
    ... )
    >>> elsewhere(ledger, "a"), elsewhere(ledger, "b")
    ([(5, 8)], [(0, 4), (9, 19)])
    """
    assert metadata.last_entry is not None
    found: list[Ids] = []
    first = 0
    for extent in extents(metadata):
        if bookie_id in extent.fragment.ensemble and extent.fragment.first <= extent.last:
            if first < extent.fragment.first:
                found.append((first, extent.fragment.first - 1))
            first = extent.last + 1
    return [*found, (first, metadata.last_entry)] if first <= metadata.last_entry else found
