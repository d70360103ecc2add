"""The slowing down of those who guess passwords, whatever door they do it at.

Invariants:
- Guesses at a user are counted when they begin: many at once are as slow as one after the other.
- Behind a proxy all have one address: what strangers do there keeps nobody out who was let in
  from there lately.
- Tokens are not counted: nobody guesses one, and whoever has one is let in from any address.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from engine.errors import AccessRefused, TooManyTries
from engine.ports.clock import Clock

_FREE_TRIES: Final = 5
_FREE_TRIES_OF_ADDRESS: Final = 25
_DELAY_S_MAX: Final = 60.0
_FORGOTTEN_S: Final = 600.0
_GUESSERS_MAX: Final = 4_096
_WELCOME_S: Final = 86_400.0


class Guesses:
    """How often who has tried in vain, and from when on they may again.

    `peer` is an address without its port; `user` "" is somebody who shows a token.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tries: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._welcome: OrderedDict[tuple[str, str], float] = OrderedDict()

    @contextmanager
    def trying(self, peer: str, user: str) -> Iterator[None]:
        """A block that judges what somebody shows, and raises `AccessRefused` for what is wrong.

        Raises `TooManyTries` as `check`; what else the block raises makes it no try.
        """
        self.check(peer, user)
        if not user:
            yield
            return
        self._count((peer, user))
        try:
            yield
        except AccessRefused:
            self._count((peer, ""))
            raise
        except BaseException:
            self._undo((peer, user))
            raise
        self._right((peer, user))

    def check(self, peer: str, user: str) -> None:
        """Raise `TooManyTries` for who has to wait before they try again."""
        if not user:
            return
        now_s = self._clock.monotonic()
        welcome = now_s - self._welcome.get((peer, user), -_WELCOME_S) < _WELCOME_S
        for key in [(peer, user)] if welcome else [(peer, user), (peer, "")]:
            count, last_s = self._tries.get(key, (0, now_s))
            wait_s = math.ceil(last_s + _delay_s(count, key) - now_s)
            if wait_s > 0:
                raise TooManyTries(f"too many wrong logins: try again in {wait_s} s", wait_s)

    def _right(self, key: tuple[str, str]) -> None:
        self._tries.pop(key, None)
        self._welcome.pop(key, None)
        self._welcome[key] = self._clock.monotonic()
        while len(self._welcome) > _GUESSERS_MAX:
            self._welcome.popitem(last=False)

    def _undo(self, key: tuple[str, str]) -> None:
        """The last try counts no more: it was not answered."""
        count, last_s = self._tries.get(key, (0, 0.0))
        if count > 1:
            self._tries[key] = (count - 1, last_s)
        else:
            self._tries.pop(key, None)

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
