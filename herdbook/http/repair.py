"""`/api/v1/repair`: what is being repaired, and having it checked.

A scrub reads every replica of every ledger. It runs in this process until it is done, or the node
stops; the next one goes on where it was.

Invariants:
- One scrub runs at a time in this process. Another node, the auditor or the command may run one
  beside it: each reads everything, which harms nothing, and the mark is of whoever wrote it last.
"""

import logging
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from broker.http.rest_settings import Reason
from broker.http.routes import Told
from broker.http.shapes import Changed
from engine.errors import EngineError
from engine.metadata.repairs import RepairQueue
from engine.repair.outlook import Workshop
from engine.repair.scrub import Scrub, ScrubMark
from engine.repair.status import RepairStatus, repair_status
from herdbook.http.house import House
from herdbook.http.routes import ADMIN, Ask, Route

_logger: Final = logging.getLogger(__name__)


class QueuedFacts(msgspec.Struct):
    """A ledger that waits: why, and what the last try met ("" before the first)."""

    ledger_id: int
    reason: str
    blocked: str
    under_way: bool


class ScrubFacts(msgspec.Struct):
    """The newest scrub: ledgers and entries read, what was wrong, replicas without an answer.

    `running`: one runs in the process that was asked; another process may run one.
    """

    running: bool
    finished: bool
    started_ms: int
    ledgers: int
    entries: int
    faults: int
    silent: int
    faulty: list[int]


class RepairFacts(msgspec.Struct):
    """Repair at a glance. `away_bookies` are given up at a moment of the wall clock."""

    on: bool
    reason: str
    auditor: str | None
    lost_bookies: tuple[str, ...]
    away_bookies: dict[str, int]
    leaving_bookies: tuple[str, ...]
    queued: int
    ledgers: list[QueuedFacts]
    unreadable: tuple[int, ...]
    scrub: ScrubFacts | None


class RepairQuery(msgspec.Struct):
    """How many of the ledgers that wait are named."""

    limit: Annotated[int, Meta(ge=0, le=1_000)] = 100


async def _scrub(house: House) -> None:
    ledgers = house.ledgers
    workshop = Workshop(
        store=ledgers.store, transport=ledgers.transport, clock=ledgers.clock, rng=ledgers.rng
    )
    try:
        mark = await Scrub(workshop).run()
    except EngineError as error:
        _logger.warning("the scrub ended before it was done: %s", error)
    else:
        _logger.info("scrubbed %d ledgers, %d of them faulty", mark.ledgers, mark.faults)


async def show_repair(house: House, ask: Ask) -> Told:
    """Its state, from the metadata store."""
    status: RepairStatus = await repair_status(house.ledgers.store, ask.query.limit)
    scrub = status.scrub
    return Told(
        RepairFacts(
            on=status.disabled is None,
            reason=status.disabled or "",
            auditor=status.auditor,
            lost_bookies=status.lost_bookies,
            away_bookies=status.away_bookies,
            leaving_bookies=status.leaving_bookies,
            queued=status.queued,
            ledgers=[QueuedFacts(*msgspec.structs.astuple(each)) for each in status.ledgers],
            unreadable=status.unreadable,
            scrub=None if scrub is None else _scrub_facts(scrub, "scrub" in house.chores.running),
        )
    )


def _scrub_facts(mark: ScrubMark, running: bool) -> ScrubFacts:
    return ScrubFacts(
        running,
        mark.finished,
        mark.started_ms,
        mark.ledgers,
        mark.entries,
        mark.faults,
        mark.silent,
        list(mark.faulty),
    )


async def switch_on(house: House, ask: Ask) -> Told:
    """Let repair go on."""
    queue = RepairQueue(house.ledgers.store)
    changed = await queue.disabled() is not None
    await queue.enable()
    return Told(Changed(changed))


async def switch_off(house: House, ask: Ask) -> Told:
    """Repair nothing until it is switched on again."""
    queue = RepairQueue(house.ledgers.store)
    changed = await queue.disabled() is None
    why = ask.body.reason if ask.body is not None else ""
    await queue.disable(why or f"by {ask.who.name}")
    return Told(Changed(changed))


async def scrub(house: House, ask: Ask) -> Told:
    """Begin to read all replicas."""
    return Told(Changed(house.chores.begin("scrub", _scrub(house))), 202)


ROUTES: Final = (
    Route(
        "GET",
        "/repair",
        "show_repair",
        "What is being repaired.",
        ADMIN,
        show_repair,
        RepairQuery,
        reply=RepairFacts,
        other_statuses=(400,),
    ),
    Route(
        "POST",
        "/repair/on",
        "switch_repair_on",
        "Let repair go on.",
        ADMIN,
        switch_on,
        reply=Changed,
    ),
    Route(
        "POST",
        "/repair/off",
        "switch_repair_off",
        "Repair nothing for a while.",
        ADMIN,
        switch_off,
        body=Reason,
        body_optional=True,
        reply=Changed,
        other_statuses=(400,),
    ),
    Route(
        "POST",
        "/repair/scrub",
        "scrub",
        "Read all replicas and have repaired what is wrong; false if this process does already.",
        ADMIN,
        scrub,
        reply=Changed,
        status=202,
    ),
)
