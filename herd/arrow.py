"""Rows as Arrow columns, and Arrow results as Python values.

    type of a column        Arrow
    TINYINT ... BIGINT      int8 ... int64
    REAL, DOUBLE            float32, float64
    DECIMAL(p, s)           decimal128(p, s)
    VARCHAR, BLOB           string, binary
    DATE, TIME              date32, time64[us]
    TIMESTAMP, TIMESTAMPTZ  timestamp[us], timestamp[us, UTC]
    UUID, JSON              Arrow's extension types of these names
    FLOAT[]                 list of float32

Invariants:
- A value that goes to Arrow and back is equal to what `herd.types` makes of the stored one.
- What Arrow's types cannot tell (an integer of 128 bits, a UUID as text) stands in the metadata of
  the field, under `KIND`.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, timedelta
from typing import Any, Final

import pyarrow as pa

from herd.errors import NotSupportedError, ValueOutOfRange
from herd.rows import POSITION_BYTES, rows_decoder
from herd.schema import Column, Table
from herd.types import ColumnType, Kind, Stored

KIND: Final = b"herd:kind"
"""The key in a field's metadata; its value is the name of a type: HUGEINT, UUID, JSON.

Clients of earlier versions fail on any other name, so nothing else is sent under this key.
"""
UNSIGNED: Final = b"herd:unsigned"
"""The key that a UHUGEINT has besides `KIND`, which is HUGEINT; its value is `true`. Clients that
do not know the key read values below 2^127 right, and higher ones as negative numbers."""
KEY: Final = "_key"
POSITION: Final = "_position"
_HUGE: Final = b"HUGEINT"
_ROWS_AT_ONCE: Final = 2_000

_PLAIN: Final[dict[Kind, pa.DataType]] = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.TINYINT: pa.int8(),
    Kind.SMALLINT: pa.int16(),
    Kind.INTEGER: pa.int32(),
    Kind.BIGINT: pa.int64(),
    Kind.REAL: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.VARCHAR: pa.string(),
    Kind.BLOB: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("us"),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    Kind.UUID: pa.uuid(),
    Kind.JSON: pa.json_(),
    Kind.FLOATS: pa.list_(pa.float32()),
}

_NAMED: Final = {each.value.encode(): ColumnType(each) for each in (Kind.UUID, Kind.JSON)}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """The Arrow type of a column's values."""
    if kind.kind is Kind.DECIMAL:
        return pa.decimal128(kind.size, kind.scale)
    return _PLAIN[kind.kind]


def schema_of(columns: Iterable[Column], *, hidden: bool = False) -> pa.Schema:
    """The Arrow schema of some columns, with `_key` and `_position` if `hidden`."""
    fields = [pa.field(c.name, arrow_type(c.type), c.nullable) for c in columns]
    if hidden:
        fields += [
            pa.field(KEY, pa.binary(), False),
            pa.field(POSITION, pa.binary(POSITION_BYTES), False),
        ]
    return pa.schema(fields)


def batch_of(table: Table, rows: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
    """All columns of rows as they are stored, and `_key` and `_position`."""
    return batch_maker(table, table.columns, hidden=True)(rows)


def batch_maker(
    table: Table, columns: Sequence[Column], *, hidden: bool
) -> Callable[[Sequence[tuple[bytes, bytes]]], pa.RecordBatch]:
    """What makes batches of some columns of rows as they are stored."""
    decode, width = rows_decoder(table), table.width
    schema = schema_of(columns, hidden=hidden)
    makers = [(column.number, array_maker(column.type)) for column in columns]

    def make(rows: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
        values = [value for _, value in rows]
        by_column = list(zip(*decode(values), strict=False)) or [()] * width
        arrays = [maker(by_column[number]) for number, maker in makers]
        if hidden:
            arrays.append(pa.array([key for key, _ in rows], pa.binary()))
            stamps = pa.py_buffer(b"".join([value[:POSITION_BYTES] for value in values]))
            stamped = pa.binary(POSITION_BYTES)
            arrays.append(pa.Array.from_buffers(stamped, len(values), [None, stamps]))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return make


def array_maker(kind: ColumnType) -> Callable[[Sequence[Stored]], pa.Array]:
    """What makes an array of a type's stored values."""
    wanted = arrow_type(kind)
    if kind.kind is Kind.DECIMAL:
        return (lambda v: _wide(v, wanted)) if kind.wide else (lambda v: _decimals(v, wanted))
    if isinstance(wanted, pa.BaseExtensionType):
        storage = wanted.storage_type
        return lambda values: pa.ExtensionArray.from_storage(wanted, pa.array(values, storage))
    return lambda values: pa.array(values, wanted)


def _decimals(values: Sequence[Stored], wanted: pa.DataType) -> pa.Array:
    """Of integers that are the decimals without their points: Arrow keeps them the same way."""
    widened = pa.array(values, pa.int64()).cast(pa.decimal128(19, 0))
    return pa.Array.from_buffers(wanted, len(values), widened.buffers())


def _wide(values: Sequence[Any], wanted: pa.DataType) -> pa.Array:
    turned = [None if value is None else value[::-1] for value in values]
    stored = pa.array(turned, pa.binary(16))
    return pa.Array.from_buffers(wanted, len(values), stored.buffers())


# Results


def column_type_of(field: pa.Field) -> ColumnType | None:
    """The type of a result's column; None where no type of a table's column tells it."""
    facts = field.metadata or {}
    named = facts.get(KIND, b"")
    if named == _HUGE:
        return None if UNSIGNED in facts else ColumnType(Kind.DECIMAL, 38, 0)
    if named:
        return _NAMED.get(named)
    found = field.type
    if pa.types.is_decimal(found):
        return ColumnType(Kind.DECIMAL, found.precision, found.scale)
    if pa.types.is_timestamp(found):
        return ColumnType(Kind.TIMESTAMP if found.tz is None else Kind.TIMESTAMPTZ)
    if pa.types.is_list(found) and pa.types.is_floating(found.value_type):
        return ColumnType(Kind.FLOATS)
    for kind, plain in _PLAIN.items():
        if plain == found:
            return ColumnType(kind)
    return ColumnType(Kind.BIGINT) if pa.types.is_integer(found) else None


def python_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """A result's rows as tuples of the Python values of `herd.types`.

    Raises `ValueOutOfRange` for values that Python cannot represent: a date after the year 9999.
    """
    if not table.num_columns:
        return [()] * int(table.num_rows)
    rows: list[tuple[Any, ...]] = []
    # Arrow keeps the interpreter as long as it makes values, whichever thread that is.
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        columns = [
            _python_values(field, batch.column(place)) for place, field in enumerate(table.schema)
        ]
        rows += zip(*columns, strict=True)
    return rows


def _python_values(field: pa.Field, column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
        convert = _converter(field)
        if convert is None:
            return values
        return [None if value is None else convert(value) for value in values]
    except (ValueError, ArithmeticError, pa.ArrowException) as error:
        said = str(error)
    raise ValueOutOfRange(
        f"{field.name}: a value does not fit Python's type for {field.type}: {said}",
        hint="CAST it to VARCHAR in the query, or fetch Arrow",
    )


def _converter(field: pa.Field) -> Callable[[Any], Any] | None:
    facts = field.metadata or {}
    named = facts.get(KIND, b"")
    if named == _HUGE:
        # The upper half of the unsigned range arrives as negative numbers.
        return (lambda value: int(value) % 2**128) if UNSIGNED in facts else int
    if named == b"UUID":
        return uuid.UUID
    if pa.types.is_timestamp(field.type) and field.type.tz is not None:
        return lambda moment: moment.astimezone(UTC)
    if pa.types.is_interval(field.type):
        return _interval
    return None


def _interval(value: Any) -> timedelta | str:
    if value.months:
        return f"{value.months} months {value.days} days {value.nanoseconds // 1000} microseconds"
    return timedelta(days=value.days, microseconds=value.nanoseconds // 1000)


_NOT_IN_RESULTS: Final = frozenset({"BIT", "BIGNUM", "TIME WITH TIME ZONE"})
"""Types that Arrow lacks: DuckDB would return its own bytes, or a time without its zone."""


def described(table: pa.Table, types: Sequence[str]) -> pa.Table:
    """A result whose fields also have the facts that only DuckDB's type names show.

    Raises `NotSupportedError` for a type whose values would change in Arrow.
    """
    fields = list(table.schema)
    for place, name in enumerate(types):
        if name in _NOT_IN_RESULTS:
            raise NotSupportedError(f"{name} in a result", hint="CAST it to VARCHAR")
        if name == "UHUGEINT":
            fields[place] = fields[place].with_metadata({KIND: _HUGE, UNSIGNED: b"true"})
        elif name in ("HUGEINT", "UUID", "JSON"):
            fields[place] = fields[place].with_metadata({KIND: name.encode()})
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))
