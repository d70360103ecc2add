"""What every part of the ledger's client works with: the components of one client and one key."""

import asyncio
import random
from dataclasses import dataclass, field

from engine.errors import BookieUnavailable
from engine.ledger.measures import UNMEASURED, ClientMeasures
from engine.ledger.placement import Placement
from engine.ledger.quorum import Quorums
from engine.ledger.settings import ClientSettings
from engine.ledger.troubles import Troubles
from engine.metadata.bookies import Bookies
from engine.metadata.ledgers import LedgerMetadata, Ledgers
from engine.ports.clock import Clock
from engine.run import NO_ENTRY
from engine.transport.contract import Bookie, LedgerFacts, Transport


@dataclass(frozen=True, slots=True)
class LedgerContext:
    """Components, settings, and the key of the ledger that is being worked on."""

    ledgers: Ledgers
    bookies: Bookies
    placement: Placement
    transport: Transport
    clock: Clock
    rng: random.Random
    settings: ClientSettings
    key: bytes
    measures: ClientMeasures = UNMEASURED
    troubles: Troubles = field(default_factory=Troubles)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client is closed: nothing waits any longer then."""

    async def connect(self, bookie_id: str) -> Bookie:
        """A connection to a bookie. Raises `BookieUnavailable`, and remembers why."""
        try:
            bookie = await self.transport.connect(bookie_id)
        except BookieUnavailable as error:
            self.troubles.note(bookie_id, error)
            raise
        self.troubles.over(bookie_id)
        return bookie

    def quorums(self, metadata: LedgerMetadata) -> Quorums:
        """The sizes of a ledger, and the domains of its last fragment."""
        sizes = Quorums(
            metadata.ensemble_size,
            metadata.write_quorum,
            metadata.ack_quorum,
            metadata.stripe_entries,
        )
        return sizes.with_domains(metadata.fragments[-1].domains)

    def facts(
        self, metadata: LedgerMetadata, fragment_first: int, ensemble: tuple[str, ...]
    ) -> LedgerFacts:
        """What bookies should remember of a ledger whose newest fragment is this one."""
        closed = metadata.last_entry is not None
        return LedgerFacts(
            ledger_id=metadata.ledger_id,
            ensemble_size=metadata.ensemble_size,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
            stripe_entries=metadata.stripe_entries,
            key_hash=metadata.key_hash,
            created_ms=metadata.created_ms,
            custom=metadata.custom,
            fragment_first=fragment_first,
            ensemble=ensemble,
            closed_last=NO_ENTRY - 1 if metadata.last_entry is None else metadata.last_entry,
            closed_length=metadata.length or 0 if closed else 0,
        )
