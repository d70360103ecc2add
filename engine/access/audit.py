"""Who did what, where, and whether they were let: one line of JSON an event.

Logins, refusals and acts of administration are noted; what somebody may do and does all day is
not. Where the lines go is the caller's choice: a file that rotates, or the log.

Invariants:
- No password, token, proof or statement's text is part of an event.
- An event that cannot be written ends nothing: it is counted, and the log hears of the first.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

_logger: Final = logging.getLogger(__name__)
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

    def note(
        self, who: str, what: str, where: str, *, allowed: bool, why: str = "", peer: str = ""
    ) -> None:
        """See `Audit`."""
        event = Event(
            at_ms=self._wall_ms(),
            who=who[:_TEXT_MAX],
            what=what[:_TEXT_MAX],
            where=where[:_TEXT_MAX],
            allowed=allowed,
            why=why[:_TEXT_MAX],
            peer=peer,
        )
        try:
            self._write(msgspec.json.encode(event).decode())
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self.lost += 1
            if self.lost == 1:
                _logger.error("the audit log cannot be written: %s", error)


NO_AUDIT: Final = NoAudit()
