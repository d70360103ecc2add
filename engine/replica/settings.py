"""How a replica behaves: plain values, no components."""

from dataclasses import dataclass

from engine import limits


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Bounds of one replica. Times in milliseconds, sizes in bytes.

    `stall_ms` is how long a leader may wait for one append, or for a full disk of its state that
    takes nothing more, before it lets another replica try.
    `pending_bytes_max` bounds proposals that are under way; beyond it `propose` raises.
    `unwritten_bytes_max` bounds changes that the state's disk has not taken; beyond it proposals
    wait.
    `batch_commands_max` bounds what is sent and applied at one go, so that the event
    loop stays free.
    The leader takes a snapshot after `snapshot_entries` (0: never by itself), after
    `snapshot_log_bytes` of them, or when the last one is `snapshot_ms` old and something changed;
    `snapshot_share` is how much of the event loop writing one may take.
    `duties_ms` is how often the leader looks whether a snapshot or a new level is due.
    `level_settle_ms` is for how long all listed replicas must have known a new level of commands
    before it is allowed: one that is away for a moment is not left behind.
    `retry_pause_ms` is the first pause after something was unavailable; it doubles up to
    `retry_pause_ms_max`.
    """

    stall_ms: int = 10_000
    pending_bytes_max: int = 64 * limits.MIB
    unwritten_bytes_max: int = 64 * limits.MIB
    batch_commands_max: int = 1_024
    snapshot_entries: int = 1_000_000
    snapshot_log_bytes: int = 1024 * limits.MIB
    snapshot_ms: int = 24 * 3_600_000
    snapshot_share: float = 0.3
    duties_ms: int = 1_000
    level_settle_ms: int = 30_000
    retry_pause_ms: int = 50
    retry_pause_ms_max: int = 1_500
