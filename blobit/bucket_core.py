"""What all operations on one bucket's objects are made of: bytes stored, rows that hold them.

Invariants:
- Bytes are durable before the row that names them is written: what is visible is whole.
- Whatever a row of `objects` names is held by rows of `refs` of the same transaction; what it named
  before is let go in that transaction.
- An object whose time is over is as good as gone, whether its row has been removed or not.
- Where the bucket has moved meanwhile, what was read is read again at its new place, and a change
  that was refused for that is made there.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from blobit.committing import Change, Committer, Deciding, Effect, Found, LedgerGone
from blobit.counting import BucketMoved, BucketShut, is_shut
from blobit.errors import (
    BlobError,
    BlobNotFound,
    BlobNotStored,
    BlobsClosed,
    BlobUnreadable,
    ConditionFailed,
    NoSuchBucket,
    NoSuchObject,
    ObjectExists,
)
from blobit.holding import Holding
from blobit.naming import new_etag
from blobit.object_id import Kind, ObjectId
from blobit.rows import Rows
from blobit.slow import note_put
from blobit.sources import Source
from blobit.tables import (
    PART_ROOM,
    BucketInfo,
    LedgerKind,
    ObjectInfo,
    Row,
    RowKey,
    object_info,
    object_row,
    ref_row,
)
from blobit.writers import LedgerPool
from herd.errors import Error

if TYPE_CHECKING:
    from blobit.blobs import AsyncBlobs

T = TypeVar("T")
PartEnded = Callable[[ObjectId], Awaitable[None]]

Held = list[tuple[int, ObjectId]]
"""What an object keeps: the numbers of its parts and where they lie; 0 is the object itself."""


class PartsWanted(BlobError):
    """What an object keeps has to be looked up before the change can be decided."""

    def __init__(self, owner: str, packed_id: bytes) -> None:
        super().__init__(f"the parts of {owner}")
        self.owner = owner
        self.packed_id = packed_id


class Known:
    """What is known of the parts of objects, for one operation."""

    def __init__(self) -> None:
        self.held: dict[bytes, Held] = {}
        self._packed: dict[int, tuple[ObjectId, bytes]] = {}

    def pack(self, object_id: ObjectId) -> bytes:
        """An id as rows have it; made once, for each put needs it three times."""
        found = self._packed.get(id(object_id))
        if found is None:
            # The id is kept beside, so that no other one comes to lie where it lay.
            found = self._packed[id(object_id)] = object_id, object_id.to_bytes()
        return found[1]

    def of(self, owner: str, packed_id: bytes) -> Held:
        """What an object keeps. Raises `PartsWanted`."""
        found = self.held.get(packed_id)
        if found is None:
            object_id = ObjectId.from_bytes(packed_id)
            if object_id.kind is Kind.LIST:
                raise PartsWanted(owner, packed_id)
            found = self.held[packed_id] = [(0, object_id)] if object_id.length else []
        return found


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What a put wants: the object's properties, and on what condition it is stored."""

    name: str
    content_type: str = ""
    packed_metadata: bytes = b""
    expires_ms: int | None = None
    if_absent: bool = False
    if_match: str | None = None


class Store(NamedTuple):
    """Writes an object's bytes, telling of parts that have ended; once, or as often as is asked."""

    write: Callable[[PartEnded], Awaitable[ObjectId]]
    repeatable: bool = False


class BucketCore:
    """One bucket. On one event loop."""

    def __init__(self, blobs: "AsyncBlobs", info: BucketInfo, committer: Committer) -> None:
        self.blobs = blobs
        self.info = info
        self.bucket_id = info.bucket_id
        self.committer = committer
        self.deleted = False
        """Whether this handle knows that the bucket was deleted, here or elsewhere."""

    @property
    def rows(self) -> Rows:
        """The tables of the tablespace where the bucket lives, as far as it is known here."""
        return self.committer.rows

    @property
    def now_ms(self) -> int:
        """The wall clock."""
        return self.blobs.client.clock.wall_ms()

    def check(self) -> None:
        """Raise `BlobsClosed`, `NoSuchBucket`."""
        self.blobs.check_open()
        if self.deleted:
            raise NoSuchBucket(f"bucket {self.info.name} was deleted")

    def check_counts(self, rows: Iterable[Row]) -> None:
        """Raise `NoSuchBucket` if the bucket's counts say that somebody has deleted it."""
        if any(map(is_shut, rows)):
            self.deleted = True
            self.check()

    async def change(self, change: Deciding[T]) -> T:
        """Change the bucket's rows. Raises as `Committer.change`.

        Once a call has failed because the bucket was deleted, every later call fails too.
        """
        while True:
            committer = self.committer
            try:
                return await committer.change(change)
            except BucketShut:
                self.deleted = True
                raise NoSuchBucket(f"bucket {self.info.name} was deleted") from None
            except BucketMoved:
                await self.follow(committer)
            except NoSuchBucket:
                if not await self.has_moved(committer):
                    raise

    async def follow(self, left: Committer) -> None:
        """Go where the bucket lives now, or wait a moment if it is still on its way from there.

        Raises `NoSuchBucket`, `MetadataUnavailable`.
        """
        if not await self.has_moved(left):
            self.check()
            await self.blobs.moves.wait(self.bucket_id)

    async def has_moved(self, left: Committer) -> bool:
        """Go where the bucket lives now; False: it lives where it was, or was deleted."""
        if self.committer is not left:
            # Another call has found out.
            return True
        try:
            info = await self.blobs.find_again(self.info)
        except NoSuchBucket:
            self.deleted = True
            return False
        await self.go_to(info)
        return self.committer is not left

    async def go_to(self, info: BucketInfo) -> None:
        """The bucket lives there. Raises `MetadataUnavailable`."""
        if info.tablespace != self.committer.rows.tablespace:
            self.committer = await self.blobs.committer(info.tablespace)
            self.info = info

    # Looking

    def object_key(self, name: str) -> RowKey:
        """The key of an object's row."""
        return "objects", (self.bucket_id, name)

    async def find(self, name: str) -> ObjectInfo | None:
        """The object of a name, or None. Raises `NoSuchBucket`, `MetadataUnavailable`."""
        self.check()
        return self.alive(await self._read(lambda rows: rows.object_of(self.bucket_id, name)))

    async def read(self, look: Callable[[Rows], Awaitable[T]]) -> T:
        """What is found in the bucket's rows where it lives.

        Raises `NoSuchBucket`, `MetadataUnavailable`.
        """

        async def placed(rows: Rows) -> tuple[T, bool]:
            found = await look(rows)
            return found, await rows.has(self.bucket_id)

        return await self._read(placed)

    async def _read(self, look: Callable[[Rows], Awaitable[tuple[T, bool]]]) -> T:
        """The same of a look that tells whether the bucket lived there afterwards."""
        while True:
            committer = self.committer
            rows = committer.rows
            try:
                found, lived = await look(rows)
                if lived and (found or await rows.get("homes", (self.bucket_id,)) is not None):
                    return found
            except Error as error:
                heard = await rows.why(error)
                if isinstance(heard, NoSuchBucket) and await self.has_moved(committer):
                    continue
                raise heard from error
            if not lived:
                await self.follow(committer)
            elif not await self.has_moved(committer):
                # Others have deleted it.
                self.deleted = True
                self.check()

    async def stat(self, name: str) -> ObjectInfo:
        """The object of a name. Raises `NoSuchObject`, `MetadataUnavailable`."""
        found = await self.find(name)
        if found is None:
            raise self.missing(name)
        return found

    def missing(self, name: str) -> NoSuchObject:
        """There is none of that name."""
        return NoSuchObject(f"bucket {self.info.name} has no object {name!r}")

    def alive(self, row: Row | None) -> ObjectInfo | None:
        """What a row of `objects` says, unless its time is over."""
        if row is None:
            return None
        expires_ms = row["expires_ms"]
        if expires_ms is not None and expires_ms <= self.now_ms:
            return None
        return object_info(row)

    async def held(self, owner: str, packed_id: bytes) -> Held:
        """What an object keeps, by its list, or where that cannot be read by the rows that hold it.

        Raises `MetadataUnavailable`.
        """
        try:
            return await self.listed(ObjectId.from_bytes(packed_id))
        except (BlobUnreadable, BlobNotFound):
            # What is lost for good looks like this, too, and must not hold its ledgers for ever.
            return await self._held_by_rows(owner, packed_id)

    async def listed(self, object_id: ObjectId) -> Held:
        """What an object keeps, by its list. Raises `BlobNotFound`, `BlobUnreadable`."""
        if object_id.kind is not Kind.LIST:
            return [(0, object_id)] if object_id.length else []
        parts = await self.blobs.parts_of(object_id, bucket_id=self.bucket_id)
        return [(0, object_id), *enumerate(parts, 1)]

    async def _held_by_rows(self, owner: str, packed_id: bytes) -> Held:

        async def look(rows: Rows) -> dict[int, bytes]:
            found: dict[int, bytes] = {}
            for ledger in await rows.ledgers(self.bucket_id):
                prefix = (ledger["ledger_id"], self.bucket_id, owner)
                async for row in rows.scan("refs", first=prefix, last=prefix):
                    found[row["part"]] = row["object_id"]
            return found

        found = await self.read(look)
        # Parts of an upload are numbered from their own beginning.
        base = next((number for number, packed in found.items() if packed == packed_id), 0)
        return [
            (number - base, ObjectId.from_bytes(packed))
            for number, packed in sorted(found.items())
            if base <= number < base + PART_ROOM
        ]

    # Storing

    def pool(self, kind: LedgerKind) -> LedgerPool:
        """Where bytes of a kind go."""
        return self.blobs.pool(self, kind)

    def pool_for_copies(self) -> LedgerPool:
        """The pool for copies of live objects from mostly dead ledgers; full disks accept them,
        too.
        """
        full = bool(self.blobs.client.capacity.lack)
        return self.blobs.pool(self, LedgerKind.NAMED, from_reserve=full)

    def pool_for(self, expires_ms: int | None) -> LedgerPool:
        """Where the bytes of an object go that expires then, or never."""
        return self.pool(LedgerKind.NAMED if expires_ms is None else LedgerKind.EXPIRING)

    def expiry(self, created_ms: int, expires_ms: int | None) -> int | None:
        """When an object expires that is put now."""
        if expires_ms is None and self.info.settings.ttl_ms is not None:
            return created_ms + self.info.settings.ttl_ms
        return expires_ms

    async def put(
        self, asked: Asked, store: Store, *, holding: Holding | None = None
    ) -> ObjectInfo:
        """Store bytes and give them a name. Raises as `AsyncBucket.put`."""
        self.check()
        if asked.if_absent or asked.if_match is not None:
            # Told before the bytes are written, where it is known by then.
            self.check_condition(asked, await self.find(asked.name))
        created_ms, clock = self.now_ms, self.blobs.client.clock
        began_s = clock.monotonic()
        known = Known()

        async def commit(object_id: ObjectId) -> ObjectInfo:
            stored_s = clock.monotonic()
            info = self.version(asked, object_id, created_ms, known)
            named = await self.commit(self.put_change(asked, info, known), known)
            note_put(self, object_id, began_s, stored_s)
            return named

        pool = self.pool_for(asked.expires_ms)
        return await self.stored(store, pool, known, commit, holding)

    def version(
        self, asked: Asked, object_id: ObjectId, created_ms: int, known: Known | None = None
    ) -> ObjectInfo:
        """A new version of an object."""
        return ObjectInfo(
            asked.name,
            object_id.length,
            new_etag(self.blobs.client.rng),
            asked.content_type,
            created_ms,
            asked.expires_ms,
            object_id.to_bytes() if known is None else known.pack(object_id),
            asked.packed_metadata,
        )

    def storing(self, pool: LedgerPool, source: Source) -> Store:
        """What stores a source; bytes again and again, other sources once."""
        if isinstance(source, bytearray | memoryview):
            source = bytes(source)
        repeatable = isinstance(source, bytes)
        return Store(lambda ended: self.blobs.store(pool, source, ended), repeatable)

    async def stored(
        self,
        store: Store,
        pool: LedgerPool,
        known: Known,
        commit: Callable[[ObjectId], Awaitable[T]],
        holding: Holding | None = None,
    ) -> T:
        """Store bytes and commit what names them; where a ledger was collected, all over again.

        What they keep is held meanwhile, however long they take.
        """
        holding = holding if holding is not None else Holding(self)
        cause: BlobError | None = None
        write = store.write
        try:
            for _ in range(self.blobs.settings.attempts_max):
                try:
                    object_id = await write(holding.part_ended)
                except BlobsClosed:
                    self.check()
                    raise
                held: Held = [(0, object_id)]
                try:
                    held = known.held[known.pack(object_id)] = await self._listed_anew(object_id)
                    return await commit(object_id)
                except LedgerGone as error:
                    cause = error
                for _, part in held:
                    pool.forget(part.ledger_id)
                if not store.repeatable:
                    write = partial(self._copied, object_id, pool)
        finally:
            await holding.drop()
        raise BlobNotStored("its ledgers are collected as soon as they are written") from cause

    async def _listed_anew(self, object_id: ObjectId) -> Held:
        """What an object keeps that was stored just now. Raises `LedgerGone`."""
        try:
            return await self.listed(object_id)
        except BlobNotFound as error:
            raise LedgerGone("the list of its parts was collected meanwhile") from error

    async def _copied(
        self, object_id: ObjectId, pool: LedgerPool, ended: PartEnded | None
    ) -> ObjectId:
        """Write again what was written already, for its source may have been read to the end."""
        try:
            return await self.blobs.store(pool, self.blobs.stream(object_id), ended)
        except BlobNotFound as error:
            raise BlobNotStored("its bytes were collected before it had a name") from error

    # Rows

    def put_change(self, asked: Asked, info: ObjectInfo, known: Known) -> Change[ObjectInfo]:
        """Give a new version its name."""
        key = self.object_key(asked.name)

        def decide(found: Found) -> Effect[ObjectInfo]:
            row = found[key]
            self.check_condition(asked, self.alive(row))
            return Effect(self.replaced(row, info, known), info)

        size_bytes = 2 * len(asked.name) + len(asked.packed_metadata)
        return Change((key,), decide, self.confirming(info), size_bytes)

    def confirming(self, info: ObjectInfo) -> Callable[[Found], ObjectInfo | None]:
        """Tells by the rows whether a version has got its name."""
        key = self.object_key(info.name)

        def confirm(found: Found) -> ObjectInfo | None:
            row = found[key]
            return info if row is not None and row["etag"] == info.etag else None

        return confirm

    def check_condition(self, asked: Asked, present: ObjectInfo | None) -> None:
        """Raise `ObjectExists`, `ConditionFailed`."""
        if asked.if_absent and present is not None:
            raise ObjectExists(f"bucket {self.info.name} has an object {asked.name!r} already")
        if asked.if_match is not None:
            self.check_match(asked.name, present, asked.if_match)

    def check_match(self, name: str, present: ObjectInfo | None, etag: str) -> None:
        """Raise `ConditionFailed` unless the object is this version."""
        if present is None:
            raise ConditionFailed(f"there is no object {name!r} to match {etag!r}")
        if present.etag != etag:
            raise ConditionFailed(f"object {name!r} has etag {present.etag!r}, not {etag!r}")

    def placed(self, info: ObjectInfo, known: Known) -> dict[RowKey, Row | None]:
        """The rows of a version that gets its name. Raises `PartsWanted`."""
        owner = owner_of(info.name)
        writes = self.refs(owner, known.of(owner, info.packed_id), known)
        writes.update(self.named(info))
        return writes

    def replaced(self, row: Row | None, info: ObjectInfo, known: Known) -> dict[RowKey, Row | None]:
        """A version in place of the one that has its name; what both keep stays as it is.

        Raises `PartsWanted`.
        """
        if row is None:
            return self.placed(info, known)
        owner = owner_of(info.name)
        before, after = known.of(owner, row["object_id"]), known.of(owner, info.packed_id)
        same = frozenset(before).intersection(after)
        writes: dict[RowKey, Row | None] = {
            self.ref_key(owner, *pair): None for pair in before if pair not in same
        }
        new = [pair for pair in after if pair not in same] if same else after
        writes.update(self.refs(owner, new, known))
        writes.update(self.named(info))
        return writes

    def named(self, info: ObjectInfo) -> dict[RowKey, Row | None]:
        """The row of a version, and the hint when it is over."""
        key = "objects", (self.bucket_id, info.name)
        writes: dict[RowKey, Row | None] = {key: object_row(self.bucket_id, info)}
        if info.expires_ms is not None:
            values = (self.bucket_id, info.expires_ms, info.name)
            columns = ("bucket_id", "expires_ms", "name")
            writes["expiries", values] = dict(zip(columns, values, strict=True))
        return writes

    def freed(self, row: Row | None, known: Known) -> dict[RowKey, Row | None]:
        """Without the rows of the version that had a name. Raises `PartsWanted`."""
        if row is None:
            return {}
        owner = owner_of(row["name"])
        held = known.of(owner, row["object_id"])
        writes: dict[RowKey, Row | None] = {
            self.ref_key(owner, number, part): None for number, part in held
        }
        writes[self.object_key(row["name"])] = None
        return writes

    def refs(
        self, owner: str, held: Iterable[tuple[int, ObjectId]], known: Known | None = None
    ) -> dict[RowKey, Row | None]:
        """The rows that hold what an owner keeps."""
        return {
            self.ref_key(owner, number, part): ref_row(
                self.bucket_id,
                owner,
                number,
                part,
                part.to_bytes() if known is None else known.pack(part),
            )
            for number, part in held
        }

    def ref_key(self, owner: str, number: int, part: ObjectId) -> RowKey:
        """The key of the row that holds a part."""
        return "refs", (part.ledger_id, self.bucket_id, owner, number)

    async def commit(self, change: Change[T], known: Known) -> T:
        """Make a change, looking up what it has to know of parts. Raises as `Committer.change`."""
        while True:
            try:
                return await self.change(change)
            except PartsWanted as wanted:
                known.held[wanted.packed_id] = await self.held(wanted.owner, wanted.packed_id)

    async def list_of(
        self, parts: Sequence[ObjectId], pool: LedgerPool, known: Known | None = None
    ) -> ObjectId:
        """The object of these parts, which are `known` then. Raises `BlobNotStored`."""
        most = self.blobs.settings.parts_max
        if len(parts) > most:
            raise BlobNotStored(f"an object of {len(parts)} parts: {most} are possible; copy it")
        whole = await self.blobs.put_list(pool, parts)
        if known is not None:
            held: Held = [(0, whole)] if whole.length else []
            if whole.kind is Kind.LIST:
                held += enumerate((part for part in parts if part.length), 1)
            known.held[known.pack(whole)] = held
        return whole


def owner_of(name: str) -> str:
    """Who holds what a named object keeps."""
    return f"n:{name}"


def data_parts(held: Held, object_id: ObjectId) -> list[ObjectId]:
    """The parts that hold an object's bytes, in order. Raises `BlobUnreadable` if some lack."""
    if object_id.kind is not Kind.LIST:
        return [part for _, part in held]
    parts = [part for number, part in sorted(held, key=_number) if number]
    if sum(part.length for part in parts) != object_id.length:
        raise BlobUnreadable(f"object {object_id}: the parts that are known do not add up to it")
    return parts


def _number(pair: tuple[int, Any]) -> int:
    return pair[0]
