"""Rows of one table as a page and back.

A page is one Arrow stream of one batch, its buffers compressed by zstd. Columns are named by their
numbers, for names may change: `_key` (without the table's prefix), `_position`, `0`, `1`, …

Invariants:
- The checksum is of keys and values as the state has them; pages of equal rows have equal ones.
- A column that came after the page has its `fill` in all rows; one that went is not read.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import google_crc32c

from engine.log.position import Position
from herd.arrow import arrow_type, batch_of
from herd.checkpoint.manifest import ColumnRange
from herd.keys import PREFIX_BYTES
from herd.rows import POSITION_BYTES, changed_at, rows_decoder
from herd.schema import Column, Table
from herd.types import Kind, Stored, returning

if TYPE_CHECKING:
    import pyarrow

KeyValue = tuple[bytes, bytes]
_COMPRESSION_LEVEL: Final = 1
_TEXT_MAX: Final = 64
"""Longer texts make no range: it would be longer than what it saves."""
_UNORDERED: Final = (Kind.FLOATS, Kind.JSON)


def checksum_of(rows: Sequence[KeyValue]) -> int:
    """The CRC32C of rows as they are stored."""
    value: int = google_crc32c.value(b"".join([piece for row in rows for piece in row]))
    return value


def changed_last(rows: Sequence[KeyValue]) -> Position:
    """The newest change among rows."""
    newest = max([value[:POSITION_BYTES] for _, value in rows])
    return changed_at(newest)


def encode_page(table: Table, rows: Sequence[KeyValue]) -> bytes:
    """A page of these rows, which are of this table and in order."""
    import pyarrow as pa

    batch = batch_of(table, rows)
    names = {column.name: str(column.number) for column in table.columns}
    batch = batch.rename_columns([names.get(name, name) for name in batch.schema.names])
    sink = pa.BufferOutputStream()
    codec = pa.Codec("zstd", compression_level=_COMPRESSION_LEVEL)
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def decode_page(table: Table, blob: bytes) -> "pyarrow.RecordBatch":
    """A page's rows with the columns that the table has now, by their names of now."""
    import pyarrow as pa

    with pa.ipc.open_stream(blob) as stream:
        batch = stream.read_next_batch()
    names = ["_key", "_position", *[column.name for column in table.columns]]
    arrays = [batch.column("_key"), batch.column("_position")]
    arrays += [_array(column, batch) for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def decode_columns(
    columns: Sequence[Column], schema: "pyarrow.Schema", blob: bytes, prefix: bytes | None = None
) -> "pyarrow.RecordBatch":
    """A page's rows with some of the columns that the table has now; no others are unpacked.

    With its table's `prefix` the keys, whole, and the positions come behind them.
    """
    import pyarrow as pa

    with pa.ipc.open_stream(blob) as stream:
        places = {name: place for place, name in enumerate(stream.schema.names)}
    there = [places[str(one.number)] for one in columns if str(one.number) in places]
    if prefix is not None:
        there += [places["_key"], places["_position"]]
    # Without any of them the keys tell how many rows there are.
    options = pa.ipc.IpcReadOptions(included_fields=there or [places["_key"]])
    with pa.ipc.open_stream(blob, options=options) as stream:
        batch = stream.read_next_batch()
    arrays = [_array(column, batch) for column in columns]
    if prefix is not None:
        arrays += [_whole_keys(prefix, batch.column("_key")), batch.column("_position")]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _whole_keys(prefix: bytes, keys: "pyarrow.Array") -> "pyarrow.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    before = pa.scalar(prefix, keys.type)
    return pc.binary_join_element_wise(before, keys, pa.scalar(b"", keys.type))


def _array(column: Column, batch: "pyarrow.RecordBatch") -> "pyarrow.Array":
    if str(column.number) not in batch.schema.names:
        return _filled(column, batch.num_rows)
    found, wanted = batch.column(str(column.number)), arrow_type(column.type)
    return found if found.type == wanted else found.cast(wanted)


def ranges_of(table: Table, rows: Sequence[KeyValue]) -> tuple[ColumnRange, ...]:
    """The lowest and highest stored values of the columns that have an order."""
    by_column = list(zip(*rows_decoder(table)([value for _, value in rows]), strict=False))
    found = []
    for column in table.columns:
        if column.type.kind in _UNORDERED or column.type.wide:
            continue
        values = by_column[column.number] if by_column else ()
        there: list[Any] = [value for value in values if value is not None]
        lowest, highest = (min(there), max(there)) if there else (None, None)
        if any(isinstance(one, str | bytes) and len(one) > _TEXT_MAX for one in (lowest, highest)):
            continue
        if isinstance(highest, float) and any(value != value for value in there):
            continue
        found.append(ColumnRange(column.number, lowest, highest, len(values) - len(there)))
    return tuple(found)


def short_key(key: bytes) -> bytes:
    """A row's key without its table's prefix."""
    return key[PREFIX_BYTES:]


def _filled(column: Column, rows: int) -> "pyarrow.Array":
    import pyarrow as pa

    stored: Stored = column.fill
    convert = returning(column.type)
    value = stored if stored is None or convert is None else convert(stored)
    return pa.array([value] * rows, arrow_type(column.type))
