"""Errors of the database: one tree, each with a code, the same after a way between processes."""

import pickle
import re
from collections.abc import Iterator

import pytest

from herd import errors


def tree(root: type[errors.Error] = errors.Error) -> Iterator[type[errors.Error]]:
    """A class and all below it that the package has."""
    if root.__module__ == errors.__name__:
        yield root
    for child in root.__subclasses__():
        yield from tree(child)


CLASSES = sorted(set(tree()), key=lambda one: one.__name__)


@pytest.mark.parametrize("one", CLASSES, ids=lambda one: one.__name__)
def test_every_error_has_an_sqlstate_and_says_what_to_do(one: type[errors.Error]) -> None:
    assert re.fullmatch(r"[0-9A-Z]{5}", one.code)
    assert one.__doc__ is not None and one.__doc__.count(".") >= 1


@pytest.mark.parametrize("one", CLASSES, ids=lambda one: one.__name__)
def test_an_error_is_the_same_after_a_way_between_processes(one: type[errors.Error]) -> None:
    error = one("it is so", hint="do that", place=7)
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is one
    assert (other.message, other.hint, other.place) == ("it is so", "do that", 7)
    assert str(other) == f"it is so (at character 8; do that) [{one.code}]"


def test_what_may_succeed_when_it_is_done_again_is_told_so() -> None:
    retryable = {one for one in CLASSES if one.retryable}
    assert retryable >= {errors.Deadlock, errors.LockTimeout, errors.SerializationFailure}
    assert retryable >= {errors.LeaderUnavailable, errors.TransactionEnded}
    assert all(issubclass(one, errors.OperationalError) for one in retryable)
    assert not errors.CommitUnknown.retryable, "it may have happened"
