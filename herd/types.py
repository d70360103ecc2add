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
_UTC_FIRST: Final = (datetime.datetime.min - _EPOCH) // _MICROSECOND
_UTC_LAST: Final = (datetime.datetime.max - _EPOCH) // _MICROSECOND
_TEXTUAL: Final = (
    *(str, int, float, Decimal, uuid.UUID),
    *(datetime.date, datetime.time, datetime.timedelta),
)
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
        raise ValueOutOfRange(f"{_shown(number)} is outside {kind.sql}: {low} to {high}")

    return accept


def _whole(value: Any, kind: ColumnType) -> int:
    try:
        if isinstance(value, str):
            return int(value)
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            if isinstance(value, Decimal) and value.adjusted() > DECIMAL_DIGITS_MAX:
                # Its digits may be more than memory holds.
                raise ValueOutOfRange(f"{_shown(value)} is outside {kind.sql}")
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
            raise ValueOutOfRange(f"{_shown(value)} does not fit in {kind.sql}")
        if _EXACT.scaleb(Decimal(scaled), -scale) != number and not isinstance(value, float):
            raise ValueInvalid(
                f"{_shown(value)} has more than {scale} digits after the point",
                hint="round it first",
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
            if not isinstance(value, _TEXTUAL) or isinstance(value, bool):
                raise _invalid(value, kind.sql)
            try:
                value = str(value)
            except ValueError:
                raise _invalid(value, kind.sql) from None
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
        except ValueError:
            raise _invalid(value, "DOUBLE") from None
        except OverflowError:
            raise ValueOutOfRange(f"{_shown(value)} is outside DOUBLE") from None
        said = isinstance(value, str) and not any(map(str.isdigit, value))
        if math.isinf(number) and not said and not _is_infinite(value):
            raise ValueOutOfRange(f"{_shown(value)} is outside DOUBLE")
    else:
        raise _invalid(value, "DOUBLE")
    return _one_form(number)


def _is_infinite(value: Any) -> bool:
    return isinstance(value, Decimal) and value.is_infinite()


def _one_form(number: float) -> float:
    """Minus zero equals zero, and there is one NaN: each has one stored form."""
    if number == 0:
        return 0.0
    return number if number == number else math.nan


def _accept_real(value: Any) -> float:
    number = _accept_double(value)
    try:
        rounded: float = _FLOAT.unpack(_FLOAT.pack(number))[0]
    except OverflowError:
        raise ValueOutOfRange(f"{value} is outside REAL") from None
    return _one_form(rounded)


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
    stored = (moment - _EPOCH_UTC) // _MICROSECOND
    if not _UTC_FIRST <= stored <= _UTC_LAST:
        raise ValueOutOfRange(f"{moment} is outside the years 1 to 9999 of UTC")
    return stored


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
        try:
            value = json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise _invalid(value, "JSON") from None
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
    return ValueInvalid(f"{_shown(value)} is no {name}")


def _shown(value: Any) -> str:
    """A value in an error: it may be of any size, or show itself to nobody."""
    try:
        shown = repr(value) if isinstance(value, str | bytes | list | dict) else str(value)
    except Exception:
        # A number of more digits than Python writes, a circle, a class that fails.
        return f"a value of type {type(value).__name__}"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


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
