"""The broker of a folder: run by the opener that wants it first, reached there by all others.

Its rows lie in `broker` below the folder, its log in the folder's ledgers.

Invariants:
- A folder's broker runs once; when who runs it ends, the next caller does, and the others find it.
- What was opened here is closed here, before the ledgers that it is written to.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from broker.errors import BrokerUnavailable, StoreClosed
from broker.translating import translating
from engine.ledger.client import LedgerClient
from engine.log.settings import LogSettings
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.workers import Workers
from engine.state.rocks import open_rocks

if TYPE_CHECKING:
    from broker.ports import PayloadStore
    from broker.rollouts.alarming import Alarms
    from broker.rollouts.coordinator import Coordinator
    from broker.rollouts.discovery import Discovery
    from broker.scheduling import UserMapping
    from broker.service import Broker
    from broker.settings import BrokerSettings
    from broker.tasks import AsyncTasks
    from broker.wire.folder import FolderCalls, FolderRoute

FOLDER: Final = "broker"
FOLDER_LOG: Final = LogSettings(turn_timeout_ms=10_000)
"""In a folder there is no other disk to go on with: who waits for a full one is told so soon."""


class FolderBroker:
    """The tasks of one folder, on one event loop; a context manager.

    `settings`, `mapping`, `discoveries` and `alarms` only apply if the tasks run with this opener:
    the first one that needs them. `discoveries` are ways to find the nodes of roll-outs, in
    addition to the metadata store, by the names that documents use; `alarms` is called for
    roll-outs that go wrong.
    """

    def __init__(
        self,
        client: LedgerClient,
        path: Path,
        workers: Workers,
        settings: "BrokerSettings | None" = None,
        *,
        mapping: "UserMapping | None" = None,
        payloads: "PayloadStore | None" = None,
        discoveries: "Mapping[str, Discovery] | None" = None,
        alarms: "Alarms | None" = None,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._client = client
        self._path = path
        self._workers = workers
        self._settings = settings
        self._mapping = mapping
        self._discoveries = discoveries
        self._alarms = alarms
        self._metrics = metrics
        self.payloads = payloads
        """Where payloads and results lie that are too big for the log."""
        self._route: FolderRoute | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._coordinator: Coordinator | None = None
        self._closed = False

    async def open(self) -> "Broker":
        """The broker itself, which serves. Raises `BrokerUnavailable` where another runs it."""
        await self._routed().own_or_reach()
        route = self._routed()
        if route.broker is None:
            raise BrokerUnavailable(f"the tasks in {self._path} are run by {route.who()}")
        return route.broker

    async def calls(self) -> "Broker | FolderCalls":
        """The broker, wherever it runs. Raises `BrokerUnavailable` where nobody answers."""
        from broker.wire.folder import FolderCalls

        route = self._routed()
        await route.own_or_reach()
        # Where it runs here it does so until the end: nothing lies between.
        return route.broker or FolderCalls(route, self._client.clock)

    async def tasks(self) -> "AsyncTasks":
        """The tasks of the folder. Raises `BrokerUnavailable` where nobody answers."""
        # Loaded on first use: most programs that open a folder have no tasks.
        from broker.tasks import AsyncTasks

        client = self._client
        return AsyncTasks(await self.calls(), client.clock, client.rng, payloads=self.payloads)

    def _routed(self) -> "FolderRoute":
        if self._closed:
            raise StoreClosed("the store is closed")
        if self._route is None:
            from broker.wire.folder import FolderRoute

            client = self._client
            self._route = FolderRoute(self._path, self._opened, client.clock, client.rng)
        return self._route

    async def _opened(self) -> "Broker":
        from broker.rollouts.coordinator import Coordinator
        from broker.rollouts.discovery import ZOOKEEPER, StoreDiscovery
        from broker.service import Broker
        from broker.sweeping import keep_swept

        with translating():
            state = await open_rocks(self._path / FOLDER, self._workers)
        broker = await Broker.open(
            self._client,
            state,
            settings=self._settings,
            mapping=self._mapping,
            log_settings=FOLDER_LOG,
            metrics=self._metrics,
        )
        discoveries = {ZOOKEEPER: StoreDiscovery(self._client.store), **(self._discoveries or {})}
        self._coordinator = Coordinator(
            broker, discoveries=discoveries, alarms=self._alarms, metrics=self._metrics
        )
        self._coordinator.start()
        if self.payloads is not None:
            self._sweeping = asyncio.create_task(keep_swept(broker, self.payloads))
        return broker

    async def close(self) -> None:
        """End the broker, if it runs here. May be called twice."""
        self._closed = True
        if self._coordinator is not None:
            await self._coordinator.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        if self._route is not None:
            await self._route.close()

    async def __aenter__(self) -> "FolderBroker":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
