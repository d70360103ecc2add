"""One bookie service over a disk in memory, with threads that wait when they are told to."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from engine.bookie.index_memory import MemoryIndex
from engine.bookie.service import BookieService
from engine.bookie.settings import BookieSettings
from engine.metadata.bookies import Bookies
from engine.metadata.memory import MemoryTree
from engine.ports.disk import Disk
from engine.run import Run
from engine.transport.contract import AppendReply, LedgerFacts, ReadReply, ReadRequest
from tests.simulation.disk import PowerLoss, SimDisk

R = TypeVar("R")
KEY = b"k" * 32
OTHER_KEY = b"o" * 32
SETTINGS = BookieSettings(
    index_delay_ms=0,
    synced_mark_ms=60_000,
    space_check_ms=60_000,
    reserve_bytes=0,
    ahead_bytes=0,
)


class HeldBatcher:
    """A batcher on the loop. While it is held, jobs gather."""

    def __init__(
        self,
        work: Callable[[list[Any]], Any],
        done: Callable[[list[Any], Any, BaseException | None], None],
    ) -> None:
        self.held = False
        self.dead = False
        self._work = work
        self._done = done
        self._jobs: list[Any] = []
        self._scheduled = False

    def put(self, job: Any) -> None:
        self._jobs.append(job)
        self._schedule()

    def release(self) -> None:
        self.held = False
        self._schedule()

    async def close(self) -> None:
        self.held = False
        self._turn()

    def _schedule(self) -> None:
        if self._jobs and not self.held and not self._scheduled and not self.dead:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self.held or self.dead:
            return
        jobs, self._jobs = self._jobs, []
        result: Any = None
        failure: BaseException | None = None
        try:
            result = self._work(jobs)
        except (Exception, PowerLoss) as error:
            failure = error
        self._done(jobs, result, failure)
        self._schedule()


class HeldWorkers:
    """Workers on the loop; `threads["journal"].held = True` stops the disk."""

    def __init__(self) -> None:
        self.threads: dict[str, HeldBatcher] = {}

    def batcher(
        self, name: str, work: Any, done: Any, *, lone_ms: float = 0.0, begin: Any = None
    ) -> HeldBatcher:
        self.threads[name] = HeldBatcher(work, done)
        return self.threads[name]

    async def run(self, work: Callable[[], R]) -> R:
        await asyncio.sleep(0)
        return work()


class StillClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


class Stable:
    """A bookie's machine: disk, index and threads; start, end and lose power at will."""

    def __init__(self, seed: int = 1, settings: BookieSettings = SETTINGS) -> None:
        self.disk = SimDisk(random.Random(seed))
        self.index = MemoryIndex()
        self.tree = MemoryTree("cluster")
        self.clock = StillClock()
        self.settings = settings
        self.workers = HeldWorkers()
        self.rng = random.Random(seed)

    async def start(self, disk: Disk | None = None) -> BookieService:
        """A new process over the folder as it is."""
        self.workers = HeldWorkers()
        return await BookieService.start(
            disk=disk or self.disk,
            open_index=lambda: self.index,
            workers=self.workers,
            clock=self.clock,
            rng=self.rng,
            store=self.tree.session(),
            settings=self.settings,
        )

    async def crash(self, *, power: bool = True) -> BookieService:
        """End the process, with the machine if `power`, and start again."""
        for thread in self.workers.threads.values():
            thread.dead = True
        if power:
            self.disk.lose_power()
        self.index.crash()
        return await self.start()

    def segments(self) -> list[str]:
        """The names of the journal's segments."""
        return [name for name in self.disk.names("journal") if name.endswith(".segment")]

    def hold(self) -> None:
        """Stop the journal's thread before its next batch."""
        self.workers.threads["journal"].held = True

    def release(self) -> None:
        """Let the journal's thread go on."""
        self.workers.threads["journal"].release()


def body_of(ledger_id: int, entry_id: int, size_bytes: int = 40) -> bytes:
    """The bytes that a test expects of an entry."""
    return random.Random(ledger_id << 32 | entry_id).randbytes(size_bytes)


def run_of(ledger_id: int, first: int, last: int, *, lac: int | None = None, size: int = 40) -> Run:
    """A run of the expected bytes."""
    bodies = [body_of(ledger_id, entry_id, size) for entry_id in range(first, last + 1)]
    lac = first - 1 if lac is None else lac
    return Run.pack(ledger_id, first, bodies, lac=lac, length_before=size * first)


def facts_of(ledger_id: int, key: bytes = KEY, **changes: Any) -> LedgerFacts:
    """Facts of a ledger with this key."""
    values: dict[str, Any] = {"fragment_first": 0, "ensemble": ("b",), **changes}
    return LedgerFacts(ledger_id, 1, 1, 1, 256, hashlib.sha256(key).digest(), 5, {}, **values)


class Asked:
    """An append and the reply to it, once it has come."""

    def __init__(self) -> None:
        self.replies: list[AppendReply] = []
        self.answered = asyncio.Event()

    def take(self, reply: AppendReply) -> None:
        self.replies.append(reply)
        self.answered.set()

    async def reply(self) -> AppendReply:
        """Wait for it."""
        await self.answered.wait()
        assert len(self.replies) == 1
        return self.replies[0]


def ask(
    service: BookieService,
    *runs: Run,
    key: bytes = KEY,
    facts: LedgerFacts | None = None,
    recovery: bool = False,
) -> Asked:
    """Send an append; facts come along unless the ledger is told to be known."""
    asked = Asked()
    service.append(runs, asked.take, key=key, facts=facts, recovery=recovery)
    return asked


async def append(service: BookieService, *runs: Run, **options: Any) -> AppendReply:
    """Append with the usual facts and wait for the reply."""
    options.setdefault("facts", facts_of(runs[0].ledger_id))
    return await ask(service, *runs, **options).reply()


async def read(
    service: BookieService, ledger_id: int, first: int, last: int, **options: Any
) -> ReadReply:
    """Read a range."""
    options.setdefault("max_bytes", 1 << 20)
    return await service.read(ReadRequest(ledger_id, first, last, **options))


def ids_of(reply: ReadReply) -> list[int]:
    """The ids in a reply, their bytes checked."""
    ids: list[int] = []
    for run in reply.runs:
        for entry in run.entries():
            assert entry.body == body_of(entry.ledger_id, entry.entry_id, len(entry.body))
            ids.append(entry.entry_id)
    return ids


async def read_all(service: BookieService, ledger_id: int, first: int, last: int) -> list[int]:
    """The ids read by asking on after each reply, until one brings nothing."""
    ids: list[int] = []
    while first <= last and (found := ids_of(await read(service, ledger_id, first, last))):
        ids += found
        first = ids[-1] + 1
    return ids


async def turns(count: int = 20) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


def flip(disk: SimDisk, name: str, offset: int, data: Sequence[int] = (0xFF,)) -> None:
    """Damage a file on the platter."""
    inode = disk._inode(name)
    for index, mask in enumerate(data):
        inode.data[offset + index] ^= mask


async def three_batches(yard: Stable) -> BookieService:
    """A bookie that holds entries 0 to 11 of ledger 7, written in three batches."""
    service = await yard.start()
    for first in (0, 4, 8):
        await append(service, run_of(7, first, first + 3))
    return service


async def writable(yard: Stable) -> list[bool]:
    """What the registrations say."""
    await turns()
    found = await Bookies(yard.tree.session()).available()
    return [registration.writable for registration in found.values()]
