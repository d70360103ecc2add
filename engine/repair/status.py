"""What an operator sees of repair, read from the metadata store alone."""

import msgspec

from engine.metadata.bookies import DECOMMISSIONS, Bookies
from engine.metadata.contract import MetadataStore
from engine.metadata.repairs import RepairItem, RepairQueue
from engine.repair.absences import read_absences
from engine.repair.auditor import AUDITOR, UNREADABLE
from engine.repair.repairer import LOCKS
from engine.repair.scrub import ScrubMark, read_mark


class QueuedLedger(msgspec.Struct, frozen=True):
    """A ledger that waits: why it is there, and what the last try met ("" before the first)."""

    ledger_id: int
    reason: str
    blocked: str
    under_way: bool


class RepairStatus(msgspec.Struct, frozen=True):
    """Everything at a glance. `queued` counts all, `ledgers` are at most those asked for.

    `away_bookies` are not there now and will be given up at a moment of the wall clock, in
    milliseconds, unless they come back; 0 while repair is off, for nobody counts.
    Forgotten bookies are not among the lost.
    `unreadable` are ledgers, at most the first hundred, whose metadata the auditor cannot read.
    """

    disabled: str | None
    auditor: str | None
    lost_bookies: tuple[str, ...]
    away_bookies: dict[str, int]
    leaving_bookies: tuple[str, ...]
    queued: int
    ledgers: tuple[QueuedLedger, ...]
    scrub: ScrubMark | None
    unreadable: tuple[int, ...] = ()


async def repair_status(store: MetadataStore, ledgers_max: int = 100) -> RepairStatus:
    """Read the state of repair. Raises `MetadataUnavailable`."""
    queue, bookies = RepairQueue(store), Bookies(store)
    known = set(await bookies.known())
    auditor = await store.get(AUDITOR)
    ids = await queue.ids()
    locked = set(await store.children(LOCKS))
    ledgers: list[QueuedLedger] = []
    for ledger_id in ids[:ledgers_max]:
        held = await queue.read(ledger_id)
        if held is not None:
            item: RepairItem = held.item
            under_way = str(ledger_id) in locked
            ledgers.append(QueuedLedger(ledger_id, item.text, item.blocked, under_way))
    disabled = await queue.disabled()
    lost = tuple(name for name in await bookies.given_up() if name in known)
    away = await read_absences(store)
    if disabled is not None:
        away = dict.fromkeys(sorted(known.difference(await bookies.available(), lost)), 0)
    return RepairStatus(
        disabled=disabled,
        auditor=None if auditor is None else auditor.value.decode(errors="replace"),
        lost_bookies=lost,
        away_bookies=away,
        leaving_bookies=tuple(await store.children(DECOMMISSIONS)),
        queued=len(ids),
        ledgers=tuple(ledgers),
        scrub=await read_mark(store),
        unreadable=tuple((await store.page(UNREADABLE)).numbers),
    )
