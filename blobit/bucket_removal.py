"""Removes a deleted bucket: first everything that it has, then its home.

Invariants:
- Nothing is removed before the bucket's counts are shut, so nothing more can be put into it.
- A bucket's row in `homes` is the last one deleted in its tablespace, together with the shut
  counts, and only when nothing else refers to it: until then the database refuses. From then on
  nothing can be written for the bucket, even by a process that was paused for a long time.
- Its ledgers are collected like those of deleted objects. The bucket is remembered until none of
  them is left.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from blobit.committing import Change, Effect
from blobit.counting import all_keys
from blobit.dying import finish, let_die
from blobit.garbage_scope import BucketScope, batches
from blobit.registry import shut_bucket
from blobit.tables import Row, RowKey, key_of
from herd.errors import ForeignKeyViolation

_ROUNDS_MAX = 10


async def remove_bucket(scope: BucketScope, ledgers: Sequence[Row]) -> bool:
    """Remove what is left of a deleted bucket; True when nothing is.

    `ledgers` are its rows of that table. Raises `MetadataUnavailable` and what is in
    `herd.errors`.
    """
    await shut_bucket(scope.committer, scope.bucket_id)
    for _ in range(_ROUNDS_MAX):
        await _remove_rows(scope, ledgers)
        scope.report.dead_ledgers += len(
            await let_die(scope, [row["ledger_id"] for row in ledgers])
        )
        if await _remove_home(scope):
            break
        ledgers = await scope.rows.ledgers(scope.bucket_id)
    else:
        return False
    dying = await scope.rows.dying(scope.bucket_id)
    gone = await finish(scope, dying)
    scope.report.deleted_ledgers += len(gone)
    scope.report.waiting_ledgers += len(dying) - len(gone)
    return len(gone) == len(dying)


async def _remove_rows(scope: BucketScope, ledgers: Sequence[Row]) -> None:
    """Remove the rows of everything that the bucket holds."""
    prefix = (scope.bucket_id,)
    for table in ("objects", "expiries"):
        await _remove_all(scope, table, scope.rows.scan(table, first=prefix, last=prefix))
    uploads = scope.rows.scan("uploads", first=prefix, last=prefix)
    async for some in batches(uploads, scope.settings.batch_rows):
        for upload in some:
            own = (upload["upload_id"],)
            parts = scope.rows.scan("upload_parts", first=own, last=own)
            await _remove_all(scope, "upload_parts", parts)
        await _remove(scope, [key_of("uploads", upload) for upload in some])
    for ledger in ledgers:
        held = (ledger["ledger_id"],)
        await _remove_all(scope, "refs", scope.rows.scan("refs", first=held, last=held))


async def _remove_all(scope: BucketScope, table: str, rows: AsyncIterator[Row]) -> None:
    async for some in batches(rows, scope.settings.batch_rows):
        await _remove(scope, [key_of(table, row) for row in some])
        await asyncio.sleep(0)


async def _remove(scope: BucketScope, keys: Sequence[RowKey]) -> None:
    gone: dict[RowKey, Row | None] = dict.fromkeys(keys)
    change = Change[bool]((), lambda _: Effect(gone, True), lambda _: None, 64 * len(keys))
    await scope.committer.change(change)


async def _remove_home(scope: BucketScope) -> bool:
    """Whether nothing of the bucket is left, and nothing can come any more."""
    own = (scope.bucket_id,)
    homes: list[RowKey] = [("homes", own), ("open_buckets", own), ("moving_buckets", own)]
    counts = all_keys(scope.bucket_id)
    try:
        async with scope.rows.transaction() as transaction:
            found = await transaction.lock([*homes, *counts])
            gone: dict[RowKey, Row | None] = {key: None for key, row in found.items() if row}
            # Rows that name a home are deleted before it, in the same transaction.
            await transaction.write({key: None for key in counts if key in gone})
            await transaction.write({key: None for key in homes if key in gone})
            if gone:
                await transaction.commit()
    except ForeignKeyViolation:
        return False
    return True
