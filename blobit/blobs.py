"""The blob store: buckets of named objects; under them bytes in, an id out, and back.

Invariants:
- `put` returns an id only when every byte that the id covers is durable.
- A whole object is checked against the checksum in its id before its last byte is handed out.
- Memory is bounded for streams in both directions, whatever an object's length.
- Nothing but the id is needed to read: not the process that put, nor anything it remembers.
- Objects that were put here, without a bucket, are nobody's garbage: nothing collects them.
"""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress

from blobit import quotas
from blobit.bucket import AsyncBucket
from blobit.bucket_core import BucketCore, PartEnded
from blobit.committing import Committer
from blobit.counting import SHARES, BucketUse
from blobit.errors import BlobsClosed, MetadataUnavailable
from blobit.garbage import Collector
from blobit.garbage_report import GarbageReport
from blobit.locations import Location, locations_of
from blobit.moving import Moves
from blobit.object_id import ObjectId
from blobit.pool_plans import plan_of
from blobit.reading import Readers
from blobit.registry import Registry
from blobit.rows import AnyHerd, Rows, told
from blobit.settings import BlobSettings, BucketSettings, settings_with
from blobit.sources import Source, put_source
from blobit.streaming import check_range, parts_of, read_span, read_whole, stream_span
from blobit.tables import REGISTRY, BucketInfo, LedgerKind, is_own
from blobit.tablespace_pool import PoolLimits, PoolTablespace, TablespacePool
from blobit.upload import Upload, put_list, put_shared
from blobit.writers import LedgerPool, LedgerPools
from engine.ledger.client import LedgerClient
from engine.ports.workers import Workers
from herd.errors import Error


class AsyncBlobs:
    """Buckets, and objects by id, on one event loop. `Blobs` is the same for code without one.

    >>> async def keep(blobs: AsyncBlobs) -> bytes:
    ...     object_id = await blobs.put(b"moo")
    ...     return await blobs.get(object_id)
    """

    def __init__(
        self,
        client: LedgerClient,
        settings: BlobSettings | None = None,
        workers: Workers | None = None,
        herd: AnyHerd | None = None,
    ) -> None:
        """`workers` read files and plain iterables; without them the event loop does, and waits.

        `herd` has the tablespaces in which buckets keep their names; without it there are none.
        """
        self.client = client
        self.settings = settings if settings is not None else BlobSettings()
        self._herd = herd
        self._workers = workers
        self._ledgers = LedgerPools(client, self.settings)
        self._loose = self._ledgers.pool()
        self._readers = Readers(client, self.settings.readers_max, workers)
        self._bucket_readers: dict[int, Readers] = {}
        self._registry = Registry(self)
        self._committers: dict[str, Committer] = {}
        self._cores: dict[int, BucketCore] = {}
        self._pools: dict[tuple[int, int], LedgerPool] = {}
        self._collector = Collector(self)
        self.moves = Moves(self)
        self._closed = False

    # Buckets

    async def create_bucket(
        self,
        name: str,
        settings: BucketSettings | None = None,
        *,
        exist_ok: bool = False,
        tablespace: str | None = None,
        own_tablespace: bool = False,
    ) -> AsyncBucket:
        """Make a bucket; with `exist_ok` one that is there, with its own settings, will do.

        Its names are kept in a tablespace that buckets share, unless one is named or the bucket is
        to have its own, here or in the settings. Raises `InvalidName`, `SettingsInvalid`,
        `BucketExists`, `MetadataUnavailable`.
        """
        self.check_open()
        wanted = settings_with(settings, tablespace, own_tablespace=own_tablespace)
        return await self._opened(await self._registry.create(name, wanted, exist_ok=exist_ok))

    async def bucket(self, name: str) -> AsyncBucket:
        """A bucket by name. Raises `InvalidName`, `NoSuchBucket`, `MetadataUnavailable`."""
        self.check_open()
        return await self._opened(await self._registry.find(name))

    async def buckets(self) -> list[BucketInfo]:
        """All buckets, by name. Raises `MetadataUnavailable`."""
        self.check_open()
        return await self._registry.every()

    async def use(self, bucket: str) -> BucketUse:
        """What a bucket holds and what it may hold, without looking at each object.

        One that an older version filled is counted once. Raises `NoSuchBucket`,
        `MetadataUnavailable`.
        """
        return await quotas.use((await self.bucket(bucket)).core)

    async def set_quota(
        self,
        bucket: str,
        *,
        quota_bytes: int | None = None,
        quota_objects: int | None = None,
        recount: bool = False,
    ) -> BucketUse:
        """Say what the named objects of a bucket may be; 0: anything, None: as it is said now.

        It holds for what is put from now on; what is there stays. `recount` counts all objects
        again. Raises `SettingsInvalid`, `NoSuchBucket`, `MetadataUnavailable`.
        """
        core = (await self.bucket(bucket)).core
        return await quotas.set_quota(core, quota_objects, quota_bytes, recount=recount)

    async def delete_bucket(self, name: str, *, force: bool = False) -> None:
        """Delete a bucket: its name is free at once, and `collect` frees its space.

        After it has returned, nobody can put anything into the bucket, even if they still have it
        open. Raises `NoSuchBucket`, `BucketNotEmpty` unless `force`, `MetadataUnavailable`, and
        `CommitOutcomeUnknown` if the name is deleted but the bucket could not be shut.
        """
        self.check_open()
        info = await self._registry.delete(name, force=force)
        self._bucket_readers.pop(info.bucket_id, None)
        core = self._cores.pop(info.bucket_id, None)
        if core is not None:
            core.deleted = True
        for kind in LedgerKind:
            pool = self._pools.pop((info.bucket_id, kind), None)
            if pool is not None:
                pool.end()

    async def pool_limits(self) -> PoolLimits:
        """Up to where tablespaces of the pool take new buckets. Raises `MetadataUnavailable`."""
        self.check_open()
        return await (await self._registry.pool()).limits()

    async def set_pool_limits(
        self,
        *,
        buckets: int | None = None,
        objects: int | None = None,
        size_bytes: int | None = None,
    ) -> PoolLimits:
        """Say up to where they do, in the whole cluster; None leaves a limit as it is.

        Buckets that are there stay where they are. Raises `SettingsInvalid`, `MetadataUnavailable`.
        """
        self.check_open()
        told = {"buckets": buckets, "objects": objects, "bytes": size_bytes}
        given = {name: most for name, most in told.items() if most is not None}
        return await (await self._registry.pool()).set_limits(given)

    async def move_bucket(self, name: str, tablespace: str | None = None) -> BucketInfo:
        """Move a bucket of a cluster to a tablespace of the pool, of its choice for None.

        Everybody goes on meanwhile; changes of the bucket wait while its last rows are copied. Who
        is cut short calls it again; others finish the move, too. Raises `NoSuchBucket`,
        `SettingsInvalid` for what is no tablespace of the pool or has no room,
        `MetadataUnavailable`, and `DiskFull` (not even the reserve is free).
        """
        self.check_open()
        info = await self._registry.find(name)
        await self.moves.move(info, None if tablespace is None else tablespace.lower())
        moved = await self._registry.find(name)
        if (core := self._cores.get(moved.bucket_id)) is not None:
            await core.go_to(moved)
        return moved

    async def find_again(self, info: BucketInfo) -> BucketInfo:
        """Where a bucket lives now. Raises `NoSuchBucket`, `MetadataUnavailable`."""
        return await self._registry.find_again(info)

    async def drop_left(self, tablespace: str, name: str, bucket_id: int) -> None:
        """Drop a tablespace that a bucket had for itself and has left, unless somebody reads there.

        Then a round of collection drops it later. Raises `MetadataUnavailable`.
        """
        if is_own(tablespace, name, bucket_id) and not await self._collector.has_pins(tablespace):
            await self._registry.drop_own(tablespace, name, bucket_id)

    async def tablespace_pool(self) -> TablespacePool:
        """The tablespaces that buckets share. Raises `MetadataUnavailable`."""
        return await self._registry.pool()

    async def measure_pool(self) -> None:
        """Find out what the tablespaces of the pool hold that answer now."""
        pool = await self._registry.pool()
        for each in await pool.tablespaces():
            with suppress(MetadataUnavailable):
                await pool.measure(each.tablespace)

    async def pool_tablespaces(self) -> list[PoolTablespace]:
        """The tablespaces that buckets of a cluster share. Raises `MetadataUnavailable`."""
        self.check_open()
        return await (await self._registry.pool()).tablespaces()

    async def collect(self, bucket: str | None = None, *, dry_run: bool = False) -> GarbageReport:
        """Give back what nobody needs any more, of one bucket or of all and of deleted ones.

        With `dry_run` it only says what it would do. Raises `NoSuchBucket`, `MetadataUnavailable`,
        `DiskFull` (not even the reserve is free).
        """
        self.check_open()
        return await self._collector.collect(bucket, dry_run=dry_run)

    async def unpin(self, name: str) -> int:
        """Remove the pins of a name, which a report of `collect` shows; returns how many.

        Whoever reads the checkpoint that they kept hears that it is gone. Raises
        `MetadataUnavailable`.
        """
        self.check_open()
        return await self._collector.unpin(name)

    # Objects by id

    async def put(self, source: Source) -> ObjectId:
        """Store an object without a bucket and return its id, once it is durable.

        A ledger that fails on the way is replaced; the source is read only once. Raises
        `BlobNotStored`, `BlobsClosed`, and `TypeError` for what is no source of bytes.
        """
        return await self.store(self._loose, source)

    def upload(self) -> Upload:
        """Store an object piece by piece: `write` each, then `finish` for the id, or `abort`."""
        return self.upload_to(self._loose)

    async def get(self, object_id: ObjectId | str, *, bucket_id: int | None = None) -> bytes:
        """The whole object.

        With `bucket_id`, here and below, it is read only if it lies in ledgers of that bucket, and
        is unreadable otherwise: for ids that rows tell, which others may have written. Raises
        `InvalidObjectId`, `BlobNotFound`, `BlobUnreadable`, `BlobCorrupt`.
        """
        return await read_whole(self._readers_of(bucket_id), self._named(object_id))

    async def get_range(
        self, object_id: ObjectId | str, offset: int, length: int, *, bucket_id: int | None = None
    ) -> bytes:
        """`length` bytes from `offset` on; only the entries that hold them are read.

        Raises `RangeInvalid`, and what `get` raises; entries are checked, the whole object is not.
        """
        readers = self._readers_of(bucket_id)
        return await read_span(readers, self._named(object_id), offset, length)

    def stream(
        self,
        object_id: ObjectId | str,
        offset: int = 0,
        length: int | None = None,
        *,
        bucket_id: int | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The object, or a range of it, in pieces of about a mebibyte, read ahead of the caller.

        Raises `RangeInvalid`, and as `get` does, while iterating; of a whole object a wrong
        checksum shows before the last piece comes.
        """
        name = self._named(object_id)
        if length is not None:
            check_range(name, offset, length)
            length = None if (offset, length) == (0, name.length) else length
        readers = self._readers_of(bucket_id)
        return stream_span(readers, name, offset, length, self.settings.read_ahead_bytes)

    async def locations(
        self, object_id: ObjectId | str, *, bucket_id: int | None = None
    ) -> list[Location]:
        """Which bookies hold which bytes of an object. Raises `BlobNotFound`, `BlobUnreadable`."""
        readers = self._readers_of(bucket_id)
        return await locations_of(self.client, readers, self._named(object_id))

    async def parts_of(
        self, object_id: ObjectId | str, *, bucket_id: int | None = None
    ) -> list[ObjectId]:
        """The parts that hold an object's bytes, in order: itself, or those that its list names.

        Raises `BlobNotFound`, `BlobUnreadable`, `BlobCorrupt`.
        """
        readers = self._readers_of(bucket_id)
        return [part async for part in parts_of(readers, self._named(object_id))]

    async def close(self) -> None:
        """End pending puts and close the open ledgers; client and tablespaces stay open."""
        self._closed = True
        await self.moves.close()
        self._readers.close()
        for committer in self._committers.values():
            committer.hurry()
        # What is under way may need a row of its ledger, and ledgers one when they are closed.
        await self._ledgers.close()
        for committer in self._committers.values():
            await committer.close()

    async def __aenter__(self) -> "AsyncBlobs":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # What buckets are made of

    @property
    def herd(self) -> AnyHerd:
        """The tablespaces. Raises `MetadataUnavailable` where there are none."""
        if self._herd is None:
            raise MetadataUnavailable("this store has no tablespaces, so no buckets: open it anew")
        return self._herd

    def check_open(self) -> None:
        """Raise `BlobsClosed`."""
        if self._closed:
            raise BlobsClosed("the blob store is closed")

    async def store(
        self, pool: LedgerPool, source: Source, part_ended: PartEnded | None = None
    ) -> ObjectId:
        """Store bytes in a pool's ledgers, telling of parts that have ended. Raises as `put`."""
        self.check_open()
        return await put_source(pool, source, self._workers, part_ended)

    def store_shared(self, pool: LedgerPool, data: bytes) -> Awaitable[ObjectId]:
        """Store bytes beside those of others, which may not be many. Raises as `put`."""
        self.check_open()
        return put_shared(pool, data, self._workers)

    def upload_to(self, pool: LedgerPool, part_ended: PartEnded | None = None) -> Upload:
        """Store bytes in a pool's ledgers piece by piece, telling of parts that have ended."""
        self.check_open()
        return Upload(pool, self._workers, part_ended)

    async def put_list(self, pool: LedgerPool, parts: Sequence[ObjectId]) -> ObjectId:
        """The id of the object that parts are together. Raises `BlobNotStored`."""
        self.check_open()
        return await put_list(pool, parts)

    async def committer(self, tablespace: str, *, create: bool = False) -> Committer:
        """What changes the rows of a tablespace. Raises `MetadataUnavailable`."""
        found = self._committers.get(tablespace)
        if found is None:
            rows = Rows(self.herd, tablespace)
            try:
                await rows.open(create=create)
            except Error as error:
                raise told(error) from error
            first_count = self.client.rng.randrange(SHARES)
            fresh = Committer(rows, self.client.clock, self.settings, first_count)
            found = self._committers.setdefault(tablespace, fresh)
        return found

    async def registry_committer(self) -> Committer:
        """What changes the rows of the registry. Raises `MetadataUnavailable`."""
        return await self.committer(REGISTRY, create=True)

    async def rows(self, tablespace: str) -> Rows:
        """The rows of a tablespace. Raises `MetadataUnavailable`."""
        return (await self.committer(tablespace, create=True)).rows

    def pool(self, core: BucketCore, kind: LedgerKind, *, from_reserve: bool = False) -> LedgerPool:
        """Where bytes of a bucket go."""
        key = core.bucket_id, -int(kind) if from_reserve else int(kind)
        found = self._pools.get(key)
        if found is None:
            clock, settings = self.client.clock, self.settings
            plan = plan_of(core, kind, clock, settings, from_reserve=from_reserve)
            found = self._pools[key] = self._ledgers.pool(plan)
        return found

    async def forget_bucket(self, info: BucketInfo) -> None:
        """Forget a deleted bucket that holds nothing any more. Raises `MetadataUnavailable`."""
        await self._registry.forget(info)
        if all(core.info.tablespace != info.tablespace for core in self._cores.values()):
            self._committers.pop(info.tablespace, None)

    async def _opened(self, info: BucketInfo) -> AsyncBucket:
        core = self._cores.get(info.bucket_id)
        if core is None:
            committer = await self.committer(info.tablespace)
            core = BucketCore(self, info, committer)
            core = self._cores.setdefault(info.bucket_id, core)
        await core.go_to(info)
        return AsyncBucket(core)

    def _readers_of(self, bucket_id: int | None) -> Readers:
        if bucket_id is None:
            return self._readers
        found = self._bucket_readers.get(bucket_id)
        if found is None:
            found = self._bucket_readers[bucket_id] = self._readers.of_bucket(bucket_id)
        return found

    def _named(self, object_id: ObjectId | str) -> ObjectId:
        self.check_open()
        return object_id if isinstance(object_id, ObjectId) else ObjectId.parse(object_id)
