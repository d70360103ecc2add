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
    real, left_s = transfers.give_time, list[float]()

    def noted(request: Request, timeout_ms: int) -> None:
        limit: asyncio.Timeout = request.scope[transfers.LIMIT]
        now_s = asyncio.get_running_loop().time()
        # As if nearly all of the time had gone since the last piece.
        limit.reschedule(now_s + 10)
        real(request, timeout_ms)
        end_s = limit.when()
        assert end_s is not None
        left_s.append(end_s - now_s)

    monkeypatch.setattr(transfers, "give_time", noted)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield bytes(1_000)

    assert ask("PUT", f"{API}/buckets/alma/objects/long", content=body()).status_code == 201
    assert left_s and min(left_s) > 100
