"""The owner of a replication: a writer, or a recovery that writes entries back."""

from typing import Protocol

from engine.errors import EngineError
from engine.metadata.ledgers import Fragment
from engine.transport.contract import LedgerFacts


class Owner(Protocol):
    """The owner of a replication."""

    def on_confirmed(self, lac: int) -> None:
        """The LAC has grown to `lac`."""
        ...

    def on_failed(self, error: EngineError) -> None:
        """Nothing will be confirmed any more."""
        ...

    async def replace(
        self, first: int, ensemble: tuple[str, ...], failed: frozenset[int]
    ) -> Fragment | None:
        """Find bookies for the failed indexes from entry `first` on and record the new fragment.

        None if there are none; nothing was recorded then. Raises if the ledger is no longer ours.
        """
        ...

    def facts(self, first: int, ensemble: tuple[str, ...]) -> LedgerFacts:
        """What bookies should remember of the ledger."""
        ...
