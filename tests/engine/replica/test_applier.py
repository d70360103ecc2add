"""Applying the log: order, gaps, commands in parts, hashes, and what stops a replica for good."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import limits
from engine.errors import (
    CannotRead,
    EngineError,
    EntryTooLarge,
    FolderMismatch,
    LevelTooNew,
    ReplicaFailed,
    StateDiverged,
)
from engine.log.position import START, Position, Span
from engine.replica import applier as applying
from engine.replica.applier import Applier
from engine.replica.contract import StateMachine
from engine.replica.entries import (
    StateHash,
    Term,
    encode_command,
    encode_hash,
    encode_level,
    encode_term,
)
from engine.state.memory import MemoryState
from tests.engine.replica.machines import Failing, Forgetful, Newer, Register, commands


def _applier(machine: StateMachine | None = None) -> tuple[Applier, MemoryState]:
    state = MemoryState()
    return Applier(machine or Register(), state, "log"), state


def _feed(applier: Applier, bodies: list[bytes], first: int = 0, ledger: int = 7) -> list[object]:
    return list(applier.apply(Span(ledger, first, len(bodies)), bodies))


def test_each_entry_gives_its_result_and_the_position_is_that_of_the_last() -> None:
    applier, state = _applier()
    assert _feed(applier, commands("a=1", "a=2", "b=3")) == [b"-", b"1", b"-"]
    assert state.position == applier.cursor == Position(7, 2)
    assert (state.get(b"a"), state.get(b"b")) == (b"2", b"3")


@pytest.mark.parametrize("span", [Span(7, 4, 1), Span(7, 2, 1), Span(8, 1, 1), Span(6, 0, 1)])
def test_entries_that_do_not_follow_stop_the_replica(span: Span) -> None:
    applier, state = _applier()
    _feed(applier, commands("a=1", "a=2", "a=3"))
    with pytest.raises(CannotRead, match="missing"):
        applier.apply(span, commands("a=4"))
    assert applier.failed
    assert state.position == Position(7, 2)


def test_the_next_ledger_begins_at_its_first_entry() -> None:
    applier, state = _applier()
    _feed(applier, commands("a=1"))
    _feed(applier, commands("a=2"), ledger=9)
    assert state.position == Position(9, 0)


def _in_parts(monkeypatch: pytest.MonkeyPatch, text: str) -> list[bytes]:
    monkeypatch.setattr(limits, "ENTRY_BYTES_MAX", 8)
    monkeypatch.setattr("engine.replica.entries._PART_BYTES", 7)
    return encode_command(text.encode(), 1, None)


def test_a_command_in_parts_is_applied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    applier, state = _applier()
    parts = _in_parts(monkeypatch, "key=a value of some length")
    assert len(parts) > 3
    assert _feed(applier, parts)[-1] == b"-"
    assert state.get(b"key") == b"a value of some length"


def test_the_position_never_passes_the_first_part_of_an_open_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applier, state = _applier()
    parts = _in_parts(monkeypatch, "key=a value of some length")
    _feed(applier, [*commands("a=1"), parts[0]])
    assert (state.position, applier.cursor) == (Position(7, 0), Position(7, 1))
    _feed(applier, [parts[1]], first=2)
    assert (state.position, applier.cursor) == (Position(7, 0), Position(7, 2))
    again = Applier(Register(), state, "log")
    assert again.cursor == Position(7, 0)
    _feed(again, [*parts, *commands("b=1")], first=1)
    assert state.get(b"key") == b"a value of some length"
    assert state.position == Position(7, len(parts) + 1)


def test_parts_at_the_beginning_of_a_ledger_hold_the_position_in_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applier, state = _applier()
    parts = _in_parts(monkeypatch, "key=a value of some length")
    _feed(applier, commands("a=1"))
    _feed(applier, parts[:2], ledger=8)
    assert state.position == Position(7, 0)


def test_parts_without_an_end_die_when_a_term_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    applier, state = _applier()
    parts = _in_parts(monkeypatch, "key=a value of some length")
    _feed(applier, parts[:-1])
    assert state.position == START
    _feed(applier, [encode_term(Term(2, 0, "")), *commands("a=1")], ledger=8)
    assert state.get(b"key") is None and state.get(b"a") == b"1"
    assert applier.summary.epoch == 2
    assert applier.summary.entries == len(parts) - 1 + 2


def test_parts_interrupted_by_a_command_are_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    applier, _ = _applier()
    parts = _in_parts(monkeypatch, "key=a value of some length")
    with pytest.raises(CannotRead, match="interrupted"):
        _feed(applier, [parts[0], *commands("a=1")])


def test_a_command_over_the_limit_is_refused() -> None:
    with pytest.raises(EntryTooLarge):
        encode_command(b"x" * (64 * limits.MIB + 1), 1, None)


@pytest.fixture
def hash_every_three(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(applying, "HASH_EVERY", 3)
    yield


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_the_hash_depends_on_the_entries_and_not_on_the_batches(sizes: list[int]) -> None:
    bodies = commands(*[f"k{number % 5}={number}" for number in range(sum(sizes))])
    whole, _ = _applier()
    _feed(whole, bodies)
    cut, _ = _applier()
    first = 0
    for size in sizes:
        _feed(cut, bodies[first : first + size], first=first)
        first += size
    assert cut.summary == whole.summary


def test_a_state_that_was_opened_again_goes_on_with_its_hash() -> None:
    bodies = commands("a=1", "b=2", "a=3")
    whole, _ = _applier()
    _feed(whole, bodies)
    first, state = _applier()
    _feed(first, bodies[:2])
    second = Applier(Register(), state, "log")
    _feed(second, bodies[2:], first=2)
    assert second.summary == whole.summary


@pytest.mark.usefixtures("hash_every_three")
def test_a_replica_whose_state_is_another_stops_at_the_next_hash() -> None:
    leader, _ = _applier()
    bodies = commands("a=1", "lost=2", "b=3")
    _feed(leader, bodies)
    assert leader.hash_due is not None and leader.hash_due.entries == 3
    word = encode_hash(leader.hash_due)
    good, _ = _applier()
    _feed(good, [*bodies, word])
    other, state = _applier(Forgetful())
    with pytest.raises(StateDiverged, match="after 3 entries"):
        _feed(other, [*bodies, word, *commands("c=4")])
    assert other.failed and state.position == START


@pytest.mark.usefixtures("hash_every_three")
def test_a_restart_does_not_make_a_diverged_state_a_good_one() -> None:
    leader, _ = _applier()
    bodies = commands("a=1", "lost=2", "b=3", "c=4")
    _feed(leader, bodies)
    assert leader.hash_due is not None
    other, state = _applier(Forgetful())
    _feed(other, bodies)
    again = Applier(Register(), state, "log")
    with pytest.raises(StateDiverged):
        _feed(again, [encode_hash(leader.hash_due)], first=4)


@pytest.mark.usefixtures("hash_every_three")
def test_a_hash_of_before_the_state_was_opened_is_passed_over() -> None:
    applier, state = _applier()
    _feed(applier, commands("a=1"))
    again = Applier(Register(), state, "log")
    _feed(again, [encode_hash(StateHash(1, 1))], first=1)
    assert state.position == Position(7, 1)


def test_a_machine_that_fails_stops_the_replica_with_nothing_committed() -> None:
    applier, state = _applier(Failing())
    _feed(applier, commands("a=1"))
    with pytest.raises(ReplicaFailed, match=r"ledger=7, entry=2"):
        _feed(applier, commands("a=2", "bad=1"), first=1)
    assert applier.failed and state.position == Position(7, 0)


def test_a_command_of_an_unknown_level_stops_the_replica() -> None:
    applier, state = _applier()
    with pytest.raises(LevelTooNew, match="level 2"):
        _feed(applier, [encode_level(2), *commands("a=1", level=2)])
    assert state.position == START
    newer, state = _applier(Newer())
    _feed(newer, [encode_level(2), *commands("a=1", level=2)])
    assert newer.summary.level == 2 and state.get(b"a") == b"1"


@pytest.mark.parametrize("body", [b"\x63news", encode_term(Term(1, 0, ""))[:1] + b"\x09" * 30])
def test_an_entry_of_a_newer_format_stops_the_replica(body: bytes) -> None:
    applier, _ = _applier()
    with pytest.raises(LevelTooNew):
        _feed(applier, [body])


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x02\x01short", b"\x07", b"\x05\x06"])
def test_a_damaged_entry_stops_the_replica(body: bytes) -> None:
    applier, state = _applier()
    with pytest.raises((ReplicaFailed, CannotRead)):
        _feed(applier, [body])
    assert applier.failed and state.position == START


def test_the_state_of_another_log_is_refused() -> None:
    applier, state = _applier()
    _feed(applier, commands("a=1"))
    with pytest.raises(FolderMismatch, match="'log'"):
        Applier(Register(), state, "another")


def test_a_machine_cannot_touch_the_replicas_own_rows() -> None:
    applier, _ = _applier()
    with pytest.raises(EngineError, match="zero byte"):
        _feed(applier, commands("\x00#=1"))
