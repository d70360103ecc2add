"""The arithmetic of quorums: pure functions over marks and answers.

A *mark* of an ensemble index is an entry id: everything up to it that the index's bookie has to
store, it stores durably.

An *ack quorum* is enough bookies of a write set to acknowledge an entry. If the entries of a ledger
have to survive the loss of a host, the bookies of an ack quorum are on two hosts or more. The hosts
are those that the metadata recorded when the bookies were chosen. So the writer and everyone who
recovers the ledger agree about what an ack quorum is, even if a bookie moves.

Invariants:
- `confirmed` never goes back, and never passes an entry without an ack quorum of marks.
- `covered` holds only when no ack quorum can be formed without a bookie that answered.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from engine.run import NO_ENTRY

UNKNOWN: Final = -1
"""The failure domain of a bookie whose host, rack or zone is not known. It is never counted."""


class Quorums(NamedTuple):
    """The sizes of a ledger. `ensemble >= write >= ack >= 1`.

    `domains` are the failure domains of the ensemble, a number for each index, if the bookies of an
    ack quorum have to be in two of them; otherwise it is empty.
    """

    ensemble: int
    write: int
    ack: int
    stripe_entries: int
    domains: tuple[int, ...] = ()

    def with_domains(self, domains: tuple[int, ...]) -> "Quorums":
        """The same sizes with other domains.

        If all domains are different, none are kept: every ack quorum is in two of them anyway.
        """
        if self.ack > 1 and UNKNOWN not in domains and len(set(domains)) == len(domains):
            domains = ()
        return self if domains == self.domains else self._replace(domains=domains)

    def may_ack(self, indexes: Collection[int]) -> bool:
        """Whether some indexes of one write set are an ack quorum, or more.

        >>> quorums = Quorums(3, 3, 2, 256, domains=(0, 0, 1))
        >>> quorums.may_ack({0, 2}), quorums.may_ack({0, 1})
        (True, False)
        """
        if len(indexes) < self.ack:
            return False
        domains = self.domains
        return not domains or len({domains[index] for index in indexes} - {UNKNOWN}) > 1

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

    def _write_sets(self) -> list[set[int]]:
        steps = range(self.write)
        return [
            {(start + step) % self.ensemble for step in steps} for start in range(self.ensemble)
        ]


def confirmed(quorums: Quorums, lac: int, pushed: int, marks: Sequence[int]) -> int:
    """The last entry of the longest prefix with an ack quorum of marks in each write set.

    >>> confirmed(Quorums(3, 3, 2, 256), -1, 9, [9, 4, -1])
    4
    """
    if quorums.ensemble == quorums.write:
        reached = sorted(marks, reverse=True)[quorums.ack - 1]
        if quorums.domains:
            reached = min(reached, _spanned(quorums.domains, marks, range(quorums.ensemble)))
        return max(lac, min(reached, pushed))
    while lac < pushed:
        first = lac + 1
        write_set = quorums.write_set(first)
        reached = sorted((marks[index] for index in write_set), reverse=True)[quorums.ack - 1]
        if quorums.domains:
            reached = min(reached, _spanned(quorums.domains, marks, write_set))
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
    return all(quorums.may_ack(each.intersection(alive)) for each in quorums._write_sets())


def covered(quorums: Quorums, answered: Collection[int]) -> bool:
    """Whether no write set has an ack quorum among the bookies that did not answer.

    >>> covered(Quorums(3, 3, 2, 256), {0}), covered(Quorums(3, 3, 2, 256), {0, 1})
    (False, True)
    """
    return not any(quorums.may_ack(each.difference(answered)) for each in quorums._write_sets())


def absent(quorums: Quorums, entry_id: int, lacking: Collection[int]) -> bool:
    """Whether an entry was never acknowledged, and never will be, if these indexes lack it.

    They are fenced: they will not store it any more.

    >>> absent(Quorums(3, 3, 2, 256), 7, {0}), absent(Quorums(3, 3, 2, 256), 7, {0, 1})
    (False, True)
    """
    return not quorums.may_ack(set(quorums.write_set(entry_id)).difference(lacking))


def _spanned(domains: Sequence[int], marks: Sequence[int], write_set: Collection[int]) -> int:
    """The last entry that bookies of two known domains store, NO_ENTRY if there is none."""
    highest: dict[int, int] = {}
    for index in write_set:
        domain, mark = domains[index], marks[index]
        if domain != UNKNOWN and mark > highest.get(domain, NO_ENTRY):
            highest[domain] = mark
    return sorted(highest.values(), reverse=True)[1] if len(highest) > 1 else NO_ENTRY
