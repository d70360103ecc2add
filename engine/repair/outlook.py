"""What repair looks at together: its components, and which bookies are there, lost, or to go.

Invariants:
- A bookie is lost only if it was given up (`/repair/lost`) and has no registration now.
- An outlook is never older than a second when a try begins, and serves that one try only.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.errors import Unavailable
from engine.ledger.context import LedgerContext
from engine.ledger.placement import Placement
from engine.ledger.troubles import Troubles
from engine.metadata.bookies import LOST, Bookies, Registration
from engine.metadata.contract import MetadataStore
from engine.metadata.deadline import DeadlineStore
from engine.metadata.ledgers import LedgerMetadata, Ledgers
from engine.metadata.repairs import RepairQueue
from engine.ports.clock import Clock
from engine.repair.pace import Pace
from engine.repair.settings import RepairSettings
from engine.transport.contract import Bookie, Transport
from engine.transport.repair_key import repair_key

_OUTLOOK_AGE_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """Which bookies are registered, which are lost for good, which are to go."""

    registered: dict[str, Registration]
    lost: frozenset[str]
    leaving: frozenset[str]

    def to_replace(self, bookie_id: str) -> bool:
        """Whether a bookie's replicas belong elsewhere."""
        return bookie_id in self.lost or bookie_id in self.leaving

    def away(self, bookie_id: str) -> bool:
        """Whether a bookie is not there now, and not given up either."""
        return bookie_id not in self.registered and bookie_id not in self.lost

    def stay(self, ensemble: Sequence[str]) -> bool:
        """Whether all of an ensemble are there, and none is to go."""
        return all(name in self.registered and name not in self.leaving for name in ensemble)

    def takes(self, bookie_id: str) -> bool:
        """Whether a bookie can be given replicas."""
        found = self.registered.get(bookie_id)
        return found is not None and found.writable and bookie_id not in self.leaving

    def spares(self, ensemble: Sequence[str]) -> bool:
        """Whether any bookie outside an ensemble could be written to."""
        return any(
            found.writable and name not in ensemble and name not in self.leaving
            for name, found in self.registered.items()
        )

    def lost_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of some bookies that are lost."""
        return tuple(name for name in names if name in self.lost)

    def leaving_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of some bookies that are to go."""
        return tuple(name for name in names if name in self.leaving)


class Workshop:
    """The components of one node's repair. Everything runs on one event loop."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        transport: Transport,
        clock: Clock,
        rng: random.Random,
        settings: RepairSettings | None = None,
    ) -> None:
        self.settings = settings or RepairSettings()
        self.store = DeadlineStore(store, self.settings.metadata_timeout_ms)
        self.transport = transport
        self.clock = clock
        self.rng = rng
        self.queue = RepairQueue(self.store)
        self.ledgers = Ledgers(self.store, rng)
        self.bookies = Bookies(self.store)
        self.placement = Placement(self.bookies, rng, clock, self.settings.quarantine_ms)
        self.pace = Pace(clock, self.settings.copy_bytes_a_second)
        self.reading = Pace(clock, self.settings.metadata_reads_a_second)
        self._client_settings = self.settings.client()
        self.troubles = Troubles()
        """Why bookies could not be reached."""
        self.mishaps = 0
        """How often a part of repair failed in a way nobody thought of, and went on."""
        self.unreadable: dict[int, str] = {}
        """Ledgers whose metadata the newest whole survey could not read, and why."""
        self._newest: Outlook | None = None
        self._newest_s = 0.0

    def context(self, metadata: LedgerMetadata) -> LedgerContext:
        """What the ledger's own code works with, with repair's key to this ledger."""
        return LedgerContext(
            ledgers=self.ledgers,
            bookies=self.bookies,
            placement=self.placement,
            transport=self.transport,
            clock=self.clock,
            rng=self.rng,
            settings=self._client_settings,
            key=repair_key(metadata.key_hash),
            troubles=self.troubles,
        )

    async def connect(self, bookie_id: str) -> Bookie | None:
        """A connection for a message that may be lost; None if there is none now."""
        try:
            async with asyncio.timeout(self.settings.read_timeout_ms / 1000):
                return await self.transport.connect(bookie_id)
        except (Unavailable, TimeoutError):
            return None

    async def outlook(self) -> Outlook:
        """Which bookies there are now. Raises `MetadataUnavailable`."""
        given_up = await self.store.children(LOST)
        registered = await self.bookies.available()
        lost = frozenset(name for name in given_up if name not in registered)
        return Outlook(registered, lost, frozenset(await self.bookies.decommissioning()))

    async def recent_outlook(self) -> Outlook:
        """Which bookies there were within the last second: many short tries share one look.

        Raises `MetadataUnavailable`.
        """
        now_s = self.clock.monotonic()
        if self._newest is None or now_s - self._newest_s >= _OUTLOOK_AGE_S_MAX:
            self._newest, self._newest_s = await self.outlook(), now_s
        return self._newest
