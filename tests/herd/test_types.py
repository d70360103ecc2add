"""Types: what is stored comes back equal, and what cannot be stored exactly is refused in words."""

import datetime
import math
import uuid
from decimal import Decimal, getcontext, localcontext
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herd.errors import DataError, ValueInvalid, ValueOutOfRange, ValueTooLong
from herd.keys import key_encoder
from herd.types import (
    INTEGER_BITS,
    VALUE_BYTES_MAX,
    ColumnType,
    Kind,
    accepting,
    returning,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
UTC = datetime.UTC
ZONES = st.integers(-14 * 60, 14 * 60).map(
    lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes))
)
IN_UTC = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30), timezones=ZONES)


def decimals(size: int, scale: int) -> st.SearchStrategy[Decimal]:
    """All values of a DECIMAL."""
    limit = 10**size - 1
    return st.integers(-limit, limit).map(
        lambda number: Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))
    )


def values_of(kind: ColumnType) -> st.SearchStrategy[Any]:
    """Python values that come back as they are."""
    if kind.kind in INTEGER_BITS:
        bits = INTEGER_BITS[kind.kind]
        return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    if kind.kind is Kind.DECIMAL:
        return decimals(kind.size, kind.scale)
    found: dict[Kind, st.SearchStrategy[Any]] = {
        Kind.BOOLEAN: st.booleans(),
        Kind.REAL: st.floats(width=32, allow_nan=False),
        Kind.DOUBLE: st.floats(allow_nan=False),
        Kind.VARCHAR: TEXTS,
        Kind.BLOB: st.binary(),
        Kind.DATE: st.dates(),
        Kind.TIME: st.times(),
        Kind.TIMESTAMP: st.datetimes(),
        Kind.TIMESTAMPTZ: IN_UTC,
        Kind.UUID: st.uuids(),
        Kind.JSON: st.sampled_from(['{"a": [1, null]}', "[]", "1", '"ä"']),
        Kind.FLOATS: st.lists(st.floats(width=32, allow_nan=False)),
    }
    return found[kind.kind]


TYPES = [
    *(ColumnType(kind) for kind in Kind if kind is not Kind.DECIMAL),
    *(ColumnType(Kind.DECIMAL, *size) for size in ((1, 0), (9, 9), (18, 3), (19, 0), (38, 38))),
]
TYPED = st.sampled_from(TYPES).flatmap(lambda kind: st.tuples(st.just(kind), values_of(kind)))


def back(kind: ColumnType, stored: Any) -> Any:
    """The Python value of a stored one."""
    convert = returning(kind)
    return stored if convert is None else convert(stored)


@given(TYPED)
def test_a_stored_value_comes_back_equal_and_is_taken_again(typed: tuple[ColumnType, Any]) -> None:
    kind, value = typed
    stored = accepting(kind)(value)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stored)) == stored
    found = back(kind, stored)
    assert found == value
    assert accepting(kind)(found) == stored
    if kind.kind is Kind.DECIMAL:
        assert found.as_tuple().exponent == -kind.scale


@given(st.sampled_from(TYPES), st.data())
def test_equal_values_have_one_stored_form(kind: ColumnType, data: st.DataObject) -> None:
    value = data.draw(values_of(kind))
    texts = {Kind.DECIMAL, Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.UUID}
    if kind.kind in texts | set(INTEGER_BITS):
        assert accepting(kind)(f" {value} ".strip()) == accepting(kind)(value)


@given(
    st.sampled_from(TYPES),
    st.one_of(
        st.none().map(lambda _: object()),
        TEXTS,
        st.text(),
        st.binary(),
        st.integers(),
        st.floats(),
        st.decimals(),
        st.datetimes(),
        st.dates(),
        st.times(timezones=st.just(UTC)),
        st.uuids(),
        st.lists(st.integers()),
        st.dictionaries(st.text(), st.binary()),
        st.complex_numbers(),
        # Made in a function: Python refuses to print them, and Hypothesis prints its strategies.
        st.sampled_from([1, -1]).map(lambda sign: sign * 10**5_000),
        st.sampled_from(
            [
                Decimal("1e999999"),
                Decimal("1e-999999"),
                [[1]],
                "9" * 5_000,
                "1e999999999",
                "\ud800",
                {"a": {1, 2}},
                math.nan,
                "NaN",
                "-inf",
            ]
        ),
    ),
)
def test_whatever_is_given_is_stored_or_refused_in_words(kind: ColumnType, value: Any) -> None:
    try:
        stored = accepting(kind)(value)
    except DataError as error:
        assert len(str(error)) < 400
        return
    again = back(kind, stored)
    assert again == again or (isinstance(again, float) and math.isnan(again))
    encoded = msgspec.msgpack.encode([stored])
    assert msgspec.msgpack.encode([accepting(kind)(again)]) == encoded


@pytest.mark.parametrize("kind", INTEGER_BITS)
def test_an_integer_does_not_overflow(kind: Kind) -> None:
    accept, bits = accepting(ColumnType(kind)), INTEGER_BITS[kind]
    for number in (1 << bits - 1, -(1 << bits - 1) - 1, 10**5_000, Decimal("1e400")):
        with pytest.raises(ValueOutOfRange, match=kind.value):
            accept(number)
    for wrong in (1.5, "1.5", True, math.nan, math.inf, "x", b"1", Decimal("NaN")):
        with pytest.raises(ValueInvalid):
            accept(wrong)
    assert accept(3.0) == accept("3") == accept(Decimal("3.0")) == 3


def test_a_decimal_is_exact_in_all_its_digits_whatever_the_callers_context() -> None:
    kind = ColumnType(Kind.DECIMAL, 38, 10)
    value = Decimal("1234567890123456789012345678.0123456789")
    with localcontext() as context:
        context.prec = 5
        stored = accepting(kind)(value)
        assert isinstance(stored, bytes)
        assert back(kind, stored) == value
    assert getcontext().prec == 28


def test_a_decimal_is_neither_rounded_nor_cut_off() -> None:
    accept = accepting(ColumnType(Kind.DECIMAL, 5, 2))
    assert accept("999.99") == 99_999 and accept(-1) == -100 and accept("-0") == 0
    for wrong in ("1000", "-1000", 10**5_000, Decimal("1e999999")):
        with pytest.raises(ValueOutOfRange):
            accept(wrong)
    for wrong in ("1.005", Decimal("0.001"), "1e-9"):
        with pytest.raises(ValueInvalid, match="round it first"):
            accept(wrong)
    for nothing in (Decimal("NaN"), Decimal("Infinity"), math.nan, math.inf, "x", "", True, b"1"):
        with pytest.raises(ValueInvalid):
            accept(nothing)
    assert accept(0.1) == 10, "a binary fraction is the one that it is written as"


def test_a_float_outside_its_type_is_refused() -> None:
    real, double = accepting(ColumnType(Kind.REAL)), accepting(ColumnType(Kind.DOUBLE))
    for wrong in (10**400, "1e999", Decimal("1e999"), "-1e999"):
        with pytest.raises(ValueOutOfRange):
            double(wrong)
    with pytest.raises(ValueOutOfRange):
        real(1e39)
    assert double("inf") == math.inf and math.isnan(double("nan"))


@pytest.mark.parametrize("kind", [Kind.REAL, Kind.DOUBLE])
def test_zero_and_nan_have_one_form_each(kind: Kind) -> None:
    accept = accepting(ColumnType(kind))
    encode = msgspec.msgpack.encode
    assert encode(accept(-0.0)) == encode(accept(0.0)) == encode(accept(0)) == encode(accept("-0"))
    assert encode(accept(math.nan)) == encode(accept(-math.nan)) == encode(accept("nan"))
    if kind is Kind.REAL:
        assert encode(accept(-1e-60)) == encode(accept(0.0))


def test_a_text_is_as_long_as_it_may_be_and_no_longer() -> None:
    accept = accepting(ColumnType(Kind.VARCHAR, 3))
    assert accept("äöü") == "äöü"
    with pytest.raises(ValueTooLong, match=r"4 characters do not fit in VARCHAR\(3\)"):
        accept("abcd")
    with pytest.raises(ValueInvalid, match="surrogates"):
        accept("\ud800")
    for wrong in (b"abc", True, ["a"], {"a": 1}, memoryview(b"abc"), object(), 1j):
        with pytest.raises(ValueInvalid):
            accept(wrong)
    text = accepting(ColumnType(Kind.VARCHAR))
    with pytest.raises(ValueTooLong):
        text("ä" * (VALUE_BYTES_MAX // 2 + 1))
    assert len(text("x" * VALUE_BYTES_MAX)) == VALUE_BYTES_MAX
    with pytest.raises(ValueTooLong):
        accepting(ColumnType(Kind.BLOB))(bytes(VALUE_BYTES_MAX + 1))


def test_moments_at_both_ends_of_time_come_back() -> None:
    for kind, first, last in (
        (Kind.DATE, datetime.date.min, datetime.date.max),
        (Kind.TIME, datetime.time.min, datetime.time.max),
        (Kind.TIMESTAMP, datetime.datetime.min, datetime.datetime.max),
        (
            Kind.TIMESTAMPTZ,
            datetime.datetime.min.replace(tzinfo=UTC),
            datetime.datetime.max.replace(tzinfo=UTC),
        ),
    ):
        for value in (first, last):
            assert back(ColumnType(kind), accepting(ColumnType(kind))(value)) == value


def test_a_moment_that_utc_has_no_year_for_is_refused() -> None:
    accept = accepting(ColumnType(Kind.TIMESTAMPTZ))
    east = datetime.timezone(datetime.timedelta(hours=14))
    with pytest.raises(ValueOutOfRange, match="years 1 to 9999"):
        accept(datetime.datetime(1, 1, 1, tzinfo=east))
    with pytest.raises(ValueOutOfRange):
        accept("9999-12-31T23:59:59-01:00")


def test_zones_are_where_they_belong_and_nowhere_else() -> None:
    plain, zoned = accepting(ColumnType(Kind.TIMESTAMP)), accepting(ColumnType(Kind.TIMESTAMPTZ))
    moment = datetime.datetime(2026, 11, 21, 12, 0, 0, 1)
    with pytest.raises(ValueInvalid):
        plain(moment.replace(tzinfo=UTC))
    with pytest.raises(ValueInvalid):
        zoned(moment)
    with pytest.raises(ValueInvalid):
        accepting(ColumnType(Kind.TIME))(datetime.time(1, tzinfo=UTC))
    with pytest.raises(ValueInvalid):
        accepting(ColumnType(Kind.DATE))(moment)
    assert zoned("2026-11-21 13:00:00.000001+01:00") == zoned(moment.replace(tzinfo=UTC))


def test_json_is_valid_and_kept_as_it_was_written() -> None:
    accept = accepting(ColumnType(Kind.JSON))
    assert accept(' {"a":  1}') == ' {"a":  1}'
    circle: list[Any] = []
    circle.append(circle)
    for wrong in ("{", "", "NaN", {"a": math.nan}, {"a": object()}, circle, "[" * 100_000, 1, b"1"):
        with pytest.raises(ValueInvalid):
            accept(wrong)


def test_a_uuid_is_taken_in_its_forms() -> None:
    accept, value = accepting(ColumnType(Kind.UUID)), uuid.UUID(int=7)
    assert accept(value) == accept(str(value)) == accept(value.bytes) == value.bytes
    for wrong in ("7", b"7", 7):
        with pytest.raises(ValueInvalid):
            accept(wrong)


def test_a_type_is_written_as_sql_writes_it() -> None:
    assert ColumnType(Kind.DECIMAL, 10, 2).sql == "DECIMAL(10,2)"
    assert ColumnType(Kind.VARCHAR, 7).sql == "VARCHAR(7)"
    assert ColumnType(Kind.FLOATS).sql == "FLOAT[]"
    assert not ColumnType(Kind.DECIMAL, 18).wide and ColumnType(Kind.DECIMAL, 19).wide


ORDERED = [kind for kind in TYPES if kind.kind not in (Kind.JSON, Kind.FLOATS)]


@given(
    st.sampled_from(ORDERED).flatmap(
        lambda kind: st.tuples(st.just(kind), values_of(kind), values_of(kind))
    )
)
def test_stored_values_are_ordered_as_keys(typed: tuple[ColumnType, Any, Any]) -> None:
    kind, one, two = typed
    encode, accept = key_encoder((kind,), (False,)), accepting(kind)
    low, high = encode([accept(one)]), encode([accept(two)])
    assert (low < high, low == high) == (one < two, one == two)
