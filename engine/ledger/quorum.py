"""The arithmetic of quorums: pure functions over marks and answers.

A *mark* of an ensemble index is an entry id: everything up to it that the index's bookie has to
store, it stores durably.

Invariants:
- `confirmed` never goes back, and never passes an entry with fewer than `ack_quorum` marks in its
  write set.
- `covered` holds only when no ack quorum can be formed without a bookie that answered.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Quorums(NamedTuple):
    """The sizes of a ledger. `ensemble >= write >= ack >= 1`."""

    ensemble: int
    write: int
    ack: int
    stripe_entries: int

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """The ensemble indexes that store an entry."""
        start = entry_id // self.stripe_entries
        return tuple((start + step) % self.ensemble for step in range(self.write))

    def stripe_end(self, entry_id: int) -> int:
        """The last entry id of the stripe that holds an entry."""
        return entry_id - entry_id % self.stripe_entries + self.stripe_entries - 1

    @property
    def negatives(self) -> int:
        """How many of a write set must lack an entry to prove it was never acknowledged."""
        return self.write - self.ack + 1


def confirmed(quorums: Quorums, lac: int, pushed: int, marks: Sequence[int]) -> int:
    """The last entry of the longest prefix with an ack quorum of marks in each write set.

    >>> confirmed(Quorums(3, 3, 2, 256), -1, 9, [9, 4, -1])
    4
    """
    if quorums.ensemble == quorums.write:
        reached = sorted(marks, reverse=True)[quorums.ack - 1]
        return max(lac, min(reached, pushed))
    while lac < pushed:
        first = lac + 1
        write_set = quorums.write_set(first)
        reached = sorted((marks[index] for index in write_set), reverse=True)[quorums.ack - 1]
        end = min(quorums.stripe_end(first), pushed)
        if reached < end:
            return max(lac, reached)
        lac = end
    return lac


def writable(quorums: Quorums, alive: Collection[int]) -> bool:
    """Whether every write set still has an ack quorum among the indexes that are alive.

    >>> writable(Quorums(3, 3, 2, 256), {0, 2}), writable(Quorums(3, 3, 2, 256), {0})
    (True, False)
    """
    return all(
        sum((start + step) % quorums.ensemble in alive for step in range(quorums.write))
        >= quorums.ack
        for start in range(quorums.ensemble)
    )


def covered(quorums: Quorums, answered: Collection[int]) -> bool:
    """Whether every write set has so many answers that no ack quorum avoids them all.

    >>> covered(Quorums(3, 3, 2, 256), {0}), covered(Quorums(3, 3, 2, 256), {0, 1})
    (False, True)
    """
    return all(
        sum((start + step) % quorums.ensemble in answered for step in range(quorums.write))
        >= quorums.negatives
        for start in range(quorums.ensemble)
    )
