"""Sessions of browsers, and tickets that log in once.

Invariants:
- A session's cookie is random, and only its digest is kept, which lets nobody in.
- There are never more sessions than allowed: the least recently used one ends. One user has no more
  than the user's share: then the least recently used one of that user ends, and nobody else's.
"""

import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, field
from random import Random
from typing import Final

from engine.access.principal import Principal
from engine.ports.clock import Clock
from herdbook.http.settings import WebSettings

COOKIE: Final = "herdbook_session"
KNOWN_COOKIE: Final = "herdbook_known"
_TOKEN_BITS: Final = 256


def drawn(rng: Random) -> str:
    """A text of 256 random bits that nobody can guess."""
    return f"{rng.getrandbits(_TOKEN_BITS):064x}"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(slots=True)
class Session:
    """Somebody's login. `ticket`: they came by one, and no user of that name is asked for."""

    principal: Principal
    csrf: str = field(repr=False)
    ticket: bool
    begun_s: float
    used_s: float


class Sessions:
    """Who is logged in, by cookie."""

    def __init__(self, settings: WebSettings, clock: Clock, rng: Random) -> None:
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._known: OrderedDict[bytes, Session] = OrderedDict()
        self._once = _digest(settings.once) if settings.once else b""
        self._once_until_s = clock.monotonic() + settings.once_ms / 1000

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, principal: Principal, *, ticket: bool = False) -> str:
        """Log somebody in; the cookie's value."""
        cookie, now_s = drawn(self._rng), self._clock.monotonic()
        self._make_room(principal.name)
        self._known[_digest(cookie)] = Session(principal, drawn(self._rng), ticket, now_s, now_s)
        while len(self._known) > self._settings.sessions_max:
            self._known.popitem(last=False)
        return cookie

    def _make_room(self, user: str) -> None:
        own = [key for key, session in self._known.items() if session.principal.name == user]
        for key in own[: max(0, len(own) + 1 - self._settings.sessions_of_user_max)]:
            del self._known[key]

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie, which counts as used now; None if there is none any more."""
        key = _digest(cookie)
        found = self._known.get(key)
        if found is None:
            return None
        now_s, settings = self._clock.monotonic(), self._settings
        old = now_s - found.begun_s > settings.session_age_ms / 1000
        if old or now_s - found.used_s > settings.session_idle_ms / 1000:
            del self._known[key]
            return None
        found.used_s = now_s
        self._known.move_to_end(key)
        return found

    def end(self, cookie: str) -> None:
        """Log out."""
        self._known.pop(_digest(cookie), None)

    def redeem(self, ticket: str) -> bool:
        """Whether that is the ticket, which is used up by that."""
        right = bool(self._once) and hmac.compare_digest(_digest(ticket), self._once)
        in_time = self._clock.monotonic() < self._once_until_s
        if right:
            self._once = b""
        return right and in_time
