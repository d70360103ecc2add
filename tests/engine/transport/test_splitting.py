"""Appends that are too big for one message."""

from hypothesis import given
from hypothesis import strategies as st

from engine.run import Run
from engine.transport.contract import AppendReply, Status
from engine.transport.splitting import ROW_BYTES, JoinedReply, split
from tests.engine.transport.bookie_contract import runs_of


def reply(status: Status, boot: int = 1) -> AppendReply:
    return AppendReply(status, 7, 0, 0, "a", boot)


@given(
    st.lists(st.integers(min_value=0, max_value=300), min_size=1, max_size=30),
    st.integers(min_value=1, max_value=2_000),
)
def test_every_run_is_in_one_part_in_order_and_parts_are_small(
    sizes: list[int], bytes_max: int
) -> None:
    runs = runs_of(7, 0, [[bytes(size)] for size in sizes])
    parts = [list(part) for part in split(runs, bytes_max)]
    assert [run for part in parts for run in part] == runs
    for part in parts:
        assert part
        assert len(part) == 1 or sum(map(_size_bytes, part)) <= bytes_max


def _size_bytes(run: Run) -> int:
    return run.size_bytes + ROW_BYTES


def test_the_whole_is_answered_once_after_the_last_part() -> None:
    answers: list[AppendReply] = []
    joined = JoinedReply(answers.append, 3, 5, 99)
    joined.add(reply(Status.OK))
    joined.add(reply(Status.OK))
    assert answers == []
    joined.add(reply(Status.OK, boot=4))
    assert answers == [AppendReply(Status.OK, 7, 5, 99, "a", 4)]


def test_the_first_failure_of_a_part_is_the_answer_of_the_whole() -> None:
    answers: list[AppendReply] = []
    joined = JoinedReply(answers.append, 3, 5, 99)
    for status in (Status.OK, Status.FENCED, Status.UNAVAILABLE):
        joined.add(reply(status))
    assert [answer.status for answer in answers] == [Status.FENCED]
