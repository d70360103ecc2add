"""The bytes of a segment: what a header's CRC keeps out."""

import pytest

from engine.bookie.segment import (
    RECORD_HEADER_BYTES,
    Kind,
    Origin,
    Record,
    SegmentHeader,
    decode_header,
    decode_segment_header,
    encode_batch,
    encode_record,
    encode_run,
    encode_segment_header,
    facts_of,
    facts_record,
    find_batch,
    head_of,
    move_record,
    origin_of,
    run_of,
    run_record,
    seed_of,
)
from engine.errors import FormatTooNew
from tests.engine.bookie import stable

SEED = seed_of(99, 3)
RUN = stable.run_of(7, 10, 14)


def encoded(record: Record, offset: int = 500, seed: int = SEED) -> bytes:
    return encode_record(record, seed, offset) + record.head + record.body


def test_a_run_comes_back_as_it_was_written() -> None:
    data = encode_run(RUN, SEED, 500) + RUN.table + RUN.body
    assert data == encoded(run_record(RUN))
    header = decode_header(data, 0, SEED, 500)
    assert header is not None and header.size_bytes == len(data) and header.last == 14
    assert run_of(header, data, 0) == RUN


def test_a_move_names_where_its_run_lay() -> None:
    data = encoded(move_record(RUN, Origin(2, 77)))
    header = decode_header(data, 0, SEED, 500)
    assert header is not None and header.kind == Kind.MOVE
    assert run_of(header, data, 0) == RUN
    head = head_of(header, data, 0)
    assert head is not None and origin_of(head) == Origin(2, 77)


def test_facts_come_back_as_they_were_written() -> None:
    facts = stable.facts_of(7, closed_last=9, closed_length=80)
    assert facts_of(facts_record(facts).head) == facts


def test_any_flipped_bit_of_a_header_is_found() -> None:
    data = encode_run(RUN, SEED, 500)
    for bit in range(8 * RECORD_HEADER_BYTES):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        assert decode_header(bytes(bad), 0, SEED, 500) is None


def test_a_header_is_valid_only_at_its_own_place() -> None:
    data = encode_run(RUN, SEED, 500)
    assert decode_header(data, 0, SEED, 500) is not None
    assert decode_header(data, 0, SEED, 501) is None
    assert decode_header(data, 0, seed_of(99, 4), 500) is None
    assert decode_header(data, 0, seed_of(98, 3), 500) is None


def test_a_body_that_imitates_a_batch_is_not_taken_for_one() -> None:
    fake = encode_batch(1, 0, 0, 500, 1, seed_of(0, 3), 600)
    real = encode_batch(2, 0, 0, 500, 1, SEED, 600 + len(fake))
    assert find_batch(fake + real, 0, SEED, 600) == len(fake)
    assert find_batch(fake, 0, SEED, 600) is None


def test_a_damaged_table_is_told_from_a_damaged_body() -> None:
    data = bytearray(encoded(run_record(RUN)))
    data[-1] ^= 1
    header = decode_header(bytes(data), 0, SEED, 500)
    assert header is not None
    run = run_of(header, bytes(data), 0)
    assert run is not None and run.first_corrupt() == 14
    data[RECORD_HEADER_BYTES] ^= 1
    assert run_of(header, bytes(data), 0) is None


def test_a_segment_header_comes_back_and_any_flipped_bit_is_found() -> None:
    header = SegmentHeader("b1", 2**64 - 1, 5, 4, 1234)
    data = encode_segment_header(header)
    assert decode_segment_header(data) == header
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        assert decode_segment_header(bytes(bad)) is None


def test_a_segment_of_a_newer_major_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bookie.segment.FORMAT_MAJOR", 2)
    data = encode_segment_header(SegmentHeader("b1", 1, 5, 4, 1234))
    monkeypatch.undo()
    with pytest.raises(FormatTooNew):
        decode_segment_header(data)
