"""The document of `/api/v1`, and whatever it allows, and does not, asked of a broker."""

import json
from typing import Any

import httpx
import msgspec
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.commands import Spec
from broker.http.app import ROUTES
from broker.http.openapi import document
from tests.broker.http.asking import Client, asked
from tests.broker.service.yard import FakeWorker, submitted
from tests.simulation.loop import new_loop

EXAMPLES: int = 100


async def test_every_operation_is_in_the_document_with_its_replies() -> None:
    async with asked() as client:
        told = await client.v1("GET", "/openapi.json")
    operations = {
        operation["operationId"]: operation
        for path in told["paths"].values()
        for operation in path.values()
    }
    assert len(operations) == len(ROUTES) == len({route.name for route in ROUTES})
    for operation in operations.values():
        assert operation["summary"] and {"401", "503"} < set(operation["responses"])
    text = json.dumps(told)
    for reference in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert reference in told["components"]["schemas"]


def requests_of_the_document() -> st.SearchStrategy[requests.PreparedRequest]:
    """Requests as the document has them, and such as it forbids."""
    told = msgspec.json.decode(msgspec.json.encode(document(ROUTES)))
    schema: Any = schemathesis.openapi.from_dict(told)
    operations = [each.ok() for each in schema.get_all_operations()]
    return st.one_of(
        *(
            operation.as_strategy(generation_mode=mode)
            for operation in operations
            for mode in schemathesis.GenerationMode
        )
    ).map(prepared)


def prepared(case: Any) -> requests.PreparedRequest:
    """A request as it goes over the network."""
    told = case.as_transport_kwargs(base_url="http://localhost")
    names = ("method", "url", "headers", "params", "json", "data", "cookies")
    return requests.Request(**{name: told[name] for name in names if name in told}).prepare()


async def send(client: Client, request: requests.PreparedRequest) -> httpx.Response:
    """The broker's reply."""
    assert request.method and request.url
    content: Any = request.body
    headers = [(name, str(value)) for name, value in request.headers.items()]
    wanted = [(name, value) for name, value in headers if name != "Content-Length"]
    return await client.http.request(request.method, request.url, headers=wanted, content=content)


def test_no_request_at_all_makes_the_broker_fail() -> None:
    """In virtual time: some of them wait for tasks."""
    loop = new_loop(1)
    opening = asked()
    client: Client = loop.run(opening.__aenter__(), until_s=100.0)

    async def prepare() -> None:
        ids = await submitted(client.broker, *[Spec("t") for _ in range(5)])
        worker = await FakeWorker.connected(client.broker, places=3)
        await worker.finish(*(await worker.until_runs(2)), result=b"done")
        assert ids

    seen: set[int] = set()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests_of_the_document())
    def ask(request: requests.PreparedRequest) -> None:
        reply = loop.run(send(client, request), until_s=loop.time() + 100.0)
        assert reply.status_code < 500, (request.method, request.url, request.body, reply.text)
        seen.add(reply.status_code)

    try:
        loop.run(prepare(), until_s=loop.time() + 100.0)
        ask()
        assert {200, 400, 404} <= seen
    finally:
        loop.run(opening.__aexit__(None, None, None), until_s=loop.time() + 100.0)
        loop.close()
