"""What a check found, small enough to be sent and to be added up.

Invariants:
- What was counted is counted in full; what is named is cut at `NAMED_MAX`.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

NAMED_MAX: Final = 1_000


class Finding(msgspec.Struct, frozen=True):
    """Something wrong: `kind` is corrupt, missing or unreadable, of a ledger or an object.

    `where` says which entries on which bookie, or what was told of the object.
    """

    kind: str
    subject: str
    where: str


class Tally(msgspec.Struct):
    """Checked ledgers, or objects, and what was wrong with them.

    `bytes` were read and had their checksums: of a ledger those of every replica. `corrupt`,
    `missing` and `unreadable` count entries of replicas, objects, or ledgers that are not there.
    """

    subjects: int = 0
    open: int = 0
    """Ledgers that are being written; of their newest entries one intact copy was looked for."""
    entries: int = 0
    bytes: int = 0
    corrupt: int = 0
    missing: int = 0
    unreadable: int = 0
    findings: list[Finding] = []

    def note(self, finding: Finding, count: int = 1) -> None:
        """Count what is wrong, and name it."""
        setattr(self, finding.kind, getattr(self, finding.kind) + count)
        if len(self.findings) < NAMED_MAX:
            self.findings.append(finding)

    @property
    def sound(self) -> bool:
        """Whether all was read and nothing was wrong."""
        return not (self.corrupt or self.missing or self.unreadable)


def added(tallies: Iterable[Tally]) -> Tally:
    """All of them together.

    >>> added([Tally(subjects=2), Tally(subjects=1, missing=1)]).subjects
    3
    """
    total = Tally()
    for each in tallies:
        total.subjects += each.subjects
        total.open += each.open
        total.entries += each.entries
        total.bytes += each.bytes
        total.corrupt += each.corrupt
        total.missing += each.missing
        total.unreadable += each.unreadable
        total.findings += each.findings[: NAMED_MAX - len(total.findings)]
    return total
