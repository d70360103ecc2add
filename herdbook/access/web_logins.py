"""Users of a store at the broker's own HTTP: by HTTP Basic, or by a bearer token.

Invariants:
- Who comes without either is let in only while the store has no users.
"""

from typing import Final

from starlette.requests import Request

from broker.access import Asking
from broker.errors import BrokerUnavailable
from broker.http.logins import credentials
from engine.access.port import Authenticator
from engine.errors import AccessRefused, EngineError

_BEARER: Final = "bearer "


class StoreLogins:
    """A `broker.http.logins.Doorkeeper` over an authenticator."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def asking(self, request: Request) -> Asking | None:
        """See `Doorkeeper`."""
        header = request.headers.get("authorization", "")
        known = self._authenticator
        try:
            if not header:
                principal = await known.anonymous()
            elif header.lower().startswith(_BEARER):
                principal = await known.token(header[len(_BEARER) :].strip())
            else:
                principal = await known.password(*credentials(header))
        except AccessRefused:
            return None
        except EngineError as error:
            raise BrokerUnavailable(str(error)) from error
        return Asking.of(principal)
