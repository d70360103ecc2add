"""Rows to Arrow and back: every type keeps every value."""

import datetime
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from herd.arrow import KEY, KIND, POSITION, batch_of, column_type_of, described, python_rows
from herd.errors import ValueInvalid, ValueOutOfRange
from herd.rows import POSITION_BYTES, encode_row
from herd.schema import Column, Table
from herd.types import TEXT, ColumnType, Kind, accepting, returning

VALUES: list[tuple[ColumnType, list[Any]]] = [
    (ColumnType(Kind.BOOLEAN), [True, False]),
    (ColumnType(Kind.TINYINT), [-128, 127]),
    (ColumnType(Kind.SMALLINT), [-(2**15), 2**15 - 1]),
    (ColumnType(Kind.INTEGER), [-(2**31), 2**31 - 1]),
    (ColumnType(Kind.BIGINT), [-(2**63), 2**63 - 1]),
    (ColumnType(Kind.REAL), [1.5, float("inf")]),
    (ColumnType(Kind.DOUBLE), [0.1, -1e308]),
    (ColumnType(Kind.DECIMAL, 18, 2), [Decimal("-9999999999999999.99"), Decimal("0.01")]),
    (ColumnType(Kind.DECIMAL, 38, 4), [Decimal("-" + "9" * 34 + ".9999"), Decimal("0.0001")]),
    (TEXT, ["", "grüß 🐄"]),
    (ColumnType(Kind.BLOB), [b"", b"\x00\xff"]),
    (ColumnType(Kind.DATE), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    (ColumnType(Kind.TIME), [datetime.time(0), datetime.time(23, 59, 59, 999_999)]),
    (ColumnType(Kind.TIMESTAMP), [datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)]),
    (
        ColumnType(Kind.TIMESTAMPTZ),
        [datetime.datetime(2026, 11, 21, 16, 0, tzinfo=datetime.UTC)],
    ),
    (ColumnType(Kind.UUID), [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)]),
    (ColumnType(Kind.JSON), ['{"a": [1, null]}', "null"]),
    (ColumnType(Kind.FLOATS), [[], [1.0, -2.5]]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[kind.sql for kind, _ in VALUES])
def test_what_goes_to_arrow_comes_back_equal(kind: ColumnType, values: list[Any]) -> None:
    table = Table(1, "t", 1, (Column(0, "a", kind),), (0,), next_column=1)
    accept = accepting(kind)
    rows = [
        (b"key%d" % place, bytes(POSITION_BYTES) + encode_row([accept(value)]))
        for place, value in enumerate(values)
    ]
    rows.append((b"none", bytes(POSITION_BYTES) + encode_row([None])))
    batch = batch_of(table, rows)
    found = python_rows(pa.Table.from_batches([batch]))
    assert [row[0] for row in found] == [*values, None]
    assert [row[1:] for row in found] == [(key, bytes(POSITION_BYTES)) for key, _ in rows]
    assert column_type_of(batch.schema.field("a")) == kind


def test_a_row_older_than_a_column_has_its_fill() -> None:
    old = Column(0, "a", TEXT)
    table = Table(1, "t", 1, (Column(2, "c", TEXT, fill="new"), old), (0,), next_column=3)
    batch = batch_of(table, [(b"k", bytes(POSITION_BYTES) + encode_row(["old"]))])
    assert batch.schema.names == ["c", "a", KEY, POSITION]
    assert python_rows(pa.Table.from_batches([batch]))[0][:2] == ("new", "old")


def test_a_decimal_of_38_digits_keeps_them_all() -> None:
    kind = ColumnType(Kind.DECIMAL, 38, 4)
    number = Decimal("1234567890123456789012345678901234.5678")
    convert = returning(kind)
    assert convert is not None
    assert convert(accepting(kind)(number)) == number
    with pytest.raises(ValueOutOfRange):
        accepting(kind)(Decimal("1e35"))
    with pytest.raises(ValueInvalid):
        accepting(kind)(Decimal("0.00001"))
    with pytest.raises(ValueOutOfRange):
        accepting(kind)(Decimal("1e999999"))


def test_clients_of_earlier_versions_know_every_type_name_that_is_sent() -> None:
    """They know HUGEINT, UUID and JSON, and fail on any other name."""
    halves = pa.table({"a": pa.array([Decimal(7), Decimal(-1)], pa.decimal128(38, 0))})
    for name in ("HUGEINT", "UHUGEINT"):
        field = described(halves, [name]).schema.field("a")
        assert field.metadata[KIND] == b"HUGEINT"
    assert python_rows(described(halves, ["HUGEINT"])) == [(7,), (-1,)]
    assert python_rows(described(halves, ["UHUGEINT"])) == [(7,), (2**128 - 1,)]
    assert column_type_of(described(halves, ["UHUGEINT"]).schema.field("a")) is None


def test_a_type_name_of_a_later_version_is_no_type_of_a_column() -> None:
    assert column_type_of(pa.field("a", pa.string(), metadata={KIND: b"GEOMETRY"})) is None
