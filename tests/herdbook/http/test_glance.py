"""The store at a glance: what is summed over bookies, and what is said of each."""

from herdbook.http.cluster import (
    BookieCounts,
    BookieFacts,
    DiskFacts,
    counts_of,
    disks_of,
    full_disks,
)


def bookie(
    name: str, free: int | None = None, *, state: str = "writable", leaving: bool = False
) -> BookieFacts:
    """A bookie with a disk of its own of a hundred bytes."""
    total = None if free is None else 100
    place = ("barn:1", "", "barn", "", total, free, "", f"disk of {name}")
    return BookieFacts(name, state, leaving, 1, *place)


def test_a_full_disk_beside_an_empty_one_of_the_same_machine_is_warned_of() -> None:
    facts = [bookie("a", 3), bookie("b", 99), bookie("c", 10), bookie("d", 11), bookie("e")]
    assert full_disks(facts) == [
        "bookie a: its disk is 97 % full",
        "bookie c: its disk is 90 % full",
    ]
    assert disks_of(facts) == DiskFacts(400, 400 - 123)


def test_a_bookie_that_was_told_to_go_and_went_does_not_count_as_down() -> None:
    up = [bookie("a", 50), bookie("b", 0, state="read-only"), bookie("c", 50, leaving=True)]
    left = bookie("d", state="away", leaving=True)
    assert counts_of([*up, left]) == BookieCounts(total=3, up=3, read_only=1)
    lost = bookie("e", state="away")
    assert counts_of([*up, left, lost]) == BookieCounts(total=4, up=3, read_only=1)
