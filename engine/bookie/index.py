"""The index of a bookie: which entry lies where. The contract of its twins.

Invariants (`tests/engine/bookie/index_contract.py` runs them over both implementations):
- A ledger's ranges are disjoint: `apply` is given only changes that keep them so, or that replace
  ranges it names.
- Changes of one batch and the position they cover become durable together or not at all; batches
  become durable in order. A crash loses a suffix of batches, never a middle one.
- `position` is that of the last batch that survived: a restart replays the journal from there.
- Reads see every batch applied so far, durable or not, and may run beside `apply` in a thread.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

PLACES_MAX: Final = 1_024
"""So many places one search gives at most."""

BYTES_MAX: Final = 2**63


class Position(NamedTuple):
    """A place in the journal: everything before it is covered."""

    segment: int
    offset: int


class Place(NamedTuple):
    """Entries `first` to `last` of a ledger lie in one journal record.

    The record starts at `offset` in `segment`, is `size_bytes` long and its own first entry is
    `record_first`. `segment` DAMAGED (-1) means: the ids were held and their bytes are damaged.
    """

    ledger_id: int
    first: int
    last: int
    segment: int
    offset: int
    size_bytes: int
    record_first: int


_SIZE_OF: Final = attrgetter("size_bytes")


class Changes(NamedTuple):
    """One batch: ranges to remove, then to add, and small facts to set (None removes)."""

    remove: Sequence[Place]
    add: Sequence[Place]
    facts: Sequence[tuple[bytes, bytes | None]]
    position: Position


def enough(places: Sequence[Place], bytes_enough: int) -> bool:
    """Whether a search may have ended before its range did."""
    return len(places) >= PLACES_MAX or sum(map(_SIZE_OF, places)) >= bytes_enough


class Index(Protocol):
    """Places by (ledger, id), small facts by key. One owner writes; `apply` may run in a thread."""

    def apply(self, changes: Changes) -> None:
        """Apply one batch in order. Raises OSError or the store's own error."""
        ...

    def position(self) -> Position:
        """The position of the newest batch applied; (0, 0) when new."""
        ...

    def find(
        self, ledger_id: int, first: int, last: int, bytes_enough: int = BYTES_MAX
    ) -> list[Place]:
        """The places that overlap `first` to `last`, in order.

        At most `PLACES_MAX` of them, and none behind those whose records together have
        `bytes_enough` bytes.
        """
        ...

    def last(self, ledger_id: int) -> Place | None:
        """The place with the ledger's highest id."""
        ...

    def ledgers(self, above: int, limit: int) -> list[int]:
        """Ids of ledgers with at least one place, over `above`, in order."""
        ...

    def fact(self, key: bytes) -> bytes | None:
        """A small fact."""
        ...

    def facts(self, prefix: bytes, above: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Small facts whose key starts with `prefix` and is over `above`, in order."""
        ...

    def flush(self) -> None:
        """Make everything applied so far durable. Runs in a thread."""
        ...

    def unflushed_bytes(self) -> int:
        """About how many bytes of the disk a flush would take now."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...
