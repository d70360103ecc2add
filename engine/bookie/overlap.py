"""Appends that touch ids which are, or may be, held already.

Invariants:
- An id that is held intact is not stored again; other bytes for it are a conflict.
- An id whose copy cannot be read, or fails its digest, counts as not held.
"""

from collections.abc import Sequence

from engine.bookie.ledger_state import LedgerState
from engine.bookie.storage import Storage
from engine.limits import ENTRY_BYTES_MAX
from engine.run import Run


class Conflict(Exception):
    """An id is held with another digest."""


async def not_held(storage: Storage, state: LedgerState, runs: Sequence[Run]) -> list[Run]:
    """The parts of arriving runs that are not held intact. Raises `Conflict`.

    What is queued must have been settled before: only durable copies count.
    """
    wanted: list[Run] = []
    for run in runs:
        wanted += await _not_held(storage, state, run)
    return wanted


async def _not_held(storage: Storage, state: LedgerState, run: Run) -> list[Run]:
    wanted: list[Run] = []
    following = run.first
    while following <= run.last:
        found = await storage.find(state, following, run.last, ENTRY_BYTES_MAX, verify=True)
        for held in found.runs:
            if held.table != run.cut(held.first, held.last).table:
                raise Conflict
            following = held.last + 1
        absent = found.missing or found.unknown
        if absent is not None:
            wanted.append(run.cut(*absent))
            following = absent[1] + 1
    return wanted
