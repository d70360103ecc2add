"""How long threads' turns are: short while something is open, long again while much is copied."""

import sys
from collections.abc import Iterator

import pytest

from engine.ports import switching
from engine.ports.switching import long_turns, switching_every

_QUIET_S = 0.005


@pytest.fixture(autouse=True)
def nothing_else_is_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stores that other tests of this process keep open, for several of them, ask too."""
    monkeypatch.setattr(switching, "_asked", [])
    monkeypatch.setattr(switching, "_copying", [])
    outside_s = sys.getswitchinterval()
    sys.setswitchinterval(_QUIET_S)
    yield
    sys.setswitchinterval(outside_s)


def turns_last(interval_s: float) -> bool:
    """The interpreter keeps whole microseconds, rounded down, and reads them back as a float."""
    return abs(sys.getswitchinterval() - interval_s) < 2e-6


def test_turns_are_short_while_something_is_open_and_as_before_when_the_last_has_ended() -> None:
    with switching_every(1e-4):
        with switching_every(5e-5):
            assert turns_last(5e-5)
        assert turns_last(1e-4)
        with switching_every(None):
            assert turns_last(1e-4)
    assert turns_last(_QUIET_S)


def test_turns_are_exactly_as_before_also_where_they_were_of_fifty_microseconds() -> None:
    sys.setswitchinterval(50.5e-6)
    before_s = sys.getswitchinterval()
    for _ in range(3):
        with switching_every(1e-5):
            assert turns_last(1e-5)
        assert sys.getswitchinterval() == before_s


def test_turns_are_as_before_while_much_is_copied_and_short_again_after_the_last_copy() -> None:
    with long_turns():
        assert turns_last(_QUIET_S)
    with switching_every(5e-5):
        with long_turns():
            with long_turns():
                assert turns_last(_QUIET_S)
            assert turns_last(_QUIET_S)
            with switching_every(1e-5):
                assert turns_last(_QUIET_S)
        assert turns_last(5e-5)
    assert turns_last(_QUIET_S)
