"""A state machine on rows in memory, and short words for what is sent to it."""

from typing import Any

from msgspec.structs import replace

from broker import keys
from broker.applying import Change, TaskChanged, TasksAssigned, TasksCame, TasksFinished
from broker.commands import (
    Assign,
    Assigned,
    Assignment,
    Command,
    Completion,
    Ended,
    Finish,
    Lost,
    Outcome,
    Refusal,
    Running,
    Session,
    SessionOpened,
    Spec,
    Submit,
    decode_items,
    decode_lists,
    decode_numbers,
    decode_one,
    decode_session,
    encode,
)
from broker.machine import BrokerMachine
from broker.task import Status, Task, decode_task
from engine.log.position import Position
from engine.state.contract import Row
from engine.state.memory import MemoryState

START_MS = 1_000_000


class Driver:
    """One replica, a clock that tests set, and all changes that were told."""

    def __init__(self) -> None:
        self.rows = MemoryState()
        self.machine = BrokerMachine()
        self.changes: list[Change] = []
        self.told: list[Change] = []
        self.machine.listener = self._hear
        self.now_ms = START_MS
        self.log: list[bytes] = []

    def _hear(self, change: Change) -> None:
        """Of many tasks at once, as if it were told of each."""
        self.told.append(change)
        if isinstance(change, TasksCame):
            for task_id in change.ids:
                task = replace(change.task, id=task_id)
                self.changes.append(TaskChanged(None, Status.WAITING, task))
        elif isinstance(change, TasksAssigned):
            for task in change.tasks:
                self.changes.append(TaskChanged(Status.WAITING, Status.RUNNING, task))
        elif isinstance(change, TasksFinished):
            for task in change.tasks:
                self.changes.append(TaskChanged(Status.RUNNING, Status.FINISHED, task))
        else:
            self.changes.append(change)

    def send(self, command: Command | bytes) -> bytes:
        """Apply a command."""
        self.log.append(command if isinstance(command, bytes) else encode(command))
        return self.machine.apply(self.rows, self.log[-1], Position(1, len(self.log)))

    def one(self, command: Command) -> Any:
        """Its answer, of one number or a refusal."""
        return decode_one(self.send(command))

    def numbers(self, command: Command) -> list[int]:
        """Its answer, of numbers."""
        return decode_numbers(self.send(command))

    def items(self, command: Command) -> list[int | Refusal]:
        """Its answer, item by item."""
        return decode_items(self.send(command))

    def submit(self, *specs: Spec, transaction: int = 0, atomic: bool = False) -> list[Any]:
        """Ids and refusals."""
        return self.items(Submit(specs, self.now_ms, transaction, atomic))

    def taken(self, *specs: Spec, transaction: int = 0) -> list[int]:
        """Ids: none is refused."""
        answers = self.submit(*specs, transaction=transaction)
        assert all(type(answer) is int for answer in answers), answers
        return answers

    def connect(
        self,
        worker_id: str = "w",
        process_id: str = "p",
        running: list[Running] | None = None,
        held: list[int] | None = None,
    ) -> SessionOpened:
        """A worker's new session."""
        return decode_session(
            self.send(
                Session(worker_id, process_id, "here", self.now_ms, running or (), held or ())
            )
        )

    def assign(self, session: int, *ids: int, worker_id: str = "w") -> list[int]:
        """The numbers of attempts."""
        items = [Assigned(task_id) for task_id in ids]
        sent = Assign([Assignment(worker_id, session, items)], self.now_ms)
        return decode_lists(self.send(sent))[0]

    def finish(
        self, session: int, *items: Ended, worker_id: str = "w", drawn: int = 0
    ) -> list[int]:
        """What became of the items."""
        sent = Finish([Completion(worker_id, session, items)], self.now_ms, drawn)
        return decode_lists(self.send(sent))[0]

    def run(self, session: int, task_id: int, outcome: Outcome, **more: Any) -> int:
        """Assign a task and end the attempt so."""
        (attempt,) = self.assign(session, task_id)
        assert attempt, self.task(task_id)
        return self.finish(session, Ended(task_id, attempt, outcome, **more))[0]

    def lose(self, session: int, *held: int, worker_id: str = "w", left: bool = False) -> int:
        """How many tasks died."""
        count = self.one(Lost(worker_id, session, self.now_ms, held, left))
        assert isinstance(count, int)
        return count

    def task(self, task_id: int) -> Task:
        """A task, wherever it is."""
        found = self.rows.get(keys.numbered(keys.ACTIVE, task_id))
        final = self.rows.get(keys.numbered(keys.FINAL, task_id))
        assert (found is None) is not (final is None), "a task is in exactly one place"
        task = decode_task(found or final or b"")
        assert task.status.final is (found is None)
        return task

    def status(self, task_id: int) -> Status:
        """Where a task is."""
        return self.task(task_id).status

    def all(self, kind: bytes = b"\x01") -> list[Row]:
        """All rows, or those of one kind."""
        if kind == b"\x01":
            return self.rows.scan(kind, None, 1_000_000)
        return self.rows.scan(kind, keys.end_of(kind), 1_000_000)
