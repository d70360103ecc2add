"""The newest places over those of the index: disjoint, in order, the newer ones first."""

from hypothesis import given
from hypothesis import strategies as st

from engine.bookie.index import Place
from engine.bookie.reading import Gatherer
from engine.bookie.window import RecentRuns, merge
from tests.engine.bookie.stable import run_of


def places_of(held: set[int], segment: int) -> list[Place]:
    """One place for each stretch of ids."""
    found: list[Place] = []
    for entry_id in sorted(held):
        if found and found[-1].last == entry_id - 1:
            found[-1] = found[-1]._replace(last=entry_id)
        else:
            found.append(Place(7, entry_id, entry_id, segment, 0, 0, entry_id))
    return found


def by_id(places: list[Place]) -> dict[int, int]:
    return {
        entry_id: place.segment
        for place in places
        for entry_id in range(place.first, place.last + 1)
    }


def test_a_hole_of_the_window_far_behind_an_older_place_makes_no_place_of_its_own() -> None:
    """It once made one that ended before it began, and the bookie stopped at its next read."""
    older = places_of({0, 5, 6}, 3)
    newer = places_of({5, 9}, 11)
    merged = merge(newer, older)
    assert [(place.first, place.last, place.segment) for place in merged] == [
        (0, 0, 3),
        (5, 5, 11),
        (6, 6, 3),
        (9, 9, 11),
    ]


def test_what_newer_places_left_of_an_older_one_before_the_read_is_passed_over() -> None:
    """The index finds a record by its end; its first part may be all that is left of it."""
    older, newer = run_of(7, 0, 9), run_of(7, 4, 9)
    recent = RecentRuns(1 << 20)
    recent.add(1, 100, older)
    recent.add(2, 200, newer)
    places = merge([Place(7, 4, 9, 2, 200, 0, 4)], [Place(7, 0, 9, 1, 100, 0, 0)])
    assert [(place.first, place.last) for place in places] == [(0, 3), (4, 9)]
    found = Gatherer(None, 0, recent, 256, 0).gather(places, True, 4, 9, 1 << 20)
    assert [(run.first, run.last) for run in found.runs] == [(4, 9)]
    assert (found.missing, found.unknown) == (None, None)


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_every_id_comes_from_the_newest_place_that_has_it(older: set[int], newer: set[int]) -> None:
    merged = merge(places_of(newer, 11), places_of(older, 3))
    assert by_id(merged) == dict.fromkeys(sorted(older), 3) | dict.fromkeys(sorted(newer), 11)
    ends = [bound for place in merged for bound in (place.first, place.last)]
    assert ends == sorted(ends)
