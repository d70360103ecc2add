"""Objects of a bucket that have no name: whoever has the id has the object.

Invariants:
- Their ledgers are of a kind of their own and are never compacted: an id stays as it is.
- They go when they are deleted, not before.
"""

from blobit.bucket_core import BucketCore, Known
from blobit.committing import Change, Effect, Found
from blobit.errors import NoSuchBucket
from blobit.object_id import ObjectId
from blobit.sources import Source
from blobit.tables import LedgerKind, RowKey


async def put_unnamed(core: BucketCore, source: Source) -> ObjectId:
    """Store an object without a name. Raises `BlobNotStored`, `CommitOutcomeUnknown`."""
    core.check()
    pool, known = core.pool(LedgerKind.UNNAMED), Known()

    async def commit(object_id: ObjectId) -> ObjectId:
        refs = core.refs(_owner(object_id), known.of("", object_id.to_bytes()))
        # No row of it tells the database that the bucket is open.
        open_key: RowKey = ("open_buckets", (core.bucket_id,))

        def decide(found: Found) -> Effect[ObjectId]:
            if found[open_key] is None:
                raise NoSuchBucket(f"bucket {core.info.name} was deleted")
            return Effect(dict(refs), object_id)

        def confirm(found: Found) -> ObjectId | None:
            return object_id if all(found[key] is not None for key in refs) else None

        if refs:
            change = Change((open_key, *refs), decide, confirm)
            await core.commit(change, known)
        return object_id

    return await core.stored(core.storing(pool, source), pool, known, commit)


async def delete_unnamed(core: BucketCore, object_id: ObjectId | str) -> bool:
    """Let go of an object without a name. Raises `InvalidObjectId`, `MetadataUnavailable`."""
    core.check()
    given = object_id if isinstance(object_id, ObjectId) else ObjectId.parse(object_id)
    owner = _owner(given)
    held = await core.held(owner, given.to_bytes())
    keys = tuple(core.ref_key(owner, number, part) for number, part in held)

    def decide(found: Found) -> Effect[bool]:
        there = any(found[key] is not None for key in keys)
        return Effect(dict.fromkeys(keys) if there else {}, there)

    def confirm(found: Found) -> bool | None:
        return True if all(found[key] is None for key in keys) else None

    if not keys:
        return False
    change = Change(keys, decide, confirm, buckets=(core.bucket_id,))
    return await core.commit(change, Known())


def _owner(object_id: ObjectId) -> str:
    return f"u:{object_id}"
