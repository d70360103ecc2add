"""How a replicated log behaves: plain values, no components."""

from dataclasses import dataclass

from engine.expiry import CLOCK_DIFFERENCE_MS
from engine.limits import MIB


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Sizes in bytes, times in milliseconds. What is None comes from the client's settings.

    A ledger is rolled when it holds `roll_bytes` or `roll_entries`, or is `roll_ms` old and not
    empty (0: never for its age). `pending_bytes_max` is what may wait for its acknowledgement.
    `retention_ms` is how long a ledger is kept after the next one was begun, needed or not.
    `clock_difference_ms` is the largest allowed difference between the clocks of two machines: a
    pin, and a retention that is not 0, last this much longer than requested. `turn_timeout_ms` is
    how long a writer tries to continue in another ledger before it gives up. `roll_straggler_ms` is
    how long a roll waits for replicas behind the ack quorum; after that they have the rest of the
    client's `straggler_close_ms`, and nobody waits for them. `look_interval_ms` is how often a tail
    at the end checks the list without a notification. `read_patience_ms` is how long a tail retries
    a read that no bookie can answer.
    """

    ensemble: int | None = None
    write_quorum: int | None = None
    ack_quorum: int | None = None
    roll_bytes: int = 64 * MIB
    roll_entries: int = 4_000_000
    roll_ms: int = 3_600_000
    pending_bytes_max: int = 64 * MIB
    retention_ms: int = 0
    clock_difference_ms: int = CLOCK_DIFFERENCE_MS
    turn_timeout_ms: int = 60_000
    roll_straggler_ms: int = 10
    retry_pause_ms: int = 20
    retry_pause_ms_max: int = 1_000
    look_interval_ms: int = 2_000
    read_patience_ms: int = 20_000
