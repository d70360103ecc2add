"""A folder behind the node's application, asked without a socket, and by one that is real.

Invariants:
- One folder for a process of tests: each test uses names of its own in it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from starlette.types import ASGIApp

from engine.access.audit import NO_AUDIT, Audit
from engine.access.principal import KINDS, Grant, Principal
from engine.access.scram import ScramVerifier
from engine.errors import AccessRefused
from engine.ports.system_loop import BackgroundLoop, background_loop
from herdbook.book import open_async
from herdbook.http import House, WebSettings, create_app, house_of
from herdbook.http_listening import answer_at, listening_at
from herdbook.metrics import PrometheusMetrics

API: Final = "/api/v1"


@dataclass(slots=True)
class Users:
    """Knows users by their passwords, and tokens by their users."""

    passwords: dict[str, str]
    principals: dict[str, Principal]
    tokens: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    """How often a password or a token was looked at."""

    async def anonymous(self) -> Principal:
        """There are users, so nobody is let in without a name."""
        raise AccessRefused("log in first")

    async def password(self, user: str, password: str) -> Principal:
        """See `Authenticator`."""
        self.asked += 1
        await asyncio.sleep(0)
        if self.passwords.get(user) != password:
            raise AccessRefused("user or password is wrong")
        return self.principals[user]

    async def token(self, token: str) -> Principal:
        """See `Authenticator`."""
        self.asked += 1
        if token not in self.tokens:
            raise AccessRefused("no such token")
        return self.principals[self.tokens[token]]

    async def scram(self, user: str) -> ScramVerifier:
        """See `Authenticator`."""
        raise AccessRefused("not over HTTP")

    async def principal(self, user: str, proved: ScramVerifier | None = None) -> Principal:
        """See `Authenticator`."""
        if user not in self.principals:
            raise AccessRefused("no such user")
        return self.principals[user]

    async def session(
        self, user: str, proved: ScramVerifier | None = None, made_ms: int | None = None
    ) -> str:
        """See `Authenticator`."""
        raise AccessRefused("not over HTTP")


def users() -> Users:
    """An administrator, one who has a bucket, a tablespace and a tenant, one who may only look."""
    principals = {
        "elsa": Principal("elsa", admin=True),
        "alma": Principal("alma", grants=tuple(Grant(kind, "alma", "write") for kind in KINDS)),
        "rita": Principal("rita", grants=tuple(Grant(kind, "alma", "read") for kind in KINDS)),
        "stranger": Principal("stranger", grants=tuple(Grant(k, "other", "admin") for k in KINDS)),
        "nobody": Principal("nobody"),
    }
    return Users({name: f"{name}-moo" for name in principals}, principals, {"t" * 32: "alma"})


@dataclass(slots=True)
class Asker:
    """Asks an application as one caller; keeps cookies as a browser does."""

    loop: BackgroundLoop
    app: ASGIApp
    auth: tuple[str, str] | None = None
    peer: str = "127.0.0.1"
    host: str = "http://localhost"
    cookies: httpx.Cookies = field(default_factory=httpx.Cookies)

    def __call__(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> httpx.Response:
        """A reply, whole."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, client=(self.peer, 1_234))
            async with httpx.AsyncClient(
                transport=transport, base_url=self.host, auth=self.auth, cookies=self.cookies
            ) as client:
                reply = await client.request(method, path, headers=headers, **more)
                self.cookies = client.cookies
                return reply

        return self.loop.run(ask)

    def json(self, method: str, path: str, *, expect: int = 200, **more: Any) -> Any:
        """The JSON of a reply of that status, of a path below `/api/v1`."""
        reply = self(method, API + path, **more)
        assert reply.status_code == expect, (reply.status_code, reply.text)
        return reply.json()

    def sql(self, tablespace: str, text: str, *, expect: int = 200, **more: Any) -> Any:
        """What a statement answers."""
        path = f"/tablespaces/{tablespace}/query"
        return self.json("POST", path, json={"sql": text, **more}, expect=expect)


class Node:
    """A folder that is open, its applications, and where the open one listens."""

    def __init__(self, folder: Path) -> None:
        self.loop = background_loop()
        self.users = users()
        self.metrics = PrometheusMetrics()
        self._stack = AsyncExitStack()
        self.house: House = self.loop.run(lambda: self._open(folder))
        self.url = self.loop.run(self._listen)

    async def _open(self, folder: Path) -> House:
        opening = open_async(folder, metrics=self.metrics)
        book = await self._stack.enter_async_context(opening)
        house = await house_of(book, name="yard", metrics=self.metrics)
        self._stack.push_async_callback(house.chores.close)
        return house

    async def _listen(self) -> str:
        listening = self._stack.enter_context(listening_at("127.0.0.1:0"))
        self.served = create_app(self.house)
        await answer_at(self._stack, self.served, listening)
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    def app(
        self,
        authenticator: Users | None = None,
        settings: WebSettings | None = None,
        audit: Audit = NO_AUDIT,
    ) -> ASGIApp:
        """An application over the folder."""
        return self.loop.run(lambda: self._app(authenticator, settings, audit))

    async def _app(
        self, authenticator: Users | None, settings: WebSettings | None, audit: Audit
    ) -> ASGIApp:
        return create_app(
            self.house,
            authenticator,
            settings=settings,
            audit=audit,
            metrics=self.metrics.text,
        )

    def open(self, settings: WebSettings | None = None) -> Asker:
        """Asks where everybody may do everything."""
        return Asker(self.loop, self.app(settings=settings))

    def closed(
        self, user: str = "", settings: WebSettings | None = None, audit: Audit = NO_AUDIT
    ) -> Asker:
        """Asks where there are users, as one of them."""
        auth = (user, f"{user}-moo") if user else None
        return Asker(self.loop, self.app(self.users, settings, audit), auth)

    def close(self) -> None:
        """Close the folder."""
        self.loop.run(self._stack.aclose)


def pieces(piece: bytes, count: int, between: Callable[[], None] = lambda: None) -> Any:
    """A body that comes in pieces, without its length."""

    async def come() -> AsyncIterator[bytes]:
        for _ in range(count):
            between()
            yield piece

    return come()
