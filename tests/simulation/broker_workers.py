"""Machines that run a worker each: the product's, over links that break, with imagined children.

Invariants:
- A link is a stream: what arrives does so in order, and after the first loss nothing arrives.
- A function's outcome depends on its task and attempt alone.
- What runs in a worker's process dies with it.
"""

import asyncio
import random
from collections.abc import Callable, Sequence

from broker.connection import (
    Attempt,
    Completion,
    Ended,
    FromBroker,
    FromWorker,
    Hello,
    Refused,
    Run,
    WorkerLimits,
    WorkerLink,
)
from broker.errors import BrokerError, BrokerUnavailable, SessionLost
from broker.worker.worker import Worker, WorkerSettings
from tests.simulation.broker_nodes import BrokerNode
from tests.simulation.broker_oracle import BrokerOracle
from tests.simulation.loop import Process
from tests.simulation.nodes import World
from tests.simulation.replica_nodes import DRIFT, DriftingClock

LONG_FACTOR = 5.0
"""In runs whose clients rest some attempts outlast a leader's lease and a worker's after it."""
_AT_ONCE_SHARE = 0.7
_KILL_S = 0.01
_BREAK_S = 0.5
_RESTART_S = 0.3


class SimPlaces:
    """Children of one worker, and what runs in them."""

    def __init__(
        self,
        process: Process,
        oracle: BrokerOracle,
        rng: random.Random,
        done: Callable[[list[Completion]], None],
        long_factor: float = 1.0,
    ) -> None:
        self._long_factor = long_factor
        self._process = process
        self._oracle = oracle
        self._rng = rng
        self._done = done
        self._tasks: dict[Attempt, tuple[Run, asyncio.Task[None]]] = {}
        self._begun: set[Attempt] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def running(self) -> list[Attempt]:
        """See `Places`."""
        return list(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def run(self, runs: list[Run]) -> None:
        """See `Places`."""
        for run in runs:
            self._empty.clear()
            task = asyncio.create_task(self._work(run), name=f"{self._process.name} {run.id}")
            self._tasks[run.id, run.attempt] = (run, task)
            if self._rng.random() < _AT_ONCE_SHARE:
                self._begin(run)

    def _begin(self, run: Run) -> None:
        self._oracle.begin(self._process, run)
        self._begun.add((run.id, run.attempt))

    async def _work(self, run: Run) -> None:
        if (run.id, run.attempt) not in self._begun:
            # Its child is not ready, or has others to do first.
            await asyncio.sleep(0.3 * self._rng.random())
            self._begin(run)
        rng = random.Random(f"{run.id} {run.attempt}")
        # Some outlast leases and leaders.
        long_s = 5.0 * self._long_factor
        await asyncio.sleep(rng.choice([0.0, 0.05, 0.1, 0.5, long_s]) * rng.random())
        if rng.random() < 0.75:
            result = b"%d" % run.attempt
            self._end(Completion(run.id, run.attempt, Ended.FINISHED, result))
        else:
            later = rng.choice([None, None, 50])
            failed = Ended.FAILED
            self._end(Completion(run.id, run.attempt, failed, error="drawn", retry_after_ms=later))

    def _end(self, completion: Completion) -> None:
        attempt = completion.id, completion.attempt
        run, _ = self._tasks.pop(attempt)
        if attempt in self._begun:
            self._begun.remove(attempt)
            self._oracle.end(run, completion.ended)
        if not self._tasks:
            self._empty.set()
        self._done([completion])

    def _kill(self, attempt: Attempt, ended: Ended) -> None:
        if attempt in self._tasks:
            self._tasks[attempt][1].cancel()
            self._end(Completion(*attempt, ended))

    def interrupt(self, attempts: list[Attempt], reason: str) -> None:
        """See `Places`. A neighbour in the same child may end with it."""
        for attempt in attempts:
            self._kill(attempt, Ended.INTERRUPTED)
        if self._begun and self._rng.random() < 0.3:
            self._kill(self._rng.choice(sorted(self._begun)), Ended.ENDED_FOR_ANOTHER)

    def give_back(self) -> None:
        """See `Places`."""
        for attempt in [attempt for attempt in self._tasks if attempt not in self._begun]:
            self._kill(attempt, Ended.HANDED_BACK)

    async def end_all(self) -> None:
        """See `Places`."""
        self.give_back()
        await asyncio.sleep(_KILL_S)
        for attempt in list(self._tasks):
            begun = attempt in self._begun
            self._kill(attempt, Ended.ENDED_FOR_ANOTHER if begun else Ended.HANDED_BACK)

    async def idle(self) -> None:
        """See `Places`."""
        await self._empty.wait()


class SimLink:
    """A worker's end of a link with one broker process."""

    def __init__(self, node: "WorkerNode", broker: BrokerNode, hello: Hello) -> None:
        self._node = node
        self._world = node.world
        self._worker = node.process
        self._broker = broker.process
        self._wire = node.world.network.link_to(node.name, broker.name)
        self._heard: list[FromBroker] = []
        self._waiting: asyncio.Future[None] | None = None
        self._outbound: list[list[FromWorker] | None] = []
        self._arrived = asyncio.Event()
        self._reason = ""
        self._silent_out = self._silent_in = False
        self._connecting: asyncio.Task[None] | None = None
        self._carry_out(lambda: self._accept(broker, hello))

    async def receive(self) -> list[FromBroker]:
        """See `WorkerLink`."""
        while not self._heard:
            if self._reason:
                raise SessionLost(self._reason)
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        heard, self._heard = self._heard, []
        for message in heard:
            if isinstance(message, Refused):
                self._node.hint = message.leader
        return heard

    async def send(self, messages: list[FromWorker]) -> None:
        """See `WorkerLink`."""
        if self._reason:
            raise SessionLost(self._reason)
        self._carry_out(lambda: self._arrive(messages))

    async def close(self) -> None:
        """See `WorkerLink`."""
        if not self._reason:
            self._reason = "closed"
            self._carry_out(lambda: self._arrive(None))

    async def fetch_code(self, name: str) -> bytes:
        """See `WorkerLink`. No task here names a code pool."""
        raise BrokerUnavailable(f"there is no code pool {name}")

    def snap(self, reason: str) -> None:
        """The worker's end notices that the link is broken."""
        if not self._reason:
            self._reason = reason
            self._silent_in = True
            self._wake()

    # From the worker to the broker

    def _carry_out(self, deliver: Callable[[], None]) -> None:
        """In the worker's process."""
        if not self._silent_out and not self._world.network.send_out(self._wire, deliver):
            self._silent_out = True
            self._lose()

    def _lose(self) -> None:
        self._world.trace.fault("broken link", self._worker.name, self._broker.name)
        if not self._world.network.unlucky(self._world.network.faults.silent_share):
            self._world.network.later(_BREAK_S, self._worker, lambda: self.snap("broken"))

    def _accept(self, broker: BrokerNode, hello: Hello) -> None:
        if not self._broker.alive:
            self._world.network.later(0.0, self._worker, lambda: self.snap("refused"))
            return
        name = f"{self._worker.name} at {broker.name}"

        def serve() -> None:
            serving = self._serve(broker, hello)
            self._connecting = self._world.loop.create_task(serving, name=name)

        self._world.loop.deliver_at(self._world.loop.now, self._broker, serve)

    def _arrive(self, messages: list[FromWorker] | None) -> None:
        """In nobody's process: what arrives waits, in its order, for the broker's."""
        self._outbound.append(messages)
        self._world.loop.deliver_at(self._world.loop.now, self._broker, self._arrived.set)
        if messages is None and self._connecting is not None:
            # The stream has ended before there was an answer: the server's call is cancelled.
            self._world.loop.deliver_at(self._world.loop.now, self._broker, self._connecting.cancel)

    # In the broker's process

    async def _serve(self, node: BrokerNode, hello: Hello) -> None:
        broker = node.broker
        if broker is None:
            self._carry_in([Refused("the broker is not there yet")])
            return
        try:
            link = await broker.connect(hello)
        except BrokerError as error:
            self._carry_in([Refused(str(error), error.leader)])
            return
        self._connecting = None
        hearing = asyncio.create_task(self._hear(link.send, link.close))
        try:
            while True:
                self._carry_in(await link.receive())
        except BrokerError as error:
            reason = str(error)
            self._world.network.later(
                self._world.network.latency_s(), self._worker, lambda: self.snap(reason)
            )
        finally:
            hearing.cancel()

    async def _hear(
        self,
        send: Callable[[list[FromWorker]], "asyncio.Future[None] | object"],
        close: Callable[[], object],
    ) -> None:
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                arrived, self._outbound = self._outbound, []
                for messages in arrived:
                    await (close() if messages is None else send(messages))  # type: ignore[misc]
        except BrokerError:
            return

    def _carry_in(self, messages: Sequence[FromBroker]) -> None:
        def deliver() -> None:
            self._heard += messages
            self._wake()

        sent = self._silent_in or self._world.network.send_in(self._wire, self._worker, deliver)
        if not sent:
            self._silent_in = True
            self._lose()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class WorkerNode:
    """A machine that runs one worker, and starts it again when it has ended."""

    def __init__(
        self,
        world: World,
        name: str,
        brokers: Sequence[BrokerNode],
        oracle: BrokerOracle,
        limits: WorkerLimits,
    ) -> None:
        self.world = world
        self.name = name
        self.oracle = oracle
        self.limits = limits
        self.hint = ""
        self.worker: Worker | None = None
        self.up = False
        self._brokers = brokers
        self._rng = world.rng(f"{name} worker")
        self._speed = 1 + DRIFT * (self._rng.random() - 0.5) * 0.95
        self.start()

    def start(self) -> None:
        """A new life of the worker."""
        assert not self.up
        self.up = True
        self.process = process = self.world.process(self.name)
        process.on_pause = lambda: self.oracle.stop(process)
        process.on_resume = lambda: self._wake(process)
        self.world.loop.spawn(process, self._live(), f"{self.name} life")

    async def _live(self) -> None:
        process = self.process
        clock = DriftingClock(
            self.world.loop,
            float(len(self.world.processes)),
            self._speed,
            wall_s=0.0,
            ahead_s=self.world.wall_s(self.name),
        )
        while True:
            settings = WorkerSettings(
                self.name,
                f"{self._rng.getrandbits(32)}",
                limits=self.limits,
                drain_ms=self._rng.choice([100, 3_000]),
                farewell_ms=1_000,
                connect_timeout_ms=1_500,
                retry_max_ms=500,
            )
            self.worker = worker = Worker(self, settings, (), clock, self._rng)
            long = LONG_FACTOR if self.world.disturbances.rests else 1.0
            places = SimPlaces(process, self.oracle, self._rng, worker.done, long)
            whole = await worker.run(places)
            self.world.trace.event("worker ended", self.name, whole)
            await asyncio.sleep(_RESTART_S)

    async def connect(self, hello: Hello) -> WorkerLink:
        """See `WorkerPort`."""
        named = [node for node in self._brokers if node.name == self.hint]
        node = named[0] if named else self._rng.choice(self._brokers)
        self.hint = ""
        if not node.up:
            await asyncio.sleep(self.world.network.latency_s())
            raise BrokerUnavailable(f"{node.name} is down")
        return SimLink(self, node, hello)

    def crash(self) -> None:
        """The worker and its children are killed."""
        assert self.up
        self.up = False
        self.worker = None
        self.oracle.die(self.process)
        self.world.loop.kill(self.process)

    def _wake(self, process: Process) -> None:
        """The worker and its children go on after a pause."""
        self.oracle.stop(process)
        self.oracle.wake(process)
