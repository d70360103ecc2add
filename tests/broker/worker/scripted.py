"""A broker that says what the test wants, and places in which nothing runs, in virtual time."""

import asyncio
import random
from collections.abc import Callable

from broker.connection import (
    Acked,
    Attempt,
    Completion,
    Done,
    Ended,
    FromBroker,
    FromWorker,
    Hello,
    Run,
    Welcome,
    WorkerLimits,
)
from broker.errors import BrokerUnavailable, SessionLost
from broker.worker.worker import Worker, WorkerSettings

LEASE_MS = 8_000


class LoopClock:
    """The loop's time, and what passed while the process stood still."""

    passed_s = 0.0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self.passed_s

    def wall_ms(self) -> int:
        return int(self.monotonic() * 1000)


class ScriptedLink:
    """One link. What the worker says is in `heard`, and acknowledged if the port wants that."""

    def __init__(self, port: "ScriptedPort", hello: Hello) -> None:
        self.hello = hello
        self.heard: list[FromWorker] = []
        self.open = True
        self._port = port
        self._saying: asyncio.Queue[FromBroker | None] = asyncio.Queue()

    def say(self, message: FromBroker) -> None:
        self._saying.put_nowait(message)

    def cut(self) -> None:
        """The network fails."""
        self.open = False
        self._saying.put_nowait(None)

    async def receive(self) -> list[FromBroker]:
        message = await self._saying.get()
        if message is None:
            raise SessionLost("cut")
        return [message]

    async def send(self, messages: list[FromWorker]) -> None:
        if not self.open:
            raise SessionLost("cut")
        self.heard += messages
        for each in messages:
            if self._port.answers(each):
                self.say(Acked(each.sequence))

    async def fetch_code(self, name: str) -> bytes:
        return b""

    async def close(self) -> None:
        self.open = False

    def told(self) -> list[Completion]:
        """All completions, in order."""
        return [each for done in self.heard if isinstance(done, Done) for each in done.completions]

    def all_of(self, kind: type[FromWorker]) -> list[FromWorker]:
        return [each for each in self.heard if isinstance(each, kind)]


class ScriptedPort:
    """Where the worker connects. `refusing`: nobody answers there."""

    def __init__(self) -> None:
        self.links: list[ScriptedLink] = []
        self.refusing = False
        self.answers: Callable[[FromWorker], bool] = lambda message: True
        self.welcome: Callable[[Hello, int], FromBroker] = lambda hello, session: Welcome(
            session, LEASE_MS, hello.running
        )

    async def connect(self, hello: Hello) -> ScriptedLink:
        if self.refusing:
            raise BrokerUnavailable("nobody leads")
        link = ScriptedLink(self, hello)
        self.links.append(link)
        link.say(self.welcome(hello, len(self.links)))
        return link

    @property
    def link(self) -> ScriptedLink:
        return self.links[-1]


class FakePlaces:
    """Attempts stay until the test ends them."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.runs: dict[Attempt, Run] = {}
        self.begun: list[Attempt] = []
        self.interrupted: list[tuple[Attempt, str]] = []
        self.ended_all_s: list[float] = []
        self._empty = asyncio.Event()

    @property
    def running(self) -> list[Attempt]:
        return list(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def run(self, runs: list[Run]) -> None:
        self._empty.clear()
        self.begun += [(run.id, run.attempt) for run in runs]
        self.runs.update({(run.id, run.attempt): run for run in runs})

    def interrupt(self, attempts: list[Attempt], reason: str) -> None:
        self.interrupted += [(attempt, reason) for attempt in attempts]
        self.end([each for each in attempts if each in self.runs], Ended.INTERRUPTED)

    def give_back(self) -> None:
        return

    async def end_all(self) -> None:
        self.ended_all_s.append(asyncio.get_running_loop().time())
        self.end(list(self.runs), Ended.ENDED_FOR_ANOTHER)

    async def idle(self) -> None:
        while self.runs:
            self._empty.clear()
            await self._empty.wait()

    def end(self, attempts: list[Attempt], ended: Ended = Ended.FINISHED) -> None:
        """What the processes would tell."""
        assert self.worker is not None
        for attempt in attempts:
            del self.runs[attempt]
        self._empty.set()
        self.worker.done([Completion(*attempt, ended) for attempt in attempts])


class Scene:
    """A worker between a scripted broker and its places."""

    def __init__(self) -> None:
        self.port = ScriptedPort()
        self.places = FakePlaces()
        settings = WorkerSettings("barn", "p1", limits=WorkerLimits(4), drain_ms=3_000)
        self.clock = LoopClock()
        self.worker = Worker(self.port, settings, ("milk",), self.clock, random.Random(1))
        self.places.worker = self.worker
        self.life = asyncio.create_task(self.worker.run(self.places))

    async def end(self) -> None:
        self.life.cancel()
        await asyncio.gather(self.life, return_exceptions=True)


def runs(*ids: int) -> list[Run]:
    """First attempts of tasks."""
    return [Run(each, 1, "elsa", "milk", b"") for each in ids]
