"""Turns of takeovers: how many at a time, who goes first, and who leaves the queue."""

import math
import random
from contextlib import ExitStack

import pytest

from engine.metadata.takeovers import Place, Takeovers


class Queue:
    """The places of some logs, and the order in which they were given turns."""

    def __init__(self, at_once: int) -> None:
        self.takeovers = Takeovers(at_once)
        self.begun: list[str] = []
        self._places: dict[str, Place] = {}

    @property
    def inside(self) -> list[str]:
        return [name for name in self.begun if self._places[name].has_turn]

    def enter(self, name: str, written_s: float = 0.0, *, first: bool = True) -> None:
        place = self._places[name] = Place(self.takeovers, lambda: self.begun.append(name))
        if place.ask(written_s, first=first):
            self.begun.append(name)

    def leave(self, name: str) -> None:
        self._places[name].leave()


def test_no_more_than_the_limit_are_taken_over_at_a_time() -> None:
    queue = Queue(2)
    for name in "abc":
        queue.enter(name)
    assert queue.inside == ["a", "b"] and queue.takeovers.free == 0
    queue.leave("a")
    assert queue.inside == ["b", "c"]
    queue.leave("b")
    queue.leave("c")
    assert queue.takeovers.free == 2


def test_the_log_that_was_written_last_is_taken_over_first() -> None:
    queue = Queue(1)
    queue.enter("begun", 9.0)
    queue.enter("old", 1.0)
    queue.enter("new", 5.0)
    queue.enter("old too", 1.0)
    for name in ("begun", "new", "old"):
        queue.leave(name)
    assert queue.begun == ["begun", "new", "old", "old too"]


def test_logs_that_another_process_should_lead_wait_behind_its_own() -> None:
    queue = Queue(1)
    queue.enter("begun")
    queue.enter("of another", 9.0, first=False)
    queue.enter("own", 1.0)
    queue.leave("begun")
    queue.leave("own")
    assert queue.begun == ["begun", "own", "of another"]


def test_logs_that_come_again_and_again_keep_no_other_one_waiting() -> None:
    queue = Queue(2)
    for number in range(10):
        queue.enter(f"failing {number}", 9.0)
    queue.enter("old", 1.0)
    queue.enter("older", -math.inf)
    queue.enter("of another", 1.0, first=False)
    for number in range(10, 80):
        queue.enter(f"failing {number}", 9.0)
        queue.leave(queue.inside[0])
    assert {"old", "older", "of another"} <= set(queue.begun)


def test_a_log_that_asks_again_keeps_its_age_and_its_turn() -> None:
    takeovers, granted = Takeovers(1), list[str]()
    holder = Place(takeovers, lambda: granted.append("holder"))
    waiting = Place(takeovers, lambda: granted.append("waiting"))
    assert holder.ask(1.0, first=True) and holder.ask(1.0, first=True) and takeovers.free == 0
    assert not waiting.ask(1.0, first=True) and not waiting.ask(1.0, first=True)
    holder.leave()
    assert granted == ["waiting"] and waiting.ask(1.0, first=True)
    waiting.leave()
    waiting.leave()
    assert takeovers.free == 1


def test_a_log_that_leaves_while_it_waits_is_passed_over() -> None:
    queue = Queue(1)
    for name in "abc":
        queue.enter(name)
    queue.leave("b")
    queue.leave("a")
    assert queue.begun == ["a", "c"]
    queue.leave("c")
    assert queue.takeovers.free == 1


def test_a_log_whose_takeover_failed_goes_behind_those_of_others() -> None:
    queue = Queue(1)
    queue.enter("begun")
    queue.enter("failed", -math.inf)
    queue.enter("of another", 1.0, first=False)
    queue.leave("begun")
    assert queue.begun == ["begun", "of another"]


def test_work_that_can_wait_holds_at_most_half_of_the_turns_and_never_waits() -> None:
    queue, spare = Queue(4), ExitStack()
    got = [spare.enter_context(queue.takeovers.spare_turn()) for _ in range(3)]
    assert got == [True, True, False]
    for name in "abc":
        queue.enter(name)
    assert queue.inside == ["a", "b"]
    spare.close()
    assert queue.inside == ["a", "b", "c"] and queue.takeovers.free == 1
    with queue.takeovers.spare_turn() as got_one:
        assert not got_one
    for name in "abc":
        queue.leave(name)
    with pytest.raises(ZeroDivisionError), queue.takeovers.spare_turn() as got_one:
        assert got_one and 1 / 0
    assert queue.takeovers.free == 4


@pytest.mark.parametrize("seed", range(10))
def test_no_turn_is_lost_when_logs_come_and_leave_at_random(seed: int) -> None:
    rng, takeovers = random.Random(seed), Takeovers(3)
    places = [Place(takeovers, lambda: None) for _ in range(20)]
    for _ in range(2_000):
        place = rng.choice(places)
        if rng.random() < 0.6:
            place.ask(rng.random(), first=rng.random() < 0.5)
        else:
            place.leave()
        inside = sum(each.has_turn for each in places)
        waiting = len(takeovers._waiting)
        assert inside + takeovers.free == 3 and not (takeovers.free and waiting)
    for place in places:
        place.leave()
    assert takeovers.free == 3 and not takeovers._waiting
