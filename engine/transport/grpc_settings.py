"""Bounds of the gRPC wire: plain values, and what they are called in gRPC.

Invariants:
- Every message that a client makes fits in what a server takes, and the other way round.
- No port is shared by two servers: a second one fails to listen.
- A client's keepalive is never quicker than its server allows.
"""

from dataclasses import dataclass
from typing import Final

from engine.limits import ENTRY_BYTES_MAX, KIB, MIB, READ_BYTES_MAX

FORMAT_MAJOR: Final = 1
FORMAT_MINOR: Final = 0
MESSAGE_BYTES_MAX: Final = 8 * MIB
ORDER_BYTES_MAX: Final = 5 * MIB
"""Runs of one order; more of them become several orders."""
LONG_POLL_MS_MAX: Final = 60_000

_METADATA_BYTES_MAX: Final = 16 * KIB


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Times in milliseconds, sizes in bytes.

    `request_timeout_ms` is how long an answer may take (a long poll: on top of its own time).
    `send_bytes_max` bounds what a client lets wait to be sent; beyond it appends are answered
    OVERLOADED. A message gathers orders up to about `gather_bytes`. A server stops reading from a
    stream of which it holds `stream_bytes_max` of unanswered appends, and from all while it holds
    `append_bytes_max`; reads wait while `connection_read_bytes_max` or `read_bytes_max` are on
    their way, where a read counts as the biggest entry until its reply is known. The last
    `urgent_bytes` of all reads are for recoveries; and a stream of fences and recovery writes alone
    is held back by `stream_bytes_max` only. `calls_max` bounds
    the calls that run at once in a server, of which half at most are long polls and
    `open_calls_max` those of callers who show no secret; `connections_max` bounds its connections;
    one without a call is ended after `idle_timeout_ms`.
    """

    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 5_000
    keepalive_ms: int = 20_000
    keepalive_timeout_ms: int = 10_000
    send_bytes_max: int = 64 * MIB
    gather_bytes: int = 1 * MIB
    stream_bytes_max: int = 32 * MIB
    append_bytes_max: int = 128 * MIB
    read_chunk_bytes: int = READ_BYTES_MAX
    connection_read_bytes_max: int = 32 * MIB
    read_bytes_max: int = 128 * MIB
    urgent_bytes: int = 32 * MIB
    idle_timeout_ms: int = 300_000
    calls_max: int = 8_192
    open_calls_max: int = 128
    connections_max: int = 1_200

    def __post_init__(self) -> None:
        assert self.send_bytes_max >= MESSAGE_BYTES_MAX
        assert self.gather_bytes + ORDER_BYTES_MAX + MIB <= MESSAGE_BYTES_MAX
        assert self.read_chunk_bytes + ENTRY_BYTES_MAX < MESSAGE_BYTES_MAX
        assert self.stream_bytes_max <= self.append_bytes_max
        assert self.read_chunk_bytes <= self.connection_read_bytes_max <= self.read_bytes_max
        assert self.connection_read_bytes_max >= ENTRY_BYTES_MAX
        assert self.urgent_bytes >= ENTRY_BYTES_MAX
        assert self.read_bytes_max >= self.urgent_bytes + ENTRY_BYTES_MAX


Options = list[tuple[str, int]]


def client_options(settings: GrpcSettings) -> Options:
    """What a channel is made with."""
    return [
        *_both(settings),
        # A new channel is a new connection, never one that somebody else's channel still holds.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(settings: GrpcSettings) -> Options:
    """What a server is made with."""
    return [
        *_both(settings),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", settings.connect_timeout_ms),
        ("grpc.max_connection_idle_ms", settings.idle_timeout_ms),
        ("grpc.max_concurrent_streams", settings.calls_max),
        ("grpc.max_allowed_incoming_connections", settings.connections_max),
        ("grpc.http2.min_ping_interval_without_data_ms", settings.keepalive_ms // 4),
        ("grpc.http2.max_ping_strikes", 5),
        ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
        # Else gRPC takes in megabytes of each stream of a fast network before anybody asks for one.
        ("grpc.http2.bdp_probe", 0),
    ]


def _both(settings: GrpcSettings) -> Options:
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.keepalive_time_ms", settings.keepalive_ms),
        ("grpc.keepalive_timeout_ms", settings.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
