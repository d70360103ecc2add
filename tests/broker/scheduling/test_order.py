"""Whose task is next: groups, tenants by weight, minimum and maximum, aged priority, then age."""

from collections import Counter

from broker.scheduling import QueueKey, Scheduler
from broker.settings import Mapping, Pause, TenantLimits
from tests.broker.scheduling.driving import (
    TYPE,
    WORKER,
    ids_of,
    limits,
    push,
    run_one,
    scheduler_with,
    tenants_of,
)


def grouped(scheduler: Scheduler, groups: dict[str, int]) -> None:
    """Map each tenant to a group."""
    for tenant, group in groups.items():
        scheduler.configure("mapping", tenant, Mapping(group))


def test_a_named_group_comes_before_any_group_however_late_its_tasks_came() -> None:
    """Defect 1 of the original: an overflow took the tasks of `any` first."""
    scheduler = scheduler_with(limits(10, groups=(3, 0)))
    grouped(scheduler, {"nine": 9, "three": 3})
    push(scheduler, "nine", range(100))
    push(scheduler, "three", range(100, 200))
    assert tenants_of(scheduler.take(WORKER, 10, 0)) == {"three": 10}


def test_groups_are_served_strictly_in_the_workers_order() -> None:
    scheduler = scheduler_with(limits(30, groups=(2, 3, 0)))
    grouped(scheduler, {"one": 1, "two": 2, "three": 3})
    for number, tenant in enumerate(("one", "two", "three")):
        push(scheduler, tenant, range(number * 10, number * 10 + 10))
    taken = scheduler.take(WORKER, 30, 0)
    assert [pick.tenant for pick in taken] == ["two"] * 10 + ["three"] * 10 + ["one"] * 10


def test_an_excluded_group_is_never_served_by_any_nor_by_name() -> None:
    for groups in ((0,), (2, 0), (2,)):
        scheduler = scheduler_with(limits(groups=groups, excluded=(2,)))
        grouped(scheduler, {"two": 2})
        push(scheduler, "two", range(5))
        push(scheduler, "other", range(5, 10))
        assert tenants_of(scheduler.take(WORKER, 50, 0))["two"] == 0


def test_a_group_that_no_worker_names_waits() -> None:
    scheduler = scheduler_with(limits(groups=(1,)))
    grouped(scheduler, {"two": 2})
    push(scheduler, "two", range(5))
    assert scheduler.take(WORKER, 5, 0) == []


def test_tenants_get_places_as_their_weights_are() -> None:
    scheduler = scheduler_with()
    scheduler.configure("tenant", "heavy", TenantLimits(weight=3))
    push(scheduler, "light", range(1_000))
    push(scheduler, "heavy", range(1_000, 2_000))
    taken = [run_one(scheduler) for _ in range(400)]
    assert Counter(pick.tenant for pick in taken if pick) == {"heavy": 300, "light": 100}


def test_a_tenant_with_more_queues_gets_no_more_places() -> None:
    scheduler = scheduler_with()
    push(scheduler, "one", range(1_000))
    for number in range(10):
        ids = range(1_000 * (number + 1), 1_000 * (number + 2))
        push(scheduler, "many", ids, f"type{number}")
    taken = [run_one(scheduler) for _ in range(200)]
    assert Counter(pick.tenant for pick in taken if pick) == {"one": 100, "many": 100}


def test_the_next_place_is_a_new_tenants_own_however_many_flood() -> None:
    scheduler = scheduler_with()
    for number in range(20):
        push(scheduler, f"flood{number}", range(number * 5_000, number * 5_000 + 5_000))
    for _ in range(20):
        run_one(scheduler)
    for turn in range(500):
        assert run_one(scheduler)
        push(scheduler, f"new{turn}", [1_000_000 + turn])
        first = run_one(scheduler)
        assert first is not None and first.tenant == f"new{turn}"


def test_a_tenant_that_waited_for_nothing_saved_up_no_turns() -> None:
    scheduler = scheduler_with()
    push(scheduler, "busy", range(10_000))
    push(scheduler, "idle", [20_000])
    for _ in range(1_000):
        run_one(scheduler)
    push(scheduler, "idle", range(30_000, 31_000))
    taken = [run_one(scheduler) for _ in range(100)]
    assert Counter(pick.tenant for pick in taken if pick) == {"busy": 50, "idle": 50}


def test_a_tenant_that_was_held_up_saved_up_no_turns() -> None:
    scheduler = scheduler_with()
    push(scheduler, "busy", range(10_000))
    push(scheduler, "paused", range(20_000, 30_000))
    scheduler.configure("pause", "tenant:paused", Pause())
    for _ in range(1_000):
        run_one(scheduler)
    scheduler.configure("pause", "tenant:paused", None)
    taken = Counter(pick.tenant for _ in range(100) if (pick := run_one(scheduler)))
    assert 49 <= taken["paused"] <= 51


def test_a_minimum_is_filled_before_anybody_else_is_served() -> None:
    scheduler = scheduler_with(limits(20))
    push(scheduler, "flood", range(1_000))
    assert tenants_of(scheduler.take(WORKER, 10, 0)) == {"flood": 10}
    scheduler.configure("tenant", "small", TenantLimits(reserved=4))
    push(scheduler, "small", range(2_000, 2_100))
    taken = scheduler.take(WORKER, 4, 0)
    assert [pick.tenant for pick in taken] == ["small"] * 4
    # One of the reserved places came free: it is filled again before all others.
    scheduler.release(taken[0].id)
    assert [pick.tenant for pick in scheduler.take(WORKER, 1, 0)] == ["small"]


def test_a_minimum_keeps_no_place_empty() -> None:
    scheduler = scheduler_with(limits(10))
    scheduler.configure("tenant", "absent", TenantLimits(reserved=10))
    push(scheduler, "present", range(20))
    assert len(scheduler.take(WORKER, 10, 0)) == 10


def test_turns_of_a_minimum_take_the_next_place_from_no_newcomer() -> None:
    scheduler = scheduler_with()
    scheduler.configure("tenant", "first", TenantLimits(reserved=1))
    push(scheduler, "first", range(1_000))
    push(scheduler, "flood", range(1_000, 2_000))
    for _ in range(200):
        for pick in scheduler.take(WORKER, 2, 0):
            scheduler.release(pick.id)
    push(scheduler, "new", [5_000])
    # The minimum comes first; the place after it is the newcomer's.
    assert [pick.tenant for pick in scheduler.take(WORKER, 2, 0)] == ["first", "new"]


def test_a_maximum_is_never_passed_and_holds_up_nobody_else() -> None:
    scheduler = scheduler_with(limits(50))
    scheduler.configure("tenant", "flood", TenantLimits(maximum=5))
    push(scheduler, "flood", range(1_000))
    push(scheduler, "other", range(1_000, 1_020))
    taken = scheduler.take(WORKER, 50, 0)
    assert tenants_of(taken) == {"flood": 5, "other": 20}
    scheduler.release(next(pick.id for pick in taken if pick.tenant == "flood"))
    assert tenants_of(scheduler.take(WORKER, 50, 0)) == {"flood": 1}


def test_the_highest_priority_of_a_tenant_goes_first_over_all_its_types() -> None:
    scheduler = scheduler_with()
    for task_id, (type_, priority) in enumerate((("a", 0), ("b", 5), ("c", 1), ("a", 7))):
        scheduler.push(QueueKey("cow", type_, priority), task_id, 0)
    assert ids_of(scheduler.take(WORKER, 4, 0)) == [3, 1, 2, 0]


def test_a_high_priority_takes_no_turn_from_another_tenant() -> None:
    scheduler = scheduler_with()
    push(scheduler, "meek", range(100))
    scheduler.push_many(QueueKey("loud", TYPE, 1_000), range(100, 200), 0)
    assert tenants_of(scheduler.take(WORKER, 50, 0)) == {"meek": 25, "loud": 25}


def test_waiting_raises_a_priority() -> None:
    scheduler = scheduler_with(aging_ms=1_000)
    scheduler.push(QueueKey("cow", TYPE, 0), 1, 0)
    scheduler.push(QueueKey("cow", TYPE, 3), 2, 2_999)
    scheduler.push(QueueKey("cow", TYPE, 3), 3, 3_001)
    # The first has waited for three seconds more than the last, so it counts as high, and older.
    assert ids_of(scheduler.take(WORKER, 3, 5_000)) == [2, 1, 3]


def test_without_aging_priorities_are_strict() -> None:
    scheduler = scheduler_with()
    scheduler.push(QueueKey("cow", TYPE, 0), 1, 0)
    scheduler.push(QueueKey("cow", TYPE, 1), 2, 10**12)
    assert ids_of(scheduler.take(WORKER, 2, 10**12)) == [2, 1]


def test_a_refused_assignment_goes_back_to_its_place() -> None:
    scheduler = scheduler_with(limits(5))
    push(scheduler, "cow", range(10))
    taken = ids_of(scheduler.take(WORKER, 5, 0))
    scheduler.restore(taken)
    assert (scheduler.waiting, scheduler.running) == (10, 0)
    assert ids_of(scheduler.take(WORKER, 5, 0)) == taken


def test_a_task_goes_back_to_a_queue_that_had_run_empty() -> None:
    scheduler = scheduler_with()
    scheduler.push(QueueKey("cow", TYPE, 2), 1, 50)
    taken = scheduler.take(WORKER, 5, 100)
    scheduler.restore([1])
    assert [queue.since_ms for queue in scheduler.queues()] == [50]
    assert scheduler.take(WORKER, 5, 100) == taken


def test_what_was_cancelled_while_it_waited_never_begins() -> None:
    scheduler = scheduler_with()
    push(scheduler, "cow", range(100))
    for task_id in range(0, 100, 2):
        scheduler.remove(QueueKey("cow", TYPE), task_id)
    assert scheduler.waiting == 50
    assert ids_of(scheduler.take(WORKER, 100, 0)) == list(range(1, 100, 2))


def test_a_task_that_was_taken_meanwhile_is_not_removed_from_its_queue() -> None:
    scheduler = scheduler_with(limits(1))
    push(scheduler, "cow", [1, 2])
    scheduler.take(WORKER, 1, 0)
    scheduler.remove(QueueKey("cow", TYPE), 1)
    assert (scheduler.waiting, scheduler.running) == (1, 1)
