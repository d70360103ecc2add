"""Brokers in memory, and workers that do as the test says.

Invariants:
- A broker runs on the engine's own log and replica, over bookies of the test.
- A worker of a test answers when the test tells it to, or at once.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from broker.commands import Refusal, Spec
from broker.connection import (
    Assigned,
    Completion,
    Done,
    Ended,
    FromBroker,
    Heartbeat,
    Hello,
    Interrupt,
    Leaving,
    Refused,
    Run,
    Welcome,
    WorkerLimits,
)
from broker.leading.link import LocalLink
from broker.scheduling import UserMapping
from broker.service import Broker
from broker.settings import BrokerSettings
from engine.log.settings import LogSettings
from engine.metadata.contract import MetadataStore
from engine.metadata.deadline import DeadlineStore
from engine.ports.clock import Clock
from engine.replica.settings import ReplicaSettings
from engine.state.contract import State
from engine.state.memory import MemoryState
from tests.broker.service.clocks import LoopClock
from tests.engine.ledger.scripted import QUICK, Cluster

LOG = LogSettings(ensemble=1, write_quorum=1, ack_quorum=1, look_interval_ms=50, retry_pause_ms=5)
REPLICA = ReplicaSettings(snapshot_entries=0, duties_ms=1_000, level_settle_ms=0, retry_pause_ms=5)
SETTINGS = BrokerSettings(lease_ms=2_000)
CLIENT = replace(QUICK, append_timeout_ms=10_000, read_timeout_ms=10_000, lease_ms=1_000)


class _TimedStore:
    """A metadata store whose server has a clock."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def server_ms(self) -> int:
        """The server's wall clock."""
        return self._clock.wall_ms()


@asynccontextmanager
async def opened(
    settings: BrokerSettings = SETTINGS,
    *,
    cluster: Cluster | None = None,
    state: State | None = None,
    mapping: UserMapping | None = None,
    clock: Clock | None = None,
    server: Clock | None = None,
) -> AsyncIterator[Broker]:
    """The only replica of a broker, which serves. `server`: the metadata store's own clock."""
    cluster = cluster or await Cluster.of(1)
    cluster.client_clock = clock or LoopClock()
    client = cluster.client(CLIENT)
    if server is not None:
        timed: Any = _TimedStore(client.store, server)
        client.store = DeadlineStore(timed, 1_000)
    broker = await Broker.open(
        client,
        state if state is not None else MemoryState(),
        settings=settings,
        mapping=mapping,
        replica_settings=REPLICA,
        log_settings=LOG,
    )
    try:
        yield broker
    finally:
        await broker.close()


async def submitted(broker: Broker, *specs: Spec) -> list[int]:
    """Submit tasks, none of which is refused."""
    answers = await broker.submit(list(specs))
    ids = [answer for answer in answers if not isinstance(answer, Refusal)]
    assert len(ids) == len(specs), answers
    return ids


class FakeWorker:
    """A worker without processes."""

    def __init__(self, broker: Broker, hello: Hello) -> None:
        self.broker = broker
        self.hello = hello
        self.link: LocalLink
        self.session = 0
        self.welcome: Welcome | None = None
        self.refused: Refused | None = None
        self.runs: list[Run] = []
        self.interrupts: list[Interrupt] = []
        self.acked: list[int] = []
        self.sequence = 0
        self.taken_total = 0

    @classmethod
    async def connected(
        cls,
        broker: Broker,
        name: str = "worker",
        *,
        places: int = 10,
        process_id: str = "first",
        types: tuple[str, ...] = (),
        limits: WorkerLimits | None = None,
        running: tuple[tuple[int, int], ...] = (),
    ) -> "FakeWorker":
        """Connect a worker and take the broker's first word."""
        hello = Hello(
            name, process_id, "here", types, limits or WorkerLimits(places), running=running
        )
        worker = cls(broker, hello)
        worker.link = await broker.connect(hello)
        await worker.listen()
        return worker

    async def listen(self) -> None:
        """Wait for the next words of the broker, and take them."""
        for message in await self.link.receive():
            self._take(message)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Listen until something has come."""
        while not reached():
            await self.listen()

    async def until_runs(self, count: int) -> list[Run]:
        """Wait for so many attempts, and take them off."""
        await self.until(lambda: len(self.runs) >= count)
        runs, self.runs = self.runs[:count], self.runs[count:]
        return runs

    def _take(self, message: FromBroker) -> None:
        if isinstance(message, Assigned):
            self.runs += message.runs
            self.taken_total += len(message.runs)
        elif isinstance(message, Welcome):
            self.welcome, self.session = message, message.session
        elif isinstance(message, Refused):
            self.refused = message
        elif isinstance(message, Interrupt):
            self.interrupts.append(message)
        elif hasattr(message, "sequence"):
            self.acked.append(message.sequence)

    def next(self) -> int:
        """The number of the next message."""
        self.sequence += 1
        return self.sequence

    async def tell(self, *completions: Completion) -> None:
        """Tell ends of attempts, and wait until they are acknowledged."""
        sequence = self.next()
        await self.link.send([Done(sequence, self.session, list(completions))])
        await self.until(lambda: sequence in self.acked)

    async def finish(self, *runs: Run, result: bytes = b"") -> None:
        """All these are finished."""
        await self.tell(*[Completion(r.id, r.attempt, Ended.FINISHED, result) for r in runs])

    async def fail(
        self, run: Run, error: str = "it broke", *, retry_after_ms: int | None = None
    ) -> None:
        """This one has failed."""
        ended = Ended.FAILED
        await self.tell(
            Completion(run.id, run.attempt, ended, error=error, retry_after_ms=retry_after_ms)
        )

    async def beat(self) -> None:
        """Say that it lives, and take the answer."""
        sequence = self.next()
        beat = Heartbeat(sequence, self.session, 0, self.taken_total)
        await self.link.send([beat])
        await self.until(lambda: sequence in self.acked)

    async def leave(self) -> None:
        """Leave for good."""
        sequence = self.next()
        await self.link.send([Leaving(sequence, ended=True)])
        await self.until(lambda: sequence in self.acked)
