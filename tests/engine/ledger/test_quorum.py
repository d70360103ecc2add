"""The arithmetic of quorums, against a model that counts every entry's acknowledgements."""

import random
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.ledger.quorum import Quorums, confirmed, covered, writable
from engine.ledger.slot import Sent, Slot


@st.composite
def quorums(draw: st.DrawFn) -> Quorums:
    ensemble = draw(st.integers(1, 6))
    write = draw(st.integers(1, ensemble))
    return Quorums(ensemble, write, draw(st.integers(1, write)), draw(st.integers(1, 5)))


@given(quorums(), st.integers(-1, 30), st.data())
def test_the_lac_is_the_longest_prefix_with_an_ack_quorum_in_each_write_set(
    sizes: Quorums, pushed: int, data: st.DataObject
) -> None:
    marks = data.draw(
        st.lists(st.integers(-1, pushed), min_size=sizes.ensemble, max_size=sizes.ensemble)
    )
    expected = -1
    while expected < pushed:
        entry_id = expected + 1
        holders = sum(marks[index] >= entry_id for index in sizes.write_set(entry_id))
        if holders < sizes.ack:
            break
        expected = entry_id
    assert confirmed(sizes, -1, pushed, marks) == expected


@given(quorums(), st.data())
def test_coverage_means_that_no_ack_quorum_avoids_the_bookies_that_answered(
    sizes: Quorums, data: st.DataObject
) -> None:
    answered = data.draw(st.sets(st.integers(0, sizes.ensemble - 1)))
    avoidable = any(
        not set(quorum) & answered
        for start in range(sizes.ensemble)
        for quorum in combinations(sizes.write_set(start * sizes.stripe_entries), sizes.ack)
    )
    assert covered(sizes, answered) == (not avoidable)


@given(quorums(), st.data())
def test_a_ledger_is_writable_when_every_write_set_keeps_an_ack_quorum(
    sizes: Quorums, data: st.DataObject
) -> None:
    alive = data.draw(st.sets(st.integers(0, sizes.ensemble - 1)))
    expected = all(
        len(alive & set(sizes.write_set(start * sizes.stripe_entries))) >= sizes.ack
        for start in range(sizes.ensemble)
    )
    assert writable(sizes, alive) == expected


@given(st.integers(0, 2**63 - 1), quorums())
def test_write_sets_are_right_up_to_the_highest_id(entry_id: int, sizes: Quorums) -> None:
    write_set = sizes.write_set(entry_id)
    assert len(set(write_set)) == sizes.write
    assert all(0 <= index < sizes.ensemble for index in write_set)
    assert sizes.write_set(sizes.stripe_end(entry_id)) == write_set
    assert sizes.write_set(sizes.stripe_end(entry_id) + 1)[0] == (write_set[0] + 1) % sizes.ensemble


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_acknowledgements_move_the_mark_whatever_their_order_and_boundaries(
    sizes: list[int], rng: random.Random
) -> None:
    slot = Slot(0, "b0", -1)
    first = 0
    for size in sizes:
        slot.outstanding.append(Sent(first, first + size - 1, 0.0))
        first += size
    cuts = sorted({0, first, *(rng.randrange(first) for _ in range(3))})
    ranges = [(low, high - 1) for low, high in pairwise(cuts)]
    rng.shuffle(ranges)
    durable: set[int] = set()
    for low, high in ranges:
        slot.acknowledge(low, high)
        durable |= set(range(low, high + 1))
        assert set(range(slot.mark + 1)) <= durable
    assert slot.mark == first - 1 and not slot.outstanding
