"""Ledgers that their writers left open: a writer that crashed, or one that sleeps for very long.

Invariants:
- A ledger is sealed by recovery, which fences its writer: what was acknowledged in it stays, and
  nothing is added any more.
- A row is sealed once, by whoever comes first; a row that has gone does not come back.
- Nobody's writer is fenced but one of the bucket's own ledgers, whatever a row names.
"""

from typing import Final

from blobit.committing import Change, Effect, Found
from blobit.garbage_scope import BucketScope
from blobit.ownership import is_of_bucket
from blobit.tables import LedgerState, Row, RowKey
from engine.errors import EngineError, NoSuchLedger

_NOTHING: Final = 0


def is_abandoned(scope: BucketScope, row: Row) -> bool:
    """Whether a ledger that is open was opened so long ago that nobody writes it any more."""
    created_ms: int = row["created_ms"]
    return created_ms + scope.settings.abandoned_ms <= scope.now_ms


async def seal(scope: BucketScope, row: Row) -> Row | None:
    """Seal an open ledger; its row then, or None if it has gone, or cannot be sealed now.

    Raises `MetadataUnavailable`.
    """
    ledger_id = row["ledger_id"]
    try:
        metadata = await scope.client.ledger_metadata(ledger_id)
        if not is_of_bucket(metadata.custom, scope.bucket_id):
            scope.report.foreign_ledgers += 1
            return None
        reader = await scope.client.open_ledger(ledger_id)
        stored_bytes = reader.metadata.length or 0
    except NoSuchLedger:
        # Its writer ended, or sleeps, between the row and the ledger.
        stored_bytes = _NOTHING
    except EngineError:
        scope.report.unreadable_ledgers += 1
        return None
    return await scope.committer.change(_sealing(scope, ledger_id, stored_bytes))


def _sealing(scope: BucketScope, ledger_id: int, stored_bytes: int) -> Change[Row | None]:
    key: RowKey = ("ledgers", (ledger_id,))

    def decide(found: Found) -> Effect[Row | None]:
        row = found[key]
        if row is None or row["state"] == LedgerState.SEALED:
            return Effect({}, row)
        sealed = {
            **row,
            "state": int(LedgerState.SEALED),
            "sealed_ms": scope.now_ms,
            "stored_bytes": stored_bytes,
        }
        return Effect({key: sealed}, sealed)

    def confirm(found: Found) -> Row | None:
        row = found[key]
        return row if row is not None and row["state"] == LedgerState.SEALED else None

    return Change((key,), decide, confirm, buckets=(scope.bucket_id,))
