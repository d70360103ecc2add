"""Conditions, beside the same asked of each Python value: no page and no row that meets is lost."""

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.log.position import START, Position
from herd.checkpoint.manifest import Locator, Page
from herd.checkpoint.pages import encode_page, ranges_of
from herd.rows import encode_row, stamp
from herd.schema import Column, Table
from herd.snapshot.arrays import page_batch, plain_schema
from herd.snapshot.conditions import Condition, Operator, condition_on, selected
from herd.types import BIGINT, TEXT, ColumnType, Kind, accepting

KINDS: Final = {
    "whole": BIGINT,
    "text": TEXT,
    "real": ColumnType(Kind.DOUBLE),
    "short": ColumnType(Kind.REAL),
    "money": ColumnType(Kind.DECIMAL, 10, 2),
    "wide": ColumnType(Kind.DECIMAL, 30, 2),
    "day": ColumnType(Kind.DATE),
    "moment": ColumnType(Kind.TIMESTAMPTZ),
    "bytes": ColumnType(Kind.BLOB),
    "flag": ColumnType(Kind.BOOLEAN),
    "time": ColumnType(Kind.TIME),
}
_DAY = datetime.date(2024, 2, 28)
_MOMENT = datetime.datetime(2024, 2, 28, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
_SMALL = st.integers(-3, 3)
VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "whole": _SMALL,
    "text": st.sampled_from(["", "a", "ab", "abc", "b", "é", "z" * 70, "a\x00", "😀", "\uffff"]),
    "real": st.sampled_from([-1.0, -0.0, 0.0, 0.5, math.inf, math.nan]),
    "short": st.sampled_from([-1.0, -0.0, 0.0, 0.5, math.inf, math.nan]),
    "money": _SMALL.map(lambda number: Decimal(number) / 4),
    "wide": _SMALL.map(lambda number: Decimal(number) / 4),
    "day": _SMALL.map(lambda days: _DAY + datetime.timedelta(days)),
    "moment": _SMALL.map(lambda us: _MOMENT + datetime.timedelta(microseconds=us)),
    "bytes": st.sampled_from([b"", b"a", b"\x00", b"\xff", b"ab"]),
    "flag": st.booleans(),
    "time": st.integers(0, 3),
}
COMPARED: Final[dict[Operator, Callable[[Any, Any], bool]]] = {
    Operator.EQUAL: lambda value, other: bool(value == other),
    Operator.BELOW: lambda value, other: bool(value < other),
    Operator.AT_MOST: lambda value, other: bool(value <= other),
    Operator.ABOVE: lambda value, other: bool(value > other),
    Operator.AT_LEAST: lambda value, other: bool(value >= other),
    Operator.STARTS: lambda value, other: bool(value.startswith(other)),
    Operator.ENDS: lambda value, other: bool(value.endswith(other)),
    Operator.CONTAINS: lambda value, other: other in value,
}
TEXTUAL: Final = (Operator.STARTS, Operator.ENDS, Operator.CONTAINS)


def table_of(kind: ColumnType) -> Table:
    """A table of one column beside its key."""
    key = Column(0, "id", BIGINT, nullable=False)
    return Table(1, "cows", 1, (key, Column(1, "value", kind)), (0,), next_column=2)


def page_of(table: Table, values: list[Any]) -> tuple[Page, bytes]:
    """A page with these values, and its bytes."""
    kind = table.columns[1].type
    rows = []
    for number, value in enumerate(values):
        if value is not None:
            value = value if kind.kind is Kind.TIME else accepting(kind)(value)
        key = table.encode_primary([number])
        rows.append((key, stamp(Position(1, number)) + encode_row([number, value])))
    blob = encode_page(table, rows)
    ranges = ranges_of(table, rows)
    at = Locator(1, 0, len(blob), 0)
    return Page(rows[0][0], rows[-1][0], len(rows), 0, START, ranges, at), blob


def meets(condition: Condition, value: Any) -> bool:
    """What Spark would say of one value."""
    operator, values = condition.operator, condition.values
    if operator is Operator.NULL:
        return (value is None) is not condition.negated
    if operator is Operator.SAME:
        return (value is not None and value == values[0]) is not condition.negated
    if value is None:
        return False
    if operator is Operator.IN:
        return (value in values) is not condition.negated
    if value != value:
        # NaN is greater than every number.
        return (operator in (Operator.ABOVE, Operator.AT_LEAST)) is not condition.negated
    return COMPARED[operator](value, values[0]) is not condition.negated


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[Any], Operator, list[Any], bool]:
    """A kind, the values of a page, and what is asked of them."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    values = draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=6))
    known = [one for one in Operator if kind == "text" or one not in TEXTUAL]
    operator = draw(st.sampled_from(known))
    count = {Operator.NULL: 0, Operator.IN: draw(st.integers(1, 3))}.get(operator, 1)
    asked = draw(st.lists(VALUES[kind], min_size=count, max_size=count))
    return kind, values, operator, asked, draw(st.booleans())


@given(cases())
def test_no_row_that_meets_a_condition_is_lost_and_no_other_is_kept(
    case: tuple[str, list[Any], Operator, list[Any], bool],
) -> None:
    kind, values, operator, asked, negated = case
    table = table_of(KINDS[kind])
    page, blob = page_of(table, values)
    condition = condition_on(table.columns[1], operator, asked, negated=negated)
    if condition is None:
        assert any(value != value for value in asked), "only NaN is left to the caller"
        return
    wanted = [number for number, value in enumerate(values) if meets(condition, value)]
    assert condition.may_match(page) or not wanted
    batch = page_batch(table.columns, plain_schema(table.columns), [blob])
    found = selected(batch, [condition], {0: 0, 1: 1}).column(0).to_pylist()
    assert found == wanted


@pytest.mark.parametrize(
    ("kind", "operator", "value"),
    [
        ("whole", Operator.EQUAL, None),
        ("whole", Operator.EQUAL, "a"),
        ("whole", Operator.EQUAL, 2**70),
        ("money", Operator.BELOW, Decimal("1.001")),
        ("text", Operator.STARTS, 7),
        ("bytes", Operator.STARTS, b"a"),
        ("day", Operator.EQUAL, "no day"),
        ("real", Operator.EQUAL, math.nan),
    ],
)
def test_what_a_column_cannot_hold_is_left_to_the_caller(
    kind: str, operator: Operator, value: Any
) -> None:
    assert condition_on(table_of(KINDS[kind]).columns[1], operator, [value]) is None


def test_a_page_outside_the_range_is_left_out() -> None:
    table = table_of(BIGINT)
    page, _ = page_of(table, [10, 11, None, 19])
    column = table.columns[1]

    def read(operator: Operator, *values: int, negated: bool = False) -> bool:
        condition = condition_on(column, operator, values, negated=negated)
        assert condition is not None
        return condition.may_match(page)

    assert not read(Operator.EQUAL, 9) and not read(Operator.ABOVE, 19)
    assert not read(Operator.IN, 9, 20) and read(Operator.IN, 9, 12)
    assert read(Operator.NULL) and read(Operator.NULL, negated=True)
    assert not read(Operator.AT_LEAST, 10, negated=True)
    assert read(Operator.EQUAL, 10, negated=True)
