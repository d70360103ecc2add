"""The bytes of a journal segment. Pure: encodes and decodes, reads and writes nothing.

    segment   header (84 bytes), then batches
    batch     a BATCH record, then the records it counts
    record    header (56 bytes), head, body

| record    | head                                   | body              |
| --------- | -------------------------------------- | ----------------- |
| BATCH     | none                                   | none              |
| RUN       | the run's table                        | the entries       |
| MOVE      | origin (16 bytes), the run's table     | the entries       |
| FACTS     | `LedgerFacts` as msgpack               | none              |
| FENCE     | hash of the ledger's key               | none              |
| TOMBSTONE | none                                   | none              |
| SYNCED    | none                                   | none              |
| DROPPED   | none                                   | none              |

Invariants:
- A record header's CRC covers the folder's secret salt, the segment's id, the header's own offset
  and every field. So no body, however made, and no bytes of another place pass for a header.
- A record's head has a CRC of its own in the header: a damaged table is told from damaged bodies.
- A batch says how long it is and up to where the segment was synced before it was written.
- A segment's header says how long its predecessor was when it was sealed.
"""

import enum
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c
import msgspec

from engine.bookie.index import Place
from engine.errors import FormatTooNew
from engine.run import NO_ENTRY, Run
from engine.transport.contract import LedgerFacts

FOLDER: Final = "journal"
FORMAT_MAJOR: Final = 1
"""Who raises it begins a new segment with it: a start looks at the newest header only."""
FORMAT_MINOR: Final = 0
RECORD_VERSION: Final = 1
"""Raise `FORMAT_MAJOR` with it."""

_SEGMENT: Final = struct.Struct(">8sHHI32sQQQQ")
_SEGMENT_MAGIC: Final = b"HERDSEG\0"
_CRC: Final = struct.Struct(">I")
_RECORD: Final = struct.Struct(">HBBIIIIQqqQ")
_HEADER: Final = struct.Struct(">IHBBIIIIQqqQ")
"""A record's CRC and its fields."""
_RECORD_MAGIC: Final = 0xA7E5
_OFFSET: Final = struct.Struct(">Q")
_SEED: Final = struct.Struct(">QQ")
_ORIGIN: Final = struct.Struct(">QQ")
_BATCH_PATTERN: Final = struct.Struct(">HB")

SEGMENT_HEADER_BYTES: Final = _SEGMENT.size + _CRC.size
RECORD_HEADER_BYTES: Final = _CRC.size + _RECORD.size
ORIGIN_BYTES: Final = _ORIGIN.size

_crc = google_crc32c.value
_extend = google_crc32c.extend
_pack_record = _RECORD.pack
_pack_offset = _OFFSET.pack
_pack_crc = _CRC.pack
_unpack_record = _RECORD.unpack
_unpack_crc = _CRC.unpack_from
_unpack_header = _HEADER.unpack_from

assert SEGMENT_HEADER_BYTES == 84
assert RECORD_HEADER_BYTES == 56


class Kind(enum.IntEnum):
    """What a record is. Numbers are part of the format and never change meaning."""

    BATCH = 1
    RUN = 2
    FACTS = 3
    FENCE = 4
    TOMBSTONE = 5
    MOVE = 6
    SYNCED = 7
    """Written by an idle or closing bookie: everything before it had been synced."""
    DROPPED = 8
    """Segment number `first` was removed on purpose: its absence is not damage."""


_BATCH: Final = int(Kind.BATCH)
_RUN: Final = int(Kind.RUN)
_CRC_OF_NOTHING: Final = _crc(b"")
_WITH_RUNS: Final = (_RUN, int(Kind.MOVE))


class SegmentHeader(NamedTuple):
    """The first bytes of a segment. `predecessor` is 0 in a folder's first one."""

    bookie_id: str
    salt: int
    segment: int
    predecessor: int
    predecessor_bytes: int


class Origin(NamedTuple):
    """Where the record lay that a MOVE copies, and the offset of its header there."""

    segment: int
    offset: int


class Header(NamedTuple):
    """A record's header.

    BATCH and SYNCED: `ledger_id` is the batch's number, `first` the offset synced before it, `lac`
    the wall clock in milliseconds, `length` the batch's bytes with this header, `entries` the
    number of its records.
    DROPPED: `first` is the segment. Otherwise the fields are those of a run.
    """

    kind: int
    entries: int
    head_bytes: int
    head_crc: int
    body_bytes: int
    ledger_id: int
    first: int
    lac: int
    length: int

    @property
    def size_bytes(self) -> int:
        """The whole record's length."""
        return RECORD_HEADER_BYTES + self.head_bytes + self.body_bytes

    @property
    def last(self) -> int:
        """The id of a run's last entry."""
        return self.first + self.entries - 1


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record to write. Made by the functions below; runs need none, `encode_run` is quicker."""

    kind: int
    ledger_id: int
    first: int
    entries: int
    lac: int
    length: int
    head: bytes
    body: bytes

    @property
    def size_bytes(self) -> int:
        """The bytes it takes in a segment."""
        return RECORD_HEADER_BYTES + len(self.head) + len(self.body)


def name_of(segment: int) -> str:
    """A segment's file, relative to the bookie's folder.

    >>> name_of(3)
    'journal/000000000003.segment'
    """
    return f"{FOLDER}/{segment:012d}.segment"


def number_of(file_name: str) -> int | None:
    """The segment's number of a file in the journal's folder; None if it is not a segment."""
    number, dot, suffix = file_name.partition(".")
    return int(number) if dot and suffix == "segment" and number.isdigit() else None


# Writing


def seed_of(salt: int, segment: int) -> int:
    """What the CRC of every record header in a segment starts from."""
    return int(_crc(_SEED.pack(salt, segment)))


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The first bytes of a segment."""
    bookie_id = header.bookie_id.encode("ascii")
    assert len(bookie_id) <= 32
    data = _SEGMENT.pack(
        _SEGMENT_MAGIC,
        FORMAT_MAJOR,
        FORMAT_MINOR,
        0,
        bookie_id,
        header.salt,
        header.segment,
        header.predecessor,
        header.predecessor_bytes,
    )
    return data + _pack_crc(_crc(data))


def encode_run(run: Run, seed: int, offset: int) -> bytes:
    """The header of a run's record at `offset`; table and body follow it as they are."""
    table = run.table
    fields = _pack_record(
        _RECORD_MAGIC,
        _RUN,
        RECORD_VERSION,
        run.count,
        len(table),
        _crc(table),
        len(run.body),
        run.ledger_id,
        run.first,
        run.lac,
        run.length,
    )
    return _pack_crc(_extend(seed, _pack_offset(offset) + fields)) + fields


def encode_record(record: Record, seed: int, offset: int) -> bytes:
    """The header of any record at `offset`; head and body follow it as they are."""
    fields = _pack_record(
        _RECORD_MAGIC,
        record.kind,
        RECORD_VERSION,
        record.entries,
        len(record.head),
        _crc(record.head),
        len(record.body),
        record.ledger_id,
        record.first,
        record.lac,
        record.length,
    )
    return _pack_crc(_extend(seed, _pack_offset(offset) + fields)) + fields


def encode_batch(
    number: int,
    synced_offset: int,
    wall_ms: int,
    size_bytes: int,
    count: int,
    seed: int,
    offset: int,
) -> bytes:
    """The record at `offset` ahead of a batch; `size_bytes` and `count` are of the whole batch.

    `size_bytes` counts this record too, `count` the others only.
    """
    fields = _pack_record(
        _RECORD_MAGIC,
        _BATCH,
        RECORD_VERSION,
        count,
        0,
        _CRC_OF_NOTHING,
        0,
        number,
        synced_offset,
        wall_ms,
        size_bytes,
    )
    return _pack_crc(_extend(seed, _pack_offset(offset) + fields)) + fields


def synced_record(number: int, synced_offset: int, wall_ms: int) -> Record:
    """What an idle or closing bookie writes: a batch of nothing."""
    size_bytes = RECORD_HEADER_BYTES
    return Record(Kind.SYNCED, number, synced_offset, 0, wall_ms, size_bytes, b"", b"")


def run_record(run: Run) -> Record:
    """A run as a record."""
    return Record(
        _RUN, run.ledger_id, run.first, run.count, run.lac, run.length, run.table, run.body
    )


def move_record(run: Run, origin: Origin) -> Record:
    """A run, or a part of one, copied from the record at `origin`."""
    head = _ORIGIN.pack(*origin) + run.table
    return Record(
        Kind.MOVE, run.ledger_id, run.first, run.count, run.lac, run.length, head, run.body
    )


def facts_record(facts: LedgerFacts) -> Record:
    """Creation facts of a ledger, a new fragment, or its close."""
    head = msgspec.msgpack.encode(facts)
    return Record(Kind.FACTS, facts.ledger_id, NO_ENTRY, 0, NO_ENTRY, 0, head, b"")


def fence_record(ledger_id: int, key_hash: bytes) -> Record:
    """From here on the ledger takes recovery writes only."""
    return Record(Kind.FENCE, ledger_id, NO_ENTRY, 0, NO_ENTRY, 0, key_hash, b"")


def tombstone_record(ledger_id: int) -> Record:
    """The ledger was deleted: nothing of it is held, nothing may be written again."""
    return Record(Kind.TOMBSTONE, ledger_id, NO_ENTRY, 0, NO_ENTRY, 0, b"", b"")


def dropped_record(segment: int) -> Record:
    """A segment is about to be removed on purpose."""
    return Record(Kind.DROPPED, 0, segment, 0, NO_ENTRY, 0, b"", b"")


# Reading


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """Decode; None if the bytes are no intact segment header.

    Raises `FormatTooNew` for an intact header of a newer major version.
    """
    if len(data) < SEGMENT_HEADER_BYTES or data[:8] != _SEGMENT_MAGIC:
        return None
    if _crc(data[: _SEGMENT.size]) != _CRC.unpack_from(data, _SEGMENT.size)[0]:
        return None
    _, major, _, _, bookie_id, salt, segment, predecessor, predecessor_bytes = _SEGMENT.unpack_from(
        data
    )
    if major > FORMAT_MAJOR:
        raise FormatTooNew.of(f"segment {segment} of the journal", major, FORMAT_MAJOR)
    name = bookie_id.rstrip(b"\0").decode("ascii")
    return SegmentHeader(name, salt, segment, predecessor, predecessor_bytes)


def decode_header(data: bytes, at: int, seed: int, offset: int) -> Header | None:
    """Decode the record header at index `at` of `data`, which is offset `offset` of the segment.

    None: these bytes are no intact header of this place.
    """
    if len(data) - at < RECORD_HEADER_BYTES:
        return None
    fields = data[at + 4 : at + RECORD_HEADER_BYTES]
    if _extend(seed, _pack_offset(offset) + fields) != _CRC.unpack_from(data, at)[0]:
        return None
    magic, kind, version, count, head_bytes, head_crc, body_bytes, ledger_id, first, lac, length = (
        _RECORD.unpack(fields)
    )
    if magic != _RECORD_MAGIC:
        return None
    if version > RECORD_VERSION:
        raise FormatTooNew.of("a record of the journal", version, RECORD_VERSION)
    return Header(kind, count, head_bytes, head_crc, body_bytes, ledger_id, first, lac, length)


def head_of(header: Header, data: bytes, at: int) -> bytes | None:
    """The head of the record whose header stands at index `at`; None if it is damaged."""
    start = at + RECORD_HEADER_BYTES
    head = data[start : start + header.head_bytes]
    return head if len(head) == header.head_bytes and _crc(head) == header.head_crc else None


def run_of(header: Header, data: bytes, at: int) -> Run | None:
    """The run in a RUN or MOVE record; None if its table is damaged or its bytes are not all there.

    Digests are not checked here.
    """
    assert header.kind in (Kind.RUN, Kind.MOVE)
    table = head_of(header, data, at)
    if table is None:
        return None
    if header.kind == Kind.MOVE:
        table = table[ORIGIN_BYTES:]
    start = at + RECORD_HEADER_BYTES + header.head_bytes
    body = data[start : start + header.body_bytes]
    if len(body) != header.body_bytes or len(table) != 8 * header.entries:
        return None
    return Run(
        header.ledger_id, header.first, header.entries, header.lac, header.length, table, body
    )


def run_at(data: bytes, at: int, seed: int, offset: int) -> Run | None:
    """The run of the RUN or MOVE record at index `at`: `decode_header` and `run_of` in one.

    None if the record is damaged, is of another kind, or is not all there.
    """
    start = at + RECORD_HEADER_BYTES
    fields = data[at + 4 : start]
    if len(data) < start or _unpack_crc(data, at)[0] != _extend(
        seed, _pack_offset(offset) + fields
    ):
        return None
    magic, kind, version, count, head_bytes, head_crc, body_bytes, ledger_id, first, lac, length = (
        _unpack_record(fields)
    )
    if magic != _RECORD_MAGIC or version > RECORD_VERSION or kind not in _WITH_RUNS:
        return None
    body_start = start + head_bytes
    table = data[start:body_start]
    body = data[body_start : body_start + body_bytes]
    if _crc(table) != head_crc or len(body) != body_bytes:
        return None
    if kind != _RUN:
        table = table[ORIGIN_BYTES:]
    return Run(ledger_id, first, count, lac, length, table, body)


def joined_run(
    records: Sequence[bytes], places: Sequence[Place], seed: int
) -> tuple[Run | None, int]:
    """Whole RUN records of one ledger, one behind the other and each as its place says, as one run.

    Also how many of them it took: it ends before the first that `run_at` has to judge. A place that
    was cut, because something else lies over a part of its record, is one of those.
    """
    tables: list[bytes] = []
    bodies: list[bytes] = []
    ledger_id, first = places[0].ledger_id, places[0].first
    following, lac, length = first, NO_ENTRY, 0
    for data, (_, _, last, _, offset, _, _) in zip(records, places, strict=True):
        if len(data) < RECORD_HEADER_BYTES:
            break
        crc, _, kind, version, count, head_bytes, head_crc, body_bytes, ledger, at, low, total = (
            _unpack_header(data)
        )
        start = RECORD_HEADER_BYTES + head_bytes
        table, body = data[RECORD_HEADER_BYTES:start], data[start:]
        fields = data[_CRC.size : RECORD_HEADER_BYTES]
        if crc != _extend(seed, _pack_offset(offset) + fields) or version > RECORD_VERSION:
            break
        if kind != _RUN or ledger != ledger_id or at != following or at + count - 1 != last:
            break
        if len(body) != body_bytes or head_bytes != 8 * count or _crc(table) != head_crc:
            break
        lac, length = (low, total) if not tables else (lac, total)
        tables.append(table)
        bodies.append(body)
        following += count
    if not tables:
        return None, 0
    count = following - first
    run = Run(ledger_id, first, count, lac, length, b"".join(tables), b"".join(bodies))
    return run, len(tables)


def origin_of(head: bytes) -> Origin:
    """Where the record lay that a MOVE with this head copies."""
    return Origin(*_ORIGIN.unpack_from(head))


def facts_of(head: bytes) -> LedgerFacts:
    """The facts in a FACTS record."""
    return msgspec.msgpack.decode(head, type=LedgerFacts)


def find_batch(data: bytes, start: int, seed: int, offset: int) -> int | None:
    """The index of the first intact BATCH or SYNCED header in `data` from `start` on, or None.

    `offset` is where `data` begins in the segment.
    """
    found = [_find(kind, data, start, seed, offset) for kind in (Kind.BATCH, Kind.SYNCED)]
    return min((at for at in found if at is not None), default=None)


def _find(kind: Kind, data: bytes, start: int, seed: int, offset: int) -> int | None:
    pattern = _BATCH_PATTERN.pack(_RECORD_MAGIC, kind)
    at = data.find(pattern, start + 4)
    while at >= 0:
        if decode_header(data, at - 4, seed, offset + at - 4) is not None:
            return at - 4
        at = data.find(pattern, at + 1)
    return None
