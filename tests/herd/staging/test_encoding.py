"""Rows made of Arrow columns: the same as SQL makes of these values, or an error that says why."""

import datetime
import math
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from herd.errors import (
    CheckViolation,
    DataError,
    NoSuchColumn,
    NotNullViolation,
    ProgrammingError,
    TypeMismatch,
    ValueOutOfRange,
    ValueTooLong,
)
from herd.rows import encode_row
from herd.schema import Check, Column, Table
from herd.staging.encoding import Encoder
from herd.staging.layout import digest
from herd.types import BIGINT, TEXT, ColumnType, Kind, accepting

MOMENT = datetime.datetime(2026, 11, 22, 10, 30, tzinfo=datetime.UTC)
UTC = datetime.UTC


def table_of(*types: ColumnType, **fields: Any) -> Table:
    """A table with a BIGINT key and columns v1, v2 and so on."""
    columns = [Column(0, "id", BIGINT, nullable=False)]
    columns += [Column(number, f"v{number}", kind) for number, kind in enumerate(types, 1)]
    return Table(1, "cow", 1, tuple(columns), (0,), next_column=len(columns), **fields)


def encoded(table: Table, **given: Any) -> list[tuple[bytes, bytes]]:
    """The rows of one batch, their keys counted from 1."""
    count = max((len(array) for array in given.values()), default=1)
    batch = pa.record_batch({"id": pa.array(range(1, count + 1), pa.int64()), **given})
    return Encoder(table, batch.schema, MOMENT).pairs(batch)


def timestamp(*parts: int, zone: Any = None) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=zone)  # type: ignore[arg-type, misc]


VALUES: list[tuple[ColumnType, pa.DataType, list[Any]]] = [
    (ColumnType(Kind.BOOLEAN), pa.bool_(), [True, False, None]),
    (ColumnType(Kind.TINYINT), pa.int8(), [-128, 127, 0]),
    (ColumnType(Kind.TINYINT), pa.int64(), [-128, 127, None]),
    (ColumnType(Kind.BIGINT), pa.int64(), [-(1 << 63), (1 << 63) - 1, None]),
    (ColumnType(Kind.BIGINT), pa.int32(), [1, 2, 3]),
    (ColumnType(Kind.REAL), pa.float32(), [1.5, -0.0, math.nan, math.inf, None]),
    (ColumnType(Kind.REAL), pa.float64(), [0.1, -0.0, math.nan, -math.inf]),
    (ColumnType(Kind.DOUBLE), pa.float64(), [0.1, -0.0, math.nan, -math.inf, None, 1e300]),
    (ColumnType(Kind.DOUBLE), pa.int32(), [7, -7]),
    (ColumnType(Kind.DECIMAL, 10, 2), pa.decimal128(10, 2), [Decimal("-1.25"), Decimal(0), None]),
    (ColumnType(Kind.DECIMAL, 18, 0), pa.decimal128(38, 0), [Decimal(10**18 - 1), Decimal(-5)]),
    (ColumnType(Kind.DECIMAL, 10, 2), pa.int64(), [12, -3]),
    (ColumnType(Kind.DECIMAL, 38, 2), pa.decimal128(38, 2), [Decimal("-123.45"), Decimal(1), None]),
    (TEXT, pa.string(), ["", "Elsa", None, "Ü\0🐄"]),
    (TEXT, pa.large_string(), ["a", "bc"]),
    (ColumnType(Kind.VARCHAR, 4), pa.string(), ["Äöüß", "abcd"]),
    (ColumnType(Kind.BLOB), pa.binary(), [b"", b"\0\xff", None]),
    (ColumnType(Kind.DATE), pa.date32(), [datetime.date(1, 1, 1), datetime.date.max, None]),
    (ColumnType(Kind.TIME), pa.time64("us"), [datetime.time(23, 59, 59, 999_999), None]),
    (ColumnType(Kind.TIME), pa.string(), ["12:30:00"]),
    (ColumnType(Kind.TIMESTAMP), pa.timestamp("us"), [timestamp(1, 1, 1), timestamp(2026, 2, 3)]),
    (ColumnType(Kind.TIMESTAMP), pa.timestamp("ns"), [timestamp(1969, 12, 31, 23, 59, 59), None]),
    (ColumnType(Kind.TIMESTAMPTZ), pa.timestamp("us", "UTC"), [timestamp(2026, 2, 3, zone=UTC)]),
    (ColumnType(Kind.UUID), pa.string(), [f"{uuid.UUID(int=7)}", None]),
    (ColumnType(Kind.UUID), pa.binary(16), [uuid.UUID(int=9).bytes]),
    (ColumnType(Kind.JSON), pa.string(), ['{"a": [1]}', None]),
    (ColumnType(Kind.FLOATS), pa.list_(pa.float32()), [[1.5, -0.0], [], None]),
]


@pytest.mark.parametrize(("wanted", "found", "values"), VALUES)
def test_a_row_has_the_bytes_that_sql_would_store(
    wanted: ColumnType, found: pa.DataType, values: list[Any]
) -> None:
    table, accept = table_of(wanted), accepting(wanted)
    array = pa.array([None, *values], found)
    for start, given in ((0, [None, *values]), (1, values)):
        rows = encoded(table, v1=array[start:])
        stored = [None if value is None else accept(value) for value in given]
        assert [row for _, row in rows] == [
            encode_row([number, value]) for number, value in enumerate(stored, 1)
        ]


def test_microseconds_are_a_time_as_reading_gives_them() -> None:
    [(_, row)] = encoded(table_of(ColumnType(Kind.TIME)), v1=pa.array([3_600_000_000], pa.int64()))
    assert row == encode_row([1, accepting(ColumnType(Kind.TIME))("01:00")])


def test_keys_are_those_of_the_table_without_its_prefix() -> None:
    columns = (Column(0, "a", TEXT, nullable=False), Column(1, "b", BIGINT, nullable=False))
    table = Table(1, "cow", 1, columns, (1, 0), next_column=2)
    batch = pa.record_batch({"B": pa.array([7, -7]), "A": ["x\0", "y"]})
    pairs = Encoder(table, batch.schema, MOMENT).pairs(batch)
    assert [key for key, _ in pairs] == [
        table.encode_primary((7, "x\0")),
        table.encode_primary((-7, "y")),
    ]


MISFITS: list[tuple[ColumnType, pa.Array, type[DataError], str]] = [
    (ColumnType(Kind.TINYINT), pa.array([1, 300]), ValueOutOfRange, "300 is outside TINYINT"),
    (ColumnType(Kind.REAL), pa.array([1e300]), ValueOutOfRange, "REAL"),
    (
        ColumnType(Kind.DECIMAL, 4, 1),
        pa.array([Decimal("12.34")], pa.decimal128(10, 2)),
        *(ValueOutOfRange, r"DECIMAL\(4,1\)"),
    ),
    (ColumnType(Kind.DECIMAL, 4, 1), pa.array([1000]), ValueOutOfRange, r"DECIMAL\(4,1\)"),
    (ColumnType(Kind.VARCHAR, 3), pa.array(["abc", "abcd"]), ValueTooLong, "4 characters"),
    (
        ColumnType(Kind.DATE),
        pa.array([10**8], pa.int32()).cast(pa.date32()),
        ValueOutOfRange,
        "DATE",
    ),
    (
        ColumnType(Kind.TIMESTAMP),
        pa.array([10**18], pa.int64()).cast(pa.timestamp("us")),
        *(ValueOutOfRange, "TIMESTAMP"),
    ),
    (ColumnType(Kind.TIME), pa.array([86_400_000_000]), ValueOutOfRange, "TIME"),
    (ColumnType(Kind.UUID), pa.array(["no uuid"]), DataError, "UUID"),
    (ColumnType(Kind.JSON), pa.array(["{"]), DataError, "JSON"),
    (ColumnType(Kind.FLOATS), pa.array([[1.0, None]]), DataError, "DOUBLE"),
]


@pytest.mark.parametrize(("wanted", "values", "error", "said"), MISFITS)
def test_a_value_that_does_not_fit_is_an_error_that_names_its_column(
    wanted: ColumnType, values: pa.Array, error: type[DataError], said: str
) -> None:
    with pytest.raises(error, match=rf"cow\.v1: .*{said}"):
        encoded(table_of(wanted), v1=values)


WRONG: list[tuple[ColumnType, pa.DataType]] = [
    (BIGINT, pa.float64()),
    (BIGINT, pa.string()),
    (BIGINT, pa.bool_()),
    (TEXT, pa.int32()),
    (TEXT, pa.binary()),
    (ColumnType(Kind.BLOB), pa.string()),
    (ColumnType(Kind.DOUBLE), pa.int64()),
    (ColumnType(Kind.TIMESTAMP), pa.timestamp("us", "UTC")),
    (ColumnType(Kind.TIMESTAMPTZ), pa.timestamp("us")),
    (ColumnType(Kind.DATE), pa.timestamp("us")),
    (ColumnType(Kind.FLOATS), pa.list_(pa.int32())),
    (ColumnType(Kind.DECIMAL, 4, 1), pa.float64()),
]


@pytest.mark.parametrize(("wanted", "found"), WRONG)
def test_a_column_of_the_wrong_type_is_refused_before_any_row(
    wanted: ColumnType, found: pa.DataType
) -> None:
    schema = pa.schema({"id": pa.int64(), "v1": found})
    with pytest.raises(TypeMismatch, match=r"cow\.v1 is .*cast the column to"):
        Encoder(table_of(wanted), schema, MOMENT)


def test_too_many_too_few_and_doubled_columns_are_refused() -> None:
    table = table_of(TEXT)
    with pytest.raises(NoSuchColumn, match=r"no column v9 .*it has id, v1"):
        Encoder(table, pa.schema({"id": pa.int64(), "v9": pa.string()}), MOMENT)
    with pytest.raises(NotNullViolation, match=r"cow\.id may not be NULL, and is not given"):
        Encoder(table, pa.schema({"v1": pa.string()}), MOMENT)
    doubled = pa.schema([("id", pa.int64()), ("v1", pa.string()), ("V1", pa.string())])
    with pytest.raises(ProgrammingError, match="given twice"):
        Encoder(table, doubled, MOMENT)


def test_null_where_none_may_be_is_an_error() -> None:
    batch = pa.record_batch({"id": pa.array([1, None])})
    with pytest.raises(NotNullViolation, match=r"cow\.id may not be NULL"):
        Encoder(table_of(), batch.schema, MOMENT).pairs(batch)


def test_columns_that_are_not_given_have_their_defaults() -> None:
    stamped = ColumnType(Kind.TIMESTAMPTZ)
    columns = (
        Column(0, "id", BIGINT, nullable=False),
        Column(2, "name", TEXT, default="'Elsa'"),
        Column(3, "at", stamped, default="CURRENT_TIMESTAMP"),
        Column(4, "none", BIGINT),
    )
    table = Table(1, "cow", 1, columns, (0,), next_column=5)
    [(_, row)] = encoded(table)
    assert row == encode_row([1, None, "Elsa", accepting(stamped)(MOMENT), None])


def test_conditions_of_the_table_hold_for_each_row() -> None:
    table = table_of(BIGINT, checks=(Check("positive", "v1 > 0"),))
    encoded(table, v1=pa.array([1, None]))
    with pytest.raises(CheckViolation, match="positive"):
        encoded(table, v1=pa.array([1, 0]))


def test_rows_without_their_number_have_no_key_yet() -> None:
    columns = (Column(0, "no", BIGINT, nullable=False, auto=True), Column(1, "name", TEXT))
    table = Table(1, "log", 1, columns, (0,), next_column=2)
    batch = pa.record_batch({"name": ["a", "b"]})
    encoder = Encoder(table, batch.schema, MOMENT)
    assert (encoder.numbered, encoder.keyed) == (True, False)
    assert encoder.pairs(batch) == [(b"", encode_row([None, "a"])), (b"", encode_row([None, "b"]))]
    given = pa.record_batch({"no": pa.array([4, 9]), "name": ["a", "b"]})
    encoder = Encoder(table, given.schema, MOMENT)
    encoder.pairs(given)
    assert (encoder.numbered, encoder.keyed, encoder.highest) == (False, True, 9)


def test_a_definition_tells_whether_rows_look_the_same() -> None:
    table = table_of(TEXT)
    renamed = Table(1, "kuh", 9, table.columns, table.primary, next_column=2, next_index=5)
    assert digest(renamed) == digest(table)
    assert digest(table_of(BIGINT)) != digest(table)
    assert digest(table_of(TEXT, checks=(Check("c", "id > 0"),))) != digest(table)
