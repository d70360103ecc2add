"""The memory that connections share: in order, urgent ones first, never over the limit."""

from hypothesis import given
from hypothesis import strategies as st

from engine.transport.allowance import Allowance

LIMIT, URGENT = 100, 30


def test_those_who_wait_are_granted_in_order_and_urgent_ones_first() -> None:
    allowance = Allowance(LIMIT, URGENT)
    granted: list[str] = []
    assert allowance.ask(70, lambda: granted.append("never"))
    assert not allowance.ask(40, lambda: granted.append("first"))
    assert not allowance.ask(40, lambda: granted.append("second"))
    assert allowance.ask(30, lambda: granted.append("never"), urgent=True)
    assert not allowance.ask(20, lambda: granted.append("urgent"), urgent=True)
    allowance.give_back(30)
    assert granted == ["urgent"]
    allowance.give_back(70)
    assert granted == ["urgent", "first"] and allowance.taken_bytes == 60
    allowance.give_back(20)
    assert granted == ["urgent", "first"]
    allowance.give_back(40)
    assert granted == ["urgent", "first", "second"]


def test_a_small_request_does_not_pass_a_big_one_that_waits() -> None:
    allowance = Allowance(LIMIT)
    assert allowance.ask(60, print) and not allowance.ask(60, print)
    assert not allowance.ask(1, print)


def test_one_that_is_over_the_whole_limit_is_granted_alone() -> None:
    allowance = Allowance(LIMIT)
    granted: list[int] = []
    assert allowance.ask(10, print) and not allowance.ask(1_000, lambda: granted.append(1))
    allowance.give_back(10)
    assert granted == [1] and allowance.exhausted


def test_one_that_waits_no_more_is_passed_over() -> None:
    allowance = Allowance(LIMIT)
    granted: list[str] = []

    def first() -> None:
        granted.append("first")

    assert allowance.ask(100, print)
    assert not allowance.ask(50, first) and not allowance.ask(50, lambda: granted.append("second"))
    assert allowance.withdraw(first) and not allowance.withdraw(first)
    allowance.give_back(100)
    assert granted == ["second"]


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.booleans()), max_size=60))
def test_what_is_granted_never_passes_the_limit(steps: list[tuple[int, bool, bool]]) -> None:
    allowance = Allowance(LIMIT, URGENT)
    held: list[int] = []
    usual = 0

    for size_bytes, urgent, back in steps:
        if back and held:
            allowance.give_back(held.pop(0))

        def grant(size_bytes: int = size_bytes) -> None:
            held.append(size_bytes)

        if allowance.ask(size_bytes, grant, urgent=urgent):
            held.append(size_bytes)
            usual += not urgent
        assert sum(held) == allowance.taken_bytes <= LIMIT
    while held:
        allowance.give_back(held.pop())
    assert allowance.taken_bytes == 0 and not allowance.exhausted
