"""Replicas in virtual time, each with a metadata session that can be held by itself."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from engine.log.log_list import decode_list
from engine.replica.replica import Replica
from engine.replica.settings import ReplicaSettings
from engine.state.memory import MemoryState
from tests.engine.ledger.scripted import QUICK, Cluster
from tests.engine.metadata.held import HeldSession
from tests.engine.replica.machines import Register
from tests.engine.replica.yard import LOG_SETTINGS, on_the_loops_clock
from tests.simulation.virtual import elapse, virtually

LEASE_S: Final = 1.5
LIST: Final = "/logs/log/list"


class Replicas:
    """Replicas with the default lease, each with a session of its own that can be held."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sessions: dict[str, HeldSession] = {}
        self.replicas: list[Replica] = []

    def session(self, name: str) -> HeldSession:
        """The session of a replica, before or after it was started."""
        if name not in self.sessions:
            self.sessions[name] = HeldSession(self.cluster.tree, 100 + len(self.sessions))
        return self.sessions[name]

    async def start(self, name: str, *, lease_ms: int = QUICK.lease_ms, **how: Any) -> Replica:
        """Start a replica; it need not lead."""
        # A call that hangs is told to nobody: the replica waits for as long as the store takes.
        settings = replace(QUICK, metadata_timeout_ms=100_000, lease_ms=lease_ms)
        replica = await Replica.open(
            self.cluster.client(settings, store=self.session(name)),
            "log",
            Register(),
            MemoryState(),
            address=name,
            replica_id=name,
            settings=ReplicaSettings(snapshot_entries=0, retry_pause_ms=5),
            log_settings=LOG_SETTINGS,
            **how,
        )
        self.replicas.append(replica)
        return replica

    async def leader(self, name: str, **how: Any) -> Replica:
        """Start a replica and wait until it leads."""
        replica = await self.start(name, **how)
        await reached(lambda: replica.may_answer())
        return replica

    async def epoch(self) -> int:
        """The epoch that the log's list has."""
        found = await self.cluster.store.get(LIST)
        return 0 if found is None else decode_list(found.value).epoch

    async def close(self) -> None:
        """Close all, with sessions that answer again."""
        for session in self.sessions.values():
            session.before = session.after = lambda kind, key: None
            session.let_go()
        for replica in self.replicas:
            await replica.close()


def with_replicas(script: Callable[[Replicas], Coroutine[Any, Any, None]]) -> None:
    """Run a script in virtual time."""

    async def run() -> None:
        cluster = await on_the_loops_clock()
        replicas = Replicas(cluster)
        try:
            await script(replicas)
        finally:
            await replicas.close()

    virtually(run())


async def reached(condition: Callable[[], bool], within_s: float = 60.0) -> float:
    """Wait for it in small steps; returns how long it took. Fails when the time is over."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not condition():
        assert loop.time() - began_s < within_s, "not in time"
        await elapse(0.01)
    return loop.time() - began_s
