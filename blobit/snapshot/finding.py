"""Which bucket a reader means: its id, and the tablespace that has its names.

Invariants:
- While no leader answers the registry's newest checkpoint tells, and a warning says of when it is.
- What that does not have may have been made since: it is not said to be missing.
"""

import warnings
from collections.abc import Sequence
from typing import Final

from blobit.blobs import AsyncBlobs
from blobit.errors import AccessDenied, BlobError, MetadataUnavailable, NoSuchBucket
from blobit.tables import REGISTRY, BucketInfo, BucketState, Row, bucket_info, lives_here
from engine.place import Place, held_client
from herd.checkpoint.record import CheckpointList
from herd.errors import OperationalError
from herd.place import held_herd
from herd.snapshot.conditions import Operator, condition_on
from herd.snapshot.parts import plan, read_part
from herd.snapshot.snapshot import Snapshot, read_manifest
from herd.translating import translating

_BUCKETS: Final = "buckets"
_MOVING: Final = "moving_buckets"
_NAMED_MAX: Final = 20


def find_bucket(place: Place, bucket: str) -> tuple[BucketInfo, bool]:
    """A bucket by its name, and whether it was ever moved, as far as that is known. Blocks.

    Raises `InvalidName`, `NoSuchBucket`, `MetadataUnavailable`, `herd.errors.OperationalError`.
    """
    try:
        held = held_herd(place)

        async def find() -> tuple[BucketInfo, bool]:
            async with AsyncBlobs(held.ledgers, herd=held.herd) as blobs:
                try:
                    info = (await blobs.bucket(bucket)).core.info
                    return info, await blobs.moves.find(info.bucket_id) is not None
                except NoSuchBucket:
                    names = [info.name for info in await blobs.buckets()]
                    raise _missing(bucket, names) from None

        return held.run(find)
    except (AccessDenied, MetadataUnavailable, OperationalError) as error:
        cause = error.__cause__ if isinstance(error, BlobError) else error
        found = _find_at_rest(place, bucket, error) if isinstance(cause, OperationalError) else None
        if found is None:
            raise
        return found, False


def lived_there(names: Snapshot, bucket_id: int, *, was_moved: bool) -> bool:
    """Whether a bucket lived in a tablespace at the checkpoint of its names. Blocks.

    One that `was_moved` there has a row in `moving_buckets` since it began to come.
    """
    place, tablespace, record = names.place, names.tablespace, names.record
    tables = read_manifest(place, tablespace, record).tables
    table = next((one for one in tables if one.name == _MOVING), None)
    if table is None:
        return not was_moved
    own = condition_on(table.column("bucket_id"), Operator.EQUAL, (bucket_id,))
    assert own is not None, "a bucket's id is a number"
    rows = _rows(Snapshot(place, tablespace, record, "", table, table.visible, (own,)))
    return lives_here(rows[0]) if rows else not was_moved


def _rows(snapshot: Snapshot) -> list[Row]:
    return [
        row
        for part in plan(snapshot)
        for batch in read_part(snapshot, part)
        for row in batch.to_pylist()
    ]


def _missing(bucket: str, names: Sequence[str]) -> NoSuchBucket:
    there = ", ".join(names[:_NAMED_MAX]) or "none yet"
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return NoSuchBucket(f"there is no bucket {bucket}; there are: {there}{more}")


def _find_at_rest(place: Place, bucket: str, late: Exception) -> BucketInfo | None:
    """The bucket as the registry's newest checkpoint has it."""
    held = held_client(place)
    with translating():
        kept = held.run(CheckpointList(held.client.store, REGISTRY, held.client.time).get).kept
    if not kept:
        return None
    # Nobody leads, so nobody takes another one in whose place it would go: it needs no pin.
    record = max(kept, key=lambda one: one.number)
    tables = read_manifest(place, REGISTRY, record).tables
    table = next((one for one in tables if one.name == _BUCKETS), None)
    if table is None:
        return None
    named = condition_on(table.column("name"), Operator.EQUAL, (bucket,))
    assert named is not None, "a name is a text"
    snapshot = Snapshot(place, REGISTRY, record, "", table, table.visible, (named,))
    rows = _rows(snapshot)
    if not rows or rows[0]["state"] == BucketState.BEING_MADE:
        return None
    age_s = (held.client.clock.wall_ms() - record.taken_ms) // 1000
    warnings.warn(
        f"no leader tells of buckets now, so bucket {bucket} is the one of checkpoint "
        f"{record.number} of tablespace {REGISTRY}, which is {age_s} s old: {late}",
        stacklevel=3,
    )
    return bucket_info(rows[0])
