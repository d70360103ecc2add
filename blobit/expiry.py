"""Expiry: removes objects whose time is over, and uploads that nobody completed.

Readers see neither from that moment on; a round removes their rows. Ledgers of objects that expire
hold nothing else, are never compacted, and are deleted whole after their last object has gone.

Invariants:
- A row of `expiries` is only a hint. The object's own row decides, and is read under its lock: an
  object that was written again, or has another expiry by now, stays.
- An upload that is renewed after a round has found it is left alone.
- References of an object or an upload are removed in the transaction that removes it.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from blobit.bucket_core import BucketCore, Known
from blobit.committing import Change, Effect, Found
from blobit.garbage_scope import BucketScope, batches
from blobit.object_id import ObjectId
from blobit.rows import Rows
from blobit.tables import PART_ROOM, Row, RowKey
from engine.expiry import CLOCK_DIFFERENCE_MS, is_over


def is_expired(row: Mapping[str, Any], now_ms: int) -> bool:
    """Whether a row has expired, by this clock and by the writer's clock."""
    expires_ms = row["expires_ms"]
    return expires_ms is not None and is_over(expires_ms, now_ms)


async def expire_objects(scope: BucketScope) -> int:
    """Remove the objects whose time is over; returns how many.

    Raises `MetadataUnavailable` and what is in `herd.errors`.
    """
    count = 0
    # If a hint is removed before its object expires, nothing would ever remove the object.
    last = (scope.bucket_id, scope.now_ms - CLOCK_DIFFERENCE_MS)
    due = scope.rows.scan("expiries", first=last[:1], last=last)
    async for hints in batches(due, scope.settings.batch_rows):
        if scope.dry_run:
            count += await _count_expired(scope, hints)
        else:
            count += sum(await asyncio.gather(*[_expire(scope, hint) for hint in hints]))
    return count


async def _count_expired(scope: BucketScope, hints: list[Row]) -> int:
    names = {hint["name"] for hint in hints}
    found = [await scope.rows.get("objects", (scope.bucket_id, name)) for name in sorted(names)]
    return sum(row is not None and is_expired(row, scope.now_ms) for row in found)


async def _expire(scope: BucketScope, hint: Row) -> bool:
    """Remove the object that a hint names, or the hint alone; False: the object stays."""
    known = Known()
    return await scope.core.commit(_expiring(scope, hint, known), known)


def _expiring(scope: BucketScope, hint: Row, known: Known) -> Change[bool]:
    object_key = scope.core.object_key(hint["name"])
    hint_key: RowKey = ("expiries", (scope.bucket_id, hint["expires_ms"], hint["name"]))

    def decide(found: Found) -> Effect[bool]:
        row = found[object_key]
        if row is None or not is_expired(row, scope.now_ms):
            return Effect({hint_key: None}, False)
        return Effect({**scope.core.freed(row, known), hint_key: None}, True)

    def confirm(found: Found) -> bool | None:
        gone = found[object_key] is None and found[hint_key] is None
        return True if gone else None

    return Change((object_key, hint_key), decide, confirm)


async def abort_expired_uploads(scope: BucketScope) -> int:
    """Abort the uploads whose time is over; returns how many. Raises as `expire_objects`."""
    uploads = scope.rows.scan("uploads", first=(scope.bucket_id,), last=(scope.bucket_id,))
    due = [row["upload_id"] async for row in uploads if is_expired(row, scope.now_ms)]
    if scope.dry_run:
        return len(due)
    aborted = [await abort_upload(scope.core, each, expired_by_ms=scope.now_ms) for each in due]
    return sum(aborted)


async def abort_upload(
    core: BucketCore, upload_id: str, *, expired_by_ms: int | None = None
) -> bool:
    """Remove an upload with all its parts; False if it was already removed.

    `expired_by_ms`: only if it has expired by then; a renewed one stays. Raises
    `MetadataUnavailable` and the errors in `herd.errors`.
    """
    key: RowKey = ("uploads", (core.bucket_id, upload_id))
    while (row := await core.read(lambda rows: rows.get(*key))) is not None:
        if expired_by_ms is not None and not is_expired(row, expired_by_ms):
            return False
        writes = await _held_by_upload(core, upload_id)
        if await core.change(_aborting(key, row, writes)):
            return True
    return False


async def _held_by_upload(core: BucketCore, upload_id: str) -> dict[RowKey, Row | None]:
    """The rows that go with an upload."""
    writes: dict[RowKey, Row | None] = {}
    owner, own = f"m:{upload_id}", (upload_id,)

    async def look(rows: Rows) -> list[Row]:
        return [row async for row in rows.scan("upload_parts", first=own, last=own)]

    for part in await core.read(look):
        first = part["number"] * PART_ROOM
        for number, lies in await core.held(owner, part["object_id"]):
            assert isinstance(lies, ObjectId)
            # Found by the rows that hold it, a part has its whole number already.
            place = number if number >= PART_ROOM else first + number
            writes[core.ref_key(owner, place, lies)] = None
        writes["upload_parts", (upload_id, part["number"])] = None
    return writes


def _aborting(key: RowKey, looked: Row, writes: dict[RowKey, Row | None]) -> Change[bool]:
    """Returns False if a part was added, or the expiry was extended, since the upload was read."""
    seen = (looked["revision"], looked["expires_ms"])

    def decide(found: Found) -> Effect[bool]:
        row = found[key]
        if row is None:
            return Effect({}, True)
        if (row["revision"], row["expires_ms"]) != seen:
            return Effect({}, False)
        return Effect({key: None, **writes}, True)

    def confirm(found: Found) -> bool | None:
        return True if found[key] is None else None

    return Change((key,), decide, confirm)
