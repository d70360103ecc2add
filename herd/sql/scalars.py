"""Operators and functions on Python values, none of them NULL, as the query engine has them.

Invariants:
- Whatever is not certain to be what the query engine answers raises `CannotEvaluate`.
"""

import datetime
import math
import re
import uuid
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

from herd.errors import ValueInvalid, ValueOutOfRange
from herd.types import INTEGER_BITS, ColumnType, Kind, accepting, returning

# Sums and products of two decimals of 38 digits are exact.
_EXACT: Final = Context(prec=80)
_KNOWN: Final = (bool, int, float, Decimal, str, bytes, datetime.date, datetime.time, uuid.UUID)
_OWN_TEXT: Final = (Kind.JSON, Kind.BLOB, Kind.FLOATS)
_COMPARED: Final = (float, datetime.datetime)
"""Types of which two values cannot always be compared as Python does it."""
_BIGGEST: Final = (1 << 63) - 1
TEXT_MAX: Final = 4_096
"""A longer text that a statement computes with is for the query engine, which can be stopped."""
_LETTERS_MAX: Final = 256
_LIKE_STEPS_MAX: Final = 1 << 14
_PATTERN_MAX: Final = 1_000
_UNSURE: Final = re.compile("[\u1c80-\u1cbf\ua640-\uabbf\U00010000-\U0010ffff]")
"""Letters of which some got an upper or a lower case in late versions of Unicode."""
_REAL_DIGITS: Final = 7
_REAL_SCALE: Final = 6


class CannotEvaluate(Exception):
    """The query engine has to do it."""


def short(value: Any) -> Any:
    """A value, if it is no long text."""
    if type(value) is str and len(value) > (TEXT_MAX if value.isascii() else _LETTERS_MAX):
        raise CannotEvaluate
    return value


def known(value: Any) -> Any:
    """A parameter's value, if it is of a type that is known here."""
    if value is None or isinstance(value, _KNOWN):
        return value
    raise CannotEvaluate


def truth(value: Any) -> bool | None:
    """A condition's value."""
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return value != 0
    raise CannotEvaluate


def negated(value: Any) -> bool:
    """NOT."""
    return not truth(value)


def negative(value: Any) -> Any:
    """Minus."""
    if type(value) in (int, float):
        return -value
    if type(value) is Decimal:
        return value.copy_negate()
    raise CannotEvaluate


def add(one: Any, other: Any) -> Any:
    """Plus."""
    if type(one) is int and type(other) is int:
        return _whole(one + other)
    one, other = _numbers(one, other)
    return one + other if type(one) is float else _EXACT.add(one, other)


def subtract(one: Any, other: Any) -> Any:
    """Minus."""
    if type(one) is int and type(other) is int:
        return _whole(one - other)
    one, other = _numbers(one, other)
    return one - other if type(one) is float else _EXACT.subtract(one, other)


def multiply(one: Any, other: Any) -> Any:
    """Times."""
    if type(one) is int and type(other) is int:
        return _whole(one * other)
    one, other = _numbers(one, other)
    return one * other if type(one) is float else _EXACT.multiply(one, other)


def divide(one: Any, other: Any) -> float | None:
    """`/`: always a DOUBLE; by zero it is NULL."""
    _numbers(one, other)
    above, below = _float(one), _float(other)
    return None if below == 0 else above / below


def divide_whole(one: Any, other: Any) -> int | None:
    """`//` of integers: cut off toward zero; by zero it is NULL."""
    if type(one) is not int or type(other) is not int:
        raise CannotEvaluate
    if other == 0:
        return None
    whole = abs(one) // abs(other)
    return whole if (one < 0) == (other < 0) else -whole


def remainder(one: Any, other: Any) -> int | None:
    """`%` of integers: it has the sign of what is divided; by zero it is NULL."""
    if type(one) is not int or type(other) is not int:
        raise CannotEvaluate
    if other == 0:
        return None
    left = abs(one) % abs(other)
    return -left if one < 0 else left


def _whole(number: int) -> int:
    if -_BIGGEST - 1 <= number <= _BIGGEST:
        return number
    raise ValueOutOfRange(f"{number} is outside BIGINT")


def _numbers(one: Any, other: Any) -> tuple[Any, Any]:
    """Two numbers as floats if one is, else as decimals."""
    for value in (one, other):
        if type(value) not in (int, float, Decimal):
            raise CannotEvaluate
    if type(one) is float or type(other) is float:
        return _float(one), _float(other)
    return Decimal(one), Decimal(other)


def _float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        raise CannotEvaluate from None


def equal(one: Any, other: Any) -> bool:
    """`=`."""
    if type(one) is not type(other) or type(one) in _COMPARED:
        one, other = _comparable(one, other)
    return bool(one == other)


def less(one: Any, other: Any) -> bool:
    """`<`."""
    if type(one) is not type(other) or type(one) in _COMPARED:
        one, other = _comparable(one, other)
    try:
        return bool(one < other)
    except TypeError:
        raise CannotEvaluate from None


def _comparable(one: Any, other: Any) -> tuple[Any, Any]:
    kinds = {type(one), type(other)}
    if kinds == {datetime.datetime} and (one.tzinfo is None) == (other.tzinfo is None):
        return one, other
    if not kinds <= {int, float, Decimal, bool}:
        raise CannotEvaluate
    if float in kinds:
        one, other = _float(one), _float(other)
        if math.isnan(one) or math.isnan(other):
            raise CannotEvaluate
    return one, other


def as_real(number: Any) -> float:
    """A constant as a REAL, for those of which one rounding is sure to be as good as two."""
    exact = Decimal(number) if type(number) in (int, Decimal) else None
    if exact is None or len(exact.as_tuple().digits) > _REAL_DIGITS:
        raise CannotEvaluate
    if not -_REAL_SCALE <= int(exact.as_tuple().exponent) <= 0:
        raise CannotEvaluate
    stored: float = accepting(ColumnType(Kind.REAL))(float(exact))
    return stored


def _text(value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) in (str, int, uuid.UUID) or type(value) is datetime.date:
        return str(value)
    if type(value) is Decimal:
        return f"{value or value.copy_abs():f}"
    raise CannotEvaluate


def lower(value: Any) -> str:
    """LOWER."""
    return _letter_by_letter(value, str.lower)


def upper(value: Any) -> str:
    """UPPER."""
    return _letter_by_letter(value, str.upper)


def _letter_by_letter(value: Any, change: Callable[[str], str]) -> str:
    """The query engine changes each letter by itself, and to one letter."""
    if type(value) is not str:
        raise CannotEvaluate
    if value.isascii():
        return change(value)
    changed = "".join([change(letter) for letter in value])
    if len(changed) != len(value) or _UNSURE.search(value):
        raise CannotEvaluate
    return changed


def length(value: Any) -> int:
    """LENGTH, in characters."""
    if type(value) is str:
        return len(value)
    raise CannotEvaluate


def absolute(value: Any) -> Any:
    """ABS."""
    if type(value) in (int, float):
        return abs(value)
    if type(value) is Decimal:
        return value.copy_abs()
    raise CannotEvaluate


def like(value: Any, pattern: Any) -> bool:
    """LIKE without an escape."""
    if type(value) is not str or type(pattern) is not str or len(pattern) > _PATTERN_MAX:
        raise CannotEvaluate
    return _like(pattern).fullmatch(value) is not None


def unlike(value: Any, pattern: Any) -> bool:
    """NOT LIKE without an escape."""
    return not like(value, pattern)


def short_like(value: Any, pattern: Any) -> bool:
    """LIKE where the statement chose both sides."""
    if type(value) is str and type(pattern) is str and len(value) * len(pattern) > _LIKE_STEPS_MAX:
        raise CannotEvaluate
    return like(value, pattern)


def short_unlike(value: Any, pattern: Any) -> bool:
    """NOT LIKE where the statement chose both sides."""
    return not short_like(value, pattern)


@lru_cache(maxsize=256)
def _like(pattern: str) -> re.Pattern[str]:
    """What stands between two `%` is looked for once: the first place is as good as any other."""
    first, *parts = ["".join("." if c == "_" else re.escape(c) for c in p) for p in _parts(pattern)]
    if not parts:
        return re.compile(first, re.DOTALL)
    between = "".join(f"(?>.*?{part})" for part in parts[:-1])
    return re.compile(f"{first}{between}.*{parts[-1]}", re.DOTALL)


def _parts(pattern: str) -> list[str]:
    """A pattern without its `%`; what stands between two of them is not empty."""
    first, *others = pattern.split("%")
    return [first, *filter(None, others[:-1]), *others[-1:]]


def cast(value: Any, kind: ColumnType) -> Any:
    """CAST. Raises `ValueInvalid`, `ValueOutOfRange`, `CannotEvaluate`."""
    if kind.kind is Kind.VARCHAR:
        return _text(value)
    if kind.kind in INTEGER_BITS:
        value = _rounded(value)
    elif kind.kind is Kind.DECIMAL:
        value = _scaled(value, kind.scale)
    elif isinstance(value, datetime.datetime) or kind.kind in _own_text(value):
        raise CannotEvaluate
    stored = accepting(kind)(value)
    convert = returning(kind)
    return stored if convert is None else convert(stored)


def _own_text(value: Any) -> tuple[Kind, ...]:
    """Kinds whose texts are read in ways of the query engine's own."""
    return (*_OWN_TEXT, Kind.BOOLEAN) if type(value) is str else _OWN_TEXT


def _rounded(value: Any) -> Any:
    if type(value) is bool:
        return int(value)
    if type(value) is Decimal:
        return int(value.to_integral_value(ROUND_HALF_UP))
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueOutOfRange(f"{value} is no whole number")
        return round(value)
    if type(value) is str:
        if not value.isascii():
            raise CannotEvaluate
        try:
            return int(value)
        except ValueError:
            raise CannotEvaluate from None
    return value


def _scaled(value: Any, scale: int) -> Decimal:
    if type(value) not in (int, Decimal, str) or not str(value).isascii():
        raise CannotEvaluate
    try:
        number = Decimal(value)
        if not number.is_finite():
            raise CannotEvaluate
        return number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    except InvalidOperation:
        raise ValueInvalid(f"{value!r} is no DECIMAL") from None


def assigned(value: Any, kind: Kind) -> Any:
    """A value as it is given to a column: a moment becomes a time of UTC, or its day."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        if kind is Kind.TIMESTAMP:
            return value.astimezone(datetime.UTC).replace(tzinfo=None)
        if kind is Kind.DATE:
            return value.astimezone(datetime.UTC).date()
    return value
