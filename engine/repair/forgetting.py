"""Forgetting a bookie that will not come back: it is in no list of the cluster any more.

Invariants:
- A bookie that is registered, or that any ledger names, is not forgotten.
- While it is looked for, no new ledger is placed on it. One that was being placed at that very
  moment is repaired like any ledger of a lost bookie: that the bookie was given up stays known.
- A folder that comes back nevertheless is a bookie like any other.
"""

from engine.errors import InvalidRequest, KeyExists
from engine.metadata.bookies import BOOTS, DECOMMISSIONS, FOLDERS, LOST
from engine.metadata.garbage_asks import GARBAGE
from engine.repair.outlook import Workshop
from engine.repair.survey import survey


async def forget(workshop: Workshop, bookie_id: str) -> None:
    """Forget a bookie. Twice is harmless.

    Raises `InvalidRequest` for one that never was, that serves, or that ledgers name;
    `MetadataUnavailable`.
    """
    bookies, store = workshop.bookies, workshop.store
    if bookie_id not in await bookies.known():
        raise InvalidRequest(f"there never was a bookie {bookie_id}, or it is forgotten")
    leaving = bookie_id in await bookies.decommissioning()
    if not leaving:
        await _make(workshop, f"{DECOMMISSIONS}/{bookie_id}", b"to be forgotten")
    refusal = await _refusal(workshop, bookie_id)
    if refusal:
        if not leaving:
            await store.delete(f"{DECOMMISSIONS}/{bookie_id}")
        raise InvalidRequest(f"bookie {bookie_id} is not forgotten: {refusal}")
    await _make(workshop, f"{LOST}/{bookie_id}", str(workshop.clock.wall_ms()).encode())
    await store.delete(f"{BOOTS}/{bookie_id}")
    await store.delete(f"{FOLDERS}/{bookie_id}")
    await store.delete(f"{GARBAGE}/{bookie_id}")
    await store.delete(f"{DECOMMISSIONS}/{bookie_id}")


async def _refusal(workshop: Workshop, bookie_id: str) -> str:
    if bookie_id in await workshop.bookies.available():
        return "it is there; stop it first"
    naming = [each.ledger_id async for each in survey(workshop) if bookie_id in each.bookies()]
    if naming:
        return (
            f"{len(naming):,} ledgers name it, ledger {naming[0]} among them; "
            "`herdbook bookie decommission` has them copied elsewhere"
        )
    for ledger_id, why in sorted(workshop.unreadable.items()):
        return f"ledger {ledger_id} may name it: {why}"
    return ""


async def _make(workshop: Workshop, key: str, value: bytes) -> None:
    try:
        await workshop.store.create(key, value)
    except KeyExists:
        return
