"""A running bookie's upkeep: garbage first, then compaction, round after round.

Invariants:
- One round at a time, whoever asked for it.
- A round that fails, in whatever way, leaves everything readable; it is logged, counted, told in
  `last_error` and tried again at the next one. Upkeep ends when the bookie has stopped, not before:
  one that ended in silence would never give a byte back.
- A round that would forget too much at once asks, in the metadata store and in one line of the log,
  and takes the answer from there.
- A bookie whose disk is full compacts all that is worth it at every round: that is how it comes
  back.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from engine.bookie.compaction import CompactionRound, CompactionSettings, Compactor
from engine.bookie.garbage import Collector, GarbageRound, GarbageSettings
from engine.bookie.index import Index, Position
from engine.bookie.segment import Record
from engine.bookie.service import BookieService
from engine.errors import EngineError
from engine.metadata.contract import MetadataStore
from engine.metadata.garbage_asks import GarbageAsk, GarbageAsks
from engine.ports.clock import Clock
from engine.ports.disk import Disk
from engine.ports.workers import Workers

_LOG: Final = logging.getLogger("engine.bookie")


@dataclass(frozen=True)
class UpkeepSettings:
    """How often, and how cautiously. Times in milliseconds.

    A round comes every `garbage.interval_ms`. It compacts what is nearly dead once
    `minor_interval_ms` have passed or ledgers were buried, and all that is worth it once
    `major_interval_ms` have passed or the disk is full.
    """

    garbage: GarbageSettings = field(default_factory=GarbageSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    minor_interval_ms: int = 3_600_000
    major_interval_ms: int = 86_400_000

    def __post_init__(self) -> None:
        assert 0 < self.minor_interval_ms <= self.major_interval_ms


class ServiceYard:
    """A running bookie as its compactor sees it."""

    def __init__(self, service: BookieService, disk: Disk) -> None:
        self._service = service
        self.disk = disk
        self.salt = service.identity.salt

    @property
    def index(self) -> Index:
        """Read in threads, never written."""
        return self._service.storage.index

    @property
    def active_segment(self) -> int:
        """The segment that is written now."""
        return self._service.storage.journal.active_segment

    async def write(self, records: Sequence[Record]) -> list[Position]:
        """Make records durable, and hand them to the index in order."""
        return await self._service.write(records)

    async def checkpoint(self) -> None:
        """Wait until all that was written so far is durable in the index."""
        await self._service.storage.writer.flush()


class Upkeep:
    """Garbage collection and compaction of one bookie. Made by `start_upkeep`."""

    def __init__(
        self,
        service: BookieService,
        disk: Disk,
        workers: Workers,
        clock: Clock,
        store: MetadataStore,
        settings: UpkeepSettings,
    ) -> None:
        self.last_error: Exception | None = None
        self.rounds = 0
        self._service = service
        self._clock = clock
        self._settings = settings
        self._collector = Collector(service, store, clock, settings.garbage)
        self._asks = GarbageAsks(store)
        self._compactor = Compactor(ServiceYard(service, disk), workers, clock, settings.compaction)
        self._turn = asyncio.Lock()
        self._minor_s = self._major_s = clock.monotonic()
        watch = service.storage.measures.watch
        watch(
            "herdbook_bookie_garbage_asked",
            "Ledgers that are gone and wait for `herdbook bookie gc --confirm`.",
            lambda: found.doomed if (found := self.last_garbage) and found.asks else 0,
        )
        watch(
            "herdbook_bookie_garbage_recent",
            "Ledgers that the last round did not ask about: they may have been written lately.",
            lambda: found.recent if (found := self.last_garbage) else 0,
        )
        self._task = asyncio.ensure_future(self._run())

    @property
    def last_garbage(self) -> GarbageRound | None:
        """What the last finished round found; `asks` says that it waits for a confirmation."""
        return self._collector.last_round

    @property
    def last_compaction(self) -> CompactionRound | None:
        """What the last finished compaction did."""
        return self._compactor.last_round

    async def collect(self) -> GarbageRound:
        """Run a garbage round now, with what an operator confirmed; see `Collector.collect`."""
        async with self._turn:
            name = self._service.bookie_id
            held = await self._asks.read(name)
            found = await self._collector.collect(confirmed=held.ask.confirmed if held else 0)
            if found.asks:
                if held is None:
                    _LOG.warning(
                        "bookie %s: %d of its %d ledgers are gone, too many to be forgotten "
                        "unasked: `herdbook bookie gc %s --confirm` lets them go",
                        *(name, found.doomed, found.held, name),
                    )
                await self._asks.put(name, GarbageAsk(found.doomed, found.held), held)
            elif held is not None and (found.buried or not found.missing):
                # Else it has yet to hear twice that they are gone, as after each start.
                await self._asks.withdraw(name, held)
            return found

    async def compact(self, *, major: bool = False) -> CompactionRound:
        """Run a compaction now; see `Compactor.compact`."""
        async with self._turn:
            return await self._compactor.compact(major=major)

    async def close(self) -> None:
        """End after the step that is under way. Call it before the bookie's own `close`."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._service.failure is None:
            await asyncio.sleep(self._settings.garbage.interval_ms / 1000)
            self.last_error = None
            buried = await self._round()
            await self._compact_if_due(buried)
            self.rounds += 1

    async def _round(self) -> bool:
        try:
            return bool((await self.collect()).buried)
        except Exception as error:
            self._tell("garbage collection", error)
            return False

    async def _compact_if_due(self, buried: bool) -> None:
        now_s = self._clock.monotonic()
        full = not self._service.writable
        major = full or (now_s - self._major_s) * 1000 >= self._settings.major_interval_ms
        minor = buried or (now_s - self._minor_s) * 1000 >= self._settings.minor_interval_ms
        if not major and not minor:
            return
        self._minor_s = now_s
        if major:
            self._major_s = now_s
        try:
            await self.compact(major=major)
        except Exception as error:
            self._tell("compaction", error)

    def _tell(self, what: str, error: Exception) -> None:
        """Note a failure; only one that nobody expects is shown with where it came from."""
        self.last_error = error
        self._service.storage.measures.upkeep_failed()
        expected = isinstance(error, (EngineError, OSError))
        said = "bookie %s: its %s failed and goes on at the next round: %s"
        traced = None if expected else error
        _LOG.warning(said, self._service.bookie_id, what, error, exc_info=traced)


def start_upkeep(
    service: BookieService,
    *,
    disk: Disk,
    workers: Workers,
    clock: Clock,
    store: MetadataStore,
    settings: UpkeepSettings | None = None,
) -> Upkeep:
    """Begin the upkeep of a running bookie over the folder `disk`; needs a running loop."""
    return Upkeep(service, disk, workers, clock, store, settings or UpkeepSettings())
