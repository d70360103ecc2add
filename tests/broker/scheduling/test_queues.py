"""Rings of ids: their order, removals from anywhere, and what they weigh."""

import random
import sys

from hypothesis import given
from hypothesis import strategies as st

from broker.scheduling.queues import CHUNK_IDS, REMOVALS_A_SWEEP, Ring


def drained(ring: Ring) -> list[int]:
    """All ids, taken one by one."""
    return [ring.pop() for _ in range(len(ring))]


def filled(count: int) -> Ring:
    """A ring with the ids from 0."""
    ring = Ring()
    ring.push_many(range(count), 7)
    return ring


def test_ids_leave_in_the_order_in_which_they_came() -> None:
    ring = filled(2 * CHUNK_IDS + 5)
    ring.push(10**6, 8)
    assert drained(ring) == [*range(2 * CHUNK_IDS + 5), 10**6]


def test_an_id_put_back_is_the_next_again_and_has_waited_as_long_as_before() -> None:
    ring = filled(3)
    ring.push_front(99, 3)
    assert (ring.head_id, ring.head_since_ms) == (99, 3)
    ring.push_front(ring.pop(), 3)
    assert drained(ring) == [99, 0, 1, 2]


def test_what_was_removed_never_leaves() -> None:
    ring = filled(10)
    for task_id in (0, 9, 4, 5):
        ring.remove(task_id)
    assert len(ring) == 6
    assert drained(ring) == [1, 2, 3, 6, 7, 8]


def test_an_id_that_comes_back_after_its_removal_leaves_once() -> None:
    ring = filled(5)
    ring.remove(2)
    ring.push(2, 9)
    assert len(ring) == 5
    assert drained(ring) == [0, 1, 2, 3, 4]


def test_removals_in_any_order_leave_few_removed_ids_lying() -> None:
    count = 20 * CHUNK_IDS
    for order in (sorted, lambda ids: sorted(ids, reverse=True), shuffled):
        ring = filled(count)
        for task_id in order(range(1, count - 1)):
            ring.remove(task_id)
            assert ring.lying - len(ring) <= count // REMOVALS_A_SWEEP + CHUNK_IDS
        assert drained(ring) == [0, count - 1]


def shuffled(ids: range) -> list[int]:
    """In some order, always the same."""
    return random.Random(5).sample(ids, len(ids))


def test_an_id_weighs_less_than_eighty_bytes() -> None:
    ring = filled(200_000)
    weight = sum(sys.getsizeof(part) for part in ring.parts())
    assert weight / 200_000 < 24


names = st.sampled_from(["push", "front", "pop", "remove"])
steps = st.lists(st.tuples(names, st.integers(0)))


@given(steps)
def test_a_ring_does_what_a_list_does(given_steps: list[tuple[str, int]]) -> None:
    ring, model, gone, following = Ring(), list[int](), list[int](), 1
    for step, draw in given_steps:
        if step == "push":
            ring.push(following, following)
            model.append(following)
            following += 1
        elif step == "front" and gone:
            model.insert(0, gone.pop())
            ring.push_front(model[0], 0)
        elif step == "pop" and model:
            gone.append(model.pop(0))
            assert ring.pop() == gone[-1]
        elif step == "remove" and model:
            ring.remove(model.pop(draw % len(model)))
        assert ring.ids() == model
        assert len(ring) == len(model)
        assert not model or ring.head_id == model[0]
