"""Tasks of a transaction are taken all together or not at all."""

from collections import Counter

import pytest

from broker import keys, reading
from broker.applying import GraphPending, TaskChanged, TransactionChanged
from broker.commands import (
    Answer,
    Begin,
    Cancel,
    Command,
    Commit,
    Delete,
    Due,
    ExpireTransactions,
    Outcome,
    Parent,
    Refusal,
    Retry,
    Rollback,
    Settle,
    Spec,
    Submit,
)
from broker.task import Status
from engine.state.memory import MemoryState
from tests.broker.machine.driving import Driver


def begin(driver: Driver, life_ms: int = 1_000) -> int:
    """A transaction's id."""
    found = driver.one(Begin(driver.now_ms + life_ms, driver.now_ms, "ann"))
    assert isinstance(found, int)
    return found


def test_tasks_of_a_transaction_are_given_to_nobody_until_it_is_committed() -> None:
    driver = Driver()
    session = driver.connect().session
    number = begin(driver)
    now, later = driver.taken(Spec("a"), Spec("b", due_ms=driver.now_ms + 500), transaction=number)
    assert driver.assign(session, now, later) == [0, 0]
    assert driver.status(now) is Status.PREPARED
    assert driver.numbers(Cancel([now], "me", driver.now_ms)) == [Answer.NOT_NOW]
    assert driver.one(Commit(number, driver.now_ms)) == 2
    assert (driver.status(now), driver.status(later)) == (Status.WAITING, Status.DELAYED)
    assert driver.assign(session, now) == [1]
    assert driver.one(Commit(number, driver.now_ms)).code == "unknown_transaction"


def test_a_transaction_of_several_batches_is_committed_whole() -> None:
    driver = Driver()
    number, other = begin(driver), begin(driver)
    mine = [driver.taken(Spec("a"), Spec("b"), transaction=number)]
    driver.taken(Spec("c"), transaction=other)
    mine.append(driver.taken(Spec("d"), transaction=number))
    assert driver.one(Commit(number, driver.now_ms)) == 3
    assert {driver.status(one) for ids in mine for one in ids} == {Status.WAITING}
    assert driver.status(3) is Status.PREPARED


def test_a_rollback_leaves_nothing() -> None:
    driver = Driver()
    (outside,) = driver.taken(Spec("a"))
    before = dict(driver.all())
    number = begin(driver)
    parent, _ = driver.taken(
        Spec("b", slot="s", unique_key="u", payload=bytes(300)),
        Spec("c", parents=(Parent(index=0), Parent(outside))),
        transaction=number,
    )
    assert driver.submit(Spec("x", slot="s"))[0].task_id == parent
    assert driver.one(Rollback(number, driver.now_ms)) == 2
    after = dict(driver.all())
    assert not {key for key in after if key not in before}, "no edge from outside either"
    assert driver.taken(Spec("x", slot="s", unique_key="u"))
    driver.numbers(Cancel([outside], "me", driver.now_ms))


def test_tasks_that_a_commit_has_not_come_to_yet_are_as_good_as_committed() -> None:
    driver = Driver()
    committed, undone = begin(driver), begin(driver)
    for number in (committed, undone):
        for _ in range(2):
            driver.taken(*[Spec("a")] * 600, transaction=number)
    driver.one(Commit(committed, driver.now_ms))
    driver.one(Rollback(undone, driver.now_ms))
    (child,) = driver.taken(Spec("b", parents=(Parent(1_200),)))
    assert driver.submit(Spec("b", parents=(Parent(2_400),)))[0].code == "unknown_parent"
    assert driver.numbers(Cancel([1_200, 2_400], "ann", driver.now_ms)) == [
        Answer.ASKED, Answer.NOT_NOW,
    ]  # fmt: skip
    while driver.one(Settle(driver.now_ms)):
        pass
    assert (driver.status(1_199), driver.status(1_200)) == (Status.WAITING, Status.CANCELLED)
    assert driver.status(child) is Status.CANCELLED
    assert reading.get_task(driver.rows, 2_400) is None


@pytest.mark.parametrize("swept", [False, True])
def test_a_transaction_past_its_time_cannot_be_committed(swept: bool) -> None:
    driver = Driver()
    number = begin(driver, 1_000)
    driver.taken(Spec("a", slot="s"), transaction=number)
    young = begin(driver, 2_000)
    driver.now_ms += 1_000
    if swept:
        assert driver.one(ExpireTransactions(driver.now_ms)) == 1
    refusal = driver.one(Commit(number, driver.now_ms))
    assert isinstance(refusal, Refusal) and refusal.code == "unknown_transaction"
    assert driver.submit(Spec("a"), transaction=number)[0].code == "unknown_transaction"
    if not swept:
        assert driver.one(Rollback(number, driver.now_ms)) == 1
    assert driver.taken(Spec("a", slot="s"))
    assert driver.one(Commit(young, driver.now_ms)) == 0


def test_transactions_that_pass_their_time_together_all_end() -> None:
    driver = Driver()
    numbers = [begin(driver) for _ in range(3)]
    for number in numbers:
        for _ in range(2):
            driver.taken(*[Spec("a")] * 400, transaction=number)
    driver.now_ms += 1_000
    driver.changes.clear()
    assert driver.one(ExpireTransactions(driver.now_ms)) == 3
    assert not driver.all(keys.TRANSACTION)
    ended = [change for change in driver.changes if isinstance(change, TransactionChanged)]
    assert [(one.transaction_id, one.transaction) for one in ended] == [
        (number, None) for number in numbers
    ]
    assert GraphPending() in driver.changes and reading.unsettled(driver.rows)
    assert driver.one(Settle(driver.now_ms)) == 1
    assert driver.one(Settle(driver.now_ms)) == 0
    assert [key[:1] for key, _ in driver.all()] == [keys.COUNTERS]


def test_a_large_commit_is_one_decision_and_its_tasks_follow() -> None:
    driver = Driver()
    session = driver.connect().session
    number = begin(driver)
    first = driver.taken(*[Spec("a")] * 1_000, transaction=number)
    parents = (Parent(first[0]), Parent(first[1]))
    child, other = driver.taken(
        Spec("b", parents=parents), Spec("c", parents=parents), transaction=number
    )
    assert driver.one(Commit(number, driver.now_ms)) == 1_002
    assert driver.status(first[-1]) is Status.WAITING
    assert driver.status(child) is Status.PREPARED
    for command in (Commit(number, driver.now_ms), Rollback(number, driver.now_ms)):
        assert driver.one(command).code == "unknown_transaction"
    driver.run(session, first[0], Outcome.FINISHED)
    driver.run(session, first[1], Outcome.FAILED)
    assert driver.one(Settle(driver.now_ms)) == 0
    assert driver.status(child) is driver.status(other) is Status.CANCELLED
    assert not driver.all(keys.ENDING) and not driver.all(keys.PARENTS)
    assert not driver.all(keys.EDGE)


def _seen(driver: Driver) -> dict[int, Status]:
    """The state of all tasks, as a reader sees it."""
    page = reading.list_tasks(driver.rows, reading.TaskFilter(), 0, 20_000, 20_000)
    seen = {task.id: task.status for task in page.tasks}
    for task_id in range(1, max(seen, default=0) + 2):
        found = reading.get_task(driver.rows, task_id)
        assert seen.get(task_id) is (None if found is None else found.status)
    tally: reading.Tally = Counter()
    assert reading.tally(driver.rows, tally, final=False, looks_max=20_000) is None
    assert reading.tally(driver.rows, tally, final=True, looks_max=20_000) is None
    assert sum(tally.values()) == len(seen)
    for status in Status:
        assert sum(n for key, n in tally.items() if key[0] is status) == list(seen.values()).count(
            status
        )
    return seen


def _large(driver: Driver, tasks: int = 2_500) -> tuple[int, list[int]]:
    """An open transaction of many tasks, the last of which holds a slot and a unique key."""
    number = begin(driver)
    ids: list[int] = []
    while len(ids) < tasks - 1:
        count = min(1_000, tasks - 1 - len(ids))
        ids += driver.taken(*[Spec("a")] * count, transaction=number)
    return number, ids + driver.taken(Spec("a", slot="s", unique_key="u"), transaction=number)


def test_a_large_commit_is_seen_whole_by_everybody_at_one_position() -> None:
    driver = Driver()
    session = driver.connect().session
    number, ids = _large(driver)
    assert set(_seen(driver).values()) == {Status.PREPARED}
    assert driver.one(Commit(number, driver.now_ms, whole=True)) == 2_500
    assert set(_seen(driver).values()) == {Status.WAITING}
    waiting = reading.TaskFilter(statuses=frozenset((Status.WAITING,)))
    page = reading.list_tasks(driver.rows, waiting, ids[-2], 5)
    assert [task.id for task in page.tasks] == [ids[-1]]
    assert driver.numbers(Cancel([ids[-2]], "ann", driver.now_ms)) == [Answer.DONE]
    assert driver.assign(session, ids[-3]) == [1]
    assert driver.items(Retry([ids[-4], ids[-2]], "ann", driver.now_ms)) == [
        Answer.NOT_NOW, Answer.DONE,
    ]  # fmt: skip
    seen = _seen(driver)
    while driver.one(Settle(driver.now_ms)):
        assert _seen(driver) == seen
    assert _seen(driver) == seen and seen[ids[-3]] is Status.RUNNING
    assert not driver.all(keys.ENDING) and not driver.all(keys.WHOLE)
    told = Counter(
        change.task.id
        for change in driver.changes
        if isinstance(change, TaskChanged) and change.before is Status.PREPARED
    )
    assert set(told) == set(ids) and set(told.values()) == {1}, "each is told to have gone once"


@pytest.mark.parametrize("expired", [False, True])
def test_a_large_rollback_is_seen_whole_by_everybody_at_one_position(expired: bool) -> None:
    driver = Driver()
    number, ids = _large(driver)
    if expired:
        driver.now_ms += 1_000
        assert driver.one(ExpireTransactions(driver.now_ms, whole=True)) == 1
    else:
        assert driver.one(Rollback(number, driver.now_ms, whole=True)) == 2_500
    assert _seen(driver) == {} and reading.list_slots(driver.rows) == []
    for command in (Cancel([ids[-2]], "ann", driver.now_ms), Delete([ids[-3]], driver.now_ms)):
        assert driver.numbers(command) == [Answer.UNKNOWN]
    assert driver.items(Retry([ids[-4]], "ann", driver.now_ms)) == [Answer.UNKNOWN]
    assert driver.submit(Spec("b", parents=(Parent(ids[-5]),)))[0].code == "unknown_parent"
    (new,) = driver.taken(Spec("b", slot="s", unique_key="u"))
    assert _seen(driver) == {new: Status.WAITING}
    while driver.one(Settle(driver.now_ms)):
        assert _seen(driver) == {new: Status.WAITING}
    assert reading.list_slots(driver.rows) == [("s", new)]
    assert not driver.all(keys.ENDING) and not driver.all(keys.WHOLE)


def test_a_task_of_a_large_commit_is_delayed_or_blocked_as_it_was_at_the_commit() -> None:
    driver = Driver()
    number, ids = _large(driver)
    (delayed,) = driver.taken(Spec("a", due_ms=driver.now_ms + 500), transaction=number)
    (child,) = driver.taken(Spec("a", parents=(Parent(ids[-1]),)), transaction=number)
    driver.one(Commit(number, driver.now_ms, whole=True))
    driver.now_ms += 600
    seen = _seen(driver)
    assert (seen[delayed], seen[child]) == (Status.DELAYED, Status.BLOCKED)
    assert driver.numbers(Due([delayed], driver.now_ms)) == [Answer.DONE]
    seen = _seen(driver)
    assert seen[delayed] is Status.WAITING
    while driver.one(Settle(driver.now_ms)):
        assert _seen(driver) == seen
    assert _seen(driver) == seen


class _Counted(MemoryState):
    """Rows that count what is written and read."""

    def __init__(self) -> None:
        super().__init__()
        self.touched = 0

    def put(self, key: bytes, value: bytes) -> None:
        self.touched += 1
        super().put(key, value)

    def get(self, key: bytes) -> bytes | None:
        self.touched += 1
        return super().get(key)


@pytest.mark.parametrize("committed", [False, True])
def test_the_end_of_the_largest_transaction_is_bounded_work_in_each_command(
    committed: bool,
) -> None:
    driver = Driver()
    driver.rows = rows = _Counted()
    driver.machine.listener = None
    number, _ = _large(driver, 10_000)
    end = Commit if committed else Rollback
    command: Command = end(number, driver.now_ms, whole=True)
    most = 0
    while True:
        rows.touched = 0
        answer = driver.one(command)
        most = max(most, rows.touched)
        command = Settle(driver.now_ms)
        if not answer:
            break
    assert most < 5_000


def test_there_are_bounds_to_open_transactions() -> None:
    driver = Driver()
    driver.machine.listener = None
    young = [begin(driver, 5_000) for _ in range(9_999)]
    old = begin(driver, 1)
    refusal = driver.one(Begin(driver.now_ms + 5, driver.now_ms))
    assert isinstance(refusal, Refusal) and refusal.error.retryable
    driver.now_ms += 1
    assert driver.one(ExpireTransactions(driver.now_ms)) == 1, "also behind so many others"
    assert driver.rows.get(keys.numbered(keys.TRANSACTION, old)) is None
    assert begin(driver) > young[-1]


def test_a_transaction_is_its_owners() -> None:
    driver = Driver()
    number = begin(driver)
    before = driver.all()
    specs = [Spec("a", slot="s")]
    for command in (
        Commit(number, driver.now_ms, "bob"),
        Rollback(number, driver.now_ms, "bob"),
    ):
        assert driver.one(command).code == "access_denied"
    (refused,) = driver.items(Submit(specs, driver.now_ms, number, owner="bob"))
    assert isinstance(refused, Refusal) and refused.code == "access_denied"
    assert driver.all() == before
    assert driver.items(Submit(specs, driver.now_ms, number, owner="ann")) == [1]
    assert driver.one(Commit(number, driver.now_ms, "ann")) == 1


def test_an_unknown_transaction_takes_no_slot() -> None:
    driver = Driver()
    answers = driver.submit(Spec("a", slot="s"), Spec("b"), transaction=99)
    assert [answer.code for answer in answers] == ["unknown_transaction"] * 2
    assert driver.taken(Spec("a", slot="s")) == [1]


def test_a_transaction_holds_ten_thousand_tasks_and_no_more() -> None:
    driver = Driver()
    driver.machine.listener = None
    number = begin(driver)
    for _ in range(10):
        driver.taken(*[Spec("a")] * 1_000, transaction=number)
    assert driver.submit(Spec("a"), transaction=number)[0].code == "transaction_full"
    assert driver.one(Commit(number, driver.now_ms)) == 10_000
    while driver.one(Settle(driver.now_ms)):
        pass
    waiting = reading.active_tasks(driver.rows, limit=20_000)
    assert len(waiting) == 10_000 and {one.status for one in waiting} == {Status.WAITING}
