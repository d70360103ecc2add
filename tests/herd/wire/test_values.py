"""Values keep their types on the wire, and what has none is refused."""

import contextlib
import datetime
import enum
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herd.errors import TooLarge, ValueInvalid
from herd.wire.values import packed, unpack_extension
from herd.wire.weighing import check_values

_decode = msgspec.msgpack.Decoder(ext_hook=unpack_extension).decode
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
    st.dates(),
    st.times(),
    st.datetimes(),
    st.datetimes(timezones=st.timezones(), min_value=datetime.datetime(2, 1, 1)),
    st.uuids(),
    st.timedeltas(
        min_value=datetime.timedelta(days=-100_000), max_value=datetime.timedelta(days=100_000)
    ),
)


def there_and_back(value: Any) -> Any:
    """A value over the wire."""
    return _decode(msgspec.msgpack.encode(packed(value)))


@given(st.one_of(SCALARS, st.lists(SCALARS, max_size=5)))
def test_a_value_comes_back_equal_and_of_its_type(value: Any) -> None:
    found = there_and_back(value)
    assert found == value and type(found) is type(value)


def test_values_of_derived_types_come_back_as_what_they_are() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    class Size(enum.IntEnum):
        BIG = 3

    given_values = (Colour.RED, Size.BIG, bytearray(b"x"), memoryview(b"y"), (1, "a"))
    assert [there_and_back(value) for value in given_values] == ["red", 3, b"x", b"y", [1, "a"]]
    assert math.isnan(there_and_back(math.nan))


@pytest.mark.parametrize("value", [object(), {1: 2}, {1}, 1j, datetime.time(tzinfo=datetime.UTC)])
def test_what_no_column_holds_is_refused(value: Any) -> None:
    with pytest.raises(ValueInvalid):
        packed(value)


@pytest.mark.parametrize(
    ("code", "data"),
    [
        *((99, b""), (1, b"x"), (1, b"1" * 200_000), (1, b"\xff"), (2, b""), (2, b"\0" * 4)),
        *((3, b"\xff" * 8), (4, b"\x7f" + b"\xff" * 7), (5, b"1"), (6, b"short"), (8, b"\x7f")),
    ],
)
def test_extensions_that_mean_nothing_are_refused(code: int, data: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, ValueError)):
        _decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(code, data)))


def light(value: Any) -> bool:
    """Whether a value has one byte on the wire, and none of its own in memory."""
    return value is None or (isinstance(value, int) and -32 <= value < 128)


def count(value: Any) -> int:
    """How many values there are, with those inside of others."""
    if isinstance(value, list):
        return 1 + sum(map(count, value))
    if isinstance(value, dict):
        return 1 + sum(count(each) for pair in value.items() for each in pair)
    return 0 if light(value) else 1


MESSAGES = st.recursive(
    st.one_of(
        st.none(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=3),
        st.sampled_from(["x" * 32, b"x" * 256, "x" * 256, b"x" * 70_000, "x" * 70_000]),
        st.builds(msgspec.msgpack.Ext, st.integers(0, 9), st.binary(max_size=17)),
    ),
    lambda inside: st.one_of(
        st.lists(inside, max_size=20), st.dictionaries(st.text(max_size=2), inside, max_size=20)
    ),
    max_leaves=20,
)


@given(MESSAGES)
def test_the_values_of_a_message_are_counted_before_they_are_made(value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    values = count(msgspec.msgpack.decode(data))
    check_values(data, values)
    if values:
        with pytest.raises(TooLarge, match="values"):
            check_values(data, values - 1)


@given(st.binary())
def test_the_values_of_what_is_no_message_are_counted_to_an_end(data: bytes) -> None:
    with contextlib.suppress(TooLarge):
        check_values(data, 3)
