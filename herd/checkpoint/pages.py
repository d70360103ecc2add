"""Rows of one table as a page and back.

Whoever reads a page gives its blob first, then those of its deltas, the oldest first.

Invariants:
- The checksum is of keys and values as the state has them; pages of equal rows have equal ones.
- A column that came after the page has its `fill` in all rows; one that went is not read.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import google_crc32c

from engine.log.position import Position
from herd.arrow import KEY, POSITION, arrow_type, batch_of
from herd.checkpoint.deltas import BEFORE, PLACE, order_of
from herd.checkpoint.manifest import ColumnRange
from herd.checkpoint.packing import KeyValue, pack, unpack
from herd.keys import PREFIX_BYTES
from herd.rows import POSITION_BYTES, changed_at, rows_decoder
from herd.schema import Column, Table
from herd.types import Kind, Stored, returning

if TYPE_CHECKING:
    import pyarrow

_TEXT_MAX: Final = 64
"""Longer texts make no range: it would be longer than what it saves."""
_UNORDERED: Final = (Kind.FLOATS, Kind.JSON)


def checksum_of(rows: Sequence[KeyValue]) -> int:
    """The CRC32C of rows as they are stored."""
    value: int = google_crc32c.value(b"".join([piece for row in rows for piece in row]))
    return value


def checksum_of_keys(rows: Sequence[KeyValue]) -> int:
    """The CRC32C of rows' keys."""
    value: int = google_crc32c.value(b"".join([key for key, _ in rows]))
    return value


def changed_last(rows: Sequence[KeyValue]) -> Position:
    """The newest change among rows."""
    newest = max([value[:POSITION_BYTES] for _, value in rows])
    return changed_at(newest)


def encode_page(table: Table, rows: Sequence[KeyValue]) -> bytes:
    """A page of these rows, which are of this table and in order."""
    return pack(table, batch_of(table, rows))


def decode_page(table: Table, *blobs: bytes) -> "pyarrow.RecordBatch":
    """A page's rows with the columns that the table has now, by their names of now.

    Raises `CannotRead`, and Arrow's errors.
    """
    import pyarrow as pa

    batches = [unpack(blob) for blob in blobs]
    names = [KEY, POSITION, *[column.name for column in table.columns]]
    arrays = [[batch.column(KEY), batch.column(POSITION)] for batch in batches]
    for some, batch in zip(arrays, batches, strict=True):
        some += [_array(column, batch) for column in table.columns]
    return pa.RecordBatch.from_arrays(_in_place(batches, arrays), names=names)


def decode_columns(
    columns: Sequence[Column],
    schema: "pyarrow.Schema",
    blobs: Sequence[bytes],
    prefix: bytes | None = None,
) -> "pyarrow.RecordBatch":
    """A page's rows with some of the columns that the table has now; no others are unpacked.

    With its table's `prefix` the keys, whole, and the positions come behind them.
    Raises `CannotRead`, and Arrow's errors.
    """
    import pyarrow as pa

    wanted = [str(column.number) for column in columns]
    if prefix is not None:
        wanted += [KEY, POSITION]
    # Only deltas have these.
    wanted += [PLACE, BEFORE]
    batches = [unpack(blob, wanted) for blob in blobs]
    arrays = [[_array(column, batch) for column in columns] for batch in batches]
    if prefix is not None:
        for some, batch in zip(arrays, batches, strict=True):
            some += [_whole_keys(prefix, batch.column(KEY)), batch.column(POSITION)]
    return pa.RecordBatch.from_arrays(_in_place(batches, arrays), schema=schema)


def keys_of(blobs: Sequence[bytes]) -> list[bytes]:
    """The keys of a page, in their order. Raises `CannotRead`, and Arrow's errors."""
    batches = [unpack(blob, [KEY, PLACE, BEFORE]) for blob in blobs]
    (keys,) = _in_place(batches, [[batch.column(KEY)] for batch in batches])
    found: list[bytes] = keys.to_pylist()
    return found


def _in_place(
    batches: "Sequence[pyarrow.RecordBatch]", arrays: "Sequence[Sequence[pyarrow.Array]]"
) -> "Sequence[pyarrow.Array]":
    """Columns of a page and its deltas, as those of the page with all deltas in place."""
    import pyarrow as pa

    if len(batches) == 1:
        return arrays[0]
    order = order_of(batches[0].num_rows, batches[1:])
    return [pa.concat_arrays(some).take(order) for some in zip(*arrays, strict=True)]


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
