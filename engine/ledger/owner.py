"""Whom a replication serves: a writer, or a recoverer writing back."""

from typing import Protocol

from engine.errors import EngineError
from engine.metadata.ledgers import Fragment
from engine.transport.contract import LedgerFacts


class Owner(Protocol):
    """Whom a replication serves."""

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

        None: there is none, and nothing was recorded. Raises when the ledger is not ours any more.
        """
        ...

    def facts(self, first: int, ensemble: tuple[str, ...]) -> LedgerFacts:
        """What bookies shall remember of the ledger."""
        ...
