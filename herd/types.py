"""The types of columns, and each value's two forms: the one that Python has and the one stored.

    type                      Python                 stored
    BOOLEAN                   bool                   bool
    TINYINT … BIGINT          int                    int
    REAL, DOUBLE              float                  float
    DECIMAL(p, s)             decimal.Decimal        int, times 10**s; 16 bytes where p > 18
    VARCHAR(n), TEXT          str                    str
    BLOB                      bytes                  bytes
    DATE                      datetime.date          int, days since 1970-01-01
    TIME                      datetime.time          int, microseconds since midnight
    TIMESTAMP                 datetime, no zone      int, microseconds since 1970-01-01
    TIMESTAMPTZ               datetime with a zone   int, microseconds since 1970-01-01 UTC
    UUID                      uuid.UUID              16 bytes
    JSON                      str, valid JSON        str
    FLOAT[]                   list of float          list of float

Invariants:
- A stored value comes back as an equal Python value, and what cannot be stored exactly is refused:
  nothing overflows, is cut off or is rounded in silence. (REAL rounds to its 24 bits: it is that.)
- Equal values have one stored form, so that stored forms can be compared.
"""

import datetime
import enum
import json
import math
import struct
import uuid
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import msgspec

from herd.errors import ValueInvalid, ValueOutOfRange, ValueTooLong

Stored = bool | int | float | str | bytes | list[float] | None
"""A value as rows hold it."""

Convert = Callable[[Any], Any]

VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
DECIMAL_DIGITS_MAX: Final = 38
_SMALL_DIGITS_MAX: Final = 18
_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime.datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_FLOAT: Final = struct.Struct("<f")
# The caller's own context has perhaps 28 digits, and would round.
_EXACT: Final = Context(prec=100, traps=[InvalidOperation])
_ONE: Final = Decimal(1)


class Kind(enum.Enum):
    """What kind of values a column holds; the value is its SQL name."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INTEGER = "INTEGER"
    BIGINT = "BIGINT"
    REAL = "REAL"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    VARCHAR = "VARCHAR"
    BLOB = "BLOB"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMPTZ = "TIMESTAMPTZ"
    UUID = "UUID"
    JSON = "JSON"
    FLOATS = "FLOAT[]"


INTEGER_BITS: Final = {Kind.TINYINT: 8, Kind.SMALLINT: 16, Kind.INTEGER: 32, Kind.BIGINT: 64}


class ColumnType(msgspec.Struct, frozen=True, array_like=True):
    """A kind, and its bounds: `size` characters of a VARCHAR (0: any), digits of a DECIMAL.

    >>> ColumnType(Kind.DECIMAL, 10, 2).sql
    'DECIMAL(10,2)'
    """

    kind: Kind
    size: int = 0
    scale: int = 0

    @property
    def sql(self) -> str:
        """How SQL writes it."""
        if self.kind is Kind.DECIMAL:
            return f"DECIMAL({self.size},{self.scale})"
        if self.kind is Kind.VARCHAR and self.size:
            return f"VARCHAR({self.size})"
        name: str = self.kind.value
        return name

    @property
    def wide(self) -> bool:
        """Whether it is a DECIMAL that no 64-bit number holds."""
        return self.kind is Kind.DECIMAL and self.size > _SMALL_DIGITS_MAX


BIGINT: Final = ColumnType(Kind.BIGINT)
TEXT: Final = ColumnType(Kind.VARCHAR)


@lru_cache(maxsize=1_024)
def accepting(kind: ColumnType) -> Convert:
    """What makes a Python value, not None, a stored one of this type.

    It raises `ValueInvalid`, `ValueOutOfRange`, `ValueTooLong`. Text that denotes a value of the
    type is taken for it, as in `'2026-11-21'` for a DATE.

    >>> accepting(ColumnType(Kind.DECIMAL, 10, 2))("12.5")
    1250
    """
    if kind.kind in INTEGER_BITS:
        return _accept_integer(kind)
    if kind.kind is Kind.DECIMAL:
        return _accept_decimal(kind)
    if kind.kind is Kind.VARCHAR:
        return _accept_text(kind)
    return _ACCEPT[kind.kind]


@lru_cache(maxsize=1_024)
def returning(kind: ColumnType) -> Convert | None:
    """What makes a stored value, not None, a Python one; None where they are the same.

    >>> returning(ColumnType(Kind.DATE))(0)
    datetime.date(1970, 1, 1)
    """
    if kind.kind is Kind.DECIMAL:
        exponent = -kind.scale
        if kind.wide:
            return lambda stored: _EXACT.scaleb(_from_wide(stored), exponent)
        return lambda stored: _EXACT.scaleb(Decimal(stored), exponent)
    return _RETURN.get(kind.kind)


def _from_wide(stored: bytes) -> Decimal:
    return Decimal(int.from_bytes(stored, signed=True))


def _accept_integer(kind: ColumnType) -> Convert:
    bits = INTEGER_BITS[kind.kind]
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def accept(value: Any) -> int:
        number = value if type(value) is int else _whole(value, kind)
        if low <= number <= high:
            return number
        raise ValueOutOfRange(f"{number} is outside {kind.sql}: {low} to {high}")

    return accept


def _whole(value: Any, kind: ColumnType) -> int:
    try:
        if isinstance(value, str):
            return int(value)
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            whole = int(value)
            if whole == value:
                return whole
    except (ValueError, OverflowError):
        pass
    raise _invalid(value, kind.sql)


def _accept_decimal(kind: ColumnType) -> Convert:
    limit, scale, wide = 10**kind.size, kind.scale, kind.wide

    def accept(value: Any) -> int | bytes:
        number = _number(value, kind.sql)
        try:
            scaled = int(_EXACT.scaleb(number, scale).quantize(_ONE, ROUND_HALF_UP, _EXACT))
        except InvalidOperation:
            scaled = limit
        if not -limit < scaled < limit:
            raise ValueOutOfRange(f"{value} does not fit in {kind.sql}")
        if _EXACT.scaleb(Decimal(scaled), -scale) != number and not isinstance(value, float):
            raise ValueInvalid(
                f"{value} has more than {scale} digits after the point", hint="round it first"
            )
        return scaled.to_bytes(16, signed=True) if wide else scaled

    return accept


def _number(value: Any, name: str) -> Decimal:
    try:
        if isinstance(value, bool):
            raise _invalid(value, name)
        if isinstance(value, float):
            value = repr(value)
        number = Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        raise _invalid(value, name) from None
    if not number.is_finite():
        raise _invalid(value, name)
    return number


def _accept_text(kind: ColumnType) -> Convert:
    size = kind.size

    def accept(value: Any) -> str:
        if type(value) is not str:
            if isinstance(value, bytes | bytearray | bool | list | dict):
                raise _invalid(value, kind.sql)
            value = str(value)
        if size and len(value) > size:
            raise ValueTooLong(f"{len(value)} characters do not fit in {kind.sql}")
        if len(value) > VALUE_BYTES_MAX // 4:
            _check_bytes(len(_utf8(value)))
        elif not value.isascii():
            _utf8(value)
        text: str = value
        return text

    return accept


def _utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueInvalid(f"no text: {error.reason} in {value[:20]!r}") from error


def _check_bytes(size_bytes: int) -> None:
    if size_bytes > VALUE_BYTES_MAX:
        raise ValueTooLong(f"a value of {size_bytes} bytes; {VALUE_BYTES_MAX} fit")


def _accept_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if type(value) is int and value in (0, 1):
        return value == 1
    if isinstance(value, str) and value.lower() in ("true", "t", "false", "f"):
        return value.lower()[0] == "t"
    raise _invalid(value, "BOOLEAN")


def _accept_double(value: Any) -> float:
    if type(value) is float:
        number = value
    elif isinstance(value, int | Decimal | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise _invalid(value, "DOUBLE") from None
        if math.isinf(number) and not isinstance(value, str):
            raise ValueOutOfRange(f"{value} is outside DOUBLE")
    else:
        raise _invalid(value, "DOUBLE")
    # Minus zero equals zero: one stored form for both.
    return number + 0.0 if number == 0 else number


def _accept_real(value: Any) -> float:
    number = _accept_double(value)
    try:
        rounded: float = _FLOAT.unpack(_FLOAT.pack(number))[0]
    except OverflowError:
        raise ValueOutOfRange(f"{value} is outside REAL") from None
    return rounded


def _accept_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _invalid(value, "BLOB")
    data = bytes(value)
    _check_bytes(len(data))
    return data


def _accept_date(value: Any) -> int:
    if isinstance(value, str):
        value = _parsed(datetime.date.fromisoformat, value, "DATE")
    if isinstance(value, datetime.datetime):
        if value.time() != datetime.time(0) or value.tzinfo is not None:
            raise _invalid(value, "DATE")
        value = value.date()
    if not isinstance(value, datetime.date):
        raise _invalid(value, "DATE")
    return value.toordinal() - _EPOCH_DAY


def _accept_time(value: Any) -> int:
    if isinstance(value, str):
        value = _parsed(datetime.time.fromisoformat, value, "TIME")
    if not isinstance(value, datetime.time) or value.tzinfo is not None:
        raise _invalid(value, "TIME")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def _accept_timestamp(value: Any) -> int:
    moment = _moment(value, "TIMESTAMP")
    if moment.tzinfo is not None:
        raise _invalid(value, "TIMESTAMP")
    return (moment - _EPOCH) // _MICROSECOND


def _accept_timestamptz(value: Any) -> int:
    moment = _moment(value, "TIMESTAMPTZ")
    if moment.tzinfo is None:
        if not isinstance(value, str):
            raise _invalid(value, "TIMESTAMPTZ")
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH_UTC) // _MICROSECOND


def _moment(value: Any, name: str) -> datetime.datetime:
    if isinstance(value, str):
        value = _parsed(datetime.datetime.fromisoformat, value, name)
    if isinstance(value, datetime.datetime):
        return value
    if isinstance(value, datetime.date):
        return datetime.datetime.combine(value, datetime.time(0))
    raise _invalid(value, name)


def _parsed(parse: Convert, text: str, name: str) -> Any:
    try:
        return parse(text.strip())
    except ValueError:
        raise _invalid(text, name) from None


def _accept_uuid(value: Any) -> bytes:
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, bytes) and len(value) == 16:
        return value
    if isinstance(value, str):
        identity: uuid.UUID = _parsed(uuid.UUID, value, "UUID")
        return identity.bytes
    raise _invalid(value, "UUID")


def _accept_json(value: Any) -> str:
    if isinstance(value, dict | list):
        value = json.dumps(value)
    if not isinstance(value, str):
        raise _invalid(value, "JSON")
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise _invalid(value, "JSON") from None
    _check_bytes(len(value.encode()))
    return value


def _accept_floats(value: Any) -> list[float]:
    if not isinstance(value, list | tuple):
        raise _invalid(value, "FLOAT[]")
    return [_accept_real(number) for number in value]


def _invalid(value: Any, name: str) -> ValueInvalid:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return ValueInvalid(f"{shown} is no {name}")


_ACCEPT: Final[dict[Kind, Convert]] = {
    Kind.BOOLEAN: _accept_boolean,
    Kind.REAL: _accept_real,
    Kind.DOUBLE: _accept_double,
    Kind.BLOB: _accept_bytes,
    Kind.DATE: _accept_date,
    Kind.TIME: _accept_time,
    Kind.TIMESTAMP: _accept_timestamp,
    Kind.TIMESTAMPTZ: _accept_timestamptz,
    Kind.UUID: _accept_uuid,
    Kind.JSON: _accept_json,
    Kind.FLOATS: _accept_floats,
}


def _return_time(stored: int) -> datetime.time:
    seconds, microsecond = divmod(stored, 1_000_000)
    minutes, second = divmod(seconds, 60)
    return datetime.time(minutes // 60, minutes % 60, second, microsecond)


_RETURN: Final[dict[Kind, Convert]] = {
    Kind.DATE: lambda stored: datetime.date.fromordinal(stored + _EPOCH_DAY),
    Kind.TIME: _return_time,
    Kind.TIMESTAMP: lambda stored: _EPOCH + datetime.timedelta(microseconds=stored),
    Kind.TIMESTAMPTZ: lambda stored: _EPOCH_UTC + datetime.timedelta(microseconds=stored),
    Kind.UUID: lambda stored: uuid.UUID(bytes=stored),
}
