"""Tasks are submitted, given to workers and ended: what holds on that way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import keys
from broker.applying import TaskChanged
from broker.commands import (
    UNKNOWN_COMMAND,
    Answer,
    Assign,
    Assigned,
    Assignment,
    Ended,
    Outcome,
    Refusal,
    Running,
    Set,
    Spec,
    decode_lists,
    encode,
)
from broker.task import EventKind, Mode, Status
from tests.broker.machine.driving import Driver


def test_tasks_get_consecutive_ids_and_wait() -> None:
    driver = Driver()
    first = driver.taken(*[Spec("send", f"tenant{number}") for number in range(5)])
    assert first == [1, 2, 3, 4, 5] and driver.taken(Spec("send")) == [6]
    task = driver.task(2)
    assert (task.tenant, task.type, task.status) == ("tenant1", "send", Status.WAITING)
    assert task.created_ms == driver.now_ms and not task.events
    assert [change.task.id for change in driver.changes if isinstance(change, TaskChanged)] == [
        1, 2, 3, 4, 5, 6,
    ]  # fmt: skip


def test_a_task_that_starts_later_is_delayed_by_the_time_of_the_command() -> None:
    driver = Driver()
    soon, now = driver.taken(
        Spec("send", due_ms=driver.now_ms + 1), Spec("send", due_ms=driver.now_ms)
    )
    assert driver.status(soon) is Status.DELAYED and driver.status(now) is Status.WAITING


def test_a_long_payload_and_a_long_result_have_rows_of_their_own() -> None:
    driver = Driver()
    session = driver.connect().session
    short, long = driver.taken(Spec("send", payload=b"a" * 256), Spec("send", payload=b"b" * 257))
    assert driver.task(short).payload == b"a" * 256 and not driver.task(short).payload_bytes
    assert driver.task(long).payload == b"" and driver.task(long).payload_bytes == 257
    assert driver.rows.get(keys.numbered(keys.PAYLOAD, long)) == b"b" * 257
    driver.run(session, short, Outcome.FINISHED, result=b"c" * 256)
    driver.run(session, long, Outcome.FINISHED, result=b"d" * 257)
    assert driver.task(short).result == b"c" * 256 and not driver.task(short).result_bytes
    assert driver.task(long).result_bytes == 257
    assert driver.rows.get(keys.numbered(keys.RESULT, long)) == b"d" * 257


def test_a_busy_slot_refuses_and_names_who_has_it() -> None:
    driver = Driver()
    holder, refused = driver.submit(Spec("send", slot="nightly"), Spec("send", slot="nightly"))
    assert refused == Refusal("slot_busy", "slot nightly is held by task 1", holder)
    assert driver.submit(Spec("send", slot="nightly"))[0].task_id == holder
    assert driver.taken(Spec("send", slot="other")) == [2]


def test_a_slot_is_held_over_retries_and_free_after_the_end() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("send", slot="s", attempts_max=2))
    driver.run(session, task_id, Outcome.FAILED, retry_after_ms=0)
    assert isinstance(driver.submit(Spec("send", slot="s"))[0], Refusal)
    driver.run(session, task_id, Outcome.FAILED)
    assert driver.status(task_id) is Status.ERROR
    assert driver.taken(Spec("send", slot="s"))


def test_a_unique_key_answers_with_the_task_that_has_it() -> None:
    driver = Driver()
    session = driver.connect().session
    first, again = driver.submit(*[Spec("send", unique_key="order 5")] * 2)
    assert again == Refusal("duplicate", "task 1 has the unique key order 5", first)
    driver.run(session, first, Outcome.FINISHED)
    assert driver.taken(Spec("send", unique_key="order 5")) == [2]
    assert driver.taken(Spec("send", "acme", unique_key="order 5")) == [3], "keys are a tenant's"


def test_a_deadline_that_is_not_after_the_start_is_refused() -> None:
    driver = Driver()
    now = driver.now_ms
    answers = driver.submit(
        Spec("send", deadline_ms=now),
        Spec("send", due_ms=now + 10, deadline_ms=now + 10),
        Spec("send", due_ms=now + 10, deadline_ms=now + 11),
    )
    assert [getattr(answer, "code", answer) for answer in answers] == [
        "deadline_before_start",
        "deadline_before_start",
        1,
    ]


def test_a_payload_is_bytes_or_an_object_and_not_both() -> None:
    driver = Driver()
    answers = driver.submit(
        Spec("send", payload=b"x", payload_object="object"), Spec("send", payload_object="object")
    )
    assert isinstance(answers[0], Refusal) and answers[0].code == "invalid_task"
    assert driver.task(answers[1]).payload_object == "object"


def test_an_atomic_batch_is_taken_whole_or_not_at_all() -> None:
    driver = Driver()
    before = driver.all()
    answers = driver.submit(Spec("a"), Spec("b", slot="s"), Spec("c", slot="s"), atomic=True)
    assert [answer.code for answer in answers] == ["batch_refused", "batch_refused", "slot_busy"]
    assert [row for row in driver.all() if row[0] != keys.COUNTERS] == before
    assert driver.submit(Spec("a"), Spec("b", slot="s"), atomic=True) == [1, 2]


def test_an_attempt_is_numbered_and_stands_in_the_history() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("send"))
    sent = Assign([Assignment("w", session, [Assigned(task_id, 4, ("db", "net"))])], driver.now_ms)
    driver.send(sent)
    task = driver.task(task_id)
    assert (task.status, task.attempt, task.session) == (Status.RUNNING, 1, session)
    assert (task.group, task.resources, task.worker_id) == (4, ("db", "net"), "w")
    driver.now_ms += 5
    assert driver.finish(session, Ended(task_id, 1, Outcome.FINISHED, b"yes")) == [Answer.DONE]
    task = driver.task(task_id)
    assert (task.status, task.result, task.finished_ms) == (
        Status.FINISHED,
        b"yes",
        driver.now_ms,
    )
    assert [event[1] for event in task.events] == [EventKind.ASSIGNED, EventKind.FINISHED]


def test_what_was_fixed_at_submit_no_assignment_changes() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("send", fixed=True, group=7, resources=("db",)))
    driver.send(Assign([Assignment("w", session, [Assigned(task_id, 1, ("x",))])], driver.now_ms))
    assert (driver.task(task_id).group, driver.task(task_id).resources) == (7, ("db",))
    plain, ungrouped = driver.taken(Spec("a", group=7, resources=("x",)), Spec("a", fixed=True))
    assert (driver.task(plain).group, driver.task(plain).resources) == (0, ())
    assert (driver.task(ungrouped).group, driver.task(ungrouped).resources) == (1, ())


def test_nothing_is_given_twice_or_to_a_session_that_is_not_connected() -> None:
    driver = Driver()
    session = driver.connect().session
    first, second = driver.taken(Spec("a"), Spec("b"))
    assert driver.assign(session, first) == [1]
    assert driver.assign(session, first, 99) == [0, 0]
    assert driver.assign(session + 1, second) == [0]
    assert driver.assign(session, second, worker_id="nobody") == [0]
    driver.lose(session)
    assert driver.assign(session, second) == [0]
    assert driver.status(second) is Status.WAITING


def test_a_task_past_its_deadline_ends_when_it_would_be_given() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("send", deadline_ms=driver.now_ms + 10, slot="s"))
    driver.now_ms += 10
    assert driver.assign(session, task_id) == [0]
    task = driver.task(task_id)
    assert (task.status, task.error, task.dead) == (Status.ERROR, "deadline_expired", False)
    assert driver.taken(Spec("send", slot="s"))


def test_the_same_completion_again_is_known_and_a_stale_one_is_refused() -> None:
    driver = Driver()
    session = driver.connect().session
    (task_id,) = driver.taken(Spec("send", attempts_max=3))
    driver.assign(session, task_id)
    done = Ended(task_id, 1, Outcome.FAILED, error="no", retry_after_ms=0)
    assert driver.finish(session, done, done) == [Answer.DONE, Answer.REPEATED]
    assert driver.assign(session, task_id) == [2]
    assert driver.finish(session, done) == [Answer.STALE]
    assert driver.finish(session, Ended(task_id, 2, Outcome.FINISHED), worker_id="x") == [
        Answer.STALE
    ]
    assert driver.finish(session, Ended(77, 1, Outcome.FINISHED)) == [Answer.UNKNOWN]
    assert driver.status(task_id) is Status.RUNNING


def test_word_from_before_a_reconnect_counts_in_the_new_session_only() -> None:
    driver = Driver()
    session = driver.connect().session
    done, lost = driver.taken(Spec("a"), Spec("b", attempts_max=0))
    driver.assign(session, done, lost)
    assert driver.finish(session, Ended(done, 1, Outcome.FINISHED)) == [Answer.DONE]
    newer = driver.connect(held=[lost]).session
    assert driver.finish(newer, Ended(done, 1, Outcome.FINISHED)) == [Answer.REPEATED]
    assert driver.finish(newer, Ended(lost, 1, Outcome.FINISHED)) == [Answer.STALE]


def test_odd_numbers_of_one_worker_or_mapping_leave_the_others_alone() -> None:
    driver = Driver()
    session = driver.connect().session
    odd, fine, mapped = driver.taken(*[Spec("a", attempts_max=0)] * 3)
    assert driver.assign(session, odd, fine) == [1, 1]
    answers = driver.finish(
        session,
        Ended(odd, 1, Outcome.FAILED, retry_after_ms=2**63 - 1),
        Ended(2**64 - 1, 2**64 - 1, Outcome.FINISHED, retry_after_ms=-5),
        Ended(fine, 1, Outcome.FINISHED),
    )
    assert answers == [Answer.DONE, Answer.UNKNOWN, Answer.DONE]
    assert driver.status(odd) is Status.DELAYED
    item = Assigned(mapped, 2**40, ("", "x" * 300))
    sent = Assign([Assignment("w", session, [Assigned(2**64 - 1), item])], driver.now_ms)
    assert decode_lists(driver.send(sent)) == [[0, 1]]
    assert driver.connect(running=[Running(2**64 - 1, 2**64 - 1), Running(mapped, 1)]).keep == [
        Running(mapped, 1)
    ]


def test_time_never_goes_back() -> None:
    driver = Driver()
    driver.taken(Spec("a"))
    driver.now_ms -= 500
    assert driver.task(driver.taken(Spec("a"))[0]).created_ms == driver.now_ms + 500


@given(st.binary(max_size=40))
def test_bytes_that_are_no_command_change_nothing(noise: bytes) -> None:
    driver = Driver()
    driver.taken(Spec("a"))
    before = driver.all()
    for damaged in (noise, encode(Set("k", "n", b"v", "me", 2**62)), b"", b"\xc1"):
        assert driver.send(damaged) == UNKNOWN_COMMAND
    assert driver.all() == before


@pytest.mark.parametrize("mode", list(Mode))
def test_a_command_cut_short_or_with_another_type_in_it_is_refused(mode: Mode) -> None:
    driver = Driver()
    whole = encode([1, [["send", "acme", b"", 0]], driver.now_ms])
    assert driver.send(whole[:-4]) == UNKNOWN_COMMAND
    assert driver.send(encode([1, [["send", 5]], driver.now_ms])) == UNKNOWN_COMMAND
    assert driver.send(encode([99, 1])) == UNKNOWN_COMMAND
    assert driver.send(encode([1, [["send", "acme", "text", int(mode)]], 5])) == UNKNOWN_COMMAND
    assert not driver.all()
    assert driver.send(whole) == encode([1])
