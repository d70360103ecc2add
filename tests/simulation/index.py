"""A bookie's index over restarts: what a process that ended had not flushed may be gone.

Invariants:
- A crash keeps all that was flushed and any prefix of the batches applied since.
- One index belongs to one disk: a wiped machine has an empty one.
"""

import random

from engine.bookie.index_memory import MemoryIndex


class SimIndex(MemoryIndex):
    """A `MemoryIndex` that may keep more at a crash than was flushed."""

    def lose(self, rng: random.Random) -> None:
        """The process has ended: drop some last batches, none, or all that were not flushed."""
        kept = rng.choice([0, rng.randint(0, len(self._unflushed)), len(self._unflushed)])
        for changes in self._unflushed[:kept]:
            self._flushed.apply(changes)
        self.crash()


class SimIndexes:
    """Opens the one index of a machine, again after each restart."""

    def __init__(self, rng: random.Random) -> None:
        self._index = SimIndex()
        self._rng = rng

    def open(self) -> SimIndex:
        """The index as the last process left it."""
        return self._index

    def crash(self) -> None:
        """The process that had it open has ended."""
        self._index.lose(self._rng)
