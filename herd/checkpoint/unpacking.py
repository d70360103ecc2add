"""A page's columns back as rows with stored values: what a restoration writes.

Invariants:
- A row that went through a page is the row that was stored, value for value.
"""

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from herd.arrow import KEY
from herd.rows import Row
from herd.schema import Column, Table
from herd.types import Kind

_EXACT = Context(prec=76)
_AS_INTEGERS = {
    Kind.DATE: pa.int32(),
    Kind.TIME: pa.int64(),
    Kind.TIMESTAMP: pa.int64(),
    Kind.TIMESTAMPTZ: pa.int64(),
}


def unpacked(table: Table, batch: pa.RecordBatch) -> list[tuple[bytes, Row]]:
    """The rows of a batch that `decode_page` made: keys without the table's prefix, whole rows."""
    columns: list[list[Any]] = [[None] * batch.num_rows for _ in range(table.width)]
    for column in table.columns:
        columns[column.number] = _stored(column, batch.column(column.name))
    rows = [list(row) for row in zip(*columns, strict=True)]
    return list(zip(batch.column(KEY).to_pylist(), rows, strict=True))


def _stored(column: Column, array: pa.Array) -> list[Any]:
    kind = column.type.kind
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if kind in _AS_INTEGERS:
        array = array.cast(_AS_INTEGERS[kind])
    values: list[Any] = array.to_pylist()
    if kind is not Kind.DECIMAL:
        return values
    convert = _scaled(column)
    return [None if value is None else convert(value) for value in values]


def _scaled(column: Column) -> Callable[[Decimal], int | bytes]:
    scale = column.type.scale
    if column.type.wide:
        return lambda value: int(value.scaleb(scale, _EXACT)).to_bytes(16, signed=True)
    return lambda value: int(value.scaleb(scale, _EXACT))
