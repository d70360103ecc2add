"""Users of a store at the broker's own HTTP: by HTTP Basic, or by a bearer token.

Invariants:
- Who comes without either is let in only while the store has no users.
- Logins go through the gate of a node's HTTP: who guesses waits, and refusals are noted.
"""

from starlette.requests import Request
from starlette.responses import Response

from broker.access import Asking
from broker.errors import BrokerUnavailable
from broker.http.logins import Logins, User
from engine.errors import EngineError
from herdbook.http.errors import HttpError
from herdbook.http.gate import Gate


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
