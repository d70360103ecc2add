"""Rows of the names table as Arrow columns for readers.

    id        string                    the object's id
    name      string
    size      int64                     bytes
    etag      string                    the version
    created   timestamp[us, UTC]
    metadata  map<string, string>       what the user keeps with it

Invariants:
- Rows of other buckets, and of objects that had expired at the checkpoint, are left out.
- A page that cannot be read is an error that names it, never missing rows.
"""

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from blobit.object_id import ObjectId
from blobit.snapshot.bucket_snapshot import BucketSnapshot
from blobit.tables import unpacked_metadata
from herd.snapshot.conditions import Condition, selected
from herd.snapshot.parts import Piece, read_part

METADATA: Final = pa.map_(pa.string(), pa.string())
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("name", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("etag", pa.string()),
        pa.field("created", pa.timestamp("us", "UTC")),
        pa.field("metadata", METADATA),
    ]
)
"""The columns that every object has."""


class Objects:
    """Some objects: what readers see of them, and their ids."""

    def __init__(self, ids: Sequence[ObjectId], columns: pa.RecordBatch) -> None:
        self.ids = ids
        self.columns = columns
        """Those of `SCHEMA`."""

    def name(self, row: int) -> str:
        """How an object is called in an error."""
        return repr(self.columns.column("name")[row].as_py() or str(self.ids[row]))


def objects_of_ids(texts: Sequence[str]) -> Objects:
    """Objects of which the ids alone are known. Raises `InvalidObjectId`."""
    ids = [ObjectId.parse(text) for text in texts]
    arrays = [pa.nulls(len(ids), field.type) for field in SCHEMA]
    arrays[0] = pa.array(texts, pa.string())
    arrays[2] = pa.array([one.length for one in ids], pa.int64())
    return Objects(ids, pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))


def objects_of_page(
    snapshot: BucketSnapshot,
    piece: Piece,
    first: int,
    rows: int,
    conditions: Sequence[Condition],
) -> Objects:
    """Those among rows of a page that meet conditions. Blocks. Raises what is in `herd.errors`."""
    names = snapshot.names
    places = {column.number: place for place, column in enumerate(names.columns)}
    (whole,) = read_part(names, (piece,))
    stored = selected(whole.slice(first, rows), conditions, places)
    expires = stored.column("expires_ms")
    if expires.null_count < len(expires):
        stored = stored.filter(pc.fill_null(pc.greater(expires, names.record.taken_ms), True))
    packed: list[bytes] = stored.column("object_id").to_pylist()
    created = pc.multiply(stored.column("created_ms"), 1_000)
    arrays = [
        pa.array([_text_of(one) for one in packed], pa.string()),
        *(stored.column(name) for name in ("name", "length", "etag")),
        created.cast(SCHEMA.field("created").type),
        _metadata(stored.column("metadata")),
    ]
    columns = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    return Objects([ObjectId.from_bytes(one) for one in packed], columns)


def lengths_of(snapshot: BucketSnapshot, piece: Piece) -> list[int]:
    """The lengths of a page's objects, 0 for those of other buckets. Blocks. Raises as above."""
    columns = snapshot.column("bucket_id"), snapshot.column("length")
    names = msgspec.structs.replace(snapshot.names, columns=columns)
    (batch,) = read_part(names, (piece,))
    own = pc.equal(batch.column("bucket_id"), snapshot.bucket_id)
    lengths: list[int] = pc.if_else(own, batch.column("length"), 0).to_pylist()
    return lengths


def _text_of(packed_id: bytes) -> str:
    """The text of an id: `str(ObjectId.from_bytes(packed_id))`."""
    return base64.urlsafe_b64encode(packed_id).rstrip(b"=").decode("ascii")


def _metadata(packed: pa.Array) -> pa.Array:
    values: list[Any] = [
        list(unpacked_metadata(one).items()) if one else [] for one in packed.to_pylist()
    ]
    return pa.array(values, METADATA)
