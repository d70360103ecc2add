"""Limits of workers, resources, types and shares: never passed, and no one's limit is another's."""

from collections import Counter

from broker.scheduling import Pick, QueueKey, Scheduler
from broker.settings import Limit, Mapping, OperatorLimits, Target
from tests.broker.scheduling.driving import (
    TYPE,
    WORKER,
    ids_of,
    limits,
    push,
    scheduler_with,
    tenants_of,
)


def with_resources(scheduler: Scheduler, mapped: dict[str, tuple[str, ...]]) -> None:
    """Map each tenant to resources."""
    for tenant, resources in mapped.items():
        scheduler.configure("mapping", tenant, Mapping(resources=resources))


def test_a_full_resource_holds_up_nobody_who_does_not_need_it() -> None:
    """Defect 2 of the original: tasks on a full resource hid all behind them, for ever."""
    scheduler = scheduler_with(limits(50))
    with_resources(scheduler, {"a": ("dbA",), "b": ("dbB",)})
    scheduler.configure("resource", "dbA", Limit(5))
    scheduler.configure("resource", "dbB", Limit(50))
    push(scheduler, "a", range(1_000))
    push(scheduler, "b", range(1_000, 2_000))
    assert tenants_of(scheduler.take(WORKER, 50, 0)) == {"a": 5, "b": 45}
    scheduler.connect("second", (), limits(50))
    assert tenants_of(scheduler.take("second", 50, 0)) == {"b": 5}


def test_a_task_needs_a_unit_of_every_resource_at_once() -> None:
    scheduler = scheduler_with()
    with_resources(scheduler, {"both": ("db", "net"), "net": ("net",)})
    scheduler.configure("resource", "db", Limit(2))
    scheduler.configure("resource", "net", Limit(3))
    push(scheduler, "both", range(10))
    assert tenants_of(scheduler.take(WORKER, 10, 0)) == {"both": 2}
    push(scheduler, "net", range(10, 20))
    assert tenants_of(scheduler.take(WORKER, 10, 0)) == {"net": 1}


def test_each_freed_unit_lets_one_more_begin() -> None:
    scheduler = scheduler_with()
    with_resources(scheduler, {f"cow{number}": ("db",) for number in range(5)})
    scheduler.configure("resource", "db", Limit(1))
    for number in range(5):
        push(scheduler, f"cow{number}", range(number * 2, number * 2 + 2))
    order: list[Pick] = []
    while taken := scheduler.take(WORKER, 10, 0):
        assert len(taken) == 1
        order += taken
        scheduler.release(taken[0].id)
    assert [pick.tenant for pick in order] == [f"cow{number}" for number in range(5)] * 2


def test_a_limit_of_the_worker_and_a_global_one_hold_both() -> None:
    scheduler = scheduler_with(limits(resources={"db": 3}))
    scheduler.connect("second", (), limits(resources={"db": 3}))
    with_resources(scheduler, {"cow": ("db",)})
    scheduler.configure("resource", "db", Limit(4))
    push(scheduler, "cow", range(10))
    assert len(scheduler.take(WORKER, 10, 0)) == 3
    assert len(scheduler.take("second", 10, 0)) == 1


def test_a_named_type_has_its_own_places_and_all_others_share_those_of_any() -> None:
    scheduler = scheduler_with(limits(20, by_type={"a": 2, "any": 3}))
    for number, type_ in enumerate("abc"):
        push(scheduler, "cow", range(number * 100, number * 100 + 100), type_)
    taken = Counter(pick.type for pick in scheduler.take(WORKER, 20, 0))
    assert taken["a"] == 2
    assert taken["b"] + taken["c"] == 3


def test_a_worker_never_has_more_than_its_places() -> None:
    scheduler = scheduler_with(limits(7))
    push(scheduler, "cow", range(100))
    assert len(scheduler.take(WORKER, 5, 0)) == 5
    assert len(scheduler.take(WORKER, 5, 0)) == 2
    assert scheduler.free(WORKER) == 0


def test_a_worker_gets_only_types_that_it_runs() -> None:
    scheduler = scheduler_with()
    scheduler.connect(WORKER, ("a",), limits())
    push(scheduler, "cow", [1], "a")
    push(scheduler, "cow", [2], "b")
    assert ids_of(scheduler.take(WORKER, 5, 0)) == [1]


def test_a_tenants_share_of_a_worker_is_a_part_of_the_types_places() -> None:
    scheduler = scheduler_with(limits(100, share_percent=10))
    push(scheduler, "cow", range(500))
    assert len(scheduler.take(WORKER, 100, 0)) == 10
    assert scheduler.take(WORKER, 100, 0) == []
    push(scheduler, "calf", range(500, 600))
    assert tenants_of(scheduler.take(WORKER, 100, 0)) == {"calf": 10}


def test_a_share_is_one_place_at_least() -> None:
    scheduler = scheduler_with(limits(5, share_percent=1))
    push(scheduler, "cow", range(10))
    assert len(scheduler.take(WORKER, 5, 0)) == 1


def test_the_operators_limits_of_a_worker_hold_beside_its_own() -> None:
    scheduler = scheduler_with(limits(50, by_type={TYPE: 20}, resources={"db": 9}))
    with_resources(scheduler, {"cow": ("db",)})
    push(scheduler, "cow", range(100))
    scheduler.configure("worker", WORKER, OperatorLimits(resources={"db": 4}))
    assert len(scheduler.take(WORKER, 100, 0)) == 4
    scheduler.configure("worker", WORKER, OperatorLimits(places=6))
    assert len(scheduler.take(WORKER, 100, 0)) == 2
    scheduler.configure("worker", WORKER, None)
    assert len(scheduler.take(WORKER, 100, 0)) == 3


def test_the_operators_limits_wait_for_a_worker_that_is_not_there() -> None:
    scheduler = Scheduler()
    scheduler.configure("worker", WORKER, OperatorLimits(places=2))
    scheduler.connect(WORKER, (), limits())
    push(scheduler, "cow", range(10))
    assert len(scheduler.take(WORKER, 10, 0)) == 2


def test_what_was_fixed_at_submit_is_not_mapped() -> None:
    scheduler = scheduler_with()
    with_resources(scheduler, {"cow": ("db",)})
    scheduler.push(QueueKey("cow", TYPE, group=7, resources=("own",)), 1, 0)
    (pick,) = scheduler.take(WORKER, 1, 0)
    assert (pick.group, pick.resources) == (7, ("own",))
    scheduler.push(QueueKey("cow", TYPE, group=7), 2, 0)
    (pick,) = scheduler.take(WORKER, 1, 0)
    assert (pick.group, pick.resources) == (7, ())


def test_a_type_of_a_tenant_may_have_a_target_of_its_own() -> None:
    scheduler = scheduler_with()
    row = Mapping(2, ("db",), {"mail": Target(3, ("smtp",))})
    scheduler.configure("mapping", "cow", row)
    push(scheduler, "cow", [1], "mail")
    push(scheduler, "cow", [2], "other")
    found = {pick.id: (pick.group, pick.resources) for pick in scheduler.take(WORKER, 2, 0)}
    assert found == {1: (3, ("smtp",)), 2: (2, ("db",))}


def test_running_tasks_found_at_takeover_count_before_their_worker_is_back() -> None:
    before = scheduler_with()
    with_resources(before, {"cow": ("db",)})
    push(before, "cow", [1, 2])
    running = before.take(WORKER, 2, 0)

    after = Scheduler()
    with_resources(after, {"cow": ("db",)})
    after.configure("resource", "db", Limit(3))
    for pick in running:
        after.occupy(pick)
    push(after, "cow", range(3, 10))
    after.connect("other", (), limits())
    assert len(after.take("other", 10, 0)) == 1
    after.connect(WORKER, (), limits(2))
    assert after.free(WORKER) == 0


def test_an_end_that_is_told_twice_counts_once() -> None:
    scheduler = scheduler_with()
    with_resources(scheduler, {"cow": ("db",)})
    scheduler.configure("resource", "db", Limit(1))
    push(scheduler, "cow", range(5))
    (pick,) = scheduler.take(WORKER, 5, 0)
    assert scheduler.release(pick.id) == pick
    assert scheduler.release(pick.id) is None
    assert len(scheduler.take(WORKER, 5, 0)) == 1


def test_a_lost_worker_frees_nothing_until_its_tasks_are_released() -> None:
    scheduler = scheduler_with()
    with_resources(scheduler, {"cow": ("db",)})
    scheduler.configure("resource", "db", Limit(2))
    push(scheduler, "cow", range(5))
    taken = scheduler.take(WORKER, 5, 0)
    scheduler.disconnect(WORKER)
    scheduler.connect("second", (), limits())
    assert scheduler.take("second", 5, 0) == []
    assert scheduler.take(WORKER, 5, 0) == []
    scheduler.release(taken[0].id)
    assert len(scheduler.take("second", 5, 0)) == 1
