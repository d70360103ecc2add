"""Requests: done once, answered again, and forgotten only with a word."""

import pytest

from engine.errors import InvalidRequest
from engine.log.position import Position, Span
from engine.replica import sessions
from engine.replica.applier import Applier
from engine.replica.entries import Request, encode_command, encode_session
from engine.replica.sessions import FORGOTTEN, FULL, session_of
from engine.state.memory import MemoryState
from tests.engine.replica.machines import Register


class _Log:
    """An applier fed one entry after the other."""

    def __init__(self) -> None:
        self.state = MemoryState()
        self.applier = Applier(Register(), self.state, "log")
        self._next = 0

    def take(self, entry: bytes) -> object:
        outcome = self.applier.apply(Span(1, self._next, 1), [entry])[0]
        self._next += 1
        return outcome

    def session(self) -> Position:
        name = self.take(encode_session(5))
        assert isinstance(name, bytes)
        return session_of(name)

    def ask(self, text: str, session: Position, sequence: int, floor: int = 0) -> object:
        return self.take(encode_command(text.encode(), 1, Request(session, sequence, floor))[0])


def test_a_repeated_request_is_answered_and_not_done_again() -> None:
    log = _Log()
    session = log.session()
    assert log.ask("a=1", session, 1) == b"-"
    assert log.ask("a=2", session, 2) == b"1"
    assert log.ask("a=1", session, 1) == b"-"
    assert log.state.get(b"a") == b"2"


def test_a_session_is_named_by_the_entry_that_opened_it() -> None:
    log = _Log()
    assert log.session() == Position(1, 0)
    assert log.session() == Position(1, 1)


def test_sessions_with_the_same_sequence_do_not_meet() -> None:
    log = _Log()
    one, two = log.session(), log.session()
    assert log.ask("a=1", one, 1) == b"-"
    assert log.ask("a=2", two, 1) == b"1"


def test_what_was_answered_for_certain_is_dropped_and_a_late_repeat_is_refused() -> None:
    log = _Log()
    session = log.session()
    log.ask("a=1", session, 1)
    log.ask("a=2", session, 2, floor=2)
    assert log.ask("a=1", session, 1) is FORGOTTEN
    assert log.state.get(b"a") == b"2"


def test_too_many_open_answers_are_refused_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "RESULTS_MAX", 2)
    log = _Log()
    session = log.session()
    log.ask("a=1", session, 1)
    log.ask("a=2", session, 2)
    assert log.ask("a=3", session, 3) is FULL
    assert log.ask("a=3", session, 3) is FULL, "it was not done, and may be once there is room"
    assert log.state.get(b"a") == b"2"
    assert log.ask("a=1", session, 1) == b"-"
    assert log.ask("a=3", session, 3, floor=2) == b"2"


def test_the_session_used_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)
    monkeypatch.setattr(sessions, "_USED_COARSELY", 1)
    log = _Log()
    one, two = log.session(), log.session()
    log.ask("a=1", one, 1)
    three = log.session()
    assert log.ask("a=2", two, 1) is FORGOTTEN
    assert log.ask("a=1", one, 1) == b"-"
    assert log.ask("a=3", three, 1) == b"1"
    rows = [key for key, _ in log.state.scan(b"\x00r", b"\x00v")]
    assert len(rows) == 6, "two sessions, a result of each, and their places in the order of use"


def test_answers_too_large_to_be_kept_poison_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "RESULTS_BYTES_MAX", 10)
    log = _Log()
    session = log.session()
    log.ask("a=" + "x" * 8, session, 1)
    assert log.ask("a=" + "y" * 8, session, 2) == b"x" * 8
    assert log.ask("a=" + "z" * 8, session, 3) == b"y" * 8, "done and answered, though not kept"
    assert log.ask("a=" + "y" * 8, session, 2) == b"x" * 8
    assert log.ask("a=" + "z" * 8, session, 3) is FORGOTTEN
    assert log.state.get(b"a") == b"z" * 8
    assert log.ask("a=1", session, 4, floor=4) == b"z" * 8
    assert log.ask("a=1", session, 4, floor=4) == b"z" * 8


def test_the_largest_answers_of_many_open_requests_fit_the_state() -> None:
    log = _Log()
    session = log.session()
    for sequence in range(8):
        log.ask("a=" + "x" * 1_000_000, session, sequence)
    assert not log.applier.failed


@pytest.mark.parametrize("step", [1, 63, 64, 65, 900])
def test_a_floor_that_rises_by_any_step_drops_all_below_it(step: int) -> None:
    log = _Log()
    session = log.session()
    for sequence in range(step):
        log.ask("a=1", session, sequence)
    assert log.ask("a=2", session, step, floor=step) == b"1"
    assert len(log.state.scan(b"\x00r", b"\x00s")) == 1


@pytest.mark.parametrize(
    "request_",
    [
        Request(Position(1, 0), -1),
        Request(Position(1, 0), 2**63),
        Request(Position(1, 0), 1, 2),
        Request(Position(-1, 0), 1),
        Request(Position(1, -1), 1),
        Request(Position(2**64, 0), 1),
        Request((1, 0), 1),  # type: ignore[arg-type]
        (Position(1, 0), 1, 0),
    ],
)
def test_a_request_that_cannot_be_numbered_is_refused(request_: Request) -> None:
    with pytest.raises(InvalidRequest):
        encode_command(b"a=1", 1, request_)


def test_a_session_that_never_was_is_refused() -> None:
    log = _Log()
    assert log.ask("a=1", Position(9, 9), 1) is FORGOTTEN
    assert log.state.get(b"a") is None


def test_answers_outlive_the_replica_that_gave_them() -> None:
    log = _Log()
    session = log.session()
    log.ask("a=1", session, 1)
    log.applier = Applier(Register(), log.state, "log")
    assert log.ask("a=1", session, 1) == b"-"
    assert log.ask("a=2", session, 2) == b"1"
