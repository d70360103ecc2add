"""A table's columns as Arrow's plain types, which every reader of Arrow understands.

    type of a column     Arrow, and Spark
    BOOLEAN … BIGINT     bool, int8 … int64: boolean, tinyint … bigint
    REAL, DOUBLE         float32, float64: float, double
    DECIMAL(p, s)        decimal128(p, s): decimal(p, s)
    VARCHAR, JSON        string: string
    BLOB                 binary: binary
    UUID                 binary: its 16 bytes; `hex(id)` shows them
    DATE                 date32: date
    TIME                 int64: bigint, microseconds since midnight (Spark's own TIME is off)
    TIMESTAMP            timestamp[us]: timestamp_ntz
    TIMESTAMPTZ          timestamp[us, UTC]: timestamp
    FLOAT[]              list of float32: array<float>

Invariants:
- A value is converted exactly; extension types become what they are stored as.
"""

from collections.abc import Sequence

import pyarrow as pa

from herd.arrow import arrow_type, schema_of
from herd.checkpoint.pages import decode_columns
from herd.schema import Column
from herd.types import ColumnType, Kind


def plain_type(kind: ColumnType) -> pa.DataType:
    """The plain Arrow type of a column's values."""
    if kind.kind is Kind.TIME:
        return pa.int64()
    if kind.kind is Kind.FLOATS:
        return pa.list_(pa.field("element", pa.float32()))
    if kind.kind is Kind.UUID:
        return pa.binary()
    found = arrow_type(kind)
    return found.storage_type if isinstance(found, pa.BaseExtensionType) else found


def plain_schema(columns: Sequence[Column]) -> pa.Schema:
    """The schema of columns in plain types."""
    return pa.schema([pa.field(one.name, plain_type(one.type), one.nullable) for one in columns])


def page_batch(
    columns: Sequence[Column], schema: pa.Schema, blobs: Sequence[bytes]
) -> pa.RecordBatch:
    """A page's rows with some columns, in the types of `schema`; its deltas come behind it.

    Raises `CannotRead`, and Arrow's errors.
    """
    nullable = pa.schema([field.with_nullable(True) for field in schema_of(columns)])
    batch = decode_columns(columns, nullable, blobs)
    arrays = [plain(array, field.type) for array, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def plain(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """An array in a plain type."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array if array.type == wanted else array.cast(wanted)
