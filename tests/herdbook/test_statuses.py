"""The exit status of a command that an error ended."""

from engine.errors import NoSuchCluster, Unavailable
from herdbook.cli.statuses import status_of


def test_a_store_that_is_missing_is_found_behind_other_errors() -> None:
    error = Unavailable("not reached")
    error.__cause__ = NoSuchCluster("nothing there")
    assert status_of(error) == 2
    assert status_of(Unavailable("not reached")) == 1


def test_a_circle_of_causes_ends_with_a_status() -> None:
    one, other = Unavailable("a"), Unavailable("b")
    one.__cause__, other.__cause__ = other, one
    assert status_of(one) == 1
