"""A row's key back into the values that it was made of: all that is told of a row that is gone.

Invariants:
- What `herd.keys` makes a key of comes back as the same stored values.
"""

import struct
from collections.abc import Callable
from typing import Final

from herd.errors import StorageFailed
from herd.keys import PREFIX_BYTES
from herd.rows import encode_row
from herd.schema import Table
from herd.types import ColumnType, Kind, Stored

Decode = Callable[[bytes, int], tuple[Stored, int]]
"""A value that begins at a place of a key, and the place behind it."""

_UNSIGNED: Final = struct.Struct(">Q")
_DOUBLE: Final = struct.Struct(">d")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
_END: Final = b"\x00\x01"
_ESCAPED: Final = b"\x00\xff"


def key_values(table: Table) -> Callable[[bytes], list[Stored]]:
    """What makes the stored values of the primary key of a row's whole key.

    It raises `StorageFailed` for bytes that are no key of the table.
    """
    decoders = [decoder(table.by_number[number].type) for number in table.primary]

    def values(key: bytes) -> list[Stored]:
        found, at = [], PREFIX_BYTES
        try:
            for decode in decoders:
                value, at = decode(key, at)
                found.append(value)
        except (struct.error, ValueError, IndexError):
            at = -1
        if at != len(key):
            raise StorageFailed(
                f"table {table.name}: {key.hex()} is no key of it",
                hint="run herdbook repair check",
            )
        return found

    return values


def body_of_key(table: Table) -> Callable[[bytes], bytes]:
    """What makes a row, as it is stored, that has the values of a key and NULL for all others."""
    values, width = key_values(table), table.width

    def body(key: bytes) -> bytes:
        row: list[Stored] = [None] * width
        for number, value in zip(table.primary, values(key), strict=True):
            row[number] = value
        return encode_row(row)

    return body


def decoder(kind: ColumnType) -> Decode:
    """What reads a value of a type, never NULL, out of a key."""
    return _wide if kind.wide else _DECODERS.get(kind.kind, _integer)


def _integer(key: bytes, at: int) -> tuple[Stored, int]:
    return _UNSIGNED.unpack_from(key, at)[0] - _SIGN, at + 8


def _wide(key: bytes, at: int) -> tuple[Stored, int]:
    return bytes((key[at] ^ 0x80,)) + key[at + 1 : at + 16], at + 16


def _double(key: bytes, at: int) -> tuple[Stored, int]:
    bits = _UNSIGNED.unpack_from(key, at)[0]
    bits = bits & ~_SIGN if bits & _SIGN else bits ^ _ALL
    return _DOUBLE.unpack(_UNSIGNED.pack(bits))[0], at + 8


def _boolean(key: bytes, at: int) -> tuple[Stored, int]:
    return key[at] == 1, at + 1


def _bytes(key: bytes, at: int) -> tuple[bytes, int]:
    end = key.index(_END, at)
    # The second byte of an escaped zero is ff: no end lies inside of one.
    return key[at:end].replace(_ESCAPED, b"\x00"), end + 2


def _text(key: bytes, at: int) -> tuple[Stored, int]:
    value, end = _bytes(key, at)
    return value.decode(), end


def _uuid(key: bytes, at: int) -> tuple[Stored, int]:
    return key[at : at + 16], at + 16


_DECODERS: Final[dict[Kind, Decode]] = {
    Kind.BOOLEAN: _boolean,
    Kind.REAL: _double,
    Kind.DOUBLE: _double,
    Kind.VARCHAR: _text,
    Kind.BLOB: _bytes,
    Kind.UUID: _uuid,
}
