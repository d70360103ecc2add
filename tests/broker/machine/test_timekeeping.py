"""A dedicated command sets the broker's time, and everything that depends on it follows."""

from broker import keys, reading
from broker.commands import (
    Begin,
    Commit,
    CorrectDue,
    Ended,
    ExpireTransactions,
    Fire,
    Outcome,
    Parent,
    Purge,
    Refusal,
    RestartWaits,
    Schedule,
    ScheduleSet,
    SetTime,
    Spec,
)
from broker.task import Backoff, ClockFacts, Status
from tests.broker.machine.driving import START_MS, Driver

DAY_MS = 86_400_000


def _facts(driver: Driver) -> ClockFacts:
    return reading.time_of(driver.rows)[1]


def test_after_the_time_is_set_back_the_new_time_applies() -> None:
    driver = Driver()
    driver.taken(Spec("a"))
    driver.now_ms += DAY_MS
    driver.taken(Spec("a"))
    assert driver.one(SetTime(START_MS + 5)) == 1
    driver.now_ms = START_MS + 10
    (task_id,) = driver.taken(Spec("a"))
    assert driver.task(task_id).created_ms == START_MS + 10
    assert _facts(driver) == ClockFacts(0, START_MS + DAY_MS)


def test_a_jump_that_nobody_confirms_is_remembered_until_it_is_settled_or_set_back() -> None:
    driver = Driver()
    driver.taken(Spec("a"))
    for days in (1, 2):
        driver.one(SetTime(START_MS + days * DAY_MS, doubtful=True))
        assert _facts(driver) == ClockFacts(START_MS, 0), "the first of them"
    driver.one(SetTime(START_MS + 2 * DAY_MS + 1))
    assert _facts(driver) == ClockFacts(0, 0)
    driver.one(SetTime(START_MS + 3 * DAY_MS, doubtful=True))
    driver.one(SetTime(START_MS + 1))
    assert _facts(driver) == ClockFacts(0, START_MS + 3 * DAY_MS)


def test_tasks_that_end_after_the_time_was_set_back_are_purged_on_time() -> None:
    driver = Driver()
    session = driver.connect().session
    first, second = driver.taken(*[Spec("a", retention_ms=1_000)] * 2)
    driver.now_ms += DAY_MS
    driver.run(session, first, Outcome.FINISHED)
    driver.one(Purge(driver.now_ms))
    driver.now_ms = START_MS + 10
    driver.one(SetTime(driver.now_ms))
    driver.run(session, second, Outcome.FINISHED)
    driver.now_ms += 1_000
    assert driver.one(Purge(driver.now_ms)) == 1
    assert reading.get_task(driver.rows, second) is None
    assert reading.get_task(driver.rows, first) is not None, "it ended a day later, as far as known"
    driver.now_ms += DAY_MS + 1_000
    assert driver.one(Purge(driver.now_ms)) == 1


def test_a_wait_starts_again_if_the_time_in_which_it_began_is_set_back() -> None:
    driver = Driver()
    session = driver.connect().session
    specs = [Spec("a", attempts_max=5, backoff=Backoff(700, jitter_percent=0))] * 2
    failed, ahead = driver.taken(*specs)
    (later,) = driver.taken(Spec("a", due_ms=START_MS + 2 * DAY_MS))
    driver.run(session, failed, Outcome.FAILED)
    driver.now_ms += DAY_MS
    driver.run(session, ahead, Outcome.FAILED)
    number = driver.one(Begin(driver.now_ms + 300, driver.now_ms))
    driver.now_ms = START_MS + 50
    driver.one(SetTime(driver.now_ms))
    before = {each: driver.task(each).due_ms for each in (failed, later)}
    restart = RestartWaits(driver.now_ms, [failed, ahead, later, 99], [number, 99])
    assert driver.one(restart) == 2
    assert driver.task(ahead).due_ms == driver.now_ms + 700
    assert driver.task(ahead).status is Status.DELAYED
    assert {each: driver.task(each).due_ms for each in (failed, later)} == before
    assert driver.one(restart) == 0, "once is enough"
    driver.now_ms += 300
    assert driver.one(ExpireTransactions(driver.now_ms)) == 1


def test_the_date_of_a_task_does_not_move_if_its_commit_was_at_a_time_that_is_set_back() -> None:
    driver = Driver()
    date_ms = START_MS + 2 * DAY_MS
    driver.now_ms += DAY_MS
    number = driver.one(Begin(driver.now_ms + 300, driver.now_ms))
    (committed,) = driver.taken(Spec("a", due_ms=date_ms), transaction=number)
    driver.one(Commit(number, driver.now_ms))
    (parent,) = driver.taken(Spec("a"))
    (released,) = driver.taken(Spec("a", due_ms=date_ms, parents=(Parent(parent),)))
    driver.run(driver.connect().session, parent, Outcome.FINISHED)
    driver.now_ms = START_MS + 50
    driver.one(SetTime(driver.now_ms))
    for task_id in (committed, released):
        assert driver.task(task_id).status is Status.DELAYED
    assert driver.one(RestartWaits(driver.now_ms, [committed, released])) == 0
    assert [driver.task(each).due_ms for each in (committed, released)] == [date_ms] * 2


def test_a_due_time_is_corrected_only_if_it_is_still_the_next_one() -> None:
    driver = Driver()
    schedule = Schedule("n", Spec("a"), interval_ms=100, next_due_ms=START_MS + DAY_MS)
    driver.one(ScheduleSet(schedule, "ann", driver.now_ms))
    assert driver.one(CorrectDue("n", START_MS, START_MS + 50, driver.now_ms)) == 0
    assert driver.one(CorrectDue("n", START_MS + DAY_MS, START_MS + 50, driver.now_ms)) == 1
    missing = driver.one(CorrectDue("x", 1, 2, driver.now_ms))
    assert isinstance(missing, Refusal) and missing.code == "unknown_schedule"
    driver.now_ms += 50
    fire = Fire("n", START_MS + 50, START_MS + 150, driver.now_ms)
    assert driver.one(fire) and not driver.one(fire)
    assert len(driver.all(keys.SCHEDULE)) == 1


def test_a_time_that_was_due_and_has_not_fired_counts_as_skipped_if_the_rhythm_changes() -> None:
    driver = Driver()
    for name, counted in (("old", False), ("new", True)):
        schedule = Schedule(name, Spec("a"), interval_ms=100, next_due_ms=START_MS + 100)
        driver.one(ScheduleSet(schedule, "ann", START_MS))
        again = Schedule(name, Spec("a"), interval_ms=70, next_due_ms=START_MS + 270)
        for _ in range(2):
            driver.one(ScheduleSet(again, "ann", START_MS + 200, count_due=counted))
    skipped = {each.name: each.skipped for each in reading.list_schedules(driver.rows)}
    assert skipped == {"new": 1, "old": 0}


def test_an_attempt_that_ends_after_the_time_was_set_back_waits_from_then() -> None:
    driver = Driver()
    driver.now_ms += DAY_MS
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("a", attempts_max=2, backoff=Backoff(500, jitter_percent=0)))
    (attempt,) = driver.assign(session, task_id)
    driver.now_ms = START_MS
    driver.one(SetTime(START_MS))
    assert driver.finish(session, Ended(task_id, attempt, Outcome.FAILED)) == [1]
    assert driver.task(task_id).due_ms == START_MS + 500
