"""How long an object may take on its way in."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request

from herdbook.http import transfers
from tests.herdbook.http.yard import API, Node


def test_the_time_of_an_upload_counts_from_its_last_piece(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = node.open()
    real, ends_s = transfers.give_time, list[float | None]()

    def noted(request: Request, timeout_ms: int) -> None:
        limit: asyncio.Timeout = request.scope[transfers.LIMIT]
        ends_s.append(limit.when())
        real(request, timeout_ms)
        ends_s.append(limit.when())

    monkeypatch.setattr(transfers, "give_time", noted)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield bytes(1_000)

    assert ask("PUT", f"{API}/buckets/alma/objects/long", content=body()).status_code == 201
    told = [end_s for end_s in ends_s if end_s is not None]
    assert told == sorted(told) and told[-1] > told[0]
