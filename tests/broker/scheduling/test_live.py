"""Settings that change while tasks wait and run: they count from the next assignment on."""

import pytest

from broker.errors import InvalidSetting
from broker.scheduling import Hints, QueueKey, Scheduler
from broker.settings import (
    KINDS,
    Limit,
    Mapping,
    OperatorLimits,
    Pause,
    Quota,
    Rate,
    Setting,
    Target,
    TenantLimits,
    decode_setting,
    encode_setting,
)
from tests.broker.scheduling.driving import (
    TYPE,
    WORKER,
    limits,
    push,
    run_one,
    scheduler_with,
    tenants_of,
)


def begun(scheduler: Scheduler, now_ms: int) -> int:
    """How many more begin at a moment; they run on."""
    return len(scheduler.take(WORKER, 1_000, now_ms))


def test_a_changed_mapping_counts_for_tasks_that_wait_already() -> None:
    scheduler = scheduler_with(limits(groups=(2,)))
    push(scheduler, "cow", range(10))
    assert begun(scheduler, 0) == 0
    scheduler.configure("mapping", "cow", Mapping(2, ("db",)))
    scheduler.configure("resource", "db", Limit(4))
    assert [pick.resources for pick in scheduler.take(WORKER, 9, 0)] == [("db",)] * 4
    scheduler.configure("mapping", "cow", Mapping(2))
    assert begun(scheduler, 0) == 6


def test_the_row_without_a_name_maps_all_who_have_none() -> None:
    scheduler = scheduler_with(limits(groups=(2,)))
    scheduler.configure("mapping", "bull", Mapping(3))
    for number, tenant in enumerate(("cow", "bull")):
        push(scheduler, tenant, [number])
    scheduler.configure("mapping", "", Mapping(2))
    assert tenants_of(scheduler.take(WORKER, 9, 0)) == {"cow": 1}


def test_a_function_maps_who_has_no_row_and_is_asked_again_by_remap() -> None:
    groups = {"cow": 2}
    scheduler = Scheduler(mapping=lambda tenant, _: Target(groups.get(tenant, 1)))
    scheduler.connect(WORKER, (), limits(groups=(3,)))
    push(scheduler, "cow", [1])
    assert begun(scheduler, 0) == 0
    groups["cow"] = 3
    scheduler.remap()
    assert begun(scheduler, 0) == 1


def test_a_mapping_function_is_asked_again_within_a_minute() -> None:
    groups = {"cow": 2}
    scheduler = Scheduler(mapping=lambda tenant, _: Target(groups.get(tenant, 1)))
    scheduler.connect(WORKER, (), limits(groups=(3,)))
    push(scheduler, "cow", [1])
    assert begun(scheduler, 1_000) == 0
    groups["cow"] = 3
    assert begun(scheduler, 60_000) == 0
    assert begun(scheduler, 61_000) == 1


def test_a_mapping_function_that_fails_leaves_its_tasks_where_the_table_says() -> None:
    def failing(tenant: str, type_: str) -> Target:
        if tenant == "cow":
            raise LookupError("no such contract")
        return Target(2)

    scheduler = Scheduler(mapping=failing)
    scheduler.configure("mapping", "", Mapping(4))
    scheduler.connect(WORKER, (), limits())
    for number, tenant in enumerate(("cow", "bull")):
        push(scheduler, tenant, [number])
    found = {pick.tenant: pick.group for pick in scheduler.take(WORKER, 9, 0)}
    assert found == {"cow": 4, "bull": 2}
    assert "no such contract" in scheduler.index.mapping.failure


def test_a_mapping_function_that_answers_what_no_log_takes_counts_as_failed() -> None:
    scheduler = Scheduler(mapping=lambda tenant, _: Target(1, ("db", "")))
    scheduler.connect(WORKER, (), limits())
    push(scheduler, "cow", [1])
    assert [pick.resources for pick in scheduler.take(WORKER, 1, 0)] == [()]
    assert "a resource's name has 1 to 200 letters" in scheduler.index.mapping.failure


def test_a_limit_that_falls_below_its_use_stops_nothing_and_assigns_nothing() -> None:
    scheduler = scheduler_with()
    scheduler.configure("mapping", "cow", Mapping(resources=("db",)))
    push(scheduler, "cow", range(20))
    taken = scheduler.take(WORKER, 10, 0)
    scheduler.configure("resource", "db", Limit(3))
    for pick in taken[:7]:
        assert begun(scheduler, 0) == 0
        scheduler.release(pick.id)
    assert begun(scheduler, 0) == 0
    scheduler.release(taken[7].id)
    assert begun(scheduler, 0) == 1
    scheduler.configure("resource", "db", Limit(5))
    assert begun(scheduler, 0) == 2
    scheduler.configure("resource", "db", None)
    assert begun(scheduler, 0) == 7


@pytest.mark.parametrize("name", [f"type:{TYPE}", "tenant:cow"])
def test_what_is_paused_begins_no_more_until_it_goes_on(name: str) -> None:
    scheduler = scheduler_with()
    push(scheduler, "cow", range(10))
    assert len(scheduler.take(WORKER, 3, 0)) == 3
    scheduler.configure("pause", name, Pause("the barn burns"))
    push(scheduler, "cow", range(10, 20))
    push(scheduler, "bull", [100], "other")
    assert tenants_of(scheduler.take(WORKER, 50, 0)) == {"bull": 1}
    scheduler.configure("pause", name, None)
    assert begun(scheduler, 0) == 17


@pytest.mark.parametrize("name", [f"type:{TYPE}", "tenant:cow", "resource:db"])
def test_a_rate_lets_so_many_begin_in_a_second_and_says_when(name: str) -> None:
    scheduler = scheduler_with(limits(1_000))
    scheduler.configure("mapping", "cow", Mapping(resources=("db",)))
    scheduler.configure("rate", name, Rate(10, burst=5))
    push(scheduler, "cow", range(200))
    push(scheduler, "bull", [1_000], "other")
    assert begun(scheduler, 50_000) == 6
    assert scheduler.wake_ms() == 50_100
    assert begun(scheduler, 50_099) == 0
    total = 0
    while (wake_ms := scheduler.wake_ms()) is not None and wake_ms <= 60_000:
        total += begun(scheduler, wake_ms)
    assert total == 100
    # A pause fills the bucket up to its burst, no further.
    assert begun(scheduler, 90_000) == 5
    scheduler.configure("rate", name, None)
    assert begun(scheduler, 90_000) == 90


def test_another_rate_counts_from_the_next_assignment_on() -> None:
    scheduler = scheduler_with()
    scheduler.configure("rate", "tenant:cow", Rate(0.001))
    push(scheduler, "cow", range(300))
    assert begun(scheduler, 1_000) == 1
    assert scheduler.wake_ms() == 1_001_000
    scheduler.configure("rate", "tenant:cow", Rate(100, burst=3))
    assert begun(scheduler, 500_000) == 0
    assert scheduler.wake_ms() == 500_010
    assert begun(scheduler, 500_010) == 1
    scheduler.configure("rate", "tenant:cow", Rate(0.001))
    assert begun(scheduler, 510_000) == 0
    assert scheduler.wake_ms() == 1_510_000


def test_a_refused_assignment_gives_its_token_back() -> None:
    scheduler = scheduler_with()
    scheduler.configure("rate", "tenant:cow", Rate(1))
    push(scheduler, "cow", range(3))
    (pick,) = scheduler.take(WORKER, 3, 0)
    scheduler.restore([pick.id])
    assert scheduler.take(WORKER, 3, 0) == [pick]


def test_a_rate_and_a_clock_that_goes_back_let_no_more_begin() -> None:
    scheduler = scheduler_with()
    scheduler.configure("rate", "tenant:cow", Rate(1))
    push(scheduler, "cow", range(3))
    assert begun(scheduler, 10_000) == 1
    assert begun(scheduler, 5_000) == 0
    assert begun(scheduler, 10_999) == 0
    assert begun(scheduler, 11_000) == 1


def test_a_weight_counts_from_the_next_turn_on() -> None:
    scheduler = scheduler_with()
    push(scheduler, "cow", range(1_000))
    push(scheduler, "bull", range(1_000, 2_000))
    for _ in range(100):
        run_one(scheduler)
    scheduler.configure("tenant", "bull", TenantLimits(weight=4))
    taken = [run_one(scheduler) for _ in range(500)]
    assert 395 <= sum(pick is not None and pick.tenant == "bull" for pick in taken) <= 405


def test_a_worker_that_changes_its_limits_is_served_by_the_new_ones() -> None:
    scheduler = scheduler_with(limits(2, groups=(2,)))
    push(scheduler, "cow", range(10))
    assert begun(scheduler, 0) == 0
    scheduler.connect(WORKER, (), limits(3, groups=(1,)))
    assert begun(scheduler, 0) == 3
    scheduler.connect(WORKER, (), limits(1, groups=(1,)))
    assert (begun(scheduler, 0), scheduler.free(WORKER)) == (0, 0)


def test_tasks_without_a_worker_for_their_type_are_hinted_at_once() -> None:
    scheduler = Scheduler()
    scheduler.connect("painter", ("paint",), limits(groups=(1,)))
    hints = Hints(scheduler, after_ms=5_000)
    push(scheduler, "cow", [7, 8], "resize")
    push(scheduler, "cow", [9], "paint")
    assert hints.look(0) == []
    assert hints.look(4_999) == []
    (hint,) = hints.look(5_000)
    assert (hint.type, hint.tenant, hint.task_id) == ("resize", "cow", 7)
    assert "'resize'" in hint.text and "'painter' (types: paint; groups: 1)" in hint.text
    assert hints.look(60_000) == []
    # It found one and lost it again: that is another time.
    scheduler.connect("second", ("resize",), limits())
    assert hints.look(61_000) == []
    scheduler.disconnect("second")
    assert hints.look(62_000) == []
    assert len(hints.look(67_000)) == 1


def test_a_hint_says_that_no_worker_is_connected() -> None:
    scheduler = Scheduler()
    hints = Hints(scheduler, after_ms=1)
    push(scheduler, "cow", [7])
    hints.look(0)
    assert "none is connected" in hints.look(1)[0].text


def test_nothing_is_kept_of_tenants_and_resources_that_came_once() -> None:
    scheduler = Scheduler(mapping=lambda tenant, _: Target(1, (f"db-{tenant}",)))
    scheduler.connect(WORKER, (), limits())
    for number in range(2_000):
        scheduler.push(QueueKey(f"cow{number}", f"type{number}"), number, 0)
        assert run_one(scheduler) is not None
    assert len(list(scheduler.index.tenants())) < 50
    assert len(list(scheduler.index.gates())) < 50


def test_settings_come_back_from_their_json() -> None:
    settings: list[tuple[str, str, Setting]] = [
        ("resource", "db", Limit(3)),
        ("type", "resize", Limit(0)),
        ("tenant", "cow", TenantLimits(2.5, 1, 4)),
        ("worker", "one", OperatorLimits(3, {"any": 1}, {"db": 2}, 50)),
        ("mapping", "", Mapping(2, ("db",), {"mail": Target(3)})),
        ("rate", "resource:db", Rate(0.5, 3)),
        ("pause", "tenant:a:b", Pause("why")),
        ("quota", "", Quota(100, 1_000_000)),
    ]
    assert {kind for kind, _, _ in settings} == set(KINDS)
    for kind, name, setting in settings:
        assert decode_setting(kind, name, encode_setting(setting)) == setting


@pytest.mark.parametrize(
    ("kind", "name", "value", "says"),
    [
        ("colour", "a", b"{}", "there is no setting 'colour'"),
        ("resource", "", b'{"limit":1}', "needs a name"),
        ("resource", "a", b'{"limit":-1}', "below 0"),
        ("resource", "a", b'{"limit":"1"}', "Expected `int`"),
        ("resource", "a", b'{"limit":1,"more":2}', "unknown field"),
        ("resource", "a", b"nonsense", "malformed"),
        ("tenant", "a", b'{"weight":0}', "a weight lies between"),
        ("tenant", "a", b'{"reserved":2,"maximum":1}', "below what is reserved"),
        ("worker", "a", b'{"share_percent":101}', "a share lies between"),
        ("worker", "a", b'{"resources":{"db":-1}}', "db is below 0"),
        ("mapping", "a", b'{"group":0}', "a group is 1 or more"),
        ("mapping", "a", b'{"group":2147483649}', "a group is 1 or more, up to"),
        ("mapping", "a", b'{"resources":["db",""]}', "a resource's name has 1 to 200 letters"),
        ("mapping", "a", b'{"types":{"x":{"resources":[""]}}}', "a resource's name has 1 to"),
        ("mapping", "a", b'{"resources":[%s]}' % b",".join([b'"r"'] * 65), "65 resources; 64 fit"),
        ("resource", "a" * 201, b'{"limit":1}', "up to 200 letters"),
        ("rate", "a", b'{"per_second":1}', "a rate is set for tenant:NAME"),
        ("rate", "type:a", b'{"per_second":0}', "a rate is above 0"),
        ("pause", "resource:a", b"{}", "a pause is set for tenant:NAME, type:NAME"),
    ],
)
def test_what_is_no_setting_is_refused_with_a_reason(
    kind: str, name: str, value: bytes, says: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        decode_setting(kind, name, value)
    assert says in str(caught.value)
