"""Users in memory: an authenticator for tests of doors, with the real SCRAM and the real tokens."""

from engine.access.audit import Event
from engine.access.door import UserDoor
from engine.access.guesses import Guesses
from engine.access.principal import EVERYBODY, Grant, Kind, Principal, Right
from engine.access.scram import ITERATIONS_MIN, NOT_PROVED, ScramVerifier
from engine.access.tokens import SESSION, SESSION_MS, Claims, is_signed, key_of, sign, verify
from engine.errors import AccessRefused, MetadataUnavailable
from engine.ports.clock import Clock, SystemClock

SECRET = b"the cows come home at six"
KEY = key_of(SECRET)


def user(name: str, *grants: tuple[Kind, str, Right], admin: bool = False) -> Principal:
    """A user, by what they were granted."""
    return Principal(name, admin, tuple(Grant(*grant) for grant in grants))


class KnownUsers:
    """Users by name; their password is their name and "'s word", their token "token-" and it."""

    def __init__(self, *users: Principal, clock: Clock | None = None) -> None:
        self.users = {each.name: each for each in users}
        self.reachable = True
        self.asked: list[str] = []
        self._clock = clock or SystemClock()
        self._verifiers = {each.name: verifier(f"{each.name}'s word") for each in users}

    def give_password(self, user: str, password: str) -> None:
        """Give a user another password."""
        self._verifiers[user] = verifier(password)

    async def anonymous(self) -> Principal:
        """See `Authenticator`."""
        self._ask("anonymous")
        if self.users:
            raise AccessRefused("log in: this store has users")
        return EVERYBODY

    async def password(self, user: str, password: str) -> Principal:
        """See `Authenticator`."""
        if not (await self.scram(user)).fits(password):
            raise AccessRefused(NOT_PROVED)
        return await self.principal(user)

    async def token(self, token: str) -> Principal:
        """See `Authenticator`."""
        if is_signed(token):
            return await self.principal(verify(token, (KEY,), SESSION, self._clock.wall_ms()).user)
        return await self.principal(token.removeprefix("token-"))

    async def scram(self, user: str) -> ScramVerifier:
        """See `Authenticator`."""
        self._ask(f"scram {user}")
        return self._verifiers.get(user) or ScramVerifier.of_nobody(user, KEY, ITERATIONS_MIN)

    async def principal(self, user: str, proved: ScramVerifier | None = None) -> Principal:
        """See `Authenticator`."""
        self._ask(f"principal {user}")
        if user not in self.users or (proved and proved != self._verifiers[user]):
            raise AccessRefused(NOT_PROVED)
        return self.users[user]

    async def session(
        self, user: str, proved: ScramVerifier | None = None, made_ms: int | None = None
    ) -> str:
        """See `Authenticator`."""
        expires_ms = self._clock.wall_ms() + SESSION_MS
        known = await self.principal(user, proved)
        if made_ms not in (None, known.made_ms):
            raise AccessRefused(NOT_PROVED)
        return sign(Claims(SESSION, known.name, expires_ms), KEY)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if not self.reachable:
            raise MetadataUnavailable("users cannot be looked up")


class KeptAudit:
    """Keeps events in a list."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def note(
        self, who: str, what: str, where: str, *, allowed: bool, why: str = "", peer: str = ""
    ) -> None:
        """See `Audit`."""
        self.events.append(
            Event(at_ms=0, who=who, what=what, where=where, allowed=allowed, why=why, peer=peer)
        )


def door_of(users: KnownUsers, audit: KeptAudit | None = None) -> UserDoor:
    """A door that knows these users."""
    return UserDoor(users, audit or KeptAudit(), "test", Guesses(SystemClock()))


_VERIFIERS: dict[str, ScramVerifier] = {}


def verifier(password: str) -> ScramVerifier:
    """The verifier of a password, made once."""
    if password not in _VERIFIERS:
        salt = password.encode().ljust(16, b"-")[:16]
        made = ScramVerifier.of(password, salt=salt, iterations=ITERATIONS_MIN)
        _VERIFIERS[password] = made
    return _VERIFIERS[password]
