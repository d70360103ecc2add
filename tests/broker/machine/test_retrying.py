"""Attempts that end without a result: retries, dead letters, lost workers, at most once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.commands import Answer, Cancel, Due, Ended, Forget, Outcome, Running, Spec
from broker.keys import WORKER
from broker.retrying import mixed, wait_ms
from broker.task import Backoff, EventKind, Mode, SessionState, Status, decode_worker
from tests.broker.machine.driving import Driver

ONCE = Mode.AT_MOST_ONCE
BACKOFF = Backoff(1_000, 200, 60_000, 50)


@given(
    st.builds(
        Backoff,
        st.integers(0, 2**53),
        st.integers(100, 10_000),
        st.integers(0, 2**53),
        st.integers(0, 100),
    ),
    st.integers(1, 2**31),
    st.integers(0, 2**64 - 1),
)
def test_a_wait_is_bounded_whatever_was_asked(backoff: Backoff, spent: int, drawn: int) -> None:
    full = wait_ms(backoff, spent, 0)
    wait = wait_ms(backoff, spent, drawn)
    assert 0 <= full - full * backoff.jitter_percent // 100 <= wait <= full <= backoff.most_ms


def test_one_drawn_number_gives_every_task_of_a_command_its_own_wait() -> None:
    waits = {wait_ms(BACKOFF, 5, mixed(77, task_id, 1)) for task_id in range(100)}
    assert len(waits) > 90
    assert mixed(77, 5, 1) != mixed(77, 5, 2) != mixed(78, 5, 2)


def test_a_failed_task_waits_longer_each_time_and_is_buried_in_the_end() -> None:
    driver = Driver()
    session = driver.connect().session
    backoff = Backoff(1_000, 300, 60_000, 0)
    (task_id,) = driver.taken(Spec("send", attempts_max=3, backoff=backoff))
    for wait in (1_000, 3_000):
        assert driver.run(session, task_id, Outcome.FAILED, error="no luck") == Answer.DONE
        task = driver.task(task_id)
        assert (task.status, task.due_ms) == (Status.DELAYED, driver.now_ms + wait)
        assert driver.assign(session, task_id) == [0]
        driver.now_ms += wait - 1
        assert driver.numbers(Due([task_id], driver.now_ms)) == [Answer.NOT_NOW]
        driver.now_ms += 1
        assert driver.numbers(Due([task_id], driver.now_ms)) == [Answer.DONE]
    driver.run(session, task_id, Outcome.FAILED, error="no luck")
    task = driver.task(task_id)
    assert (task.status, task.dead, task.error, task.attempt) == (
        Status.ERROR, True, "no luck", 3,
    )  # fmt: skip


def test_the_worker_may_say_when_to_try_again_or_that_it_is_no_use() -> None:
    driver = Driver()
    session = driver.connect().session
    first, second = driver.taken(Spec("a", attempts_max=0), Spec("b", attempts_max=0))
    driver.run(session, first, Outcome.FAILED, retry_after_ms=12_345)
    assert driver.task(first).due_ms == driver.now_ms + 12_345
    driver.run(session, second, Outcome.FAILED, no_retry=True)
    assert driver.status(second) is Status.ERROR and driver.task(second).dead


def test_a_retry_that_would_miss_the_deadline_is_not_waited_for() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("a", attempts_max=0, deadline_ms=driver.now_ms + 5_000))
    driver.run(session, task_id, Outcome.FAILED, error="down", retry_after_ms=5_000)
    assert (driver.status(task_id), driver.task(task_id).error) == (Status.ERROR, "down")


@pytest.mark.parametrize(
    ("mode", "outcome", "status", "spent"),
    [
        (Mode.AT_LEAST_ONCE, Outcome.FAILED, Status.DELAYED, 1),
        (Mode.AT_LEAST_ONCE, Outcome.HANDED_BACK, Status.WAITING, 0),
        (Mode.AT_LEAST_ONCE, Outcome.INTERRUPTED, Status.WAITING, 0),
        (ONCE, Outcome.FAILED, Status.ERROR, 1),
        # No code of it ran, so that it begins now is still the first time.
        (ONCE, Outcome.HANDED_BACK, Status.WAITING, 0),
        (ONCE, Outcome.INTERRUPTED, Status.LOST, 0),
    ],
)
def test_what_follows_an_end_without_a_result(
    mode: Mode, outcome: Outcome, status: Status, spent: int
) -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("a", mode=mode, attempts_max=5))
    driver.run(session, task_id, outcome)
    assert (driver.status(task_id), driver.task(task_id).attempts_spent) == (status, spent)
    again = Ended(task_id, 1, outcome)
    assert driver.finish(session, again) == [Answer.REPEATED]


def test_tasks_of_a_lost_worker_go_on_elsewhere_and_its_late_word_is_stale() -> None:
    driver = Driver()
    session = driver.connect().session
    other = driver.connect("other").session
    again, spent, once = driver.taken(
        Spec("a", attempts_max=0, backoff=Backoff(0)), Spec("b"), Spec("c", mode=ONCE)
    )
    driver.assign(session, again, spent, once)
    assert driver.lose(session, again, spent, once) == 3
    assert [driver.status(one) for one in (again, spent, once)] == [
        Status.WAITING, Status.ERROR, Status.LOST,
    ]  # fmt: skip
    assert driver.task(spent).error == "worker w died"
    for task_id in (again, spent, once):
        late = Ended(task_id, 1, Outcome.FINISHED, b"late")
        assert driver.finish(session, late) == [Answer.STALE]
    assert driver.assign(other, again, worker_id="other") == [2]
    assert driver.lose(session, again) == 0, "it is another one's now"


def test_a_session_that_was_lost_may_be_told_of_more_tasks_later() -> None:
    driver = Driver()
    session = driver.connect().session
    one, two = driver.taken(Spec("a", attempts_max=0), Spec("b", attempts_max=0))
    driver.assign(session, one, two)
    assert driver.lose(session, one) == 1
    assert driver.status(two) is Status.RUNNING
    assert driver.lose(session, one, two) == 1
    assert driver.status(two) is Status.DELAYED


def test_a_reconnected_worker_keeps_what_it_lists_and_nothing_else() -> None:
    driver = Driver()
    session = driver.connect().session
    kept, dropped, foreign = driver.taken(*[Spec("a", attempts_max=0)] * 3)
    driver.assign(session, kept, dropped)
    other = driver.connect("other").session
    driver.assign(other, foreign, worker_id="other")
    listed = [Running(kept, 1), Running(kept, 1), Running(foreign, 1), Running(99, 1)]
    opened = driver.connect(running=listed, held=[kept, dropped, foreign])
    assert opened.session > session and opened.keep == [Running(kept, 1)]
    assert driver.task(kept).session == opened.session
    assert [driver.status(one) for one in (kept, dropped, foreign)] == [
        Status.RUNNING, Status.WAITING, Status.RUNNING,
    ]  # fmt: skip
    assert driver.finish(session, Ended(kept, 1, Outcome.FINISHED)) == [Answer.STALE]
    assert driver.finish(opened.session, Ended(kept, 1, Outcome.FINISHED)) == [Answer.DONE]


def test_a_new_process_of_a_worker_has_nothing_of_the_old_ones() -> None:
    driver = Driver()
    session = driver.connect().session
    again, once = driver.taken(Spec("a", attempts_max=0), Spec("b", mode=ONCE))
    driver.assign(session, again, once)
    opened = driver.connect(
        process_id="another", running=[Running(again, 1), Running(once, 1)], held=[again, once]
    )
    assert opened.keep == []
    assert (driver.status(again), driver.status(once)) == (Status.DELAYED, Status.LOST)


def test_an_attempt_of_another_number_is_not_kept() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("a", attempts_max=0))
    driver.run(session, task_id, Outcome.HANDED_BACK)
    assert driver.assign(session, task_id) == [2]
    assert driver.connect(running=[Running(task_id, 1)], held=[task_id]).keep == []
    assert driver.status(task_id) is Status.WAITING


def test_a_process_that_comes_back_without_a_task_costs_it_no_attempt() -> None:
    driver = Driver()
    session = driver.connect().session
    again, once = driver.taken(Spec("a", attempts_max=1), Spec("b", mode=ONCE))
    driver.assign(session, again, once)
    opened = driver.connect(held=[again, once])
    assert (driver.status(again), driver.task(again).attempts_spent) == (Status.WAITING, 0)
    # Whether it began is not known for certain, and at most once means just that.
    assert driver.status(once) is Status.LOST
    late = Ended(again, 1, Outcome.FINISHED)
    assert driver.finish(opened.session, late) == [Answer.STALE]
    assert driver.assign(opened.session, again) == [2]


def test_a_task_asked_to_end_is_cancelled_whatever_its_worker_says_but_done() -> None:
    for outcome, status in [
        (Outcome.FINISHED, Status.FINISHED),
        (Outcome.FAILED, Status.CANCELLED),
        (Outcome.INTERRUPTED, Status.CANCELLED),
        (Outcome.HANDED_BACK, Status.CANCELLED),
    ]:
        driver = Driver()
        session = driver.connect().session
        (task_id,) = driver.taken(Spec("a", attempts_max=0))
        driver.assign(session, task_id)
        sent = Cancel([task_id], "ann", driver.now_ms)
        assert driver.numbers(sent) == driver.numbers(sent) == [Answer.ASKED]
        driver.finish(session, Ended(task_id, 1, outcome))
        assert driver.status(task_id) is status
        asked = [event for event in driver.task(task_id).events if event[1] == 10]
        assert len(asked) == 1 and asked[0][3] == "ann"


def test_a_task_asked_to_end_whose_worker_dies_is_cancelled() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("a", attempts_max=0))
    driver.assign(session, task_id)
    driver.send(Cancel([task_id], "ann", driver.now_ms))
    driver.lose(session, task_id)
    assert driver.status(task_id) is Status.CANCELLED


def test_a_running_task_that_is_ended_at_its_deadline_is_an_error() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("a", attempts_max=0, deadline_ms=driver.now_ms + 10))
    driver.assign(session, task_id)
    driver.now_ms += 10
    driver.finish(session, Ended(task_id, 1, Outcome.INTERRUPTED))
    assert (driver.status(task_id), driver.task(task_id).error) == (
        Status.ERROR, "deadline_expired",
    )  # fmt: skip


def test_a_worker_that_left_is_known_until_it_is_forgotten() -> None:
    driver = Driver()
    session = driver.connect().session
    driver.connect("other")
    driver.lose(session, left=True)
    found = [decode_worker(row) for _, row in driver.all(WORKER)]
    assert [worker.state for worker in found] == [SessionState.CONNECTED, SessionState.LEFT]
    assert driver.one(Forget(["w", "other", "nobody"], driver.now_ms)) == 1
    assert len(driver.all(WORKER)) == 1
    kept = driver.connect().session
    assert kept > session, "numbers of sessions grow also past a worker's row"


def test_the_history_tells_why_each_attempt_ended() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("a", attempts_max=0, backoff=Backoff(0)))
    driver.run(session, task_id, Outcome.FAILED, error="first")
    driver.run(session, task_id, Outcome.INTERRUPTED, error="moved")
    driver.run(session, task_id, Outcome.FINISHED)
    assert [(event[1], event[2], event[4]) for event in driver.task(task_id).events] == [
        (EventKind.ASSIGNED, 1, ""),
        (EventKind.FAILED, 1, "first"),
        (EventKind.ASSIGNED, 2, ""),
        (EventKind.INTERRUPTED, 2, "moved"),
        (EventKind.ASSIGNED, 3, ""),
        (EventKind.FINISHED, 3, ""),
    ]
