"""Replicas over a cluster of scripted bookies, each with a session of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from engine.ledger.client import LedgerClient
from engine.log.settings import LogSettings
from engine.metadata.memory import MemoryStore, MemoryTree
from engine.ports.metrics import NO_METRICS, Metrics
from engine.replica.contract import StateMachine
from engine.replica.replica import Replica
from engine.replica.settings import ReplicaSettings
from engine.state.contract import State
from engine.state.memory import MemoryState
from tests.engine.ledger.scripted import QUICK, Cluster, LoopClock
from tests.engine.replica.machines import Register

SETTINGS = ReplicaSettings(
    snapshot_entries=0, duties_ms=10, level_settle_ms=0, retry_pause_ms=5, retry_pause_ms_max=300
)
LEASE_MS = 300
LOG_SETTINGS = LogSettings(look_interval_ms=50, retry_pause_ms=5, turn_timeout_ms=3_000)
PATIENCE_MS = 10_000


class Yard:
    """A cluster, and the replicas that were started in it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.stores: dict[str, MemoryStore] = {}
        self.clients: list[LedgerClient] = []
        self._replicas: list[Replica] = []

    async def start(
        self,
        name: str,
        *,
        state: State | None = None,
        machine: StateMachine | None = None,
        elect: bool = True,
        candidate: bool = True,
        lease_ms: int = LEASE_MS,
        settings: ReplicaSettings = SETTINGS,
        log_settings: LogSettings = LOG_SETTINGS,
        metrics: Metrics = NO_METRICS,
    ) -> Replica:
        """Start a replica whose address is its name."""
        replica = await Replica.open(
            self.client(name, lease_ms),
            "log",
            machine or Register(),
            state if state is not None else MemoryState(),
            address=name,
            replica_id=name,
            settings=settings,
            log_settings=log_settings,
            elect=elect,
            candidate=candidate,
            metrics=metrics,
        )
        self._replicas.append(replica)
        return replica

    async def leader(self, name: str = "one", **how: object) -> Replica:
        """Start a replica and wait until it leads."""
        replica = await self.start(name, **how)  # type: ignore[arg-type]
        await replica.until_leading(PATIENCE_MS)
        return replica

    def client(self, name: str, lease_ms: int = LEASE_MS) -> LedgerClient:
        """A client with a session of its own, named so that the test can end it."""
        store = self.stores[name] = self.cluster.tree.session()
        settings = replace(QUICK, metadata_timeout_ms=500, lease_ms=lease_ms)
        client = self.cluster.client(settings, store=store)
        self.clients.append(client)
        return client

    async def close(self) -> None:
        """Close every replica."""
        for replica in self._replicas:
            await replica.close()
        for client in self.clients:
            await client.liveness.close()


async def on_the_loops_clock(bookies: int = 3) -> Cluster:
    """A cluster whose clients go by the time of the event loop: for virtual time."""
    cluster = Cluster(MemoryTree("cluster"))
    cluster.client_clock = LoopClock()
    for index in range(bookies):
        await cluster.add(f"b{index}")
    return cluster


@asynccontextmanager
async def yard(bookies: int = 3) -> AsyncIterator[Yard]:
    """A yard, and everything closed in the end."""
    made = Yard(await Cluster.of(bookies))
    try:
        yield made
    finally:
        await made.close()


async def until(reached: Callable[[], bool]) -> None:
    """Wait for a condition, not for ever."""
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0)
