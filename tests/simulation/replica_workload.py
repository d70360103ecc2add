"""Clients of replicas: they read and write registers, and try again where it is safe.

Invariants:
- A call that was repeated carries its session and sequence; one without them is sent once.
- A call counts as of unknown outcome as soon as it may have arrived and was not answered.
- After `stop` every client ends what it is doing and begins nothing new.
"""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from engine.errors import (
    EngineError,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    ReplicaFailed,
    Unavailable,
)
from engine.log.position import Position
from engine.replica.entries import Request
from tests.linearizability import Kind, Operation
from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.simulation.nodes import World
from tests.simulation.oracles import Violation
from tests.simulation.replica_nodes import Note, ReplicaNode, decode_answer
from tests.simulation.replica_oracle import ReplicaOracle

R = TypeVar("R")

_PROBE_S = 0.3
_PATIENT_S = 12.0


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What one run's clients do, drawn from its seed."""

    clients: int
    registers: int
    reads_share: float
    conditional_share: float
    session_share: float
    repeated_share: float
    sizes_bytes: tuple[int, ...]
    think_s: float
    patience_s: float
    answer_s: float


class _Session:
    """Several calls of one client at a time, each with a sequence of its own."""

    def __init__(self, name: Position) -> None:
        self._name = name
        self._next = 1
        self._under_way: dict[int, None] = {}

    def begin(self) -> int:
        sequence = self._next
        self._next += 1
        self._under_way[sequence] = None
        return sequence

    def request(self, sequence: int) -> Request:
        return Request(self._name, sequence, min(self._under_way))

    def end(self, sequence: int) -> None:
        del self._under_way[sequence]


class ReplicaWorkload:
    """The work of all clients of one run."""

    def __init__(
        self, world: World, load: ReplicaLoad, nodes: Sequence[ReplicaNode], oracle: ReplicaOracle
    ) -> None:
        self.operations = 0
        self.stopped = False
        self._world = world
        self._network: Network = world.network
        self._load = load
        self._nodes = nodes
        self._oracle = oracle
        self._rng = world.rng("replica workload")
        self._commands = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self._prober: _Client | None = None
        self._writes: list[asyncio.Task[Any]] = []
        self._rested_s = 0.0

    def rest(self, seconds: float) -> None:
        """Let every client begin nothing new for a while."""
        self._rested_s = max(self._rested_s, self._world.loop.now + seconds)

    async def rested(self) -> None:
        """Wait until nobody has to rest any more."""
        left_s = self._rested_s - self._world.loop.now
        if left_s > 0:
            await asyncio.sleep(left_s)

    def start(self) -> None:
        """Let every client work, in a process of its own."""
        for number in range(self._load.clients):
            process = self._world.process(f"client{number}")
            work = self._work(_Client(self, process, self._world.rng(process.name)))
            self.tasks.append(self._world.loop.spawn(process, work, f"client{number} work"))
        process = self._world.process("prober")
        self._prober = _Client(self, process, self._world.rng(process.name))
        work = self._probe(self._prober)
        self.tasks.append(self._world.loop.spawn(process, work, "prober work"))

    def write_at(self, node: ReplicaNode) -> None:
        """Write at this very node, once."""
        prober = self._prober
        if prober is not None and not self.stopped:
            self._writes = [task for task in self._writes if not task.done()]
            if not self._writes:
                name = f"{prober.name} writes at {node.name}"
                task = self._world.loop.spawn(prober.process, prober.write_at(node), name)
                self._writes.append(task)

    @property
    def ended(self) -> bool:
        """Whether every client has come to its end, and each write is judged by its outcome."""
        return all(task.done() for task in (*self.tasks, *self._writes))

    def next_command(self) -> int:
        """A number for a command."""
        self._commands += 1
        return self._commands

    async def _work(self, client: "_Client") -> None:
        """Two calls at a time, for ever."""
        first = asyncio.create_task(self._calls(client), name=f"{client.name} work 1")
        await self._calls(client)
        await first

    async def _probe(self, client: "_Client") -> None:
        """Ask whoever it is for what it holds, also a leader of old that does not know it yet."""
        while not self.stopped:
            node = client.rng.choice(self._nodes)
            register = f"register {client.rng.randrange(self._load.registers)}"
            name = f"{client.name} at {node.name}"
            self._world.loop.spawn(client.process, client.look(node, register), name)
            await asyncio.sleep(_PROBE_S * client.rng.random())

    async def _calls(self, client: "_Client") -> None:
        load, rng = self._load, client.rng
        while not self.stopped:
            register = f"register {rng.randrange(load.registers)}"
            if rng.random() < load.reads_share:
                await client.read(register)
            else:
                await client.write(register)
            await asyncio.sleep(load.think_s * rng.random())
            await self.rested()


class _Client:
    """One client."""

    def __init__(self, workload: ReplicaWorkload, process: Process, rng: random.Random) -> None:
        self.name = process.name
        self.rng = rng
        self._workload = workload
        self._world = workload._world
        self._load = workload._load
        self._oracle = workload._oracle
        self.process = process
        self._session: _Session | None = None
        self._target = rng.choice(workload._nodes)
        self._seen: dict[str, str | None] = {}

    async def read(self, register: str) -> None:
        """Ask until somebody answers; each try is a call of its own."""
        end_s = self._now() + self._load.patience_s
        while self._now() < end_s:
            called = self._now()
            try:
                value = await self._ask(lambda node: node.read(register), repeated=False)
            except (EngineError, TimeoutError) as error:
                await self._elsewhere(error)
                continue
            self._seen[register] = value
            self._ended(Operation(self.name, register, Kind.READ, called, self._now(), value))
            return

    async def look(self, node: ReplicaNode, register: str) -> None:
        """Ask one node, once, and wait long: a paused one may answer as soon as it wakes up."""
        called = self._now()
        try:
            value = await self._ask(
                lambda asked: asked.read(register), repeated=False, node=node, answer_s=_PATIENT_S
            )
        except (EngineError, TimeoutError):
            return
        found = Operation(self.name, register, Kind.READ, called, self._now(), value)
        self._oracle.on_call(found)

    async def write(self, register: str) -> None:
        """Write, perhaps only if the register holds what was seen last."""
        if self._session is None and self.rng.random() < self._load.session_share:
            await self._open_session()
        session = self._session
        if session is None or self.rng.random() >= self._load.session_share:
            await self._attempt(self._note(register), None, None)
            return
        note, sequence = self._note(register), session.begin()
        try:
            await self._attempt(note, session, sequence)
        finally:
            session.end(sequence)

    async def write_at(self, node: ReplicaNode) -> None:
        """Write at one node, once."""
        note = self._note(f"register {self.rng.randrange(self._load.registers)}")
        called = self._now()
        call = partial(ReplicaNode.propose, note=note, size_bytes=0, request=None)
        try:
            answer = decode_answer(await self._ask(call, repeated=False, node=node))
        except (NotLeader, Overloaded):
            return
        except (EngineError, TimeoutError):
            self._ended(self._operation(note, called, math.inf, True), note.number)
            return
        self._ended(self._operation(note, called, self._now(), answer.done), note.number)

    def _note(self, register: str) -> Note:
        number = self._workload.next_command()
        conditional = self.rng.random() < self._load.conditional_share
        expected = self._seen.get(register) if conditional else None
        return Note(number, register, f"{number}", conditional, expected)

    async def _attempt(self, note: Note, session: _Session | None, sequence: int | None) -> None:
        """Once, or with a session until it is answered or patience is over."""
        called = self._now()
        end_s = called + self._load.patience_s
        size_bytes = self.rng.choice(self._load.sizes_bytes)
        unsure = False
        while self._now() < end_s:
            request = session.request(sequence) if session and sequence is not None else None
            repeated = request is not None and self.rng.random() < self._load.repeated_share
            try:
                call = partial(
                    ReplicaNode.propose, note=note, size_bytes=size_bytes, request=request
                )
                result = await self._ask(call, repeated=repeated)
            except (EngineError, TimeoutError) as error:
                # The other copy of a repeated call may arrive where it is carried out.
                unsure = unsure or repeated or not isinstance(error, NotLeader | Overloaded)
                await self._elsewhere(error)
                if request is None and unsure:
                    break
                continue
            answer = decode_answer(result)
            self._seen[note.register] = note.value if answer.done else answer.before
            self._ended(self._operation(note, called, self._now(), answer.done), note.number)
            return
        if unsure:
            self._ended(self._operation(note, called, math.inf, True), note.number)

    def _operation(self, note: Note, called: float, returned: float, done: bool) -> Operation:
        kind = Kind.COMPARE_AND_SET if note.conditional else Kind.WRITE
        return Operation(
            self.name, note.register, kind, called, returned, note.value, note.expected, done
        )

    def _ended(self, operation: Operation, command: int | None = None) -> None:
        self._oracle.on_call(operation, command)
        if not operation.unknown:
            self._workload.operations += 1
        self._world.trace.event("call", operation)

    async def _open_session(self) -> None:
        try:
            name = await self._ask(lambda node: node.open_session(), repeated=False)
            self._session = _Session(name)
        except (EngineError, TimeoutError) as error:
            await self._elsewhere(error)

    async def _elsewhere(self, error: EngineError | TimeoutError) -> None:
        """Where to ask next, after a while."""
        if not isinstance(error, Unavailable | OutcomeUnknown | ReplicaFailed | TimeoutError):
            raise Violation(f"{self.name} is told {error!r}") from error
        leader = error.leader if isinstance(error, NotLeader) else ""
        named = [node for node in self._workload._nodes if node.name == leader]
        self._target = named[0] if named else self.rng.choice(self._workload._nodes)
        await asyncio.sleep(0.05 + 0.2 * self.rng.random())

    def _now(self) -> float:
        return self._world.loop.now

    async def _ask(
        self,
        call: Callable[[ReplicaNode], Coroutine[Any, Any, R]],
        *,
        repeated: bool,
        node: ReplicaNode | None = None,
        answer_s: float | None = None,
    ) -> R:
        """Send a call to a node and wait for its answer. Raises what it raised, `TimeoutError`."""
        network, node = self._workload._network, node or self._target
        answered: asyncio.Future[R] = self._world.loop.create_future()
        self._send(node, call, answered)
        if repeated:
            self._world.trace.fault("repeated proposal", self.name, node.name)
            self._send(node, call, answered, self.rng.expovariate(1.0))
        async with asyncio.timeout(answer_s or self._load.answer_s + 2 * network.faults.slow_s):
            return await answered

    def _send(
        self,
        node: ReplicaNode,
        call: Callable[[ReplicaNode], Coroutine[Any, Any, R]],
        answered: "asyncio.Future[R]",
        delay_s: float = 0.0,
    ) -> None:
        network, loop, process = self._workload._network, self._world.loop, node.process

        def settle(result: R | None, error: EngineError | None) -> None:
            if answered.done():
                return
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(result)  # type: ignore[arg-type]

        async def serve() -> None:
            result: R | None = None
            error: EngineError | None = None
            try:
                result = await call(node)
            except EngineError as raised:
                error = raised
            if network.unlucky(network.faults.lost_share):
                self._world.trace.fault("lost answer", node.name, self.name)
                return
            when = loop.now + network.latency_s()
            loop.deliver_at(when, self.process, settle, result, error)

        def arrive() -> None:
            task = loop.create_task(serve(), name=f"{self.name} at {node.name}")
            self._world.disturbances.perhaps_cancel(task)

        if network.unlucky(network.faults.lost_share):
            self._world.trace.fault("lost call", self.name, node.name)
            return
        loop.deliver_at(loop.now + network.latency_s() + delay_s, process, arrive)
