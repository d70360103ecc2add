"""What every `Index` does: one suite, run over each implementation."""

from abc import ABC, abstractmethod

import pytest

from engine.bookie.index import Changes, Index, Place, Position


def place(ledger_id: int, first: int, last: int, offset: int = 0) -> Place:
    return Place(ledger_id, first, last, 1, offset, 100, first)


START = Position(1, 0)


def added(*places: Place, position: Position = START) -> Changes:
    return Changes((), places, (), position)


class IndexContract(ABC):
    """Subclass it, give `open`, and every rule is tested."""

    @pytest.fixture
    @abstractmethod
    def index(self) -> Index:
        """A new, empty index."""

    @abstractmethod
    def reopened(self, index: Index) -> Index:
        """The same index after a clean close."""

    def test_a_new_index_is_empty_and_stands_at_the_start(self, index: Index) -> None:
        assert index.position() == (0, 0)
        assert index.find(1, 0, 2**63 - 1) == [] and index.last(1) is None
        assert index.ledgers(-1, 10) == [] and index.fact(b"x") is None

    def test_a_range_is_found_by_any_id_that_it_overlaps(self, index: Index) -> None:
        places = [place(7, 0, 9), place(7, 10, 10), place(7, 20, 29)]
        index.apply(added(*places))
        assert index.find(7, 0, 100) == places
        assert index.find(7, 5, 5) == places[:1]
        assert index.find(7, 10, 19) == places[1:2]
        assert index.find(7, 11, 19) == []
        assert index.find(7, 9, 20) == places
        assert index.find(7, 30, 99) == [] and index.find(8, 0, 99) == []

    def test_ledgers_do_not_run_into_each_other(self, index: Index) -> None:
        index.apply(added(place(1, 0, 5), place(2, 3, 4), place(2**40, 0, 0)))
        assert index.find(1, 4, 2**63 - 1) == [place(1, 0, 5)]
        assert index.last(2) == place(2, 3, 4) and index.last(3) is None
        assert index.ledgers(-1, 10) == [1, 2, 2**40]
        assert index.ledgers(1, 1) == [2]

    def test_a_changed_range_replaces_the_one_it_names(self, index: Index) -> None:
        index.apply(added(place(1, 0, 9)))
        halves = (place(1, 0, 4, 50), place(1, 5, 9, 60))
        index.apply(Changes((place(1, 0, 9),), halves, (), Position(2, 7)))
        assert index.find(1, 0, 9) == list(halves)
        assert index.position() == (2, 7)

    def test_a_damaged_range_keeps_its_ids_and_names_no_segment(self, index: Index) -> None:
        damaged = Place(1, 0, 9, -1, 0, 0, 0)
        index.apply(added(damaged))
        assert index.find(1, 3, 3) == [damaged]

    def test_one_of_many_places_added_together_is_removed_alone(self, index: Index) -> None:
        places = [place(1, 2 * number, 2 * number + 1, number) for number in range(200)]
        index.apply(added(*places))
        gone = [places[number] for number in (0, 63, 64, 70, 71, 199)]
        index.apply(Changes(gone, (), (), START))
        left = [place for place in places if place not in gone]
        assert index.find(1, 0, 999) == left
        assert index.find(1, 126, 129) == [] and index.find(1, 139, 145) == [places[69], places[72]]
        assert index.last(1) == places[198]
        index.apply(Changes(left, gone, (), START))
        assert index.find(1, 0, 999) == gone

    def test_a_place_of_many_is_replaced_in_the_batch_that_removes_it(self, index: Index) -> None:
        places = [place(1, 4 * number, 4 * number + 3, number) for number in range(10)]
        index.apply(added(*places))
        for number in (0, 4, 9):
            halves = (
                place(1, 4 * number, 4 * number + 1, 50),
                place(1, 4 * number + 2, 4 * number + 3, 60),
            )
            index.apply(Changes((places[number],), halves, (), START))
            assert index.find(1, 4 * number, 4 * number + 3) == list(halves)
        assert len(index.find(1, 0, 39)) == 13

    def test_places_with_ids_left_out_between_them_keep_the_gap_open(self, index: Index) -> None:
        index.apply(added(place(1, 10, 19), place(1, 0, 4), place(1, 30, 39)))
        index.apply(added(place(1, 20, 29)))
        index.apply(added(place(1, 5, 9)))
        assert [found.first for found in index.find(1, 0, 99)] == [0, 5, 10, 20, 30]
        assert index.find(1, 6, 6) == [place(1, 5, 9)]
        assert index.find(1, 25, 31) == [place(1, 20, 29), place(1, 30, 39)]

    def test_a_removal_of_what_is_not_there_changes_nothing(self, index: Index) -> None:
        index.apply(added(place(1, 0, 9), place(3, 0, 9)))
        index.apply(Changes((place(1, 10, 19), place(1, 0, 5), place(2, 0, 9)), (), (), START))
        assert index.find(1, 0, 99) == [place(1, 0, 9)] and index.last(3) == place(3, 0, 9)

    def test_facts_are_found_by_prefix_in_order(self, index: Index) -> None:
        facts = [(b"a/1", b"x"), (b"a/2", b"y"), (b"b/1", b"z")]
        index.apply(Changes((), (), facts, Position(1, 0)))
        assert index.facts(b"a/", b"", 10) == facts[:2]
        assert index.facts(b"a/", b"a/1", 10) == facts[1:2]
        assert index.facts(b"a/", b"", 1) == facts[:1]
        index.apply(Changes((), (), [(b"a/1", None)], Position(1, 0)))
        assert index.fact(b"a/1") is None and index.fact(b"a/2") == b"y"

    def test_a_search_gives_at_most_1024_places(self, index: Index) -> None:
        index.apply(added(*(place(1, entry_id, entry_id) for entry_id in range(2_000))))
        assert len(index.find(1, 0, 1_999)) == 1_024
        assert len(index.find(1, 0, 1_040)) == 1_024

    def test_a_search_ends_with_the_bytes_that_are_enough(self, index: Index) -> None:
        places = [place(1, entry_id, entry_id) for entry_id in range(200)]
        index.apply(added(*places[:100]))
        index.apply(added(*places[100:]))
        assert index.find(1, 50, 199, 1) == places[50:51]
        assert index.find(1, 50, 199, 200) == places[50:52]
        assert index.find(1, 50, 199, 6_001) == places[50:111]
        assert index.find(1, 150, 199, 9_999_999) == places[150:]

    def test_a_clean_close_keeps_everything(self, index: Index) -> None:
        index.apply(Changes((), [place(1, 0, 9)], [(b"k", b"v")], Position(3, 4)))
        again = self.reopened(index)
        assert again.find(1, 0, 9) == [place(1, 0, 9)]
        assert again.fact(b"k") == b"v" and again.position() == (3, 4)
