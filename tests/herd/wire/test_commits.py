"""Which texts are commits: their outcome is asked for when an answer gets lost."""

import pytest

from herd.wire.calling import commits


@pytest.mark.parametrize(
    "text",
    [
        "COMMIT",
        " commit work ; ",
        "END",
        "/* the last\none */ COMMIT",
        "-- so\nCOMMIT -- done",
        "COMMIT/**/TRANSACTION;;",
    ],
)
def test_a_commit_is_one_whatever_stands_around_it(text: str) -> None:
    assert commits(text)


@pytest.mark.parametrize(
    "text", ["COMMITS", "SELECT 'COMMIT'", "COMMIT; SELECT 1", "-- COMMIT", ""]
)
def test_what_is_no_commit_is_none(text: str) -> None:
    assert not commits(text)
