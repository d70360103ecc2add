"""The application: routes of both interfaces, `/healthz`, `/metrics` and the OpenAPI document.

    app = create_app(desk_of(broker), Logins([User("elsa", "moo", admin=True)]))

Any ASGI server runs it, on the loop of its broker.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Place

from broker.access import Asking
from broker.http import rest_looking, rest_rollouts, rest_schedules, rest_settings, rest_tasks
from broker.http.bodies import HttpSettings
from broker.http.desk import CLOSED, Desk
from broker.http.front import Front, converted, decoded, json_reply, queried, told_error
from broker.http.hosts import HostCheck, Hosts
from broker.http.logins import Doorkeeper, Logins
from broker.http.openapi import PREFIX, document
from broker.http.original import answer_action, answer_view, refusing
from broker.http.relay import Relay
from broker.http.routes import Ask, Route

ROUTES: Final[tuple[Route, ...]] = (
    *rest_tasks.ROUTES,
    *rest_schedules.ROUTES,
    *rest_settings.ROUTES,
    *rest_looking.ROUTES,
    *rest_rollouts.ROUTES,
)
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LONG_POLL: Final = "wait_for_task"


def create_app(
    desk: Desk,
    logins: Doorkeeper | None = None,
    *,
    settings: HttpSettings | None = None,
    metrics: Callable[[], bytes] | None = None,
    relay: Relay | None = None,
    names: Iterable[str] = (),
) -> Starlette:
    """The broker's HTTP, as an ASGI application.

    `logins` None: everybody may do everything. `metrics` gives Prometheus's text. `relay` passes
    requests on to the leader where this broker does not lead. `names` are those by which it is
    asked, besides addresses and localhost: a request for another host is refused.
    """
    front = Front(desk, logins or Logins(), settings or HttpSettings(), relay)
    places = [
        *places_of(front),
        Place("/healthz", _health(desk), methods=["GET"]),
        Place("/metrics", _metrics(front, metrics), methods=["GET"]),
        Place(f"{PREFIX}/openapi.json", _document(front), methods=["GET"]),
    ]
    return Starlette(
        routes=places,
        middleware=[Middleware(HostCheck, hosts=Hosts(names))],
        exception_handlers={HTTPException: _no_route},
    )


def places_of(front: Front) -> list[Place]:
    """Both interfaces, for an application that has more than these."""
    original = Place("/majordodo", _original(front), methods=["GET", "POST"])
    return [original, *_places(front, ROUTES)]


def _places(front: Front, routes: Sequence[Route]) -> list[Place]:
    """One place for each path, so that a wrong method is told which are right.

    A name may have slashes: paths that go on after one come before those that end with it.
    """
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    return [
        Place(
            PREFIX + path.replace("{name}", "{name:path}"),
            _operations(front, by_method),
            methods=list(by_method),
        )
        for path, by_method in sorted(by_path.items(), key=lambda each: each[0].endswith("}"))
    ]


def _operations(front: Front, by_method: dict[str, Route]) -> Any:
    async def answer(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        route = by_method[method]

        async def work(request: Request, body: bytes, who: Asking) -> Response:
            return await _rest(front, route, request, body, who)

        return await front.serve(request, work)

    return answer


async def _rest(front: Front, route: Route, request: Request, body: bytes, who: Asking) -> Response:
    if route.admin:
        who.check_admin()
    path = {
        name: converted(value, route.kind_of(name), name)
        for name, value in request.path_params.items()
    }
    query = None
    if route.query is not None:
        query = queried(request.query_params, route.query)
    told_body = None
    if route.body is not None and (body or not route.body_optional):
        told_body = decoded(body, route.body)
    ask = Ask(path, query, told_body, who)
    if route.name == _LONG_POLL:
        with front.waits.some(who):
            told = await route.handler(front.desk, ask)
    else:
        told = await route.handler(front.desk, ask)
    if isinstance(told.value, bytes):
        return Response(told.value, told.status, media_type=told.media_type)
    return json_reply(told.value, told.status)


def _original(front: Front) -> Any:
    desk = front.desk

    async def work(request: Request, body: bytes, who: Asking) -> Response:
        if request.method == "POST":
            return await answer_action(desk, who, body)
        return await answer_view(desk, who, dict(request.query_params))

    async def answer(request: Request) -> Response:
        return await front.serve(request, work, lambda error: refusing(desk, error))

    return answer


def _health(desk: Desk) -> Any:
    async def answer(request: Request) -> Response:
        standing = desk.standing()
        told = {"mode": standing.mode.lower(), "leader": standing.leader}
        return json_reply(told, 503 if standing.mode == CLOSED else 200)

    return answer


def _metrics(front: Front, metrics: Callable[[], bytes] | None) -> Any:
    async def work(request: Request, body: bytes, who: Asking) -> Response:
        # They name all tenants, and the number of their waiting tasks.
        who.check_admin()
        if metrics is None:
            return told_error(404, "no_metrics", "this broker keeps no metrics")
        return Response(metrics(), media_type=_METRICS_TYPE)

    async def answer(request: Request) -> Response:
        return await front.serve(request, work)

    return answer


def _document(front: Front) -> Any:
    told = msgspec.json.encode(document(ROUTES))

    async def work(request: Request, body: bytes, who: Asking) -> Response:
        return Response(told, media_type="application/json")

    async def answer(request: Request) -> Response:
        return await front.serve(request, work)

    return answer


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        reply = told_error(405, "wrong_method", f"{request.method} is not for this path")
        reply.headers.update(error.headers or {})
        return reply
    return told_error(error.status_code, "no_such_path", f"there is nothing at {request.url.path}")
