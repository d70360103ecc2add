"""What a take costs: it depends on what is taken, not on how many wait for something else."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from broker.scheduling import Scheduler
from broker.scheduling.gates import Gate
from broker.scheduling.heap import LazyHeap
from broker.scheduling.take import PORTION_QUEUES
from broker.settings import Limit, Mapping, Rate, Target
from tests.broker.scheduling.driving import TYPE, WORKER, limits, push

TENANTS = 500
LOOKS_MAX = 60


@contextmanager
def counted() -> Iterator[list[int]]:
    """How often gates and heaps are looked at."""
    looks = [0]
    opens, first, offer = Gate.opens, LazyHeap.first_key, LazyHeap.offer

    def looking(call: object) -> object:
        def counting(*arguments: object) -> object:
            looks[0] += 1
            return call(*arguments)  # type: ignore[operator]

        return counting

    with (
        patch.object(Gate, "opens", looking(opens)),
        patch.object(LazyHeap, "first_key", looking(first)),
        patch.object(LazyHeap, "offer", looking(offer)),
    ):
        yield looks


def shared_and_own(tenant: str, type_: str) -> Target:
    """A resource that all share, and one that is the tenant's."""
    return Target(1, ("db", f"own {tenant}"))


def waiting(scheduler: Scheduler) -> Scheduler:
    """Many tenants wait."""
    for number in range(TENANTS):
        push(scheduler, f"cow{number}", range(number * 10, number * 10 + 10))
    return scheduler


def test_a_freed_unit_that_all_wait_for_wakes_only_who_gets_it() -> None:
    scheduler = waiting(Scheduler(mapping=shared_and_own))
    scheduler.configure("resource", "db", Limit(10))
    scheduler.connect(WORKER, (), limits())
    running = scheduler.take(WORKER, 100, 0)
    assert len(running) == 10
    for number in range(100):
        scheduler.release(running.pop(0).id)
        with counted() as looks:
            running += scheduler.take(WORKER, 100, number)
        assert len(running) == 10
        assert looks[0] < LOOKS_MAX
    assert len({pick.tenant for pick in running}) == 10


def test_a_rate_that_all_wait_for_wakes_only_who_gets_it() -> None:
    scheduler = waiting(Scheduler(mapping=shared_and_own))
    scheduler.configure("rate", f"type:{TYPE}", Rate(1_000))
    scheduler.connect(WORKER, (), limits())
    for number in range(100):
        with counted() as looks:
            (pick,) = scheduler.take(WORKER, 100, number)
        scheduler.release(pick.id)
        assert looks[0] < LOOKS_MAX or not number


def test_a_workers_own_full_resource_is_stepped_over_at_once() -> None:
    scheduler = waiting(Scheduler(mapping=shared_and_own))
    scheduler.connect(WORKER, (), limits(resources={"db": 3}))
    assert len(scheduler.take(WORKER, 100, 0)) == 3
    with counted() as looks:
        assert scheduler.take(WORKER, 100, 0) == []
    assert looks[0] < LOOKS_MAX


def test_an_excluded_group_is_stepped_over_at_once() -> None:
    scheduler = waiting(Scheduler(mapping=lambda tenant, _: Target(9, (f"own {tenant}",))))
    scheduler.connect(WORKER, (), limits(excluded=(9,)))
    with counted() as looks:
        assert scheduler.take(WORKER, 100, 0) == []
    assert looks[0] < LOOKS_MAX


def test_types_that_a_worker_does_not_run_are_not_looked_at() -> None:
    scheduler = Scheduler()
    for number in range(TENANTS):
        push(scheduler, "cow", [number + 1], f"type{number}")
    scheduler.connect(WORKER, ("other", "type7"), limits())
    assert len(scheduler.take(WORKER, 100, 0)) == 1
    with counted() as looks:
        assert scheduler.take(WORKER, 100, 1) == []
    assert looks[0] < LOOKS_MAX


def test_a_new_group_and_a_new_mapping_are_brought_about_in_portions() -> None:
    scheduler = Scheduler()
    count = 2 * PORTION_QUEUES + 10
    for number in range(count):
        push(scheduler, f"cow{number}", [number + 1])
    scheduler.connect(WORKER, (), limits(groups=(2, 0)))
    assert scheduler.take(WORKER, 5, 0) == []
    assert scheduler.take(WORKER, 5, 0) == []
    assert scheduler.wake_ms() == 0
    assert scheduler.take(WORKER, 5, 1) == []
    assert len(scheduler.take(WORKER, 5, 2)) == 5
    assert scheduler.wake_ms() is None
    scheduler.configure("mapping", "", Mapping(3))
    found = [pick.group for now_ms in (3, 4, 5) for pick in scheduler.take(WORKER, 5, now_ms)]
    assert found == [3] * 5


def test_a_worker_that_comes_and_goes_moves_no_queue() -> None:
    scheduler = waiting(Scheduler())
    scheduler.connect(WORKER, (), limits(groups=(1,)))
    assert len(scheduler.take(WORKER, 5, 0)) == 5
    for number in range(20):
        scheduler.disconnect(WORKER)
        with counted() as looks:
            scheduler.connect(WORKER, (), limits(groups=(1,)))
            assert len(scheduler.take(WORKER, 1, number)) == 1
        assert looks[0] < LOOKS_MAX
    for group in range(2, 12):
        scheduler.connect(WORKER, (), limits(groups=(group,)))
    assert len(scheduler.index.turnstiles) <= 5
    scheduler.connect(WORKER, (), limits(groups=(1,)))
    assert len(scheduler.take(WORKER, 1, 100)) == 1
