"""Values keep their types on the wire, and what has none is refused."""

import datetime
import enum
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herd.errors import ValueInvalid
from herd.wire.values import packed, unpack_extension

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
