"""When garbage is collected: plain values, no components.

Invariants (asserted when settings are made):
- None of them is needed for safety: the rule of dying ledgers holds whatever they are. They say
  how soon space comes back, and how long old ids go on to be readable.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GarbageSettings:
    """Times in milliseconds.

    The bytes of a ledger go `grace_ms` after nothing named them any more: as long old ids of
    objects that were moved, overwritten or deleted stay readable. A sealed ledger is looked at
    `settle_ms` after it was sealed, for puts whose bytes lie in it may be about to commit. A
    ledger that is open for longer than `abandoned_ms` is recovered and sealed; if its writer is
    alive it takes another. A ledger without a row is deleted when it is older than `orphan_ms`.
    A ledger is compacted when less than `live_share_min` of it is live. `batch_rows` is how many
    rows are removed or moved together, `batch_bytes` how many bytes of objects are copied at once.
    A round moves the objects of at most `names_max` names out of a bucket's ledgers, or those of
    one ledger; the next one goes on.
    """

    grace_ms: int = 3_600_000
    settle_ms: int = 60_000
    abandoned_ms: int = 7_200_000
    orphan_ms: int = 3_600_000
    live_share_min: float = 0.5
    batch_rows: int = 500
    batch_bytes: int = 4 * 1024 * 1024
    names_max: int = 100_000

    def __post_init__(self) -> None:
        assert min(self.grace_ms, self.settle_ms, self.abandoned_ms, self.orphan_ms) >= 0
        assert 0.0 <= self.live_share_min <= 1.0
        assert self.batch_rows >= 1 and self.batch_bytes >= 1
