"""What became of tasks: the broker's newest snapshot, and its log from there to its end, replayed.

    replay = plan_replay(place)                   # where the job begins; pins what is read
    history = read_history(replay)                # on one executor
    release(replay)

The rows lie in a folder of the executor's while it works, so memory does not grow with the tasks.

Invariants:
- All is of one position of the log, the newest that was confirmed when the replay was planned.
- A task counts once: as the last state has it, or, if it was removed meanwhile, as it was then.
- Nothing is written but a pin, which ends by itself if its holder dies.
"""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from broker.applying import Change, TaskChanged
from broker.keys import ACTIVE, FINAL, end_of, number_of, numbered
from broker.machine import BrokerMachine
from broker.reading import get_counters
from broker.service import LOG
from broker.task import FINAL_STATES, EventKind, Status, Task, decode_task
from engine.errors import HistoryMissing, PositionTruncated
from engine.ledger.client import LedgerClient
from engine.log.log import ReplicatedLog
from engine.log.position import START, Position
from engine.place import Place, held_client
from engine.ports.system_workers import ThreadWorkers
from engine.replica.applier import Applier
from engine.replica.snapshots import SnapshotRecord, Snapshots
from engine.state.contract import State
from engine.state.rocks import open_rocks
from pipeline.durations import Durations

_PIN_MS: Final = 10 * 60_000
_LOOKS_MAX: Final = 10
_PAGE_ROWS: Final = 1_000
_UNWRITTEN_BYTES_MAX: Final = 64 * 1024 * 1024
_FULL_PAUSE_S: Final = 0.005
_RUNNABLE: Final = frozenset(
    (EventKind.SUBMITTED, EventKind.COMMITTED, EventKind.RELEASED, EventKind.DUE)
)


class Replay(msgspec.Struct, frozen=True):
    """From where to where the log is read, and the pin that keeps it."""

    place: Place
    log: str
    pin: str
    snapshot: SnapshotRecord | None
    last: Position

    @property
    def after(self) -> Position:
        """The position that the replay begins behind."""
        return START if self.snapshot is None else self.snapshot.at


class TypeHistory(msgspec.Struct):
    """The tasks of one tenant and type. Times in milliseconds."""

    tenant: str
    type: str
    states: dict[str, int] = {}
    """How many are in each state, or were in it when they were removed."""
    removed: int = 0
    """How many of them are kept no more."""
    attempts: int = 0
    failures: int = 0
    """Attempts that failed, of all tasks together."""
    dead: int = 0
    """Dead letters."""
    oldest_waiting_ms: int = 0
    """When the oldest task that waits was submitted, 0 if none waits."""
    waits: Durations = msgspec.field(default_factory=Durations)
    """From when a task could run until it first did."""
    runs: Durations = msgspec.field(default_factory=Durations)
    """The last attempts of tasks that have ended."""

    def add(self, task: Task, *, removed: bool) -> None:
        """Count a task."""
        name = task.status.name.lower()
        self.states[name] = self.states.get(name, 0) + 1
        self.removed += removed
        self.attempts += task.attempt
        self.failures += task.attempts_spent
        self.dead += task.dead
        if task.status is Status.WAITING:
            self.oldest_waiting_ms = min(self.oldest_waiting_ms or task.created_ms, task.created_ms)
        wait_ms = first_wait_ms(task)
        if wait_ms is not None:
            self.waits.add(wait_ms)
        if task.status in FINAL_STATES and task.started_ms and task.finished_ms:
            self.runs.add(task.finished_ms - task.started_ms)


class History(msgspec.Struct):
    """All tasks that the snapshot and the kept log tell of."""

    position: Position = START
    broker_ms: int = 0
    """The newest time that the broker's log tells."""
    since_ms: int = 0
    """Whatever ended after this moment counts; 0: nothing was ever dropped from the log."""
    types: list[TypeHistory] = []

    def take(self, task: Task, *, removed: bool, into: dict[tuple[str, str], TypeHistory]) -> None:
        """Count a task under its tenant and type."""
        key = task.tenant, task.type
        found = into.get(key)
        if found is None:
            found = into[key] = TypeHistory(*key)
            self.types.append(found)
        found.add(task, removed=removed)


def first_wait_ms(task: Task) -> int | None:
    """How long a task waited for its first attempt; None if it had none, as far as is known."""
    runnable_ms = task.created_ms
    for at_ms, kind, *_ in task.events:
        if kind == EventKind.ASSIGNED:
            return at_ms - runnable_ms
        if kind in _RUNNABLE:
            runnable_ms = at_ms
    return None


def plan_replay(place: Place, log_name: str = LOG) -> Replay | None:
    """Pin the newest snapshot and the log behind it; None where no broker ever ran. Blocks.

    Raises `HistoryMissing`, `MetadataUnavailable`, `CannotRead`.
    """
    held = held_client(place)
    return held.run(lambda: _plan(held.client, place, log_name))


def release(replay: Replay) -> None:
    """Let the pin go. Blocks."""
    held = held_client(replay.place)
    held.run(lambda: ReplicatedLog(held.client, replay.log).unpin(replay.pin))


def read_history(replay: Replay) -> History:
    """Replay, and count all tasks. Blocks.

    Raises `CannotRead` for a damaged log or snapshot, `Unavailable`, `ReplicaFailed`.
    """
    held = held_client(replay.place)
    with TemporaryDirectory(prefix="herdbook-tasks-") as folder:
        return held.run(lambda: _read(held.client, replay, Path(folder)))


async def _plan(client: LedgerClient, place: Place, log_name: str) -> Replay | None:
    log = ReplicatedLog(client, log_name)
    snapshots = Snapshots(client, log)
    pin = f"pipeline {client.rng.getrandbits(64):016x}"
    for _ in range(_LOOKS_MAX):
        await client.store.sync()
        listed = await log.list()
        record = await snapshots.newest()
        if not listed.listed and record is None:
            return None
        replay = Replay(place, log_name, pin, record, START)
        try:
            await log.pin(pin, replay.after, _PIN_MS)
        except PositionTruncated:
            continue
        # What a pin came too late for may be gone already.
        if await snapshots.newest() == record:
            return msgspec.structs.replace(replay, last=await log.end())
    raise HistoryMissing(f"log {log_name}: its beginning goes faster than it can be read")


async def _read(client: LedgerClient, replay: Replay, folder: Path) -> History:
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        state = await open_rocks(folder / "rows", workers)
        try:
            return await _replayed(client, replay, state)
        finally:
            await state.close()
    finally:
        await workers.close()


async def _replayed(client: LedgerClient, replay: Replay, state: State) -> History:
    log = ReplicatedLog(client, replay.log)
    history, types = History(position=replay.last), dict[tuple[str, str], TypeHistory]()
    machine = BrokerMachine()
    renewing = asyncio.create_task(_renew(log, replay))
    try:
        if replay.snapshot is not None:
            history.since_ms = replay.snapshot.taken_ms
            await _restore(Snapshots(client, log), replay.snapshot, state)
        applier = Applier(machine, state, replay.log)

        def hear(change: Change) -> None:
            if not isinstance(change, TaskChanged) or change.after is not None:
                return
            if change.before in FINAL_STATES:
                history.take(change.task, removed=True, into=types)

        machine.listener = hear
        async with aclosing(log.read(applier.cursor, replay.last)) as batches:
            async for batch in batches:
                applier.apply(batch.span, batch.bodies)
                while state.unwritten_bytes > _UNWRITTEN_BYTES_MAX:
                    state.check()
                    await asyncio.sleep(_FULL_PAUSE_S)
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
    for task in _tasks(state):
        history.take(task, removed=False, into=types)
    history.broker_ms = get_counters(state).now_ms
    return history


async def _restore(snapshots: Snapshots, record: SnapshotRecord, state: State) -> None:
    async with aclosing(snapshots.read(record)) as pages:
        await state.clear()
        async for rows in pages:
            await state.restore(rows)
    await state.restored(record.at)


async def _renew(log: ReplicatedLog, replay: Replay) -> None:
    while True:
        await asyncio.sleep(_PIN_MS / 3000)
        await log.pin(replay.pin, replay.after, _PIN_MS)


def _tasks(state: State) -> Iterator[Task]:
    for kind in (ACTIVE, FINAL):
        above = 0
        while page := state.scan_rows(numbered(kind, above + 1), end_of(kind), _PAGE_ROWS):
            yield from (decode_task(value) for _, value in page)
            above = number_of(page[-1][0])
