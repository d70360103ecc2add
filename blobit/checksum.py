"""CRC32C of bytes that lie one behind the other, from the checksums of the pieces.

A list of parts has the checksum of the whole object; append and concat make it without reading a
byte. A CRC is linear: that of A + B is that of A moved over as many zero bits as B has, plus B's.
Moving is a matrix over bits; that for 2**n bytes is the one for 2**(n-1) applied twice.

Invariants:
- `combine(crc(a), crc(b), len(b)) == crc(a + b)` for all bytes, also none.
"""

from functools import lru_cache
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's, with its bits reversed, as all who compute CRC32C from the lowest bit on do."""

Matrix = tuple[int, ...]
"""32 columns: what becomes of each bit."""


def combine(checksum: int, following: int, following_bytes: int) -> int:
    """The CRC32C of bytes with `checksum` and `following_bytes` more with `following`."""
    exponent = 0
    while following_bytes:
        if following_bytes & 1:
            checksum = _times(_zero_bytes(exponent), checksum)
        following_bytes >>= 1
        exponent += 1
    return checksum ^ following


@lru_cache(maxsize=64)
def _zero_bytes(exponent: int) -> Matrix:
    """What 2**exponent zero bytes do to a checksum."""
    if exponent:
        half = _zero_bytes(exponent - 1)
        return tuple(_times(half, column) for column in half)
    matrix = (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    for _ in range(3):
        matrix = tuple(_times(matrix, column) for column in matrix)
    return matrix


def _times(matrix: Matrix, vector: int) -> int:
    total = bit = 0
    while vector:
        if vector & 1:
            total ^= matrix[bit]
        vector >>= 1
        bit += 1
    return total
