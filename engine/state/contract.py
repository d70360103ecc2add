"""Where a state machine keeps its state: ordered keys and values at one position of a log.

Invariants (`tests/engine/state/state_contract.py` runs them over every implementation):
- Reads see every change made so far, committed or not, durable or not.
- What lies between two commits becomes durable together with its position, or not at all; commits
  become durable in order. A crash loses a suffix of commits, never a middle one.
- `position` names the newest commit; what an opened state tells is what was durable.
- A snapshot is of exactly one commit, whatever changes afterwards, and taking one copies nothing.
- A restoration that was cut short leaves an empty state at START, never half of one.
- All methods are called on the event loop and none of the plain ones waits for a disk that is
  written: writing is done by a thread of the state's own.
"""

from collections.abc import Sequence
from typing import Protocol

from engine.log.position import Position

Row = tuple[bytes, bytes]
"""A key and its value."""


class Snapshot(Protocol):
    """All rows as they were at one commit. Close it; it holds on to memory or files."""

    @property
    def position(self) -> Position:
        """The commit that it is of."""
        ...

    def page(self, above: bytes | None, bytes_max: int) -> list[Row]:
        """The next rows with keys over `above` (None: from the first one), in order.

        At least one if there is one, then as many as fit in `bytes_max` bytes of keys and values.
        Empty: there are no more. May be called in a thread, by one caller at a time.
        """
        ...

    def get(self, key: bytes) -> bytes | None:
        """A value as it was, or None if there was none. In the thread that pages, if any.

        `get` and `scan` show no keys that begin with a zero byte; pages have all rows.
        """
        ...

    def scan(self, first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        """At most `limit` rows with keys from `first` on and under `end`, as they were."""
        ...

    def close(self) -> None:
        """Let go of it. May be called twice."""
        ...


class State(Protocol):
    """Rows ordered by key. Keys are 1 to 4,096 bytes, values at most 17 MiB."""

    @property
    def position(self) -> Position:
        """The position of the newest commit; START when new or cleared."""
        ...

    @property
    def durable(self) -> Position:
        """The position that would be found if the machine stopped now."""
        ...

    @property
    def unwritten_bytes(self) -> int:
        """What is committed and not yet with the disk; its owner slows down when it is much."""
        ...

    def check(self) -> None:
        """Raise `StateFailed` if the state can no longer be read or written, else nothing.

        Whoever waits for room asks: a state that failed never has any again.
        """
        ...

    def get(self, key: bytes) -> bytes | None:
        """A value, or None if there is none."""
        ...

    def scan(self, first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        """At most `limit` rows with keys from `first` on and under `end`, in order."""
        ...

    def get_row(self, key: bytes) -> bytes | None:
        """As `get`, for whom the state is kept: a key that begins with a zero byte is not there."""
        ...

    def scan_rows(self, first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        """As `scan`, without the rows whose keys begin with a zero byte."""
        ...

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value. Takes part in the next commit."""
        ...

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there. Takes part in the next commit."""
        ...

    def commit(self, position: Position) -> None:
        """Everything changed since the last commit, and this position, belong together."""
        ...

    def snapshot(self) -> Snapshot:
        """All rows at the newest commit. Nothing may be uncommitted."""
        ...

    async def flush(self) -> Position:
        """Make every commit so far durable; returns the position that is. Raises `StateFailed`."""
        ...

    async def clear(self) -> None:
        """Remove everything; the position is START, durably, and `restore` may follow."""
        ...

    async def restore(self, rows: Sequence[Row]) -> None:
        """Add rows of a snapshot after `clear`. Not visible as a state until `restored`."""
        ...

    async def restored(self, position: Position) -> None:
        """The rows are whole: this is the state at `position`, durably."""
        ...

    async def close(self) -> None:
        """Flush and close. Raises `StateFailed`."""
        ...
