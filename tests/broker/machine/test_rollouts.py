"""Roll-outs as rows: one record, one way, one holder of a cluster."""

from typing import Any

from broker import keys, reading
from broker.commands import Answer, Cancel, Ended, Outcome, Refusal, Retry, Spec
from broker.rollout_commands import (
    Note,
    RolloutAnswer,
    RolloutChange,
    RolloutPut,
    RolloutRemove,
    decode_rollout_answer,
)
from broker.task import Mode, Status
from tests.broker.machine.driving import Driver

STEP = Spec("rollout:a", mode=Mode.AT_MOST_ONCE, slot="node:a")


def put(driver: Driver, version: int = 0, name: str = "r", **more: Any) -> RolloutAnswer:
    change = RolloutChange(
        name,
        version,
        more.get("record", b"record"),
        more.get("cluster", "geo"),
        more.get("ended", False),
        more.get("specs", ()),
        more.get("notes", ()),
    )
    return decode_rollout_answer(driver.send(RolloutPut(change, "elsa", driver.now_ms)))


def remove(driver: Driver, version: int, name: str = "r") -> RolloutAnswer:
    return decode_rollout_answer(driver.send(RolloutRemove(name, version, driver.now_ms)))


def test_a_record_goes_from_the_version_that_was_seen_and_from_no_other() -> None:
    driver = Driver()
    assert put(driver) == RolloutAnswer()
    row = reading.get_rollout(driver.rows, "r")
    assert row is not None and (row.version, row.by, row.cluster) == (1, "elsa", "geo")
    driver.now_ms += 5
    assert put(driver).code == "duplicate"
    assert put(driver, 2).code == put(driver, 7).code == "rollout_changed"
    assert not put(driver, 1, record=b"two").code
    assert put(driver, 1, record=b"late").code == "rollout_changed"
    row = reading.get_rollout(driver.rows, "r")
    assert row is not None and (row.version, row.record) == (2, b"two")
    assert row.changed_ms - row.created_ms == 5
    assert put(driver, 2, cluster="other").code == "not_in_state"
    assert put(driver, 1, name="unknown", cluster="other").code == "rollout_changed"


def test_a_record_its_tasks_and_its_notes_are_written_together_or_not_at_all() -> None:
    driver = Driver()
    put(driver)
    note = Note(1, "elsa", "a", "begins")
    answer = put(driver, 1, specs=[STEP, Spec("rollout:b")], notes=[note])
    assert answer.task_ids == [1, 2]
    assert driver.status(1) is Status.WAITING
    assert reading.rollout_notes(driver.rows, "r") == [(2, [note])]
    before = driver.all()
    # Its slot is held: nothing of it happens, not even what could.
    refused = put(driver, 2, specs=[Spec("rollout:c"), STEP], notes=[note])
    assert refused.code == "slot_busy" and "node:a" in refused.message
    assert put(driver, 2, specs=[Spec("milk")]).code == "invalid_task"
    assert put(driver, 1, specs=[Spec("rollout:c")]).code == "rollout_changed"
    assert [row for row in driver.all() if row[0] != keys.COUNTERS] == [
        row for row in before if row[0] != keys.COUNTERS
    ]
    assert driver.taken(Spec("milk")) == [3]


def test_a_cluster_has_one_roll_out_until_that_has_ended() -> None:
    driver = Driver()
    put(driver)
    assert put(driver, name="second").code == "cluster_busy"
    assert not put(driver, name="third", cluster="other").code
    assert reading.held_clusters(driver.rows) == [("geo", "r"), ("other", "third")]
    assert not put(driver, 1, ended=True).code
    assert put(driver, 2).code == "not_in_state"
    assert not put(driver, name="second").code
    assert reading.held_clusters(driver.rows) == [("geo", "second"), ("other", "third")]
    assert [row.name for row in reading.list_rollouts(driver.rows)] == ["r", "second", "third"]
    assert [row.name for row in reading.list_rollouts(driver.rows, "r", 1)] == ["second"]


def test_what_has_ended_is_removed_with_its_notes_part_by_part() -> None:
    driver = Driver()
    note = [Note(1, "", "", "x")]
    for version in range(1_100):
        assert not put(driver, version, notes=note).code
    put(driver, name="r2", cluster="other", notes=note)
    assert remove(driver, 1_100).code == "not_in_state"
    put(driver, 1_100, ended=True)
    assert remove(driver, 9).code == "rollout_changed"
    assert remove(driver, 1, "nobody").code == "unknown_rollout"
    assert remove(driver, 1_101) == RolloutAnswer(again=True)
    assert remove(driver, 1_101) == RolloutAnswer()
    assert reading.get_rollout(driver.rows, "r") is None
    assert reading.rollout_notes(driver.rows, "r") == []
    assert len(reading.rollout_notes(driver.rows, "r2")) == 1
    assert reading.get_counters(driver.rows).rollouts == 1


def test_nobody_else_submits_steps_or_begins_them_anew() -> None:
    driver = Driver()
    [refusal] = driver.submit(Spec("rollout:a"))
    assert isinstance(refusal, Refusal) and refusal.code == "invalid_task"
    put(driver, specs=[STEP])
    session = driver.connect().session
    [attempt] = driver.assign(session, 1)
    failed = Ended(1, attempt, Outcome.FAILED, error="it broke")
    assert driver.finish(session, failed) == [Answer.DONE]
    assert driver.task(1).dead
    assert driver.items(Retry([1], "elsa", driver.now_ms)) == [Answer.NOT_NOW]
    assert driver.numbers(Cancel([1], "elsa", driver.now_ms)) == [Answer.NOT_NOW]


def test_a_page_of_big_records_ends_early() -> None:
    driver = Driver()
    for name in "abcde":
        put(driver, name=name, cluster=name, record=bytes(900_000))
    first = reading.list_rollouts(driver.rows)
    assert [row.name for row in first] == ["a", "b", "c"]
    assert [row.name for row in reading.list_rollouts(driver.rows, "c")] == ["d", "e"]
    assert (
        reading.list_rollouts(driver.rows, "e") == reading.list_rollouts(driver.rows, "", 0) == []
    )


def test_agents_are_listed_by_the_beginning_of_their_names() -> None:
    driver = Driver()
    for worker_id in ("agent", "agent:a", "agent:b", "agentic", "b"):
        driver.connect(worker_id)
    found = reading.list_workers(driver.rows, prefix="agent:")
    assert [each.worker_id for each in found] == ["agent:a", "agent:b"]
    assert [each.worker_id for each in reading.list_workers(driver.rows, "agent:a", 2)] == [
        "agent:b",
        "agentic",
    ]
