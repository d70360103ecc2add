"""Slows down guesses at passwords, over every interface together.

Invariants:
- Guesses are counted when they begin: many at once are as slow as one after the other.
- Wrong passwords for one user delay nobody else: in the count of their address they are one try
  every `_FORGOTTEN_S`, however many there are.
- An address that has tried too many users may try another one every `_REGAINED_S`, so a client that
  tries more slowly than that locks out nobody.
- Behind a proxy all clients have one address: wrong passwords from there do not lock out users who
  logged in from there recently.
- Tokens are not counted: they cannot be guessed, and a valid one is accepted from any address.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from engine.access.scram import NAME_CHARACTERS_MAX, prepared_name
from engine.errors import AccessRefused, InvalidRequest, TooManyTries
from engine.ports.clock import Clock
from engine.transport.address import network_of

_FREE_TRIES: Final = 5
_FREE_USERS_OF_ADDRESS: Final = 25
_DELAY_S_MAX: Final = 60.0
_FORGOTTEN_S: Final = 600.0
_REGAINED_S: Final = 10.0
_GUESSERS_MAX: Final = 4_096
_WELCOME_S: Final = 86_400.0
_Key = tuple[str, str]


class _Tries(NamedTuple):
    """How often one user was tried from one address, when last, and when that counted for it."""

    times: int
    last_s: float
    counted_s: float = -math.inf


class Guesses:
    """How often who has tried in vain, and from when on they may again.

    `peer` is an address without its port; `user` "" is somebody who shows a token.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tries: OrderedDict[_Key, _Tries] = OrderedDict()
        self._users: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._welcome: OrderedDict[_Key, float] = OrderedDict()

    @contextmanager
    def trying(self, peer: str, user: str) -> Iterator[None]:
        """A block that judges what somebody shows, and raises `AccessRefused` for what is wrong.

        Raises `TooManyTries` as `check`; what else the block raises makes it no try.
        """
        self.check(peer, user)
        if not user:
            yield
            return
        key = _key(peer, user)
        self._count(key)
        try:
            yield
        except AccessRefused:
            raise
        except BaseException:
            self._undo(key)
            raise
        self._right(key)

    def check(self, peer: str, user: str) -> None:
        """Raise `TooManyTries` for who has to wait before they try again."""
        if not user:
            return
        key, now_s = _key(peer, user), self._clock.monotonic()
        tries = self._tries.get(key, _Tries(0, now_s))
        wait_s = tries.last_s + _delay_s(tries.times) - now_s
        if self._counts(key, tries, now_s):
            over = self._users_of(key[0], now_s) - _FREE_USERS_OF_ADDRESS + 1
            wait_s = max(wait_s, round(over * _REGAINED_S, 3))
        if wait_s > 0:
            seconds = math.ceil(wait_s)
            raise TooManyTries(f"too many wrong logins: try again in {seconds} s", seconds)

    def knows(self, peer: str, user: str) -> bool:
        """Whether a user logged in from that address recently."""
        return self._is_welcome(_key(peer, user), self._clock.monotonic())

    def recognize(self, peer: str, user: str) -> None:
        """A user has shown that they logged in before: what others try there delays them not."""
        self._welcome_again(_key(peer, user))

    def _is_welcome(self, key: _Key, now_s: float) -> bool:
        return now_s - self._welcome.get(key, -_WELCOME_S) < _WELCOME_S

    def _counts(self, key: _Key, tries: _Tries, now_s: float) -> bool:
        """Whether another try adds one to the count of its address."""
        return now_s - tries.counted_s >= _FORGOTTEN_S and not self._is_welcome(key, now_s)

    def _users_of(self, address: str, now_s: float) -> float:
        """How many users an address has tried, minus the tries that it has regained since."""
        count, at_s = self._users.get(address, (0.0, now_s))
        return max(0.0, count - (now_s - at_s) / _REGAINED_S)

    def _right(self, key: _Key) -> None:
        self._uncount(self._tries.pop(key, None), key)
        self._welcome_again(key)

    def _welcome_again(self, key: _Key) -> None:
        self._welcome.pop(key, None)
        self._welcome[key] = self._clock.monotonic()
        while len(self._welcome) > _GUESSERS_MAX:
            self._welcome.popitem(last=False)

    def _undo(self, key: _Key) -> None:
        """The last try counts no more: it was not answered."""
        tries = self._tries.get(key)
        if tries is not None and tries.times > 1:
            self._tries[key] = tries._replace(times=tries.times - 1)
        else:
            self._uncount(self._tries.pop(key, None), key)

    def _count(self, key: _Key) -> None:
        now_s = self._clock.monotonic()
        tries = self._tries.pop(key, _Tries(0, now_s))
        if now_s - tries.last_s > _FORGOTTEN_S:
            tries = _Tries(0, now_s)
        counted_s = tries.counted_s
        if self._counts(key, tries, now_s):
            self._add(key[0], 1.0)
            counted_s = now_s
        self._tries[key] = _Tries(tries.times + 1, now_s, counted_s)
        while len(self._tries) > _GUESSERS_MAX:
            self._tries.popitem(last=False)

    def _uncount(self, tries: _Tries | None, key: _Key) -> None:
        """Remove a try that was not wrong after all from the count of its address."""
        if tries is not None and tries.counted_s > -math.inf:
            self._add(key[0], -1.0)

    def _add(self, address: str, count: float) -> None:
        now_s = self._clock.monotonic()
        left = self._users_of(address, now_s) + count
        self._users.pop(address, None)
        if left > 0:
            self._users[address] = (left, now_s)
        while len(self._users) > _GUESSERS_MAX:
            self._users.popitem(last=False)


def _key(peer: str, user: str) -> _Key:
    """One key for all spellings of a name, so that another spelling gives no further tries."""
    try:
        return network_of(peer), prepared_name(user)
    except InvalidRequest:
        return network_of(peer), user[:NAME_CHARACTERS_MAX]


def _delay_s(count: int) -> float:
    """How long a user's next try has to wait after the last one of `count` tries."""
    over = count - _FREE_TRIES
    if over < 0:
        return 0.0
    return min(_DELAY_S_MAX, 2.0 ** min(over, 10))
