"""Compaction: the objects of ledgers of which little is live move, so that the ledgers can die.

All ledgers of a round are emptied together: an object with parts in several of them moves once. One
that is small is put together while it moves, whatever number of appends it was made of.

Invariants:
- A name moves by compare-and-set: its row is changed only if it still names the id whose bytes were
  copied. What was written or removed meanwhile wins, and the copy is garbage.
- The version stays the same: an object that moved has the etag, times and bytes that it had.
- Only bytes of named objects move. Ids of unnamed ones are in hands that nobody can reach, and
  uploads are not completed yet: ledgers of theirs are left alone.
- The old ledgers are not touched here. They die by the rule of dying, and their bytes stay readable
  for the grace.
- What several names share is copied once.
- Copies under way hold at most `batch_bytes` in memory, or one batch of a stream.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from blobit.bucket_core import Known, data_parts, owner_of
from blobit.budget import ByteBudget
from blobit.committing import Change, Effect, Found, LedgerGone
from blobit.copying import copy_part
from blobit.errors import BlobError, MetadataUnavailable
from blobit.garbage_scope import BucketScope, in_batches
from blobit.object_id import Kind, ObjectId
from blobit.tables import ObjectInfo, Row, RowKey, object_info
from blobit.writers import LedgerPool
from engine.errors import EngineError
from engine.ledger.reader import LedgerReader
from herd.errors import Error

_OWNER: Final = owner_of("")


class Weight:
    """What is live in one ledger, by the rows that hold its ranges."""

    def __init__(self) -> None:
        self.live_bytes = 0
        self.names: dict[str, None] = {}
        """The objects that hold ranges, in the order of their names."""
        self.movable = True
        self.is_empty = True
        """Whether nothing holds any range of it."""
        self._ranges: set[bytes] = set()

    def add(self, ref: Row) -> None:
        """Count one row of `refs`."""
        self.is_empty = False
        packed_id: bytes = ref["object_id"]
        size_bytes: int = ref["stored_bytes"]
        if packed_id not in self._ranges:
            self._ranges.add(packed_id)
            self.live_bytes += size_bytes
        owner: str = ref["owner"]
        if owner.startswith(_OWNER):
            self.names[owner[len(_OWNER) :]] = None
        else:
            self.movable = False

    def end(self) -> None:
        """All were counted: what told shared ranges from others is not needed any more."""
        self._ranges.clear()


async def weigh(scope: BucketScope, ledger_id: int) -> Weight:
    """Weigh a ledger. Raises what is in `herd.errors`."""
    weight = Weight()
    async for ref in scope.rows.scan("refs", first=(ledger_id,), last=(ledger_id,)):
        weight.add(ref)
    weight.end()
    return weight


class Compaction:
    """The objects of some ledgers, on their way to others."""

    def __init__(self, scope: BucketScope, readers: Mapping[int, LedgerReader]) -> None:
        """`readers` are those of the ledgers, which are closed, by their ids."""
        self._scope = scope
        self._readers = readers
        self._homes: dict[int, LedgerReader] = {}
        """Readers of the ledgers that contain the lists that move."""
        self._pool: LedgerPool = scope.core.pool_for_copies()
        self._whole_bytes_max = self._pool.settings.shared_object_bytes_max
        self._budget = ByteBudget(scope.settings.batch_bytes)
        self._copies: dict[bytes, asyncio.Task[ObjectId]] = {}

    async def move(self, names: Iterable[str]) -> None:
        """Move the objects of these names out of the ledgers, as far as that is possible now.

        Raises `MetadataUnavailable` and what is in `herd.errors`.
        """
        for some in in_batches(list(names), self._scope.settings.batch_rows):
            await self._move_all(some)

    async def _move_all(self, names: Sequence[str]) -> None:
        failures = await asyncio.gather(*[self._try_to_move(name) for name in names])
        self._copies.clear()
        for failure in failures:
            if isinstance(failure, MetadataUnavailable | Error):
                raise failure

    async def _try_to_move(self, name: str) -> EngineError | BlobError | Error | None:
        """Why an object could not be moved now; what cannot be is left to the next round."""
        try:
            await self._move(name)
        except (EngineError, BlobError, Error) as error:
            return error
        return None

    async def _move(self, name: str) -> None:
        scope = self._scope
        key = scope.core.object_key(name)
        row = await scope.rows.get(*key)
        if row is None:
            return
        info, known = object_info(row), Known()
        moved = await self._moved(info, known)
        if moved is None:
            return
        try:
            done = await scope.committer.change(self._moving(key, info, moved, known))
        except LedgerGone:
            for _, part in known.held[moved.packed_id]:
                self._pool.forget(part.ledger_id)
            raise
        scope.report.moved_objects += done

    async def _moved(self, info: ObjectInfo, known: Known) -> ObjectInfo | None:
        """The same version where it will lie; None if nothing of it is in the ledgers."""
        scope = self._scope
        held = known.held[info.packed_id] = await scope.core.held(
            owner_of(info.name), info.packed_id
        )
        if all(part.ledger_id not in self._readers for _, part in held):
            return None
        object_id = info.object_id
        if object_id.kind is Kind.LIST and object_id.length > self._whole_bytes_max:
            await self._open_home(object_id)
            copies = [await self._copied(part) for part in data_parts(held, object_id)]
            new_id = await scope.core.list_of(copies, self._pool)
            known.held[new_id.to_bytes()] = [(0, new_id), *enumerate(copies, 1)]
        else:
            new_id = await self._copied(object_id)
            known.held[new_id.to_bytes()] = [(0, new_id)]
        return msgspec.structs.replace(info, packed_id=new_id.to_bytes())

    async def _open_home(self, list_id: ObjectId) -> None:
        """Let the parts move that are in the same ledger as the list of the parts.

        The list is written again if any part moves, and the old list is garbage. If parts stayed in
        that ledger, the next round might move them, and the list again, and so on without end.
        """
        ledger_id = list_id.ledger_id
        if ledger_id not in self._readers and ledger_id not in self._homes:
            reader = await self._scope.core.blobs.client.open_ledger(ledger_id, recover=False)
            if reader.metadata.closed:
                self._homes[ledger_id] = reader

    async def _copied(self, part: ObjectId) -> ObjectId:
        """The id of a part, or of a whole object, from now on; one copy for all callers."""
        if part.kind is not Kind.LIST and self._reader(part) is None:
            return part
        packed = part.to_bytes()
        task = self._copies.get(packed)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._copy(part))
            # A waiting caller gets the exception. After a cancelled round, nobody waits.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._copies[packed] = task
        return await asyncio.shield(task)

    async def _copy(self, part: ObjectId) -> ObjectId:
        size_bytes = part.length if part.kind is Kind.LIST else part.stored_bytes
        held_bytes = min(size_bytes, self._pool.settings.stream_pending_bytes_max)
        await self._budget.take(held_bytes)
        try:
            self._scope.report.moved_bytes += size_bytes
            if part.kind is not Kind.LIST:
                reader = self._reader(part)
                assert reader is not None
                return await copy_part(reader, part, self._pool)
            # A copy in one piece is in one ledger. If it moved piece by piece, its list would be
            # written again for each piece, and leave garbage each time, for ever.
            blobs, own = self._scope.core.blobs, self._scope.bucket_id
            return await blobs.store(self._pool, await blobs.get(part, bucket_id=own))
        finally:
            self._budget.give_back(held_bytes)

    def _reader(self, part: ObjectId) -> LedgerReader | None:
        return self._readers.get(part.ledger_id) or self._homes.get(part.ledger_id)

    def _moving(
        self, key: RowKey, info: ObjectInfo, moved: ObjectInfo, known: Known
    ) -> Change[bool]:
        """Answers whether the name still had the id that was copied."""
        core = self._scope.core

        def decide(found: Found) -> Effect[bool]:
            row = found[key]
            if row is None or row["object_id"] != info.packed_id or row["etag"] != info.etag:
                return Effect({}, False)
            return Effect(core.replaced(row, moved, known), True)

        def confirm(found: Found) -> bool | None:
            row = found[key]
            return True if row is not None and row["object_id"] == moved.packed_id else None

        return Change((key,), decide, confirm)
