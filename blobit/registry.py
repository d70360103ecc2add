"""The buckets that there are: made, looked up and deleted in the registry.

Invariants:
- A bucket is found only when it can be used: its tablespace, its tables and its home row are there.
- What was begun and not finished is finished by whoever meets it next.
- A deleted bucket's name is free at once; its objects are collected in the background.
- After a deletion has returned, nobody can change the bucket any more.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from blobit.committing import Change, Committer, Effect, Found
from blobit.counting import BASE, all_keys, count_key, count_row, is_shut, shut
from blobit.errors import (
    BlobError,
    BucketExists,
    BucketNotEmpty,
    CommitOutcomeUnknown,
    MetadataUnavailable,
    NoSuchBucket,
    SettingsInvalid,
)
from blobit.moving import former_places, is_copied
from blobit.naming import check_bucket_name, check_tablespace_name, is_of_pool, tablespace_name
from blobit.rows import told
from blobit.settings import BucketSettings
from blobit.tables import (
    REGISTRY,
    TABLES,
    BucketInfo,
    BucketState,
    LedgerKind,
    Row,
    RowKey,
    bucket_info,
    is_own,
    lives_here,
    moving_key,
    packed_settings,
)
from blobit.tablespace_pool import PoolFull, PoolLimits, TablespacePool, joined, left
from herd.errors import CommitUnknown, Error, ForeignKeyViolation, ProgrammingError
from herd.store import AsyncHerd

if TYPE_CHECKING:
    from blobit.blobs import AsyncBlobs

_ID_BITS: Final = 62
_ATTEMPTS_MAX: Final = 20
_PAUSE_S: Final = 0.05
_ANY: Final = PoolLimits()


class _OnItsWay(BlobError):
    """The bucket is being moved: that is finished first."""


class Registry:
    """The buckets of one store. On one event loop."""

    def __init__(self, blobs: "AsyncBlobs") -> None:
        self._blobs = blobs

    async def create(
        self, name: str, settings: BucketSettings | None, *, exist_ok: bool
    ) -> BucketInfo:
        """Make a bucket.

        Raises `InvalidName`, `SettingsInvalid`, `BucketExists`, `MetadataUnavailable`.
        """
        check_bucket_name(name)
        wanted = settings if settings is not None else BucketSettings()
        if (there := await self._find(name)) is not None:
            # One that is being made is finished, and then there, too.
            info = await self._usable(there)
            if exist_ok:
                return info
            raise _exists(name)
        bucket_id = 1 + self._blobs.client.rng.getrandbits(_ID_BITS)
        tablespace = self._tablespace(name, bucket_id, wanted)
        await self._check(wanted, tablespace)
        row: Row = {
            "name": name,
            "bucket_id": bucket_id,
            "state": int(BucketState.BEING_MADE),
            "tablespace": tablespace,
            "settings": b"",
            "created_ms": self._blobs.client.clock.wall_ms(),
        }
        made = await self._named(row, wanted)
        try:
            info = await self._usable(made)
        except MetadataUnavailable as error:
            if made is row and isinstance(error.__cause__, ProgrammingError):
                # No node is called so: what is there of the bucket by now is collected.
                await self.delete(name, force=True)
                raise SettingsInvalid(f"bucket {name}: {error.__cause__.message}") from error
            raise
        if info.bucket_id != bucket_id and not exist_ok:
            raise _exists(name)
        return info

    async def _named(self, row: Row, wanted: BucketSettings) -> Row:
        """Name a bucket, in one of the pool if it has no tablespace yet; see `_making`."""
        committer = await self._committer()
        tablespace, bucket_id = row["tablespace"], row["bucket_id"]
        if tablespace is not None:
            row["settings"] = packed_settings(wanted, tablespace)
            if tablespace != REGISTRY:
                return await committer.change(_making(row, {}))
            row["state"] = int(BucketState.ACTIVE)
            return await committer.change(_making(row, _homes(bucket_id) | _uncounted(bucket_id)))
        pool = await self.pool()
        while True:
            limits = await pool.limits()
            chosen = await pool.choose(limits)
            row["tablespace"] = chosen["tablespace"]
            row["settings"] = packed_settings(wanted, chosen["tablespace"])
            try:
                return await committer.change(_making(row, {}, chosen, limits))
            except PoolFull:
                continue

    async def pool(self) -> TablespacePool:
        """The tablespaces that buckets share. Raises `MetadataUnavailable`."""
        return TablespacePool(self._blobs, await self._committer())

    async def find(self, name: str) -> BucketInfo:
        """A bucket by name. Raises `InvalidName`, `NoSuchBucket`, `MetadataUnavailable`."""
        return await self._usable(await self._row(name))

    async def find_again(self, info: BucketInfo) -> BucketInfo:
        """The same bucket as it is now. Raises `NoSuchBucket`, `MetadataUnavailable`."""
        row = await self._row(info.name)
        if row["bucket_id"] != info.bucket_id:
            raise NoSuchBucket(f"bucket {info.name} was deleted")
        return _info(row)

    async def _find(self, name: str) -> Row | None:
        check_bucket_name(name)
        committer = await self._committer()
        try:
            return await committer.rows.get("buckets", (name,))
        except Error as error:
            raise told(error) from error

    async def _row(self, name: str) -> Row:
        row = await self._find(name)
        if row is None:
            raise NoSuchBucket(f"there is no bucket {name}: create it first")
        return row

    async def every(self) -> list[BucketInfo]:
        """All buckets that can be used, by name."""
        committer = await self._committer()
        try:
            rows = [row async for row in committer.rows.scan("buckets")]
        except Error as error:
            raise told(error) from error
        return [_info(row) for row in rows if row["state"] != BucketState.BEING_MADE]

    async def delete(self, name: str, *, force: bool) -> BucketInfo:
        """Take a bucket's name away. Raises `NoSuchBucket`, `BucketNotEmpty`."""
        while True:
            info = _info(await self._row(name))
            try:
                return await self._delete(info, force=force)
            except _OnItsWay:
                # What it has must be in one place to be shut and collected.
                await self._blobs.moves.finish(info.bucket_id)

    async def _delete(self, info: BucketInfo, *, force: bool) -> BucketInfo:
        """Raises `_OnItsWay`, too."""
        name, expected = info.name, None if force else BucketState.CLOSING
        if not force:
            await self._set_state(info, BucketState.CLOSING)
            try:
                await self._close(info)
            except BucketNotEmpty:
                await self._set_state(info, BucketState.ACTIVE)
                raise
        committer = await self._committer()
        key: RowKey = ("buckets", (name,))
        move_key: RowKey = ("moves", (info.bucket_id,))
        gone_key: RowKey = ("deleted_buckets", (info.bucket_id,))
        kept: Row = {}
        gone: Row = {
            "bucket_id": info.bucket_id,
            "name": name,
            "created_ms": info.created_ms,
            "deleted_ms": self._blobs.client.clock.wall_ms(),
        }

        def decide(found: Found) -> Effect[bool]:
            present = found[key]
            if present is None or present["bucket_id"] != info.bucket_id:
                raise NoSuchBucket(f"bucket {name} was deleted by somebody else")
            _check_at_rest(found[move_key], present, info)
            if expected is not None and present["state"] != expected:
                raise _not_empty(info)
            kept.update({**gone, **{each: present[each] for each in ("tablespace", "settings")}})
            return Effect({key: None, gone_key: dict(kept)}, True)

        def confirm(found: Found) -> bool | None:
            return True if kept and found[gone_key] == kept else None

        try:
            await committer.change(Change((key, move_key, gone_key), decide, confirm))
        except BucketNotEmpty:
            # Somebody has opened it meanwhile, and is to find it open.
            await self._open(info)
            raise
        await self._shut(info)
        return info

    async def _shut(self, info: BucketInfo) -> None:
        """Stop all changes of a bucket whose name is deleted. Raises `BlobError`s."""
        try:
            await shut_bucket(await self._blobs.committer(info.tablespace), info.bucket_id)
        except MetadataUnavailable as error:
            if isinstance(error.__cause__, ProgrammingError):
                # Its tablespace does not exist, so there is nothing that could change.
                return
            raise CommitOutcomeUnknown(
                f"bucket {info.name} lost its name, but programs that have it open may still put "
                f"into it until it is collected: {error}"
            ) from error

    async def forget(self, info: BucketInfo) -> None:
        """Forget a deleted bucket that has been cleaned, and the tablespace that was its own."""
        committer = await self._committer()
        await self.drop_own(info.tablespace, info.name, info.bucket_id)
        for tablespace in former_places(await self._blobs.moves.find(info.bucket_id)):
            await self._forget_place(info, tablespace)
        key: RowKey = ("deleted_buckets", (info.bucket_id,))
        move_key: RowKey = ("moves", (info.bucket_id,))
        pool_key: RowKey = ("pool_tablespaces", (info.tablespace,))

        def decide(found: Found) -> Effect[bool]:
            if found[key] is None:
                # Another collector has forgotten it, and counted that.
                return Effect({}, True)
            return Effect({key: None, move_key: None, **left(found.get(pool_key))}, True)

        def confirm(found: Found) -> bool | None:
            return True if found[key] is None else None

        keys = (key, pool_key) if is_of_pool(info.tablespace) else (key,)
        await committer.change(Change(keys, decide, confirm))

    async def _forget_place(self, info: BucketInfo, tablespace: str) -> None:
        """Remove what says that a bucket left a tablespace, if that is still there."""
        try:
            there = tablespace in await self._blobs.herd.names()
        except Error as error:
            raise told(error) from error
        if not there:
            return
        committer = await self._blobs.committer(tablespace, create=True)
        # What names a home goes before it.
        home: RowKey = ("homes", (info.bucket_id,))
        for keys in (all_keys(info.bucket_id), [home, moving_key(info.bucket_id)]):
            await committer.change(_removing(keys))

    # Inside

    async def _committer(self) -> Committer:
        return await self._blobs.committer(REGISTRY, create=True)

    async def _check(self, wanted: BucketSettings, tablespace: str | None) -> None:
        """Find out what can never work before anything names it. Raises `SettingsInvalid`."""
        if wanted.leader is not None and (
            isinstance(self._blobs.herd, AsyncHerd) or tablespace == REGISTRY
        ):
            raise SettingsInvalid("a leader is chosen for a tablespace of a bucket's own on nodes")
        if wanted.tablespace is not None and tablespace is not None:
            try:
                await self._blobs.committer(tablespace, create=True)
            except MetadataUnavailable as error:
                if isinstance(error.__cause__, ProgrammingError):
                    raise SettingsInvalid(error.__cause__.message) from error
                raise

    def _tablespace(self, name: str, bucket_id: int, wanted: BucketSettings) -> str | None:
        """Which tablespace a new bucket has; None: one of the pool."""
        if wanted.tablespace is not None:
            check_tablespace_name(wanted.tablespace)
            return wanted.tablespace.lower()
        if wanted.own_tablespace:
            return tablespace_name(name, bucket_id)
        if isinstance(self._blobs.herd, AsyncHerd):
            # A folder has one process, and so all its buckets one tablespace.
            return REGISTRY
        return None if wanted.leader is None else tablespace_name(name, bucket_id)

    async def drop_own(self, tablespace: str, name: str, bucket_id: int) -> None:
        """Drop a tablespace that a bucket had for itself and has left; no other one.

        Raises `MetadataUnavailable`.
        """
        try:
            if await self._is_to_drop(tablespace, name, bucket_id):
                session = await self._blobs.herd.session(REGISTRY)
                try:
                    await session.execute(f'DROP TABLESPACE IF EXISTS "{tablespace}"')
                finally:
                    await session.close()
        except Error as error:
            raise told(error) from error

    async def _is_to_drop(self, tablespace: str, name: str, bucket_id: int) -> bool:
        """Whether nobody but a bucket that is forgotten had anything in its tablespace.

        One that somebody named is somebody's, one of the pool is other buckets'. One that was made
        for this bucket is no other's, but somebody may have put tables there.
        """
        if not is_own(tablespace, name, bucket_id):
            return False
        try:
            session = await self._blobs.herd.session(tablespace)
        except ProgrammingError:
            # Another collector has dropped it.
            return False
        try:
            found = await session.execute("SHOW TABLES")
            return not {name for (name,) in found.rows} - set(TABLES)
        finally:
            await session.close()

    async def _usable(self, row: Row) -> BucketInfo:
        """Finish a bucket that is being made."""
        info = _info(row)
        if row["state"] == BucketState.ACTIVE:
            return info
        if row["state"] == BucketState.CLOSING:
            # Who was about to delete it is gone, or will see that it is in use.
            await self._open(info)
            await self._set_state(info, BucketState.ACTIVE)
            return info
        await self._blobs.committer(info.tablespace, create=True)
        await self._place(info)
        await self._open(info, new=True)
        try:
            await self._set_state(info, BucketState.ACTIVE)
        except NoSuchBucket:
            # It may have been collected before its home was created again.
            await self._shut(info)
            raise
        return info

    async def _open(self, info: BucketInfo, *, new: bool = False) -> None:
        """See that a bucket lives in its tablespace and takes objects; a new one holds none yet."""
        homes, count = _homes(info.bucket_id), _uncounted(info.bucket_id) if new else {}
        place = moving_key(info.bucket_id)

        def decide(found: Found) -> Effect[bool]:
            if not lives_here(found[place]):
                # Others have finished it long ago, and moved it since.
                raise MetadataUnavailable(f"bucket {info.name} has moved meanwhile: try again")
            if not new and found["homes", (info.bucket_id,)] is None:
                raise NoSuchBucket(f"bucket {info.name} was deleted by somebody else")
            # Whoever else finishes it may have put objects, and counted them, by now.
            return Effect(homes | {key: row for key, row in count.items() if not found[key]}, True)

        def confirm(found: Found) -> bool | None:
            return True if all(found[key] for key in (*homes, *count)) else None

        own = await self._blobs.committer(info.tablespace, create=True)
        await own.change(Change((place, *homes, *count), decide, confirm))

    async def _set_state(self, info: BucketInfo, state: BucketState) -> None:
        """Raises `NoSuchBucket`, `MetadataUnavailable`, and `_OnItsWay` if it is to be closed."""
        key: RowKey = ("buckets", (info.name,))
        move_key: RowKey = ("moves", (info.bucket_id,))

        def decide(found: Found) -> Effect[bool]:
            present = found[key]
            if present is None or present["bucket_id"] != info.bucket_id:
                raise NoSuchBucket(f"bucket {info.name} was deleted by somebody else")
            if state is BucketState.CLOSING:
                _check_at_rest(found[move_key], present, info)
            return Effect({key: {**present, "state": int(state)}}, True)

        def confirm(found: Found) -> bool | None:
            present = found[key]
            if present is None or present["bucket_id"] != info.bucket_id:
                return None
            return True if present["state"] == state else None

        await (await self._committer()).change(Change((key, move_key), decide, confirm))

    async def _place(self, info: BucketInfo) -> None:
        """See that the node leads that is to lead the bucket's tablespace."""
        leader = info.settings.leader
        if leader is None:
            return
        quoted = leader.replace("'", "''")
        try:
            session = await self._blobs.herd.session(REGISTRY)
            try:
                await session.execute(f"ALTER TABLESPACE \"{info.tablespace}\" LEADER '{quoted}'")
            finally:
                await session.close()
        except Error as error:
            raise told(error) from error

    async def _close(self, info: BucketInfo) -> None:
        """See that a bucket takes no more objects. Raises `BucketNotEmpty` if it has any."""
        rows = (await self._blobs.committer(info.tablespace)).rows
        key: RowKey = ("open_buckets", (info.bucket_id,))
        for attempt in range(_ATTEMPTS_MAX):
            try:
                async with rows.transaction() as transaction:
                    # Who puts an object holds this lock, shared, until it is there.
                    await transaction.lock([key])
                    if await self._has_unnamed(info):
                        raise _not_empty(info)
                    await transaction.write({key: None})
                    await transaction.commit()
                return
            except ForeignKeyViolation as error:
                raise _not_empty(info) from error
            except Error as error:
                # Whether a commit that is unknown was made is seen when it is done again.
                again = error.retryable or isinstance(error, CommitUnknown)
                if not again or attempt == _ATTEMPTS_MAX - 1:
                    raise told(error) from error
            await asyncio.sleep(_PAUSE_S)

    async def _has_unnamed(self, info: BucketInfo) -> bool:
        rows = (await self._blobs.committer(info.tablespace)).rows
        for row in await rows.ledgers(info.bucket_id):
            if row["kind"] == LedgerKind.UNNAMED:
                key = (row["ledger_id"], info.bucket_id)
                if await rows.page("refs", first=key, last=key, limit=1):
                    return True
        return False


async def shut_bucket(committer: Committer, bucket_id: int) -> None:
    """Stop all further changes of a bucket. Idempotent.

    It waits for changes that are under way. Raises `MetadataUnavailable`.
    """
    keys = all_keys(bucket_id)

    def decide(found: Found) -> Effect[bool]:
        return Effect({key: shut(bucket_id, key[1][1], found[key]) for key in keys}, True)

    def confirm(found: Found) -> bool | None:
        return True if all(is_shut(found[key]) for key in keys) else None

    # If its home no longer exists, the bucket accepts no changes either.
    with suppress(NoSuchBucket):
        await committer.change(Change(tuple(keys), decide, confirm))


def _removing(keys: Sequence[RowKey]) -> Change[bool]:
    gone: dict[RowKey, Row | None] = dict.fromkeys(keys)
    return Change((), lambda _: Effect(gone, True), lambda _: None)


def _check_at_rest(move: Row | None, present: Row, info: BucketInfo) -> None:
    """Raise `_OnItsWay` unless a bucket is where it was said to be, and stays there."""
    if is_copied(move) or present["tablespace"] != info.tablespace:
        raise _OnItsWay(f"bucket {info.name} is being moved")


def _making(
    row: Row, homes: dict[RowKey, Row | None], chosen: Row | None = None, limits: PoolLimits = _ANY
) -> Change[Row]:
    """Name a bucket; answers the row of the one that has the name then.

    With the row of the tablespace that was `chosen` for it, it is counted there. Raises `PoolFull`.
    If the first try was carried out and the bucket has been deleted since, it is not made again: it
    would be counted twice under one id.
    """
    key: RowKey = ("buckets", (row["name"],))
    gone_key: RowKey = ("deleted_buckets", (row["bucket_id"],))
    pool_key: RowKey = ("pool_tablespaces", (row["tablespace"],))
    made = dict(row)

    def decide(found: Found) -> Effect[Row]:
        present = found[key]
        if present is not None:
            return Effect({}, present)
        if found[gone_key] is not None:
            return Effect({}, row)
        counted = {} if chosen is None else joined(found[pool_key], chosen, limits)
        return Effect({key: made, **homes, **counted}, row)

    def confirm(found: Found) -> Row | None:
        present = found[key]
        mine = present is not None and present["bucket_id"] == row["bucket_id"]
        return row if mine or found[gone_key] is not None else None

    keys = (key, gone_key) if chosen is None else (key, gone_key, pool_key)
    return Change(keys, decide, confirm)


def _homes(bucket_id: int) -> dict[RowKey, Row | None]:
    """The rows with which a bucket begins to live in its tablespace."""
    return {(table, (bucket_id,)): {"bucket_id": bucket_id} for table in ("homes", "open_buckets")}


def _uncounted(bucket_id: int) -> dict[RowKey, Row | None]:
    """What says that nothing was there before its counts."""
    return {count_key(bucket_id, BASE): count_row(bucket_id, BASE)}


def _exists(name: str) -> BucketExists:
    return BucketExists(f"there is a bucket {name} already: exist_ok takes it as it is")


def _not_empty(info: BucketInfo) -> BucketNotEmpty:
    return BucketNotEmpty(f"bucket {info.name} holds objects: delete them, or delete it by force")


def _info(row: Row) -> BucketInfo:
    try:
        return bucket_info(row)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _unknown_settings(row["name"], error) from error


def _unknown_settings(name: str, error: Exception) -> BlobError:
    return MetadataUnavailable(
        f"bucket {name} has settings that this program does not know: {error}: use a newer one"
    )
