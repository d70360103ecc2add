"""Values of parameters and rows in MessagePack: each comes back as the type that it had.

NULL, booleans, numbers up to 64 bits, texts, bytes and lists are MessagePack's own. The others are
its extension types, integers big-endian:

    1  Decimal          its digits as text
    2  date             days since 0001-01-01, the first being 1: u32
    3  time             microseconds since midnight: u64
    4  timestamp        microseconds since 1970-01-01, without a zone: i64
    5  timestamp        the same, of UTC
    6  UUID             16 bytes
    7  integer          of more than 64 bits: two's complement
    8  interval         microseconds: i64

Invariants:
- What comes out equals what went in; a time with a zone comes out in UTC, the same moment.
- A value of any other type is refused before anything is sent, an unknown extension when it is
  read.
"""

import datetime
import struct
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from msgspec.msgpack import Ext

from herd.errors import (
    NoSuchColumn,
    ParametersMismatch,
    TooLarge,
    ValueInvalid,
    ValueOutOfRange,
)

_EPOCH: Final = datetime.datetime(1970, 1, 1)
_EPOCH_UTC: Final = _EPOCH.replace(tzinfo=datetime.UTC)
_MIDNIGHT: Final = datetime.datetime(1970, 1, 1)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_SIGNED: Final = struct.Struct(">q")
_UNSIGNED: Final = struct.Struct(">Q")
_DAYS: Final = struct.Struct(">I")
_PLAIN: Final = frozenset((type(None), bool, float, str, bytes))
_INTEGER_MIN: Final = -(2**63)
_INTEGER_MAX: Final = 2**64 - 1
_DIGITS_MAX: Final = 100_000
Pack = Callable[[Any], Any]


def packed(value: Any) -> Any:
    """A value in a form that MessagePack accepts.

    Raises `ValueInvalid` for a type that columns cannot have, `ValueOutOfRange`, `TooLarge`.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    pack = _PACK.get(kind)
    if pack is None:
        pack = _like(value)
    return pack(value)


def packed_row(row: Iterable[Any]) -> list[Any]:
    """Values in their order. Raises `ValueInvalid`."""
    return [packed(value) for value in row]


def packed_map(row: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name. Raises `ValueInvalid`, `NoSuchColumn` for a name that is no text."""
    for name in row:
        if not isinstance(name, str):
            raise NoSuchColumn(f"a column's name is a text, not {type(name).__name__}")
    return {name: packed(value) for name, value in row.items()}


def packed_parameters(parameters: Sequence[Any] | Mapping[str, Any]) -> list[Any] | dict[str, Any]:
    """A statement's parameters. Raises `ValueInvalid`, `ParametersMismatch`."""
    if type(parameters) is tuple or type(parameters) is list:
        return [packed(value) for value in parameters]
    if isinstance(parameters, Mapping):
        return {str(name): packed(value) for name, value in parameters.items()}
    return packed_sequence(parameters)


def packed_sequence(parameters: object) -> list[Any]:
    """A row of parameters. Raises `ValueInvalid`, `ParametersMismatch`."""
    if isinstance(parameters, str | bytes | Set | Mapping) or not isinstance(
        parameters, Collection
    ):
        kind = type(parameters).__name__
        raise ParametersMismatch(f"the parameters are a {kind}", hint="give a list or a tuple")
    return [packed(value) for value in parameters]


def unpack_extension(code: int, data: memoryview) -> Any:
    """What MessagePack's decoder asks about an extension type. Raises `ValueError`."""
    unpack = _UNPACK.get(code)
    if unpack is None:
        raise ValueError(f"extension type {code} of MessagePack is unknown here")
    try:
        return unpack(bytes(data))
    except (struct.error, OverflowError, InvalidOperation) as error:
        raise ValueError(f"a value of extension type {code} is malformed") from error


def _like(value: Any) -> Pack:
    """How a value of a type that is derived from a known one, or stands for one, goes."""
    for kind, pack in _DERIVED:
        if isinstance(value, kind):
            return pack
    raise ValueInvalid(
        f"a value of type {type(value).__name__} is of no column's type", hint="convert it"
    )


def _integer(value: int) -> Any:
    if _INTEGER_MIN <= value <= _INTEGER_MAX:
        return int(value)
    return Ext(7, value.to_bytes(value.bit_length() // 8 + 1, signed=True))


def _time(value: datetime.time) -> Ext:
    if value.tzinfo is not None:
        raise ValueInvalid("a time of day has no zone", hint="leave its tzinfo out")
    moment = _MIDNIGHT.replace(
        hour=value.hour, minute=value.minute, second=value.second, microsecond=value.microsecond
    )
    return Ext(3, _UNSIGNED.pack((moment - _MIDNIGHT) // _MICROSECOND))


def _timestamp(value: datetime.datetime) -> Ext:
    if value.tzinfo is None:
        return Ext(4, _SIGNED.pack((value - _EPOCH) // _MICROSECOND))
    return Ext(5, _SIGNED.pack((value - _EPOCH_UTC) // _MICROSECOND))


def _interval(value: datetime.timedelta) -> Ext:
    try:
        return Ext(8, _SIGNED.pack(value // _MICROSECOND))
    except struct.error:
        raise ValueOutOfRange(
            f"an interval of {value.days} days is too long", hint="the limit is 2**63 microseconds"
        ) from None


def _sequence(values: Sequence[Any]) -> list[Any]:
    try:
        return [packed(item) for item in values]
    except RecursionError:
        raise TooLarge("a value is nested too deeply") from None


def _decimal(data: bytes) -> Decimal:
    if len(data) > _DIGITS_MAX:
        raise ValueError("a number of too many digits")
    return Decimal(data.decode("ascii"))


def _clock_time(data: bytes) -> datetime.time:
    moment = _MIDNIGHT + datetime.timedelta(microseconds=_UNSIGNED.unpack(data)[0])
    if moment.date() != _MIDNIGHT.date():
        raise ValueError("a time of day past midnight")
    return moment.time()


def _moment(epoch: datetime.datetime) -> Callable[[bytes], datetime.datetime]:
    return lambda data: epoch + datetime.timedelta(microseconds=_SIGNED.unpack(data)[0])


_PACK: Final[dict[type, Pack]] = {
    int: _integer,
    Decimal: lambda value: Ext(1, str(value).encode()),
    datetime.date: lambda value: Ext(2, _DAYS.pack(value.toordinal())),
    datetime.time: _time,
    datetime.datetime: _timestamp,
    uuid.UUID: lambda value: Ext(6, value.bytes),
    datetime.timedelta: _interval,
    list: _sequence,
    tuple: _sequence,
    bytearray: bytes,
    memoryview: bytes,
}
_DERIVED: Final[tuple[tuple[type, Pack], ...]] = (
    # What `str` makes of an enumeration's member is its name.
    (str, str.__str__),
    (bytes, bytes),
    (float, float),
    # A timestamp is a date, too: what is narrower comes first.
    (datetime.datetime, _timestamp),
    *_PACK.items(),
)
_UNPACK: Final[dict[int, Callable[[bytes], Any]]] = {
    1: _decimal,
    2: lambda data: datetime.date.fromordinal(_DAYS.unpack(data)[0]),
    3: _clock_time,
    4: _moment(_EPOCH),
    5: _moment(_EPOCH_UTC),
    6: lambda data: uuid.UUID(bytes=data),
    7: lambda data: int.from_bytes(data, signed=True),
    8: lambda data: datetime.timedelta(microseconds=_SIGNED.unpack(data)[0]),
}
