"""Rows in memory, ordered by key, of which a copy at one moment costs next to nothing.

Rows lie in blocks of some hundred. A freeze hands out the list of blocks; from then on a block is
copied before its first change. So a freeze costs a pointer for each block, and what it delays is
one small copy for each block that changes.

Invariants:
- Keys ascend inside a block and from block to block; no block but a lone first one is empty.
- `firsts[i]` is at most the first key of block i and over every key of block i - 1.
- A block that a frozen view holds never changes: its generation is at most that of the view.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from engine.state.contract import Row

BLOCK_ROWS_MAX: Final = 256


class _Block:
    """Some consecutive rows."""

    __slots__ = ("generation", "keys", "values")

    def __init__(self, generation: int, keys: list[bytes], values: list[bytes]) -> None:
        self.generation = generation
        self.keys = keys
        self.values = values


class FrozenBlocks:
    """All rows as they were. Only reads; any thread may do so, one at a time."""

    __slots__ = ("_blocks", "_firsts", "generation")

    def __init__(self, generation: int, blocks: list[_Block], firsts: list[bytes]) -> None:
        self.generation = generation
        self._blocks = blocks
        self._firsts = firsts

    def rows(self, first: bytes, end: bytes | None) -> Iterator[Row]:
        """Rows with keys from `first` on and under `end`, in order."""
        return _rows(self._blocks, self._firsts, first, end)


class Blocks:
    """An ordered map of bytes to bytes."""

    def __init__(self) -> None:
        self._blocks = [_Block(0, [], [])]
        self._firsts = [b""]
        self._generation = 0
        self._frozen: list[int] = []
        self._frozen_through = -1

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(self._blocks)

    def get(self, key: bytes) -> bytes | None:
        """A value, or None if there is none."""
        block = self._blocks[bisect_right(self._firsts, key) - 1]
        keys = block.keys
        at = bisect_left(keys, key)
        return block.values[at] if at < len(keys) and keys[at] == key else None

    def rows(self, first: bytes, end: bytes | None) -> Iterator[Row]:
        """Rows with keys from `first` on and under `end`, in order. Read them before any change."""
        return _rows(self._blocks, self._firsts, first, end)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value."""
        number = bisect_right(self._firsts, key) - 1
        block = self._own(number)
        keys = block.keys
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            block.values[at] = value
            return
        keys.insert(at, key)
        block.values.insert(at, value)
        if len(keys) > BLOCK_ROWS_MAX:
            # Behind the last row of all, rows come in order: full blocks stay behind.
            at_the_end = number == len(self._blocks) - 1 and at == len(keys) - 1
            self._split(number, BLOCK_ROWS_MAX if at_the_end else BLOCK_ROWS_MAX // 2)

    def delete(self, key: bytes) -> None:
        """Remove a row, if it is there."""
        number = bisect_right(self._firsts, key) - 1
        keys = self._blocks[number].keys
        at = bisect_left(keys, key)
        if at == len(keys) or keys[at] != key:
            return
        block = self._own(number)
        del block.keys[at], block.values[at]
        if not block.keys and len(self._blocks) > 1:
            del self._blocks[number], self._firsts[number]
            self._firsts[0] = b""

    def extend(self, rows: Sequence[Row]) -> None:
        """Add rows in order, all behind the last one; whole blocks at a time."""
        assert not rows or not self._blocks[-1].keys or self._blocks[-1].keys[-1] < rows[0][0]
        for start in range(0, len(rows), BLOCK_ROWS_MAX):
            part = rows[start : start + BLOCK_ROWS_MAX]
            keys = [key for key, _ in part]
            block = _Block(self._generation, keys, [value for _, value in part])
            if self._blocks[-1].keys:
                self._blocks.append(block)
                self._firsts.append(keys[0])
            else:
                self._blocks[-1] = block

    def clear(self) -> None:
        """Remove everything; what is frozen stays."""
        self._blocks = [_Block(self._generation, [], [])]
        self._firsts = [b""]

    def freeze(self) -> FrozenBlocks:
        """All rows as they are now. Give it back to `thaw`."""
        frozen = FrozenBlocks(self._generation, self._blocks.copy(), self._firsts.copy())
        self._frozen.append(self._generation)
        self._frozen_through = self._generation
        self._generation += 1
        return frozen

    def thaw(self, frozen: FrozenBlocks) -> None:
        """Nobody reads it any more: its blocks need no copies."""
        self._frozen.remove(frozen.generation)
        self._frozen_through = max(self._frozen, default=-1)

    def _own(self, number: int) -> _Block:
        """A block that may change."""
        block = self._blocks[number]
        if block.generation <= self._frozen_through:
            block = _Block(self._generation, block.keys.copy(), block.values.copy())
            self._blocks[number] = block
        return block

    def _split(self, number: int, at: int) -> None:
        block = self._blocks[number]
        assert block.generation > self._frozen_through and 0 < at < len(block.keys)
        upper = _Block(self._generation, block.keys[at:], block.values[at:])
        del block.keys[at:], block.values[at:]
        self._blocks.insert(number + 1, upper)
        self._firsts.insert(number + 1, upper.keys[0])


def _rows(
    blocks: list[_Block], firsts: list[bytes], first: bytes, end: bytes | None
) -> Iterator[Row]:
    number = bisect_right(firsts, first) - 1
    start = bisect_left(blocks[number].keys, first)
    for index in range(number, len(blocks)):
        keys, values = blocks[index].keys, blocks[index].values
        stop = len(keys)
        if end is not None and keys and keys[-1] >= end:
            stop = bisect_left(keys, end)
        if start or stop < len(keys):
            keys, values = keys[start:stop], values[start:stop]
        yield from zip(keys, values, strict=True)
        if end is not None and index + 1 < len(blocks) and firsts[index + 1] >= end:
            return
        start = 0
