"""`/api/v1/openapi.json`: one document of the broker's routes and the store's."""

from functools import cache
from typing import Any, Final

import msgspec
from starlette.responses import Response

from broker.http.app import ROUTES as BROKER_ROUTES
from broker.http.openapi import PREFIX, document
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
    for path, by_method in told["paths"].items():
        for method, operation in by_method.items():
            need = needs[method.upper(), path]
            operation["x-herdbook-need"] = need.text
            if need.public:
                operation["security"] = []
            if not need.public:
                operation["responses"].setdefault("403", operation["responses"]["401"])
    return told


async def show(house: House, ask: Ask) -> Response:
    """The document, as it is for everybody."""
    return Response(msgspec.json.encode(merged()), media_type="application/json")


ROUTES: Final = (
    Route("GET", "/openapi.json", "openapi", "This document.", KNOWN, show, reply=bytes),
)
