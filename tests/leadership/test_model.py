"""The model of leadership keeps its invariants, and needs each of its rules for that."""

from dataclasses import fields

import pytest

from tests.leadership.invariants import Answering, Moment, broken, lost, went_back
from tests.leadership.model import Bounds, Found, Rules, explore

TWO_LEADERS = "two leaders"
STALE = "stale read"
LOST = "lost acknowledgement"
BRIEF = Bounds(leases=(1, 1), attempts=2, epochs=2, appends=0)
SMALL = Bounds(leases=(1, 1), attempts=2, epochs=2, appends=1)
TWICE = Bounds(leases=(1, 1), attempts=2, epochs=2, appends=2)
UNLIKE = Bounds(leases=(2, 1), attempts=2, epochs=2, appends=0)
REMOVED = Bounds(leases=(1, 1), attempts=2, epochs=3, appends=1, removals=1)
THRICE = Bounds(leases=(1, 1), attempts=3, epochs=3, appends=0)
NEEDED: dict[str, tuple[Bounds, str | tuple[str, ...]]] = {
    "leases_from_the_sending": (BRIEF, TWO_LEADERS),
    "stops_when_its_record_is_ended": (BRIEF, TWO_LEADERS),
    "makes_its_record_first": (BRIEF, TWO_LEADERS),
    "waits_for_the_longer_lease": (UNLIKE, TWO_LEADERS),
    "ends_what_it_saw": (BRIEF, TWO_LEADERS),
    "waits_for_the_end": (BRIEF, TWO_LEADERS),
    "raises_from_what_was_read": (BRIEF, TWO_LEADERS),
    "fences": (SMALL, (STALE, LOST)),
    "lists_in_its_epoch": (SMALL, (STALE, LOST)),
    "answers_under_the_lease": (BRIEF, TWO_LEADERS),
    "leads_as_the_incarnation_named": (BRIEF, TWO_LEADERS),
    "confirms_reads_with_later_appends": (TWICE, STALE),
    "resigning_ends_the_lease": (BRIEF, TWO_LEADERS),
    "resigns_in_its_epoch": (THRICE, TWO_LEADERS),
    "resigns_one_attempt": (THRICE, TWO_LEADERS),
    "a_removal_keeps_the_leader": (REMOVED, (TWO_LEADERS, STALE)),
}


def test_no_order_of_any_messages_breaks_an_invariant_two_terms_deep() -> None:
    found = explore(Rules(), Bounds(leases=(1, 1), attempts=3, epochs=3, appends=2))
    assert found == Found(found.states)
    assert found.states >= 100_000


def test_no_order_of_messages_breaks_an_invariant_with_unequal_leases() -> None:
    found = explore(Rules(), UNLIKE)
    assert found == Found(found.states)


def test_no_order_of_messages_breaks_an_invariant_when_the_log_is_removed() -> None:
    found = explore(Rules(), REMOVED)
    assert found == Found(found.states)


@pytest.mark.parametrize("rule", NEEDED)
def test_without_any_one_rule_an_invariant_breaks(rule: str) -> None:
    bounds, violation = NEEDED[rule]
    found = explore(Rules().without(rule), bounds)
    assert found.violation.startswith(violation), found
    assert found.trace


def test_every_rule_is_tried() -> None:
    assert set(NEEDED) == {field.name for field in fields(Rules)}


def test_an_epoch_raised_once_more_after_a_conflict_makes_two_leaders() -> None:
    found = explore(Rules().without("raises_from_what_was_read"), BRIEF)
    assert found.violation.startswith(TWO_LEADERS)
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
