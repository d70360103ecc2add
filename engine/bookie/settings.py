"""How a bookie behaves: plain values, no components."""

from dataclasses import dataclass, replace
from typing import Final

from engine import limits

_ANY_SHARE: Final = 1e-9
"""A disk counts as full by its free bytes alone, whatever share of it they are."""
_FENCES_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """Bounds and moments of one bookie. Times in milliseconds, sizes in bytes.

    `address`, `grpc`, `host` and `rack` stand in its registration as they are (`Registration`).
    `full_ratio` of the disk in use turns the bookie read-only, on a big disk only with less than
    `full_free_bytes` free; it comes back at `full_ratio_low`, or twice those bytes. Below
    `reserve_bytes` free it refuses entries of logs and recovery writes too, and keeps what is left
    for fences.
    Where a small batch makes a segment grow, `ahead_bytes` of zeros go ahead of what comes next; 0:
    none.
    A batch of one request is written on the event loop while the like of it takes at most
    `lone_sync_ms`; 0: never.
    `synced_mark_ms` of silence make it state in the journal that all before is synced. The journal
    trusts a look at the disk's space for `space_known_ms`. Index records wait `index_delay_ms` for
    company. Up to `read_gap_bytes` of other ledgers are read along rather than passed over.
    `checkpoint_bytes` of journal, at most about so many, are replayed at a start. Every
    `mark_interval_ms` the folder and the metadata store remember that the bookie still ran.
    """

    address: str = ""
    grpc: str = ""
    host: str = ""
    rack: str = ""
    zone: str = ""
    segment_bytes: int = limits.SEGMENT_BYTES
    journal_queue_bytes_max: int = limits.JOURNAL_QUEUE_BYTES_MAX
    journal_batch_bytes_max: int = limits.JOURNAL_BATCH_BYTES_MAX
    recent_runs_bytes_max: int = limits.RECENT_RUNS_BYTES_MAX
    ahead_bytes: int = 256 * limits.KIB
    index_queue_records_max: int = limits.INDEX_QUEUE_RECORDS_MAX
    index_batch_records: int = 16_384
    index_delay_ms: int = 500
    checkpoint_bytes: int = 128 * limits.MIB
    read_gap_bytes: int = 32 * limits.KIB
    ledger_states_max: int = limits.LEDGER_STATES_MAX
    synced_mark_ms: int = 500
    lone_sync_ms: float = 1.0
    space_check_ms: int = 1_000
    mark_interval_ms: int = 600_000
    space_known_ms: int = 200
    full_ratio: float = 0.95
    full_ratio_low: float = 0.93
    full_free_bytes: int = 1024 * limits.MIB
    reserve_bytes: int = 16 * limits.MIB

    def kept_bytes(self, total_bytes: int, *, full: bool = False) -> int:
        """The free space below which a disk of this size accepts no new data.

        With `full`: the free space above which it accepts new data again. Down to
        `reserve_bytes`, this space is kept for deletions, that is for entries of logs.
        """
        ratio = self.full_ratio_low if full else self.full_ratio
        factor = 2 if full else 1
        wanted = min(total_bytes * (1 - ratio), self.full_free_bytes * factor)
        return int(max(wanted, self.reserve_bytes * factor))

    def keeping(self, kept_bytes: int) -> "BookieSettings":
        """The same settings with this many bytes kept on each disk; 0: the default for its size."""
        if not kept_bytes:
            return self
        return replace(
            self,
            full_ratio=_ANY_SHARE,
            full_ratio_low=_ANY_SHARE,
            full_free_bytes=kept_bytes,
            reserve_bytes=min(self.reserve_bytes, kept_bytes // _FENCES_SHARE),
        )

    def __post_init__(self) -> None:
        assert 0 < self.full_ratio_low <= self.full_ratio <= 1
        assert self.index_batch_records <= self.index_queue_records_max
        assert self.mark_interval_ms > 0
        assert self.ahead_bytes >= 0
        assert self.segment_bytes > 0 and self.checkpoint_bytes > 0
