"""Moments that readers see in microseconds, and rows keep in milliseconds."""

import datetime
import itertools

import pyarrow as pa
import pytest

from blobit.snapshot.filters import on_rows, shown_columns, where_conditions
from herd.errors import NoSuchColumn
from herd.schema import Column, Table
from herd.snapshot.conditions import Operator, condition_on
from herd.types import BIGINT, TEXT

NAMES = Table(
    1,
    "objects",
    1,
    (
        Column(0, "name", TEXT, nullable=False),
        Column(1, "length", BIGINT, nullable=False),
        Column(2, "etag", TEXT, nullable=False),
        Column(3, "created_ms", BIGINT, nullable=False),
    ),
    (0,),
    next_column=4,
)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ROWS_MS = pa.array([1_000, 1_001, 1_002])


def moment(time_us: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=time_us)


@pytest.mark.parametrize("operator", [one for one in Operator if len(one.value) <= 3])
@pytest.mark.parametrize("negated", [False, True])
def test_what_is_asked_of_a_moment_is_asked_exactly(operator: Operator, negated: bool) -> None:
    created = shown_columns(NAMES)[3]
    seen_us = pa.array([time_ms * 1_000 for time_ms in ROWS_MS.to_pylist()])
    seen = seen_us.cast(pa.timestamp("us", "UTC"))
    for time_us in itertools.chain(range(999_998, 1_000_003), (1_000_999, 1_001_000, 1_002_001)):
        asked = condition_on(created, operator, [moment(time_us)], negated=negated)
        assert asked is not None
        found = on_rows(asked, NAMES)
        assert found.column.name == "created_ms"
        assert found.mask(ROWS_MS).to_pylist() == asked.mask(seen).to_pylist(), time_us


def test_where_speaks_of_what_readers_see() -> None:
    text = "name LIKE 'a%' AND size > 5 AND created >= '1970-01-01 00:00:01.0005+00:00'"
    name, size, created = where_conditions(text, NAMES)
    assert (name.column.name, size.column.number) == ("name", 1)
    assert created.mask(ROWS_MS).to_pylist() == [False, True, True]
    assert list(where_conditions("", NAMES)) == []
    with pytest.raises(NoSuchColumn, match="has no column created_ms"):
        list(where_conditions("created_ms > 5", NAMES))
