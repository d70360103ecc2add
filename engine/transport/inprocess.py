"""Bookies of the same process, reached without a wire.

Invariants:
- A connection is the bookie itself: nothing stands between on the hot path.
- A removed bookie is not connected to any more; what it owes, it answers itself when it closes.
- No two bookies have one id.
"""

from engine.errors import BookieUnavailable
from engine.transport.contract import Bookie


class InProcessTransport:
    """A `Transport` to the bookies that were added to it."""

    def __init__(self) -> None:
        self._bookies: dict[str, Bookie] = {}

    def add(self, bookie: Bookie) -> None:
        """Make a bookie reachable."""
        assert bookie.bookie_id not in self._bookies, bookie.bookie_id
        self._bookies[bookie.bookie_id] = bookie

    def remove(self, bookie_id: str) -> None:
        """Make a bookie unreachable for new connections. It may be unknown."""
        self._bookies.pop(bookie_id, None)

    async def connect(self, bookie_id: str) -> Bookie:
        """The bookie itself. Raises `BookieUnavailable`."""
        bookie = self._bookies.get(bookie_id)
        if bookie is None:
            raise BookieUnavailable(f"bookie {bookie_id} does not run in this process")
        return bookie

    async def close(self) -> None:
        """Nothing to close: bookies are their owner's, and answer what they owe themselves."""
