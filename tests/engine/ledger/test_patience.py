"""How long entries wait while bookies fail one after the other."""

from engine.ledger.patience import Patience


class Hands:
    """A clock that is set."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0


def at(clock: Hands, patience: Patience, seconds: float) -> bool:
    """Whether the time is up so many seconds later."""
    clock.now_s += seconds
    return patience.over


def begun(patience: Patience) -> bool:
    return patience.begun


def test_changes_that_confirm_nothing_share_one_time() -> None:
    clock = Hands()
    patience = Patience(clock, 10_000)
    assert not at(clock, patience, 20)
    patience.failed("a")
    patience.begin(waiting=True)
    assert not at(clock, patience, 6)
    patience.failed("a")
    patience.begin(waiting=True)
    assert at(clock, patience, 5) and patience.over_with(["a"])
    assert begun(patience)
    patience.confirmed()
    assert not begun(patience)
    patience.begin(waiting=True)
    assert not patience.over_with(["a"])


def test_it_is_told_of_confirmations_once_anything_has_begun() -> None:
    patience = Patience(Hands(), 10_000)
    assert not begun(patience)
    patience.failed("a")
    assert begun(patience)
    patience.confirmed()
    patience.begin(waiting=False)
    assert begun(patience)


def test_who_was_not_tried_yet_gets_the_whole_time() -> None:
    clock = Hands()
    patience = Patience(clock, 10_000)
    patience.failed("a")
    patience.begin(waiting=True)
    assert at(clock, patience, 11) and not patience.over_with(["b"])
    assert at(clock, patience, 11)
    patience.failed("b")
    patience.begin(waiting=True)
    assert not at(clock, patience, 9)
    assert at(clock, patience, 2) and patience.over_with(["a", "b"])


def test_nobody_waited_yet_where_nothing_was_to_be_confirmed() -> None:
    clock = Hands()
    patience = Patience(clock, 10_000)
    patience.begin(waiting=False)
    assert at(clock, patience, 11)
    patience.begin(waiting=False)
    assert not at(clock, patience, 0)
