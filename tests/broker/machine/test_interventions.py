"""What people do to tasks, and what the time does to those that wait."""

import pytest

from broker import keys
from broker.commands import (
    Answer,
    Cancel,
    Delete,
    Due,
    Ended,
    Expire,
    Outcome,
    Parent,
    PoolDelete,
    PoolPut,
    Refusal,
    Retry,
    Spec,
)
from broker.task import EventKind, Mode, Status
from tests.broker.machine.driving import Driver


@pytest.mark.parametrize("status", [Status.WAITING, Status.DELAYED, Status.BLOCKED])
def test_what_has_not_begun_is_cancelled_at_once(status: Status) -> None:
    driver = Driver()
    session = driver.connect().session
    (parent,) = driver.taken(Spec("parent"))
    (task_id,) = driver.taken(
        Spec(
            "a",
            slot="s",
            due_ms=driver.now_ms + 9 if status is Status.DELAYED else 0,
            parents=(Parent(parent),) if status is Status.BLOCKED else (),
        )
    )
    assert driver.status(task_id) is status
    assert driver.numbers(Cancel([task_id], "ann", driver.now_ms)) == [Answer.DONE]
    assert driver.status(task_id) is Status.CANCELLED
    assert driver.task(task_id).events[-1][1:4] == (EventKind.CANCELLED, 0, "ann")
    assert driver.assign(session, task_id) == [0]
    assert driver.taken(Spec("b", slot="s"))
    again = driver.numbers(Cancel([task_id, 99], "ann", driver.now_ms))
    assert again == [Answer.REPEATED, Answer.UNKNOWN]


def test_a_dead_letter_begins_anew_with_its_history() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("a", slot="s", payload=bytes(300)))
    driver.run(session, task_id, Outcome.FAILED, error="disk full")
    assert driver.task(task_id).dead
    driver.now_ms += 5
    assert driver.items(Retry([task_id, 99], "ann", driver.now_ms)) == [
        Answer.DONE, Answer.UNKNOWN,
    ]  # fmt: skip
    task = driver.task(task_id)
    assert (task.status, task.dead, task.error, task.attempts_spent) == (
        Status.WAITING, False, "", 0,
    )  # fmt: skip
    assert driver.submit(Spec("b", slot="s"))[0].task_id == task_id
    assert driver.items(Retry([task_id], "ann", driver.now_ms)) == [Answer.NOT_NOW]
    assert driver.assign(session, task_id) == [2], "the token grows"
    late = Ended(task_id, 1, Outcome.FAILED, error="disk full")
    assert driver.finish(session, late) == [Answer.STALE]
    driver.finish(session, Ended(task_id, 2, Outcome.FINISHED))
    kinds = [event[1] for event in driver.task(task_id).events]
    assert kinds == [
        EventKind.ASSIGNED,
        EventKind.FAILED,
        EventKind.RETRIED,
        EventKind.ASSIGNED,
        EventKind.FINISHED,
    ]
    assert driver.items(Retry([task_id], "ann", driver.now_ms)) == [Answer.NOT_NOW]


def test_a_retry_takes_slot_and_key_again_or_is_refused() -> None:
    driver = Driver()
    ids = driver.taken(Spec("a", slot="s"), Spec("b", unique_key="u"))
    driver.numbers(Cancel(ids, "ann", driver.now_ms))
    new = driver.taken(Spec("a", slot="s"), Spec("b", unique_key="u"))
    answers = driver.items(Retry(ids, "ann", driver.now_ms))
    assert [answer.code for answer in answers if isinstance(answer, Refusal)] == [
        "slot_busy", "duplicate",
    ]  # fmt: skip
    driver.numbers(Cancel(new, "ann", driver.now_ms))
    assert driver.items(Retry(ids, "ann", driver.now_ms)) == [Answer.DONE] * 2


def test_word_of_the_attempt_before_a_retry_is_stale() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("a", mode=Mode.AT_MOST_ONCE))
    driver.assign(session, task_id)
    driver.lose(session, task_id)
    assert driver.status(task_id) is Status.LOST
    driver.items(Retry([task_id], "ann", driver.now_ms))
    assert driver.finish(session, Ended(task_id, 1, Outcome.FINISHED)) == [Answer.STALE]
    assert driver.status(task_id) is Status.WAITING


def test_a_retry_of_an_overdue_task_has_no_deadline_any_more() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("a", deadline_ms=driver.now_ms + 5))
    driver.now_ms += 5
    assert driver.numbers(Expire([task_id], driver.now_ms)) == [Answer.DONE]
    driver.items(Retry([task_id], "ann", driver.now_ms))
    assert driver.assign(session, task_id) == [1]


def test_a_deleted_task_leaves_nothing() -> None:
    driver = Driver()
    session = driver.connect().session
    task_id, running = driver.taken(Spec("a", payload=bytes(300)), Spec("b"))
    driver.assign(session, running)
    driver.run(session, task_id, Outcome.FINISHED, result=bytes(300))
    answers = driver.numbers(Delete([task_id, running, 99], driver.now_ms))
    assert answers == [Answer.DONE, Answer.NOT_NOW, Answer.UNKNOWN]
    for kind in (keys.FINAL, keys.PAYLOAD, keys.RESULT):
        assert driver.rows.get(keys.numbered(kind, task_id)) is None


def test_what_is_due_waits_and_what_is_overdue_ends() -> None:
    driver = Driver()
    now = driver.now_ms
    due, both, later, waiting = driver.taken(
        Spec("a", due_ms=now + 5),
        Spec("b", due_ms=now + 5, deadline_ms=now + 8),
        Spec("c", due_ms=now + 50),
        Spec("d", deadline_ms=now + 9),
    )
    driver.now_ms += 8
    answers = driver.numbers(Due([due, both, later, waiting, 99], driver.now_ms))
    assert answers == [
        Answer.DONE, Answer.DONE, Answer.NOT_NOW, Answer.NOT_NOW, Answer.UNKNOWN,
    ]  # fmt: skip
    assert driver.status(due) is Status.WAITING
    assert (driver.status(both), driver.task(both).error) == (Status.ERROR, "deadline_expired")
    assert driver.numbers(Due([both], driver.now_ms)) == [Answer.REPEATED]
    assert driver.numbers(Expire([waiting, both], driver.now_ms)) == [
        Answer.NOT_NOW, Answer.REPEATED,
    ]  # fmt: skip
    driver.now_ms += 1
    assert driver.numbers(Expire([waiting], driver.now_ms)) == [Answer.DONE]


def test_a_task_that_was_overdue_never_comes_back_by_its_start() -> None:
    driver = Driver()
    now = driver.now_ms
    (task_id,) = driver.taken(Spec("a", due_ms=now + 10, deadline_ms=now + 20))
    driver.now_ms += 30
    assert driver.numbers(Expire([task_id], driver.now_ms)) == [Answer.DONE]
    assert driver.numbers(Due([task_id], driver.now_ms)) == [Answer.REPEATED]
    assert driver.status(task_id) is Status.ERROR


def put(driver: Driver, name: str, part: int = 0, parts: int = 1, expires_ms: int = 0) -> object:
    """Store a part of a code pool."""
    content = b"%d" % part
    sent = PoolPut(name, part, parts, content, b"digest", expires_ms, "ann", driver.now_ms)
    return driver.one(sent)


def test_a_code_pool_is_known_when_it_is_whole_and_stays_while_it_is_needed() -> None:
    driver = Driver()
    session = driver.connect().session
    wanting = Spec("a", codepool="code")
    assert driver.submit(wanting)[0].code == "unknown_code_pool"
    assert put(driver, "code", 0, 2) == 1
    assert driver.submit(wanting)[0].code == "unknown_code_pool"
    skipped = put(driver, "other", 1, 2)
    assert isinstance(skipped, Refusal) and skipped.code == "not_in_state"
    assert put(driver, "code", 1, 2) == 1
    (task_id,) = driver.taken(wanting)
    needed = driver.one(PoolDelete("code", driver.now_ms))
    assert isinstance(needed, Refusal) and needed.code == "not_in_state"
    driver.run(session, task_id, Outcome.FAILED)
    driver.items(Retry([task_id], "ann", driver.now_ms))
    assert isinstance(driver.one(PoolDelete("code", driver.now_ms)), Refusal)
    driver.numbers(Cancel([task_id], "ann", driver.now_ms))
    assert driver.one(PoolDelete("code", driver.now_ms)) == 1
    assert not driver.all(keys.POOL) and not driver.all(keys.POOL_PART)
    gone = driver.items(Retry([task_id], "ann", driver.now_ms))[0]
    assert isinstance(gone, Refusal) and gone.code == "unknown_code_pool"


def test_a_code_pool_is_not_replaced_by_other_code() -> None:
    driver = Driver()
    put(driver, "code")
    other = PoolPut("code", 0, 1, b"other", b"another", 0, "ann", driver.now_ms)
    refusal = driver.one(other)
    assert isinstance(refusal, Refusal) and refusal.code == "invalid_setting"
    assert put(driver, "code", expires_ms=driver.now_ms + 50) == 1
    driver.now_ms += 50
    assert driver.submit(Spec("a", codepool="code"))[0].code == "unknown_code_pool"
