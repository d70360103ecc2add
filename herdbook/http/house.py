"""What the node serves over HTTP: a folder or a cluster, opened once for all requests."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.http.desk import Desk, desk_for
from engine.ports.metrics import NO_METRICS, Metrics

if TYPE_CHECKING:
    from blobit import AsyncBlobs
    from engine.ledger.client import LedgerClient
    from herd.store import AsyncHerd
    from herd.wire.herd import RemoteHerd
    from herdbook.book import AsyncBook
    from herdbook.connecting import AsyncCluster
    from herdbook.http.rates import Sample

SAMPLES_MAX: Final = 61


class Chores:
    """What goes on behind requests that only begin it. One of each name at a time."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def running(self) -> frozenset[str]:
        """The names of those that go on."""
        return frozenset(name for name, task in self._tasks.items() if not task.done())

    def begin(self, name: str, work: Coroutine[Any, Any, None]) -> bool:
        """Begin one; False if one of that name goes on already."""
        if name in self.running:
            work.close()
            return False
        self._tasks[name] = asyncio.create_task(work, name=name)
        return True

    async def close(self) -> None:
        """End them."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@dataclass(frozen=True, slots=True)
class House:
    """A store, as HTTP sees it. Everything on one event loop."""

    name: str
    url: str
    ledgers: "LedgerClient"
    blobs: "AsyncBlobs"
    herd: "AsyncHerd | RemoteHerd"
    desk: Desk
    metrics: Metrics = NO_METRICS
    chores: Chores = field(default_factory=Chores)
    samples: "deque[Sample]" = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    """What was counted in the last five minutes."""


async def house_of(
    book: "AsyncBook | AsyncCluster", *, name: str = "", metrics: Metrics = NO_METRICS
) -> House:
    """The house of what is open. Raises `BrokerUnavailable` where a folder's tasks are out of
    reach."""
    tasks = await book.tasks()
    desk = desk_for(tasks.calls, tasks.payloads)
    shown = name or book.url.rstrip("/").rpartition("/")[2]
    return House(shown, book.url, book.ledgers, book.blobs, book.herd, desk, metrics)
