"""Positions in an endless log.

Invariants:
- Positions are ordered as the log is: a listed ledger's id is always higher than those before it.
- A position names its ledger, so that following across ledgers never takes one's number for
  another's.
"""

from typing import Final, NamedTuple


class Position(NamedTuple):
    """One entry of the log, or everything up to it.

    >>> Position(3, 17) < Position(4, 0)
    True
    """

    ledger: int
    entry: int


START: Final = Position(0, -1)
"""Before the first entry of any log."""


class Span(NamedTuple):
    """Consecutive entries of one ledger: `entries` of them from `first` on."""

    ledger: int
    first: int
    entries: int

    @property
    def last(self) -> Position:
        """The position of the last of them."""
        return Position(self.ledger, self.first + self.entries - 1)

    def positions(self) -> list[Position]:
        """The position of each of them."""
        ledger = self.ledger
        return [Position(ledger, entry) for entry in range(self.first, self.first + self.entries)]
