"""How a metadata store in ZooKeeper is reached: plain values, and what they mean."""

from dataclasses import dataclass, field
from typing import Final

from engine.errors import InvalidRequest
from engine.limits import KIB, MIB
from engine.transport.address import is_loopback, parse_host_port
from engine.transport.security import NO_SECURITY, Security

# What a ZooKeeper server takes as one packet unless its `jute.maxbuffer` says otherwise. A bigger
# request makes it drop the connection, for everybody who shares it, so none is ever sent.
PACKET_BYTES_MAX: Final = 1 * MIB - 1
PACKET_OVERHEAD_BYTES: Final = KIB // 2
WAITING_LOG: Final = "engine.metadata.waiting"
"""The logger of a line that says for whom a first connection waits."""


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Times in milliseconds, sizes in bytes.

    The server bounds the session's time to between 2 and 20 of its ticks. With `user` and
    `password` every node is made with a digest ACL: only who knows both reads or writes it. With
    the authorities of `tls`, the connection is encrypted, the server's certificate and name are
    checked, and the certificate of `tls` is presented to servers that require one. Raises
    `InvalidRequest` for settings that contradict each other.
    """

    session_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000
    patience_ms: int = 2_000
    """Who waits longer for the first connection is told so, by a line of the log."""
    request_timeout_ms: int = 10_000
    close_timeout_ms: int = 5_000
    reconnect_first_ms: int = 50
    reconnect_max_ms: int = 1_000
    user: str = ""
    password: str = field(default="", repr=False)
    tls: Security = NO_SECURITY
    # Each request sends one byte through a socket pair to the client's thread: some 270 unread
    # ones fill it, and the next would block the event loop.
    requests_in_flight_max: int = 128
    bytes_in_flight_max: int = 16 * MIB

    def __post_init__(self) -> None:
        if bool(self.user) != bool(self.password):
            raise InvalidRequest("a digest needs both a user and a password")
        if ":" in self.user:
            raise InvalidRequest("a digest's user has no colon")
        if self.tls.certificate is not None and self.tls.authorities is None:
            raise InvalidRequest(
                "a certificate for ZooKeeper also needs the authorities of ZooKeeper's certificates"
            )
        if self.session_timeout_ms < 1_000:
            raise InvalidRequest("a session of less than a second expires at every pause")
        if not 1 <= self.requests_in_flight_max <= 200:
            raise InvalidRequest("between 1 and 200 requests may be in flight")


def unencrypted_password(hosts: str, user: str, tls: bool) -> str:
    """A warning that a password crosses a network unencrypted; "" if it does not.

    `hosts` is "host:port,host:port".

    >>> unencrypted_password("127.0.0.1:2181,[::1]:2181", "herdbook", tls=False)
    ''
    """
    far = [each for each in hosts.split(",") if not is_loopback(parse_host_port(each)[0])]
    if not user or tls or not far:
        return ""
    return (
        f"the password of ZooKeeper's user {user} is sent to {far[0]} unencrypted: anybody who "
        "reads it can change all metadata; set the authorities of ZooKeeper's certificates"
    )
