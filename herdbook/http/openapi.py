"""`/api/v1/openapi.json`: one document of the broker's routes and the store's."""

from functools import cache
from typing import Any, Final

import msgspec
from starlette.responses import Response

from broker.http.app import ROUTES as BROKER_ROUTES
from broker.http.openapi import PREFIX, document, failure
from herdbook.http.gate import TOKEN_HEADER
from herdbook.http.house import House
from herdbook.http.routes import KNOWN, Ask, Route

_TITLE: Final = "Herdbook"
_SAYS: Final = (
    "Ledgers, tables, objects and tasks. Times are milliseconds: of the broker's clock for tasks, "
    "of the wall clock for everything else."
)
_SCHEMES: Final = {
    "login": {"type": "http", "scheme": "basic"},
    "token": {"type": "http", "scheme": "bearer"},
    "session": {"type": "apiKey", "in": "cookie", "name": "herdbook_session"},
}
_OF_ALL: Final = (403, 421, 500, 503, 504)
"""What any request may be answered with before its handler is asked, or whatever it does."""
_OF_WHO_ASKS: Final = (401, 429)
_OF_BODIES: Final = (400, 408, 413)


@cache
def merged() -> dict[str, Any]:
    """The document."""
    from herdbook.http.app import ROUTES, broker_needs

    told = document([*BROKER_ROUTES, *ROUTES])
    told["info"] |= {"title": _TITLE, "description": _SAYS}
    told["components"]["securitySchemes"] = _SCHEMES
    told["security"] = [{name: []} for name in (*_SCHEMES,)] + [{}]
    needs = {(method, path): need for method, path, need in broker_needs()}
    needs |= {(route.method, PREFIX + route.path): route.need for route in ROUTES}
    headers = {(route.method, PREFIX + route.path): route.headers for route in ROUTES}
    for path, by_method in told["paths"].items():
        for method, operation in by_method.items():
            need, asked = needs[method.upper(), path], headers.get((method.upper(), path), ())
            operation["x-herdbook-need"] = need.text
            if need.public:
                operation["security"] = []
            elif method != "get":
                asked = (*asked, TOKEN_HEADER)
            operation["parameters"] += [_header(name) for name in asked]
            body = "requestBody" in operation
            for status in (*_OF_ALL, *_OF_WHO_ASKS, *(_OF_BODIES if body else ())):
                operation["responses"].setdefault(str(status), failure(status))
    return told


def _header(name: str) -> dict[str, Any]:
    told: dict[str, Any] = {"name": name, "in": "header", "required": False}
    if name == TOKEN_HEADER:
        told["description"] = "the `csrf` of /me, in a session"
    return told | {"schema": {"type": "string"}}


async def show(house: House, ask: Ask) -> Response:
    """The document, as it is for everybody."""
    return Response(msgspec.json.encode(merged()), media_type="application/json")


ROUTES: Final = (
    Route("GET", "/openapi.json", "openapi", "This document.", KNOWN, show, reply=bytes),
)
