"""The scrub: every replica of every ledger is read, its digests are checked, faults are queued.

Invariants:
- Nothing is written to a bookie: what is found goes into the repair queue.
- A replica that answers and lacks an entry, or has other bytes, is a fault; a bookie that does not
  answer is only counted: whether it is lost is the auditor's business. An entry that no bookie
  returns, because those that should have it are silent, is named and counted separately.
- The mark in the metadata store names a ledger only when all up to it were read: a scrub that was
  interrupted goes on behind it.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import msgspec

from engine.errors import KeyExists, VersionConflict
from engine.metadata.contract import MetadataStore
from engine.metadata.ledgers import LedgerMetadata, State
from engine.metadata.repairs import RepairItem
from engine.repair.ledger_repair import extents
from engine.repair.outlook import Workshop
from engine.repair.replicas import Extent, Finding, FragmentWalk
from engine.repair.survey import read_many, survey

SCRUB: Final = "/repair/scrub"
_FAULTS_NAMED_MAX: Final = 100
_FINDINGS_MAX: Final = 20
_WORDS_MAX: Final = 1_000
_LOG: Final = logging.getLogger("engine.repair")


class Found(msgspec.Struct, frozen=True):
    """What one scrub found wrong with one ledger, when (wall clock, milliseconds)."""

    ledger_id: int
    what: str
    at_ms: int


class ScrubMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a scrub has come. Times are wall clock in milliseconds, for people.

    `last_ledger` and all below it were read. `faulty` names at most the first hundred ledgers that
    were queued, `faults` counts them all; `silent` counts replicas whose bookie did not answer,
    `unheld` the ledgers with entries that no bookie returned, although no replica is known to be
    wrong. `findings` are the newest ones, the last first, those of earlier scrubs among them.
    """

    last_ledger: int = -1
    started_ms: int = 0
    finished_ms: int = 0
    ledgers: int = 0
    entries: int = 0
    faults: int = 0
    silent: int = 0
    unheld: int = 0
    faulty: tuple[int, ...] = ()
    findings: tuple[Found, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether all ledgers were read."""
        return self.finished_ms > 0


Progress = Callable[[ScrubMark, int], None]
"""Called after each ledger, with the mark and how many ledgers there are in all."""


async def read_mark(store: MetadataStore) -> ScrubMark | None:
    """The newest scrub's mark; None if there never was one. Raises `MetadataUnavailable`.

    One that cannot be read is none, too: the scrub begins again, which harms nothing.
    """
    found = await store.get(SCRUB)
    try:
        return None if found is None else msgspec.json.decode(found.value, type=ScrubMark)
    except msgspec.MsgspecError:
        return None


class Scrub:
    """Reads replicas and queues what is not as it should be."""

    def __init__(self, workshop: Workshop, may_go_on: Callable[[], bool] = lambda: True) -> None:
        self._workshop = workshop
        self._may_go_on = may_go_on

    async def run(self, *, resume: bool = True, progress: Progress | None = None) -> ScrubMark:
        """Read all ledgers, behind the mark of an unfinished scrub if `resume`.

        Raises `MetadataUnavailable` (run it again: it goes on where it was), `Stopped`.
        """
        newest = await read_mark(self._workshop.store)
        mark = newest if resume else None
        if mark is None or mark.finished:
            findings = () if newest is None else newest.findings
            mark = ScrubMark(started_ms=self._now_ms(), findings=findings)
        total = len(await self._workshop.ledgers.ids())
        async for metadata in survey(self._workshop, above=mark.last_ledger):
            mark = await self._ledger(metadata, mark)
            await self._write(mark)
            if progress is not None:
                progress(mark, total)
        mark = msgspec.structs.replace(mark, finished_ms=max(1, self._now_ms()))
        await self._write(mark)
        return mark

    async def run_for(
        self, ledger_ids: Sequence[int], *, progress: Progress | None = None
    ) -> ScrubMark:
        """Read some ledgers only; the mark in the store stays as it is.

        Those that do not exist are passed over. Raises `MetadataUnavailable`, `Stopped`.
        """
        mark = ScrubMark(started_ms=self._now_ms())
        async for metadata in self._some(ledger_ids):
            mark = await self._ledger(metadata, mark)
            if progress is not None:
                progress(mark, len(ledger_ids))
        return msgspec.structs.replace(mark, finished_ms=max(1, self._now_ms()))

    async def _some(self, ledger_ids: Sequence[int]) -> AsyncIterator[LedgerMetadata]:
        for ledger_id in ledger_ids:
            for metadata in await read_many(self._workshop, [ledger_id]):
                yield metadata

    async def _ledger(self, metadata: LedgerMetadata, mark: ScrubMark) -> ScrubMark:
        """Read one ledger's replicas and queue it if any is faulty."""
        registered = (await self._workshop.outlook()).registered
        faults: list[str] = []
        unheld = _unheld_end(metadata, registered)
        entries = silent = 0
        for extent in extents(metadata):
            finding = await self._look(metadata, extent, registered)
            entries += finding.entries_read
            silent += len(finding.silent)
            faults += _faults(extent, finding)
            if finding.unreadable and finding.silent:
                unheld = unheld or f"no bookie returns entry {finding.unreadable[0][0]}"
        if unheld:
            _LOG.warning(
                "ledger %d: %s: start the bookies that hold it", metadata.ledger_id, unheld
            )
        if faults:
            item = RepairItem(reasons=tuple(dict.fromkeys(faults)))
            await self._workshop.queue.request(metadata.ledger_id, item)
            mark = self._noted(mark, metadata.ledger_id, "; ".join(faults))
        return msgspec.structs.replace(
            mark,
            last_ledger=metadata.ledger_id,
            ledgers=mark.ledgers + 1,
            entries=mark.entries + entries,
            faults=mark.faults + bool(faults),
            silent=mark.silent + silent,
            unheld=mark.unheld + bool(unheld),
        )

    def _noted(self, mark: ScrubMark, ledger_id: int, what: str) -> ScrubMark:
        """Keep for people what was found; that it is to be repaired stands in the queue."""
        _LOG.warning("ledger %d: %s", ledger_id, what)
        what = what if len(what) <= _WORDS_MAX else what[: _WORDS_MAX - 3] + "..."
        newest = Found(ledger_id, what, self._now_ms())
        return msgspec.structs.replace(
            mark,
            faulty=(*mark.faulty, ledger_id)[:_FAULTS_NAMED_MAX],
            findings=(newest, *mark.findings)[:_FINDINGS_MAX],
        )

    async def _look(
        self, metadata: LedgerMetadata, extent: Extent, registered: Mapping[str, object]
    ) -> Finding:
        walk = FragmentWalk(
            self._workshop.context(metadata),
            metadata,
            extent,
            reachable=registered,
            targets={},
            mend=False,
            settings=self._workshop.settings,
            pace=self._workshop.pace,
            may_go_on=self._may_go_on,
        )
        return await walk.run()

    def _now_ms(self) -> int:
        return self._workshop.clock.wall_ms()

    async def _write(self, mark: ScrubMark) -> None:
        """Keep the mark. Of two scrubs at once, the later one's mark stands."""
        value = msgspec.json.encode(mark)
        store = self._workshop.store
        found = await store.get(SCRUB)
        try:
            if found is None:
                await store.create(SCRUB, value)
            else:
                await store.set(SCRUB, value, found.version)
        except (KeyExists, VersionConflict):
            return


def _unheld_end(metadata: LedgerMetadata, registered: Mapping[str, object]) -> str:
    """Why the end of an open ledger cannot be found; "" if a bookie knows it, or it is closed."""
    ensemble = metadata.fragments[-1].ensemble
    if metadata.state is State.CLOSED or any(name in registered for name in ensemble):
        return ""
    return f"no bookie returns the entries from {metadata.fragments[-1].first} on"


def _faults(extent: Extent, finding: Finding) -> list[str]:
    """What is wrong with a fragment, in words that do not grow with it."""
    first, last = extent.fragment.first, extent.last
    faults = [
        f"the scrub found {count} entries of {first} to {last} lacking, from "
        f"{finding.lacking_from[index]} on, on bookie {extent.fragment.ensemble[index]}"
        for index, count in sorted(finding.lacking.items())
    ]
    if finding.unreadable and not finding.silent:
        faults.append(f"the scrub could read entry {finding.unreadable[0][0]} from no bookie")
    return faults
