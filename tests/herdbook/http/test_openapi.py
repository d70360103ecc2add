"""The one document of `/api/v1`, and whatever it allows, and does not, asked of a node."""

import json
import re
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.http.app import ROUTES as BROKER_ROUTES
from herdbook.http.app import ROUTES
from herdbook.http.openapi import merged
from tests.herdbook.http.yard import API, Node

EXAMPLES = 80
CAREFUL = {"switch_repair_off", "decommission_bookie", "forget_bookie", "scrub", "delete_ledger"}
"""Left out of what is drawn: the folder is other tests' too."""


def test_every_operation_is_in_the_document_with_what_it_needs(node: Node) -> None:
    told = node.open().json("GET", "/openapi.json")
    operations = {
        operation["operationId"]: operation
        for path in told["paths"].values()
        for operation in path.values()
    }
    names = [route.name for route in BROKER_ROUTES] + [route.name for route in ROUTES]
    assert sorted(operations) == sorted(names), "no two have the same name"
    for operation in operations.values():
        assert operation["summary"] and operation["x-herdbook-need"]
        assert "503" in operation["responses"]
    assert operations["log_in"]["security"] == [] != told["security"]
    text = json.dumps(told)
    for reference in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert reference in told["components"]["schemas"]


def test_what_a_request_may_be_answered_with_and_the_headers_that_it_heeds_are_told() -> None:
    paths = merged()["paths"]
    for path, by_method in paths.items():
        for method, operation in by_method.items():
            assert {"401", "403", "421", "429", "500", "503", "504"} <= set(operation["responses"])
            named = {each["name"] for each in operation["parameters"] if each["in"] == "header"}
            changes = method != "get" and not path.endswith("/login")
            assert ("X-Herdbook-Token" in named) == changes
    objects = paths[f"{API}/buckets/{{bucket}}/objects/{{name}}"]
    for method, wanted in {
        "get": {"Range", "If-Range", "If-Match", "If-None-Match"},
        "put": {"If-Match", "If-None-Match", "X-Herdbook-Metadata"},
        "delete": {"If-Match"},
    }.items():
        assert wanted <= {each["name"] for each in objects[method]["parameters"]}


Drawn = tuple[dict[str, Any], str, requests.PreparedRequest]
"""What the document says of an operation, its path as a pattern, and a request of it."""


def drawn() -> st.SearchStrategy[Drawn]:
    """Requests as the document has them, and such as it forbids."""
    told = msgspec.json.decode(msgspec.json.encode(merged()))
    schema: Any = schemathesis.openapi.from_dict(told)
    ours = {API + route.path for route in ROUTES if route.name not in CAREFUL}
    operations = [each.ok() for each in schema.get_all_operations()]
    return st.one_of(
        *(
            operation.as_strategy(generation_mode=mode).map(
                partial(
                    _drawn,
                    told["paths"][operation.path][operation.method],
                    re.sub(r"\{\w+\}", "[^/]+", operation.path),
                )
            )
            for operation in operations
            if operation.path in ours
            for mode in schemathesis.GenerationMode
        )
    )


def _drawn(says: dict[str, Any], pattern: str, case: Any) -> Drawn:
    told = case.as_transport_kwargs(base_url="http://localhost")
    names = ("method", "url", "headers", "params", "json", "data", "cookies")
    request = requests.Request(**{name: told[name] for name in names if name in told})
    return says, pattern, request.prepare()


def test_no_request_at_all_makes_the_node_fail_or_answer_as_it_never_said(node: Node) -> None:
    app, seen = node.app(), set()

    async def send(request: requests.PreparedRequest) -> httpx.Response:
        assert request.method and request.url
        content: Any = request.body
        headers = [(name, str(value)) for name, value in request.headers.items()]
        wanted = [(name, value) for name, value in headers if name != "Content-Length"]
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.request(
                request.method, request.url, headers=wanted, content=content
            )

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn())
    def ask(drawn: Drawn) -> None:
        says, pattern, request = drawn
        reply = node.loop.run(lambda: send(request))
        assert reply.status_code < 500, (request.method, request.url, request.body, reply.text)
        if reply.status_code >= 400:
            assert set(reply.json()) == {"error"}
        if re.fullmatch(pattern, urlsplit(request.url or "").path):
            assert str(reply.status_code) in says["responses"], (request.url, reply.text)
        seen.add(reply.status_code)

    ask()
    assert {200, 400, 404} <= seen
