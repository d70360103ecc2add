"""Open ledgers that wait for repair: whose writer is well, and which must be fenced and closed.

A writer that is well replaces its own bookies, idle or not, as soon as there are others. So a
ledger that still names a lost bookie in its last fragment after the grace time, though another
could take its place, has no such writer. Its recovery makes the last fragment a closed one.

Invariants:
- Nothing past the last fragment's start is touched while the ledger is open: what a writer has not
  confirmed is never copied.
- A ledger is fenced only after its last fragment and state stood still for the grace time, and only
  where that helps: a bookie is there that can take a lost one's place, or no writer could go on.
"""

from dataclasses import dataclass

from engine.errors import EngineError, NoSuchLedger
from engine.ledger.quorum import writable
from engine.ledger.recovery import recover
from engine.metadata.ledgers import Fragment, Held, LedgerMetadata, State
from engine.metadata.repairs import RepairItem
from engine.repair.outlook import Outlook, Workshop


@dataclass(slots=True)
class Standing:
    """How long a ledger's last fragment and state have stood as they are."""

    fragment: Fragment
    state: State
    since_s: float


class OpenLedger:
    """Decides about one ledger that is not closed."""

    def __init__(self, workshop: Workshop, outlook: Outlook, item: RepairItem) -> None:
        self._workshop = workshop
        self._outlook = outlook
        self._doubtful = frozenset(item.doubtful)

    def bad(self, metadata: LedgerMetadata) -> list[str]:
        """The bookies of the last fragment that cannot stay there, or cannot be relied on."""
        return [
            name
            for name in metadata.fragments[-1].ensemble
            if self._outlook.to_replace(name) or name in self._doubtful
        ]

    async def settle(self, held: Held, standing: Standing | None) -> tuple[Held, Standing, str]:
        """Close the ledger if its writer is gone; else say what it waits for, "" for nothing.

        Raises `NoSuchLedger`, `MetadataUnavailable`.
        """
        metadata = held.metadata
        now_s = self._workshop.clock.monotonic()
        last = metadata.fragments[-1]
        if standing is None or (standing.fragment, standing.state) != (last, metadata.state):
            standing = Standing(last, metadata.state, now_s)
        bad = self.bad(metadata)
        if metadata.state is State.OPEN and not bad:
            away = [name for name in last.ensemble if self._outlook.away(name)]
            waits = f"open, and bookie {away[0]} of its last fragment is away" if away else ""
            return held, standing, waits
        left_s = self._grace_s(bad) - (now_s - standing.since_s)
        if left_s > 0:
            whom = f"bookie {bad[0]} in its last fragment" if bad else "its recovery"
            return held, standing, f"{metadata.state.name}: its client has time to see to {whom}"
        if metadata.state is State.OPEN and not await self._helps(metadata, bad):
            return held, standing, f"open: no bookie can take the place of {bad[0]}"
        try:
            return await recover(self._workshop.context(metadata), held), standing, ""
        except NoSuchLedger:
            raise
        except EngineError as error:
            return held, standing, f"{metadata.state.name}: {error}"

    def _grace_s(self, bad: list[str]) -> float:
        settings = self._workshop.settings
        if bad and all(not self._outlook.to_replace(name) for name in bad):
            return settings.doubtful_open_grace_ms / 1000
        return settings.open_ledger_grace_ms / 1000

    async def _helps(self, metadata: LedgerMetadata, bad: list[str]) -> bool:
        """Whether closing the ledger would bring it nearer to being whole."""
        context = self._workshop.context(metadata)
        quorums = context.quorums(metadata)
        ensemble = metadata.fragments[-1].ensemble
        alive = {at for at, name in enumerate(ensemble) if name in self._outlook.registered}
        if not writable(quorums, alive):
            return True
        for name in bad:
            if not self._outlook.to_replace(name):
                return True
            index = ensemble.index(name)
            placement = self._workshop.placement
            if await placement.replacement(ensemble, index, quorums) is not None:
                return True
        return False
