"""What rows look like on their way into a table: blocks in ledgers, and what names them.

    block       MessagePack: an array of pairs, key (without the table's prefix) and row
    index       a `Staged`: the blocks of one task; the last blob of the task's ledger
    order       an `Order`: what a tablespace's leader is asked to put into a table; a blob, too

A block is compressed by Zstandard. Rows are as `herd.rows` encodes them.

Invariants:
- What is named is durable: an index names blocks before it, an order indexes of closed ledgers.
- The rows of a block are in the order of their keys, and so are the blocks of a run.
- An order tells of which definition its rows are; the leader takes no others.
"""

import datetime
import enum
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec
import zstandard

from engine.errors import CannotRead, FormatTooNew
from herd.checkpoint.manifest import Locator
from herd.errors import ProgrammingError
from herd.schema import Table

FORMAT: Final = 1
_LEVEL: Final = 1
_SEQUENCE_BYTES: Final = 8
_NAME_BYTES: Final = 16

Pair = tuple[bytes, bytes]
"""A row's key, without the table's prefix, and the row, without a position."""


class Mode(enum.Enum):
    """What becomes of rows that the table has."""

    APPEND = "append"
    """They stay; a key that is there already is refused."""
    UPSERT = "upsert"
    """They stay, but for those whose keys come again."""
    OVERWRITE = "overwrite"
    """They go."""


class Job(msgspec.Struct, frozen=True):
    """One write, which counts once in each table however often it is asked for.

    `key` names it, or all of a series; `sequence` counts those: the batches of a stream. `run` is a
    name that no other try at it has.
    """

    key: str
    sequence: int = 0
    run: str = ""

    @property
    def name(self) -> str:
        """What its ledgers are labelled with: of this length, whatever the key is."""
        text = f"{self.sequence} {self.key}".encode()
        return hashlib.blake2b(text, digest_size=_NAME_BYTES).hexdigest()

    @property
    def identity(self) -> bytes:
        """What a table remembers of it, once it is written: see `herd.staging.marks`."""
        client = hashlib.blake2b(self.key.encode(), digest_size=_NAME_BYTES).digest()
        return client + self.sequence.to_bytes(_SEQUENCE_BYTES)


class WritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of a job have to know."""

    tablespace: str
    definition: bytes
    """The table, as it was when the job began."""
    mode: Mode
    moment_ms: int
    """What CURRENT_TIMESTAMP is in defaults."""
    application: str = ""

    @property
    def table(self) -> Table:
        """The table, as it was when the job began."""
        return _decode_table(self.definition)

    @property
    def moment(self) -> datetime.datetime:
        """`moment_ms` as a moment."""
        return datetime.datetime.fromtimestamp(self.moment_ms / 1000, datetime.UTC)


class Part(msgspec.Struct, frozen=True):
    """What a task tells of the rows that it staged; `index` is None if there were none."""

    index: Locator | None
    numbered: bool = False
    keyed: bool = True


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Some rows of one run. `first_key` is b"" where the keys are not known yet."""

    first_key: bytes
    rows: int
    locator: Locator


class Staged(msgspec.Struct, frozen=True):
    """What one task has staged.

    `runs` is in how many ordered runs its blocks are, `size_bytes` what keys and rows have
    together, `highest` the highest value of the AUTO_INCREMENT column among them.
    """

    rows: int
    size_bytes: int
    runs: int
    blocks: tuple[Block, ...]
    highest: int = 0
    format: int = FORMAT


class Order(msgspec.Struct, frozen=True):
    """What a leader is asked to do. `definition` is the `digest` of the table that rows are of.

    `numbered`: the AUTO_INCREMENT column was not given, and the leader fills it in; `keyed`: the
    keys do not depend on that. `former` is what a program of an earlier version called the job.
    """

    table_id: int
    definition: bytes
    mode: Mode
    parts: tuple[Locator, ...]
    numbered: bool = False
    keyed: bool = True
    former: bytes = b""
    format: int = FORMAT


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_table: Final = msgspec.msgpack.Decoder(Table).decode
_decode_pairs: Final = msgspec.msgpack.Decoder(list[Pair]).decode
_decode_staged: Final = msgspec.msgpack.Decoder(Staged).decode
_decode_order: Final = msgspec.msgpack.Decoder(Order).decode


def digest(table: Table) -> bytes:
    """What of a definition decides how rows look: its columns, key and conditions."""
    plain = msgspec.structs.replace(
        table, name="", store=0, indexes=(), foreign_keys=(), next_index=0, full_changes=False
    )
    return hashlib.blake2b(_encode(plain), digest_size=_NAME_BYTES).digest()


def encode_pairs(pairs: Sequence[Pair]) -> bytes:
    """A block of these rows."""
    # A compressor is not for two threads at once; making one costs next to nothing.
    return zstandard.ZstdCompressor(level=_LEVEL).compress(_encode(pairs))


def decode_pairs(blob: bytes) -> list[Pair]:
    """The rows of a block. Raises `CannotRead`."""
    try:
        return _decode_pairs(zstandard.ZstdDecompressor().decompress(blob))
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise CannotRead(f"this is no block of staged rows: {error}") from error


def encode_staged(staged: Staged) -> bytes:
    """An index as a blob."""
    return _encode(staged)


def decode_staged(blob: bytes) -> Staged:
    """A blob's index. Raises `CannotRead`, `FormatTooNew`."""
    try:
        found = _decode_staged(blob)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"this is no index of staged rows: {error}") from error
    _check_format(found.format)
    return found


def encode_order(order: Order) -> bytes:
    """An order as a blob."""
    return _encode(order)


def decode_order(blob: bytes) -> Order:
    """A blob's order. Raises `CannotRead`, `FormatTooNew`."""
    try:
        found = _decode_order(blob)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"this is no order to write staged rows: {error}") from error
    _check_format(found.format)
    return found


def locator_text(locator: Locator) -> str:
    """How a statement names a blob.

    >>> locator_text(Locator(12, 0, 345, 987))
    '12/0/345/987'
    """
    return "/".join(map(str, msgspec.structs.astuple(locator)))


@lru_cache(maxsize=256)
def parse_locator(text: str) -> Locator:
    """The blob that a statement names. Raises `ProgrammingError`."""
    pieces = text.split("/")
    if len(pieces) != 4 or not all(piece.isdecimal() for piece in pieces):
        raise ProgrammingError(f"{text!r} names no staged rows", hint="ledger/entry/size/checksum")
    return Locator(*map(int, pieces))


def _check_format(found: int) -> None:
    if found > FORMAT:
        raise FormatTooNew.of("staged rows", found, FORMAT)
