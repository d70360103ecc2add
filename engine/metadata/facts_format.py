"""The bytes of the file that makes a local metadata store durable: a log of batches.

    file    := magic "HERDFACT", major u16, minor u16, CRC32C of these u32, batch...
    batch   := magic "FBAT", payload length u32, payload CRC32C u32, sequence u64,
               own offset u64, CRC32C of these u32, payload
    payload := msgpack array of changes; an empty one is a mark

Invariants:
- A batch is written only when the one before it is synced. So a bad batch with a good one behind
  it is damage, and a bad batch at the end is a write that was never acknowledged.
- A file begins with its cluster's id and, once it was rewritten, with the whole state; it is put
  in place whole. A mark follows, so that damage to any of it is told from a torn write.
- What ends with a mark is durable up to there; of any other end nothing is known.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import google_crc32c
import msgspec

from engine.errors import FolderDamaged, FolderMismatch, FormatTooNew
from engine.limits import MIB
from engine.metadata.tree import Change, Count, Drop, Put, Tree

MAGIC: Final = b"HERDFACT"
FORMAT_MAJOR: Final = 1
FORMAT_MINOR: Final = 0
BATCH_MAGIC: Final = b"FBAT"

_SNAPSHOT_PAYLOAD_BYTES: Final = 1 * MIB
_FILE_FIELDS: Final = struct.Struct(">8sHH")
_BATCH_FIELDS: Final = struct.Struct(">4sIIQQ")
_CRC: Final = struct.Struct(">I")
FILE_HEADER_BYTES: Final = _FILE_FIELDS.size + _CRC.size
BATCH_HEADER_BYTES: Final = _BATCH_FIELDS.size + _CRC.size
assert (FILE_HEADER_BYTES, BATCH_HEADER_BYTES) == (16, 32)


class Origin(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """The first change of every file: which cluster the facts belong to."""

    cluster_id: str


_encode = msgspec.msgpack.Encoder().encode
_decode_changes = msgspec.msgpack.Decoder(list[Origin | Put | Drop | Count]).decode


class Contents(msgspec.Struct):
    """What a file holds."""

    cluster_id: str
    tree: Tree
    next_sequence: int
    end: int
    """The offset behind the last good batch."""
    ends_with_mark: bool


class _Batch(msgspec.Struct):
    sequence: int
    end: int
    payload: bytes


def encode_batch(
    sequence: int, offset: int, changes: Sequence[Origin | Change]
) -> tuple[bytes, bytes]:
    """One batch to be written at `offset`, as header and payload. No changes make a mark."""
    payload = _encode(changes)
    fields = _BATCH_FIELDS.pack(
        BATCH_MAGIC, len(payload), google_crc32c.value(payload), sequence, offset
    )
    return fields + _CRC.pack(google_crc32c.value(fields)), payload


def encode_file(cluster_id: str, changes: Iterable[Change]) -> tuple[bytes, int]:
    """A whole file, marked at its end, and the sequence number of the batch to follow."""
    fields = _FILE_FIELDS.pack(MAGIC, FORMAT_MAJOR, FORMAT_MINOR)
    data = bytearray(fields + _CRC.pack(google_crc32c.value(fields)))
    sequence = 0
    for group in _grouped(Origin(cluster_id), changes):
        for part in encode_batch(sequence, len(data), group):
            data += part
        sequence += 1
    return bytes(data), sequence


def decode_file(data: bytes) -> Contents:
    """Read a file, up to a torn write at its end.

    Raises `FolderMismatch` for another kind of file, `FormatTooNew`, and `FolderDamaged` if
    bytes that were synced once are not what they were.
    """
    check_file_header(data)
    tree = Tree()
    cluster_id: str | None = None
    offset, sequence, is_mark = FILE_HEADER_BYTES, 0, False
    while (batch := _batch_at(data, offset)) is not None:
        if batch.sequence != sequence:
            raise FolderDamaged(f"metadata log: batch {sequence} is missing at byte {offset}")
        changes = _decode_payload(batch.payload, offset)
        is_mark = not changes
        for change in changes:
            if isinstance(change, Origin):
                cluster_id = change.cluster_id
            else:
                tree.make(change)
        offset, sequence = batch.end, sequence + 1
    if _has_batch_after(data, offset, sequence):
        raise FolderDamaged(f"metadata log: batch {sequence} at byte {offset} cannot be read")
    if cluster_id is None:
        # The first batch was put in place whole, together with the file.
        raise FolderDamaged("metadata log: its beginning cannot be read")
    is_whole = is_mark and offset == len(data)
    return Contents(cluster_id, tree, sequence, offset, ends_with_mark=is_whole)


def _grouped(origin: Origin, changes: Iterable[Change]) -> Iterator[list[Origin | Change]]:
    """Group changes into payloads of bounded size, then a mark."""
    group: list[Origin | Change] = [origin]
    size_bytes = 0
    for change in changes:
        group.append(change)
        size_bytes += 64 + (len(change.value) if isinstance(change, Put) else 0)
        if size_bytes >= _SNAPSHOT_PAYLOAD_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group
    yield []


def check_file_header(data: bytes) -> None:
    """Look at the first bytes of a file. Raises as `decode_file`."""
    if len(data) < FILE_HEADER_BYTES or not data.startswith(MAGIC):
        raise FolderMismatch("the metadata log is not one: its first bytes are another file's")
    fields = data[: _FILE_FIELDS.size]
    if data[_FILE_FIELDS.size : FILE_HEADER_BYTES] != _CRC.pack(google_crc32c.value(fields)):
        raise FolderDamaged("metadata log: its header cannot be read")
    _, major, _ = _FILE_FIELDS.unpack(fields)
    if major > FORMAT_MAJOR:
        raise FormatTooNew.of("the metadata log", major, FORMAT_MAJOR)


def _batch_at(data: bytes, offset: int) -> _Batch | None:
    """The intact batch at an offset, or None."""
    header = _header_at(data, offset)
    if header is None:
        return None
    length, payload_crc, sequence = header
    start = offset + BATCH_HEADER_BYTES
    payload = data[start : start + length]
    if len(payload) != length or google_crc32c.value(payload) != payload_crc:
        return None
    return _Batch(sequence, start + length, payload)


def _header_at(data: bytes, offset: int) -> tuple[int, int, int] | None:
    """Payload length, payload CRC and sequence of the intact batch header at an offset."""
    header = data[offset : offset + BATCH_HEADER_BYTES]
    if len(header) < BATCH_HEADER_BYTES:
        return None
    fields = header[: _BATCH_FIELDS.size]
    magic, length, payload_crc, sequence, own_offset = _BATCH_FIELDS.unpack(fields)
    if magic != BATCH_MAGIC or own_offset != offset:
        return None
    if header[_BATCH_FIELDS.size :] != _CRC.pack(google_crc32c.value(fields)):
        return None
    return length, payload_crc, sequence


def _has_batch_after(data: bytes, offset: int, sequence: int) -> bool:
    """Whether a batch that comes after `sequence` was ever begun behind `offset`."""
    found = data.find(BATCH_MAGIC, offset + 1)
    while found >= 0:
        header = _header_at(data, found)
        if header is not None and header[2] > sequence:
            return True
        found = data.find(BATCH_MAGIC, found + 1)
    return False


def _decode_payload(payload: bytes, offset: int) -> list[Origin | Put | Drop | Count]:
    try:
        return _decode_changes(payload)
    except msgspec.DecodeError as error:
        # Its CRC holds: these bytes were written so, by a program that knows more kinds.
        raise FormatTooNew(
            f"the metadata log holds a change at byte {offset} that this program does not know: "
            "a newer version of Herdbook wrote it, start that one"
        ) from error
