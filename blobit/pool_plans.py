"""How a bucket's ledgers are made, and what rows say of them.

Invariants:
- A ledger has its row before it takes a byte, and the row names the bucket that the ledger's own
  metadata names.
- A row that was collected never comes back: sealing changes a row that is there, or nothing.
"""

from typing import TYPE_CHECKING

from blobit.committing import Change, Effect, Found
from blobit.ownership import LEDGER_OWNER
from blobit.settings import BlobSettings
from blobit.tables import BucketInfo, LedgerKind, LedgerState, Row, RowKey
from blobit.writers import LedgerPlan
from engine.ports.clock import Clock
from engine.transport.contract import PURPOSE

if TYPE_CHECKING:
    from blobit.bucket_core import BucketCore

_EXPIRING_OPEN_MS_MIN = 60_000


def plan_of(
    core: "BucketCore",
    kind: LedgerKind,
    clock: Clock,
    settings: BlobSettings,
    *,
    from_reserve: bool = False,
) -> LedgerPlan:
    """The plan of the ledgers of one kind of a bucket.

    With `from_reserve`, nearly full disks accept them, too. This is for copies after which other
    ledgers can be deleted.
    """
    info = core.info
    own = info.settings

    async def made(ledger_id: int) -> None:
        await core.change(_made(info, kind, ledger_id, clock.wall_ms()))

    async def sealed(ledger_id: int, stored_bytes: int) -> None:
        now_ms = clock.wall_ms()
        newest_ms = None if own.ttl_ms is None else now_ms + own.ttl_ms
        change = _sealed(info.bucket_id, ledger_id, stored_bytes, now_ms, newest_ms)
        await core.change(change)

    metadata = LEDGER_OWNER | {
        # By it the bucket knows its own: no other ledger is read or deleted for it.
        "bucket": str(info.bucket_id).encode(),
        # By it bookies know who may read the ledger.
        "name": info.name.encode(),
        "kind": str(int(kind)).encode(),
        "tablespace": info.tablespace.encode(),
    }
    if from_reserve:
        metadata |= {PURPOSE: b"compaction"}
    # Long before somebody takes the writer for dead.
    open_ms_max = settings.garbage.abandoned_ms // 2
    if kind is LedgerKind.EXPIRING and own.ttl_ms is not None:
        open_ms_max = min(open_ms_max, max(_EXPIRING_OPEN_MS_MIN, own.ttl_ms // 8))
    return LedgerPlan(
        metadata=metadata,
        bytes_max=min(own.ledger_bytes_max, settings.ledger_bytes_max),
        ensemble=own.ensemble,
        write_quorum=own.write_quorum,
        ack_quorum=own.ack_quorum,
        open_ms_max=open_ms_max,
        compression=own.compression,
        made=made,
        sealed=sealed,
    )


def _made(info: BucketInfo, kind: LedgerKind, ledger_id: int, now_ms: int) -> Change[bool]:
    key: RowKey = ("ledgers", (ledger_id,))
    row: Row = {
        "ledger_id": ledger_id,
        "bucket_id": info.bucket_id,
        "state": int(LedgerState.OPEN),
        "kind": int(kind),
        "created_ms": now_ms,
        "sealed_ms": None,
        "stored_bytes": None,
        "newest_expiry_ms": None,
    }

    def confirm(found: Found) -> bool | None:
        return True if found[key] is not None else None

    own = (info.bucket_id,)
    return Change((key,), lambda _: Effect({key: row}, True), confirm, buckets=own)


def _sealed(
    bucket_id: int, ledger_id: int, stored_bytes: int, now_ms: int, newest_ms: int | None
) -> Change[bool]:
    key: RowKey = ("ledgers", (ledger_id,))

    def decide(found: Found) -> Effect[bool]:
        row = found[key]
        if row is None or row["state"] == LedgerState.SEALED:
            return Effect({}, False)
        changes = {
            "state": int(LedgerState.SEALED),
            "sealed_ms": now_ms,
            "stored_bytes": stored_bytes,
            "newest_expiry_ms": newest_ms,
        }
        return Effect({key: row | changes}, True)

    return Change((key,), decide, lambda _: None, buckets=(bucket_id,))
