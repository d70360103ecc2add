"""A broker in memory behind its application, asked without a socket.

Invariants:
- Every reply is what a client of the network would get, headers included.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from broker.http import HttpSettings, Logins, Relay, User, create_app, desk_of
from broker.service import Broker
from tests.broker.service.yard import opened

ELSA = User("elsa", "moo", admin=True)
ACME = User("acme", "ox")


class Client:
    """Asks an application."""

    def __init__(self, app: Any, broker: Broker | None = None, login: User | None = None) -> None:
        self.app = app
        self._broker = broker
        auth = (login.name, login.password) if login else None
        transport = httpx.ASGITransport(app=app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost", auth=auth)

    @property
    def broker(self) -> Broker:
        """The broker behind it."""
        assert self._broker is not None
        return self._broker

    def as_user(self, login: User) -> "Client":
        """The same application, asked by a user."""
        return Client(self.app, self._broker, login)

    async def ask(
        self, method: str, path: str, body: Any = None, *, expect: int = 200, **query: Any
    ) -> Any:
        """The JSON of a reply of that status."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        reply = await self.http.request(method, path, content=content, params=query or None)
        assert reply.status_code == expect, (reply.status_code, reply.text)
        return reply.json()

    async def v1(
        self, method: str, path: str, body: Any = None, *, expect: int = 200, **query: Any
    ) -> Any:
        """The same below `/api/v1`."""
        return await self.ask(method, f"/api/v1{path}", body, expect=expect, **query)

    async def view(self, name: str, **query: Any) -> Any:
        """A view of the published interface."""
        return await self.ask("GET", "/majordodo", view=name, **query)

    async def act(self, action: str, **fields: Any) -> Any:
        """An action of the published interface."""
        return await self.ask("POST", "/majordodo", {"action": action, **fields})


@asynccontextmanager
async def asked(
    *users: User, settings: HttpSettings | None = None, relay: Relay | None = None
) -> AsyncIterator[Client]:
    """The only replica of a broker, asked by the first of its users, if there are any."""
    async with opened() as broker:
        app = create_app(
            desk_of(broker), Logins(users), settings=settings, relay=relay, names=("leader",)
        )
        yield Client(app, broker, users[0] if users else None)
