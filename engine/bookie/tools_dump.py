"""`dump`: the records of a bookie's journal, in order, each as plain values.

Invariants:
- Every record and every flaw appears once, in the order of segments and offsets.
- Entries' bytes are not shown; their ids, count and length are.
"""

from collections.abc import Iterator

import msgspec

from engine.bookie.index import Position
from engine.bookie.scan import Flaw, Found, JournalScan, first_flaw
from engine.bookie.segment import Kind, facts_of, origin_of
from engine.bookie.tools_folder import BookieFolder

Line = dict[str, object]


def dump_folder(folder: BookieFolder, *, ledger_id: int | None = None) -> Iterator[Line]:
    """One dictionary a record; with `ledger_id` only those of that ledger, and every flaw.

    Raises `FormatTooNew`, and `OSError` where the folder cannot be read.
    """
    scan = JournalScan(folder.disk, Position(0, 0))
    for found in scan.records():
        if isinstance(found, Flaw):
            yield _flaw_line(folder, found, "FLAW")
        elif ledger_id is None or _is_about(found, ledger_id):
            yield _record_line(folder, found)
    for flaw in scan.torn:
        yield _flaw_line(folder, flaw, "TORN")


def _is_about(found: Found, ledger_id: int) -> bool:
    no_ledger = (Kind.BATCH, Kind.SYNCED, Kind.DROPPED)
    return found.header.kind not in no_ledger and found.header.ledger_id == ledger_id


def _flaw_line(folder: BookieFolder, flaw: Flaw, kind: str) -> Line:
    return {"bookie": folder.name, "kind": kind, **flaw._asdict()}


def _record_line(folder: BookieFolder, found: Found) -> Line:
    header = found.header
    kind = Kind(header.kind)
    line: Line = {
        "bookie": folder.name,
        "kind": kind.name,
        "segment": found.segment,
        "offset": found.offset,
        "size_bytes": header.size_bytes,
    }
    if kind in (Kind.BATCH, Kind.SYNCED):
        return line | {
            "batch": header.ledger_id,
            "synced_offset": header.first,
            "wall_ms": header.lac,
            "batch_bytes": header.length,
            "records": header.entries,
        }
    if kind is Kind.DROPPED:
        return line | {"dropped_segment": header.first}
    line["ledger_id"] = header.ledger_id
    if kind in (Kind.RUN, Kind.MOVE):
        line |= {"first": header.first, "last": header.last, "lac": header.lac}
        line |= {"length": header.length, "intact": first_flaw(found) is None}
    if kind is Kind.MOVE:
        line["origin"] = list(origin_of(found.head))
    if kind is Kind.FACTS:
        line["facts"] = facts_line(found.head)
    return line


def facts_line(head: bytes) -> Line:
    """A FACTS record's values; bytes as hexadecimal text."""
    facts = facts_of(head)
    line: Line = {name: getattr(facts, name) for name in facts.__struct_fields__}
    line["key_hash"] = facts.key_hash.hex()
    line["custom"] = {name: value.hex() for name, value in facts.custom.items()}
    line["ensemble"] = list(facts.ensemble)
    return line


def to_json(line: Line) -> str:
    """One line of JSON."""
    return msgspec.json.encode(line, enc_hook=str).decode()
