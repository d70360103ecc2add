"""`check`: is every byte of a bookie's folder what was written, and do index and journal agree?

Invariants:
- Every header, head and entry digest of every segment is verified; nothing is taken from the index.
- A torn tail, which the next start cuts, is a note; so are damaged entries of which the index
  names another copy, verified by the same pass. Anything else amiss is a problem.
- Memory grows with the problems and the ledgers, never with the records.
"""

from dataclasses import dataclass, field
from pathlib import Path

from engine.bookie.index import PLACES_MAX, Index, Place, Position
from engine.bookie.indexing import (
    DAMAGE_KEY,
    DAMAGED,
    FENCE,
    TOMBSTONE,
    fact_key,
    gaps,
    released_of,
)
from engine.bookie.scan import Flaw, Found, JournalScan, SegmentScan, first_flaw
from engine.bookie.segment import Kind
from engine.bookie.tools_folder import BookieFolder, open_index
from engine.errors import FolderError
from engine.limits import ENTRY_ID_MAX

_LEDGERS_PER_PAGE = 1_024
_RUNS = (Kind.RUN, Kind.MOVE)


@dataclass(frozen=True)
class Problem:
    """Something that is wrong. Numbers are -1 where they do not apply or cannot be told."""

    reason: str
    segment: int = -1
    offset: int = -1
    size_bytes: int = -1
    ledger_id: int = -1
    first: int = -1
    last: int = -1


@dataclass
class CheckReport:
    """What a check of one bookie's folder saw."""

    bookie_id: str
    folder: Path
    segments: int = 0
    size_bytes: int = 0
    records: int = 0
    entries: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def check_folder(folder: BookieFolder) -> CheckReport:
    """Check one bookie's folder. Raises `FormatTooNew`, and `OSError` where it cannot be read."""
    report = CheckReport(folder.name, folder.path)
    if folder.flaw:
        report.problems.append(Problem(folder.flaw))
    if not (folder.path / "index").is_dir():
        report.notes.append("there is no index; the next start makes it from the journal")
        _Check(folder, report, None).run()
        return report
    try:
        with open_index(folder) as index:
            _Check(folder, report, index).run()
    except FolderError as error:
        report.problems.append(Problem(f"the index cannot be opened: {error}"))
        _Check(folder, report, None).run()
    return report


class _Check:
    def __init__(self, folder: BookieFolder, report: CheckReport, index: Index | None) -> None:
        self._folder = folder
        self._report = report
        self._index = index
        self._covered = Position(0, 0) if index is None else index.position()
        self._matched = 0
        self._corrupt: list[Flaw] = []

    def run(self) -> None:
        """One pass over the journal, then what only the index knows."""
        report = self._report
        scan = JournalScan(self._folder.disk, self._covered)
        for found in scan.records():
            if isinstance(found, Flaw):
                self._flaw(found)
            else:
                self._record(found, newest=found.segment == scan.segments[-1])
        for flaw in self._corrupt:
            if scan.is_torn(flaw):
                scan.torn.append(flaw)
            else:
                self._flaw(flaw)
        report.segments = len(scan.segments)
        report.size_bytes = sum(scan.size_bytes.values())
        for flaw in scan.torn:
            report.notes.append(
                f"segment {flaw.segment}: a torn tail of {flaw.size_bytes} bytes at offset "
                f"{flaw.offset}, never acknowledged; the next start cuts it"
            )
        if self._index is not None:
            self._index_alone(self._index)

    def _record(self, found: Found, *, newest: bool) -> None:
        self._report.records += 1
        if found.header.kind in _RUNS:
            self._report.entries += found.header.entries
            flaw = first_flaw(found)
            if flaw is not None and newest:
                # Whether it is of a torn batch shows at the end.
                self._corrupt.append(flaw)
            elif flaw is not None:
                self._flaw(flaw)
        # What lies past the index's position is indexed by the next start.
        if self._index is not None and found.position < self._covered:
            self._compare(found, self._index)

    def _flaw(self, flaw: Flaw) -> None:
        if flaw.first < 0 or not self._written_again(flaw):
            self._report.problems.append(_problem(flaw))
            return
        self._report.notes.append(
            f"entries {flaw.first} to {flaw.last} of ledger {flaw.ledger_id} are damaged in "
            f"segment {flaw.segment} at offset {flaw.offset}, and were written again elsewhere"
        )

    def _written_again(self, flaw: Flaw) -> bool:
        """Whether the index names other bytes for every one of the entries."""
        if self._index is None or Position(flaw.segment, flaw.offset) >= self._covered:
            return False
        places = _places(self._index, flaw.ledger_id, flaw.first, flaw.last)
        if any(gaps(places, flaw.first, flaw.last)):
            return False
        here = (flaw.segment, flaw.offset)
        return all(
            place.segment != DAMAGED and (place.segment, place.offset) != here for place in places
        )

    def _compare(self, found: Found, index: Index) -> None:
        header = found.header
        ledger_id = header.ledger_id
        buried = index.fact(fact_key(TOMBSTONE, ledger_id)) is not None
        if header.kind == Kind.TOMBSTONE and not buried:
            self._amiss("the index does not know that the ledger was deleted", found)
        elif header.kind == Kind.FENCE and not buried:
            if index.fact(fact_key(FENCE, ledger_id)) is None:
                self._amiss("the index does not know that the ledger was fenced", found)
        elif header.kind in _RUNS and not buried:
            places = _places(index, ledger_id, header.first, header.last)
            for first, last in _not_released(found, gaps(places, header.first, header.last), index):
                self._amiss("the index lacks entries that the journal holds", found, first, last)
            for place in places:
                if (place.segment, place.offset) == found.position:
                    self._match(place, found)

    def _match(self, place: Place, found: Found) -> None:
        header = found.header
        self._matched += 1
        inside = header.first <= place.first <= place.last <= header.last
        same = (header.size_bytes, header.first) == (place.size_bytes, place.record_first)
        if not (inside and same):
            self._amiss("the index describes a record otherwise than it is", found)

    def _index_alone(self, index: Index) -> None:
        if index.fact(DAMAGE_KEY) is not None:
            self._report.problems.append(
                Problem("an unreadable header was met earlier: absent entries count as unknown")
            )
        above, pointing = -1, 0
        while ledgers := index.ledgers(above, _LEDGERS_PER_PAGE):
            for ledger_id in ledgers:
                for place in _places(index, ledger_id, 0, ENTRY_ID_MAX):
                    if place.segment == DAMAGED:
                        reason = "damaged entries wait for repair"
                        self._report.problems.append(_place_problem(place, reason))
                    pointing += place.segment != DAMAGED
            above = ledgers[-1]
        if pointing != self._matched:
            self._find_astray(index)

    def _find_astray(self, index: Index) -> None:
        """Some place names no record that the pass met: find out which. Slow, and rarely needed."""
        salt = self._folder.identity.salt if self._folder.identity is not None else None
        present = set(JournalScan(self._folder.disk, self._covered).segments)
        by_segment: dict[int, list[Place]] = {}
        above = -1
        while ledgers := index.ledgers(above, _LEDGERS_PER_PAGE):
            for ledger_id in ledgers:
                for place in _places(index, ledger_id, 0, ENTRY_ID_MAX):
                    if place.segment != DAMAGED:
                        by_segment.setdefault(place.segment, []).append(place)
            above = ledgers[-1]
        for segment in sorted(by_segment):
            offsets: set[int] = set()
            if segment in present:
                scan = SegmentScan(self._folder.disk, segment, salt)
                offsets = {one.offset for one in scan.records() if isinstance(one, Found)}
            for place in by_segment[segment]:
                if place.offset not in offsets:
                    reason = "the index points at a record that is not there"
                    self._report.problems.append(_place_problem(place, reason))

    def _amiss(self, reason: str, found: Found, first: int = -1, last: int = -1) -> None:
        header = found.header
        self._report.problems.append(
            Problem(
                reason,
                found.segment,
                found.offset,
                header.size_bytes,
                header.ledger_id,
                first,
                last,
            )
        )


def _not_released(
    found: Found, lacking: list[tuple[int, int]], index: Index
) -> list[tuple[int, int]]:
    """The lacking ranges, without those that were given back after the record was written."""
    for one in released_of(index, found.header.ledger_id) if lacking else ():
        if found.position < one.until:
            lacking = [
                piece
                for first, last in lacking
                for piece in ((first, min(last, one.first - 1)), (max(first, one.last + 1), last))
                if piece[0] <= piece[1]
            ]
    return lacking


def _places(index: Index, ledger_id: int, first: int, last: int) -> list[Place]:
    places: list[Place] = []
    while True:
        found = index.find(ledger_id, first, last)
        places += found
        if len(found) < PLACES_MAX:
            return places
        first = found[-1].last + 1


def _problem(flaw: Flaw) -> Problem:
    segment, offset, size_bytes, reason, ledger_id, first, last = flaw
    return Problem(reason, segment, offset, size_bytes, ledger_id, first, last)


def _place_problem(place: Place, reason: str) -> Problem:
    return Problem(
        reason,
        place.segment,
        place.offset,
        place.size_bytes,
        place.ledger_id,
        place.first,
        place.last,
    )
