"""Messages of the gRPC wire: what goes in comes out, and nothing else does."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import FrameInvalid
from engine.limits import CUSTOM_METADATA_BYTES_MAX
from engine.run import Run
from engine.transport.contract import LedgerFacts, ReadReply, Status
from engine.transport.grpc_generated import bookie_pb2 as wire
from engine.transport.grpc_messages import (
    append_to_wire,
    facts_of_wire,
    facts_to_wire,
    read_reply_of_wire,
    read_reply_to_wire,
    read_request_of_wire,
    runs_of_append,
    status_of_wire,
)
from engine.transport.messages import pack_runs, unpack_runs
from tests.engine.transport.bookie_contract import KEY, facts_of, runs_of

BODIES = st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=6), min_size=1, max_size=5)


@given(BODIES, st.integers(min_value=0, max_value=2**40), st.booleans())
def test_an_append_comes_out_as_it_went_in(
    bodies: list[list[bytes]], first: int, recovery: bool
) -> None:
    runs = runs_of(7, first, bodies, lac=first - 1)
    sent = wire.Append()
    append_to_wire(sent, runs, KEY, facts_of(7), recovery)
    got = wire.Append.FromString(sent.SerializeToString())
    assert runs_of_append(got, got.runs) == runs
    assert (got.key, got.recovery, facts_of_wire(got.facts, 7)) == (KEY, recovery, facts_of(7))


@given(BODIES, st.data())
def test_packed_runs_that_were_changed_are_refused_or_are_sound_runs(
    bodies: list[list[bytes]], data: st.DataObject
) -> None:
    runs = runs_of(7, 0, bodies)
    packed = bytearray(pack_runs(runs))
    position = data.draw(st.integers(min_value=0, max_value=len(packed) - 1))
    packed[position] ^= data.draw(st.integers(min_value=1, max_value=255))
    try:
        got = unpack_runs(7, len(runs), bytes(packed))
    except FrameInvalid:
        return
    assert [len(run.table) for run in got] == [8 * run.count for run in got]
    assert [sum(run.lengths()) for run in got] == [len(run.body) for run in got]


@given(st.binary(max_size=300), st.integers(min_value=0, max_value=2**32 - 1))
def test_any_bytes_are_refused_or_are_sound_runs(packed: bytes, count: int) -> None:
    try:
        got = unpack_runs(7, count, packed)
    except FrameInvalid:
        return
    assert pack_runs(got) == packed


def test_a_run_that_says_more_tables_than_there_are_bytes_is_refused() -> None:
    row = struct.pack(">qqqIII", 0, -1, 9, 1, 2**32 - 1, 1)
    with pytest.raises(FrameInvalid):
        unpack_runs(7, 1, row + bytes(9))


def test_runs_that_do_not_follow_each_other_are_refused() -> None:
    first, _, third = runs_of(7, 0, [[b"moo"], [b"baa"], [b"oink"]])
    sent = wire.Append()
    append_to_wire(sent, [first, third], KEY, None, False)
    with pytest.raises(FrameInvalid, match="does not follow"):
        runs_of_append(sent, sent.runs)


def test_facts_of_a_closed_ledger_keep_its_end() -> None:
    facts = LedgerFacts(7, 3, 3, 2, 256, b"h" * 32, 5, {}, 10, ("a", "b", "c"), -1, 0)
    sent = wire.LedgerFacts()
    facts_to_wire(facts, sent)
    assert facts_of_wire(wire.LedgerFacts.FromString(sent.SerializeToString()), 7) == facts


@pytest.mark.parametrize(
    "broken",
    [
        {"ledger_id": -1},
        {"ack_quorum": 0},
        {"write_quorum": 4},
        {"stripe_entries": 0},
        {"fragment_first": -1},
        {"closed_last": -2},
        {"closed_length": -1},
        {"ensemble": ["a", "b", "b"]},
        {"ensemble": ["a", "b"]},
        {"key_hash": b"short"},
        {"ledger_id": 99},
        {"custom": {"app": bytes(CUSTOM_METADATA_BYTES_MAX)}},
    ],
    ids=lambda broken: str(next(iter(broken))),
)
def test_facts_that_cannot_be_are_refused(broken: dict[str, Any]) -> None:
    sound: dict[str, Any] = {
        "ensemble_size": 3,
        "write_quorum": 3,
        "ack_quorum": 2,
        "stripe_entries": 256,
        "key_hash": bytes(32),
        "ensemble": ["a", "b", "c"],
        "closed_last": 8,
    }
    assert facts_of_wire(wire.LedgerFacts(**sound), 0).closed_last == 8
    with pytest.raises(FrameInvalid):
        facts_of_wire(wire.LedgerFacts(**(sound | broken)), 0)


@pytest.mark.parametrize("missing", [None, (2, 9)])
@pytest.mark.parametrize("unknown", [None, (2, 5)])
def test_a_reply_to_a_read_keeps_what_it_denies_apart_from_what_it_does_not_know(
    missing: tuple[int, int] | None, unknown: tuple[int, int] | None
) -> None:
    runs: tuple[Run, ...] = tuple(runs_of(7, 0, [[b"moo"], [b"baa"]]))
    reply = ReadReply(Status.OK, runs, missing, unknown, 1, "a", 3)
    sent = wire.ReadReply()
    read_reply_to_wire(sent, 7, reply)
    assert read_reply_of_wire([sent], "a") == reply


def test_a_read_that_ends_without_a_reply_says_nothing() -> None:
    with pytest.raises(FrameInvalid):
        read_reply_of_wire([], "a")


@pytest.mark.parametrize(("first", "last", "ledger"), [(-1, 5, 7), (5, 4, 7), (0, 5, -7)])
def test_a_read_of_no_range_is_refused(first: int, last: int, ledger: int) -> None:
    with pytest.raises(FrameInvalid):
        read_request_of_wire(wire.ReadRequest(ledger_id=ledger, first=first, last=last))


def test_a_status_of_a_newer_format_counts_as_unavailable() -> None:
    assert status_of_wire(4_711) is Status.UNAVAILABLE
    assert status_of_wire(2) is Status.FENCED
