"""Keys whose bytes are ordered as their values are.

    integers, times, small decimals   8 bytes, big-endian, sign bit flipped
    large decimals                    16 bytes, big-endian, sign bit flipped
    REAL, DOUBLE                      8 bytes of IEEE 754; sign flipped, of negative ones all bits
    BOOLEAN                           1 byte
    UUID                              16 bytes
    VARCHAR, BLOB                     the bytes, each 00 followed by ff, then 00 01
    a column that may be NULL         01 for NULL (which comes first), else 02 and the value

A key of several columns is the one after the other. In a tablespace's state:

    01 't' table(4)                   a table's definition        01 'v' name    a view's
    01 'c'                            the catalog's counters
    01 'a' table(4)                   the next AUTO_INCREMENT value
    01 'e' store(4)                   rows that nobody owns any more and that are to be erased
    01 'e' store(4) index(2)          the same of the entries of one index
    01 'i' number(8)                  what became of a transaction: herd/outcomes.py
    01 'j' name(16) milliseconds(8)   what a table has taken in bulk: herd/staging/marks.py
    02 store(4) index(2) key          a row (index 0): position(16) and the row;
                                      an index's entry: its row's key without the prefix

Invariants:
- For values of one type `encode(a) < encode(b)` if and only if a < b (NULL before all).
- No key of a type is the beginning of another one of it, so neighbours never mix.
- An entry of a unique index ends with its columns, unless one of them is NULL; of any other index
  with the key of the row.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from engine.state.cutting import KEY_BYTES_MAX
from herd.errors import TypeMismatch, ValueTooLong
from herd.types import ColumnType, Kind

Encode = Callable[[Any], bytes]
EncodeKey = Callable[[Sequence[Any]], bytes]

CATALOG: Final = b"\x01"
TABLE: Final = b"\x01t"
VIEW: Final = b"\x01v"
COUNTERS: Final = b"\x01c"
AUTO: Final = b"\x01a"
ERASE: Final = b"\x01e"
OUTCOME: Final = b"\x01i"
JOB: Final = b"\x01j"
DATA: Final = b"\x02"
PREFIX_BYTES: Final = 7
KEY_ROOM_BYTES: Final = KEY_BYTES_MAX - PREFIX_BYTES

_PREFIX: Final = struct.Struct(">BIH")
_ID: Final = struct.Struct(">I")
_UNSIGNED: Final = struct.Struct(">Q")
_DOUBLE: Final = struct.Struct(">d")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
_sign_flipped: Final = _SIGN.__add__
_pack = _UNSIGNED.pack


def prefix(store: int, index: int = 0) -> bytes:
    """What all keys of a store's rows (index 0), or of one of its indexes, begin with."""
    return _PREFIX.pack(2, store, index)


def store_of(key: bytes) -> tuple[int, int]:
    """The store and the index that a key of data belongs to."""
    _, store, index = _PREFIX.unpack_from(key)
    return store, index


def catalog_key(kind: bytes, number: int) -> bytes:
    """The key of what the catalog keeps under a number."""
    return kind + _ID.pack(number)


def index_mark(store: int, index: int) -> bytes:
    """The key of the mark of an index whose entries are to be erased."""
    return catalog_key(ERASE, store) + index.to_bytes(2)


def number_of(key: bytes) -> int:
    """The number in a key of the catalog."""
    number: int = _ID.unpack_from(key, 2)[0]
    return number


def successor(beginning: bytes) -> bytes:
    """The lowest key above all that begin so.

    >>> successor(b"a\\xff")
    b'b'
    """
    trimmed = beginning.rstrip(b"\xff")
    assert trimmed, "nothing is above all keys"
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))


@lru_cache(maxsize=4_096)
def key_encoder(types: tuple[ColumnType, ...], nullable: tuple[bool, ...]) -> EncodeKey:
    """What makes a key of stored values, one for each type.

    It raises `ValueTooLong` for a key over `KEY_ROOM_BYTES`. Raises `TypeMismatch` for types that
    have no order.
    """
    encoders = [
        _nullable(encoder(kind)) if may_be_null else encoder(kind)
        for kind, may_be_null in zip(types, nullable, strict=True)
    ]
    variable = any(kind.kind in (Kind.VARCHAR, Kind.BLOB) for kind in types)
    if len(encoders) == 1:
        only = encoders[0]
        return (lambda values: _fitting(only(values[0]))) if variable else lambda v: only(v[0])

    if not any(nullable):
        around = _around_text(types)
        if around is not None:
            return around

    def encode(values: Sequence[Any]) -> bytes:
        return _fitting(b"".join([one(value) for one, value in zip(encoders, values, strict=True)]))

    return encode


def _around_text(types: tuple[ColumnType, ...]) -> EncodeKey | None:
    """What makes keys of one text with integers around it, as many are; None for others."""
    texts = [place for place, kind in enumerate(types) if kind.kind is Kind.VARCHAR]
    others = {kind.kind for kind in types if kind.kind is not Kind.VARCHAR}
    if len(texts) != 1 or not others <= {Kind.INTEGER, Kind.BIGINT}:
        return None
    place, last = texts[0], texts[0] + 1 == len(types)
    head, tail = struct.Struct(f">{place}Q").pack, struct.Struct(f">{len(types) - place - 1}Q").pack

    def encode(values: Sequence[Any]) -> bytes:
        # As `_integer` and `_bytes` do it, without a call for each.
        text = values[place].encode()
        if b"\x00" in text:
            text = text.replace(b"\x00", b"\x00\xff")
        key = head(*map(_sign_flipped, values[:place])) + text + b"\x00\x01"
        if not last:
            key += tail(*map(_sign_flipped, values[place + 1 :]))
        return key if len(key) <= KEY_ROOM_BYTES else _fitting(key)

    return encode


def _fitting(key: bytes) -> bytes:
    if len(key) > KEY_ROOM_BYTES:
        raise ValueTooLong(f"a key of {len(key)} bytes; {KEY_ROOM_BYTES} fit")
    return key


def encoder(kind: ColumnType) -> Encode:
    """What makes the part of a key of one stored value, not None. Raises `TypeMismatch`."""
    if kind.wide:
        return _wide
    found = _ENCODERS.get(kind.kind)
    if found is None:
        raise TypeMismatch(f"{kind.sql} has no order: it cannot be part of a key or an index")
    return found


def _nullable(encode: Encode) -> Encode:
    return lambda value: b"\x01" if value is None else b"\x02" + encode(value)


def _integer(value: int) -> bytes:
    return _pack(value + _SIGN)


def _wide(value: bytes) -> bytes:
    return bytes((value[0] ^ 0x80,)) + value[1:]


def _double(value: float) -> bytes:
    bits = _UNSIGNED.unpack(_DOUBLE.pack(value))[0]
    return _pack(bits ^ _ALL if bits & _SIGN else bits | _SIGN)


def _boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def _text(value: str) -> bytes:
    return _bytes(value.encode())


def _bytes(value: bytes) -> bytes:
    if b"\x00" in value:
        value = value.replace(b"\x00", b"\x00\xff")
    return value + b"\x00\x01"


_ENCODERS: Final[dict[Kind, Encode]] = {
    Kind.BOOLEAN: _boolean,
    Kind.TINYINT: _integer,
    Kind.SMALLINT: _integer,
    Kind.INTEGER: _integer,
    Kind.BIGINT: _integer,
    Kind.REAL: _double,
    Kind.DOUBLE: _double,
    Kind.DECIMAL: _integer,
    Kind.VARCHAR: _text,
    Kind.BLOB: _bytes,
    Kind.DATE: _integer,
    Kind.TIME: _integer,
    Kind.TIMESTAMP: _integer,
    Kind.TIMESTAMPTZ: _integer,
    Kind.UUID: lambda value: value,
}
