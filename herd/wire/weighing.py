"""Counts the values of a message before any of them is created.

A value of one byte on the wire may take a hundred bytes in memory, so the size of a message does
not bound its cost.

Invariants:
- No value is created, whatever the message contains. Malformed messages are not reported here.
"""

import re
from typing import Final

from herd.errors import TooLarge

_LIGHT: Final = bytes([*range(0x80), 0xC0, 0xC1, 0xC2, 0xC3, *range(0xE0, 0x100)])
"""Values that Python shares: small numbers, nil, true and false."""
_RUN: Final = re.compile(rb"[\x00-\x7f\xc0-\xc3\xe0-\xff]*+").match


def _sizes() -> list[tuple[int, int]]:
    """For each first byte, what follows it: a fixed number of bytes, and the size of a length."""
    sizes = [(0, 0)] * 256
    sizes[0xA0:0xC0] = [(length, 0) for length in range(32)]
    for first, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4), (0xD9, 1), (0xDA, 2), (0xDB, 4)):
        sizes[first] = (0, width)
    for first, width in ((0xC7, 1), (0xC8, 2), (0xC9, 4)):
        sizes[first] = (1, width)
    for first, fixed in ((0xCA, 4), (0xCB, 8), (0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
        sizes[first] = (fixed, 0)
    for first, fixed in ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)):
        sizes[first] = (fixed, 0)
    for power in range(5):
        sizes[0xD4 + power] = (1 + 2**power, 0)
    # The head of an array or a map; its elements follow.
    for first, fixed in ((0xDC, 2), (0xDD, 4), (0xDE, 2), (0xDF, 4)):
        sizes[first] = (fixed, 0)
    return sizes


_SIZES: Final = _sizes()


def check_values(data: bytes, most: int) -> None:
    """Raise `TooLarge` for a message with more than `most` values; small numbers do not count.

    >>> check_values(bytes([0x93, 1, 2, 3]), 1)
    >>> check_values(bytes([0x93, 0x90, 0x90, 0x90]), 3)
    Traceback (most recent call last):
    ...
    herd.errors.TooLarge: a call may have at most 3 values (do it in parts) [54000]
    """
    # Usually there are few enough bytes that could begin a value.
    if len(data) > most and len(data.translate(None, _LIGHT)) > most and _count(data, most) > most:
        raise TooLarge(f"a call may have at most {most:,} values", hint="do it in parts")


def _count(data: bytes, most: int) -> int:
    """The number of values; counting may stop above `most`."""
    place = count = 0
    while count <= most:
        found = _RUN(data, place)
        assert found is not None
        place = found.end()
        if place >= len(data):
            break
        fixed, width = _SIZES[data[place]]
        place += 1 + width
        place += fixed + int.from_bytes(data[place - width : place])
        count += 1
    return count
