"""Connecting to a cluster: its metadata in ZooKeeper, its bookies on their own machines.

    async with connect("herdbook://zookeeper-1:2181,zookeeper-2:2181/prod") as client:
        writer = await client.create_ledger()
        await writer.append(b"moo")

The url names the ZooKeeper servers and, behind them, the path under which the cluster keeps its
facts. Everything else is found there: bookies by their registrations, ledgers by their metadata.

A session that ZooKeeper lost is made anew, and a bookie's connection that broke is dialled again:
the client goes on, and only calls that were under way say that they do not know their outcome.

Who works for somebody that knows the cluster already goes `through` bookies' servers instead, and
has no session of ZooKeeper.

Invariants:
- A client never makes a cluster: an address without one is an error.
- Where none of those servers passes the store on, ZooKeeper is reached as ever.
- After the block nothing of the connection runs in this process.
"""

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Literal

from engine.access.shown import ShownToken
from engine.errors import EngineError, InvalidRequest, NoSuchCluster
from engine.extras import needing_cluster
from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from engine.metadata.bookies import Bookies, Registration
from engine.metadata.cluster_url import ClusterUrl, parse_url
from engine.metadata.contract import MetadataStore
from engine.metadata.deadline import DeadlineStore
from engine.ports.clock import Clock, SystemClock
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.switching import SWITCH_INTERVAL_S, switching_every
from engine.transport.contract import Bookie, Transport

if TYPE_CHECKING:
    from engine.metadata.remote import RemoteStore
    from engine.metadata.zookeeper import ZooKeeperStore
    from engine.metadata.zookeeper_settings import ZooKeeperSettings
    from engine.place import Through
    from engine.transport.security import Security

_logger = logging.getLogger(__name__)
Wire = Literal["framed", "grpc"]
Dial = Callable[[Registration], Awaitable[Bookie]]


class Connection(LedgerClient):
    """A `LedgerClient` of a cluster. Made by `connect`."""

    def __init__(
        self,
        url: ClusterUrl,
        store: MetadataStore,
        transport: Transport,
        clock: Clock,
        rng: random.Random,
        settings: ClientSettings,
        metrics: Metrics,
    ) -> None:
        super().__init__(
            store=store,
            transport=transport,
            clock=clock,
            rng=rng,
            settings=settings,
            metrics=metrics,
        )
        self.url = url

    async def close(self) -> None:
        """End this client's writers; their ledgers stay open, to be recovered by who reads them."""
        self.abandon_writers("the connection to the cluster was closed")
        await super().close()


@asynccontextmanager
async def connect(
    url: str,
    *,
    settings: ClientSettings | None = None,
    security: "Security | None" = None,
    wire: Wire = "framed",
    zookeeper: "ZooKeeperSettings | None" = None,
    metrics: Metrics = NO_METRICS,
    switch_interval_s: float | None = SWITCH_INTERVAL_S,
    through: "Through | None" = None,
) -> AsyncIterator[Connection]:
    """Connect to a cluster as long as the block lasts.

    `url` is "herdbook://host:port,host:port/chroot". Unless `settings` say otherwise, entries go
    to three bookies and are acknowledged when two have them. `security` is what bookies ask for
    and what is asked of them; `wire` chooses framed TCP, the quick one, or gRPC, which passes
    through proxies; `zookeeper` has the session's time-outs and credentials; `metrics` hears what
    the client does. Meanwhile threads take turns every `switch_interval_s`, as in `engine.open`.
    `through` names servers of bookies that are asked for the metadata before ZooKeeper is.
    Raises `InvalidRequest` for a malformed url, `NoZooKeeper` when no server of it answers,
    `NoSuchCluster` when there is no cluster under the url's path.
    """
    where = parse_url(url)
    if wire not in ("framed", "grpc"):
        raise InvalidRequest(f"a wire is framed or grpc, not {wire!r}")
    settings = settings if settings is not None else ClientSettings()
    if not settings.host:
        settings = replace(settings, host=socket.gethostname())
    clock = SystemClock()
    rng = random.SystemRandom()  # noqa: TID251 (this module wires the real components together)
    with switching_every(switch_interval_s):
        store: MetadataStore | None = None
        if through is not None:
            store = await _open_through(through, security, settings, clock, rng)
        if store is None:
            store = await open_metadata(where, zookeeper, rng)
        try:
            bookies = Bookies(DeadlineStore(store, settings.metadata_timeout_ms))
            transport = make_transport(bookies, security, wire, clock, rng)
            client = Connection(where, store, transport, clock, rng, settings, metrics)
            try:
                yield client
            finally:
                await client.close()
        finally:
            await store.close()


async def open_metadata(
    where: ClusterUrl, settings: "ZooKeeperSettings | None", rng: random.Random
) -> "ZooKeeperStore":
    """The metadata store of an existing cluster. Raises `NoSuchCluster`, `NoZooKeeper`."""
    # Kazoo loads on first use.
    from engine.metadata.zookeeper import ZooKeeperStore

    try:
        return await ZooKeeperStore.connect(
            where.hosts, chroot=where.chroot, settings=settings, rng=rng, make=False
        )
    except NoSuchCluster as error:
        raise NoSuchCluster(
            f"no cluster at {where}: check the path behind the hosts; a new cluster begins with "
            "its first node (`herdbook serve`)"
        ) from error


async def _open_through(
    through: "Through",
    security: "Security | None",
    settings: ClientSettings,
    clock: Clock,
    rng: random.Random,
) -> "RemoteStore | None":
    """The store as one of these servers passes it on; None if none of them does."""
    from engine.metadata.remote import RemoteStore
    from engine.transport.security import NO_SECURITY

    turns = cycle(rng.sample(through.addresses, len(through.addresses)))

    async def find() -> str:
        return next(turns)

    for _ in through.addresses:
        try:
            async with asyncio.timeout(settings.metadata_timeout_ms / 1000):
                return await RemoteStore.open(
                    find,
                    clock=clock,
                    rng=rng,
                    cluster_id=through.cluster_id,
                    security=security or NO_SECURITY,
                )
        except (EngineError, TimeoutError) as error:
            _logger.info("the metadata store is not asked through a bookie's server: %s", error)
    return None


def make_transport(
    bookies: Bookies, security: "Security | None", wire: Wire, clock: Clock, rng: random.Random
) -> Transport:
    """The way to registered bookies over a wire. Raises `InvalidRequest`."""
    from engine.transport.dialing import DialingTransport, framed_dial
    from engine.transport.security import Security

    security = security if security is not None else Security()
    dial: Dial
    if wire == "grpc":
        with needing_cluster():
            from engine.transport.grpc_client import grpc_dial

        dial = grpc_dial(security, clock)
    else:
        dial = framed_dial(security, clock)
    shown = security.read_token
    token = shown if isinstance(shown, ShownToken) and not security.secret else None
    return DialingTransport(bookies, dial=dial, clock=clock, rng=rng, token=token)
