"""Runs: packing, cutting, digests, lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import CannotRead
from engine.limits import ENTRY_ID_MAX, RUN_ENTRIES_MAX
from engine.run import NO_ENTRY, Entry, Run

_bodies = st.lists(st.binary(max_size=40), min_size=1, max_size=20)
_ids = st.integers(0, 2**62)


@st.composite
def _runs(draw: st.DrawFn) -> tuple[Run, list[bytes]]:
    bodies = draw(_bodies)
    first = draw(_ids)
    lac = draw(st.integers(NO_ENTRY, first - 1))
    before = draw(st.integers(0, 2**40))
    return Run.pack(draw(_ids), first, bodies, lac=lac, length_before=before), bodies


@st.composite
def _cut_runs(draw: st.DrawFn) -> tuple[Run, list[bytes], int, int]:
    run, bodies = draw(_runs())
    low = draw(st.integers(run.first, run.last))
    return run, bodies, low, draw(st.integers(low, run.last))


@given(_runs())
def test_what_was_packed_is_unpacked(made: tuple[Run, list[bytes]]) -> None:
    run, bodies = made
    assert run.entries() == [
        Entry(run.ledger_id, run.first + index, body) for index, body in enumerate(bodies)
    ]
    assert run.last == run.first + len(bodies) - 1
    assert list(run.lengths()) == [len(body) for body in bodies]
    assert len(run.digests()) == run.count == len(bodies)
    assert run.size_bytes == 8 * len(bodies) + sum(map(len, bodies))
    assert run.first_corrupt() is None


@given(_runs(), st.integers(0, 2**40))
def test_the_length_is_that_of_the_ledger_up_to_the_runs_last_entry(
    made: tuple[Run, list[bytes]], before: int
) -> None:
    run, bodies = made
    packed = Run.pack(run.ledger_id, run.first, bodies, lac=run.lac, length_before=before)
    assert packed.length == before + sum(map(len, bodies))


@given(_cut_runs())
def test_a_cut_run_is_what_packing_the_part_would_have_made(
    made: tuple[Run, list[bytes], int, int],
) -> None:
    run, bodies, low, high = made
    before = run.length - sum(map(len, bodies)) + sum(map(len, bodies[: low - run.first]))
    part = bodies[low - run.first : high - run.first + 1]
    lac = min(run.lac, low - 1)
    assert run.cut(low, high) == Run.pack(run.ledger_id, low, part, lac=lac, length_before=before)


@given(_cut_runs())
def test_a_cut_moves_digests_and_makes_none(made: tuple[Run, list[bytes], int, int]) -> None:
    run, _, low, high = made
    assert run.cut(low, high).digests() == run.digests()[low - run.first : high - run.first + 1]


@given(_runs(), st.data())
def test_a_flipped_bit_of_body_or_table_is_always_detected(
    made: tuple[Run, list[bytes]], data: st.DataObject
) -> None:
    run, _ = made
    packed = bytearray(run.table + run.body)
    bit = data.draw(st.integers(0, 8 * len(packed) - 1))
    packed[bit // 8] ^= 1 << (bit % 8)
    table, body = bytes(packed[: len(run.table)]), bytes(packed[len(run.table) :])
    corrupt = Run(run.ledger_id, run.first, run.count, run.lac, run.length, table, body)
    found = corrupt.first_corrupt()
    assert found is not None and run.first <= found <= run.last
    with pytest.raises(CannotRead, match=str(found)):
        corrupt.entries()


@given(_runs(), st.integers(1, 2**20), st.booleans())
def test_an_entry_under_another_id_or_in_another_ledger_is_corrupt(
    made: tuple[Run, list[bytes]], shift: int, of_ledger: bool
) -> None:
    run, _ = made
    moved = Run(
        run.ledger_id + (shift if of_ledger else 0),
        run.first + (0 if of_ledger else shift),
        run.count,
        run.lac,
        run.length,
        run.table,
        run.body,
    )
    assert moved.first_corrupt() == moved.first
    with pytest.raises(CannotRead):
        moved.entries()


@given(_runs(), st.data())
def test_a_body_cut_short_is_always_detected(
    made: tuple[Run, list[bytes]], data: st.DataObject
) -> None:
    run, _ = made
    if not run.body:
        return
    length = data.draw(st.integers(0, len(run.body) - 1))
    short = Run(
        run.ledger_id, run.first, run.count, run.lac, run.length, run.table, run.body[:length]
    )
    assert short.first_corrupt() is not None
    with pytest.raises(CannotRead):
        short.entries()


def test_bytes_behind_the_last_entry_are_detected() -> None:
    run = Run.pack(1, 5, [b"moo", b"baa"], lac=NO_ENTRY, length_before=0)
    longer = Run(1, 5, 2, run.lac, run.length, run.table, run.body + b"!")
    assert longer.first_corrupt() == 6
    with pytest.raises(CannotRead, match="entry 6"):
        longer.entries()


def test_empty_entries_are_entries() -> None:
    run = Run.pack(1, 0, [b"", b"", b""], lac=NO_ENTRY, length_before=0)
    assert [entry.body for entry in run.entries()] == [b"", b"", b""]
    assert (run.length, run.last) == (0, 2)


def test_the_whole_of_a_run_is_the_run_itself() -> None:
    run = Run.pack(1, 5, [b"moo", b"baa"], lac=2, length_before=9)
    assert run.cut(5, 6) is run


def test_a_run_never_confirms_its_own_entries_even_when_cut() -> None:
    run = Run.pack(1, 5, [b"moo", b"baa"], lac=4, length_before=9)
    assert run.cut(6, 6).lac == 4
    with pytest.raises(AssertionError):
        Run.pack(1, 5, [b"moo"], lac=5, length_before=0)


@pytest.mark.parametrize(("low", "high"), [(4, 5), (5, 8), (6, 5)])
def test_a_cut_outside_the_run_is_refused(low: int, high: int) -> None:
    run = Run.pack(1, 5, [b"a", b"b", b"c"], lac=NO_ENTRY, length_before=0)
    with pytest.raises(AssertionError):
        run.cut(low, high)


def test_a_run_is_never_empty_too_long_or_past_the_last_id() -> None:
    with pytest.raises(AssertionError):
        Run.pack(1, 0, [], lac=NO_ENTRY, length_before=0)
    with pytest.raises(AssertionError):
        Run.pack(1, 0, [b""] * (RUN_ENTRIES_MAX + 1), lac=NO_ENTRY, length_before=0)
    with pytest.raises(AssertionError):
        Run.pack(1, ENTRY_ID_MAX, [b""], lac=NO_ENTRY, length_before=0)
    assert Run.pack(1, ENTRY_ID_MAX - 1, [b""], lac=0, length_before=0).last == ENTRY_ID_MAX - 1


def test_the_digest_of_an_entry_is_part_of_the_format() -> None:
    """CRC32C over ledger id and entry id, both big-endian u64, and the body."""
    run = Run.pack(7, 0, [b"moo"], lac=NO_ENTRY, length_before=0)
    digest = _crc32c((7).to_bytes(8) + (0).to_bytes(8) + b"moo")
    assert run.table == (3).to_bytes(4) + digest.to_bytes(4)


def _crc32c(data: bytes) -> int:
    """The definition, bit by bit, apart from the library."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
