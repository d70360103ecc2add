"""One task of a write, in a process without an event loop: Arrow batches in, a message out.

Invariants:
- A row that is no object is an error that names it; nothing of its job gets a name.
- On their way to ledgers are at most `_AHEAD` pieces of about `_PIECE_BYTES`, however many rows a
  batch has.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from blobit.blobs import AsyncBlobs
from blobit.bucket_core import BucketCore
from blobit.errors import BlobNotStored, InvalidName
from blobit.naming import check_content_type, check_object_name, packed_metadata
from blobit.staging.naming import given_up, upload_id_of
from blobit.staging.storing import Staged, Stager, Unstored
from engine.limits import MIB
from engine.place import Place
from herd.place import HeldHerd, held_herd
from herd.staging.layout import Job

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_AHEAD: Final = 2
_PIECE_BYTES: Final = 8 * MIB
_PIECE_ROWS: Final = 4_096


@asynccontextmanager
async def open_bucket(held: HeldHerd, bucket: str) -> AsyncIterator[BucketCore]:
    """A bucket, and ledgers of its own for whoever writes, as long as the block lasts.

    Raises `NoSuchBucket`, `MetadataUnavailable`.
    """
    async with AsyncBlobs(held.ledgers, None, held.herd.workers, held.herd) as blobs:
        yield (await blobs.bucket(bucket)).core


class Task(msgspec.Struct, frozen=True):
    """One attempt at a part of a run of a job; `number` is that of no other attempt of the run."""

    job: Job
    number: int


def stage(place: Place, bucket: str, task: Task, batches: "Iterator[RecordBatch]") -> Staged:
    """Store the objects of a task. Blocks.

    Raises `InvalidName`, `BlobNotStored`, `NoSuchBucket`, `MetadataUnavailable`.
    """
    held = held_herd(place)
    opening = open_bucket(held, bucket)
    core = held.run(opening.__aenter__)
    try:
        mark = given_up(core, task.job, task.job.run)
        stager = Stager(core, upload_id_of(task.job, task.job.run, task.number), mark)
        under_way: deque[Future[None]] = deque()
        for batch in batches:
            for piece in _pieces(batch):
                if len(under_way) >= _AHEAD:
                    under_way.popleft().result()
                under_way.append(held.begin(partial(stager.put, piece)))
        for one in under_way:
            one.result()
        return held.run(stager.end)
    finally:
        held.run(lambda: _left(opening))


async def _left(opening: Any) -> None:
    await opening.__aexit__(None, None, None)


def _pieces(batch: "RecordBatch") -> Iterator[Sequence[Unstored]]:
    piece: list[Unstored] = []
    size_bytes = 0
    for start in range(0, batch.num_rows, _PIECE_ROWS):
        for one in objects_of(batch.slice(start, _PIECE_ROWS)):
            piece.append(one)
            size_bytes += len(one.content)
            if size_bytes >= _PIECE_BYTES or len(piece) >= _PIECE_ROWS:
                yield piece
                piece, size_bytes = [], 0
    if piece:
        yield piece


def objects_of(batch: "RecordBatch") -> Iterator[Unstored]:
    """The rows of a batch as objects. Raises `InvalidName`, `BlobNotStored`."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    nothing: list[Any] = [None] * batch.num_rows
    kinds, metadata = (
        columns[name].to_pylist() if name in columns else nothing
        for name in ("content_type", "metadata")
    )
    content = columns["content"]
    for row, name in enumerate(columns["name"].to_pylist()):
        if name is None:
            raise InvalidName("a row has NULL as name: each object has one, leave the row out")
        data = content[row].as_py()
        if data is None:
            raise BlobNotStored(
                f"object {name!r} has NULL as content: leave the row out, or give no bytes"
            )
        yield Unstored(
            check_object_name(name),
            data,
            check_content_type(kinds[row] or ""),
            packed_metadata(dict(metadata[row])) if metadata[row] else b"",
        )
