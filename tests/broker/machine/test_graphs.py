"""Tasks that wait for others: rules of edges, ends that pass on, and bounded work."""

import pytest

from broker import keys
from broker.applying import GraphPending
from broker.commands import (
    SETTLED_MAX,
    Answer,
    Begin,
    Cancel,
    Commit,
    Delete,
    Outcome,
    Parent,
    Refusal,
    Retry,
    Rollback,
    Settle,
    Spec,
)
from broker.task import Rule, Status
from tests.broker.machine.driving import Driver

SUCCESS, FAILURE, ALWAYS = Rule.ON_SUCCESS, Rule.ON_FAILURE, Rule.ALWAYS


def after(*parents: int, rule: Rule = SUCCESS) -> Spec:
    """A task with these parents."""
    return Spec("child", parents=tuple(Parent(parent, rule=rule) for parent in parents))


def clean(driver: Driver) -> bool:
    """Whether no edge and nothing unsettled is left."""
    return not driver.all(keys.EDGE) and not driver.all(keys.UNSETTLED)


@pytest.mark.parametrize(
    ("outcome", "rule", "status"),
    [
        (Outcome.FINISHED, SUCCESS, Status.WAITING),
        (Outcome.FINISHED, FAILURE, Status.CANCELLED),
        (Outcome.FINISHED, ALWAYS, Status.WAITING),
        (Outcome.FAILED, SUCCESS, Status.CANCELLED),
        (Outcome.FAILED, FAILURE, Status.WAITING),
        (Outcome.FAILED, ALWAYS, Status.WAITING),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_child_goes_as_its_rule_says(
    outcome: Outcome, rule: Rule, status: Status, late: bool
) -> None:
    driver = Driver()
    session = driver.connect().session
    (parent,) = driver.taken(Spec("parent"))
    if late:
        driver.run(session, parent, outcome)
    (child,) = driver.taken(after(parent, rule=rule))
    if not late:
        assert driver.status(child) is Status.BLOCKED
        assert driver.assign(session, child) == [0]
        driver.run(session, parent, outcome)
    assert driver.status(child) is status
    if status is Status.CANCELLED:
        assert f"parent {parent} ended as" in driver.task(child).error
    assert clean(driver)


def test_a_child_of_several_waits_for_the_last_of_them() -> None:
    driver = Driver()
    session = driver.connect().session
    parents = driver.taken(*[Spec("parent")] * 3)
    (child,) = driver.taken(after(*parents))
    for parent in parents:
        assert driver.status(child) is Status.BLOCKED
        driver.run(session, parent, Outcome.FINISHED)
    assert driver.status(child) is Status.WAITING and clean(driver)


def test_a_failed_attempt_that_is_tried_again_is_no_end() -> None:
    driver = Driver()
    session = driver.connect().session
    (parent,) = driver.taken(Spec("parent", attempts_max=2))
    (child,) = driver.taken(after(parent))
    driver.run(session, parent, Outcome.FAILED, retry_after_ms=0)
    assert driver.status(child) is Status.BLOCKED
    driver.run(session, parent, Outcome.FINISHED)
    assert driver.status(child) is Status.WAITING


def test_an_end_passes_down_a_chain_that_was_one_batch() -> None:
    driver = Driver()
    ids = driver.taken(
        Spec("first"),
        *[Spec("next", parents=(Parent(index=number),)) for number in range(20)],
        Spec("cleaning", parents=(Parent(index=20, rule=ALWAYS),)),
    )
    driver.numbers(Cancel([ids[0]], "ann", driver.now_ms))
    assert {driver.status(one) for one in ids[:-1]} == {Status.CANCELLED}
    assert driver.status(ids[-1]) is Status.WAITING and clean(driver)


def test_a_parent_of_very_many_children_is_settled_by_parts() -> None:
    driver = Driver()
    session = driver.connect().session
    (parent,) = driver.taken(Spec("parent"))
    children = driver.taken(*[after(parent)] * 1_000) + driver.taken(*[after(parent)] * 500)
    driver.changes.clear()
    driver.run(session, parent, Outcome.FINISHED)
    waiting = [one for one in children if driver.status(one) is Status.WAITING]
    assert len(waiting) == SETTLED_MAX
    assert any(isinstance(change, GraphPending) for change in driver.changes)
    assert driver.one(Settle(driver.now_ms)) == 0
    assert {driver.status(one) for one in children} == {Status.WAITING} and clean(driver)


def test_settling_goes_on_whatever_became_of_the_parent_meanwhile() -> None:
    driver = Driver()
    (parent,) = driver.taken(Spec("parent"))
    children = driver.taken(*[after(parent)] * 1_000) + driver.taken(*[after(parent)] * 10)
    driver.numbers(Cancel([parent], "ann", driver.now_ms))
    retried = driver.items(Retry([parent], "ann", driver.now_ms))
    assert retried == [Answer.NOT_NOW], "its next children would be told of this end"
    assert driver.numbers(Delete([parent], driver.now_ms)) == [Answer.DONE]
    assert driver.one(Settle(driver.now_ms)) == 0
    assert {driver.status(one) for one in children} == {Status.CANCELLED} and clean(driver)


def test_parents_that_are_not_there_are_refused() -> None:
    driver = Driver()
    answers = driver.submit(
        after(77),
        Spec("a", parents=(Parent(index=0),)),
        Spec("b", parents=(Parent(index=2),)),
        Spec("c", parents=(Parent(),)),
        Spec("d"),
        Spec("e", parents=(Parent(index=4, rule=SUCCESS), Parent(index=4, rule=ALWAYS))),
    )
    codes = [answer.code if isinstance(answer, Refusal) else answer for answer in answers]
    assert codes == ["unknown_parent"] * 4 + [1, "invalid_task"]
    assert clean(driver)


def test_the_same_parent_twice_with_one_rule_is_one_edge() -> None:
    driver = Driver()
    session = driver.connect().session
    (parent,) = driver.taken(Spec("a"))
    (child,) = driver.taken(after(parent, parent))
    driver.run(session, parent, Outcome.FINISHED)
    assert driver.status(child) is Status.WAITING


def test_a_graph_in_a_transaction_waits_for_its_commit() -> None:
    driver = Driver()
    session = driver.connect().session
    good, bad = driver.taken(Spec("good"), Spec("bad"))
    number = driver.one(Begin(driver.now_ms + 1_000, driver.now_ms))
    fine, broken, inner = driver.taken(
        after(good), after(bad), Spec("inner", parents=(Parent(index=0),)), transaction=number
    )
    driver.run(session, good, Outcome.FINISHED)
    driver.run(session, bad, Outcome.FAILED)
    assert {driver.status(one) for one in (fine, broken, inner)} == {Status.PREPARED}
    assert driver.submit(after(fine))[0].code == "unknown_parent"
    driver.one(Commit(number, driver.now_ms))
    assert [driver.status(one) for one in (fine, broken, inner)] == [
        Status.WAITING, Status.CANCELLED, Status.BLOCKED,
    ]  # fmt: skip


def test_a_parent_may_end_after_its_child_was_rolled_back() -> None:
    driver = Driver()
    session = driver.connect().session
    (parent,) = driver.taken(Spec("parent"))
    number = driver.one(Begin(driver.now_ms + 1_000, driver.now_ms))
    driver.taken(after(parent), transaction=number)
    driver.one(Rollback(number, driver.now_ms))
    driver.run(session, parent, Outcome.FINISHED)
    assert clean(driver)


def test_a_cancelled_child_takes_no_notice_of_its_other_parents() -> None:
    driver = Driver()
    session = driver.connect().session
    one, other = driver.taken(Spec("a"), Spec("b"))
    (child,) = driver.taken(after(one, other))
    driver.run(session, one, Outcome.FAILED)
    assert driver.status(child) is Status.CANCELLED
    driver.run(session, other, Outcome.FINISHED)
    assert driver.status(child) is Status.CANCELLED and clean(driver)


def test_a_batch_has_a_bounded_number_of_edges() -> None:
    driver = Driver()
    driver.machine.listener = None
    parents = driver.taken(*[Spec("a")] * 900)
    answers = driver.submit(after(*parents), after(*parents[:100]), after(parents[0]))
    assert [type(answer) for answer in answers] == [int, int, Refusal]
