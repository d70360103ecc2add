"""Connecting to a cluster through its nodes, or directly to its ZooKeeper.

    async with connect("herdbook://node-1:7180,node-2:7180/prod") as client:
        writer = await client.create_ledger()
        await writer.append(b"moo")

The url names nodes of the cluster, or its ZooKeeper servers, followed by the path under which the
cluster keeps its metadata. Everything else is found there: bookies by their registrations, ledgers
by their metadata. Nodes show a user only what the user may read; a client of ZooKeeper has all
rights that ZooKeeper gives it.

If a session is lost, a new one is opened, at another node if there is one. If a connection to a
bookie breaks, it is dialled again. The client continues, and only calls that were in progress
report that their outcome is unknown.

A program that works for another one, which knows the cluster already, goes `through` bookies'
servers.

Invariants:
- A client never makes a cluster: an address without one is an error.
- If none of the servers to go `through` passes the store on, the url is used.
- A server is taken for a node if it answers a greeting. Clients send no greeting to ZooKeeper's
  usual ports.
- After the block nothing of the connection runs in this process.
"""

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from engine.access.shown import ShownToken
from engine.errors import (
    AccessRefused,
    BookieUnavailable,
    EngineError,
    InvalidRequest,
    MetadataUnavailable,
    NoSuchCluster,
    NoZooKeeper,
)
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
_GREETING_MS: Final = 2_000
_PING_MS_MAX: Final = 5_000
_SERVERS_MAX: Final = 100
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

    `url` is "herdbook://host:port,host:port/path", with the hosts of nodes or of ZooKeeper. With
    nodes, the path may be left out. Unless `settings` say otherwise, entries go to three bookies
    and are acknowledged when two have them. `security` is what nodes and bookies require of the
    client and what it requires of them; `wire` chooses framed TCP, which is faster, or gRPC, which
    passes through proxies; `zookeeper` has the session's time-outs and credentials; `metrics` hears
    what the client does. Meanwhile threads take turns every `switch_interval_s`, as in
    `engine.open`. `through` names servers of bookies that are asked for the metadata first.
    Raises `InvalidRequest` for a malformed url, `NoZooKeeper` when no server of it answers,
    `NoSuchCluster` when there is no cluster under the url's path, `AccessRefused` when a node
    refuses the login.
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
        store = store or await _open_at_nodes(where, security, settings, clock, rng)
        store = store or await _open_zookeeper(where, zookeeper, rng)
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


async def _open_zookeeper(
    where: ClusterUrl, settings: "ZooKeeperSettings | None", rng: random.Random
) -> "ZooKeeperStore":
    """Like `open_metadata`, after no host has turned out to be a node."""
    try:
        return await open_metadata(where, settings, rng)
    except NoZooKeeper as error:
        if not where.possible_nodes:
            raise
        raise NoZooKeeper(
            f"{error}; no node answered there either: check whether a node is running, and whether "
            "it and this program both use TLS with matching authorities"
        ) from error


async def _open_through(
    through: "Through",
    security: "Security | None",
    settings: ClientSettings,
    clock: Clock,
    rng: random.Random,
) -> "RemoteStore | None":
    """The store as one of these servers passes it on; None if none of them does."""
    from engine.transport.security import NO_SECURITY

    # Users cannot log in at bookies, but bookies accept read tokens.
    servers = _Servers(through.addresses, rng, by_read_token=True)
    for _ in through.addresses:
        try:
            shown = security or NO_SECURITY
            return await servers.open(shown, settings, clock, through.cluster_id)
        except (EngineError, TimeoutError) as error:
            _logger.info("the metadata store is not asked through a bookie's server: %s", error)
    return None


async def _open_at_nodes(
    where: ClusterUrl,
    security: "Security | None",
    settings: ClientSettings,
    clock: Clock,
    rng: random.Random,
) -> "RemoteStore | None":
    """The store as one of the nodes of a url passes it on; None if the url names no node.

    Raises `NoSuchCluster`, `MetadataUnavailable` if no node serves the metadata, or
    `AccessRefused` if none does and one of them refused the client.
    """
    from engine.transport.security import NO_SECURITY

    shown = security or NO_SECURITY
    nodes = await _nodes_at(where, shown, clock)
    if not nodes:
        return None
    servers = _Servers(nodes, rng, by_read_token=not (shown.secret or shown.logs_in))
    failure: EngineError = BookieUnavailable("it did not answer in time")
    for _ in nodes:
        try:
            store = await servers.open(shown, settings, clock)
        except EngineError as error:
            # A node of an earlier version serves no metadata, and one that is stopping may be gone.
            failure = failure if isinstance(failure, AccessRefused) else error
            continue
        except TimeoutError:
            continue
        if where.chroot not in ("/", servers.path):
            await store.close()
            raise NoSuchCluster(f"the nodes of {where} serve the cluster at path {servers.path}")
        return store
    if isinstance(failure, AccessRefused):
        raise failure
    raise MetadataUnavailable(f"no node of {where} serves metadata: {failure}") from failure


async def _nodes_at(where: ClusterUrl, security: "Security", clock: Clock) -> tuple[str, ...]:
    """The addresses in a url at which nodes listen."""
    from engine.transport.address import TCP
    from engine.transport.framed_client import speaks_frames
    from engine.transport.framed_settings import FramedSettings

    brief = FramedSettings(connect_timeout_ms=_GREETING_MS)
    addresses = [TCP + one for one in where.possible_nodes]
    found = await asyncio.gather(*(speaks_frames(one, clock, brief, security) for one in addresses))
    return tuple(one for one, speaks in zip(addresses, found, strict=True) if speaks)


class _Servers:
    """Servers that pass the metadata store on. If one is lost, the next one is used."""

    def __init__(
        self, addresses: tuple[str, ...], rng: random.Random, *, by_read_token: bool
    ) -> None:
        self._named = rng.sample(addresses, len(addresses))
        self._told: list[str] = []
        self._by_read_token = by_read_token
        self._next = 0
        self._rng = rng
        self.path = "/"
        """The path of the cluster, once a server has reported it."""

    async def open(
        self, security: "Security", settings: ClientSettings, clock: Clock, cluster_id: str = ""
    ) -> "RemoteStore":
        """Open a session at the next server. Raises like `RemoteStore.open`, and `TimeoutError`."""
        from engine.metadata.remote import RemoteStore
        from engine.transport.framed_settings import FramedSettings

        # This is also how long a server that hangs has for the answer to a ping.
        wire = FramedSettings(connect_timeout_ms=min(_PING_MS_MAX, settings.metadata_timeout_ms))
        async with asyncio.timeout(settings.metadata_timeout_ms / 1000):
            return await RemoteStore.open(
                self._find,
                clock=clock,
                rng=self._rng,
                settings=wire,
                cluster_id=cluster_id,
                security=security,
                by_read_token=self._by_read_token,
                gives_up=False,
                welcomed=self._heard,
            )

    async def _find(self) -> str:
        addresses = [*self._named, *self._told]
        address = addresses[self._next % len(addresses)]
        self._next += 1
        return address

    def _heard(self, options: dict[str, Any]) -> None:
        from engine.transport.metadata_session import NODES, PATH

        self.path = str(options.get(PATH, self.path))
        told = options.get(NODES)
        others = [one for one in told if isinstance(one, str)] if isinstance(told, list) else []
        self._told = [one for one in others if one not in self._named][:_SERVERS_MAX]


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
