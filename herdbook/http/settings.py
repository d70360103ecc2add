"""How the node's HTTP is served: plain values."""

from dataclasses import dataclass, field
from typing import Final

from broker.http import HttpSettings
from herdbook.memory_plan import STREAMS_BYTES

GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Bounds and names. Times in milliseconds, sizes in bytes.

    An answer has `request_timeout_ms`, which begins with the last piece if an object is sent.
    `names` are the names of this server, besides addresses and localhost: a request for another
    host is refused. `secure`: cookies are sent only over TLS. `open_metrics`: /metrics needs no
    login. There are at most `sessions_max` sessions of browsers, `sessions_of_user_max` of one
    user; one ends `session_age_ms` after its login, and `session_idle_ms` after its last request.
    `transfers_max` bounds objects that are going in or out at a time; one has `transfer_grace_ms`,
    and what its bytes take at `transfer_bytes_a_second`; it ends when nothing moves for
    `transfer_idle_ms`. `incoming_bytes_max` bounds the memory of all incoming objects before they
    are stored; further ones wait. `once` is a ticket for one login as an administrator, within
    `once_ms` from the start; "": none. `open`: without users everybody is served, even from other
    machines.
    """

    names: tuple[str, ...] = ()
    secure: bool = False
    open_metrics: bool = False
    open: bool = False
    bounds: HttpSettings = field(default_factory=HttpSettings)
    request_timeout_ms: int = 330_000
    sessions_max: int = 1_000
    sessions_of_user_max: int = 64
    session_age_ms: int = 12 * 60 * 60 * 1_000
    session_idle_ms: int = 60 * 60 * 1_000
    object_bytes_max: int = 1024 * GIB
    transfers_max: int = 256
    incoming_bytes_max: int = STREAMS_BYTES
    transfer_idle_ms: int = 30_000
    transfer_grace_ms: int = 60_000
    transfer_bytes_a_second: int = 16 * 1024
    once: str = field(default="", repr=False)
    once_ms: int = 10 * 60 * 1_000

    def __post_init__(self) -> None:
        assert self.sessions_max > 0 and self.sessions_of_user_max > 0
        assert self.transfers_max > 0
        assert 0 < self.session_idle_ms <= self.session_age_ms
        assert self.transfer_bytes_a_second > 0
