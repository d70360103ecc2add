"""The arithmetic of quorums, against a model that counts every entry's acknowledgements."""

import random
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.ledger.quorum import UNKNOWN, Quorums, absent, confirmed, covered, writable
from engine.ledger.slot import Sent, Slot


@st.composite
def quorums(draw: st.DrawFn) -> Quorums:
    ensemble = draw(st.integers(1, 6))
    write = draw(st.integers(1, ensemble))
    domains = st.lists(st.integers(UNKNOWN, 3), min_size=ensemble, max_size=ensemble).map(tuple)
    return Quorums(
        ensemble,
        write,
        draw(st.integers(1, write)),
        draw(st.integers(1, 5)),
        draw(st.just(()) | domains),
    )


def acknowledges(sizes: Quorums, indexes: Iterable[int]) -> bool:
    """Whether these are enough, and in two known domains if that is needed."""
    found = list(indexes)
    pairs = combinations([sizes.domains[index] for index in found] if sizes.domains else [], 2)
    apart = any(one != other and UNKNOWN not in (one, other) for one, other in pairs)
    return len(found) >= sizes.ack and (apart or not sizes.domains)


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
        holders = [index for index in sizes.write_set(entry_id) if marks[index] >= entry_id]
        if not acknowledges(sizes, holders):
            break
        expected = entry_id
    assert confirmed(sizes, -1, pushed, marks) == expected


def ack_quorums(sizes: Quorums, write_set: Sequence[int]) -> list[tuple[int, ...]]:
    """All sets of bookies of a write set that acknowledge an entry."""
    every = [combinations(write_set, count) for count in range(1, len(write_set) + 1)]
    return [found for count in every for found in count if acknowledges(sizes, found)]


@given(quorums(), st.data())
def test_coverage_means_that_no_ack_quorum_avoids_the_bookies_that_answered(
    sizes: Quorums, data: st.DataObject
) -> None:
    answered = data.draw(st.sets(st.integers(0, sizes.ensemble - 1)))
    avoidable = any(
        not set(quorum) & answered
        for start in range(sizes.ensemble)
        for quorum in ack_quorums(sizes, sizes.write_set(start * sizes.stripe_entries))
    )
    assert covered(sizes, answered) == (not avoidable)


@given(quorums(), st.data())
def test_an_entry_is_absent_when_every_ack_quorum_has_a_bookie_that_lacks_it(
    sizes: Quorums, data: st.DataObject
) -> None:
    entry_id = data.draw(st.integers(0, 40))
    lacking = data.draw(st.sets(st.sampled_from(sizes.write_set(entry_id))))
    quorums = ack_quorums(sizes, sizes.write_set(entry_id))
    assert absent(sizes, entry_id, lacking) == all(set(each) & lacking for each in quorums)


@given(quorums(), st.data())
def test_a_ledger_is_writable_when_every_write_set_keeps_an_ack_quorum(
    sizes: Quorums, data: st.DataObject
) -> None:
    alive = data.draw(st.sets(st.integers(0, sizes.ensemble - 1)))
    expected = all(
        acknowledges(sizes, alive & set(sizes.write_set(start * sizes.stripe_entries)))
        for start in range(sizes.ensemble)
    )
    assert writable(sizes, alive) == expected


@given(quorums())
def test_domains_that_are_all_different_change_nothing(sizes: Quorums) -> None:
    plain = sizes.with_domains(())
    different = plain.with_domains(tuple(range(sizes.ensemble)))
    assert different.domains == (() if sizes.ack > 1 else tuple(range(sizes.ensemble)))
    if sizes.ack > 1:
        full = plain._replace(domains=tuple(range(sizes.ensemble)))
        for start in range(sizes.ensemble):
            write_set = plain.write_set(start * plain.stripe_entries)
            assert ack_quorums(full, write_set) == ack_quorums(plain, write_set)


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
