"""A cluster whose bookies do as the test says: hold answers back, refuse them, lose them."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Self

import msgspec

from engine.errors import BookieUnavailable
from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from engine.metadata.bookies import Bookies, FolderAge, Registration
from engine.metadata.contract import MetadataStore
from engine.metadata.memory import MemoryTree
from engine.ports.clock import Clock, SystemClock
from engine.run import NO_ENTRY, Run
from engine.transport.contract import (
    AppendReply,
    Bookie,
    BookieInfo,
    LacReply,
    LedgerFacts,
    ReadReply,
    ReadRequest,
    Status,
)
from tests.simulation.loop import SimLoop
from tests.simulation.virtual import elapse

QUICK = ClientSettings(
    append_timeout_ms=400,
    read_timeout_ms=400,
    recovery_timeout_ms=1_000,
    speculative_read_ms=20,
    long_poll_ms=200,
    retry_pause_ms=1,
    straggler_close_ms=20,
    quarantine_ms=60_000,
)


class ScriptedBookie:
    """Stores entries in a dict and does what its flags say."""

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.boot = 1
        self.entries: dict[int, dict[int, Run]] = {}
        self.fenced: set[int] = set()
        self.lacs: dict[int, int] = {}
        self.confirms = 0
        self.facts: list[LedgerFacts] = []
        self.requests: list[tuple[str, int, int]] = []
        self.damaged: set[tuple[int, int]] = set()
        self.down = False
        self.mute = False
        self.holding = False
        self.held: list[Callable[[], None]] = []
        self.append_status = Status.OK
        self.fence_status = Status.OK
        self.unfenced_reads = 0
        self.runs_taken: list[Run] = []

    def release(self) -> None:
        """Send every answer held back so far."""
        held, self.held = self.held, []
        for answer in held:
            answer()

    def append(
        self,
        runs: Sequence[Run],
        reply: Callable[[AppendReply], None],
        *,
        key: bytes,
        facts: LedgerFacts | None = None,
        recovery: bool = False,
    ) -> None:
        if facts is not None:
            self.facts.append(facts)
        first, last, ledger_id = runs[0].first, runs[-1].last, runs[0].ledger_id
        self.requests.append(("recovery" if recovery else "append", first, last))
        self.runs_taken += runs
        status = self.append_status
        if status is Status.OK and ledger_id in self.fenced and not recovery:
            status = Status.FENCED
        if self.down or self.mute:
            return
        if status is Status.OK:
            kept = self.entries.setdefault(ledger_id, {})
            for run in runs:
                for entry_id in range(run.first, run.last + 1):
                    kept.setdefault(entry_id, run.cut(entry_id, entry_id))
                self._learn(ledger_id, run.lac)
        answer = AppendReply(status, ledger_id, first, last, self.bookie_id, self.boot)
        if self.holding:
            self.held.append(lambda: reply(answer))
        else:
            asyncio.get_running_loop().call_soon(reply, answer)

    def confirm(self, ledger_id: int, lac: int) -> None:
        self.confirms += 1
        self._learn(ledger_id, lac)

    def _learn(self, ledger_id: int, lac: int) -> None:
        self.lacs[ledger_id] = max(lac, self.lacs.get(ledger_id, NO_ENTRY))

    def record(self, facts: LedgerFacts, key: bytes) -> None:
        self.facts.append(facts)

    async def read(self, request: ReadRequest) -> ReadReply:
        self._answerable()
        if request.fence_key is not None:
            self.fenced.add(request.ledger_id)
        else:
            self.unfenced_reads += 1
        kept = self.entries.get(request.ledger_id, {})
        runs: list[Run] = []
        entry_id = request.first
        missing = unknown = None
        while entry_id <= request.last:
            if (request.ledger_id, entry_id) in self.damaged:
                unknown = (entry_id, entry_id)
                break
            if entry_id not in kept:
                above = [held for held in kept if held > entry_id]
                missing = (entry_id, min([*above, request.last + 1]) - 1)
                break
            runs.append(kept[entry_id])
            entry_id += 1
        lac = self.lacs.get(request.ledger_id, NO_ENTRY)
        return ReadReply(Status.OK, tuple(runs), missing, unknown, lac, self.bookie_id, self.boot)

    async def fence(self, ledger_id: int, key: bytes) -> LacReply:
        self._answerable()
        if self.fence_status is Status.OK:
            self.fenced.add(ledger_id)
        lac = self.lacs.get(ledger_id, NO_ENTRY)
        return LacReply(self.fence_status, lac, self.bookie_id, self.boot)

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacReply:
        self._answerable()
        lac = self.lacs.get(ledger_id, NO_ENTRY)
        return LacReply(Status.OK, lac, self.bookie_id, self.boot)

    async def info(self) -> BookieInfo:
        self._answerable()
        return BookieInfo(self.bookie_id, self.boot, "cluster", True, 1, 1)

    def corrupt(self, ledger_id: int, entry_id: int) -> None:
        """Flip a bit of a stored entry, behind the digest's back."""
        run = self.entries[ledger_id][entry_id]
        body = bytes([run.body[0] ^ 1]) + run.body[1:]
        self.entries[ledger_id][entry_id] = msgspec.structs.replace(run, body=body)

    def _answerable(self) -> None:
        if self.down or self.mute:
            raise BookieUnavailable(f"bookie {self.bookie_id} is down")


class ScriptedTransport:
    """Reaches the scripted bookies that are up."""

    def __init__(self) -> None:
        self.bookies: dict[str, ScriptedBookie] = {}

    async def connect(self, bookie_id: str) -> Bookie:
        bookie = self.bookies.get(bookie_id)
        if bookie is None or bookie.down:
            raise BookieUnavailable(f"bookie {bookie_id} is down")
        return bookie

    async def close(self) -> None:
        return None


class LoopClock:
    """The loop's own time, which may be virtual."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return 1_000


def _is_virtual() -> bool:
    return isinstance(asyncio.get_running_loop(), SimLoop)


class Cluster:
    """Scripted bookies, a metadata store in memory, and clients of both."""

    def __init__(self, tree: MemoryTree) -> None:
        self.tree = tree
        self.store: MetadataStore = tree.session()
        self.transport = ScriptedTransport()
        self.client_clock: Clock = LoopClock() if _is_virtual() else SystemClock()
        self.registry = Bookies(self.store)

    @classmethod
    async def of(cls, count: int) -> Self:
        """A cluster of bookies called b0, b1 and so on, all registered."""
        cluster = cls(MemoryTree("cluster"))
        for index in range(count):
            await cluster.add(f"b{index}")
        return cluster

    async def add(self, bookie_id: str) -> ScriptedBookie:
        """Start one more bookie."""
        bookie = ScriptedBookie(bookie_id)
        self.transport.bookies[bookie_id] = bookie
        bookie.boot = 1
        await self.registry.raise_age(bookie_id, FolderAge(bookie.boot))
        await self.registry.register(Registration(bookie_id, bookie.boot))
        return bookie

    def client(
        self, settings: ClientSettings = QUICK, *, store: MetadataStore | None = None
    ) -> LedgerClient:
        """A client with a session of its own."""
        return LedgerClient(
            store=store or self.tree.session(),
            transport=self.transport,
            clock=self.client_clock,
            rng=random.Random(7),
            settings=settings,
        )

    @property
    def bookies(self) -> list[ScriptedBookie]:
        """All bookies, in the order of their names."""
        return [self.transport.bookies[name] for name in sorted(self.transport.bookies)]

    def at(self, ensemble: tuple[str, ...], index: int) -> ScriptedBookie:
        """The bookie at one index of an ensemble."""
        return self.transport.bookies[ensemble[index]]


async def turns(count: int = 20) -> None:
    """Let the loop run what is ready."""

    for _ in range(count):
        await asyncio.sleep(0)


async def until(reached: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about."""
    async with asyncio.timeout(20):
        while not reached():
            await elapse(0.001)
