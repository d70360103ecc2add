"""The model of leadership keeps its invariants, and needs each of its rules for that."""

from dataclasses import fields

import pytest

from tests.leadership.invariants import Answering, Moment, broken, lost, went_back
from tests.leadership.model import AS_IT_STOOD, Bounds, Found, Rules, explore

TWO_LEADERS = "two leaders"
STALE = "stale read"
LOST = "lost acknowledgement"
SMALL = Bounds(leases=(1, 1), attempts=2, epochs=2, appends=1)
UNLIKE = Bounds(leases=(2, 1), attempts=2, epochs=2, appends=1)
NEEDED: dict[str, str | tuple[str, ...]] = {
    "waits_for_the_longer_lease": TWO_LEADERS,
    "takes_what_it_saw": TWO_LEADERS,
    "leases_from_the_sending": TWO_LEADERS,
    "stops_when_the_key_is_lost": TWO_LEADERS,
    "looks_at_the_lease_after_the_read": STALE,
    "raises_from_what_was_read": STALE,
    "fences": STALE,
    "lists_in_its_epoch": (STALE, LOST),
    "answers_under_the_lease": TWO_LEADERS,
    "resigning_ends_the_lease": TWO_LEADERS,
}
NOT_NEEDED = {"reads_when_elected"}


def test_no_order_of_any_messages_breaks_an_invariant_two_terms_deep() -> None:
    found = explore(Rules(), Bounds(leases=(1, 1), attempts=3, epochs=3, appends=2))
    assert found == Found(found.states)
    assert found.states >= 100_000


def test_no_order_of_messages_breaks_an_invariant_with_unequal_leases() -> None:
    found = explore(Rules(), UNLIKE)
    assert found == Found(found.states)


@pytest.mark.parametrize("rule", NEEDED)
def test_without_any_one_rule_an_invariant_breaks(rule: str) -> None:
    bounds = UNLIKE if rule == "waits_for_the_longer_lease" else SMALL
    found = explore(Rules().without(rule), bounds)
    assert found.violation.startswith(NEEDED[rule]), found
    assert found.trace


def test_every_rule_is_tried() -> None:
    assert set(NEEDED) | NOT_NEEDED == {field.name for field in fields(Rules)}


def test_a_read_of_the_list_before_the_election_is_safe() -> None:
    found = explore(Rules().without("reads_when_elected"), SMALL)
    assert found == Found(found.states)


def test_an_epoch_raised_once_more_after_a_conflict_is_a_stale_read() -> None:
    found = explore(AS_IT_STOOD, SMALL)
    assert found.violation.startswith(STALE)
    told = [step for step in found.trace if "raises lands" in step]
    assert len(told) == 2, "one by each leader"


def test_an_onlooker_sees_what_is_stale_what_is_lost_and_what_goes_back() -> None:
    assert lost((1, 2), (1, 1)) and lost((1,), (1, 1))
    assert not lost((1, 1, 2), (1, 1)) and not lost((), ())
    one, two = Answering("one", 1, 5), Answering("two", 2, 5)
    assert not broken(Moment(2, 5, (two,))) and not broken(Moment(2, 5, ()))
    assert broken(Moment(2, 6, (two,))).startswith(STALE)
    assert broken(Moment(2, 5, (one, two))).startswith(TWO_LEADERS)
    assert broken(Moment(1, 5, (two,))).startswith("epoch never begun")
    assert not went_back(Moment(1, 5, ()), Moment(1, 6, ()))
    assert went_back(Moment(2, 5, ()), Moment(1, 5, ()))
    assert went_back(Moment(2, 5, ()), Moment(2, 4, ()))
