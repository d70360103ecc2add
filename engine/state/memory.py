"""A state in memory.

It promises order, snapshots and speed, and no durability at all: after a restart it is empty, at
START, and its replica fills it again from a snapshot in the log or from the whole log.

Invariants:
- `durable` is START for ever, so no replica lets its log go on account of this state.
- A snapshot costs a pointer for each block of rows; blocks are copied before their first change.
"""

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Final

from engine.log.position import START, Position
from engine.state.blocks import Blocks, FrozenBlocks
from engine.state.contract import Row
from engine.state.cutting import FIRST_ROW, KEY_BYTES_MAX, VALUE_BYTES_MAX, after, cut_page, misfit

_RESTORE_ROWS: Final = 4_096


class MemoryState:
    """A `State` that is empty after a restart."""

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._position = START
        self._changed = False
        self._restoring = False
        self._closed = False

    @property
    def position(self) -> Position:
        """The position of the newest commit; START when new or cleared."""
        return self._position

    @property
    def durable(self) -> Position:
        """START: nothing outlives the process."""
        return START

    @property
    def unwritten_bytes(self) -> int:
        """0: nothing is on its way to a disk."""
        return 0

    def check(self) -> None:
        """Nothing: memory does not fail."""

    def get(self, key: bytes) -> bytes | None:
        """A value, or None if there is none."""
        return self._blocks.get(key)

    def scan(self, first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        """At most `limit` rows with keys from `first` on and under `end`, in order."""
        return list(islice(self._blocks.rows(first, end), limit))

    def get_row(self, key: bytes) -> bytes | None:
        """A value, or None if there is none or the key begins with a zero byte."""
        return None if key < FIRST_ROW else self._blocks.get(key)

    def scan_rows(self, first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        """At most `limit` rows from `first` on and under `end`, none that begins with zero."""
        return list(islice(self._blocks.rows(max(first, FIRST_ROW), end), limit))

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value. Raises `InvalidRequest` for a row that is too large."""
        if not 0 < len(key) <= KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
            raise misfit(key, value)
        self._changed = True
        self._blocks.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        self._changed = True
        self._blocks.delete(key)

    def commit(self, position: Position) -> None:
        """Everything changed since the last commit, and this position, belong together."""
        assert not self._restoring and not self._closed and position >= self._position
        self._position = position
        self._changed = False

    def snapshot(self) -> "MemorySnapshot":
        """All rows at the newest commit. Nothing may be uncommitted."""
        assert not self._changed, "a snapshot is of a commit"
        assert not self._restoring and not self._closed
        return MemorySnapshot(self._position, self._blocks)

    async def flush(self) -> Position:
        """START: nothing can be made durable."""
        return START

    async def clear(self) -> None:
        """Remove everything; the position is START."""
        self._blocks.clear()
        self._position = START
        self._changed = self._restoring = False

    async def restore(self, rows: Sequence[Row]) -> None:
        """Add rows of a snapshot, in order, after `clear`."""
        assert self._position == START and not self._changed
        self._restoring = True
        for start in range(0, len(rows), _RESTORE_ROWS):
            self._blocks.extend(rows[start : start + _RESTORE_ROWS])
            # Others have their turn: a snapshot is long.
            await asyncio.sleep(0)

    async def restored(self, position: Position) -> None:
        """The rows are whole: this is the state at `position`."""
        self._restoring = False
        self._position = position

    async def close(self) -> None:
        """Nothing is kept. May be called twice."""
        self._closed = True


class MemorySnapshot:
    """All rows of a `MemoryState` at one commit."""

    def __init__(self, position: Position, blocks: Blocks) -> None:
        self._position = position
        self._blocks = blocks
        self._frozen: FrozenBlocks | None = blocks.freeze()

    @property
    def position(self) -> Position:
        """The commit that it is of."""
        return self._position

    def page(self, above: bytes | None, bytes_max: int) -> list[Row]:
        """The next rows with keys over `above`, in order; see `Snapshot.page`."""
        assert self._frozen is not None, "the snapshot is closed"
        return cut_page(self._frozen.rows(after(above), None), bytes_max)

    def get(self, key: bytes) -> bytes | None:
        """A value as it was, or None if there was none."""
        found = self.scan(key, key + b"\0", 1)
        return found[0][1] if found else None

    def scan(self, first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        """At most `limit` rows with keys from `first` on and under `end`, as they were."""
        assert self._frozen is not None, "the snapshot is closed"
        return list(islice(self._frozen.rows(max(first, FIRST_ROW), end), limit))

    def close(self) -> None:
        """Let go of it. May be called twice."""
        if self._frozen is not None:
            self._blocks.thaw(self._frozen)
            self._frozen = None
