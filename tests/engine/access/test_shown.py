"""The token that a client shows: the newest one of those that it was given."""

from pathlib import Path

from engine.access.shown import ShownToken
from engine.access.tokens import READ, Claims, sign
from tests.engine.access.known_users import KEY
from tests.engine.bookie.stable import StillClock


def token(ends_ms: int) -> str:
    return sign(Claims(READ, "ann", ends_ms), KEY)


def test_of_two_tokens_that_counts_which_ends_later() -> None:
    shown = ShownToken(token(2), clock=StillClock())
    for other in (token(1), "", "no token", "hb1.x.y"):
        shown.renew(other)
        assert shown.text == token(2)
    shown.renew(token(3))
    assert shown.text == token(3) and token(3) not in repr(shown)


def test_a_file_is_looked_into_once_a_minute_and_may_be_missing(tmp_path: Path) -> None:
    clock, file = StillClock(), tmp_path / "token"
    shown = ShownToken(token(1), clock=clock, file=file)
    assert shown.text == token(1)
    file.write_text(token(2))
    clock.now_s += 59
    assert shown.text == token(1)
    clock.now_s += 1
    assert shown.text == token(2)
    file.unlink()
    clock.now_s += 60
    assert shown.text == token(2)
