"""Object ids: all that is needed to read an object, in a text that fits in a URL.

The text is base64 with `-` and `_` and without padding (RFC 4648, section 5) of:

    1 byte     format and kind: the upper four bits are the format, 1; the lower four the kind,
               0 = data, 1 = list, 2 = zstd
    varint     ledger id
    varint     first entry
    varint     entry size in bytes: every entry but the last holds exactly as many
    varint     length of the object in bytes
    varint     (kinds list and zstd) bytes that are in the entries: those of the list, or compressed
    4 bytes    CRC32C of the whole object, little-endian
    4 bytes    CRC32C of all bytes before, little-endian: the check of the text itself

A varint holds seven bits a byte, the lowest first, with the upper bit set on all but the last
byte; it is as short as it can be, and below 2**63.

Kind data: the entries hold the object's bytes. Kind zstd: each entry is one frame of zstandard with
its content size, of as many of the object's bytes as an entry of kind data would hold, so any range
is found by arithmetic. Kind list: the entries hold the ids of the object's parts, in order, one
behind the other: for each a byte with its length and then its bytes as above, before base64. A part
is never a list and never empty. The empty object has one id: kind data and all fields 0; it takes
no ledger.

Invariants:
- A text is an id or raises `InvalidObjectId`; parsing never looks anything up.
- Every object id has exactly one text: `str(ObjectId.parse(text)) == text`.
- A text with one character changed is refused: the check catches any 32 bits in a row.
"""

import base64
import binascii
import enum
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import google_crc32c
import msgspec

from blobit.errors import InvalidObjectId
from engine.limits import ENTRY_BYTES_MAX, ENTRY_ID_MAX

FORMAT: Final = 1
TEXT_CHARACTERS_MAX: Final = 72
_CHECK_BYTES: Final = 4
_INTEGER_MAX: Final = 2**63 - 1
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class Kind(enum.IntEnum):
    """What the entries hold. Numbers are part of the format."""

    DATA = 0
    LIST = 1
    ZSTD = 2


_KINDS: Final = frozenset(Kind)
_HEADS: Final = {kind: bytes([FORMAT << 4 | kind]) for kind in Kind}


class ObjectId(msgspec.Struct, frozen=True, order=True, gc=False):
    """Where an object lies and what it must look like.

    `length` and `checksum` (CRC32C) are the whole object's; `stored_bytes` are the bytes in the
    entries: the object's own, compressed ones, or those of the list of its parts.

    >>> moo = ObjectId(Kind.DATA, 7, 0, 65536, 3, 3, google_crc32c.value(b"moo"))
    >>> str(moo)
    'EAcAgIAEA6tQux3EWb-s'
    >>> ObjectId.parse(str(moo)) == moo
    True
    """

    kind: Kind
    ledger_id: int
    first_entry: int
    entry_bytes: int
    length: int
    stored_bytes: int
    checksum: int

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem is not None:
            raise InvalidObjectId(f"not an object id: {problem}")

    @property
    def entry_count(self) -> int:
        """How many entries the object, or the list of its parts, takes."""
        return -(-self.content_bytes // self.entry_bytes) if self.content_bytes else 0

    @property
    def content_bytes(self) -> int:
        """The bytes that its entries mean: the object's, or those of the list of its parts."""
        return self.stored_bytes if self.kind is Kind.LIST else self.length

    @property
    def last_entry(self) -> int:
        """The last of its entries; `first_entry` - 1 for the empty object."""
        return self.first_entry + self.entry_count - 1

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self.to_bytes()).rstrip(b"=").decode("ascii")

    @classmethod
    def parse(cls, text: str) -> "ObjectId":
        """Parse a text. Raises `InvalidObjectId` on any deviation from the format."""
        if not isinstance(text, str):
            raise InvalidObjectId(f"an object id is text, not {type(text).__name__}")
        if not 0 < len(text) <= TEXT_CHARACTERS_MAX or _TEXT.fullmatch(text) is None:
            raise InvalidObjectId(f"not an object id: {text[:TEXT_CHARACTERS_MAX]!r}")
        try:
            packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except binascii.Error as error:
            raise InvalidObjectId(f"not an object id: {text!r}") from error
        if base64.urlsafe_b64encode(packed).rstrip(b"=") != text.encode("ascii"):
            raise InvalidObjectId(f"not an object id: {text!r} is not as short as it could be")
        return cls.from_bytes(packed)

    def to_bytes(self) -> bytes:
        """The id before base64."""
        packed = (
            _HEADS[self.kind]
            + _varint(self.ledger_id)
            + _varint(self.first_entry)
            + _varint(self.entry_bytes)
            + _varint(self.length)
        )
        if self.kind is not Kind.DATA:
            packed += _varint(self.stored_bytes)
        packed += self.checksum.to_bytes(4, "little")
        return packed + _check(packed)

    @classmethod
    def from_bytes(cls, packed: bytes) -> "ObjectId":
        """Parse what `to_bytes` made. Raises `InvalidObjectId`."""
        body, check = packed[:-_CHECK_BYTES], packed[-_CHECK_BYTES:]
        if not body or _check(body) != check:
            raise InvalidObjectId("not an object id: some character of it is wrong")
        object_format, kind = body[0] >> 4, body[0] & 15
        if object_format != FORMAT:
            raise InvalidObjectId(
                f"the object id has format {object_format}, this program reads {FORMAT}"
            )
        if kind not in _KINDS:
            raise InvalidObjectId(f"not an object id: it has no kind {kind}")
        numbers, rest = _integers(body[1:], 4 if kind == Kind.DATA else 5)
        if len(rest) != 4:
            raise InvalidObjectId("not an object id: it has a wrong length")
        stored_bytes = numbers[3] if kind == Kind.DATA else numbers[4]
        checksum = int.from_bytes(rest, "little")
        return cls(
            Kind(kind), numbers[0], numbers[1], numbers[2], numbers[3], stored_bytes, checksum
        )


def pack_parts(parts: Sequence[ObjectId]) -> bytes:
    """The list that the entries of an id of kind list hold."""
    assert len(parts) > 1
    packed = [part.to_bytes() for part in parts]
    return b"".join(bytes([len(part)]) + part for part in packed)


def parse_parts(packed: bytes) -> list[ObjectId]:
    """Parse what `pack_parts` made. Raises `InvalidObjectId`."""
    parser = PartsParser()
    parts = parser.feed(packed)
    parser.end()
    return parts


class PartsParser:
    """Parses a list of parts piece by piece, so that none is too long to be read."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, packed: bytes) -> list[ObjectId]:
        """The parts that are whole with these bytes. Raises `InvalidObjectId`."""
        packed = self._rest + packed
        parts: list[ObjectId] = []
        start = 0
        while start < len(packed) and (end := start + 1 + packed[start]) <= len(packed):
            part = ObjectId.from_bytes(packed[start + 1 : end])
            if part.kind is Kind.LIST or not part.length:
                raise InvalidObjectId("the list of an object's parts names another list or nothing")
            parts.append(part)
            start = end
        self._rest = packed[start:]
        return parts

    def end(self) -> None:
        """There is no more. Raises `InvalidObjectId` if the last part is not whole."""
        if self._rest:
            raise InvalidObjectId("the list of an object's parts is cut short")


def _problem(name: ObjectId) -> str | None:
    """Why the fields do not fit together, or None."""
    length = name.length
    if (
        name.kind is Kind.DATA
        and 0 < length <= _INTEGER_MAX
        and name.stored_bytes == length
        and 1 <= name.entry_bytes <= ENTRY_BYTES_MAX
        and 0 <= name.ledger_id <= _INTEGER_MAX
        and 0 <= name.first_entry <= ENTRY_ID_MAX - length
        and 0 <= name.checksum < 2**32
    ):
        # As most are: no object has more entries than bytes.
        return None
    numbers = (name.ledger_id, name.first_entry, name.length, name.stored_bytes)
    if min(numbers) < 0 or max(numbers) > _INTEGER_MAX:
        return "a number is out of range"
    if not 0 <= name.checksum < 2**32:
        return "the checksum is out of range"
    if not name.length:
        fields = (*numbers, name.kind, name.entry_bytes, name.checksum)
        return "the empty object has only zeros" if any(fields) else None
    if not 1 <= name.entry_bytes <= ENTRY_BYTES_MAX:
        return f"entries of {name.entry_bytes} bytes do not exist"
    if not name.stored_bytes:
        return "it names no entry"
    if name.kind is Kind.DATA and name.stored_bytes != name.length:
        return "its lengths do not agree"
    if name.last_entry > ENTRY_ID_MAX:
        return "its entries end past the highest entry id"
    return None


def _check(packed: bytes) -> bytes:
    crc: int = google_crc32c.value(packed)
    return crc.to_bytes(_CHECK_BYTES, "little")


@lru_cache(maxsize=1_024)
def _varint(number: int) -> bytes:
    # Ids that are made one after the other differ in few of their numbers.
    packed = bytearray()
    while number > 127:
        packed.append(number & 127 | 128)
        number >>= 7
    packed.append(number)
    return bytes(packed)


def _integers(packed: bytes, count: int) -> tuple[list[int], bytes]:
    """`count` varints from the front, and what follows them."""
    numbers: list[int] = []
    number = shift = 0
    for index, byte in enumerate(packed):
        number |= (byte & 127) << shift
        shift += 7
        if byte & 128:
            continue
        if (not byte and shift > 7) or number > _INTEGER_MAX:
            raise InvalidObjectId("not an object id: a number is too long")
        numbers.append(number)
        if len(numbers) == count:
            return numbers, packed[index + 1 :]
        number = shift = 0
    raise InvalidObjectId("not an object id: it is cut short")


EMPTY: Final = ObjectId(Kind.DATA, 0, 0, 0, 0, 0, 0)
"""The id of the empty object."""
