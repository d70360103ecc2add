"""Bounds of sessions over a wire: plain values."""

from dataclasses import dataclass

from engine.limits import MIB


@dataclass(frozen=True, slots=True)
class WireSettings:
    """Times in milliseconds, sizes in bytes.

    A server ends what a connection began if nothing was heard of it for `lease_ms`; its client says
    something at least three times in that time. It has at most `connections_max` connections and
    `sessions_max` sessions: the one that was used longest ago and is in no transaction goes when
    another is opened, and is opened again by its client. One user may have a sixteenth of the
    sessions that other users leave. One connection has at
    most `calls_max` calls running; beyond that nothing is read from it. `call_bytes_max` and
    `call_values_max` bound one call, `calls_bytes_max` all calls that arrive or are in progress,
    of which one user has half of what others leave. A result is sent in pieces of `piece_bytes`.
    All results that wait to be fetched have at most `results_bytes_max`, of which a user has a
    share; so have the answers that users do not take. A client
    goes on looking for a server for `patience_ms`. When a leader owes it an answer and has said
    nothing for `doubt_ms`, it looks whether another one leads by now.
    """

    lease_ms: int = 10_000
    connect_timeout_ms: int = 5_000
    connections_max: int = 8_192
    sessions_max: int = 4_096
    calls_max: int = 1_024
    call_bytes_max: int = 64 * MIB
    call_values_max: int = 4_000_000
    calls_bytes_max: int = 256 * MIB
    part_bytes: int = 1 * MIB
    piece_bytes: int = 1 * MIB
    results_bytes_max: int = 512 * MIB
    queued_bytes_max: int = 8 * MIB
    patience_ms: int = 15_000
    doubt_ms: int = 1_000
    retry_first_ms: int = 5
    retry_max_ms: int = 200
