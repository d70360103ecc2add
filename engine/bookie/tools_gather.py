"""What a bookie's folder remembers of each ledger, from its journal alone.

Invariants:
- The index is not asked: after a loss nobody knows whether it is right.
- Only entries whose digests match count as held.
- A copy that compaction made of facts counts at the position where they were first written.
"""

from dataclasses import dataclass, field

from engine.bookie.index import Position
from engine.bookie.rebuild import Remains
from engine.bookie.scan import Flaw, Found, JournalScan, first_flaw
from engine.bookie.segment import Kind, facts_of
from engine.bookie.tools_folder import BookieFolder
from engine.run import NO_ENTRY
from engine.transport.contract import LedgerFacts


@dataclass
class Gathered:
    """All that one folder remembers. `flaws` counts what could not be read on the way."""

    ledgers: dict[int, Remains] = field(default_factory=dict)
    segment_bytes: dict[int, int] = field(default_factory=dict)
    flaws: int = 0


def gather(folder: BookieFolder) -> Gathered:
    """Read a folder's whole journal. Raises `FormatTooNew`, and `OSError` for a failing disk."""
    gathered = Gathered()
    written: dict[int, list[tuple[Position, LedgerFacts]]] = {}
    scan = JournalScan(folder.disk, Position(0, 0))
    for found in scan.records():
        if isinstance(found, Flaw):
            gathered.flaws += 1
        elif found.header.kind == Kind.FACTS:
            origin = _written_at(found)
            facts = facts_of(found.head)
            gathered.ledgers.setdefault(facts.ledger_id, Remains())
            written.setdefault(facts.ledger_id, []).append((origin, facts))
        else:
            _learn(gathered, found)
    for ledger_id, history in written.items():
        for _, facts in sorted(history, key=lambda item: item[0]):
            gathered.ledgers[ledger_id].learn(facts)
    gathered.segment_bytes = scan.size_bytes
    return gathered


def _written_at(found: Found) -> Position:
    header = found.header
    return found.position if header.first == NO_ENTRY else Position(header.first, header.lac)


def _learn(gathered: Gathered, found: Found) -> None:
    header = found.header
    if header.kind in (Kind.BATCH, Kind.SYNCED, Kind.DROPPED):
        return
    remains = gathered.ledgers.setdefault(header.ledger_id, Remains())
    if header.kind == Kind.TOMBSTONE:
        remains.deleted = True
        remains.ranges.clear()
    elif header.kind == Kind.FENCE:
        remains.fenced = True
    elif not remains.deleted:
        flaw = first_flaw(found)
        last = header.last if flaw is None else flaw.first - 1
        gathered.flaws += flaw is not None
        if last >= header.first:
            remains.hold(header.first, last)
