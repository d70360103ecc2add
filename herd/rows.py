"""Rows as bytes.

    position(16)   ledger and entry of the last change, put in front when the change is applied
    MessagePack    an array: the stored value of column 0, 1, 2, ...; nil for NULL and dropped ones

Invariants:
- Trailing values may be missing: they are of columns that did not exist, and read as their `fill`.
- Rows with equal values have equal bytes.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from engine.log.position import Position
from herd.schema import Column, Table
from herd.types import Stored, returning

POSITION_BYTES: Final = 16
_POSITION: Final = struct.Struct(">QQ")
encode_row: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list).decode
_decode_all: Final = msgspec.msgpack.Decoder(list[list[Any]]).decode
_ARRAY: Final = b"\xdd"
"""How MessagePack begins an array whose length is in the next four bytes."""
_ROWS_AT_ONCE: Final = 500

Row = list[Stored]
"""Stored values by column number."""


def stamp(position: Position) -> bytes:
    """What stands in front of a row that was changed at a position."""
    return _POSITION.pack(position.ledger, position.entry)


def changed_at(value: bytes) -> Position:
    """Where a row was changed last."""
    return Position(*_POSITION.unpack_from(value))


def row_decoder(table: Table) -> Callable[[bytes], Row]:
    """What makes a row, `table.width` long, of a value with its position in front."""
    fills = [table.by_number[n].fill if n in table.by_number else None for n in range(table.width)]
    width = table.width

    def decode(value: bytes) -> Row:
        row: Row = _decode(memoryview(value)[POSITION_BYTES:])
        if len(row) < width:
            row += fills[len(row) :]
        return row

    return decode


def rows_decoder(table: Table) -> Callable[[Sequence[bytes]], list[Row]]:
    """As `row_decoder`, of many values at once, which takes a third of the time."""
    fills = [table.by_number[n].fill if n in table.by_number else None for n in range(table.width)]
    width = table.width

    def decode(values: Sequence[bytes]) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(values), _ROWS_AT_ONCE):
            # Each of these keeps the interpreter for itself.
            some = values[start : start + _ROWS_AT_ONCE]
            bodies = b"".join([value[POSITION_BYTES:] for value in some])
            rows += _decode_all(_ARRAY + len(some).to_bytes(4) + bodies)
        if rows and min(map(len, rows)) < width:
            for row in rows:
                row += fills[len(row) :]
        return rows

    return decode


def row_reader(columns: Sequence[Column]) -> Callable[[Row], tuple[Any, ...]]:
    """What makes a tuple of Python values of a row, one for each column."""
    steps = [(column.number, returning(column.type)) for column in columns]
    if all(convert is None for _, convert in steps):
        numbers = [number for number, _ in steps]
        if numbers == list(range(len(numbers))):
            count = len(numbers)
            return lambda row: tuple(row[:count])
        return lambda row: tuple([row[number] for number in numbers])

    def read(row: Row) -> tuple[Any, ...]:
        return tuple(
            [
                row[number] if convert is None or row[number] is None else convert(row[number])
                for number, convert in steps
            ]
        )

    return read
