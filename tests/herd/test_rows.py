"""Rows as bytes: short ones, dropped columns, what fills, what readers make of them."""

import datetime
from decimal import Decimal
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine.log.position import Position
from herd.rows import changed_at, encode_row, row_decoder, row_reader, rows_decoder, stamp
from herd.schema import Column, Table
from herd.types import BIGINT, TEXT, ColumnType, Kind, accepting
from tests.herd.test_types import TYPES, values_of

SEVEN = Position(7, 8)


def table(*columns: Column, width: int = 0) -> Table:
    """A table whose key is column 0."""
    return Table(1, "t", 1, columns, (0,), next_column=width or len(columns))


@given(st.lists(st.sampled_from(TYPES), min_size=1, max_size=5), st.data())
def test_a_row_comes_back_as_it_was(types: list[ColumnType], data: st.DataObject) -> None:
    shape = [Column(number, f"c{number}", kind) for number, kind in enumerate(types)]
    values = [data.draw(st.none() | values_of(kind)) for kind in types]
    row = [
        None if value is None else accepting(kind)(value)
        for kind, value in zip(types, values, strict=True)
    ]
    stored = stamp(SEVEN) + encode_row(row)
    assert changed_at(stored) == SEVEN
    found = row_decoder(table(*shape))(stored)
    assert found == row and encode_row(found) == encode_row(row)
    assert row_reader(shape)(found) == tuple(values)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_positions_are_ordered_as_their_stamps(ledger: int, entry: int, other: int) -> None:
    one, two = Position(ledger, entry), Position(ledger, other)
    assert (stamp(one) < stamp(two)) == (one < two)
    assert changed_at(stamp(one) + b"rest") == one


def test_a_row_from_before_a_column_has_what_fills_it() -> None:
    old = stamp(SEVEN) + encode_row([1, "x"])
    shape = [Column(0, "a", BIGINT), Column(1, "b", TEXT)]
    newer = table(*shape, Column(2, "c", BIGINT, fill=5), Column(3, "d", TEXT))
    assert row_decoder(newer)(old) == [1, "x", 5, None]
    written = stamp(SEVEN) + encode_row([1, "x", None, "y"])
    assert row_decoder(newer)(written) == [1, "x", None, "y"], "NULL that was written stays NULL"


def test_a_dropped_column_is_passed_over_and_its_number_stays_free() -> None:
    old = stamp(SEVEN) + encode_row([1, "gone"])
    newer = table(Column(0, "a", BIGINT), Column(2, "c", BIGINT, fill=9), width=3)
    found = row_decoder(newer)(old)
    assert len(found) == newer.width == 3
    assert row_reader(newer.columns)(found) == (1, 9)


def test_readers_follow_the_order_that_they_are_asked_for() -> None:
    shape = [
        Column(0, "a", BIGINT),
        Column(1, "b", ColumnType(Kind.DATE)),
        Column(2, "c", ColumnType(Kind.DECIMAL, 9, 2)),
    ]
    row: list[Any] = [1, 0, 150]
    assert row_reader(shape)(row) == (1, datetime.date(1970, 1, 1), Decimal("1.50"))
    assert row_reader(shape[::-1])(row) == (Decimal("1.50"), datetime.date(1970, 1, 1), 1)
    assert row_reader(shape[:1])(row) == (1,)
    assert row_reader([])(row) == ()
    assert row_reader(shape)([None, None, None]) == (None, None, None)


def test_a_definition_comes_back_as_it_was_written() -> None:
    shape = (Column(0, "a", BIGINT, fill=b"\xff"), Column(1, "b", TEXT, fill=[1.0]))
    encoded = msgspec.msgpack.encode(table(*shape))
    assert msgspec.msgpack.decode(encoded, type=Table) == table(*shape)


@given(st.lists(st.integers(0, 4), max_size=8), st.integers(1, 3))
def test_many_rows_at_once_are_the_same_rows(lengths: list[int], times: int) -> None:
    shape = [Column(number, f"c{number}", BIGINT, fill=number) for number in range(4)]
    values = [stamp(SEVEN) + encode_row([None, *range(length)]) for length in lengths] * times
    wide = table(*shape)
    assert rows_decoder(wide)(values) == [row_decoder(wide)(value) for value in values]


def test_a_thousand_rows_at_once_stay_in_their_order() -> None:
    shape = [Column(0, "a", BIGINT), Column(1, "b", TEXT)]
    rows: list[list[Any]] = [[number, "x" * (number % 300)] for number in range(1_234)]
    values = [stamp(SEVEN) + encode_row(row) for row in rows]
    assert rows_decoder(table(*shape))(values) == rows
