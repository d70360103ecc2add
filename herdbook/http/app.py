"""The application: the broker's interfaces, the store's, objects, health, metrics and the console.

    app = create_app(await house_of(book), authenticator)

Any ASGI server runs it, on the loop of its store.

Invariants:
- Every path goes through the gate; what needs no login says so by its route.
- Every reply forbids what its kind does not need: pages of the console have a policy of their own,
  everything else may do nothing at all in a browser.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as Place
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker.access import Asking
from broker.errors import InvalidTask
from broker.http.app import ROUTES as BROKER_ROUTES
from broker.http.app import places_of
from broker.http.bodies import Bodies, BodyLate, HttpSettings
from broker.http.front import (
    Front,
    converted,
    decoded,
    json_reply,
    note_user,
    queried,
    told_error,
    user_of,
)
from broker.http.openapi import PREFIX
from broker.http.routes import Told
from engine.access.audit import NO_AUDIT, Audit
from engine.access.port import Authenticator
from engine.access.principal import Principal
from engine.access.tokens import Keys
from herdbook.http import (
    buckets,
    cluster,
    health,
    ledgers,
    login,
    objects,
    openapi,
    quotas,
    rates,
    repair,
    tablespaces,
)
from herdbook.http.console import console_places
from herdbook.http.errors import KINDS, HttpError, reply_of
from herdbook.http.gate import Caller, Gate
from herdbook.http.house import House
from herdbook.http.routes import ADMIN, Ask, Need, Route
from herdbook.http.settings import WebSettings
from herdbook.http.transfers import LIMIT

ROUTES: Final[tuple[Route, ...]] = (
    *cluster.ROUTES,
    *ledgers.ROUTES,
    *repair.ROUTES,
    *tablespaces.ROUTES,
    *buckets.ROUTES,
    *quotas.ROUTES,
    *objects.ROUTES,
    *rates.ROUTES,
    *login.ROUTES,
    *openapi.ROUTES,
)
ASKING: Final = "herdbook.asking"
GATE: Final = "herdbook.gate"
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
_logger: Final = logging.getLogger(__name__)


def create_app(
    house: House,
    authenticator: Authenticator | None = None,
    *,
    settings: WebSettings | None = None,
    audit: Audit = NO_AUDIT,
    metrics: Callable[[], bytes] | None = None,
    lacking: Callable[[], str] | None = None,
    keys: Keys | None = None,
) -> "Shell":
    """The node's HTTP, as an ASGI application.

    `authenticator` None: everybody may do everything. `metrics` gives Prometheus's text, `lacking`
    what of this node does not serve. `keys` sign what browsers are recognized by.
    """
    settings = settings or WebSettings()
    gate = Gate(authenticator, settings, house.ledgers.clock, house.ledgers.rng, audit, keys=keys)
    door = Door(house, gate)
    places = [
        *health.places_of(house, metrics, door, lacking),
        *_broker_places(door),
        *_places(door, ROUTES),
        *console_places(gate),
    ]
    app = Starlette(routes=places, exception_handlers={HTTPException: _no_route})
    return Shell(app, gate)


class Anything(Convertor[str]):
    """The rest of a path, whatever it holds: objects may have any name, also of several lines."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        """See Starlette."""
        return value

    def to_string(self, value: str) -> str:
        """See Starlette."""
        return value


register_url_convertor("anything", Anything())


class Shell:
    """Wraps all paths: checks the requested host, and sets the headers of every reply.

    `closed`, if set, is the reply to every request that is not about the node's health.
    """

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self.gate = gate
        self.closed: HttpError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return
        request = Request(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.setdefault("headers", [])
                there = {name.lower() for name, _ in headers}
                for name, value in _HEADERS.items():
                    if name.encode() not in there:
                        headers.append((name.encode(), value.encode()))
            await send(message)

        try:
            if self.closed is not None and scope["path"] not in health.OPEN:
                raise self.closed
            self.gate.check_host(request)
            _check_path(scope)
        except HttpError as error:
            await error.reply(scope, receive, guarded)
            return
        scope[GATE] = self.gate
        await self.app(scope, receive, guarded)


def _check_path(scope: Scope) -> None:
    """Raise `HttpError` for bytes that are no text: they would name something else than meant."""
    try:
        unquote_to_bytes(scope.get("raw_path") or b"").decode()
    except UnicodeDecodeError:
        raise HttpError(400, "invalid_path", "the path is no UTF-8") from None


class Door:
    """Takes a request to its handler, through the gate."""

    def __init__(self, house: House, gate: Gate) -> None:
        self.house = house
        self.gate = gate
        self._bodies = Bodies(gate.settings.bounds)
        # Apart, and small: before a login strangers can fill nothing that others need.
        self._bodies_of_strangers = Bodies(
            HttpSettings(
                body_bytes_max=_STRANGERS_BODY_BYTES,
                bodies_bytes_max=64 * _STRANGERS_BODY_BYTES,
                body_timeout_ms=5_000,
            )
        )

    def asking(self, request: Request) -> Asking | None:
        """For the broker's routes: who asks, as `guarded` has found."""
        found: Asking | None = request.scope.get(ASKING)
        return found

    def guarded(
        self, needs: Mapping[str, Need], endpoint: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that runs for those only who may, by method."""

        async def answer(request: Request) -> Response:
            need = needs["GET" if request.method == "HEAD" else request.method]

            async def work(caller: Caller) -> Response:
                who = caller.principal
                self.gate.check_need(request, need, who, request.path_params, None)
                request.scope[ASKING] = Asking.of(who)
                return await endpoint(request)

            return await self._answered(request, need, work)

        return answer

    def serving(self, by_method: Mapping[str, Route]) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of the routes of one path."""

        async def answer(request: Request) -> Response:
            route = by_method["GET" if request.method == "HEAD" else request.method]

            async def work(caller: Caller) -> Response:
                return await self._handled(request, route, caller.principal)

            return await self._answered(request, route.need, work)

        return answer

    async def _answered(
        self, request: Request, need: Need, work: Callable[[Caller], Awaitable[Response]]
    ) -> Response:
        """What comes of a request: who asks is known first, then whether our page asks."""
        gate, changes = self.gate, request.method not in ("GET", "HEAD")
        caller: Caller | None = None
        try:
            gate.check_origin(request)
            caller = Caller(_NOBODY) if need.public else await gate.caller(request)
            note_user(request.scope, caller.principal.name, admin=caller.principal.admin)
            if changes:
                gate.check_token(request, caller)
            async with asyncio.timeout(gate.settings.request_timeout_ms / 1000) as limit:
                request.scope[LIMIT] = limit
                reply = await work(caller)
        except ClientDisconnect:
            reply = Response(status_code=400)
        except BodyLate:
            reply = told_error(408, "body_late", "the body did not come in time", retryable=True)
        except TimeoutError:
            reply = told_error(504, "late", "it took too long", remedy="look what came of it")
        except KINDS as error:
            reply = reply_of(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                raise
            # The server cancels requests that still run when it has to end.
            remedy = (
                "check whether the change was made" if changes else "try again, or ask another node"
            )
            reply = told_error(
                503, "node_ending", "the node is ending", retryable=not changes, remedy=remedy
            )
        except Exception:
            _logger.exception("%s %s", request.method, request.url.path)
            reply = told_error(500, "internal", "the node has a defect; its log says which")
        if changes and not need.public and caller is not None:
            gate.note_change(request, caller.principal.name, reply.status_code)
        return reply

    async def _handled(self, request: Request, route: Route, who: Principal) -> Response:
        query = None
        with _reading():
            path = {
                name: converted(value, route.kind_of(name), name)
                for name, value in request.path_params.items()
            }
            if route.query is not None:
                query = queried(request.query_params, route.query)
        named = route.need.of.startswith("body.")
        if not named:
            self.gate.check_need(request, route.need, who, path, None)
        if route.body is bytes:
            return await self._told(route, Ask(path, query, None, who, request))
        bodies = self._bodies_of_strangers if route.need.public else self._bodies
        async with bodies.of(request, "" if route.need.public else user_of(request.scope)) as raw:
            body = None
            if route.body is not None and (raw or not route.body_optional):
                with _reading():
                    body = decoded(raw, route.body)
            if named:
                self.gate.check_need(request, route.need, who, path, body)
            said = None
            if route.need.judge is not None:
                judged = await route.need.judge(self.house, body, who)
                right, said = judged.right or "admin", judged.said
                more = replace(route.need, right=right, admin=judged.right is None)
                self.gate.check_need(request, more, who, path, body)
            return await self._told(route, Ask(path, query, body, who, request, said))

    async def _told(self, route: Route, ask: Ask) -> Response:
        told = await route.handler(self.house, ask)
        if isinstance(told, Told):
            return json_reply(told.value, told.status)
        return told


@contextmanager
def _reading() -> Iterator[None]:
    """Around what a request says: what is wrong with that is no task's fault here."""
    try:
        yield
    except InvalidTask as error:
        raise HttpError(400, "invalid_request", error.message) from error


_STRANGERS_BODY_BYTES: Final = 4 * 1024
_NOBODY: Final = Principal("nobody")


def broker_needs() -> Iterator[tuple[str, str, Need]]:
    """Method, path and need of the broker's routes.

    Whose task it is they find out themselves: a tenant of the caller's, or it is not there.
    """
    reading, writing = Need("tenant", "read"), Need("tenant", "write")
    for route in BROKER_ROUTES:
        need = ADMIN if route.admin else reading if route.method == "GET" else writing
        yield route.method, PREFIX + route.path, need
    yield "GET", "/majordodo", reading
    yield "POST", "/majordodo", writing


def _broker_places(door: Door) -> list[Place]:
    """The broker's routes behind the gate."""
    front = Front(door.house.desk, door, door.gate.settings.bounds)
    needs: dict[str, dict[str, Need]] = {}
    for method, path, need in broker_needs():
        needs.setdefault(path.replace("{name}", "{name:path}"), {})[method] = need
    return [
        Place(
            place.path,
            door.guarded(needs[place.path], place.endpoint),
            methods=sorted(needs[place.path]),
        )
        for place in places_of(front)
    ]


def _places(door: Door, routes: Sequence[Route]) -> list[Place]:
    """One place for each path, so that a wrong method is told which are right."""
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    return [
        Place(
            PREFIX + path.replace("/objects/{name}", "/objects/{name:anything}"),
            door.serving(by_method),
            methods=list(by_method),
        )
        for path, by_method in by_path.items()
    ]


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        reply = told_error(405, "wrong_method", f"{request.method} is not for this path")
        reply.headers.update(error.headers or {})
        return reply
    return told_error(error.status_code, "no_such_path", f"there is nothing at {request.url.path}")
