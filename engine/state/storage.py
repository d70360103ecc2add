"""What a stored state keeps its rows in: the contract of RocksDB's door and of its simulated twin.

Invariants:
- Writes become durable in their order; a crash loses a suffix of them, each whole with its mark.
- A view is of the rows at the moment it was made, whatever is written afterwards.
- "Not there" is an answer, what cannot be read an exception: nothing ends early in silence.
- `write`, `wipe`, `flush` and `close` run in threads, one of `write` and `wipe` at a time; reads
  run on the event loop beside them, those of a view in any one thread.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from engine.log.position import START, Position
from engine.state.contract import Row

Change = tuple[bytes, bytes | None]
"""A key and its new value; None removes it."""


class Mark(NamedTuple):
    """What stands beside the rows, written with them."""

    position: Position
    restoring: bool
    """The rows are a part of a snapshot, of no use by themselves."""


EMPTY = Mark(START, False)


class View(Protocol):
    """All rows at one moment."""

    def rows(self, first: bytes, end: bytes | None) -> Iterator[Row]:
        """Rows from `first` on and under `end`, in order."""
        ...

    def close(self) -> None:
        """Let go of it. May be called twice."""
        ...


class Storage(Protocol):
    """Ordered rows and a mark, kept somewhere."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def mark(self) -> Mark:
        """The mark of the newest write; `EMPTY` when new."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """A value, or None if there is none."""
        ...

    def rows(self, first: bytes, end: bytes | None) -> Iterator[Row]:
        """Rows from `first` on and under `end`, in order; read before anything else is done."""
        ...

    def view(self) -> View:
        """All rows as they are now."""
        ...

    def write(self, changes: Iterable[Change], mark: Mark) -> None:
        """Change rows and the mark, all or nothing."""
        ...

    def wipe(self) -> None:
        """Remove every row, durably; the mark is `EMPTY`."""
        ...

    def flush(self) -> None:
        """Make everything written so far durable."""
        ...

    def copy_to(self, path: Path) -> None:
        """Make a folder with everything written so far, of links where it can be."""
        ...

    def close(self) -> None:
        """Let go of it. May be called twice."""
        ...
