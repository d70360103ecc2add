"""A cluster of scripted bookies with logs on it, a wall clock moved by hand, a store that tells.

Invariants:
- Every client draws its own numbers, so that no token is another's.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from engine.errors import MetadataUnavailable
from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from engine.log.log import ReplicatedLog
from engine.log.log_writer import LogWriter
from engine.log.position import START, Position, Span
from engine.log.settings import LogSettings
from engine.metadata.contract import MetadataStore, Page, Versioned
from engine.metadata.memory import MemoryTree
from tests.engine.ledger.scripted import QUICK, Cluster, LoopClock, turns
from tests.simulation.virtual import elapse

SETTINGS = LogSettings(
    retry_pause_ms=1,
    retry_pause_ms_max=4,
    look_interval_ms=20,
    read_patience_ms=50,
    turn_timeout_ms=5_000,
    clock_difference_ms=1_000,
    roll_straggler_ms=1,
)
NAME = "cows"
LIST = f"/logs/{NAME}/list"


class HandWallClock(LoopClock):
    """The loop's monotonic clock, and a wall clock that the test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms


Hook = Callable[[str, str], Awaitable[None]]


class ToldStore:
    """A store that notes every write, and awaits `before` and `after` around each."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.writes: list[tuple[str, str]] = []
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.deaf = False
        self.lost_gets = 0

    @property
    def cluster_id(self) -> str:
        return self._store.cluster_id

    async def get(self, key: str) -> Versioned | None:
        if self.lost_gets:
            self.lost_gets -= 1
            raise MetadataUnavailable("the reply was lost")
        return await self._store.get(key)

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        await self._tell(self.before, "create", key)
        version = await self._store.create(key, value, ephemeral=ephemeral)
        self.writes.append(("create", key))
        await self._tell(self.after, "create", key)
        return version

    async def set(self, key: str, value: bytes, version: int) -> int:
        await self._tell(self.before, "set", key)
        new_version = await self._store.set(key, value, version)
        self.writes.append(("set", key))
        await self._tell(self.after, "set", key)
        return new_version

    async def delete(self, key: str, version: int | None = None) -> None:
        await self._tell(self.before, "delete", key)
        await self._store.delete(key, version)
        self.writes.append(("delete", key))
        await self._tell(self.after, "delete", key)

    async def children(self, prefix: str) -> list[str]:
        return await self._store.children(prefix)

    async def page(self, prefix: str, above: int = -1) -> Page:
        return await self._store.page(prefix, above)

    async def next_id(self, counter: str) -> int:
        return await self._store.next_id(counter)

    async def sync(self) -> None:
        await self._store.sync()

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        if self.deaf:
            return lambda: None
        return self._store.watch(key, changed)

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch_session(lost)

    async def close(self) -> None:
        await self._store.close()

    async def _tell(self, hook: Hook | None, kind: str, key: str) -> None:
        if hook is not None:
            await hook(kind, key)


class Yard(Cluster):
    """The cluster, and logs by the client."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.clock = HandWallClock()
        self._draws = 0

    def client(
        self, settings: ClientSettings = QUICK, *, store: MetadataStore | None = None
    ) -> LedgerClient:
        self._draws += 1
        return LedgerClient(
            store=store or self.tree.session(),
            transport=self.transport,
            clock=self.clock,
            rng=random.Random(self._draws),
            settings=settings,
        )

    def log(
        self,
        settings: LogSettings = SETTINGS,
        *,
        store: MetadataStore | None = None,
        client: LedgerClient | None = None,
    ) -> ReplicatedLog:
        """The log as one more client sees it."""
        return ReplicatedLog(client or self.client(store=store), NAME, settings)

    async def fence(self, ledger: int) -> int:
        """Close a ledger by recovery, as a repair might; returns its last entry."""
        reader = await self.client().open_ledger(ledger)
        await reader.close()
        return reader.last_add_confirmed


async def whole(log: ReplicatedLog, after: Position = START) -> list[tuple[Position, bytes]]:
    """Every entry after a position that is confirmed now, with its position."""
    found: list[tuple[Position, bytes]] = []
    await turns()  # What was acknowledged just now is announced within a turn or two.
    async with aclosing(log.read(after, await log.end())) as batches:
        async for batch in batches:
            found += zip(batch.span.positions(), batch.bodies, strict=True)
    return found


async def bodies(log: ReplicatedLog, after: Position = START) -> list[bytes]:
    """The bodies of every entry after a position that is confirmed now."""
    return [body for _, body in await whole(log, after)]


def numbered(first: int, count: int) -> list[bytes]:
    """Bodies that name their number."""
    return [b"entry %d" % number for number in range(first, first + count)]


def positions(spans: Sequence[Span]) -> list[Position]:
    """The positions of all entries of some spans."""
    return [position for span in spans for position in span.positions()]


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that other tasks bring about."""
    async with asyncio.timeout(5):
        while True:
            if await reached():
                return
            await elapse(0.001)


class Tailing:
    """A tail that collects what it is given until it has been cancelled."""

    def __init__(self, log: ReplicatedLog, after: Position = START) -> None:
        self.after = after
        self.found: list[tuple[Position, bytes]] = []
        self._grown = asyncio.Event()
        self._task = asyncio.ensure_future(self._follow(log, after))

    async def _follow(self, log: ReplicatedLog, after: Position) -> None:
        async with aclosing(log.tail(after)) as batches:
            async for batch in batches:
                self.found += zip(batch.span.positions(), batch.bodies, strict=True)
                self._grown.set()

    async def until(self, count: int) -> list[bytes]:
        """Wait until so many entries came; returns the bodies of all that did."""
        async with asyncio.timeout(10):
            while len(self.found) < count:
                self._grown.clear()
                growing = asyncio.ensure_future(self._grown.wait())
                await asyncio.wait([growing, self._task], return_when=asyncio.FIRST_COMPLETED)
                growing.cancel()
                if self._task.done():
                    self._task.result()
        return [body for _, body in self.found]

    async def stop(self) -> None:
        """End it. Raises what ended it before, if something did."""
        if self._task.done():
            self._task.result()
        self._task.cancel()
        await asyncio.wait([self._task])


async def led(yard: Yard, settings: LogSettings = SETTINGS) -> tuple[ReplicatedLog, LogWriter]:
    """A log and its leader."""
    log = yard.log(settings)
    return log, await log.lead()
