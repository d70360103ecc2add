"""Nodes on a real event loop, with SQL: for what takes no time and runs in threads.

Invariants:
- Every node has a session of its own; all are closed in the end.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from engine.ledger.client import LedgerClient
from engine.ports.clock import SystemClock
from engine.ports.system_workers import ThreadWorkers
from engine.replica.settings import ReplicaSettings
from herd.nodes import Node, NodeSettings
from herd.nodes.directory import Directory
from herd.settings import HerdSettings
from tests.engine.ledger.scripted import QUICK, Cluster
from tests.herd.nodes.yard import MemoryStates
from tests.herd.spaces import LOG

SETTINGS = NodeSettings(look_ms=20, grace_ms=60_000)
REPLICA = ReplicaSettings(snapshot_entries=0, duties_ms=50, level_settle_ms=0, retry_pause_ms=5)
_PATIENCE_S = 20.0


@asynccontextmanager
async def nodes(count: int, *, replicas: int = 1) -> AsyncIterator[list[Node]]:
    """Nodes n0, n1 and so on, and the tablespace `default` on some of them."""
    cluster = await Cluster.of(1)
    workers = ThreadWorkers(asyncio.get_running_loop())
    await Directory(cluster.tree.session(), random.Random(0)).set_default_replicas(replicas)
    found = []
    try:
        for number in range(count):
            client = LedgerClient(
                store=cluster.tree.session(),
                transport=cluster.transport,
                clock=SystemClock(),
                rng=random.Random(number),
                settings=replace(QUICK, retry_pause_ms=5, append_timeout_ms=10_000, lease_ms=1_000),
            )
            node = Node(
                client,
                f"n{number}",
                f"n{number}:1",
                MemoryStates(),
                workers,
                settings=SETTINGS,
                herd=HerdSettings(lock_timeout_ms=5_000),
                replica=REPLICA,
                log=LOG,
            )
            node.start()
            found.append(node)
        yield found
    finally:
        for node in found:
            await node.close()
        await workers.close()


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition, not for ever."""
    async with asyncio.timeout(_PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def leader_of(found: list[Node], name: str = "default") -> Node:
    """The node that leads a tablespace, once one does."""

    def leading() -> list[Node]:
        spaces = [(node, node.hosted(name)) for node in found]
        return [node for node, one in spaces if one and one.space and one.space.term]

    await until(lambda: bool(leading()))
    return leading()[0]
