"""How a client of the ledger behaves: plain values, no components."""

from dataclasses import dataclass
from typing import Literal

from engine import limits
from engine.metadata.ledgers import Survives


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Defaults and bounds of one client. Times in milliseconds, sizes in bytes.

    `ensemble`, `write_quorum` and `ack_quorum` are used when `create_ledger` names none.
    `survives` is the loss that acknowledged entries survive: "bookie", "host", "rack" or "zone". ""
    means "host" in a cluster of more than two hosts, and "bookie" otherwise.
    `host` is the machine that the client runs on: a bookie there is preferred for one replica.
    `stripe_entries` is how many consecutive entries go to one write set; it bounds a run too.
    `append_timeout_ms` is how long a bookie may leave a run unacknowledged before it is replaced,
    and how long an append may wait for enough bookies before the writer gives up.
    `quarantine_ms` is how long a bookie that failed is not chosen again, unless it restarted.
    `spare_ms_max` is how long, at most, bookies beyond the ack quorum may be passed over while a
    caller waits for each entry (`engine.ledger.sparing`), where all run on `host`; 0: never.
    `respread_ms` is how long, at most, a writer lets bookies come before it moves a replica from a
    machine that has two.
    `straggler_close_ms` is how long `close()` waits for replicas behind the ack quorum.
    `lease_ms` is how long this process, after it was last confirmed as alive, may answer reads of
    the logs that it leads, and how long others wait before they take over from it.
    `clock_drift` is by how much the machines' clocks may differ in speed.
    """

    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    survives: Survives | Literal[""] = ""
    host: str = ""
    stripe_entries: int = limits.STRIPE_ENTRIES
    append_timeout_ms: int = limits.APPEND_TIMEOUT_MS
    read_timeout_ms: int = limits.READ_TIMEOUT_MS
    recovery_timeout_ms: int = 2 * limits.READ_TIMEOUT_MS
    metadata_timeout_ms: int = limits.METADATA_TIMEOUT_MS
    speculative_read_ms: int = limits.SPECULATIVE_READ_MS
    long_poll_ms: int = limits.LONG_POLL_MS
    retry_pause_ms: int = 50
    quarantine_ms: int = 10_000
    spare_ms_max: int = 20
    respread_ms: int = 1_000
    straggler_close_ms: int = 1_000
    lease_ms: int = 1_500
    clock_drift: float = 0.05
    writer_bytes_max: int = limits.WRITER_BYTES_MAX
    writer_parked_bytes_max: int = limits.WRITER_PARKED_BYTES_MAX
    straggler_bytes_max: int = limits.STRAGGLER_BYTES_MAX
    read_bytes_max: int = limits.READ_BYTES_MAX
