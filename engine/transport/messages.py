"""What the frames between a client and a bookie say.

Runs travel packed: a row of 36 bytes each, then all tables, then, as the frame's body, all bodies.

    row     bytes  field
    0       8      first entry id
    8       8      LAC
    16      8      length of the ledger up to the run's last entry
    24      4      number of entries
    28      4      size of the table: eight times the number of entries
    32      4      size of the bodies

Heads (all integers big-endian; the other kinds are MessagePack arrays, as their classes below):

    APPEND          ledger u64, flags u8 (1: recovery), size of the key u8, runs u16,
                    size of the facts u32 (0: none), key, facts (MessagePack), rows, tables
    APPEND_REPLIES  for each reply: request u64, status u8, ledger u64, first i64, last i64,
                    boot u32
    CONFIRM         ledger u64, LAC i64
    READ_REPLY      status u8, flags u8 (1: missing, 2: unknown), runs u16, boot u32, ledger u64,
                    LAC i64, missing 2 x i64, unknown 2 x i64, rows, tables

Invariants:
- A decoder gives runs that keep the invariants of `engine.run.Run`, or raises `FrameInvalid`.
- The runs of one APPEND are of one ledger, consecutive and in order.
- Nothing is made per entry: a run costs a row, two slices and one sum in C.
"""

import itertools
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from engine.errors import FrameInvalid
from engine.limits import ENTRY_ID_MAX, LEDGER_ID_MAX, RUN_ENTRIES_MAX
from engine.run import NO_ENTRY, Run
from engine.transport.contract import (
    AppendReply,
    LacReply,
    LedgerFacts,
    ReadReply,
    ReadRequest,
    Status,
)
from engine.transport.frames import Frame
from engine.transport.soundness import check_facts, check_key, check_ledger_id

T = TypeVar("T")

RUNS_MAX: Final = 2**16 - 1
_ROW = struct.Struct(">qqqIII")
_TABLE_OF_ROW = struct.Struct(">28xI4x")
_APPEND = struct.Struct(">QBBHI")
_REPLY = struct.Struct(">QBQqqI")
_CONFIRM = struct.Struct(">Qq")
_READ_REPLY = struct.Struct(">BBHIQqqqqq")
_RECOVERY: Final = 1
_MISSING: Final = 1
_UNKNOWN: Final = 2
_NO_RANGE: Final = (0, 0)
STATUSES: Final = {int(status): status for status in Status}
"""A status that is not there is of a newer minor version, and says: unavailable."""
_LENGTH_OF_ONE = struct.Struct(">I4x")

_encode = msgspec.msgpack.Encoder().encode


@lru_cache
def _append_of_one(key_bytes: int) -> struct.Struct:
    """An APPEND of one run without facts, up to its table."""
    return struct.Struct(f"{_APPEND.format}{key_bytes}s{_ROW.format[1:]}")


class Connect(msgspec.Struct, frozen=True, array_like=True):
    """CONNECT: reach a bookie. Answered by CONNECTED or by ERROR."""

    bookie_id: str


class Connected(msgspec.Struct, frozen=True, array_like=True):
    """CONNECTED: the number by which frames of this connection name the bookie."""

    target: int


class Record(msgspec.Struct, frozen=True, array_like=True):
    """RECORD: new facts of a ledger."""

    facts: LedgerFacts
    key: bytes


class Read(msgspec.Struct, frozen=True, array_like=True):
    """READ: as `ReadRequest`."""

    ledger_id: int
    first: int
    last: int
    max_bytes: int
    fence_key: bytes | None = None


class Fence(msgspec.Struct, frozen=True, array_like=True):
    """FENCE: answered by LAC_REPLY."""

    ledger_id: int
    key: bytes


class WaitLac(msgspec.Struct, frozen=True, array_like=True):
    """WAIT_LAC: answered by LAC_REPLY."""

    ledger_id: int
    above: int
    timeout_ms: int


class Lac(msgspec.Struct, frozen=True, array_like=True):
    """LAC_REPLY."""

    status: int
    lac: int
    boot: int


class Info(msgspec.Struct, frozen=True, array_like=True):
    """INFO_REPLY; the bookie's id is the target's."""

    boot: int
    cluster_id: str
    writable: bool
    total_bytes: int
    free_bytes: int
    taken_entries: int = 0
    taken_bytes: int = 0


class Append(msgspec.Struct, frozen=True, gc=False):
    """APPEND: runs of one ledger."""

    runs: list[Run]
    key: bytes
    facts: LedgerFacts | None
    recovery: bool


def encode(message: Any) -> bytes:
    """The head of a message that is a MessagePack array."""
    return _encode(message)


def decode(head: bytes, kind: type[T]) -> T:
    """Read a head that is a MessagePack array. Raises `FrameInvalid`."""
    try:
        return msgspec.msgpack.decode(head, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameInvalid(f"a {kind.__name__} message cannot be read: {error}") from error


def encode_append(
    runs: Sequence[Run], key: bytes, facts: LedgerFacts | None, recovery: bool
) -> tuple[bytes, list[bytes]]:
    """The head and the parts of the body."""
    assert 1 <= len(runs) <= RUNS_MAX and len(key) <= 255
    flags = _RECOVERY if recovery else 0
    if len(runs) == 1 and facts is None:
        run = runs[0]
        table, body = run.table, run.body
        fields = (flags, len(key), 1, 0, key, run.first, run.lac, run.length, run.count)
        head = _append_of_one(len(key)).pack(run.ledger_id, *fields, len(table), len(body))
        return head + table, [body]
    packed = _encode(facts) if facts is not None else b""
    fixed = _APPEND.pack(runs[0].ledger_id, flags, len(key), len(runs), len(packed))
    return b"".join([fixed, key, packed, *_rows(runs)]), [run.body for run in runs]


def decode_append(frame: Frame) -> Append:
    """Read APPEND. Raises `FrameInvalid`."""
    head = frame.head
    if len(head) < _APPEND.size:
        raise FrameInvalid("an append is cut short")
    ledger_id, flags, key_bytes, count, facts_bytes = _APPEND.unpack_from(head)
    if ledger_id > LEDGER_ID_MAX:
        check_ledger_id(ledger_id)
    key_end = _APPEND.size + key_bytes
    facts_end = key_end + facts_bytes
    if count == 0 or facts_end > len(head):
        raise FrameInvalid("an append without runs, or cut short")
    key = head[_APPEND.size : key_end]
    facts = None
    if facts_bytes:
        facts = decode(head[key_end:facts_end], LedgerFacts)
        check_facts(facts, ledger_id)
    runs = _runs(ledger_id, count, head, facts_end, frame.body)
    if count > 1:
        check_consecutive(runs)
    return Append(runs, key, facts, bool(flags & _RECOVERY))


def encode_append_replies(replies: Sequence[tuple[int, AppendReply]]) -> bytes:
    """The head of APPEND_REPLIES, from pairs of request and reply."""
    pack = _REPLY.pack
    if len(replies) == 1:
        request, reply = replies[0]
        return pack(request, reply.status, reply.ledger_id, reply.first, reply.last, reply.boot)
    return b"".join(
        [
            pack(request, reply.status, reply.ledger_id, reply.first, reply.last, reply.boot)
            for request, reply in replies
        ]
    )


def decode_append_replies(head: bytes) -> Iterator[tuple[int, int, int, int, int, int]]:
    """The rows of APPEND_REPLIES: request, status (of `STATUSES`), ledger, first, last, boot.

    Raises `FrameInvalid`.
    """
    if not head or len(head) % _REPLY.size:
        raise FrameInvalid("replies to appends are cut short")
    return _REPLY.iter_unpack(head)


def status_of(number: int) -> Status:
    """What a status says to this version."""
    return STATUSES.get(number, Status.UNAVAILABLE)


def encode_confirm(ledger_id: int, lac: int) -> bytes:
    """The head of CONFIRM."""
    return _CONFIRM.pack(ledger_id, lac)


def decode_confirm(head: bytes) -> tuple[int, int]:
    """Ledger and LAC. Raises `FrameInvalid`."""
    if len(head) < _CONFIRM.size:
        raise FrameInvalid("a confirmation is cut short")
    ledger_id, lac = _CONFIRM.unpack_from(head)
    check_ledger_id(ledger_id)
    return ledger_id, lac


def decode_record(head: bytes) -> Record:
    """Read RECORD. Raises `FrameInvalid`."""
    said = decode(head, Record)
    check_key(said.key)
    check_facts(said.facts, said.facts.ledger_id)
    return said


def decode_fence(head: bytes) -> Fence:
    """Read FENCE. Raises `FrameInvalid`."""
    asked = decode(head, Fence)
    check_ledger_id(asked.ledger_id)
    check_key(asked.key)
    return asked


def decode_wait_lac(head: bytes) -> WaitLac:
    """Read WAIT_LAC. Raises `FrameInvalid`."""
    asked = decode(head, WaitLac)
    check_ledger_id(asked.ledger_id)
    return asked


def encode_read_reply(ledger_id: int, reply: ReadReply) -> tuple[bytes, list[bytes]]:
    """The head and the parts of the body."""
    missing, unknown = reply.missing, reply.unknown
    flags = (_MISSING if missing is not None else 0) | (_UNKNOWN if unknown is not None else 0)
    fixed = _READ_REPLY.pack(
        reply.status,
        flags,
        len(reply.runs),
        reply.boot,
        ledger_id,
        reply.lac,
        *(missing or _NO_RANGE),
        *(unknown or _NO_RANGE),
    )
    return b"".join([fixed, *_rows(reply.runs)]), [run.body for run in reply.runs]


def decode_read_reply(frame: Frame, bookie_id: str) -> ReadReply:
    """Read READ_REPLY. Raises `FrameInvalid`."""
    head = frame.head
    if len(head) < _READ_REPLY.size:
        raise FrameInvalid("a reply to a read is cut short")
    fields = _READ_REPLY.unpack_from(head)
    status, flags, count, boot, ledger_id, lac = fields[:6]
    runs = _runs(ledger_id, count, head, _READ_REPLY.size, frame.body)
    return ReadReply(
        status_of(status),
        tuple(runs),
        fields[6:8] if flags & _MISSING else None,
        fields[8:10] if flags & _UNKNOWN else None,
        lac,
        bookie_id,
        boot,
    )


def decode_lac_reply(head: bytes, bookie_id: str) -> LacReply:
    """Read LAC_REPLY. Raises `FrameInvalid`."""
    said = decode(head, Lac)
    return LacReply(status_of(said.status), said.lac, bookie_id, said.boot)


def pack_runs(runs: Sequence[Run]) -> bytes:
    """Rows, tables and bodies in one piece, for a wire that has one field for them."""
    return b"".join([*_rows(runs), *[run.body for run in runs]])


def unpack_runs(ledger_id: int, count: int, packed: bytes) -> list[Run]:
    """What `pack_runs` made of `count` runs. Raises `FrameInvalid`."""
    rows_end = count * _ROW.size
    if count > RUNS_MAX or rows_end > len(packed):
        raise FrameInvalid(f"{len(packed)} bytes cannot hold {count} runs")
    rows = _TABLE_OF_ROW.iter_unpack(packed[:rows_end])
    tables_end = rows_end + sum(table_bytes for (table_bytes,) in rows)
    return _runs(ledger_id, count, packed[:tables_end], 0, memoryview(packed)[tables_end:])


def check_consecutive(runs: Sequence[Run]) -> None:
    """Raises `FrameInvalid` unless each run of an append follows the one before."""
    for before, after in itertools.pairwise(runs):
        if after.first != before.last + 1:
            raise FrameInvalid(f"entry {after.first} does not follow {before.last} in an append")


def read_request(head: bytes, bytes_max: int) -> ReadRequest:
    """Read READ, with its size bounded by what a reply can carry. Raises `FrameInvalid`."""
    asked = decode(head, Read)
    check_ledger_id(asked.ledger_id)
    check_key(asked.fence_key or b"")
    if not 0 <= asked.first <= asked.last <= ENTRY_ID_MAX:
        raise FrameInvalid(f"a read of entries {asked.first} to {asked.last}")
    max_bytes = min(max(asked.max_bytes, 1), bytes_max)
    return ReadRequest(asked.ledger_id, asked.first, asked.last, max_bytes, asked.fence_key)


def _rows(runs: Sequence[Run]) -> list[bytes]:
    return [*map(_row, runs), *[run.table for run in runs]]


def _row(run: Run) -> bytes:
    return _ROW.pack(run.first, run.lac, run.length, run.count, len(run.table), len(run.body))


def _runs(ledger_id: int, count: int, head: bytes, start: int, body: memoryview) -> list[Run]:
    """Cut packed runs out of a head, from `start` on, and a body; they fill both exactly."""
    table_start = start + count * _ROW.size
    if table_start > len(head):
        raise FrameInvalid("a list of runs is cut short")
    runs: list[Run] = []
    body_start = 0
    for row in range(count):
        first, lac, length, entries, table_bytes, body_bytes = _ROW.unpack_from(
            head, start + row * _ROW.size
        )
        table_end, body_end = table_start + table_bytes, body_start + body_bytes
        table = head[table_start:table_end]
        sound = (
            1 <= entries <= RUN_ENTRIES_MAX
            and table_bytes == 8 * entries == len(table)
            and body_end <= len(body)
            and NO_ENTRY <= lac < first <= ENTRY_ID_MAX - entries
            and length >= body_bytes
            and (entries > 1 or _LENGTH_OF_ONE.unpack(table)[0] == body_bytes)
            and (entries == 1 or _bodies_bytes(entries, table) == body_bytes)
        )
        if not sound:
            raise FrameInvalid(f"run {row} of {count}, from entry {first}, is malformed")
        runs.append(
            Run(ledger_id, first, entries, lac, length, table, bytes(body[body_start:body_end]))
        )
        table_start, body_start = table_end, body_end
    if table_start != len(head) or body_start != len(body):
        raise FrameInvalid("a list of runs does not fill its frame")
    return runs


def _bodies_bytes(entries: int, table: bytes) -> int:
    """What a table says that the bodies of its entries take."""
    return sum(struct.unpack(f">{2 * entries}I", table)[::2])
