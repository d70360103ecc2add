"""Frames and messages: round trips, and one clear error for everything else."""

import itertools
import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import FormatTooNew, FrameInvalid
from engine.limits import ENTRY_ID_MAX, FRAME_BYTES_MAX
from engine.run import Run
from engine.transport import messages
from engine.transport.contract import AppendReply, LedgerFacts, ReadReply, Status
from engine.transport.frames import (
    HEADER_BYTES,
    WIRE_MAJOR,
    Frame,
    FrameReader,
    Kind,
    decode_error,
    decode_greeting,
    encode_greeting,
    frame_header,
)

FACTS = LedgerFacts(7, 1, 1, 1, 256, b"h" * 32, 1, {"a": b"b"}, 0, ("x",))
BODIES = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), min_size=1, max_size=4)
FRAMES = st.lists(
    st.tuples(
        st.sampled_from(Kind),
        st.integers(0, 2**16 - 1),
        st.integers(0, 2**64 - 1),
        st.binary(max_size=60),
        st.binary(max_size=60),
    ),
    max_size=5,
)


def packed(kind: Kind, target: int, request: int, head: bytes, body: bytes) -> bytes:
    return frame_header(kind, target, request, head, len(body)) + head + body


def runs_of(bodies: list[list[bytes]], first: int) -> list[Run]:
    runs: list[Run] = []
    for group in bodies:
        runs.append(Run.pack(7, first, group, lac=-1, length_before=9))
        first = runs[-1].last + 1
    return runs


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=8))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[tuple[Kind, int, int, bytes, bytes]], cuts: list[int]
) -> None:
    reader = FrameReader()
    data = b"".join(packed(*frame) for frame in sent)
    came = [frame for piece in pieces(data, cuts) for frame in reader.feed(piece)]
    assert [(f.kind, f.target, f.request, f.head, bytes(f.body)) for f in came] == sent


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_garbage_is_refused_or_waited_for_and_never_kept_beyond_bounds(
    garbage: bytes, cuts: list[int]
) -> None:
    reader = FrameReader()
    try:
        for piece in pieces(garbage, cuts):
            assert reader.feed(piece) == []
    except FrameInvalid:
        with pytest.raises(FrameInvalid):
            reader.feed(b"")
    else:
        assert len(garbage) < HEADER_BYTES


@given(FRAMES.filter(bool), st.data())
def test_a_flipped_bit_of_header_or_head_is_found(
    sent: list[tuple[Kind, int, int, bytes, bytes]], data: st.DataObject
) -> None:
    kind, target, request, head, body = sent[0]
    whole = bytearray(packed(kind, target, request, head, body))
    bit = data.draw(st.integers(0, 8 * (HEADER_BYTES + len(head)) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameInvalid):
        FrameReader().feed(bytes(whole))


def test_a_frame_over_the_limit_is_refused_from_its_header_on() -> None:
    honest = frame_header(Kind.READ, 0, 1, b"", FRAME_BYTES_MAX - HEADER_BYTES)
    assert FrameReader().feed(honest) == []
    for sizes in ((0, FRAME_BYTES_MAX - HEADER_BYTES + 1), (2**32 - 1, 2**32 - 1)):
        with pytest.raises(FrameInvalid, match="over"):
            FrameReader().feed(_forged(*sizes))


def _forged(head_bytes: int, body_bytes: int) -> bytes:
    fields = struct.pack(">IIBBHQI", head_bytes, body_bytes, Kind.READ, 0, 0, 1, 0)
    return fields + struct.pack(">I", google_crc32c.value(fields))


def test_unknown_flags_and_kinds_of_a_newer_minor_version_pass() -> None:
    fields = struct.pack(">IIBBHQI", 0, 0, 200, 255, 0, 1, google_crc32c.value(b""))
    (frame,) = FrameReader().feed(fields + struct.pack(">I", google_crc32c.value(fields)))
    assert frame.kind == 200


def test_a_newer_minor_version_is_greeted_and_a_newer_major_refused() -> None:
    newer = encode_greeting({"cluster": "c", "unknown": [1]}, WIRE_MAJOR, 99)
    assert decode_greeting(newer).options["cluster"] == "c"
    with pytest.raises(FormatTooNew, match=f"{WIRE_MAJOR + 1}.0"):
        decode_greeting(encode_greeting({}, WIRE_MAJOR + 1, 0))


@given(st.binary(max_size=60))
def test_a_greeting_or_error_of_garbage_is_refused(garbage: bytes) -> None:
    for read in (decode_greeting, decode_error):
        try:
            read(garbage)
        except (FrameInvalid, FormatTooNew):
            continue
        assert read is decode_error


@given(
    BODIES,
    st.integers(0, ENTRY_ID_MAX - 100),
    st.binary(max_size=255),
    st.booleans(),
    st.booleans(),
)
def test_an_append_comes_out_as_it_went_in(
    bodies: list[list[bytes]], first: int, key: bytes, with_facts: bool, recovery: bool
) -> None:
    runs, facts = runs_of(bodies, first), FACTS if with_facts else None
    head, body = messages.encode_append(runs, key, facts, recovery)
    came = messages.decode_append(_frame(head, b"".join(body)))
    assert came == messages.Append(runs, key, facts, recovery)


@given(
    BODIES,
    st.sampled_from(Status),
    st.none() | st.tuples(st.integers(0, 9), st.integers(10, ENTRY_ID_MAX)),
    st.none() | st.tuples(st.integers(0, 9), st.integers(10, ENTRY_ID_MAX)),
    st.integers(-2, ENTRY_ID_MAX),
)
def test_a_reply_to_a_read_comes_out_as_it_went_in(
    bodies: list[list[bytes]],
    status: Status,
    missing: tuple[int, int] | None,
    unknown: tuple[int, int] | None,
    lac: int,
) -> None:
    reply = ReadReply(status, tuple(runs_of(bodies, 5)), missing, unknown, lac, "b", 3)
    head, body = messages.encode_read_reply(7, reply)
    assert messages.decode_read_reply(_frame(head, b"".join(body)), "b") == reply


@given(BODIES, st.data())
def test_a_damaged_append_gives_one_error_or_runs_that_keep_their_rules(
    bodies: list[list[bytes]], data: st.DataObject
) -> None:
    head, body = messages.encode_append(runs_of(bodies, 0), b"k" * 32, FACTS, False)
    damaged, whole = bytearray(head), b"".join(body)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    try:
        came = messages.decode_append(_frame(bytes(damaged), whole[:cut]))
    except FrameInvalid:
        return
    next_id = came.runs[0].first
    for run in came.runs:
        assert run.first == next_id and run.lac < run.first and run.count >= 1
        assert sum(run.lengths()) == len(run.body)
        next_id = run.last + 1


@given(st.binary(max_size=120), st.binary(max_size=20))
def test_messages_of_garbage_give_one_error(head: bytes, body: bytes) -> None:
    frame = _frame(head, body)
    for read in (
        lambda: messages.decode_append(frame),
        lambda: messages.decode_append_replies(head),
        lambda: messages.decode_confirm(head),
        lambda: messages.decode_read_reply(frame, "b"),
        lambda: messages.decode_lac_reply(head, "b"),
        lambda: messages.read_request(head, 1),
        lambda: messages.decode(head, messages.Record),
    ):
        try:
            read()
        except FrameInvalid as error:
            assert str(error)


def test_replies_to_appends_keep_requests_and_ranges() -> None:
    replies = [
        (2**64 - 1, AppendReply(Status.OK, 2**63, 0, ENTRY_ID_MAX, "b", 2**32 - 1)),
        (1, AppendReply(Status.FENCED, 0, -1, -1, "b", 0)),
    ]
    rows = messages.decode_append_replies(messages.encode_append_replies(replies))
    assert [tuple(row) for row in rows] == [
        (request, reply.status, reply.ledger_id, reply.first, reply.last, reply.boot)
        for request, reply in replies
    ]


def test_a_status_of_a_newer_version_says_nothing() -> None:
    head = messages.encode(messages.Lac(99, 5, 1))
    assert messages.decode_lac_reply(head, "b").status is Status.UNAVAILABLE


def _frame(head: bytes, body: bytes) -> Frame:
    return Frame(Kind.APPEND, 1, 1, head, memoryview(body))
