"""Who did what, where, and whether they were let: one line of JSON an event.

Logins, refusals and acts of administration are noted; what somebody may do and does all day is
not. Where the lines go is the caller's choice: a file that rotates, or the log.

Invariants:
- No password, token, proof or statement's text is part of an event.
- An event that cannot be written ends nothing: it is counted, and the log hears of the first.
- Of the logins that one peer is refused there is a line a second at most, and the next one says
  how many there were: strangers cannot push out of the files what others did.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

_logger: Final = logging.getLogger(__name__)
_REFUSAL_MS: Final = 1_000
_PEERS_MAX: Final = 1_024
_TEXT_MAX: Final = 200
"""Names come from strangers: a line stays a line, and short."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `at_ms`: milliseconds since 1970-01-01 UTC."""

    at_ms: int
    who: str
    what: str
    where: str
    allowed: bool
    why: str = ""
    peer: str = ""
    before: int = 0
    """So many logins that this peer was refused had no line of their own."""


class Audit(Protocol):
    """Where events go."""

    def note(
        self, who: str, what: str, where: str, *, allowed: bool, why: str = "", peer: str = ""
    ) -> None:
        """Keep an event."""
        ...


class NoAudit:
    """Keeps nothing: for stores without users."""

    def note(
        self, who: str, what: str, where: str, *, allowed: bool, why: str = "", peer: str = ""
    ) -> None:
        """See `Audit`."""


class LineAudit:
    """Writes lines. `write` gets one without its end; `wall_ms` is the time."""

    def __init__(self, write: Callable[[str], None], wall_ms: Callable[[], int]) -> None:
        self._write = write
        self._wall_ms = wall_ms
        self.lost = 0
        """Events that could not be written."""
        self._refused: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def note(
        self, who: str, what: str, where: str, *, allowed: bool, why: str = "", peer: str = ""
    ) -> None:
        """See `Audit`."""
        at_ms = self._wall_ms()
        strange = not allowed and (not who or what.startswith("log in"))
        before = self._kept_back(peer, at_ms) if strange else 0
        if before < 0:
            return
        event = Event(
            at_ms=at_ms,
            who=who[:_TEXT_MAX],
            what=what[:_TEXT_MAX],
            where=where[:_TEXT_MAX],
            allowed=allowed,
            why=why[:_TEXT_MAX],
            peer=peer,
            before=before,
        )
        try:
            self._write(msgspec.json.encode(event).decode())
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self.lost += 1
            if self.lost == 1:
                _logger.error("the audit log cannot be written: %s", error)

    def _kept_back(self, peer: str, at_ms: int) -> int:
        """How many refusals of a peer had no line since the last that had; -1: nor has this."""
        host = host_of(peer)
        last_ms, count = self._refused.get(host, (-_REFUSAL_MS, 0))
        if 0 <= at_ms - last_ms < _REFUSAL_MS:
            self._refused[host] = (last_ms, count + 1)
            return -1
        self._refused.pop(host, None)
        self._refused[host] = (at_ms, 0)
        if len(self._refused) > _PEERS_MAX:
            self._refused.popitem(last=False)
        return count


def host_of(peer: str) -> str:
    """An address as frames and as gRPC tell it, without its port: each connection has another one.

    >>> host_of("ipv4:10.0.0.7:50312"), host_of("ipv6:%5B::1%5D:50312"), host_of("[::1]:50312")
    ('10.0.0.7', '::1', '::1')
    """
    host = peer.removeprefix("ipv4:").removeprefix("ipv6:").rpartition(":")[0] or peer
    return host.removeprefix("%5B").removesuffix("%5D").strip("[]")


NO_AUDIT: Final = NoAudit()
