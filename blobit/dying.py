"""The rule of dying: how a ledger whose bytes nobody names any more comes to its end.

A ledger's row is removed, and written down as dying, in one transaction, which the database refuses
while a row of `refs` names the ledger. From then on no object can be committed to it, whoever slept
for how long ever. Its bytes go later, when old ids have been readable for long enough.

Invariants:
- A ledger is deleted only after its row is gone: no row of an object names it then, and none will.
- Whoever finds a dying row finishes it; doing it twice is doing it once.
- A row of `ledgers` is never made again under the same id, so neither is a ledger that died.
- What a pinned checkpoint names stays readable: the pins are looked at after the dying rows, of all
  tablespaces where the bucket has lived.
- Only a ledger that says that it is the bucket's is deleted, whatever a row names.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from blobit.committing import Change, Effect, Found, LedgerGone
from blobit.errors import BlobError, CommitOutcomeUnknown
from blobit.garbage_report import PinGarbage
from blobit.garbage_scope import BucketScope, in_batches
from blobit.ownership import is_of_bucket
from blobit.tables import Row, RowKey
from engine.errors import EngineError, NoSuchLedger

_AT_ONCE: Final = 16


def _death(scope: BucketScope, ledger_id: int) -> Change[bool]:
    key: RowKey = ("ledgers", (ledger_id,))
    dying: Row = {
        "ledger_id": ledger_id,
        "bucket_id": scope.bucket_id,
        "since_ms": scope.now_ms,
    }

    def decide(found: Found) -> Effect[bool]:
        if found[key] is None:
            return Effect({}, False)
        return Effect({key: None, ("dying", (ledger_id,)): dying}, True)

    def confirm(found: Found) -> bool | None:
        return True if found[key] is None else None

    return Change((key,), decide, confirm, buckets=(scope.bucket_id,))


async def let_die(scope: BucketScope, ledger_ids: Sequence[int]) -> list[int]:
    """Set ledgers to die that nobody names; returns those that do now.

    A ledger that somebody names after all stays. Raises `MetadataUnavailable`.
    """
    dead: list[int] = []
    for some in in_batches(ledger_ids, scope.settings.batch_rows):
        died = await asyncio.gather(*[_let_die(scope, ledger_id) for ledger_id in some])
        dead += [ledger_id for ledger_id, done in zip(some, died, strict=True) if done]
    return dead


async def _let_die(scope: BucketScope, ledger_id: int) -> bool:
    try:
        return await scope.committer.change(_death(scope, ledger_id))
    except LedgerGone:
        # The database's word for a row that is still named.
        return False


async def finish(scope: BucketScope, dying: Sequence[Row]) -> list[int]:
    """Delete the bytes of ledgers that have been dying for the grace; returns their ids.

    What cannot be deleted now is left to the next round, and so is what pins hold. Raises
    `MetadataUnavailable`.
    """
    due = await _free(scope, [row["ledger_id"] for row in dying if is_due(scope, row)])
    gone: list[int] = []
    for some in in_batches(due, scope.settings.batch_rows):
        deleted: list[int] = []
        for few in in_batches(some, _AT_ONCE):
            told = await asyncio.gather(*[_delete(scope, ledger_id) for ledger_id in few])
            deleted += [ledger_id for ledger_id, done in zip(few, told, strict=True) if done]
        told = await asyncio.gather(*[_forget(scope, ledger_id) for ledger_id in deleted])
        gone += [ledger_id for ledger_id, done in zip(deleted, told, strict=True) if done]
    return gone


async def count_due(scope: BucketScope, dying: Sequence[Row]) -> int:
    """How many ledgers `finish` would delete; the report hears of the others as it does there."""
    due = await _free(scope, [row["ledger_id"] for row in dying if is_due(scope, row)])
    return len([one for one in due if await _is_own(scope, one)])


async def _free(scope: BucketScope, ledger_ids: Sequence[int]) -> list[int]:
    """The ledgers that no pinned checkpoint names; the report hears of the others."""
    places = dict.fromkeys([scope.core.info.tablespace, *scope.former])
    try:
        holding = [one for name in places for one in await scope.pinned.holding(name, ledger_ids)]
    except EngineError:
        # Who holds what cannot be told now.
        return []
    held: dict[int, int] = {}
    for one in holding:
        for ledger_id in one.ledger_ids:
            if ledger_id not in held:
                held[ledger_id] = await _size_of(scope, ledger_id)
        stored_bytes = sum(held[ledger_id] for ledger_id in one.ledger_ids)
        pin = one.pin
        scope.report.pins.append(
            PinGarbage(pin.name, pin.number, pin.expires_ms, len(one.ledger_ids), stored_bytes)
        )
    scope.report.pinned_ledgers, scope.report.pinned_bytes = len(held), sum(held.values())
    return [ledger_id for ledger_id in ledger_ids if ledger_id not in held]


async def _size_of(scope: BucketScope, ledger_id: int) -> int:
    try:
        return (await scope.client.ledger_metadata(ledger_id)).length or 0
    except EngineError:
        return 0


def is_due(scope: BucketScope, row: Row) -> bool:
    """Whether a ledger has been dying for long enough."""
    since_ms: int = row["since_ms"]
    return since_ms + scope.settings.grace_ms <= scope.now_ms


async def _is_own(scope: BucketScope, ledger_id: int) -> bool:
    """Whether a ledger may be deleted for this bucket, as far as it can be told now."""
    try:
        metadata = await scope.client.ledger_metadata(ledger_id)
    except NoSuchLedger:
        return True
    except EngineError:
        return False
    own = is_of_bucket(metadata.custom, scope.bucket_id)
    scope.report.foreign_ledgers += not own
    return own


async def _delete(scope: BucketScope, ledger_id: int) -> bool:
    if not await _is_own(scope, ledger_id):
        return False
    try:
        await scope.client.delete_ledger(ledger_id)
    except NoSuchLedger:
        return True
    except (EngineError, BlobError):
        return False
    return True


async def _forget(scope: BucketScope, ledger_id: int) -> bool:
    """Remove the row of a deleted ledger; False if nobody knows whether it is removed."""
    try:
        return await scope.committer.change(_forgetting(scope, ledger_id))
    except CommitOutcomeUnknown:
        return False


def _forgetting(scope: BucketScope, ledger_id: int) -> Change[bool]:
    key: RowKey = ("dying", (ledger_id,))
    gone, own = Effect[bool]({key: None}, True), (scope.bucket_id,)

    def confirm(found: Found) -> bool | None:
        return True if found[key] is None else None

    return Change((key,), lambda _: gone, confirm, buckets=own)
