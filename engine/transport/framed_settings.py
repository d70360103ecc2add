"""Bounds of framed connections: plain values."""

from dataclasses import dataclass

from engine.limits import FRAME_BYTES_MAX, MIB, WRITER_BYTES_MAX


@dataclass(frozen=True, slots=True)
class FramedSettings:
    """Times in milliseconds, sizes in bytes, a connection each.

    `request_timeout_ms` is how long an answer may take before the request counts as unanswered (a
    long poll: on top of its own time). `send_bytes_max` bounds what waits to be sent; beyond it
    appends are answered OVERLOADED. `append_bytes_max` and `read_bytes_max` bound what a server
    holds of unanswered appends and of running reads before it stops reading from the connection.
    `calls_max` bounds long polls and metadata calls that run at once, and whatever the read tokens
    of one user ask at once over all connections; their reads hold a share of what all reads may.
    Until its reply is known a read counts as the biggest entry, if it does not ask for more.

    All connections of a server together hold at most about `frames_bytes_max` of big frames that
    are arriving, `appends_bytes_max` of unanswered appends, and `reads_bytes_max` of running reads;
    of each the last `urgent_bytes` are for recoveries. A peer that takes no answers is cut
    off after the request time, one that has begun a big frame when it sends less than
    `frame_bytes_a_second`.
    """

    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 5_000
    redial_first_ms: int = 10
    redial_max_ms: int = 1_000
    send_bytes_max: int = WRITER_BYTES_MAX
    reply_bytes_max: int = 8 * MIB
    append_bytes_max: int = 32 * MIB
    read_bytes_max: int = 16 * MIB
    calls_max: int = 4_096
    connections_max: int = 1_024
    frames_bytes_max: int = 128 * MIB
    frame_bytes_a_second: int = 1 * MIB
    appends_bytes_max: int = 256 * MIB
    urgent_bytes: int = 32 * MIB
    reads_bytes_max: int = 128 * MIB

    def __post_init__(self) -> None:
        assert 0 < self.redial_first_ms <= self.redial_max_ms
        assert self.send_bytes_max >= FRAME_BYTES_MAX
        assert self.read_bytes_max >= FRAME_BYTES_MAX
        assert self.urgent_bytes >= FRAME_BYTES_MAX
        assert self.frames_bytes_max >= self.urgent_bytes + FRAME_BYTES_MAX
        assert self.appends_bytes_max >= self.urgent_bytes + FRAME_BYTES_MAX
        assert self.frame_bytes_a_second > 0
        assert self.reads_bytes_max >= self.urgent_bytes + FRAME_BYTES_MAX
