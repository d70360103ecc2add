"""Reads objects of a bucket whole, and says which are corrupt, missing or unreadable.

Invariants:
- An object is sound only if all its bytes came and have the checksum in its id.
- One that is not does not keep the others from being read.
- Objects are held one row of small ones, or some mebibytes of a big one, at a time.
"""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import google_crc32c

from blobit.errors import BlobCorrupt, BlobError, BlobNotFound
from blobit.object_id import Kind, ObjectId
from blobit.reading import Readers
from blobit.snapshot.bucket_snapshot import BucketSnapshot
from blobit.snapshot.content import Wanted, in_order, rows_of
from blobit.snapshot.names import Objects, objects_of_page
from blobit.snapshot.planning import Share
from blobit.streaming import stream_span
from engine.ledger.client import LedgerClient
from engine.limits import ENTRY_BYTES_MAX, MIB
from engine.place import held_client
from pipeline.findings import Finding, Tally

_AHEAD_BYTES: Final = 8 * MIB
_READERS_MAX: Final = 64


def check_objects(snapshot: BucketSnapshot, share: Share) -> Tally:
    """Check the objects of one share of a bucket. Blocks.

    Raises what is in `herd.errors` for names that cannot be read.
    """
    assert share.piece is not None
    objects = objects_of_page(snapshot, share.piece, share.first, share.rows, snapshot.conditions)
    held = held_client(snapshot.place)
    return held.run(lambda: _check(held.client, objects, snapshot.bucket_id))


async def _check(client: LedgerClient, objects: Objects, bucket_id: int) -> Tally:
    tally = Tally()
    readers = Readers(client, _READERS_MAX).of_bucket(bucket_id)
    wanted = [Wanted(number, object_id) for number, object_id in enumerate(objects.ids)]
    try:
        for row in rows_of(in_order(wanted)):
            if len(row) == 1 or not await _are_sound(readers, row):
                # One of them is to blame, and only that one is to be named.
                for one in row:
                    await _check_one(readers, objects.name(one.number), one.object_id, tally)
            else:
                tally.bytes += sum(one.object_id.length for one in row)
            tally.subjects += len(row)
    finally:
        readers.close()
    return tally


async def _are_sound(readers: Readers, row: Sequence[Wanted]) -> bool:
    ids = [one.object_id for one in row]
    try:
        bodies = await readers.read_row(ids, ENTRY_BYTES_MAX)
    except BlobError:
        return False
    return all(
        _checksum_of(pieces) == object_id.checksum
        for object_id, pieces in zip(ids, bodies, strict=True)
    )


async def _check_one(readers: Readers, name: str, object_id: ObjectId, tally: Tally) -> None:
    if not object_id.length and object_id.kind is Kind.DATA:
        return
    try:
        async with aclosing(stream_span(readers, object_id, 0, None, _AHEAD_BYTES)) as pieces:
            async for _ in pieces:
                pass
    except BlobCorrupt as error:
        tally.note(Finding("corrupt", name, str(error)))
    except BlobNotFound as error:
        tally.note(Finding("missing", name, str(error)))
    except BlobError as error:
        tally.note(Finding("unreadable", name, str(error)))
    else:
        tally.bytes += object_id.length


def _checksum_of(pieces: Sequence[bytes]) -> int:
    checksum = 0
    for piece in pieces:
        checksum = google_crc32c.extend(checksum, piece)
    return checksum
