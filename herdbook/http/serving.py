"""The node's HTTP on the real machine: over a folder, or as one of the servers of a cluster.

Any number of them may serve one store: they keep nothing but sessions of browsers.

Invariants:
- Without users only this machine is served, unless the settings allow more. A server that other
  machines can reach answers only requests about its health until there is a user.
- Requests that have arrived are answered before it ends.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.http.hosts import host_of
from engine.access.audit import Audit
from engine.access.port import Authenticator
from engine.errors import AccessRefused, EngineError, InvalidRequest
from engine.ports.metrics import Metrics
from engine.ports.switching import SWITCH_INTERVAL_S
from engine.ports.system_signals import ended_by_signals
from engine.transport.address import is_loopback, parse_host_port
from herd.errors import Error as StoreError
from herdbook.access.auditing import configured_audit
from herdbook.access.opening import keys_of, users_of
from herdbook.finding import find, is_cluster
from herdbook.http.app import Shell, create_app
from herdbook.http.errors import HttpError
from herdbook.http.house import house_of
from herdbook.http.rates import Sampler
from herdbook.http.settings import WebSettings
from herdbook.http_listening import answer_at, listening_at, url_of
from herdbook.metrics import PrometheusMetrics
from herdbook.process_measures import process_measured

if TYPE_CHECKING:
    from herdbook.book import AsyncBook
    from herdbook.connecting import AsyncCluster
    from herdbook.node.opening import OpenFolder

_LOGIN: Final = "/login?once="
_LOOK_S: Final = 1.0
_ANSWER_S: Final = 5.0
_RETRY_S: Final = 5
NO_USERS: Final = "this store has no users yet, and requests from other machines need a login"
ADD_USER: Final = "herdbook user add NAME --admin"
_logger: Final = logging.getLogger(__name__)
Knowing = Callable[["AsyncBook | AsyncCluster"], Awaitable[Authenticator | None]]
"""Who knows the users of a store that is open; None: it has none."""


@dataclass(frozen=True, slots=True)
class HttpServerSettings:
    """Where it listens, and whom it serves.

    `advertise` is the url by which others call it, `name` the store's name in the console; "":
    the last part of its url. `proxies` are addresses and networks whose `X-Forwarded-For` is
    trusted. All other settings are in `web`.
    """

    listen: str = "127.0.0.1:7380"
    advertise: str = ""
    name: str = ""
    certificate: Path | None = None
    private_key: Path | None = None
    insecure: bool = False
    proxies: tuple[str, ...] = ()
    web: WebSettings = field(default_factory=WebSettings)

    @property
    def tls(self) -> tuple[Path | None, Path | None]:
        """The certificate and its key."""
        return self.certificate, self.private_key


@dataclass(frozen=True, slots=True)
class Served:
    """Where it serves. `login_url` logs in one time, if a ticket was given; it is a secret."""

    url: str
    login_url: str = field(default="", repr=False)


async def serve_http(
    url: str | None,
    settings: HttpServerSettings,
    authenticator: "Authenticator | Knowing | None" = users_of,
    *,
    opened: "OpenFolder | None" = None,
    audit: Audit | None = None,
    lacking: Callable[[], str] | None = None,
    started: Callable[[Served], None] | None = None,
    ended: asyncio.Event | None = None,
) -> None:
    """Serve until `ended` is set; without one, until SIGTERM or SIGINT.

    `url` names the store, as everywhere. `authenticator` knows its users, or finds them once the
    store is open; by default the store's own rows are used. None: everybody may do everything.
    `opened` is the folder, if this process already has it open. `audit` None: as configured.
    `lacking` returns which other parts of this node do not serve. `started` is called when it
    serves, even if it still waits for the first user. Raises `InvalidRequest`, `StoreNotFound`, and
    what opening raises.
    """
    check_listener(settings)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    ended = ended if ended is not None else ended_by_signals()
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(listening_at(settings.listen))
        book, metrics = await stack.enter_async_context(_opened(url, opened))
        if callable(authenticator):
            authenticator = await authenticator(book)
        house = await house_of(book, name=settings.name, metrics=metrics)
        stack.push_async_callback(house.chores.close)
        house.chores.begin("rates", Sampler(house).run())
        secure = settings.certificate is not None
        address = settings.advertise or url_of(settings.listen, listening, secure=secure)
        app = create_app(
            house,
            authenticator,
            settings=_web(settings, address),
            audit=configured_audit("http") if audit is None else audit,
            metrics=getattr(metrics, "text", None),
            lacking=lacking,
            keys=keys_of(getattr(book, "path", "")),
        )
        if needs_users(settings):
            first = FirstUser(app, authenticator, settings.listen)
            if not await first.there():
                house.chores.begin("first user", first.wait())
        await answer_at(stack, app, listening, *settings.tls, proxies=settings.proxies)
        if started is not None:
            started(_served(address, settings.web.once))
        await ended.wait()


@asynccontextmanager
async def _opened(
    url: str | None, opened: "OpenFolder | None"
) -> "AsyncIterator[tuple[AsyncBook | AsyncCluster, Metrics]]":
    if opened is not None:
        yield opened.book, opened.metrics
        return
    found, metrics = find(url, os.environ), PrometheusMetrics()
    if is_cluster(found):
        from herdbook.connecting import connect_async

        opening: AbstractAsyncContextManager[AsyncBook | AsyncCluster] = connect_async(
            found, metrics=metrics
        )
    else:
        from herdbook.book import open_async

        opening = open_async(Path(found), metrics=metrics)
    with process_measured(metrics):
        async with opening as book:
            yield book, metrics


def _served(address: str, once: str) -> Served:
    return Served(address, f"{address}{_LOGIN}{once}" if once else "")


def _web(settings: HttpServerSettings, address: str) -> WebSettings:
    """The settings of the application: it is known by the names that it is called by."""
    called = host_of(address.partition("//")[2].partition("/")[0])
    listens = host_of(settings.listen)
    return replace(
        settings.web,
        names=(*settings.web.names, called, listens),
        secure=settings.certificate is not None or settings.web.secure,
        open=settings.insecure or settings.web.open,
    )


def check_listener(settings: HttpServerSettings) -> None:
    """Raise `InvalidRequest` if passwords could be read on the network."""
    if (settings.certificate is None) != (settings.private_key is None):
        raise InvalidRequest("a certificate and its private key come together")
    host, _ = parse_host_port(settings.listen)
    secure = settings.certificate is not None or settings.web.secure
    if not (secure or settings.insecure or is_loopback(host)):
        raise InvalidRequest(
            f"what is sent to {settings.listen} could be read on its way, passwords too: give a "
            "certificate and its private key, listen at 127.0.0.1 behind a proxy, or say "
            "--insecure"
        )


def needs_users(settings: HttpServerSettings) -> bool:
    """Whether other machines can reach it, so that it serves nobody until there is a user."""
    host, _ = parse_host_port(settings.listen)
    return not (settings.insecure or is_loopback(host))


class FirstUser:
    """Keeps an application closed until its store has a user."""

    def __init__(self, app: Shell, authenticator: Authenticator | None, listen: str) -> None:
        """Raises `InvalidRequest` without an authenticator: there would never be a user."""
        if authenticator is None:
            raise InvalidRequest(
                f"anybody who can reach {listen} could do everything: listen at 127.0.0.1, or say "
                "--insecure"
            )
        self._app = app
        self._authenticator = authenticator
        self._listen = listen

    async def there(self) -> bool:
        """Whether there is a user; opens or closes the application accordingly."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._authenticator.anonymous()
        except AccessRefused:
            self._app.closed = None
            return True
        except (EngineError, StoreError, TimeoutError) as error:
            reason = " ".join(str(error).split()) or "the store does not answer"
            why = f"the users of this store cannot be read yet: {reason}"
            self._app.closed = HttpError(503, "users_unknown", why, retry_s=_RETRY_S)
        else:
            self._app.closed = HttpError(
                503, "no_users", NO_USERS, remedy=ADD_USER, retry_s=_RETRY_S
            )
        return False

    async def wait(self) -> None:
        """Wait until there is a user, and the application is open."""
        told = ""
        while not await self.there():
            closed = self._app.closed
            if closed is not None and closed.code != told:
                told = closed.code
                remedy = f": {closed.remedy}" if closed.remedy else ""
                _logger.warning(
                    "HTTP at %s serves nobody yet: %s%s", self._listen, closed.message, remedy
                )
            await asyncio.sleep(_LOOK_S)
        _logger.info("HTTP at %s serves now: there is a user", self._listen)
