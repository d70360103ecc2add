"""`/health/live`, `/health/ready`, `/metrics`: for machines that watch.

Invariants:
- Whoever answers is alive. A node is ready if all its roles serve and there are bookies.
- While the metadata store does not answer, a node is ready, but degraded: reads and writes go on,
  and would end if a balancer took out all nodes at once.
- Health tells nothing but that, and needs no login.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Place

from broker.http.front import json_reply, told_error
from engine.errors import EngineError
from engine.metadata.bookies import Bookies
from herdbook.http.house import House
from herdbook.http.routes import ADMIN, PUBLIC

if TYPE_CHECKING:
    from herdbook.http.app import Door

OPEN: Final = frozenset({"/health/live", "/health/ready", "/healthz"})
"""Paths that reveal only the node's health."""
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_READY_TIMEOUT_S: Final = 0.5
_UNTIL_THEN: Final = "until it is back, no leader is replaced and nothing is created or repaired"


def places_of(
    house: House,
    metrics: Callable[[], bytes] | None,
    door: "Door",
    lacking: Callable[[], str] | None = None,
) -> list[Place]:
    """The three, and `/healthz`, as the broker alone has it."""
    need = PUBLIC if door.gate.settings.open_metrics else ADMIN

    async def live(request: Request) -> Response:
        return json_reply({"alive": True})

    async def ready(request: Request) -> Response:
        why, degraded = (lacking() if lacking is not None else ""), ""
        if not why:
            why, degraded = await _state_of(house)
        told = {"ready": not why, "degraded": bool(degraded), "why": why or degraded}
        return json_reply(told, 503 if why else 200)

    async def measured(request: Request) -> Response:
        if metrics is None:
            return told_error(404, "no_metrics", "this node keeps no metrics")
        return Response(metrics(), media_type=_METRICS_TYPE)

    return [
        Place("/health/live", live, methods=["GET"]),
        Place("/health/ready", ready, methods=["GET"]),
        Place("/healthz", live, methods=["GET"]),
        Place("/metrics", door.guarded({"GET": need}, measured), methods=["GET"]),
    ]


async def _state_of(house: House) -> tuple[str, str]:
    """Why the store cannot be used at all, and why only in part; "" for each that is not so."""
    why = degraded = ""
    try:
        async with asyncio.timeout(_READY_TIMEOUT_S):
            if not await Bookies(house.ledgers.store).available():
                why = "no bookie is there"
    except TimeoutError:
        degraded = f"the metadata store does not answer: {_UNTIL_THEN}"
    except EngineError:
        degraded = f"the metadata store cannot be reached: {_UNTIL_THEN}"
    return why, degraded
