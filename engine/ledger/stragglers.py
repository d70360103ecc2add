"""Confirmed runs that some bookie of their write set still lacks.

Invariants:
- A run is held until every slot of its write set has it or has failed, and runs stay in order.
"""

from collections import deque
from collections.abc import Sequence

from engine.ledger.quorum import Quorums
from engine.ledger.slot import Slot
from engine.run import Run


class Stragglers:
    """What is held only for bookies that are behind; `slots` are the ensemble's, as they change."""

    def __init__(self, quorums: Quorums, slots: Sequence[Slot]) -> None:
        self.runs: deque[Run] = deque()
        self.size_bytes = 0
        self.quorums = quorums
        self.slots = slots
        self._last_behind = 0

    def keep(self, run: Run) -> None:
        """Take a confirmed run, unless everybody has it and all before it."""
        if self.runs or not self._stored(run):
            self.runs.append(run)
            self.size_bytes += len(run.table) + len(run.body)

    def drop_stored(self) -> None:
        """Let go of what nobody lacks any more."""
        runs = self.runs
        while runs and self._stored(runs[0]):
            self.size_bytes -= runs.popleft().size_bytes

    def behind(self) -> list[Slot]:
        """The slots that lack the oldest run."""
        oldest = self.runs[0]
        slots = [self.slots[index] for index in self.quorums.write_set(oldest.first)]
        return [slot for slot in slots if not slot.failed and slot.mark < oldest.last]

    def _stored(self, run: Run) -> bool:
        slots, last = self.slots, run.last
        if self.quorums.ensemble == self.quorums.write:
            # Nearly always it is still the same bookie that lacks it.
            slot = slots[self._last_behind]
            if slot.mark < last and not slot.failed:
                return False
            for index, slot in enumerate(slots):
                if slot.mark < last and not slot.failed:
                    self._last_behind = index
                    return False
            return True
        return all(
            slots[index].mark >= last or slots[index].failed
            for index in self.quorums.write_set(run.first)
        )
