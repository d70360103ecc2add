"""Who knows the users of a store: the rows of its system tablespace, asked seldom.

Invariants:
- An answer is at most `FRESH_S` old. If the rows cannot be reached, or take longer than
  `PATIENCE_S`, it may be up to `STALE_S` old; after that nobody is known, and callers get an error.
- A caller waits for an unknown answer for at most `WAIT_S`, which is longer than it takes until
  another node leads the tablespace of users. An answer that is in use is looked up again before
  it is old, so that nobody waits for it.
- An unknown name and a wrong password take the same steps and get the same message.
- A password that was right is not hashed again as long as the user's verifier is the same: the
  hash is slow on purpose, and HTTP clients send the password with each request. Only a digest under
  a key of this process is kept, until the password has not been used for `PROVED_S`.
- A password is checked against the row of the user who logs in. A user who is removed and added
  again under the same name is a different user, whatever is cached of the former one.
"""

import asyncio
import hmac
import math
import ssl
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from engine.access.principal import EVERYBODY, SYSTEM, Principal
from engine.access.scram import NOT_PROVED, ScramVerifier, prepared_name
from engine.access.tokens import SESSION, SESSION_MS, Claims, Keys, is_signed, sign, verify
from engine.errors import AccessRefused, InvalidRequest, MetadataUnavailable, Unavailable
from engine.expiry import is_over
from engine.ports.clock import Clock
from herdbook.access.rows import TOKEN_ID_CHARACTERS, TOKEN_MARK, User, UserRows, digest_of

T = TypeVar("T")
FRESH_S: Final = 2.0
STALE_S: Final = 60.0
PATIENCE_S: Final = 0.5
WAIT_S: Final = 8.0
PROVED_S: Final = 600.0
_KEPT_MAX: Final = 10_000
_NOBODY_BYTES: Final = 32
_TOKEN_REFUSED: Final = "the token is not one of this store, or has expired"


class Threads(Protocol):
    """Where passwords are looked at: `Workers` are such, too."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in a thread and wait for its result, or raise what it raised."""
        ...


class _Looking(NamedTuple):
    """A look at the rows that goes on."""

    task: "asyncio.Future[Any]"
    begun_s: float


class _Proved(NamedTuple):
    """A password that was right."""

    verifier: ScramVerifier
    """The verifier that it matched."""
    digest: bytes
    shown_s: float


class StoreAuthenticator:
    """An `engine.access.port.Authenticator` over the rows of users."""

    def __init__(self, rows: UserRows, keys: Keys, clock: Clock, threads: Threads) -> None:
        """`keys` are for the tokens of sessions; all servers that accept them get the same keys."""
        self.rows = rows
        self._keys = keys
        self._clock = clock
        self._threads = threads
        # What a strange name is judged by stays the same for all servers with one key.
        self._nobody = hmac.digest(keys()[0], b"herdbook nobody", "sha256")
        self._kept: dict[Hashable, tuple[float, Any]] = {}
        self._asking: dict[Hashable, _Looking] = {}
        self._own_key = own_key()
        self._proved: dict[str, _Proved] = {}
        """By user name, the most recently used last."""

    async def anonymous(self) -> Principal:
        """See `Authenticator`."""
        if await self._lately("any", self.rows.any):
            raise AccessRefused("log in: this store has users")
        return EVERYBODY

    async def password(self, user: str, password: str) -> Principal:
        """See `Authenticator`."""
        verifier = await self.scram(user)
        digest = hmac.digest(self._own_key, password.encode(errors="surrogatepass"), "sha256")
        if not self._has_proved(_name_of(user), verifier, digest):
            if not await self._threads.run(partial(verifier.fits, password)):
                raise AccessRefused(NOT_PROVED)
        found = await self.principal(user, verifier)
        self._keep_proved(found.name, _Proved(verifier, digest, self._clock.monotonic()))
        return found

    async def token(self, token: str) -> Principal:
        """See `Authenticator`."""
        now_ms = self._clock.wall_ms()
        if is_signed(token):
            claims = verify(token, self._keys(), SESSION, now_ms)
            user = await self.principal(claims.user)
            if user.made_ms != claims.made_ms:
                raise AccessRefused(_TOKEN_REFUSED)
            return user
        mark, _, rest = token.partition("_")
        token_id = rest.partition("_")[0] if mark == TOKEN_MARK else ""
        if len(token_id) != TOKEN_ID_CHARACTERS:
            # Not looked up again: answers for thousands of tokens are kept for a while.
            raise AccessRefused(_TOKEN_REFUSED)
        found = await self._lately(("token", token_id), lambda: self.rows.token(token_id))
        expected = found[0].digest if found is not None else bytes(32)
        right = hmac.compare_digest(digest_of(token), expected)
        if found is None or not right:
            raise AccessRefused(_TOKEN_REFUSED)
        kept, owner = found
        if kept.expires_ms and is_over(kept.expires_ms, now_ms):
            raise AccessRefused(_TOKEN_REFUSED)
        return owner.principal

    async def scram(self, user: str) -> ScramVerifier:
        """See `Authenticator`."""
        name = _name_of(user)
        found = await self._user(name)
        if found is None or not found.verifier:
            return ScramVerifier.of_nobody(name, self._nobody)
        return ScramVerifier.parse(found.verifier)

    async def principal(self, user: str, proved: ScramVerifier | None = None) -> Principal:
        """See `Authenticator`."""
        found = await self._user(_name_of(user))
        if found is None or (proved is not None and str(proved) != found.verifier):
            raise AccessRefused(NOT_PROVED)
        return found.principal

    async def session(
        self, user: str, proved: ScramVerifier | None = None, made_ms: int | None = None
    ) -> str:
        """See `Authenticator`."""
        expires_ms = self._clock.wall_ms() + SESSION_MS
        known = await self.principal(user, proved)
        if made_ms not in (None, known.made_ms):
            raise AccessRefused(f"{known.name} is another user now: log in")
        return sign(Claims(SESSION, known.name, expires_ms, (), known.made_ms), self._keys()[0])

    async def _user(self, name: str) -> User | None:
        return await self._lately(("user", name), lambda: self.rows.user(name))

    def _has_proved(self, name: str, verifier: ScramVerifier, digest: bytes) -> bool:
        """Whether this password was right before, with the verifier that the user has now."""
        oldest_s = self._clock.monotonic() - PROVED_S
        while self._proved and next(iter(self._proved.values())).shown_s < oldest_s:
            del self._proved[next(iter(self._proved))]
        kept = self._proved.get(name)
        if kept is None or kept.verifier != verifier:
            return False
        return hmac.compare_digest(kept.digest, digest)

    def _keep_proved(self, name: str, proved: _Proved) -> None:
        self._proved.pop(name, None)
        while len(self._proved) >= _KEPT_MAX:
            del self._proved[next(iter(self._proved))]
        self._proved[name] = proved

    async def _lately(self, what: Hashable, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """A cached answer, looked up again if it is old.

        Raises `MetadataUnavailable` if that takes longer than `WAIT_S`, and what `ask` raises.
        """
        now_s = self._clock.monotonic()
        kept = self._kept.get(what)
        age_s = math.inf if kept is None else now_s - kept[0]
        if kept is not None and age_s <= FRESH_S:
            if age_s > FRESH_S / 2:
                self._looking(what, ask, now_s)
            return kept[1]  # type: ignore[no-any-return]
        looking = self._looking(what, ask, now_s)
        if kept is None or age_s > STALE_S:
            await asyncio.wait((looking.task,), timeout=WAIT_S)
            if not looking.task.done():
                raise MetadataUnavailable(
                    f"users could not be looked up within {WAIT_S:g} s: the tablespace {SYSTEM} "
                    "has no leader, or it does not answer; try again in a moment"
                )
            return looking.task.result()  # type: ignore[no-any-return]
        left_s = max(0.0, looking.begun_s + PATIENCE_S - now_s)
        await asyncio.wait((looking.task,), timeout=left_s)
        if not looking.task.done() or isinstance(looking.task.exception(), Unavailable):
            return kept[1]  # type: ignore[no-any-return]
        return looking.task.result()  # type: ignore[no-any-return]

    def _looking(
        self, what: Hashable, ask: Callable[[], Coroutine[Any, Any, T]], now_s: float
    ) -> _Looking:
        """Those who ask for one thing at the same time share the look at it.

        It goes on to its end, whoever waits for it no more.
        """
        looking = self._asking.get(what)
        if looking is None:
            task = asyncio.ensure_future(self._look(what, ask, now_s))
            looking = self._asking[what] = _Looking(task, now_s)
            task.add_done_callback(lambda done: self._looked(what, done))
        return looking

    async def _look(
        self, what: Hashable, ask: Callable[[], Coroutine[Any, Any, T]], now_s: float
    ) -> T:
        found = await ask()
        self._kept.pop(what, None)
        if len(self._kept) >= _KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[what] = now_s, found
        return found

    def _looked(self, what: Hashable, done: "asyncio.Future[Any]") -> None:
        del self._asking[what]
        if not done.cancelled():
            # Nobody may have waited for it.
            done.exception()


def own_key() -> bytes:
    """A key for tokens that only this process signs and takes."""
    return ssl.RAND_bytes(_NOBODY_BYTES)


def _name_of(user: str) -> str:
    """A name in the form in which it is kept; one that none can have stays, and is not found."""
    try:
        return prepared_name(user)
    except InvalidRequest:
        return user[:256]
