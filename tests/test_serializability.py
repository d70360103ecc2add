"""The checker of isolation: it finds what is there, and nothing else."""

import random

import pytest

from tests.serializability import (
    READ_COMMITTED,
    SERIALIZABLE,
    SNAPSHOT,
    Append,
    Kind,
    Outcome,
    Read,
    Step,
    Transaction,
    check,
    find_circle,
)

BACK = Outcome.ROLLED_BACK


def did(name: str, *steps: Step, outcome: Outcome = Outcome.COMMITTED) -> Transaction:
    """A transaction."""
    return Transaction(name, steps, outcome)


def kinds(*history: Transaction, last: dict[str, tuple[int, ...]] | None = None) -> list[Kind]:
    """What a history shows."""
    return [anomaly.kind for anomaly in check(history, last)]


def test_one_after_the_other_shows_nothing() -> None:
    assert not kinds(
        did("A", Append("x", 1), Read("x", (1,))),
        did("B", Read("x", (1,)), Append("x", 2), Append("y", 1)),
        did("C", Read("x", (1, 2)), Read("y", (1,)), Read("z", ())),
        last={"x": (1, 2), "y": (1,)},
    )


def test_appends_in_turns_are_a_write_cycle() -> None:
    shown = check(
        [
            did("A", Append("x", 1), Append("y", 1)),
            did("B", Append("x", 2), Append("y", 2)),
            did("C", Read("x", (1, 2)), Read("y", (2, 1))),
        ]
    )
    assert shown[0].kind is Kind.G0
    assert str(shown[0]) == "G0: A -ww-> B -ww-> A"


def test_what_was_rolled_back_is_seen_by_nobody() -> None:
    aborted = did("A", Append("x", 1), outcome=BACK)
    assert kinds(aborted, did("B", Read("x", (1,)))) == [Kind.G1A]
    assert kinds(did("B", Read("x", (7,)))) == [Kind.G1A]
    assert not kinds(aborted, did("B", Read("x", ())))


def test_half_a_transaction_is_seen_by_nobody() -> None:
    writer = did("A", Append("x", 1), Append("x", 2))
    assert kinds(writer, did("B", Read("x", (1,)))) == [Kind.G1B]
    assert kinds(writer, did("B", Append("x", 3)), did("C", Read("x", (1, 3, 2))))[0] in (
        Kind.G0,
        Kind.G1B,
    )
    assert not kinds(writer, did("B", Read("x", (1, 2))))


def test_two_that_saw_each_other_are_circular() -> None:
    assert kinds(
        did("A", Append("x", 1), Read("y", (1,))), did("B", Append("y", 1), Read("x", (1,)))
    ) == [Kind.G1C]


def test_a_lost_update_and_a_skewed_read_are_circles_with_one_look_back() -> None:
    lost = (
        did("A", Append("x", 1)),
        did("B", Read("x", (1,)), Append("x", 2)),
        did("C", Read("x", (1,)), Append("x", 3)),
        did("D", Read("x", (1, 2, 3))),
    )
    assert kinds(*lost) == [Kind.G_SINGLE]
    assert check(lost)[0].words == "C -rw-> B -ww-> C"
    skewed = (
        did("A", Append("x", 1), Append("y", 1)),
        did("B", Read("x", ()), Read("y", (1,))),
        did("C", Read("x", (1,))),
    )
    assert kinds(*skewed) == [Kind.G_SINGLE]


def test_a_write_skew_is_allowed_to_snapshots_and_found() -> None:
    assert kinds(
        did("A", Read("x", ()), Append("y", 1)),
        did("B", Read("y", ()), Append("x", 1)),
        did("C", Read("x", (1,)), Read("y", (1,))),
    ) == [Kind.G2]
    assert Kind.G2 not in SNAPSHOT and Kind.G2 in SERIALIZABLE


def test_two_looks_back_that_do_not_meet_are_no_snapshots() -> None:
    """A long fork: two readers disagree about which of two writers came first."""
    assert kinds(
        did("A", Append("x", 1)),
        did("B", Append("y", 1)),
        did("C", Read("x", (1,)), Read("y", ())),
        did("D", Read("x", ()), Read("y", (1,))),
        did("E", Read("x", (1,)), Read("y", (1,))),
    ) == [Kind.G_NONADJACENT]


def test_lists_that_do_not_agree_are_told_and_nothing_is_built_on_them() -> None:
    writers = did("A", Append("x", 1)), did("B", Append("x", 2))
    assert kinds(*writers, did("C", Read("x", (1, 2))), did("D", Read("x", (2,)))) == [
        Kind.INCOMPATIBLE
    ]
    assert kinds(*writers, did("C", Read("x", (1, 2, 1)))) == [Kind.REPEATED]


def test_an_append_that_is_gone_in_the_end_is_lost() -> None:
    history = did("A", Append("x", 1)), did("B", Append("x", 2))
    assert kinds(*history, last={"x": (2,)}) == [Kind.LOST]
    assert not kinds(did("A", Append("x", 1), outcome=BACK), history[1], last={"x": (2,)})


def test_an_unknown_outcome_counts_if_somebody_saw_it() -> None:
    unknown = did("A", Append("x", 1), Append("y", 1), outcome=Outcome.UNKNOWN)
    assert not kinds(unknown, last={"x": (), "y": ()})
    assert not kinds(unknown, did("B", Read("x", (1,)), Read("y", (1,))))
    assert kinds(unknown, last={"x": (1,), "y": ()}) == [Kind.LOST]


def test_who_looks_after_the_end_of_another_sees_it() -> None:
    writer = Transaction("A", (Append("x", 1),), began=1.0, ended=2.0)
    late, early = ((Read("x", ()),), 3.0, 4.0), ((Read("x", ()),), 1.5, 4.0)
    rest = did("C", Read("x", (1,)))
    for (steps, began, ended), shown in ((late, [Kind.G_SINGLE]), (early, [])):
        reader = Transaction("B", steps, began=began, ended=ended)
        assert kinds(writer, reader, rest) == shown
    first = Transaction("B", (Append("x", 2),), began=3.0, ended=4.0)
    assert kinds(writer, first, did("C", Read("x", (2, 1)))) == [Kind.G1C]


def test_own_appends_are_seen() -> None:
    assert kinds(did("A", Append("x", 1), Read("x", ()))) == [Kind.OWN]
    assert not kinds(did("A", Append("x", 1), Read("x", (1,)), Append("x", 2)), last={"x": (1, 2)})
    assert Kind.OWN in READ_COMMITTED


def test_a_value_stands_once_in_a_history() -> None:
    with pytest.raises(AssertionError, match="twice"):
        kinds(did("A", Append("x", 1)), did("B", Append("x", 1)))


@pytest.mark.parametrize("seed", range(20))
def test_histories_of_one_at_a_time_show_nothing_and_torn_ones_show_something(seed: int) -> None:
    rng = random.Random(seed)
    lists: dict[str, tuple[int, ...]] = dict.fromkeys("abcd", ())
    history = []
    for number in range(300):
        steps: list[Step] = []
        for place in range(rng.randint(1, 5)):
            key = rng.choice("abcd")
            if rng.random() < 0.5:
                steps.append(Read(key, lists[key]))
            else:
                value = 10 * number + place
                lists[key] = (*lists[key], value)
                steps.append(Append(key, value))
        history.append(did(f"T{number}", *steps))
    assert not check(history, lists)
    # One that saw the first moment of one list and the last one of the others.
    late = did("late", Read("a", ()), *[Read(key, lists[key]) for key in "bcd"])
    assert [one.kind for one in check([*history, late], lists)] == [Kind.G_SINGLE]


def test_a_circle_is_found_where_there_is_one() -> None:
    assert find_circle({"a": ["b"], "b": ["c"], "c": []}) is None
    assert find_circle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c"]
    assert find_circle({"a": ["a"]}) == ["a"]
    long = {f"{n}": [f"{n + 1}"] for n in range(5_000)} | {"5000": ["0"]}
    found = find_circle(long)
    assert found is not None and len(found) == 5_001
