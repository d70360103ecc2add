"""A bookie's index over restarts: what a process that ended had not flushed may be gone.

Invariants:
- A crash keeps all that was flushed and any prefix of the batches applied since.
- One index belongs to one disk: a wiped machine has an empty one.
- A write that fails changes nothing, and the next one succeeds: a store may recover by itself.
- A bookie that wrote after a write that had failed broke its promise, whether it shows or not.
"""

import errno
import random

from engine.bookie.index import Changes
from engine.bookie.index_memory import MemoryIndex
from tests.simulation.oracles import Violation


class SimIndex(MemoryIndex):
    """A `MemoryIndex` that may keep more at a crash than was flushed, and may fail."""

    fail_after: int | None = None
    failed = False
    wrote_on = False

    def apply(self, changes: Changes) -> None:
        """Apply one batch in order, or fail."""
        self.wrote_on |= self.failed
        self._count_down("apply")
        super().apply(changes)

    def flush(self) -> None:
        """Make everything applied so far durable, or fail."""
        self._count_down("flush")
        super().flush()

    def _count_down(self, what: str) -> None:
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                self.fail_after = None
                self.failed = True
                raise OSError(errno.EIO, f"simulated: the index's {what} failed")

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
        """The index as the last process left it, or the last start, which was to replay again."""
        self._index.failed = False
        return self._index

    def fail(self, after: int) -> None:
        """Let one write fail, after so many more; a crash takes the fault away."""
        self._index.fail_after = after

    def crash(self) -> None:
        """The process that had it open has ended."""
        index = self._index
        if index.wrote_on:
            raise Violation("an index was written after one of its writes had failed")
        index.fail_after = None
        index.lose(self._rng)
