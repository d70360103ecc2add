"""What errors say of their causes."""

from itertools import pairwise

from engine.errors import DiskFull, EngineError, NoSuchCluster, Unavailable, causes


def chained(*errors: BaseException) -> BaseException:
    """The first one, caused by the second, and so on."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def test_causes_are_an_error_and_what_caused_it_in_order() -> None:
    errors = [EngineError("a"), OSError("b"), DiskFull("c")]
    assert list(causes(chained(*errors))) == errors
    assert list(causes(None)) == []


def test_causes_that_form_a_circle_end() -> None:
    one, other = Unavailable("a"), NoSuchCluster("b")
    assert list(causes(chained(one, other, one))) == [one, other]
    itself = EngineError("c")
    assert list(causes(chained(itself, itself))) == [itself]
