"""Settings, schedules, what is purged, and what can be read of it all."""

import msgspec
import pytest

from broker import keys, pools, reading
from broker.applying import ScheduleChanged, SettingChanged
from broker.commands import (
    Begin,
    Cancel,
    Ended,
    Fire,
    Outcome,
    Parent,
    PoolPut,
    Purge,
    Refusal,
    Retry,
    Schedule,
    ScheduleDelete,
    SchedulePause,
    ScheduleSet,
    Set,
    Settle,
    Spec,
    decode_schedule,
)
from broker.errors import PayloadMissing
from broker.reading import Tally, TaskFilter
from broker.task import Mode, Status
from engine.log.position import Position
from tests.broker.machine.driving import START_MS, Driver

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


def test_a_setting_is_kept_with_who_changed_it() -> None:
    driver = Driver()
    for name in ("db", "net"):
        assert driver.one(Set("limit", name, b"5", "ann", driver.now_ms)) == 1
    assert driver.one(Set("limit", "db", b"5", "bob", driver.now_ms)) == 0
    assert driver.one(Set("limits", "db", b"7", "bob", driver.now_ms)) == 1
    found = reading.list_settings(driver.rows, "limit")
    assert [(kind, name, one.value, one.by) for kind, name, one in found] == [
        ("limit", "db", b"5", "ann"),
        ("limit", "net", b"5", "ann"),
    ]
    assert driver.one(Set("limit", "db", None, "bob", driver.now_ms)) == 1
    assert driver.one(Set("limit", "db", None, "bob", driver.now_ms)) == 0
    every = reading.list_settings(driver.rows)
    assert [(kind, name) for kind, name, _ in every] == [("limit", "net"), ("limits", "db")]
    assert len(reading.list_settings(driver.rows, above=("limit", "net"))) == 1
    told = [change for change in driver.changes if isinstance(change, SettingChanged)]
    assert [change.value for change in told] == [b"5", b"5", b"7", None]


def nightly(**more: object) -> Schedule:
    """A schedule that is due at 2,000,000."""
    spec = Spec("clean", "acme", slot="nightly")
    return msgspec.structs.replace(
        Schedule("nightly", spec, interval_ms=1_000, next_due_ms=2_000_000), **more
    )


def test_a_due_time_fires_once_whoever_sends_it() -> None:
    driver = Driver()
    session = driver.connect().session
    assert driver.one(ScheduleSet(nightly(), "ann", driver.now_ms)) == 1
    driver.now_ms = 2_000_000
    fire = Fire("nightly", 2_000_000, 2_001_000, driver.now_ms)
    assert driver.one(fire) == 1
    assert driver.one(fire) == 0
    assert driver.task(1).submitter == "schedule nightly" and driver.task(1).tenant == "acme"
    # The first one still holds the slot: the schedule goes on nevertheless.
    busy = driver.one(Fire("nightly", 2_001_000, 2_005_000, driver.now_ms, skipped=3))
    assert isinstance(busy, Refusal) and busy.code == "slot_busy"
    driver.run(session, 1, Outcome.FINISHED)
    assert driver.one(Fire("nightly", 2_005_000, 2_006_000, driver.now_ms)) == 2
    (found,) = reading.list_schedules(driver.rows)
    assert (found.fired, found.refused, found.skipped, found.last_task, found.next_due_ms) == (
        2, 1, 3, 2, 2_006_000,
    )  # fmt: skip


def test_a_schedule_that_is_declared_again_and_again_is_not_put_off() -> None:
    driver = Driver()
    for number in range(3):
        declared = nightly(next_due_ms=2_000_000 + number * 600)
        driver.one(ScheduleSet(declared, "ann", driver.now_ms))
    driver.one(SchedulePause("nightly", True, 2_000_000, "bob", driver.now_ms))
    driver.one(ScheduleSet(nightly(next_due_ms=2_009_000), "ann", driver.now_ms))
    (found,) = reading.list_schedules(driver.rows)
    assert (found.next_due_ms, found.paused) == (2_000_000, True)
    changed = nightly(interval_ms=5_000, next_due_ms=2_009_000)
    driver.one(ScheduleSet(changed, "ann", driver.now_ms))
    (found,) = reading.list_schedules(driver.rows)
    assert (found.next_due_ms, found.paused) == (2_009_000, True)


def test_what_was_missed_may_be_skipped_but_only_once() -> None:
    driver = Driver()
    driver.one(ScheduleSet(nightly(), "ann", driver.now_ms))
    skip = Fire("nightly", 2_000_000, 2_009_000, driver.now_ms, skipped=9, skip=True)
    assert driver.one(skip) == driver.one(skip) == 0
    (found,) = reading.list_schedules(driver.rows)
    assert (found.fired, found.skipped, found.next_due_ms) == (0, 9, 2_009_000)
    assert not driver.all(keys.ACTIVE)


def test_a_paused_schedule_does_not_fire_and_a_changed_one_keeps_its_counts() -> None:
    driver = Driver()
    driver.one(ScheduleSet(nightly(), "ann", driver.now_ms))
    driver.one(Fire("nightly", 2_000_000, 2_001_000, driver.now_ms))
    assert driver.one(SchedulePause("nightly", True, 2_001_000, "bob", driver.now_ms)) == 1
    assert driver.one(Fire("nightly", 2_001_000, 2_002_000, driver.now_ms)) == 0
    driver.one(ScheduleSet(nightly(next_due_ms=3_000_000, fired=99), "eve", driver.now_ms))
    (found,) = reading.list_schedules(driver.rows)
    assert (found.fired, found.last_due_ms, found.by) == (1, 2_000_000, "eve")
    assert driver.one(ScheduleDelete("nightly", driver.now_ms)) == 1
    for command in (
        ScheduleDelete("nightly", driver.now_ms),
        SchedulePause("nightly", False, 0, "bob", driver.now_ms),
        Fire("nightly", 3_000_000, 3_001_000, driver.now_ms),
    ):
        assert driver.one(command).code == "unknown_schedule"
    last = [change for change in driver.changes if isinstance(change, ScheduleChanged)][-1]
    assert last.schedule is None


def test_times_of_a_scheduled_task_count_from_when_it_fires() -> None:
    driver = Driver()
    spec = Spec("clean", due_ms=50, deadline_ms=80)
    driver.one(ScheduleSet(nightly(spec=spec), "ann", driver.now_ms))
    driver.now_ms = 2_000_700
    driver.one(Fire("nightly", 2_000_000, 2_001_000, driver.now_ms))
    task = driver.task(1)
    assert (task.status, task.due_ms, task.deadline_ms) == (
        Status.DELAYED, 2_000_750, 2_000_780,
    )  # fmt: skip


@pytest.mark.parametrize(
    "schedule",
    [
        nightly(cron="* * * * *"),
        nightly(interval_ms=0),
        nightly(spec=Spec("a", parents=(Parent(1),))),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(schedule: Schedule) -> None:
    driver = Driver()
    refusal = driver.one(ScheduleSet(schedule, "ann", driver.now_ms))
    assert isinstance(refusal, Refusal) and refusal.code == "invalid_setting"
    assert not reading.list_schedules(driver.rows)


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.FAILED])
def test_how_long_a_result_is_kept_counts_from_the_end(outcome: Outcome) -> None:
    driver = Driver()
    session = driver.connect().session
    spec = Spec("a", retention_ms=1_000, dead_retention_ms=1_000, payload=bytes(300))
    (task_id,) = driver.taken(spec)
    driver.now_ms += 500_000
    driver.run(session, task_id, outcome, result=bytes(300))
    driver.now_ms += 999
    assert not reading.purgeable(driver.rows, driver.now_ms)
    assert driver.one(Purge(driver.now_ms)) == 0
    driver.now_ms += 1
    assert reading.purgeable(driver.rows, driver.now_ms)
    assert driver.one(Purge(driver.now_ms)) == 1
    assert [key for key, _ in driver.all() if key[:1] not in b"ZW"] == []


def test_dead_letters_are_kept_longer_and_retried_ones_stay() -> None:
    driver = Driver()
    session = driver.connect().session
    dead, again = driver.taken(*[Spec("a", retention_ms=10, dead_retention_ms=1_000)] * 2)
    driver.assign(session, dead, again)
    ends = [Ended(one, 1, Outcome.FAILED) for one in (dead, again)]
    driver.finish(session, *ends)
    driver.items(Retry([again], "ann", driver.now_ms))
    driver.now_ms += 999
    assert driver.one(Purge(driver.now_ms)) == 0
    driver.now_ms += 1
    assert driver.one(Purge(driver.now_ms)) == 2
    assert reading.get_task(driver.rows, dead) is None
    assert driver.status(again) is Status.WAITING


def test_a_task_that_ended_again_is_kept_from_its_second_end_on() -> None:
    driver = Driver()
    (task_id,) = driver.taken(Spec("a", retention_ms=100))
    driver.numbers(Cancel([task_id], "ann", driver.now_ms))
    driver.now_ms += 60
    driver.items(Retry([task_id], "ann", driver.now_ms))
    driver.numbers(Cancel([task_id], "ann", driver.now_ms))
    driver.now_ms += 60
    driver.one(Purge(driver.now_ms))
    assert driver.status(task_id) is Status.CANCELLED
    driver.now_ms += 40
    driver.one(Purge(driver.now_ms))
    assert reading.get_task(driver.rows, task_id) is None


def test_a_purge_has_bounded_work_and_goes_on_where_it_ended() -> None:
    driver = Driver()
    ids = driver.taken(*[Spec("a", retention_ms=1 + number % 2) for number in range(50)])
    driver.numbers(Cancel(ids, "ann", driver.now_ms))
    driver.now_ms += 5
    assert [driver.one(Purge(driver.now_ms, 20)) for _ in range(4)] == [20, 20, 10, 0]
    assert [key[:1] for key, _ in driver.all()] == [keys.COUNTERS]


def test_what_ends_and_is_kept_for_no_time_goes_even_after_a_purge_at_that_time() -> None:
    driver = Driver()
    for _ in range(2):
        ids = driver.taken(*[Spec("a", retention_ms=0)] * 3)
        driver.numbers(Cancel(ids, "ann", driver.now_ms))
        assert driver.one(Purge(driver.now_ms)) == 3
    assert not driver.all(keys.FINAL) and not driver.all(keys.EXPIRY)


def test_a_task_that_ends_twice_in_one_millisecond_is_purged_once_and_forgotten() -> None:
    driver = Driver()
    ids = driver.taken(*[Spec("a", retention_ms=5)] * 3)
    driver.numbers(Cancel(ids, "ann", driver.now_ms))
    driver.items(Retry(ids[:1], "ann", driver.now_ms))
    driver.numbers(Cancel(ids[:1], "ann", driver.now_ms))
    driver.now_ms += 5
    assert driver.one(Purge(driver.now_ms)) == 3
    assert not driver.all(keys.FINAL) and not driver.all(keys.EXPIRY)


def test_code_pools_go_when_they_have_expired_and_nobody_needs_them() -> None:
    driver = Driver()
    for name, parts in (("free", 1), ("needed", 1), ("half", 2)):
        driver.one(PoolPut(name, 0, parts, b"code", b"d", driver.now_ms + 10, "ann", driver.now_ms))
    driver.taken(Spec("a", codepool="needed"))
    assert reading.pool_parts(driver.rows, "free") == [b"code"]
    assert reading.get_pool(driver.rows, "half") is None
    driver.now_ms += 10
    driver.one(Purge(driver.now_ms))
    assert [pool.name for pool in reading.list_pools(driver.rows)] == ["half", "needed"]
    driver.now_ms += HOUR_MS
    driver.one(Purge(driver.now_ms))
    assert [pool.name for pool in reading.list_pools(driver.rows)] == ["needed"]


def test_a_purge_reads_all_schedules_only_once_for_a_pool_that_one_of_them_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver()
    expires_ms = driver.now_ms + 10
    for name in ("one", "other"):
        driver.one(PoolPut(name, 0, 1, b"code", b"d", expires_ms, "ann", driver.now_ms))
    for name, pool in (("a", ""), ("b", "one"), ("c", "other")):
        schedule = Schedule(name, Spec("a", codepool=pool), interval_ms=HOUR_MS)
        driver.one(ScheduleSet(schedule, "ann", driver.now_ms))
    decoded = []

    def counted(row: bytes) -> Schedule:
        decoded.append(row)
        return decode_schedule(row)

    monkeypatch.setattr(pools, "decode_schedule", counted)
    driver.now_ms += 10
    for reads in (3, 2, 2):
        decoded.clear()
        driver.one(Purge(driver.now_ms, keep_code=True))
        assert len(decoded) == reads
    driver.one(ScheduleSet(Schedule("c", Spec("a"), interval_ms=HOUR_MS), "ann", driver.now_ms))
    driver.one(Purge(driver.now_ms, keep_code=True))
    assert [pool.name for pool in reading.list_pools(driver.rows)] == ["one"]


async def test_a_snapshot_carries_code_pools_modes_and_all_that_tasks_are() -> None:
    driver = Driver()
    session = driver.connect().session
    driver.one(PoolPut("code", 0, 1, b"zip", b"d", 0, "ann", driver.now_ms))
    (task_id,) = driver.taken(
        Spec("a", mode=Mode.AT_MOST_ONCE, codepool="code", execution="object", slot="s")
    )
    driver.rows.commit(Position(1, 1))
    snapshot = driver.rows.snapshot()
    rows = snapshot.page(None, 1_000_000)
    other = Driver()
    await other.rows.clear()
    await other.rows.restore(rows)
    await other.rows.restored(Position(1, 1))
    assert other.task(task_id) == driver.task(task_id)
    assert reading.pool_parts(other.rows, "code") == [b"zip"]
    for one in (driver, other):
        assert one.assign(session, task_id) == [1]
        one.lose(session, task_id)
        assert one.status(task_id) is Status.LOST
    assert other.all() == driver.all()


def several(driver: Driver) -> int:
    """Six hundred tasks of three tenants, every second one finished."""
    driver.machine.listener = None
    session = driver.connect().session
    ids = driver.taken(*[Spec("send", f"t{number % 3}") for number in range(600)])
    driver.assign(session, *ids[::2])
    driver.finish(session, *[Ended(one, 1, Outcome.FINISHED, b"r") for one in ids[::2]])
    return session


def test_tasks_are_listed_in_order_page_by_page() -> None:
    driver = Driver()
    several(driver)
    above: int | None = 0
    found = []
    while above is not None:
        page = reading.list_tasks(driver.rows, TaskFilter(tenant="t1"), above, 70, 100)
        found += [task.id for task in page.tasks]
        above = page.above
    assert found == list(range(2, 601, 3))


def test_tasks_are_listed_by_what_they_are() -> None:
    driver = Driver()
    session = several(driver)
    assert driver.assign(session, 2) == [1]
    for wanted, ids in [
        (TaskFilter(statuses=frozenset([Status.RUNNING])), [2]),
        (TaskFilter(statuses=frozenset([Status.FINISHED]), tenant="t0"), [1, 7, 13]),
        (TaskFilter(worker_id="w"), [1, 2, 3]),
        (TaskFilter(dead=True), []),
        (TaskFilter(slot="s"), []),
        (TaskFilter(type="send"), [1, 2, 3]),
    ]:
        page = reading.list_tasks(driver.rows, wanted, 0, 3)
        assert [task.id for task in page.tasks] == ids, wanted
    assert reading.list_tasks(driver.rows, TaskFilter(), keys.ID_MAX).tasks == []


def test_a_page_ends_after_so_many_rows_even_if_nothing_fits() -> None:
    driver = Driver()
    several(driver)
    page = reading.list_tasks(driver.rows, TaskFilter(tenant="nobody"), 0, 10, 250)
    assert (page.tasks, page.above) == ([], 250)


def test_tasks_are_counted_page_by_page() -> None:
    driver = Driver()
    several(driver)
    found = Tally()
    for final in (False, True):
        above: int | None = 0
        while above is not None:
            above = reading.tally(driver.rows, found, final=final, above=above, looks_max=70)
    assert found[Status.FINISHED, "t0", "send"] == found[Status.WAITING, "t2", "send"] == 100
    assert sum(found.values()) == 600


def test_what_else_there_is_can_be_read() -> None:
    driver = Driver()
    session = driver.connect().session
    first, second = driver.taken(
        Spec("a", slot="x", payload=bytes(300), submitter="ann"), Spec("b", slot="y")
    )
    assert reading.list_slots(driver.rows) == [("x", first), ("y", second)]
    assert reading.list_slots(driver.rows, "x") == [("y", second)]
    driver.run(session, first, Outcome.FINISHED, result=bytes(400))
    task = reading.get_task(driver.rows, first)
    assert task is not None and task.token == (first, 1)
    assert len(reading.payload_of(driver.rows, task)) == 300
    assert len(reading.result_of(driver.rows, task)) == 400
    assert [event[3] for event in reading.history(task)] == ["ann", "w", "w"]
    gone = msgspec.structs.replace(task, id=99)
    for look in (reading.payload_of, reading.result_of):
        with pytest.raises(PayloadMissing):
            look(driver.rows, gone)
    assert [one.id for one in reading.active_tasks(driver.rows)] == [second]
    number = driver.one(Begin(driver.now_ms + 5, driver.now_ms, "bob"))
    assert [one.id for one in reading.list_transactions(driver.rows)] == [number]
    assert [one.worker_id for one in reading.list_workers(driver.rows)] == ["w"]
    found = reading.get_worker(driver.rows, "w")
    assert found is not None and found.session == session
    assert reading.get_counters(driver.rows).now_ms == START_MS
    assert reading.get_task(driver.rows, -1) is None
    assert [one.id for one in reading.list_transactions(driver.rows, -5)] == [number]
    assert reading.list_transactions(driver.rows, keys.ID_MAX) == []
    assert reading.list_slots(driver.rows, limit=-1) == []
    assert [one.id for one in reading.list_tasks(driver.rows, TaskFilter(), -5).tasks] == [1, 2]
    assert reading.list_tasks(driver.rows, TaskFilter(), 0, -1).tasks == []


def test_what_is_left_to_settle_can_be_seen() -> None:
    driver = Driver()
    (parent,) = driver.taken(Spec("parent"))
    for _ in range(2):
        driver.taken(*[Spec("child", parents=(Parent(parent),))] * 600)
    driver.numbers(Cancel([parent], "ann", driver.now_ms))
    assert reading.unsettled(driver.rows)
    assert driver.one(Settle(driver.now_ms)) == 0
    assert not reading.unsettled(driver.rows)
