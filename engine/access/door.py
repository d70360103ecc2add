"""What a server asks of those who come without the shared secret, and what it knows of them later.

Invariants:
- Whoever is let in is looked at again and again, as long as they stay: what is revoked, or has
  expired, ends within `CHECK_S` and what the authenticator's answers may be old.
- A refusal is noted once, where it is decided; of a login that succeeds, that it did.
- Whoever guesses at a password waits ever longer, however they reach the door.
"""

import hashlib
import ssl
from base64 import b64encode
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from typing import Final, Protocol

from engine.access.audit import NO_AUDIT, Audit, host_of
from engine.access.guesses import Guesses
from engine.access.port import Authenticator
from engine.access.principal import EVERYBODY, NODE, Principal
from engine.access.scram import ScramVerifier
from engine.access.tokens import READ, Keys, is_signed, verify
from engine.errors import AccessRefused, EngineError
from engine.ports.clock import Clock

CHECK_S: Final = 2.0
_NONCE_BYTES: Final = 18
_CAME_MAX: Final = 10_000


class Caller:
    """Who speaks over a connection or in a call. Those who are known by the secret never change."""

    __slots__ = ("principal",)

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        """What they may, as it was a moment ago."""

    @property
    def passing(self) -> bool:
        """Whether they may be sent away later on: ask `now` from time to time."""
        return False

    @property
    def only_reads(self) -> bool:
        """Whether they showed a read token, which is only for bookies and metadata."""
        return False

    async def now(self) -> Principal:
        """What they may now. Raises `AccessRefused` where they are not welcome any more."""
        return self.principal

    async def onward(self) -> str:
        """The token by which a node passes a call on in their name; "": in its own."""
        return ""


BY_SECRET: Final = Caller(NODE)
BY_ANYBODY: Final = Caller(EVERYBODY)
NOBODY: Final = Caller(Principal("nobody"))

CALLER: Final[ContextVar[Caller]] = ContextVar("caller", default=NOBODY)
"""Who makes the call that is answered, where calls have no connection: set before it is."""


class Door(Protocol):
    """Who is let in without the secret. Each raises `AccessRefused`, or what looking up raises."""

    audit: Audit
    """Hears of logins, and of what was refused."""

    async def verifier(self, user: str, peer: str) -> ScramVerifier:
        """What a user's proof is judged by. Raises `TooManyTries` for who has to wait."""
        ...

    def judging(self, user: str, peer: str) -> AbstractContextManager[None]:
        """A block that judges a user's proof. Raises `TooManyTries` for who has to wait."""
        ...

    async def by_proof(self, user: str, peer: str, proved: ScramVerifier) -> Caller:
        """A user who has proved their password; `proved` is the verifier used to check it."""
        ...

    async def by_token(self, token: str, peer: str) -> Caller:
        """Who shows a token."""
        ...

    async def by_call(self, token: str) -> Caller:
        """Who shows a token with each call."""
        ...

    async def without_credentials(self) -> Caller | None:
        """A caller without credentials, if there is no secret; None: credentials are required."""
        ...

    async def session(self, user: str, peer: str, proved: ScramVerifier) -> str:
        """A token for a user who has proved their password, for calls without a connection."""
        ...

    def refused(self, who: str, peer: str, error: EngineError) -> None:
        """Note that somebody was not let in."""
        ...


class UserDoor:
    """Lets users in, by password or by token.

    Without a secret, callers without credentials are let in while there are no users, unless the
    door is `closed` to them. `readers` lets in holders of read tokens, but only over connections.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        audit: Audit,
        where: str,
        guesses: Guesses,
        *,
        closed: bool = False,
        readers: "ReaderDoor | None" = None,
    ) -> None:
        self.authenticator = authenticator
        self._closed = closed
        self._readers = readers
        self.audit = audit
        self.guesses = guesses
        self.where = where
        """What the audit calls this door."""
        self._came: dict[bytes, None] = {}

    async def verifier(self, user: str, peer: str) -> ScramVerifier:
        """See `Door`."""
        self.guesses.check(host_of(peer), user)
        return await self.authenticator.scram(user)

    def judging(self, user: str, peer: str) -> AbstractContextManager[None]:
        """See `Door`."""
        return self.guesses.trying(host_of(peer), user)

    async def by_proof(self, user: str, peer: str, proved: ScramVerifier) -> Caller:
        """See `Door`."""
        return self._welcome(await self.authenticator.principal(user, proved), "", peer)

    async def by_token(self, token: str, peer: str) -> Caller:
        """See `Door`."""
        if self._readers is not None:
            with suppress(AccessRefused):
                reader = self._readers.reader(token)
                who = reader.principal.name
                self.audit.note(who, "show a read token", self.where, allowed=True, peer=peer)
                return reader
        return self._welcome(await self.authenticator.token(token), token, peer)

    async def by_call(self, token: str) -> Caller:
        """See `Door`. A token is noted when it first comes, not with each call."""
        principal = await self.authenticator.token(token)
        came = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        if came not in self._came:
            if len(self._came) >= _CAME_MAX:
                del self._came[next(iter(self._came))]
            self._came[came] = None
            if not is_signed(token):
                self.audit.note(principal.name, "log in by token", self.where, allowed=True)
        return _User(self.authenticator, principal, token)

    async def without_credentials(self) -> Caller | None:
        """See `Door`."""
        if self._closed:
            return None
        try:
            return _Anonymous(self.authenticator, await self.authenticator.anonymous())
        except AccessRefused:
            return None

    async def session(self, user: str, peer: str, proved: ScramVerifier) -> str:
        """See `Door`."""
        token = await self.authenticator.session(user, proved)
        self.audit.note(user, "log in", self.where, allowed=True, peer=peer)
        return token

    def refused(self, who: str, peer: str, error: EngineError) -> None:
        """See `Door`."""
        self.audit.note(who, "log in", self.where, allowed=False, why=str(error), peer=peer)

    def _welcome(self, principal: Principal, token: str, peer: str) -> Caller:
        how = "log in by token" if token else "log in"
        self.audit.note(principal.name, how, self.where, allowed=True, peer=peer)
        return _User(self.authenticator, principal, token)


class _User(Caller):
    """A user: asked for again by the token that was shown, which may be revoked by itself."""

    __slots__ = ("_authenticator", "_token")

    def __init__(self, authenticator: Authenticator, principal: Principal, token: str) -> None:
        super().__init__(principal)
        self._authenticator = authenticator
        # One that a login gave is for the way from there to here; the user counts from now on.
        self._token = "" if is_signed(token) else token

    @property
    def passing(self) -> bool:
        """See `Caller`."""
        return True

    async def now(self) -> Principal:
        """See `Caller`."""
        if self._token:
            found = await self._authenticator.token(self._token)
        else:
            found = await self._authenticator.principal(self.principal.name)
        if found.made_ms != self.principal.made_ms:
            raise AccessRefused(f"{found.name} is another user now: log in")
        self.principal = found
        return found

    async def onward(self) -> str:
        """See `Caller`."""
        known = await self.now()
        return await self._authenticator.session(known.name, made_ms=known.made_ms)


class _Anonymous(Caller):
    """A caller without credentials, who is let in as long as there are no users."""

    __slots__ = ("_authenticator",)

    def __init__(self, authenticator: Authenticator, principal: Principal) -> None:
        super().__init__(principal)
        self._authenticator = authenticator

    @property
    def passing(self) -> bool:
        """See `Caller`."""
        return True

    async def now(self) -> Principal:
        """See `Caller`."""
        self.principal = await self._authenticator.anonymous()
        return self.principal


class ReaderDoor:
    """Lets holders of read tokens in, and nobody else: a bookie's door."""

    def __init__(self, keys: Keys, clock: Clock, audit: Audit = NO_AUDIT) -> None:
        self._keys = keys
        self._clock = clock
        self.audit = audit

    async def verifier(self, user: str, peer: str) -> ScramVerifier:
        """See `Door`: users are strangers here."""
        raise AccessRefused("users do not log in at a bookie: show a read token")

    def judging(self, user: str, peer: str) -> AbstractContextManager[None]:
        """See `Door`."""
        raise AccessRefused("users do not log in at a bookie: show a read token")

    async def by_proof(self, user: str, peer: str, proved: ScramVerifier) -> Caller:
        """See `Door`."""
        raise AccessRefused("users do not log in at a bookie: show a read token")

    async def by_token(self, token: str, peer: str) -> Caller:
        """See `Door`."""
        return self.reader(token)

    async def by_call(self, token: str) -> Caller:
        """See `Door`."""
        return self.reader(token)

    async def without_credentials(self) -> Caller | None:
        """See `Door`."""
        return BY_ANYBODY

    async def session(self, user: str, peer: str, proved: ScramVerifier) -> str:
        """See `Door`."""
        raise AccessRefused("users do not log in at a bookie: show a read token")

    def reader(self, token: str) -> Caller:
        """Who holds a read token. Raises `AccessRefused`."""
        reader = _Reader(self, token)
        reader.look()
        return reader

    def look(self, token: str) -> Principal:
        """What a read token lets its holder read now. Raises `AccessRefused`."""
        return verify(token, self._keys(), READ, self._clock.wall_ms()).principal()

    def refused(self, who: str, peer: str, error: EngineError) -> None:
        """See `Door`."""
        self.audit.note(who, "log in", "bookie", allowed=False, why=str(error), peer=peer)


class _Reader(Caller):
    __slots__ = ("_door", "_token")

    def __init__(self, door: ReaderDoor, token: str) -> None:
        super().__init__(Principal(""))
        self._door = door
        self._token = token

    @property
    def passing(self) -> bool:
        """See `Caller`."""
        return True

    @property
    def only_reads(self) -> bool:
        """See `Caller`."""
        return True

    def look(self) -> Principal:
        """`now`, for who cannot wait."""
        self.principal = self._door.look(self._token)
        return self.principal

    async def now(self) -> Principal:
        """See `Caller`."""
        return self.look()


def new_nonce() -> str:
    """Text that nobody can foresee, for one exchange."""
    return b64encode(ssl.RAND_bytes(_NONCE_BYTES)).decode()
