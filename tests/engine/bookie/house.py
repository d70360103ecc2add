"""A bookie's own service on a disk in memory; its threads wait for the test's word."""

import asyncio
import hashlib
import random
from collections.abc import Callable
from typing import Any, TypeVar

from engine.bookie.index_memory import MemoryIndex
from engine.bookie.service import BookieService
from engine.bookie.settings import BookieSettings
from engine.metadata.memory import MemoryTree
from engine.run import Run
from engine.transport.contract import AppendReply, LedgerFacts, ReadReply, ReadRequest
from tests.simulation.disk import PowerLoss, SimDisk

KEY = b"key of the ledger"
LEDGER = 7
R = TypeVar("R")


class HouseClock:
    """The loop's own time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return 1_000


class HouseBatcher:
    """One imagined thread: it works in the next turn, or when it is released."""

    def __init__(
        self,
        work: Callable[[list[Any]], Any],
        done: Callable[[list[Any], Any, BaseException | None], None],
    ) -> None:
        self.holding = False
        self.dead = False
        self._work = work
        self._done = done
        self._queue: list[Any] = []
        self._loop = asyncio.get_running_loop()

    def put(self, job: Any) -> None:
        self._queue.append(job)
        if not self.holding:
            self._loop.call_soon(self._turn)

    def release(self) -> None:
        """Work off what is queued, in the next turn, and from now on."""
        self.holding = False
        self._loop.call_soon(self._turn)

    async def close(self) -> None:
        self.release()
        await turns()

    def _turn(self) -> None:
        if self.dead or not self._queue:
            return
        jobs, self._queue = self._queue, []
        result: Any = None
        error: BaseException | None = None
        try:
            result = self._work(jobs)
        except PowerLoss:
            self.dead = True
            return
        except Exception as raised:
            error = raised
        self._done(jobs, result, error)


class HouseWorkers:
    """The threads of one service."""

    def __init__(self) -> None:
        self.batchers: dict[str, HouseBatcher] = {}

    def batcher(
        self,
        name: str,
        work: Callable[[list[Any]], Any],
        done: Callable[[list[Any], Any, BaseException | None], None],
        *,
        lone_ms: float = 0.0,
        begin: Callable[[list[Any]], None] | None = None,
    ) -> HouseBatcher:
        self.batchers[name] = HouseBatcher(work, done)
        return self.batchers[name]

    async def run(self, work: Callable[[], R]) -> R:
        await asyncio.sleep(0)
        return work()


class House:
    """A machine with one bookie on it, started and ended by the test."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        self.disk = SimDisk(random.Random(seed))
        self.index = MemoryIndex()
        self.tree = MemoryTree("meadow")
        self.settings = BookieSettings(**{"ahead_bytes": 0, **settings})
        self._rng = random.Random(seed)

    async def start(self) -> BookieService:
        """Start the service, or start it again."""
        self.workers = HouseWorkers()
        self.service = await BookieService.start(
            disk=self.disk,
            open_index=lambda: self.index,
            workers=self.workers,
            clock=HouseClock(),
            rng=self._rng,
            store=self.tree.session(),
            settings=self.settings,
        )
        return self.service

    async def use_ids(self, count: int) -> None:
        """Let the metadata store know that so many ledgers were made."""
        store = self.tree.session()
        for _ in range(count):
            await store.next_id("/ids/ledger")

    @property
    def journal(self) -> HouseBatcher:
        """The thread that writes the journal."""
        return self.workers.batchers["journal"]

    async def crash(self, *, power: bool = False, index_lost: bool = False) -> None:
        """The process ends at once; with `power` the machine does."""
        for batcher in self.workers.batchers.values():
            batcher.dead = True
        await self.service._publisher.stop(unregister=False)
        if power:
            self.disk.lose_power()
        else:
            self.disk.restart()
        self.index.crash()
        if index_lost:
            self.index = MemoryIndex()

    def append(
        self,
        first: int,
        *bodies: bytes,
        ledger_id: int = LEDGER,
        key: bytes = KEY,
        recovery: bool = False,
    ) -> list[AppendReply]:
        """Append a run; the list gets the reply when it comes."""
        replies: list[AppendReply] = []
        run = Run.pack(ledger_id, first, bodies, lac=first - 1, length_before=0)
        facts = facts_of(ledger_id)
        self.service.append([run], replies.append, key=key, facts=facts, recovery=recovery)
        return replies

    async def stored(self, first: int, *bodies: bytes, **options: Any) -> AppendReply:
        """Append a run and wait for the reply."""
        replies = self.append(first, *bodies, **options)
        await turns(100)
        return replies[0]

    async def read(
        self, first: int, last: int, *, ledger_id: int = LEDGER, fence_key: bytes | None = None
    ) -> ReadReply:
        return await self.service.read(ReadRequest(ledger_id, first, last, 1 << 20, fence_key))

    async def indexed(self) -> None:
        """Wait until the index has, unflushed, what is durable in the journal."""
        self.service.storage.writer._send(None)
        await turns()

    def segment(self) -> bytearray:
        """The bytes of the newest segment, to do harm to."""
        name = max(name for name in self.disk._names if name.endswith(".segment"))
        return self.disk._names[name].data


def facts_of(ledger_id: int) -> LedgerFacts:
    key_hash = hashlib.sha256(KEY).digest()
    return LedgerFacts(ledger_id, 1, 1, 1, 256, key_hash, 5, {}, 0, ("b",))


def bodies_of(reply: ReadReply) -> list[bytes]:
    """The entries of a reply, their digests checked."""
    return [entry.body for run in reply.runs for entry in run.entries()]


async def turns(count: int = 20) -> None:
    """Let the loop run what is ready."""
    for _ in range(count):
        await asyncio.sleep(0)
