"""Sessions of browsers, tickets that log in once, and the slowing down of those who guess.

Invariants:
- A session's cookie is drawn at random and kept as a digest: what is kept lets nobody in.
- There are never more sessions than there may be: the one used longest ago goes.
- Guesses at a user are counted when they begin: many at once are as slow as one after the other.
- Behind a proxy all have one address: what strangers do there keeps nobody out who was let in
  from there lately.
"""

import hashlib
import hmac
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from random import Random
from typing import Final

from engine.access.principal import Principal
from engine.ports.clock import Clock
from herdbook.http.errors import HttpError
from herdbook.http.settings import WebSettings

COOKIE: Final = "herdbook_session"
_TOKEN_BITS: Final = 256
_FREE_TRIES: Final = 5
_FREE_TRIES_OF_ADDRESS: Final = 25
_DELAY_S_MAX: Final = 60.0
_FORGOTTEN_S: Final = 600.0
_GUESSERS_MAX: Final = 4_096
_WELCOME_S: Final = 86_400.0


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
        self._known[_digest(cookie)] = Session(principal, drawn(self._rng), ticket, now_s, now_s)
        while len(self._known) > self._settings.sessions_max:
            self._known.popitem(last=False)
        return cookie

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


class Guesses:
    """How often who has tried in vain, and from when on they may again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tries: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._welcome: OrderedDict[tuple[str, str], float] = OrderedDict()

    def begin(self, peer: str, user: str) -> None:
        """Count a try at a user; `user` "" for a token, which nobody guesses: that counts as none.

        Raises `HttpError` 429 for who has to wait; that one does not count.
        """
        if not user:
            return
        now_s = self._clock.monotonic()
        welcome = now_s - self._welcome.get((peer, user), -_WELCOME_S) < _WELCOME_S
        for key in [(peer, user)] if welcome else [(peer, user), (peer, "")]:
            count, last_s = self._tries.get(key, (0, now_s))
            wait_s = last_s + _delay_s(count, key) - now_s
            if wait_s > 0:
                raise HttpError(
                    429,
                    "too_many_tries",
                    "too many wrong logins",
                    remedy=f"try again in {math.ceil(wait_s)} s",
                    retry_s=math.ceil(wait_s),
                )
        self._count((peer, user))

    def wrong(self, peer: str) -> None:
        """A try from an address was in vain."""
        self._count((peer, ""))

    def right(self, peer: str, user: str) -> None:
        """The try that was counted was none in vain."""
        self._tries.pop((peer, user), None)
        self._welcome.pop((peer, user), None)
        self._welcome[peer, user] = self._clock.monotonic()
        while len(self._welcome) > _GUESSERS_MAX:
            self._welcome.popitem(last=False)

    def undo(self, peer: str, user: str) -> None:
        """The last try counts no more: it was not answered."""
        count, last_s = self._tries.get((peer, user), (0, 0.0))
        if count > 1:
            self._tries[peer, user] = (count - 1, last_s)
        else:
            self._tries.pop((peer, user), None)

    def _count(self, key: tuple[str, str]) -> None:
        now_s = self._clock.monotonic()
        count, last_s = self._tries.pop(key, (0, now_s))
        if now_s - last_s > _FORGOTTEN_S:
            count = 0
        self._tries[key] = (count + 1, now_s)
        while len(self._tries) > _GUESSERS_MAX:
            self._tries.popitem(last=False)


def _delay_s(count: int, key: tuple[str, str]) -> float:
    """How long after the last one of so many tries the next one may come."""
    over = count - (_FREE_TRIES if key[1] else _FREE_TRIES_OF_ADDRESS)
    if over < 0:
        return 0.0
    return min(_DELAY_S_MAX, 2.0 ** min(over, 10))
