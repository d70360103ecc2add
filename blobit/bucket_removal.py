"""What is done when a bucket was deleted: everything of it goes, and then its home.

Invariants:
- A bucket's row of `homes` goes last of all in its tablespace, and only when nothing names it: the
  database refuses it before. From then on nothing can be written for the bucket, whoever slept for
  how long ever.
- Its ledgers go by the rule of dying. It is remembered until none of them is left.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from blobit.committing import Change, Effect
from blobit.dying import finish, let_die
from blobit.errors import NoSuchBucket
from blobit.garbage_scope import BucketScope, batches
from blobit.tables import Row, RowKey, key_of

_ROUNDS_MAX = 10


async def remove_bucket(scope: BucketScope, ledgers: Sequence[Row]) -> bool:
    """Remove what is left of a deleted bucket; True when nothing is.

    `ledgers` are its rows of that table. Raises `MetadataUnavailable` and what is in
    `herd.errors`.
    """
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
    dying = [row async for row in _own(scope, scope.rows.scan("dying"))]
    gone = await finish(scope, dying)
    scope.report.deleted_ledgers += len(gone)
    scope.report.waiting_ledgers += len(dying) - len(gone)
    return len(gone) == len(dying)


async def _own(scope: BucketScope, rows: AsyncIterator[Row]) -> AsyncIterator[Row]:
    async for row in rows:
        if row["bucket_id"] == scope.bucket_id:
            yield row


async def _remove_rows(scope: BucketScope, ledgers: Sequence[Row]) -> None:
    """Remove the rows of everything that the bucket holds."""
    prefix = (scope.bucket_id,)
    for table in ("objects", "expiries"):
        await _remove_all(scope, table, scope.rows.scan(table, first=prefix, last=prefix))
    await _remove_all(scope, "counts", scope.rows.scan("counts", first=prefix, last=prefix))
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
    change = Change[bool]((), lambda _: Effect(gone, True), lambda _: True, 64 * len(keys))
    await scope.committer.change(change)


async def _remove_home(scope: BucketScope) -> bool:
    """Whether nothing of the bucket is left, and nothing can come any more."""
    key: RowKey = ("homes", (scope.bucket_id,))
    change = Change[bool](
        (key,),
        lambda _: Effect({key: None, ("open_buckets", (scope.bucket_id,)): None}, True),
        lambda found: True if found[key] is None else None,
    )
    try:
        return await scope.committer.change(change)
    except NoSuchBucket:
        # The database's word for a home that is still named.
        return False
