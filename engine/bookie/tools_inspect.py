"""`inspect`: what a bookie's folder holds: ledgers, ranges, fences, facts, and where space goes.

Invariants:
- What is said of ledgers comes from the journal; live bytes come from the index, if there is one.
"""

from typing import Any

import msgspec

from engine.bookie.compaction import live_bytes
from engine.bookie.rebuild import Remains
from engine.bookie.tools_dump import facts_line
from engine.bookie.tools_folder import INDEX, BookieFolder, open_index
from engine.bookie.tools_gather import gather

Line = dict[str, Any]


def inspect_folder(folder: BookieFolder, *, ledger_id: int | None = None) -> Line:
    """One dictionary for the folder; with `ledger_id` only that ledger is in it.

    Raises `FormatTooNew`, `FolderMismatch`, and `OSError` where the folder cannot be read.
    """
    gathered = gather(folder)
    live: dict[int, int] = {}
    if (folder.path / INDEX).is_dir():
        with open_index(folder) as index:
            live = live_bytes(index)
    identity = folder.identity
    space = folder.disk.space()
    return {
        "bookie": folder.name,
        "folder": str(folder.path),
        "cluster": identity.cluster_id if identity is not None else None,
        "boot": identity.boot if identity is not None else None,
        "flaws": gathered.flaws,
        "disk_bytes": space.total_bytes,
        "free_bytes": space.free_bytes,
        "segments": [
            {"segment": segment, "size_bytes": size_bytes, "live_bytes": live.get(segment, 0)}
            for segment, size_bytes in sorted(gathered.segment_bytes.items())
        ],
        "ledgers": [
            _ledger_line(one, remains)
            for one, remains in sorted(gathered.ledgers.items())
            if ledger_id in (None, one)
        ],
    }


def _ledger_line(ledger_id: int, remains: Remains) -> Line:
    newest = remains.facts[-1] if remains.facts else None
    return {
        "ledger_id": ledger_id,
        "entries": remains.entries_held,
        "ranges": [list(one) for one in remains.ranges],
        "fenced": remains.fenced,
        "deleted": remains.deleted,
        "closed": newest is not None and newest.closed_last >= -1,
        "facts": [facts_line(msgspec.msgpack.encode(facts)) for facts in remains.facts],
    }
