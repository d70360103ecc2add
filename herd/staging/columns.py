"""Arrow columns as the values that a table's rows hold: exactly, or not at all.

    column                     Arrow
    TINYINT ... BIGINT         any integer, in its range
    REAL, DOUBLE               any float; integers of 32 bits or fewer
    DECIMAL(p, s)              any decimal or integer that it holds without rounding
    VARCHAR(n), TEXT           strings
    BLOB                       binary
    DATE                       dates
    TIME                       times; integers: microseconds since midnight; strings as in 12:30:00
    TIMESTAMP                  timestamps without a zone
    TIMESTAMPTZ                timestamps with one
    UUID                       16 bytes; strings
    JSON                       strings of valid JSON
    FLOAT[]                    lists of floats

Invariants:
- What is made here equals what `herd.types.accepting` makes of the same values in Python.
- A value that does not fit is an error that names its column; nothing is cut off or rounded, but
  for a REAL, which is that.
"""

import datetime
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from herd.errors import DataError, TypeMismatch, ValueOutOfRange, ValueTooLong
from herd.schema import Column, Table
from herd.types import INTEGER_BITS, VALUE_BYTES_MAX, ColumnType, Kind, accepting

Values = list[Any]
Convert = Callable[[Any], Values]
Fits = Callable[[pa.DataType], bool]

_INT64: Final = pa.int64()
_EPOCH: Final = datetime.date(1970, 1, 1).toordinal()
_DAYS: Final = (datetime.date.min.toordinal() - _EPOCH, datetime.date.max.toordinal() - _EPOCH)
_DAY_US: Final = 86_400_000_000
_MOMENTS: Final = (_DAYS[0] * _DAY_US, (_DAYS[1] + 1) * _DAY_US - 1)
_SPARK_TYPES: Final = {
    Kind.TINYINT: "tinyint",
    Kind.SMALLINT: "smallint",
    Kind.INTEGER: "int",
    Kind.BIGINT: "bigint",
    Kind.REAL: "float",
    Kind.VARCHAR: "string",
    Kind.BLOB: "binary",
    Kind.TIMESTAMP: "timestamp_ntz",
    Kind.TIMESTAMPTZ: "timestamp",
    Kind.UUID: "string",
    Kind.JSON: "string",
    Kind.FLOATS: "array<float>",
}


def converter(table: Table, column: Column, found: pa.DataType) -> Convert:
    """What makes stored values of an Arrow array of this type.

    It raises `DataError` for values that do not fit. Raises `TypeMismatch` for a type of which no
    value could.
    """
    kind = column.type.kind
    if isinstance(found, pa.BaseExtensionType):
        found = found.storage_type
    fits = _FITS.get(kind)
    if fits is None or not fits(found):
        raise TypeMismatch(
            f"{table.name}.{column.name} is {column.type.sql}, and is given {found}",
            hint=f"cast the column to {_spark_type(column.type)} first",
        )
    return _named(f"{table.name}.{column.name}", _converter(column.type, found))


def _spark_type(wanted: ColumnType) -> str:
    if wanted.kind is Kind.DECIMAL:
        return f"decimal({wanted.size},{wanted.scale})"
    name: str = wanted.kind.value
    return _SPARK_TYPES.get(wanted.kind, name.lower())


def _converter(wanted: ColumnType, found: pa.DataType) -> Convert:
    kind = wanted.kind
    if kind is Kind.BOOLEAN:
        return lambda array: array.to_pylist()
    if kind in INTEGER_BITS:
        high = (1 << INTEGER_BITS[kind] - 1) - 1
        return lambda array: _integers(array, (-high - 1, high), wanted.sql)
    if kind is Kind.DOUBLE:
        return _doubles
    if kind is Kind.REAL:
        return _reals
    if kind is Kind.DECIMAL:
        return lambda array: _decimals(array, wanted)
    if kind is Kind.VARCHAR:
        return lambda array: _texts(array, wanted)
    if kind is Kind.BLOB:
        return _binaries
    if kind is Kind.DATE:
        return lambda array: _integers(array.cast(pa.int32()), _DAYS, "DATE: the years 1 to 9999")
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        said = f"{wanted.sql}: the years 1 to 9999"
        return lambda array: _integers(_microseconds(array), _MOMENTS, said)
    if kind is Kind.TIME and pa.types.is_time(found):
        return lambda array: _int64s(_cast(array, pa.time64("us")).cast(_INT64))
    if kind is Kind.TIME and pa.types.is_integer(found):
        return lambda array: _integers(array, (0, _DAY_US - 1), "TIME: a day")
    return _one_by_one(wanted)


def _named(name: str, convert: Convert) -> Convert:
    def named(array: Any) -> Values:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        try:
            return convert(array)
        except DataError as error:
            hint = error.hint or "change those rows, or the column: nothing was written"
            raise type(error)(f"{name}: {error.message}", hint=hint) from None

    return named


def _one_by_one(wanted: ColumnType) -> Convert:
    accept = accepting(wanted)
    return lambda array: [None if v is None else accept(v) for v in array.to_pylist()]


def _int64s(array: pa.Array) -> Values:
    """The values of an array of int64."""
    if array.null_count or not len(array):
        return list(array.to_pylist())
    start = array.offset
    # A memory view makes the numbers ten times as quickly as Arrow.
    return memoryview(array.buffers()[1]).cast("q")[start : start + len(array)].tolist()


def _integers(array: pa.Array, bounds: tuple[int, int], said: str) -> Values:
    array = _cast(array, _INT64)
    found = pc.min_max(array)
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is not None and (low < bounds[0] or high > bounds[1]):
        wrong = low if low < bounds[0] else high
        raise ValueOutOfRange(f"{wrong} is outside {said}")
    return _int64s(array)


def _microseconds(array: pa.Array) -> pa.Array:
    return _cast(array, pa.timestamp("us", array.type.tz)).cast(_INT64)


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type == wanted:
        return array
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid as error:
        raise ValueOutOfRange(f"a value does not fit: {error}") from None


def _doubles(array: pa.Array) -> Values:
    # Minus zero equals zero, and there is one NaN: each has one stored form.
    array = pc.add(_cast(array, pa.float64()), 0.0)
    unordered = pc.is_nan(array)
    if pc.any(unordered).as_py():
        array = pc.if_else(unordered, math.nan, array)
    if array.null_count or not len(array):
        return list(array.to_pylist())
    start = array.offset
    return memoryview(array.buffers()[1]).cast("d")[start : start + len(array)].tolist()


def _reals(array: pa.Array) -> Values:
    if array.type == pa.float64():
        rounded = array.cast(pa.float32(), safe=False)
        lost = pc.and_(pc.is_inf(rounded), pc.invert(pc.is_inf(array)))
        if pc.any(lost).as_py():
            raise ValueOutOfRange("a number is outside REAL")
        array = rounded
    return _doubles(array)


def _decimals(array: pa.Array, wanted: ColumnType) -> Values:
    found = array.type
    if pa.types.is_integer(found):
        array = array.cast(pa.decimal128(20, 0))
    elif pa.types.is_decimal(found) and not pa.types.is_decimal128(found):
        array = _cast(array, pa.decimal128(38, found.scale))
    try:
        array = array.cast(pa.decimal128(wanted.size, wanted.scale))
    except pa.ArrowInvalid:
        raise ValueOutOfRange(
            f"a value does not fit in {wanted.sql}", hint="round it first"
        ) from None
    buffers, count, start = array.buffers(), len(array), array.offset
    if wanted.wide:
        plain = pa.Array.from_buffers(pa.binary(16), count, buffers, offset=start)
        return [None if value is None else value[::-1] for value in plain.to_pylist()]
    whole = pa.Array.from_buffers(pa.decimal128(19, 0), count, buffers, offset=start)
    return _int64s(whole.cast(_INT64))


def _texts(array: pa.Array, wanted: ColumnType) -> Values:
    _check_lengths(array, wanted)
    if array.type != pa.string():
        array = array.cast(pa.string())
    if array.null_count or not len(array):
        return list(array.to_pylist())
    start, count = array.offset, len(array)
    _, offsets, data = array.buffers()
    places = memoryview(offsets).cast("i")[start : start + count + 1].tolist()
    if data is None:
        return [""] * count
    first = places[0]
    text = data.slice(first, places[-1] - first).to_pybytes()
    if not text.isascii():
        return [text[a - first : b - first].decode() for a, b in pairwise(places)]
    letters = text.decode("ascii")
    if first:
        places = [place - first for place in places]
    return [letters[a:b] for a, b in pairwise(places)]


def _binaries(array: pa.Array) -> Values:
    _check_lengths(array, ColumnType(Kind.BLOB))
    return list(array.to_pylist())


def _check_lengths(array: pa.Array, wanted: ColumnType) -> None:
    if wanted.size:
        longest = pc.max(pc.utf8_length(array)).as_py() or 0
        if longest > wanted.size:
            raise ValueTooLong(f"{longest} characters do not fit in {wanted.sql}")
    size_bytes = pc.max(pc.binary_length(array)).as_py() or 0
    if size_bytes > VALUE_BYTES_MAX:
        raise ValueTooLong(f"a value of {size_bytes} bytes; {VALUE_BYTES_MAX} fit")


def _is_string(found: pa.DataType) -> bool:
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found))


def _is_binary(found: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(found) or types.is_large_binary(found) or types.is_fixed_size_binary(found)
    )


def _is_real(found: pa.DataType) -> bool:
    small = pa.types.is_integer(found) and found.bit_width <= 32
    return bool(pa.types.is_floating(found) or small)


def _is_float(found: pa.DataType) -> bool:
    small = pa.types.is_integer(found) and found.bit_width <= 16
    return bool(pa.types.is_floating(found) or small)


def _is_decimal(found: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(found) or pa.types.is_integer(found))


def _is_zoned(found: pa.DataType) -> bool:
    return pa.types.is_timestamp(found) and found.tz is not None


def _is_unzoned(found: pa.DataType) -> bool:
    return pa.types.is_timestamp(found) and found.tz is None


def _is_floats(found: pa.DataType) -> bool:
    listed = pa.types.is_list(found) or pa.types.is_large_list(found)
    return listed and bool(pa.types.is_floating(found.value_type))


_FITS: Final[dict[Kind, Fits]] = {
    Kind.BOOLEAN: pa.types.is_boolean,
    **dict.fromkeys(INTEGER_BITS, pa.types.is_integer),
    Kind.REAL: _is_float,
    Kind.DOUBLE: _is_real,
    Kind.DECIMAL: _is_decimal,
    Kind.VARCHAR: _is_string,
    Kind.BLOB: _is_binary,
    Kind.DATE: pa.types.is_date32,
    Kind.TIME: lambda found: (
        pa.types.is_time(found) or pa.types.is_integer(found) or _is_string(found)
    ),
    Kind.TIMESTAMP: _is_unzoned,
    Kind.TIMESTAMPTZ: _is_zoned,
    Kind.UUID: lambda found: _is_binary(found) or _is_string(found),
    Kind.JSON: _is_string,
    Kind.FLOATS: _is_floats,
}
