"""Every example of docs/http-tasks.md, in its order, against a broker with one worker."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker.http.app import ROUTES
from broker.http.original_actions import ACTIONS
from broker.http.original_views import VIEWS
from tests.broker.http.asking import asked
from tests.broker.service.yard import FakeWorker

_PAGE = Path(__file__).parents[3] / "docs" / "http-tasks.md"
_EXAMPLE = re.compile(r"```http\n(.*?)\n\n(.*?)\n```", re.DOTALL)


def examples() -> Iterator[tuple[str, str, bytes, int, Any]]:
    """Method, path, body, status and what is in the reply."""
    for asked_for, told in _EXAMPLE.findall(_PAGE.read_text()):
        head, _, body = asked_for.partition("\n")
        method, _, path = head.partition(" ")
        status, _, reply = told.partition("\n")
        yield method, path, body.encode(), int(status), json.loads(reply)


def missing(wanted: Any, told: Any, place: str = "reply") -> list[str]:
    """What of an example is not in the reply; fields that it does not name do not matter."""
    if isinstance(wanted, dict) and isinstance(told, dict):
        return [
            each
            for name, value in wanted.items()
            for each in missing(value, told.get(name), f"{place}.{name}")
        ]
    if isinstance(wanted, list) and isinstance(told, list) and len(wanted) == len(told):
        return [
            each
            for number, value in enumerate(wanted)
            for each in missing(value, told[number], f"{place}[{number}]")
        ]
    return [] if wanted == told else [f"{place} is {told!r}, not {wanted!r}"]


async def work(worker: FakeWorker) -> None:
    """Resize what there is; exports find the disk full."""
    while True:
        [run] = await worker.until_runs(1)
        if run.type == "resize":
            await worker.finish(run, result=b"small.jpg")
        else:
            await worker.fail(run, error="disk full")


async def test_every_example_is_answered_as_it_says() -> None:
    async with asked() as client:
        worker = await FakeWorker.connected(client.broker, types=("resize", "export"))
        working = asyncio.create_task(work(worker))
        count = 0
        for method, path, body, status, wanted in examples():
            reply = await client.http.request(method, path, content=body)
            assert reply.status_code == status, (method, path, reply.text)
            assert missing(wanted, reply.json()) == [], (method, path, reply.text)
            count += 1
        assert count > 20
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def test_an_example_that_is_not_as_it_says_is_noticed() -> None:
    assert missing({"a": [{"b": 1}]}, {"a": [{"b": 2, "c": 3}]}) == ["reply.a[0].b is 2, not 1"]
    assert missing([1], []) and missing({"a": None}, {"a": 0})


def test_the_page_names_every_view_action_and_path() -> None:
    text = _PAGE.read_text()
    for name in (*VIEWS, *ACTIONS):
        assert f"`{name}`" in text, name
    for route in ROUTES:
        assert f"/{route.path.split('/')[1]}" in text, route.path
