"""Which ledgers have replicas that share a machine for nothing, as one survey sees it.

Invariants:
- Only fragments that have an end, and entries, are looked at: what follows is the writer's affair.
- The same ensemble is judged once a survey, and the loop has a turn after each judgement that took
  any time.
"""

import asyncio

from engine.ledger.quorum import Quorums
from engine.metadata.ledgers import Fragment, LedgerMetadata
from engine.repair.ledger_repair import extents
from engine.repair.outlook import Outlook, Workshop
from engine.repair.respreading import move_apart


class Sharing:
    """The ledgers of one survey of which repair can move a replica, in the order of the survey."""

    def __init__(self, workshop: Workshop, outlook: Outlook) -> None:
        self.ledgers: list[int] = []
        self._workshop = workshop
        self._outlook = outlook
        self._judged: dict[tuple[tuple[str, ...], Quorums], bool] = {}

    async def look_at(self, metadata: LedgerMetadata) -> None:
        """Judge one ledger by its metadata alone."""
        quorums = self._workshop.context(metadata).quorums(metadata)
        for fragment, last in extents(metadata):
            if fragment.first <= last and await self._judge(metadata.ledger_id, fragment, quorums):
                self.ledgers.append(metadata.ledger_id)
                return

    async def _judge(self, ledger_id: int, fragment: Fragment, quorums: Quorums) -> bool:
        key = (fragment.ensemble, quorums)
        found = self._judged.get(key)
        if found is None:
            placement = self._workshop.placement
            move = move_apart(ledger_id, fragment, quorums, self._outlook, placement)
            found = self._judged[key] = move is not None
            await asyncio.sleep(0)
        return found
