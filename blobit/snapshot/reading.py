"""The rows of a share, as Arrow batches: objects, ranges of them, or lines.

    mode       columns
    objects    those of `names.SCHEMA`, and content unless it is left out
    ranges     those of `names.SCHEMA`, offset, content: a row a range of at most `range_bytes`
    lines      id, name, offset, line: texts between line feeds; the offset is that of the object

Invariants:
- A share's batches are made one by one; at most some rows of objects are read ahead.
- Bytes that cannot be read are an error that names the object, never missing rows.
"""

import asyncio
from array import array
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from blobit.errors import BlobError, RangeInvalid
from blobit.object_id import ObjectId
from blobit.reading import Readers
from blobit.snapshot.bucket_snapshot import BucketSnapshot
from blobit.snapshot.content import ROW_BYTES, Bodies, ahead, read_bodies
from blobit.snapshot.content import Wanted as WantedBytes
from blobit.snapshot.lines import Block, blocks_of, offsets_of, split_lines
from blobit.snapshot.names import SCHEMA, Objects, objects_of_ids, objects_of_page
from blobit.snapshot.planning import Share
from blobit.snapshot.wanted import Mode, Wanted
from blobit.streaming import read_span
from engine.place import HeldClient, Place, held_client
from engine.ports.system_workers import ThreadWorkers
from herd.snapshot.conditions import Condition

T = TypeVar("T")
CONTENT: Final = pa.field("content", pa.binary())
OFFSET: Final = pa.field("offset", pa.int64())
LINES: Final = pa.schema(
    [SCHEMA.field("id"), SCHEMA.field("name"), OFFSET, pa.field("line", pa.string())]
)
CONTENT_BYTES_MAX: Final = 2**31 - 2**20
"""Of one row: arrays of Spark's hold no more."""
_READERS_MAX: Final = 64
_RANGES_AHEAD: Final = 2


def schema_of(wanted: Wanted) -> pa.Schema:
    """The columns of a mode that has columns of its own."""
    if wanted.mode is Mode.LINES:
        return LINES
    if wanted.mode is Mode.RANGES:
        return SCHEMA.append(OFFSET).append(CONTENT)
    return SCHEMA.append(CONTENT) if wanted.content else SCHEMA


class ShareReader:
    """Reads shares of one bucket, or of objects by their ids. A context manager.

    It blocks: for threads without an event loop. Iterating raises `BlobNotFound`, `BlobUnreadable`,
    `BlobCorrupt`, and what is in `herd.errors`.
    """

    def __init__(
        self,
        place: Place,
        wanted: Wanted,
        snapshot: BucketSnapshot | None,
        conditions: Sequence[Condition] = (),
    ) -> None:
        self._wanted = wanted
        self._snapshot = snapshot
        self._conditions = conditions
        self._held: HeldClient = held_client(place)
        self._workers: ThreadWorkers
        self._readers: Readers

    def __enter__(self) -> "ShareReader":
        self._held.run(self._open)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.run(self._close)

    async def _open(self) -> None:
        self._workers = ThreadWorkers(asyncio.get_running_loop())
        self._readers = Readers(self._held.client, _READERS_MAX, self._workers)
        if self._snapshot is not None:
            self._readers = self._readers.of_bucket(self._snapshot.bucket_id)

    async def _close(self) -> None:
        self._readers.close()
        await self._workers.close()

    def objects(self, share: Share) -> Objects:
        """The objects of a share."""
        if share.piece is None or self._snapshot is None:
            return objects_of_ids(share.ids)
        return objects_of_page(
            self._snapshot, share.piece, share.first, share.rows, self._conditions
        )

    def batches(self, share: Share) -> Iterator[pa.RecordBatch]:
        """The rows of a share, in the columns of `schema_of`."""
        objects, mode = self.objects(share), self._wanted.mode
        if not objects.ids:
            return
        if not self._wanted.content:
            yield objects.columns
        elif mode is Mode.OBJECTS:
            yield from self._whole(objects, range(len(objects.ids)))
        elif mode is Mode.RANGES:
            yield from self._ranges(share, objects)
        else:
            for block in self.blocks(share, objects):
                yield _lines_batch(objects, block)

    def blocks(self, share: Share, objects: Objects) -> Iterator[Block]:
        """The lines of a share's objects, many of them at once."""
        small, big = _parted(objects, share, ROW_BYTES)
        for number in big:
            with self.telling(objects, number):
                object_id = objects.ids[number]
                yield from self._iterated(blocks_of(self._readers, object_id, number, share))
        for row in self.bodies(objects, small):
            for one, pieces in zip(row.wanted, row.pieces, strict=True):
                if pieces:
                    yield Block(one.number, 0, b"".join(pieces))

    def bodies(self, objects: Objects, numbers: Iterable[int]) -> Iterator[Bodies]:
        """The bytes of some objects, by their numbers, in the order in which they lie."""
        wanted = [WantedBytes(number, objects.ids[number]) for number in numbers]
        told = partial(self._told, objects)
        return self._iterated(read_bodies(self._readers, wanted, told))

    def span(self, object_id: ObjectId, offset: int, length: int) -> bytes:
        """A range of an object. Raises `BlobError`."""
        return self._held.run(lambda: read_span(self._readers, object_id, offset, length))

    @contextmanager
    def telling(self, objects: Objects, number: int) -> Iterator[None]:
        """Errors in the block are told of this object."""
        try:
            yield
        except BlobError as error:
            raise self._told(objects, number, error) from error

    def _told(self, objects: Objects, number: int, error: BlobError) -> Exception:
        name = objects.name(number)
        return error if self._snapshot is None else self._snapshot.told(name, error)

    def _whole(self, objects: Objects, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
        schema = schema_of(self._wanted)
        for number in numbers:
            if objects.ids[number].length > CONTENT_BYTES_MAX:
                raise RangeInvalid(
                    f"object {objects.name(number)} has {objects.ids[number].length} bytes, and a "
                    f"row holds {CONTENT_BYTES_MAX}: read it with mode=ranges"
                )
        for row in self.bodies(objects, numbers):
            taken = objects.columns.take(pa.array([one.number for one in row.wanted]))
            arrays = [*taken.columns, binary_array(row.pieces)]
            if self._wanted.mode is Mode.RANGES:
                arrays.insert(-1, pa.array([0] * len(row.wanted), OFFSET.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _ranges(self, share: Share, objects: Objects) -> Iterator[pa.RecordBatch]:
        wanted, schema = self._wanted, schema_of(self._wanted)
        small, big = _parted(objects, share, wanted.range_bytes)
        if small:
            yield from self._whole(objects, small)
        for number in big:
            object_id = objects.ids[number]
            columns = objects.columns.slice(number, 1).columns
            starts = share.ranges(object_id.length, wanted.range_bytes)
            reads = (
                partial(
                    read_span,
                    self._readers,
                    object_id,
                    start,
                    min(wanted.range_bytes, object_id.length - start),
                )
                for start in starts
            )
            with self.telling(objects, number):
                found = self._iterated(ahead(reads, _RANGES_AHEAD))
                for start, content in zip(starts, found, strict=True):
                    arrays = [*columns, pa.array([start], OFFSET.type), binary_array([[content]])]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _iterated(self, coming: AsyncGenerator[T, None]) -> Iterator[T]:
        """What an async generator yields, for a thread."""
        try:
            while found := self._held.run(lambda: _next(coming)):
                yield from found
        finally:
            self._held.run(lambda: _closed(coming))


async def _next(coming: AsyncGenerator[T, None]) -> tuple[T, ...]:
    """The next one, or none."""
    async for one in coming:
        return (one,)
    return ()


async def _closed(coming: AsyncGenerator[T, None]) -> None:
    await coming.aclose()


def _parted(objects: Objects, share: Share, small_bytes: int) -> tuple[list[int], list[int]]:
    """The numbers of objects that are read whole, and of those that are read piece by piece."""
    small: list[int] = []
    big: list[int] = []
    for number, object_id in enumerate(objects.ids):
        whole = share.parts == 1 and object_id.length <= small_bytes
        (small if whole else big).append(number)
    return small, big


def binary_array(values: Sequence[Sequence[bytes]]) -> pa.Array:
    """Values, each in pieces, as an array; they are copied once, at most."""
    ends = accumulate((sum(map(len, pieces)) for pieces in values), initial=0)
    data = b"".join(chain.from_iterable(values))
    buffers = [None, pa.py_buffer(array("i", ends)), pa.py_buffer(data)]
    return pa.Array.from_buffers(CONTENT.type, len(values), buffers)


def _lines_batch(objects: Objects, block: Block) -> pa.RecordBatch:
    lines = split_lines(block.data)
    count = len(lines)
    offsets = pa.array(offsets_of(block.data, count), pa.int64())
    texts = binary_array([[line] for line in lines])
    try:
        texts = texts.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([line.decode("utf-8", "replace") for line in lines], pa.string())
    one = objects.columns.slice(block.number, 1)
    same = pa.array([0] * count, pa.int32())
    arrays = [one.column(name).take(same) for name in ("id", "name")]
    return pa.RecordBatch.from_arrays([*arrays, pc.add(offsets, block.offset), texts], schema=LINES)
