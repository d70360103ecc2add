"""Who knows the users of a store: the rows of its system tablespace, asked seldom.

Invariants:
- An answer is at most `FRESH_S` old. Where the rows cannot be reached it may be up to `STALE_S`
  old; after that nobody is known, and that is said.
- A name that is not known and a password that is wrong take the same steps and get the same words.
"""

import asyncio
import hmac
import ssl
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from engine.access.principal import EVERYBODY, Principal
from engine.access.scram import NOT_PROVED, ScramVerifier, prepared_name
from engine.access.tokens import SESSION, SESSION_MS, Claims, is_signed, sign, verify
from engine.errors import AccessRefused, InvalidRequest, Unavailable
from engine.ports.clock import Clock
from herdbook.access.rows import TOKEN_MARK, UserRows, digest_of

T = TypeVar("T")
FRESH_S: Final = 2.0
STALE_S: Final = 60.0
_KEPT_MAX: Final = 10_000
_NOBODY_BYTES: Final = 32
_TOKEN_REFUSED: Final = "the token is not one of this store, or has expired"


class Threads(Protocol):
    """Where passwords are looked at: `Workers` are such, too."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in a thread and wait for its result, or raise what it raised."""
        ...


class StoreAuthenticator:
    """An `engine.access.port.Authenticator` over the rows of users."""

    def __init__(self, rows: UserRows, key: bytes, clock: Clock, threads: Threads) -> None:
        """`key` signs the tokens of sessions: all that take them are given the same."""
        self.rows = rows
        self._key = key
        self._clock = clock
        self._threads = threads
        # What a strange name is judged by stays the same for all servers with one key.
        self._nobody = hmac.digest(key, b"herdbook nobody", "sha256")
        self._kept: dict[Hashable, tuple[float, Any]] = {}
        self._asking: dict[Hashable, asyncio.Future[Any]] = {}

    async def anonymous(self) -> Principal:
        """See `Authenticator`."""
        if await self._lately("any", self.rows.any):
            raise AccessRefused("log in: this store has users")
        return EVERYBODY

    async def password(self, user: str, password: str) -> Principal:
        """See `Authenticator`."""
        verifier = await self.scram(user)
        if not await self._threads.run(partial(verifier.fits, password)):
            raise AccessRefused(NOT_PROVED)
        return await self.principal(user)

    async def token(self, token: str) -> Principal:
        """See `Authenticator`."""
        now_ms = self._clock.wall_ms()
        if is_signed(token):
            claims = verify(token, self._key, SESSION, now_ms)
            user = await self.principal(claims.user)
            if user.made_ms != claims.made_ms:
                raise AccessRefused(_TOKEN_REFUSED)
            return user
        mark, _, rest = token.partition("_")
        token_id = rest.partition("_")[0] if mark == TOKEN_MARK else ""
        found = await self._lately(("token", token_id), lambda: self.rows.token(token_id))
        expected = found.digest if found is not None else bytes(32)
        right = hmac.compare_digest(digest_of(token), expected)
        if found is None or not right or 0 < found.expires_ms <= now_ms:
            raise AccessRefused(_TOKEN_REFUSED)
        return await self.principal(found.owner)

    async def scram(self, user: str) -> ScramVerifier:
        """See `Authenticator`."""
        name = _name_of(user)
        found = await self._lately(("user", name), lambda: self.rows.find(name))
        if found is None or not found.verifier:
            return ScramVerifier.of_nobody(name, self._nobody)
        return ScramVerifier.parse(found.verifier)

    async def principal(self, user: str) -> Principal:
        """See `Authenticator`."""
        name = _name_of(user)
        found = await self._lately(("principal", name), lambda: self.rows.principal(name))
        if found is None:
            raise AccessRefused(NOT_PROVED)
        return found

    async def session(self, user: str) -> str:
        """See `Authenticator`."""
        expires_ms = self._clock.wall_ms() + SESSION_MS
        known = await self.principal(user)
        return sign(Claims(SESSION, known.name, expires_ms, (), known.made_ms), self._key)

    async def _lately(self, what: Hashable, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What is known of a thing, looked up anew if that was a while ago."""
        now_s = self._clock.monotonic()
        at_s, known = self._kept.get(what, (-STALE_S, None))
        if now_s - at_s <= FRESH_S:
            return known  # type: ignore[no-any-return]
        try:
            found = await self._shared(what, ask)
        except Unavailable:
            if now_s - at_s > STALE_S or what not in self._kept:
                raise
            return known  # type: ignore[no-any-return]
        self._kept.pop(what, None)
        if len(self._kept) >= _KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[what] = now_s, found
        return found

    async def _shared(self, what: Hashable, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Those who ask for one thing at the same time share the answer."""
        asking = self._asking.get(what)
        if asking is None:
            asking = self._asking[what] = asyncio.ensure_future(ask())
            asking.add_done_callback(lambda _: self._asking.pop(what, None))
        found: T = await asyncio.shield(asking)
        return found


def own_key() -> bytes:
    """A key for tokens that only this process signs and takes."""
    return ssl.RAND_bytes(_NOBODY_BYTES)


def _name_of(user: str) -> str:
    """A name in the form in which it is kept; one that none can have stays, and is not found."""
    try:
        return prepared_name(user)
    except InvalidRequest:
        return user[:256]
