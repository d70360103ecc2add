"""What a checkpoint holds: every table at one position of the log, in pages that never change.

    page       an Arrow stream, compressed: rows of one table, ordered by key
    delta      the same of what changed in a page: rows in place of others, new ones, keys gone
    manifest   MessagePack of `Manifest`, the last blob of its ledger
    record     in the metadata store: where the newest manifests are, and who pins which

A blob lies in consecutive entries of one ledger, `BLOB_ENTRY_BYTES` each but the last.

Invariants:
- A manifest and all that it names are durable before the metadata store names it.
- Numbers grow by one; a record's list of manifests is in their order, and a pinned one stays in it.
- A page that did not change is named again by the next manifest, not written again; one that
  changed little is named again with a delta behind it.
- Who knows no deltas would read old rows, so a manifest that has some is of another major.
"""

from typing import Any, Final

import msgspec

from engine.errors import CannotRead, FormatTooNew
from engine.log.position import Position
from engine.metadata.majors import check_major
from herd.schema import Counters, Table, View

FORMAT_MAJOR: Final = 2
"""Of manifests with deltas; those without are of 1."""
FORMAT_MINOR: Final = 1
_LIST_FORMAT: Final = 1
BLOB_ENTRY_BYTES: Final = 1024 * 1024


class Locator(msgspec.Struct, frozen=True, array_like=True):
    """Where a blob is, how long it is, and the CRC32C of all of it."""

    ledger_id: int
    first_entry: int
    size_bytes: int
    checksum: int

    @property
    def last_entry(self) -> int:
        """The entry that the blob ends in."""
        return self.first_entry + max(0, self.size_bytes - 1) // BLOB_ENTRY_BYTES


class ColumnRange(msgspec.Struct, frozen=True, array_like=True):
    """The lowest and the highest stored value of a column in a page, and how many are NULL."""

    column: int
    lowest: Any
    highest: Any
    nulls: int


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What changed in a page after it was written, or after the delta before."""

    changes: int
    """Rows that it sets, and keys that it takes away."""
    locator: Locator


class Page(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one table, from one key to another; keys stand without the table's prefix.

    All but `locator` is told of the rows with all deltas in place.
    """

    first_key: bytes
    last_key: bytes
    rows: int
    checksum: int
    """Of the rows themselves, however they are compressed: equal rows have an equal one."""
    changed: Position
    """The newest change among the rows, and those that deltas have taken away."""
    ranges: tuple[ColumnRange, ...]
    """With deltas they may be wider than the rows, and NULLs are told as none, some, or all."""
    locator: Locator
    deltas: tuple[Delta, ...] = ()
    """The oldest first."""
    keys: int | None = None
    """The CRC32C of all keys, one behind the other."""

    @property
    def locators(self) -> tuple[Locator, ...]:
        """The page's blob, and those of its deltas."""
        return (self.locator, *[delta.locator for delta in self.deltas])


class TablePages(msgspec.Struct, frozen=True, array_like=True):
    """All rows of one table."""

    table_id: int
    rows: int
    pages: tuple[Page, ...]


class Manifest(msgspec.Struct, frozen=True):
    """All tables at one position."""

    tablespace: str
    number: int
    position: Position
    epoch: int
    taken_ms: int
    tables: tuple[Table, ...]
    views: tuple[View, ...]
    counters: Counters
    pages: tuple[TablePages, ...]
    plain: tuple[tuple[bytes, bytes], ...] = ()
    """What else the catalog keeps: the next values of AUTO_INCREMENT."""
    written: dict[int, int] = msgspec.field(default_factory=dict)
    """How many bytes of pages and deltas were written into ledgers, in use or not."""

    @property
    def ledgers(self) -> dict[int, int]:
        """The ledgers that its pages lie in, and how many of their bytes are in use."""
        found: dict[int, int] = {}
        for table in self.pages:
            for page in table.pages:
                for at in page.locators:
                    found[at.ledger_id] = found.get(at.ledger_id, 0) + at.size_bytes
        return found


class ManifestRecord(msgspec.Struct, frozen=True, array_like=True):
    """One checkpoint, as the metadata store names it."""

    number: int
    position: Position
    epoch: int
    taken_ms: int
    locator: Locator


class Pin(msgspec.Struct, frozen=True, array_like=True):
    """Somebody reads a checkpoint; it stays until then, by the wall clock."""

    name: str
    number: int
    expires_ms: int


class Checkpoints(msgspec.Struct, frozen=True):
    """What the metadata store keeps of a tablespace's checkpoints, the oldest first."""

    kept: tuple[ManifestRecord, ...] = ()
    pins: tuple[Pin, ...] = ()
    format: int = _LIST_FORMAT
    epoch: int = 0
    """The newest leader that began to take or to sweep: none of an older epoch adds any more."""

    @property
    def newest(self) -> ManifestRecord | None:
        """The last one, if there is any."""
        return self.kept[-1] if self.kept else None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_manifest: Final = msgspec.msgpack.Decoder(Manifest).decode
_decode_checkpoints: Final = msgspec.msgpack.Decoder(Checkpoints).decode


def encode_manifest(manifest: Manifest) -> bytes:
    """A manifest as a blob: major, minor, MessagePack."""
    has_deltas = any(page.deltas for table in manifest.pages for page in table.pages)
    version = (FORMAT_MAJOR, 0) if has_deltas else (1, FORMAT_MINOR)
    return bytes(version) + _encode(manifest)


def decode_manifest(blob: bytes) -> Manifest:
    """A blob's manifest. Raises `FormatTooNew`, `CannotRead`."""
    if blob[:1] > bytes((FORMAT_MAJOR,)):
        raise FormatTooNew.of("the manifest of a checkpoint", blob[0], FORMAT_MAJOR)
    try:
        return _decode_manifest(memoryview(blob)[2:])
    except msgspec.MsgspecError as error:
        raise CannotRead(f"this is no manifest: {error}") from error


def encode_checkpoints(checkpoints: Checkpoints) -> bytes:
    """The metadata store's value."""
    return _encode(checkpoints)


def decode_checkpoints(value: bytes) -> Checkpoints:
    """What the metadata store keeps. Raises `FormatTooNew`, `CannotRead`."""
    try:
        check_major(value, "the list of checkpoints", _LIST_FORMAT, "format")
        return _decode_checkpoints(value)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"the list of checkpoints cannot be read: {error}") from error
