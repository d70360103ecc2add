"""One index of an ensemble as a writer sees it: what was sent, what is durable.

Invariants:
- The mark moves only over requests acknowledged by this slot's own bookie, in the order sent.
- Acknowledged ranges count whatever their boundaries: nothing is keyed by a run's first id.
"""

import asyncio
from collections import deque
from typing import Final

import msgspec

from engine.transport.contract import Bookie

LATEST_SHARE: Final = 0.1
"""What the latest acknowledgement counts for in the mean of how long a bookie takes."""


class Sent(msgspec.Struct, frozen=True, gc=False):
    """One request on its way to a bookie."""

    first: int
    last: int
    sent_at: float


class Slot:
    """One index of the ensemble, and the bookie that holds it now."""

    __slots__ = (
        "bookie",
        "bookie_id",
        "early",
        "facts_due",
        "failed",
        "full",
        "greeted",
        "index",
        "lost",
        "mark",
        "mean_s",
        "outstanding",
        "retry",
        "sent",
    )

    def __init__(self, index: int, bookie_id: str, mark: int) -> None:
        self.index = index
        self.bookie_id = bookie_id
        self.bookie: Bookie | None = None
        self.mark = mark
        self.sent = mark
        self.outstanding: deque[Sent] = deque()
        self.early: list[tuple[int, int]] = []
        self.facts_due = True
        # Facts go with every request until the bookie has taken one: a refused request is unknown.
        self.greeted = False
        self.retry: asyncio.TimerHandle | None = None
        self.failed = False
        self.full = False
        """Whether it failed because its bookie accepts no new data."""
        self.lost = False
        # How long its bookie has lately taken to acknowledge a request.
        self.mean_s = 0.0

    def acknowledge(self, first: int, last: int) -> bool:
        """Count one acknowledged range; tell whether the mark moved."""
        outstanding = self.outstanding
        self.greeted = True
        if not outstanding or last <= self.mark:
            return False
        if outstanding[0].first == first and outstanding[0].last == last and not self.early:
            outstanding.popleft()
            self.mark = last
            return True
        self.early.append((first, last))
        moved = False
        while outstanding and self._covers(outstanding[0]):
            self.mark = outstanding.popleft().last
            moved = True
        self.early = [early for early in self.early if early[1] > self.mark]
        return moved

    def _covers(self, request: Sent) -> bool:
        """Whether acknowledged ranges, whatever their boundaries, cover a request."""
        reached = request.first
        for first, last in sorted(self.early):
            if first > reached:
                return False
            reached = max(reached, last + 1)
            if reached > request.last:
                return True
        return False
