"""Ending a ledger in the metadata: the writer's close, and what stragglers lack afterwards.

Invariants:
- A ledger is closed at its writer's LAC, or where somebody else's recovery or close has ended it.
- A ledger that may lack a replica is marked so in the same write that closes it; the mark is taken
  off only when the writer knows that every replica arrived after all.
"""

import msgspec

from engine.errors import EngineError
from engine.ledger.context import LedgerContext
from engine.ledger.recovery import recover
from engine.ledger.replication import Replication
from engine.metadata.ledgers import Held, LedgerMetadata, State


async def close_at(
    context: LedgerContext, held: Held, last: int, length: int, *, degraded: bool
) -> tuple[Held, bool]:
    """Close a ledger at `last`, or adopt its end, finishing a recovery that has begun.

    Tells whether the end is this call's own.
    """
    own = False

    def change(current: LedgerMetadata) -> LedgerMetadata | None:
        nonlocal own
        own = current.state is State.OPEN
        if not own:
            return None
        closed = msgspec.structs.replace(
            current, state=State.CLOSED, last_entry=last, length=length
        )
        return marked(closed) if degraded else closed

    held = await context.ledgers.update(held, change)
    if held.metadata.state is State.IN_RECOVERY:
        held = await recover(context, held)
    return held, own


async def settle_late(context: LedgerContext, held: Held, replication: Replication) -> None:
    """After a close that did not wait: take the mark off when the last replica has arrived.

    If it does not arrive the ledger goes into the repair queue. Best effort: a marked ledger that
    is in no queue is found there by the auditor.
    """
    settled = await replication.settled(context.settings.straggler_close_ms)
    try:
        if settled:
            await context.ledgers.update(held, _unmarked)
        else:
            await context.ledgers.request_repair(held.metadata.ledger_id, "a replica is missing")
    except EngineError:
        return


def marked(metadata: LedgerMetadata) -> LedgerMetadata:
    """The metadata of a ledger that may lack a replica."""
    return msgspec.structs.replace(metadata, degraded=True)


def _unmarked(current: LedgerMetadata) -> LedgerMetadata | None:
    return msgspec.structs.replace(current, degraded=False) if current.degraded else None
