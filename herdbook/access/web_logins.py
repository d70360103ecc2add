"""Logins of users of a store, or of a file, over the broker's own HTTP: Basic or bearer token.

Invariants:
- A request without either is accepted only while the store has no users.
- Logins go through the gate of a node's HTTP: guesses are slowed down, and refusals are recorded.
"""

from starlette.requests import Request
from starlette.responses import Response

from broker.access import Asking
from broker.errors import BrokerUnavailable
from broker.http.logins import Logins, User
from engine.access.principal import Grant, Principal
from engine.access.scram import NOT_PROVED, ScramVerifier
from engine.errors import AccessRefused, EngineError
from engine.ports.renewing import Renewed
from herdbook.http.errors import HttpError
from herdbook.http.gate import Gate


class FileUsers:
    """An `engine.access.port.Authenticator` over the users of a file, who have no tokens.

    A user who is not an administrator has the tenant with the user's name.
    """

    def __init__(self, users: tuple[User, ...] | Renewed[tuple[User, ...]]) -> None:
        self._users = users
        self._known: tuple[User, ...] = ()
        self._found = Logins()

    @property
    def _logins(self) -> Logins:
        users = self._users.value if isinstance(self._users, Renewed) else self._users
        if users is not self._known:
            self._known, self._found = users, Logins(users)
        return self._found

    async def anonymous(self) -> Principal:
        """See `Authenticator`."""
        raise AccessRefused("log in: this server has users")

    async def password(self, user: str, password: str) -> Principal:
        """See `Authenticator`."""
        found = self._logins.find(user, password)
        if found is None:
            raise AccessRefused(NOT_PROVED)
        return Principal(user, found.admin, (Grant("tenant", user, "write"),))

    async def token(self, token: str) -> Principal:
        """See `Authenticator`."""
        raise AccessRefused("users of a file have no tokens")

    async def scram(self, user: str) -> ScramVerifier:
        """See `Authenticator`."""
        raise AccessRefused("users of a file can log in only over HTTP")

    async def principal(self, user: str, proved: ScramVerifier | None = None) -> Principal:
        """See `Authenticator`."""
        raise AccessRefused("users of a file have no sessions")

    async def session(
        self, user: str, proved: ScramVerifier | None = None, made_ms: int | None = None
    ) -> str:
        """See `Authenticator`."""
        raise AccessRefused("users of a file have no sessions")


class StoreLogins:
    """A `broker.http.logins.Doorkeeper` over a gate.

    `owner` is whoever may read the store's files, an administrator; None: nobody may.
    """

    def __init__(self, gate: Gate, owner: User | None = None) -> None:
        self._gate = gate
        self._owner = None if owner is None else Logins([owner])

    async def asking(self, request: Request) -> Asking | Response | None:
        """See `Doorkeeper`."""
        if self._owner is not None:
            found = self._owner.asking(request)
            if found is not None:
                return found
        try:
            caller = await self._gate.caller(request)
        except HttpError as error:
            return None if error.status == 401 else error.reply
        except EngineError as error:
            raise BrokerUnavailable(str(error)) from error
        return Asking.of(caller.principal)
