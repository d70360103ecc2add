"""Brokers and workers as processes, and a client that submits numbered tasks to them.

Invariants:
- Every process is a child of this one and is stopped by its process id.
- A number is submitted again only when it is known that nothing was taken.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from broker.commands import Refusal, Spec
from broker.errors import BrokerError, BrokerUnavailable, OutcomeUnknown
from broker.reading import TaskFilter
from broker.task import FINAL_STATES, Backoff, EventKind, Mode, Status, Task
from broker.wire.remote import RemoteCalls
from tests.acceptance.machines import Process, free_port

LEASE_MS: Final = 3_000
PLACES: Final = 40
_TYPE: Final = "leave_a_line"
_ENDS: Final = {EventKind.FINISHED: Status.FINISHED, EventKind.LOST: Status.LOST}
_PAGE: Final = 1_000
_PAUSE_S: Final = 0.05


class BrokerProcess(Process):
    """One `herdbook task serve` of a cluster."""

    def __init__(self, number: int, folder: Path, url: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        super().__init__(
            folder / f"broker-{number}.log",
            *("herdbook", "task", "serve", "--url", url),
            *("--listen", "127.0.0.1:0", "--grpc", self.address),
            *("--state", str(folder / f"broker-{number}"), "--lease-ms", str(LEASE_MS)),
        )


class WorkerProcess(Process):
    """One `herdbook worker`, known by another name in each of its lives."""

    def __init__(self, number: int, folder: Path, url: str) -> None:
        super().__init__(
            folder / f"worker-{number}.log",
            *("herdbook", "worker", "--url", url, "--tasks", "tests.acceptance.broker_functions"),
            *("--processes", "1", "--places", str(PLACES)),
        )


@dataclass
class Ledger:
    """Which tasks were taken, and which may have been, by their numbers."""

    file: Path
    once_share: float = 0.3
    taken: dict[int, int] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    once: set[int] = field(default_factory=set)
    _runs: Counter[int] = field(default_factory=Counter)
    _read_bytes: int = 0

    def spec(self, number: int, rng: random.Random) -> Spec:
        """The task of a number."""
        once = rng.random() < self.once_share
        if once:
            self.once.add(number)
        arguments = {"number": number, "file": str(self.file), "pause_ms": rng.choice([0, 5, 50])}
        return Spec(
            _TYPE,
            f"tenant {number % 5}",
            msgspec.json.encode(arguments),
            mode=Mode.AT_MOST_ONCE if once else Mode.AT_LEAST_ONCE,
            attempts_max=0,
            backoff=Backoff(50, 200, 1_000, 20),
        )

    async def fill(self, calls: RemoteCalls, count: int, batch: int, rng: random.Random) -> None:
        """Submit tasks, batch by batch."""
        for first in range(0, count, batch):
            numbers = range(first, min(first + batch, count))
            specs = [self.spec(number, rng) for number in numbers]
            while True:
                try:
                    answers = await calls.submit(specs)
                except BrokerUnavailable:
                    await asyncio.sleep(_PAUSE_S)
                    continue
                except OutcomeUnknown:
                    self.unknown.update(numbers)
                    break
                for number, answer in zip(numbers, answers, strict=True):
                    assert not isinstance(answer, Refusal), answer
                    self.taken[number] = answer
                break

    def runs(self) -> Counter[int]:
        """How often each task has begun, as the disk has it."""
        if self.file.exists():
            with self.file.open("rb") as lines:
                lines.seek(self._read_bytes)
                whole, newline, _ = lines.read().rpartition(b"\n")
            self._read_bytes += len(whole) + len(newline)
            self._runs.update(int(line.split()[0]) for line in whole.splitlines())
        return self._runs

    def judge(self, tasks: list[Task]) -> Counter[Status]:
        """That every task that was taken is there once and has one end that its runs explain."""
        found: dict[int, Task] = {}
        for task in tasks:
            number: int = msgspec.json.decode(task.payload)["number"]
            assert number not in found, f"number {number} was taken twice"
            found[number] = task
        for number, task_id in self.taken.items():
            assert number in found and found[number].id == task_id, f"{number} is lost"
        assert set(found) <= set(self.taken) | self.unknown
        runs = self.runs()
        assert set(runs) <= set(found), "what nobody was told of ran"
        for number, task in found.items():
            _judge(task, number, runs[number], once=number in self.once)
        return Counter(Status(task.status) for task in tasks)


def _judge(task: Task, number: int, runs: int, *, once: bool) -> None:
    words = f"number {number} began {runs} times: {task}"
    assert task.status in FINAL_STATES, words
    ends = [_ENDS[EventKind(kind)] for _, kind, *_ in task.events if EventKind(kind) in _ENDS]
    assert ends == [task.status], words
    if once:
        assert runs <= 1, words
        assert task.status in (Status.FINISHED, Status.LOST), words
    else:
        assert task.status is Status.FINISHED, words
    if task.status is Status.FINISHED:
        assert runs >= 1 and task.result == b"%d" % number, words


async def all_tasks(calls: RemoteCalls, *statuses: Status) -> list[Task]:
    """Every task in one of these states, or in any."""
    found: list[Task] = []
    above: int | None = 0
    while above is not None:
        page = await calls.tasks(TaskFilter(frozenset(statuses)), above, _PAGE)
        found += page.tasks
        above = page.above
    return found


async def all_ended(calls: RemoteCalls) -> bool:
    """Whether no task waits or runs any more, as far as somebody tells."""
    active = frozenset(Status) - FINAL_STATES
    try:
        page = await calls.tasks(TaskFilter(active), 0, 1)
    except BrokerError:
        return False
    return not page.tasks and page.above is None
