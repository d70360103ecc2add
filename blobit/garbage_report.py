"""What a round of collection found and did, or would do.

Invariants:
- A dry run counts by the same rules as a round; it only changes nothing.
- Bytes are those that entries hold, of one copy: how many bookies keep them is not counted.
"""

import msgspec


class PinGarbage(msgspec.Struct):
    """A pinned checkpoint that keeps dead ledgers from being deleted: who reads it needs them.

    It ends at `expires_ms` of the wall clock, unless it is renewed; `AsyncBlobs.unpin` ends it now.
    """

    pin: str
    checkpoint: int
    expires_ms: int
    ledgers: int
    bytes: int


class BucketGarbage(msgspec.Struct):
    """One bucket. Bytes as its ledgers hold them, of one copy.

    `ledgers` were there when the round began, with `stored_bytes` in those that are sealed, of
    which `live_bytes` belong to objects. `dead_ledgers` have none that is live; they were set to
    die in this round. `dead_bytes` lie in them and in those that were compacted, where nobody
    names them. `waiting_ledgers` are dead since a time that is still shorter than the
    grace, or held by a pin. `deleted_ledgers` are gone for good. `compacted_ledgers` were emptied
    by moving `moved_objects`. `sealed_ledgers` had been abandoned by their writers.
    """

    bucket: str
    bucket_id: int = 0
    ledgers: int = 0
    stored_bytes: int = 0
    live_bytes: int = 0
    sealed_ledgers: int = 0
    dead_ledgers: int = 0
    dead_bytes: int = 0
    waiting_ledgers: int = 0
    deleted_ledgers: int = 0
    compacted_ledgers: int = 0
    moved_objects: int = 0
    moved_bytes: int = 0
    expired_objects: int = 0
    expired_uploads: int = 0
    unreadable_ledgers: int = 0
    """Could not be sealed or copied now; the next round tries again."""
    foreign_ledgers: int = 0
    """Rows of the bucket that name ledgers which do not say that they are its own.

    Such a ledger is left as it is, and so is the row: somebody wrote it who should not have.
    """
    pinned_ledgers: int = 0
    """Of those that wait, the ones that only `pins` still hold, with `pinned_bytes` in them."""
    pinned_bytes: int = 0
    pins: list[PinGarbage] = []


class GarbageReport(msgspec.Struct):
    """What one round found and did; with `dry_run` what it would have done."""

    dry_run: bool
    buckets: list[BucketGarbage] = []
    orphan_ledgers: int = 0
    """Ledgers of no row, left by writers that crashed, which were deleted."""
    cleaned_buckets: list[str] = []
    """Deleted buckets of which nothing is left."""
    unreachable_buckets: list[str] = []
    """Those whose tablespace did not answer; the next round tries again."""

    def total(self, field: str) -> int:
        """The sum of a number over all buckets.

        >>> GarbageReport(False, [BucketGarbage("a", ledgers=2)]).total("ledgers")
        2
        """
        return sum(getattr(bucket, field) for bucket in self.buckets)
