"""Connecting to a cluster: ledgers, blobs, tables and tasks, served by other machines.

    with herdbook.connect("herdbook://node-1:7180,node-2:7180") as cluster:
        cluster.tasks.submit("resize", {"path": "elsa.jpg"}).wait()

The url names one or more nodes of the cluster, or its ZooKeeper servers and path.
What the cluster asks for, a secret or certificates, is in the user's configuration file; so may be
a login. Who comes as a user reads bytes with tokens that tablespaces' nodes sign for them, for an
hour each.

Invariants:
- Nothing runs here but the ways to others; after the block none of them is left.
- Tasks go to whoever leads the brokers, and to the next one when that one is gone.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from blobit import AsyncBlobs
from engine.errors import InvalidRequest
from engine.extras import needing_cluster
from engine.ledger.client import LedgerClient
from engine.ports.clock import SystemClock
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.renewing import renew_all
from engine.ports.system_workers import ThreadWorkers
from herd.wire.herd import RemoteHerd
from herdbook.finding import Login, is_cluster
from herdbook.opened import AsyncOpened, Opened
from herdbook.payload_store import BucketPayloads
from herdbook.reading import shown_token
from herdbook.task_api import read_configured

if TYPE_CHECKING:
    from broker.tasks import AsyncTasks
    from engine.transport.security import Security
    from herd.wire.cluster import ClusterHerd


def read_secrets_again() -> None:
    """Read the secrets and certificates of this process again, for a program that stays connected.

    New connections and calls use the new contents. If files cannot be read, or do not match each
    other, the old contents stay in use, and the log says why. Servers do the same on SIGHUP. Call
    it in the program's main thread.
    """
    renew_all()


class AsyncCluster(AsyncOpened):
    """A cluster, for code with an event loop. Made by `connect_async`."""

    herd: RemoteHerd

    def __init__(
        self,
        url: str,
        ledgers: LedgerClient,
        blobs: AsyncBlobs,
        herd: RemoteHerd,
        tasks: "AsyncTasks",
    ) -> None:
        self.url = url
        """What it was connected by."""
        super().__init__(ledgers, blobs, herd)
        self._tasks = tasks

    async def tasks(self) -> "AsyncTasks":
        """Tasks: submit, wait, schedule."""
        return self._tasks


@asynccontextmanager
async def connect_async(
    url: str,
    *,
    user: str = "",
    password: str = "",
    token: str = "",
    metrics: Metrics = NO_METRICS,
) -> AsyncIterator[AsyncCluster]:
    """Connect to the cluster of a url as long as the block lasts.

    `user` and `password`, or a `token`, count more than the login that the configuration names.
    `metrics` hears what goes on in this process. Raises `engine.InvalidRequest` for what is no
    cluster's url, and as `engine.connect` does.
    """
    if not is_cluster(url):
        raise InvalidRequest(f"{url} is no cluster's url: a folder is opened by herdbook.open")
    configuration = read_configured()
    login = Login(user, password, token) if user or token else None
    security, zookeeper = configuration.make_security(login), configuration.make_zookeeper()
    with needing_cluster():
        from broker.tasks import AsyncTasks
        from broker.wire.cluster import ClusterCalls
        from engine.connecting import connect as connect_ledgers
        from herd.wire.cluster import open_cluster
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with (
            open_cluster(url, security=security, zookeeper=zookeeper) as herd,
            _reading(security, herd) as reading,
            connect_ledgers(
                url,
                settings=configuration.make_settings(),
                security=reading,
                wire=configuration.wire,
                zookeeper=zookeeper,
                metrics=metrics,
            ) as client,
            AsyncBlobs(client, None, workers, herd) as blobs,
        ):
            calls = ClusterCalls(client.store, client.clock, client.rng, security=security)
            payloads = BucketPayloads(blobs, client.rng)
            try:
                tasks = AsyncTasks(calls, client.clock, client.rng, payloads=payloads)
                yield AsyncCluster(url, client, blobs, herd, tasks)
            finally:
                await calls.close()
    finally:
        await workers.close()


@asynccontextmanager
async def _reading(security: "Security", herd: "ClusterHerd") -> AsyncIterator["Security"]:
    """The same with tokens for bookies, for who comes as a user."""
    if security.secret or not security.logs_in:
        yield security
        return
    async with shown_token(herd, SystemClock()) as shown:
        yield replace(security, read_token=shown)


class Cluster(Opened):
    """A cluster. Made by `connect`; a context manager."""


def connect(url: str, *, user: str = "", password: str = "", token: str = "") -> Cluster:
    """Connect to the cluster of a url. Close what it returns, or use it in a `with` block.

    `user` and `password`, or a `token`, count more than the login that the configuration names: of
    a cluster with users. Raises as `connect_async` does.
    """
    return Cluster(connect_async(url, user=user, password=password, token=token))
