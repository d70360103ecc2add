"""Objects of one task, stored and not yet named.

The bytes go to ledgers of the bucket, as those of any put do, and so do lists of what was stored.
An upload that nobody sees, whose id begins with the job's name, holds a range of each ledger.

Invariants:
- Nothing is visible, whatever becomes of the task.
- No ledger of a task is collected before its job has ended, or the upload has expired.
- A list names only what is durable.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from blobit.bucket_core import BucketCore
from blobit.holding import Holding
from blobit.object_id import ObjectId
from blobit.tables import RowKey
from engine.limits import MIB

LIST_BYTES: Final = 1 * MIB
_ROW_BYTES: Final = 96
_encode: Final = msgspec.msgpack.Encoder().encode


class Unstored(msgspec.Struct, frozen=True, gc=False):
    """An object on its way into a bucket; the name and what describes it are checked."""

    name: str
    content: bytes
    content_type: str = ""
    packed_metadata: bytes = b""


class Stored(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An object that is stored and has no name yet."""

    name: str
    packed_id: bytes
    content_type: str = ""
    packed_metadata: bytes = b""


class Staged(msgspec.Struct, frozen=True):
    """What one task has stored: ids of lists of `Stored`, how many they name, and their bytes."""

    lists: tuple[str, ...] = ()
    objects: int = 0
    size_bytes: int = 0


class Stager:
    """Stores the objects of one task, whose upload's id no other has. On one event loop."""

    def __init__(self, core: BucketCore, upload_id: str, given_up: RowKey | None = None) -> None:
        """`given_up`: the row that ends the task; see `blobit.staging.naming`."""
        self._core = core
        self._holding = Holding(core, upload_id, given_up)
        self._pool = core.pool_for(core.expiry(core.now_ms, None))
        self._held: set[int] = set()
        self._rows: list[Stored] = []
        self._row_bytes = 0
        self._lists: list[str] = []
        self._objects = 0
        self._size_bytes = 0

    async def put(self, objects: Sequence[Unstored]) -> None:
        """Store objects. Raises `BlobNotStored`, `NoSuchBucket`, `MetadataUnavailable`."""
        stored = await asyncio.gather(*[self._store(one.content) for one in objects])
        for one, object_id in zip(objects, stored, strict=True):
            packed = object_id.to_bytes()
            self._rows.append(Stored(one.name, packed, one.content_type, one.packed_metadata))
            self._row_bytes += _ROW_BYTES + len(one.name) + len(one.packed_metadata)
            self._size_bytes += object_id.length
        self._objects += len(objects)
        if self._row_bytes >= LIST_BYTES:
            await self._end_list()

    async def end(self) -> Staged:
        """What was stored. Raises as `put` does."""
        if self._rows:
            await self._end_list()
        return Staged(tuple(self._lists), self._objects, self._size_bytes)

    async def _end_list(self) -> None:
        rows, self._rows, self._row_bytes = self._rows, [], 0
        self._lists.append(str(await self._store(_encode(rows))))

    async def _store(self, content: bytes) -> ObjectId:
        object_id = await self._core.blobs.store(self._pool, content, self._hold)
        for _, part in await self._core.listed(object_id):
            await self._hold(part)
        return object_id

    async def _hold(self, part: ObjectId) -> None:
        """Hold one range of a ledger: then it stays, with all that is in it."""
        if part.ledger_id not in self._held:
            self._held.add(part.ledger_id)
            await self._holding.part_ended(part)
