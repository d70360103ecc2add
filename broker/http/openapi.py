"""The OpenAPI document of `/api/v1`, made from its routes."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final, Protocol

import msgspec

from broker.settings import KINDS

PREFIX: Final = "/api/v1"
_REFERENCE: Final = "#/components/schemas/{name}"


class Described(Protocol):
    """What a document says of an operation; see `broker.http.routes.Route`."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def says(self) -> str: ...
    @property
    def query(self) -> Any: ...
    @property
    def body(self) -> Any: ...
    @property
    def body_optional(self) -> bool: ...
    @property
    def reply(self) -> Any: ...
    @property
    def status(self) -> int: ...
    @property
    def other_statuses(self) -> tuple[int, ...]: ...
    @property
    def admin(self) -> bool: ...
    def kind_of(self, parameter: str) -> Any:
        """The kind of a part of the path."""
        ...


class ErrorFacts(msgspec.Struct):
    """What went wrong. `retryable`: the same request may succeed later."""

    code: str
    message: str
    retryable: bool
    remedy: str = ""
    task_id: int = 0
    leader: str = ""


class Failure(msgspec.Struct):
    """Every reply with a status of 400 and above."""

    error: ErrorFacts


def document(routes: Sequence[Described]) -> dict[str, Any]:
    """All of it."""
    kinds = [kind for route in routes for kind in (route.body, route.reply) if _is_shape(kind)]
    kinds += [Failure, *KINDS.values()]
    _, schemas = msgspec.json.schema_components(list(dict.fromkeys(kinds)), ref_template=_REFERENCE)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Herdbook broker",
            "version": version("herdbook"),
            "description": "Tasks for workers. Times are milliseconds of the broker's clock.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"login": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"login": []}, {}],
    }


def _is_shape(kind: Any) -> bool:
    return kind is not None and kind not in (bytes, msgspec.Raw)


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    return schema


def _operation(route: Described) -> dict[str, Any]:
    statuses = {*route.other_statuses, 401, 503} | ({403} if route.admin else set())
    responses = {str(route.status): _reply(route)}
    for status in sorted(statuses):
        responses[str(status)] = _reply(route) if status < 300 else failure(status)
    told: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.says,
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": responses,
    }
    if route.body is not None:
        told["requestBody"] = {
            "required": not route.body_optional,
            "content": _body(route.body),
        }
    return told


def _body(kind: Any) -> dict[str, Any]:
    if kind is bytes:
        return {"application/octet-stream": {"schema": {}}}
    if kind is msgspec.Raw:
        schema = {"anyOf": [_schema(each) for each in dict.fromkeys(KINDS.values())]}
    else:
        schema = _schema(kind)
    return {"application/json": {"schema": schema}}


def _reply(route: Described) -> dict[str, Any]:
    if route.reply is bytes:
        return {"description": "Bytes.", "content": {"application/octet-stream": {}}}
    content = {"application/json": {"schema": _schema(route.reply)}}
    return {"description": (route.reply.__doc__ or "").split("\n")[0], "content": content}


def failure(status: int) -> dict[str, Any]:
    """The reply of a status of 400 and above."""
    content = {"application/json": {"schema": _schema(Failure)}}
    said = "It may or may not have been done" if status == 504 else "Nothing was done"
    return {"description": f"{said} ({status}).", "content": content}


def _path_parameters(route: Described) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": _schema(route.kind_of(name))}
        for name in names
    ]


def _query_parameters(route: Described) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    return [
        {
            "name": field.name,
            "in": "query",
            "required": field.required,
            "schema": _schema(field.type),
        }
        for field in msgspec.structs.fields(route.query)
    ]
