"""What a bucket may hold: looked at, and changed while others put and delete.

Invariants:
- A quota is changed under the locks of all counts of its bucket: what is put later keeps to it.
- A bucket that was never counted is counted once, and nobody waits: what there is at one moment,
  less what its counts say of the same moment, is what was there before them.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from blobit.bucket_core import BucketCore
from blobit.committing import Committer
from blobit.counting import (
    BASE,
    BucketMoved,
    BucketUse,
    all_keys,
    check_room,
    count_key,
    count_row,
    divided,
    is_frozen,
    room_of,
    use_of,
)
from blobit.errors import NoSuchBucket, QuotaExceeded, SettingsInvalid
from blobit.sources import Source
from blobit.tables import Row, lives_here, moving_key
from herd.errors import CommitUnknown, Error, ForeignKeyViolation

_ATTEMPTS_MAX: Final = 20
_PAUSE_S: Final = 0.05
_QUOTA_MAX: Final = 2**62


async def use(core: BucketCore) -> BucketUse:
    """What a bucket holds and may hold. Raises `NoSuchBucket`, `MetadataUnavailable`."""
    core.check()
    rows = await core.read(lambda rows: rows.counts(core.bucket_id))
    core.check_counts(rows)
    if all(row["number"] != BASE for row in rows):
        return await _change(core, None, None, anew=False)
    return use_of(rows)


async def set_quota(
    core: BucketCore, quota_objects: int | None, quota_bytes: int | None, *, recount: bool
) -> BucketUse:
    """Say what a bucket may hold; None leaves it as it is, 0 takes the limit away.

    Raises `SettingsInvalid`, `NoSuchBucket`, `MetadataUnavailable`.
    """
    core.check()
    given = [quota for quota in (quota_objects, quota_bytes) if quota is not None]
    if any(not 0 <= quota <= _QUOTA_MAX for quota in given):
        raise SettingsInvalid("a quota is a number of objects or bytes; 0 takes it away")
    return await _change(core, quota_objects, quota_bytes, anew=recount)


async def check_put(core: BucketCore, name: str, size_bytes: int) -> None:
    """Raise `QuotaExceeded` if an object of so many bytes does not fit now, by what is known here.

    What is decided is decided when it gets its name; this saves writing bytes in vain.
    """
    if not core.committer.may_lack_room(core.bucket_id, size_bytes):
        return
    found = await _looked(core)
    try:
        check_room(f"bucket {core.info.name}", found, 1, size_bytes)
    except QuotaExceeded:
        key = core.object_key(name)
        before = await core.read(lambda rows: rows.get(*key))
        if before is None:
            raise
        check_room(f"bucket {core.info.name}", found, 0, size_bytes - before["length"])


async def check_more(core: BucketCore, source: Source) -> None:
    """The same for bytes that are added to what is there, where their number is known."""
    size_bytes = known_length(source)
    if core.committer.may_lack_room(core.bucket_id, size_bytes):
        check_room(f"bucket {core.info.name}", await _looked(core), 0, size_bytes)


def known_length(source: Source) -> int:
    """How many bytes a source has; 0 where nobody knows before they have come."""
    return memoryview(source).nbytes if isinstance(source, bytes | bytearray | memoryview) else 0


async def _looked(core: BucketCore) -> BucketUse:
    rows = await core.read(lambda rows: rows.counts(core.bucket_id))
    core.check_counts(rows)
    found = use_of(rows)
    core.committer.learn_room(core.bucket_id, room_of(found))
    return found


async def _change(
    core: BucketCore, quota_objects: int | None, quota_bytes: int | None, *, anew: bool
) -> BucketUse:
    attempts = 0
    while True:
        committer = core.committer
        try:
            counted = None
            if anew or await core.rows.get(*count_key(core.bucket_id, BASE)) is None:
                counted = await core.rows.counted(core.bucket_id)
            return await _changed(core, committer, counted, quota_objects, quota_bytes)
        except BucketMoved:
            await core.follow(committer)
            continue
        except ForeignKeyViolation as error:
            if await core.has_moved(committer):
                continue
            raise NoSuchBucket(f"bucket {core.info.name} was deleted") from error
        except Error as error:
            attempts += 1
            # Done again it comes to the same, whether it was done before or not.
            again = error.retryable or isinstance(error, CommitUnknown)
            if not again or attempts == _ATTEMPTS_MAX:
                heard = await committer.rows.why(error)
                if isinstance(heard, NoSuchBucket) and await core.has_moved(committer):
                    continue
                raise heard from error
        await asyncio.sleep(_PAUSE_S)


async def _changed(
    core: BucketCore,
    committer: Committer,
    counted: tuple[int, int] | None,
    quota_objects: int | None,
    quota_bytes: int | None,
) -> BucketUse:
    """One transaction. Raises what is in `herd.errors`, and `BucketMoved`."""
    async with committer.rows.transaction() as transaction:
        place, counts = moving_key(core.bucket_id), all_keys(core.bucket_id)
        locked = await transaction.lock([*counts, place])
        there = {row["number"]: row for key in counts if (row := locked[key]) is not None}
        core.check_counts(there.values())
        if any(map(is_frozen, there.values())) or not lives_here(locked[place]):
            raise BucketMoved("the bucket is on its way to another tablespace")
        base = dict(there.get(BASE) or count_row(core.bucket_id, BASE))
        if counted is not None:
            base["objects"], base["size_bytes"] = counted
        for column, quota in (("objects_max", quota_objects), ("bytes_max", quota_bytes)):
            if quota is not None:
                base[column] = quota or None
        rows = divided(_with_base(there.values(), base))
        await transaction.write({count_key(core.bucket_id, row["number"]): row for row in rows})
        await transaction.commit()
    use_now = use_of(rows)
    committer.learn_room(core.bucket_id, room_of(use_now))
    return use_now


def _with_base(rows: Iterable[Row], base: Row) -> list[Row]:
    return [base, *(row for row in rows if row["number"] != BASE)]
