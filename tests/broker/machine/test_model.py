"""Any commands in any order: what always holds of the rows, and of all replicas alike.

Each example draws some sixty commands; what they refer to, tasks, sessions, transactions, is drawn
from what there is at that moment, and now and then from what there is not.
"""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker import keys
from broker.applying import TaskChanged
from broker.commands import (
    Begin,
    Cancel,
    Command,
    Commit,
    Delete,
    Due,
    Ended,
    Expire,
    ExpireTransactions,
    Outcome,
    Parent,
    Purge,
    Refusal,
    Retry,
    Rollback,
    Running,
    Settle,
    Spec,
)
from broker.machine import BrokerMachine
from broker.task import (
    Backoff,
    EventKind,
    Mode,
    Rule,
    SessionState,
    Status,
    Task,
    decode_task,
    decode_transaction,
    decode_worker,
)
from engine.log.position import Position
from engine.state.memory import MemoryState
from tests.broker.machine.driving import Driver

NUMBERS = st.integers(0, 200)
ENDS = (Outcome.FINISHED, Outcome.FAILED, Outcome.HANDED_BACK, Outcome.INTERRUPTED)
WORKERS = ("w", "x")
BLOCKERS = (Status.BLOCKED, Status.PREPARED)


class Model(Driver):
    """A driver that draws what it sends, and keeps what only an outsider can know."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: dict[int, tuple[int, str]] = {}
        """Of each task the newest attempt and who was given it."""
        self.begun: Counter[int] = Counter()
        """Of tasks that may begin once at most: how often, since somebody retried them."""
        self.there: set[int] = set()
        """Tasks that were taken and that nobody removed."""
        self.moves = {
            "submit": self.draw_submit,
            "assign": self.draw_assign,
            "finish": self.draw_finish,
            "connect": self.draw_connect,
            "lose": self.draw_lose,
            "transaction": self.draw_transaction,
            "touch": self.draw_touch,
            "time": self.draw_time,
        }

    def tasks(self) -> dict[int, Task]:
        """All of them; asserts that each is in one place."""
        found: dict[int, Task] = {}
        for kind in (keys.ACTIVE, keys.FINAL):
            for key, row in self.all(kind):
                task = decode_task(row)
                assert task.id not in found and keys.number_of(key) == task.id
                assert task.status.final is (kind == keys.FINAL)
                found[task.id] = task
        return found

    def session_of(self, worker_id: str) -> int:
        """A worker's newest session, 0 for none."""
        row = self.rows.get(keys.named(keys.WORKER, worker_id))
        return 0 if row is None else decode_worker(row).session

    def held(self, worker_id: str) -> list[int]:
        """What a leader knows to run there."""
        return [
            task.id
            for task in self.tasks().values()
            if task.status is Status.RUNNING and task.worker_id == worker_id
        ]

    def pick(self, number: int) -> int:
        """A task's id, mostly of one there is."""
        ids = sorted(self.there)
        return ids[number % len(ids)] if ids and number % 10 else number

    def open(self, number: int) -> int:
        """A transaction, mostly one that is open."""
        ids = [keys.number_of(key) for key, _ in self.all(keys.TRANSACTION)]
        return ids[number % len(ids)] if ids and number % 10 else number

    def draw_submit(self, a: int, b: int, c: int) -> None:
        """One to four tasks of drawn kinds."""
        specs = []
        for number in range(1 + a % 4):
            kind = (b + number * 7) % 12
            specs.append(
                Spec(
                    "send",
                    mode=Mode.AT_MOST_ONCE if kind % 3 == 0 else Mode.AT_LEAST_ONCE,
                    attempts_max=kind % 4,
                    slot=f"s{c % 3}" if kind in (1, 6) else "",
                    unique_key=f"u{c % 3}" if kind in (2, 6) else "",
                    due_ms=self.now_ms + c % 40 if kind in (3, 7) else 0,
                    deadline_ms=self.now_ms + c if kind in (4, 7) else 0,
                    backoff=Backoff(c % 30),
                    retention_ms=c * 5,
                    dead_retention_ms=c * 9,
                    payload=bytes(300) if kind == 8 else b"",
                    parents=self.draw_parents(number, c) if kind > 8 else (),
                )
            )
        before = dict(self.all())
        transaction = self.open(c) if a % 3 == 0 else 0
        atomic = b % 5 == 0
        answers = self.submit(*specs, transaction=transaction, atomic=atomic)
        taken = [answer for answer in answers if not isinstance(answer, Refusal)]
        if not taken:
            after = dict(self.all())
            assert before == {**after, keys.COUNTERS: before.get(keys.COUNTERS)} or not before
        assert not (atomic and taken) or len(taken) == len(answers)
        self.there.update(taken)

    def draw_parents(self, number: int, c: int) -> tuple[Parent, ...]:
        """One parent in the batch, or two there are."""
        if number and c % 2:
            return (Parent(index=number - 1, rule=Rule(c % 3)),)
        return tuple(Parent(self.pick(c + more), rule=Rule(c % 3)) for more in (1, 6))

    def draw_assign(self, a: int, b: int, c: int) -> None:
        """Some tasks to a worker, in its newest session or in another one."""
        worker_id = WORKERS[a % 2]
        session = self.session_of(worker_id) - (b % 9 == 0)
        ids = list(dict.fromkeys(self.pick(c + more) for more in range(1 + b % 5)))
        for task_id, attempt in zip(
            ids, self.assign(max(session, 0), *ids, worker_id=worker_id), strict=True
        ):
            if attempt:
                assert attempt > self.tokens.get(task_id, (0, ""))[0], "tokens grow"
                self.tokens[task_id] = (attempt, worker_id)
                task = self.task(task_id)
                if task.mode is Mode.AT_MOST_ONCE:
                    self.begun[task_id] += 1
                    assert self.begun[task_id] == 1, task

    def draw_finish(self, a: int, b: int, c: int) -> None:
        """Word of some attempts, of the newest or of older ones, sometimes twice."""
        worker_id = WORKERS[a % 2]
        items = []
        held = self.held(worker_id)
        for more in range(1 + b % 3):
            task_id = held[(c + more) % len(held)] if held and b % 6 else self.pick(c + more)
            attempt = self.tokens.get(task_id, (0, ""))[0] - (a % 7 == 0)
            items.append(Ended(task_id, max(attempt, 0), ENDS[(a + b) % 4], bytes(c * 3), "why"))
        session = max(self.session_of(worker_id) - (b % 9 == 0), 0)
        before = self.tasks()
        answers = self.finish(session, *items, worker_id=worker_id, drawn=c << 40)
        again = self.finish(session, *items, worker_id=worker_id, drawn=c << 40)
        assert [3 if answer == 1 else answer for answer in answers] == again
        for item, answer in zip(items, answers, strict=True):
            task = before.get(item.task_id)
            if answer == 1:
                assert task is not None and task.status is Status.RUNNING
                assert (task.attempt, task.worker_id) == (item.attempt, worker_id)
                if item.outcome is Outcome.HANDED_BACK:
                    self.begun[item.task_id] = 0

    def draw_connect(self, a: int, b: int, c: int) -> None:
        """A worker comes, perhaps as another process, and lists some of what it had."""
        worker_id = WORKERS[a % 2]
        held = self.held(worker_id)
        listed = [Running(one, self.tokens[one][0]) for one in held if (one + c) % 3]
        listed.append(Running(c, 1))
        opened = self.connect(worker_id, f"p{b % 2}", listed, held)
        assert set(self.held(worker_id)) == {running.task_id for running in opened.keep}

    def draw_lose(self, a: int, b: int, c: int) -> None:
        """A worker is lost or leaves, sometimes one of an older session."""
        worker_id = WORKERS[a % 2]
        session = max(self.session_of(worker_id) - (b % 4 == 0), 0)
        self.lose(session, *self.held(worker_id), worker_id=worker_id, left=c % 2 == 0)

    def draw_transaction(self, a: int, b: int, c: int) -> None:
        """One begins or ends, all its tasks alike."""
        number = self.open(c)
        row = self.rows.get(keys.numbered(keys.TRANSACTION, number))
        ids = [] if row is None else decode_transaction(row).ids()
        if a % 4 < 2:
            self.send(Begin(self.now_ms + b, self.now_ms))
        elif a % 4 == 2:
            answer: Any = self.one(Commit(number, self.now_ms))
            prepared = {self.status(one) is Status.PREPARED for one in ids}
            assert prepared <= {isinstance(answer, Refusal)}
        else:
            self.one(Rollback(number, self.now_ms))
            assert not set(ids) & set(self.tasks())
            self.there -= set(ids)

    def draw_touch(self, a: int, b: int, c: int) -> None:
        """Somebody cancels, retries or deletes some."""
        ids = list(dict.fromkeys(self.pick(c + more) for more in range(1 + b % 3)))
        if a % 3 == 0:
            self.numbers(Cancel(ids, "ann", self.now_ms))
        elif a % 3 == 1:
            for task_id, answer in zip(
                ids, self.items(Retry(ids, "ann", self.now_ms)), strict=True
            ):
                if answer == 1:
                    self.begun[task_id] = 0
        else:
            deleted = self.numbers(Delete(ids, self.now_ms))
            self.there -= {one for one, answer in zip(ids, deleted, strict=True) if answer == 1}

    def draw_time(self, a: int, b: int, c: int) -> None:
        """Time passes, and what is due by it happens."""
        self.now_ms += b - 20
        ids = sorted(self.there)[:50]
        if a % 2:
            commands: list[Command] = [Due(ids, self.now_ms), Expire(ids, self.now_ms)]
        else:
            commands = [ExpireTransactions(self.now_ms), Purge(self.now_ms, 1 + c)]
        known = self.tasks()
        for command in [*commands, Settle(self.now_ms)]:
            self.send(command)
        gone = set(known) - set(self.tasks())
        assert all(known[one].status.final or known[one].transaction for one in gone)
        self.there -= gone

    def check(self) -> None:
        """What holds of the rows after every command."""
        tasks = self.tasks()
        assert set(tasks) == self.there
        active = [task for task in tasks.values() if not task.status.final]
        for kind, name in ((keys.SLOT, "slot"), (keys.UNIQUE, "unique_key")):
            rows = self.all(kind)
            held = {key.decode()[1:].split("\1")[-1]: keys.unpack_id(row) for key, row in rows}
            assert held == {getattr(one, name): one.id for one in active if getattr(one, name)}
        opened = [
            decode_transaction(row)
            for kind in (keys.TRANSACTION, keys.ENDING)
            for _, row in self.all(kind)
        ]
        prepared = {one.id: one.transaction for one in active if one.status is Status.PREPARED}
        assert prepared == {task_id: one.id for one in opened for task_id in one.ids()}
        assert {keys.number_of(key) for key, _ in self.all(keys.PARENTS)} <= set(prepared)
        for kind, name in ((keys.PAYLOAD, "payload_bytes"), (keys.RESULT, "result_bytes")):
            apart = {keys.number_of(key): len(row) for key, row in self.all(kind)}
            assert apart == {
                one.id: getattr(one, name) for one in tasks.values() if getattr(one, name)
            }
        self.check_edges(tasks)
        self.check_runs(active)

    def check_edges(self, tasks: dict[int, Task]) -> None:
        """Who waits for parents waits for as many as have not told of their end."""
        waits: Counter[int] = Counter()
        for key, _ in self.all(keys.EDGE):
            parent, child = keys.pair_of(key)
            assert not tasks[parent].status.final and tasks[parent].children
            waits[child] += 1
        for task in tasks.values():
            if task.status in BLOCKERS:
                assert task.parents_left == waits[task.id], task
                assert task.parents_left or task.status is Status.PREPARED

    def check_runs(self, active: list[Task]) -> None:
        """Attempts are counted, and what runs does so in a session that has not ended."""
        connected = {
            (worker.worker_id, worker.session)
            for worker in (decode_worker(row) for _, row in self.all(keys.WORKER))
            if worker.state is SessionState.CONNECTED
        }
        for task in active:
            assert task.status.final or not task.dead
            if task.attempts_max:
                assert task.attempts_spent < task.attempts_max or task.attempts_spent == 0
            if task.status is Status.RUNNING:
                assert (task.worker_id, task.session) in connected, task
                assert task.events[-1][1] in (
                    EventKind.ASSIGNED, EventKind.KEPT, EventKind.CANCEL_ASKED,
                )  # fmt: skip


MOVES = (*Model().moves, "assign", "finish", "finish")


@given(
    st.lists(st.tuples(st.sampled_from(MOVES), NUMBERS, NUMBERS, NUMBERS), min_size=30, max_size=70)
)
def test_whatever_is_sent_the_rows_make_sense(moves: list[tuple[str, int, int, int]]) -> None:
    model = Model()
    for name, a, b, c in [("connect", 0, 0, 0), ("submit", 3, 3, 3), *moves]:
        model.moves[name](a, b, c)
        model.check()
    mirror: dict[int, Status] = {}
    for change in model.changes:
        if isinstance(change, TaskChanged):
            assert mirror.pop(change.task.id, None) is change.before
            if change.after is not None:
                mirror[change.task.id] = change.after
    assert mirror == {one.id: one.status for one in model.tasks().values()}
    check_replay(model)


def check_replay(model: Model) -> None:
    """The same commands make the same rows and answers, with nobody listening too."""
    rows, machine = MemoryState(), BrokerMachine()
    fresh = Driver()
    for number, command in enumerate(model.log):
        answer = machine.apply(rows, command, Position(9, number))
        assert answer == fresh.send(command)
    assert rows.scan(b"\x01", None, 100_000) == model.all() == fresh.all()
