"""A replica's state over restarts: what a process that ended had not flushed may be gone.

The product's own state runs over it, with its overlays and its thread; only the storage, which is
RocksDB elsewhere, is imagined here.

Invariants:
- A crash keeps all that was flushed and any prefix of the writes since, each whole with its mark.
- One storage belongs to one disk: a wiped machine has an empty one.
"""

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from engine.ports.workers import Workers
from engine.state.blocks import Blocks, FrozenBlocks
from engine.state.contract import Row
from engine.state.storage import EMPTY, Change, Mark
from engine.state.stored import StateSettings, StoredState

_COPIES: Final[dict[Path, tuple[dict[bytes, bytes], Mark]]] = {}


class SimStorage:
    """A `Storage` in memory. Keep the object to "reopen" it."""

    name = "a simulated folder"

    def __init__(self) -> None:
        self.fail_after: int | None = None
        self._rows = Blocks()
        self._mark = EMPTY
        self._flushed: dict[bytes, bytes] = {}
        self._flushed_mark = EMPTY
        self._unflushed: list[tuple[list[Change], Mark]] = []

    def mark(self) -> Mark:
        return self._mark

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def rows(self, first: bytes, end: bytes | None) -> Iterator[Row]:
        return self._rows.rows(first, end)

    def view(self) -> "SimView":
        return SimView(self._rows)

    def write(self, changes: Iterable[Change], mark: Mark) -> None:
        self._count_down()
        changes = list(changes)
        self._unflushed.append((changes, mark))
        self._apply(changes, mark)

    def wipe(self) -> None:
        self._count_down()
        self._unflushed.clear()
        self._flushed, self._flushed_mark = {}, EMPTY
        self._rows.clear()
        self._mark = EMPTY

    def flush(self) -> None:
        self._count_down()
        for changes, mark in self._unflushed:
            self._keep(changes, mark)
        self._unflushed.clear()

    def copy_to(self, path: Path) -> None:
        path.mkdir()
        # A path is used once: whoever opens the copy finds what was flushed at this moment.
        _COPIES[path] = dict(self._flushed), self._flushed_mark

    def close(self) -> None:
        """The object may be used again, as a reopened storage."""

    def lose(self, rng: random.Random) -> None:
        """The process has ended: drop some last writes, none, or all that were not flushed."""
        kept = rng.choice([0, rng.randint(0, len(self._unflushed)), len(self._unflushed)])
        for changes, mark in self._unflushed[:kept]:
            self._keep(changes, mark)
        self._unflushed.clear()
        self._rows = Blocks()
        self._apply(sorted(self._flushed.items()), self._flushed_mark)

    def _apply(self, changes: Iterable[Change], mark: Mark) -> None:
        for key, value in changes:
            if value is None:
                self._rows.delete(key)
            else:
                self._rows.put(key, value)
        self._mark = mark

    def _keep(self, changes: Iterable[Change], mark: Mark) -> None:
        for key, value in changes:
            if value is None:
                self._flushed.pop(key, None)
            else:
                self._flushed[key] = value
        self._flushed_mark = mark

    def _count_down(self) -> None:
        """Fail when the disk is told to, and from then on."""
        if self.fail_after is not None:
            if self.fail_after == 0:
                raise OSError("the simulated disk fails")
            self.fail_after -= 1


class SimCopy:
    """A `RocksCopy` of a simulated state."""

    def __init__(self, path: Path) -> None:
        rows, mark = _COPIES.pop(path)
        self._rows = sorted(rows.items())
        self._values = rows
        self.position = mark.position

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def scan(self, first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        return list(islice(self.rows(first, end), limit))

    def rows(self, first: bytes, end: bytes | None) -> Iterator[Row]:
        return (row for row in self._rows if row[0] >= first and (end is None or row[0] < end))

    def close(self) -> None:
        """It is in memory."""


class SimView:
    """The rows at one moment."""

    def __init__(self, rows: Blocks) -> None:
        self._rows = rows
        self._frozen: FrozenBlocks | None = rows.freeze()

    def rows(self, first: bytes, end: bytes | None) -> Iterator[Row]:
        assert self._frozen is not None, "the view is closed"
        return self._frozen.rows(first, end)

    def close(self) -> None:
        if self._frozen is not None:
            self._rows.thaw(self._frozen)
            self._frozen = None


class SimStates:
    """Opens the one state of a machine, again after each restart."""

    def __init__(self, rng: random.Random) -> None:
        self.storage = SimStorage()
        self._rng = rng

    def open(self, workers: Workers, settings: StateSettings | None = None) -> StoredState:
        """The state as the last process left it."""
        if self.storage.mark().restoring:
            self.storage.wipe()
        return StoredState(self.storage, workers, settings)

    def crash(self) -> None:
        """The process that had it open has ended."""
        self.storage.lose(self._rng)

    def wipe(self) -> None:
        """All that the machine stored is gone."""
        self.storage = SimStorage()
