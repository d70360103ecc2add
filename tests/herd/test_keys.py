"""Keys: ordered as their values, none the beginning of another, none too long."""

from functools import cmp_to_key
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.state.memory import MemoryState
from herd.catalog import erasing, stores_to_erase
from herd.errors import TypeMismatch, ValueTooLong
from herd.keys import (
    AUTO,
    ERASE,
    KEY_ROOM_BYTES,
    TABLE,
    catalog_key,
    key_encoder,
    number_of,
    prefix,
    store_of,
    successor,
)
from herd.types import TEXT, ColumnType, Kind, accepting
from tests.herd.test_types import ORDERED, values_of

Shape = tuple[tuple[ColumnType, ...], tuple[bool, ...]]
SHAPES = st.lists(st.tuples(st.sampled_from(ORDERED), st.booleans()), min_size=1, max_size=4).map(
    lambda columns: (tuple(c[0] for c in columns), tuple(c[1] for c in columns))
)


def rows_of(shape: Shape) -> st.SearchStrategy[list[Any]]:
    """Values of columns, NULL where it may be; often with one beginning."""
    return st.tuples(
        *[
            (st.none() | values_of(kind)) if nullable else values_of(kind)
            for kind, nullable in zip(*shape, strict=True)
        ]
    ).map(list)


def compared(one: list[Any], two: list[Any]) -> int:
    """Which row comes first: column by column, NULL before all."""
    for low, high in zip(one, two, strict=True):
        if low is None or high is None:
            if low is not high:
                return -1 if low is None else 1
        elif low != high:
            return -1 if low < high else 1
    return 0


@given(
    SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), st.lists(rows_of(shape), max_size=6)))
)
def test_keys_of_several_columns_are_ordered_as_their_rows(
    drawn: tuple[Shape, list[list[Any]]],
) -> None:
    (types, nullable), rows = drawn
    # Rows that differ in one column only are the ones that lie close to each other.
    rows += [[*one[:-1], two[-1]] for one in rows for two in rows]
    encode = key_encoder(types, nullable)

    def key(row: list[Any]) -> bytes:
        return encode(
            [
                None if value is None else accepting(kind)(value)
                for kind, value in zip(types, row, strict=True)
            ]
        )

    ordered = sorted(rows, key=cmp_to_key(compared))
    keys = [key(row) for row in ordered]
    assert keys == sorted(keys)
    for row, one in zip(ordered, keys, strict=True):
        for other_row, other in zip(ordered, keys, strict=True):
            assert (one == other) == (compared(row, other_row) == 0)
            assert one == other or not other.startswith(one)


@given(st.binary(max_size=8), st.binary(max_size=8))
def test_bytes_with_zeros_and_ends_keep_their_order(one: bytes, two: bytes) -> None:
    encode = key_encoder((ColumnType(Kind.BLOB), ColumnType(Kind.BLOB)), (False, True))
    pairs = [(one, two), (two, one), (one, None), (two, None), (one + two, b""), (one, b"\x00")]
    found = sorted(pairs, key=encode)
    assert found == sorted(pairs, key=lambda pair: (pair[0], pair[1] is not None, pair[1] or b""))


@given(st.binary(min_size=1).filter(lambda found: found.strip(b"\xff")), st.binary())
def test_the_successor_is_above_all_that_begin_so(beginning: bytes, rest: bytes) -> None:
    end = successor(beginning)
    assert beginning + rest < end
    assert not end.startswith(beginning)
    lower = bytes(end[:-1]) + bytes((end[-1] - 1,))
    assert lower == beginning[: len(end)]


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1))
def test_a_key_tells_what_it_belongs_to(store: int, index: int) -> None:
    assert store_of(prefix(store, index) + b"key") == (store, index)
    for kind in (TABLE, AUTO, ERASE):
        assert number_of(catalog_key(kind, store)) == store


def test_a_key_that_is_too_long_is_refused() -> None:
    encode = key_encoder((TEXT,), (False,))
    assert len(encode(["x" * (KEY_ROOM_BYTES - 2)])) == KEY_ROOM_BYTES
    with pytest.raises(ValueTooLong, match=f"{KEY_ROOM_BYTES} fit"):
        encode(["x" * (KEY_ROOM_BYTES - 1)])
    both = key_encoder((TEXT, TEXT), (False, True))
    with pytest.raises(ValueTooLong):
        both(["x" * 3_000, "\x00" * 600])


def test_what_has_no_order_is_no_key() -> None:
    for kind in (Kind.JSON, Kind.FLOATS):
        with pytest.raises(TypeMismatch, match="has no order"):
            key_encoder((ColumnType(kind),), (False,))


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1)), unique=True))
def test_marks_tell_what_is_to_be_erased(marked: list[tuple[int, int]]) -> None:
    state = MemoryState()
    for store, index in marked:
        key, value = erasing(store, index)
        assert value is not None
        state.put(key, value)
    assert sorted(stores_to_erase(state)) == sorted(marked)
