"""A broker for tests of programs that use one: in memory, with a clock that the test moves.

    async with MemoryBroker() as broker:
        handle = await broker.tasks.submit(resize, {"path": "elsa.jpg"}, delay_ms=60_000)
        await broker.advance(60_000)
        assert await broker.run_waiting() == 1
        assert await handle.wait() == "small elsa.jpg"

It is the same broker, on a log that is forgotten. Functions run in the test's own process, one
after the other, so that they can be watched and patched.

Invariants:
- Time passes only when the test says so; delays, schedules, deadlines and retries follow it.
- The same calls do the same things in the same order, in every run.
"""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from types import TracebackType
from typing import Final, TypeVar

from msgspec.structs import replace

from broker.connection import Assigned, Completion, Done, Hello, Leaving, Run, WorkerLimits
from broker.leading.timers import Handle
from broker.machine import BrokerMachine
from broker.payloads import STORED_BYTES_MAX, MemoryPayloads, kept, whole
from broker.service import Broker
from broker.settings import BrokerSettings
from broker.tasks import AsyncTasks
from broker.worker import Registry
from broker.worker.registry import REGISTRY
from broker.worker.running import failed, succeeded
from engine.errors import EngineError, NotLeader
from engine.log.position import START, Position
from engine.replica import ReadRows
from engine.replica.leading import Waiter
from engine.state.memory import MemoryState

T = TypeVar("T")
_SEED: Final = 1


class SteppedClock:
    """A clock that a test moves, and what is to be called at its moments."""

    def __init__(self, wall_ms: int = 1_767_225_600_000) -> None:
        self._start_ms = wall_ms
        self._passed_ms = 0
        self._number = count()
        self._calls: list[tuple[float, int, _Call]] = []

    def monotonic(self) -> float:
        """Seconds since it was made."""
        return self._passed_ms / 1000

    def wall_ms(self) -> int:
        """Milliseconds since 1970; it begins with the year 2026."""
        return self._start_ms + self._passed_ms

    def later(self, seconds: float, call: Callable[[], None]) -> Handle:
        """Call something when so much time has passed."""
        made = _Call(call)
        heapq.heappush(self._calls, (self.monotonic() + seconds, next(self._number), made))
        return made

    def step(self, until_ms: int) -> bool:
        """Move to the next call up to a moment and make it; False: there is none before it."""
        if self._calls and self._calls[0][0] * 1000 <= until_ms:
            at_s, _, made = heapq.heappop(self._calls)
            self._passed_ms = max(self._passed_ms, round(at_s * 1000))
            made.make()
            return True
        self._passed_ms = until_ms
        return False

    @property
    def passed_ms(self) -> int:
        """How much time has passed."""
        return self._passed_ms


class _Call:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def make(self) -> None:
        if self._call is not None:
            self._call()

    def cancel(self) -> None:
        self._call = None


class MemoryReplica:
    """A replica that leads, of a log that is forgotten: see `Replicated`."""

    name = "memory"
    address = ""
    leader = ""

    def __init__(self, machine: BrokerMachine) -> None:
        self.failure: EngineError | None = None
        self.term = 1
        self.position = START
        self._machine = machine
        self._state = MemoryState()
        self._closed = asyncio.Event()
        self._proposed: list[tuple[bytes, Waiter]] = []

    @property
    def idle(self) -> bool:
        """Whether every command is applied."""
        return not self._proposed

    @property
    def command_level(self) -> int:
        """See `Replicated`."""
        return self._machine.level

    def may_answer(self) -> bool:
        """See `Replicated`."""
        return bool(self.term)

    def propose_for(self, command: bytes, waiter: Waiter, level: int = 1) -> None:
        """See `Replicated`."""
        if not self.term:
            raise NotLeader("the broker was closed")
        if not self._proposed:
            asyncio.get_running_loop().call_soon(self._apply)
        self._proposed.append((command, waiter))

    def _apply(self) -> None:
        proposed, self._proposed = self._proposed, []
        for command, waiter in proposed:
            self.position = Position(1, self.position.entry + 1)
            answer = self._machine.apply(self._state, command, self.position)
            self._state.commit(self.position)
            if not waiter.done():
                waiter.set_result(answer)

    def read_now(self, look: Callable[[ReadRows], T]) -> T:
        """See `Replicated`."""
        if not self.term:
            raise NotLeader("the broker was closed")
        return look(self._state)

    def stale_read(self, look: Callable[[ReadRows], T]) -> tuple[T, Position]:
        """See `Replicated`."""
        return look(self._state), self.position

    async def until_other_term(self, term: int) -> int:
        """See `Replicated`."""
        if term == self.term:
            await self._closed.wait()
            raise NotLeader("the broker was closed")
        return self.term

    async def snapshot(self) -> Position:
        """There is none to take: nothing outlives it."""
        return self.position

    async def give_way(self, timeout_ms: int) -> None:
        """There is nobody to give way to."""

    async def close(self) -> None:
        """See `Replicated`."""
        self.term = 0
        self._closed.set()


class MemoryBroker:
    """A broker in memory; an async context manager."""

    def __init__(
        self, *, settings: BrokerSettings | None = None, registry: Registry = REGISTRY
    ) -> None:
        """`registry` has the functions that `run_waiting` runs."""
        self.clock = SteppedClock()
        self._settings = settings or BrokerSettings()
        self._registry = registry
        self._number = count(1)
        self.broker: Broker
        self.tasks: AsyncTasks
        self.payloads: MemoryPayloads

    async def __aenter__(self) -> "MemoryBroker":
        machine, rng = BrokerMachine(), Random(_SEED)
        self.broker = Broker(self.clock, rng, machine, self._settings, later=self.clock.later)
        self.payloads = MemoryPayloads(self.clock, rng)
        self.tasks = AsyncTasks(self.broker, self.clock, rng, self._registry, self.payloads)
        self._replica = MemoryReplica(machine)
        self.broker.start(self._replica)
        await self.broker.until_serving(60_000)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.broker.close()

    async def advance(self, milliseconds: int) -> None:
        """Let time pass: what is due on the way happens in its order."""
        until_ms = self.clock.passed_ms + milliseconds
        await self.settled()
        while self.clock.step(until_ms):
            await self.settled()
        await self.settled()

    async def settled(self) -> None:
        """Wait until the broker has done all that it can do at this moment."""
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._replica.idle and self.broker.term.dispatching.idle else 0

    async def run_waiting(self, *, places: int = 1) -> int:
        """Run the functions of all tasks that may begin now, and of those that they let begin.

        Returns how many attempts there were. What fails is tried again when its time has come.
        """
        name = f"test {next(self._number)}"
        limits = WorkerLimits(places)
        link = await self.broker.connect(Hello(name, name, "this process", (), limits))
        sequence = attempts = 0
        while True:
            await self.settled()
            runs: list[Run] = []
            for message in link.take():
                if isinstance(message, Assigned):
                    runs += message.runs
            if not runs:
                break
            attempts += len(runs)
            sequence += 1
            ended = [await self._run(run) for run in runs]
            await link.send([Done(sequence, link.session, ended)])
        await link.send([Leaving(sequence + 1, ended=True)])
        await self.settled()
        return attempts

    async def _run(self, run: Run) -> Completion:
        function = self._registry.of(run.type)
        try:
            if function is None:
                raise LookupError(f"no function is registered for the type {run.type}")
            payload = await whole(self.payloads, run.payload, run.payload_object)
            result = function.call(replace(run, payload=payload))
            ended = await result if function.is_async else result
            completion = succeeded(run, ended, STORED_BYTES_MAX)
            where = await kept(self.payloads, completion.result)
            return replace(completion, result=where.data, result_object=where.payload_id)
        except Exception as error:
            return failed(run, error, function)
