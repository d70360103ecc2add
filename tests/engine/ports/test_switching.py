"""How long threads' turns are: short while something is open, long again while much is copied."""

import sys

from engine.ports.switching import long_turns, switching_every


def test_turns_are_short_while_something_is_open_and_as_before_when_the_last_has_ended() -> None:
    before_s = sys.getswitchinterval()
    with switching_every(1e-4):
        with switching_every(5e-5):
            assert abs(sys.getswitchinterval() - 5e-5) < 1e-6
        assert abs(sys.getswitchinterval() - 1e-4) < 1e-6
        with switching_every(None):
            assert abs(sys.getswitchinterval() - 1e-4) < 1e-6
    assert sys.getswitchinterval() == before_s


def test_turns_are_as_before_while_much_is_copied_and_short_again_after_the_last_copy() -> None:
    before_s = sys.getswitchinterval()
    with long_turns():
        assert sys.getswitchinterval() == before_s
    with switching_every(5e-5):
        with long_turns():
            with long_turns():
                assert sys.getswitchinterval() == before_s
            assert sys.getswitchinterval() == before_s
            with switching_every(1e-5):
                assert sys.getswitchinterval() == before_s
        assert abs(sys.getswitchinterval() - 5e-5) < 1e-6
    assert sys.getswitchinterval() == before_s
