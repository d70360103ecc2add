"""How eager and how careful repair is: plain values, no components."""

from dataclasses import dataclass

from engine import limits
from engine.ledger.settings import ClientSettings


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """Times in milliseconds, sizes in bytes, rates in bytes a second.

    `lost_bookie_grace_ms` is how long a registration may be away before the bookie counts as lost.
    `open_ledger_grace_ms` is how long a ledger may stay open, or in recovery, with a lost bookie in
    its last fragment before it is fenced and closed: a writer that is well replaces it sooner.
    `doubtful_open_grace_ms` is the same for a bookie that is there and cannot tell what it lacks.
    `look_interval_ms` is how often registrations are looked at, beside their watches;
    `audit_interval_ms` how often all ledgers' metadata are, also when no bookie was lost;
    `scrub_interval_ms` how often every replica is read (0: only when asked).
    `surplus_interval_ms` is how often a node looks for entries that its bookies hold but that
    belong to other bookies, for example because a replica was moved (0: never). Before the first
    look, a ledger must not have been written there for `surplus_quiet_ms`.
    `retry_pause_ms` doubles with every failure of a ledger, up to `retry_pause_ms_max`.
    `copy_bytes_a_second` bounds what one node reads and writes for repair (0: no bound), and
    `metadata_reads_a_second` of how many ledgers it reads the metadata to find what to repair.
    """

    lost_bookie_grace_ms: int = 300_000
    open_ledger_grace_ms: int = 30_000
    doubtful_open_grace_ms: int = 3_600_000
    look_interval_ms: int = 5_000
    audit_interval_ms: int = 3_600_000
    scrub_interval_ms: int = 7 * 24 * 3_600_000
    surplus_interval_ms: int = 3_600_000
    surplus_quiet_ms: int = 3_600_000
    retry_pause_ms: int = 1_000
    retry_pause_ms_max: int = 300_000
    read_timeout_ms: int = limits.READ_TIMEOUT_MS
    append_timeout_ms: int = limits.APPEND_TIMEOUT_MS
    recovery_timeout_ms: int = 2 * limits.READ_TIMEOUT_MS
    metadata_timeout_ms: int = limits.METADATA_TIMEOUT_MS
    step_bytes: int = limits.READ_BYTES_MAX
    copy_bytes_a_second: int = 64 * limits.MIB
    metadata_reads_a_second: int = 2_000
    ledgers_a_page: int = 64
    ledgers_at_once: int = 2
    quarantine_ms: int = 10_000

    def __post_init__(self) -> None:
        assert self.retry_pause_ms_max >= self.retry_pause_ms > 0
        assert self.look_interval_ms > 0 and self.audit_interval_ms > 0
        assert 0 < self.step_bytes <= limits.READ_BYTES_MAX
        assert self.metadata_reads_a_second >= 0
        assert self.ledgers_a_page > 0 and self.ledgers_at_once > 0

    def client(self) -> ClientSettings:
        """How the recoveries that repair begins behave."""
        return ClientSettings(
            append_timeout_ms=self.append_timeout_ms,
            read_timeout_ms=self.read_timeout_ms,
            recovery_timeout_ms=self.recovery_timeout_ms,
            metadata_timeout_ms=self.metadata_timeout_ms,
            quarantine_ms=self.quarantine_ms,
            read_bytes_max=self.step_bytes,
        )
