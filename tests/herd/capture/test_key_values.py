"""Keys and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herd.capture.key_values import body_of_key, key_values
from herd.errors import StorageFailed
from herd.rows import row_decoder
from herd.schema import Column, Table, key_of
from herd.transaction import FRESH
from herd.types import BIGINT, TEXT, ColumnType, Kind, accepting
from tests.herd.test_types import ORDERED, values_of

KINDS = st.lists(st.sampled_from(ORDERED), min_size=1, max_size=4)


def keyed_by(kinds: list[ColumnType]) -> Table:
    """A table whose first column is in no key."""
    columns = [Column(0, "aside", TEXT)]
    columns += [Column(place, f"c{place}", kind) for place, kind in enumerate(kinds, 1)]
    primary = tuple(range(1, len(columns)))
    return Table(1, "cow", 7, tuple(columns), primary, next_column=len(columns))


@given(KINDS.flatmap(lambda kinds: st.tuples(st.just(kinds), st.tuples(*map(values_of, kinds)))))
def test_a_key_comes_back_as_the_values_it_was_made_of(
    drawn: tuple[list[ColumnType], tuple[Any, ...]],
) -> None:
    kinds, given_values = drawn
    table = keyed_by(kinds)
    values = [accepting(kind)(value) for kind, value in zip(kinds, given_values, strict=True)]
    key = key_of(table, [None, *values])
    # NaN is not equal to itself: what is written tells whether it is the same.
    assert repr(key_values(table)(key)) == repr(values)
    assert repr(row_decoder(table)(FRESH + body_of_key(table)(key))) == repr([None, *values])


@pytest.mark.parametrize("rest", [b"", b"\x80", b"\x80" + bytes(8)])
def test_bytes_that_are_no_key_of_the_table_are_refused(rest: bytes) -> None:
    table = keyed_by([BIGINT])
    with pytest.raises(StorageFailed, match=r"table cow: .* is no key of it"):
        key_values(table)(table.prefix + rest)


def test_a_text_without_an_end_is_refused() -> None:
    table = keyed_by([ColumnType(Kind.VARCHAR)])
    with pytest.raises(StorageFailed, match="is no key of it"):
        key_values(table)(table.prefix + b"elsa")
