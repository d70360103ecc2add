"""Putting a small object under a name: its bytes beside others', then its row, and nothing more.

Most objects that are put are small and are given as bytes. They need nothing that holds parts, for
they have none, and nothing that reads a source twice, for the bytes are there.

Invariants:
- A ledger that was collected meanwhile costs another try with the same bytes, as everywhere.
- What a put replaces is let go in the transaction that names the new version.
"""

from typing import TYPE_CHECKING

from blobit.bucket_core import Asked, BucketCore, Held, Known, PartsWanted, owner_of
from blobit.committing import Effect, Found, LedgerGone
from blobit.errors import BlobError, BlobNotStored, BlobsClosed
from blobit.object_id import ObjectId
from blobit.slow import note_put
from blobit.tables import ObjectInfo, RowKey, ref_row

if TYPE_CHECKING:
    from blobit.writers import LedgerPool


async def put_small(core: BucketCore, asked: Asked, data: bytes, pool: "LedgerPool") -> ObjectInfo:
    """Store bytes that share a ledger and give them a name. Raises as `AsyncBucket.put`."""
    core.check()
    if asked.if_absent or asked.if_match is not None:
        # Told before the bytes are written, where it is known by then.
        core.check_condition(asked, await core.find(asked.name))
    created_ms, clock = core.now_ms, core.blobs.client.clock
    began_s = clock.monotonic()
    cause: BlobError | None = None
    for _ in range(core.blobs.settings.attempts_max):
        try:
            object_id = await core.blobs.store_shared(pool, data)
        except BlobsClosed:
            core.check()
            raise
        stored_s = clock.monotonic()
        change = _Put(core, asked, object_id, created_ms)
        while True:
            try:
                info = await core.change(change)
                note_put(core, object_id, began_s, stored_s)
                return info
            except PartsWanted as wanted:
                held = await core.held(wanted.owner, wanted.packed_id)
                change.learn(wanted.packed_id, held)
            except LedgerGone as error:
                cause = error
                break
        pool.forget(object_id.ledger_id)
    raise BlobNotStored("its ledgers are collected as soon as they are written") from cause


class _Put:
    """The change that gives an object of one part, or of none, its name."""

    __slots__ = ("_asked", "_core", "_info", "_key", "_object_id", "keys", "known", "size_bytes")

    buckets = ()

    def __init__(
        self, core: BucketCore, asked: Asked, object_id: ObjectId, created_ms: int
    ) -> None:
        self.known: Known | None = None
        self._core = core
        self._asked = asked
        self._object_id = object_id
        self._info = core.version(asked, object_id, created_ms)
        self._key: RowKey = ("objects", (core.bucket_id, asked.name))
        self.keys = (self._key,)
        self.size_bytes = 2 * len(asked.name) + len(asked.packed_metadata)

    def learn(self, packed_id: bytes, held: Held) -> None:
        """What an object keeps that has the name now."""
        self._knowledge().held[packed_id] = held

    def decide(self, found: Found) -> Effect[ObjectInfo]:
        """Raises `ObjectExists`, `ConditionFailed`, `PartsWanted`."""
        row, core, info = found[self._key], self._core, self._info
        if row is not None:
            core.check_condition(self._asked, core.alive(row))
            return Effect(core.replaced(row, info, self._knowledge()), info)
        if self._asked.if_match is not None:
            core.check_condition(self._asked, None)
        writes, part = core.named(info), self._object_id
        if part.length:
            owner = owner_of(info.name)
            key = "refs", (part.ledger_id, core.bucket_id, owner, 0)
            writes[key] = ref_row(core.bucket_id, owner, 0, part, info.packed_id)
        return Effect(writes, info)

    def confirm(self, found: Found) -> ObjectInfo | None:
        """The version, if its name is seen to be its own."""
        row = found[self._key]
        return self._info if row is not None and row["etag"] == self._info.etag else None

    def _knowledge(self) -> Known:
        known = self.known
        if known is None:
            known = self.known = Known()
            part = self._object_id
            known.held[self._info.packed_id] = [(0, part)] if part.length else []
        return known
