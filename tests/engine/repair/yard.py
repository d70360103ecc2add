"""A cluster of scripted bookies with repair whose clock the test moves."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from engine.ledger.writer import LedgerWriter
from engine.metadata.bookies import LOST, FolderAge, Registration
from engine.metadata.contract import MetadataStore
from engine.metadata.ledgers import LedgerMetadata
from engine.metadata.memory import MemoryTree
from engine.metadata.repairs import RepairItem, RepairQueue
from engine.ports.clock import SystemClock
from engine.repair.auditor import Auditor
from engine.repair.outlook import Workshop
from engine.repair.repairer import Repairer
from engine.repair.settings import RepairSettings
from engine.run import Run
from engine.transport.contract import AppendReply, LedgerFacts
from tests.engine.ledger.scripted import QUICK, Cluster, ScriptedBookie

GRACE_MS = 10_000
OPEN_GRACE_MS = 30_000
SETTINGS = RepairSettings(
    lost_bookie_grace_ms=GRACE_MS,
    open_ledger_grace_ms=OPEN_GRACE_MS,
    look_interval_ms=5_000,
    retry_pause_ms=1_000,
    retry_pause_ms_max=64_000,
    read_timeout_ms=400,
    append_timeout_ms=400,
    recovery_timeout_ms=1_000,
    copy_bytes_a_second=0,
    step_bytes=64,
)


class HandClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1_000)


class MendedBookie(ScriptedBookie):
    """Takes recovery's writes over what is damaged or corrupt, as a real bookie does."""

    def append(
        self,
        runs: Sequence[Run],
        reply: Callable[[AppendReply], None],
        *,
        key: bytes,
        facts: LedgerFacts | None = None,
        recovery: bool = False,
    ) -> None:
        if recovery and not self.down and not self.mute:
            kept = self.entries.setdefault(runs[0].ledger_id, {})
            for run in runs:
                for entry_id in range(run.first, run.last + 1):
                    self.damaged.discard((run.ledger_id, entry_id))
                    if entry_id in kept and kept[entry_id].first_corrupt() is not None:
                        del kept[entry_id]
        super().append(runs, reply, key=key, facts=facts, recovery=recovery)


class Yard(Cluster):
    """The cluster, one auditor, and workers made at will."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.clock = HandClock()
        self.queue = RepairQueue(self.store)
        self._draws = 0

    def client(
        self, settings: ClientSettings = QUICK, *, store: MetadataStore | None = None
    ) -> LedgerClient:
        self._draws += 1
        return LedgerClient(
            store=store or self.tree.session(),
            transport=self.transport,
            clock=SystemClock(),
            rng=random.Random(self._draws),
            settings=settings,
        )

    async def add(self, bookie_id: str) -> ScriptedBookie:
        bookie = MendedBookie(bookie_id)
        self.transport.bookies[bookie_id] = bookie
        bookie.boot = 1
        await self.registry.raise_age(bookie_id, FolderAge(bookie.boot))
        await self.registry.register(Registration(bookie_id, bookie.boot))
        return bookie

    def workshop(self, settings: RepairSettings = SETTINGS, **replaced: Any) -> Workshop:
        """The components of one more node, with a session of its own."""
        parts: dict[str, Any] = {
            "store": self.tree.session(),
            "transport": self.transport,
            "clock": self.clock,
            "rng": random.Random(11),
            "settings": settings,
        }
        return Workshop(**{**parts, **replaced})

    def repairer(self, settings: RepairSettings = SETTINGS, node: str = "n1") -> Repairer:
        """A worker whose rounds the test runs."""
        return Repairer(self.workshop(settings), node)

    def auditor(self, node: str = "n1") -> Auditor:
        """A candidate whose looks the test asks for."""
        return Auditor(self.workshop(), node)

    async def lose(self, bookie_id: str) -> None:
        """A bookie goes, and its registration with it."""
        self.transport.bookies[bookie_id].down = True
        await self.registry.unregister(bookie_id)

    async def bring_back(self, bookie_id: str) -> None:
        """It comes back with what it had."""
        bookie = self.transport.bookies[bookie_id]
        bookie.down = False
        await self.registry.register(Registration(bookie_id, bookie.boot))

    async def look(self, auditor: Auditor, seconds: float) -> None:
        """Let time pass while the auditor looks every few seconds."""
        await auditor.look()
        for _ in range(int(seconds) // 4):
            self.clock.now_s += 4.0
            await auditor.look()

    async def written(
        self, count: int = 10, quorums: tuple[int, int, int] = (3, 3, 2), **more: Any
    ) -> LedgerMetadata:
        """A closed ledger of small entries on all bookies of its write sets."""
        writer = await self.writer(count, quorums, **more)
        await writer.close()
        return await self.metadata(writer.ledger_id)

    async def writer(
        self,
        count: int = 10,
        quorums: tuple[int, int, int] = (3, 3, 2),
        settings: ClientSettings = QUICK,
        password: bytes = b"",
    ) -> LedgerWriter:
        """An open ledger with some entries, and its writer."""
        client = self.client(settings)
        writer = await client.create_ledger(*quorums, password=password)
        if count:
            await writer.append_many([b"entry %d" % number for number in range(count)])
        return writer

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return await self.client().ledger_metadata(ledger_id)

    async def item(self, ledger_id: int) -> RepairItem | None:
        held = await self.queue.read(ledger_id)
        return None if held is None else held.item

    def lacking(self, metadata: LedgerMetadata) -> list[tuple[str, int]]:
        """The replicas that are not intact, as (bookie, entry), of a closed ledger."""
        assert metadata.last_entry is not None
        found: list[tuple[str, int]] = []
        for entry_id in range(metadata.last_entry + 1):
            ensemble = metadata.fragment_of(entry_id).ensemble
            for index in metadata.write_set(entry_id):
                bookie = self.transport.bookies[ensemble[index]]
                run = bookie.entries.get(metadata.ledger_id, {}).get(entry_id)
                bad = run is None or run.first_corrupt() is not None or bookie.down
                if bad or (metadata.ledger_id, entry_id) in bookie.damaged:
                    found.append((bookie.bookie_id, entry_id))
        return found


async def given_up(yard: Yard, *names: str) -> None:
    """Lose bookies, and give them up without waiting for the auditor."""
    for name in names:
        await yard.lose(name)
        await yard.store.create(f"{LOST}/{name}", b"0")


async def queue(yard: Yard, metadata: LedgerMetadata, *lost: str) -> None:
    await yard.queue.request(metadata.ledger_id, RepairItem(lost=lost))
