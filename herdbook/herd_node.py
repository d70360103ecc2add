"""One node of tablespaces on the real machine: its folder, its replicas, the wire to its clients.

Invariants:
- A folder has one node at a time: its lock is held as long as the node is.
- It listens before it registers, so nobody is sent to a port that refuses.
- Without a proof asked of them, clients of other machines are served only where that is wanted.
- Told to end it leaves: others lead at once.
"""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from engine.access.audit import NO_AUDIT
from engine.access.door import Door
from engine.access.signing import ReadSigner
from engine.bookie.settings import BookieSettings
from engine.connecting import Connection
from engine.errors import FolderLocked, InvalidRequest
from engine.extras import needing_cluster
from engine.folder.lock import FolderLock, is_locked
from engine.ledger.client import LedgerClient
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.switching import SWITCH_INTERVAL_S
from engine.ports.system_memory import return_memory
from engine.ports.system_signals import ended_by_signals
from engine.ports.system_workers import ThreadWorkers
from engine.replica import ReplicaSettings
from engine.transport.address import is_loopback, join_host_port, parse_host_port
from engine.transport.listening import Listener, listen_tcp
from engine.transport.metadata_session import CLUSTER, NODES, PATH
from engine.transport.security import NO_SECURITY, Security
from herd.nodes import Node, NodeSettings
from herd.nodes.states import FolderStates, identity_of
from herd.settings import HerdSettings
from herd.wire.framed_server import SessionServer
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings
from herdbook.access.metadata_rights import metadata_for
from herdbook.access.opening import users_door

TCP: Final = "tcp:"
_LOCK: Final = "lock"
_QUERIES: Final = "queries"
_LISTED_S: Final = 5.0
_BACKLOG: Final = 1_024
_TOLD_NODES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class HerdNodeSettings:
    """Where a node listens, what clients dial instead (`advertise`), whom it serves, and what
    people call it (`host`).

    `grpc` is where it serves the public wire, "host:port"; empty: nowhere. Of `reserve_bytes` on
    its disk (0: the usual part) queries leave twice as much free. `zookeeper_user` is
    the user of this node at ZooKeeper; if there is one, a node that requires no proof from its
    clients serves no metadata.
    """

    listen: str = "127.0.0.1:7180"
    grpc: str = ""
    advertise: str = ""
    insecure: bool = False
    node: NodeSettings = field(default_factory=NodeSettings)
    herd: HerdSettings = field(default_factory=HerdSettings)
    replica: ReplicaSettings = field(default_factory=ReplicaSettings)
    wire: WireSettings = field(default_factory=WireSettings)
    host: str = ""
    reserve_bytes: int = 0
    zookeeper_user: str = ""


async def serve_node(
    data: Path,
    client: LedgerClient,
    settings: HerdNodeSettings,
    *,
    security: Security = NO_SECURITY,
    metrics: Metrics = NO_METRICS,
    started: Callable[[Node], None] | None = None,
    leaving: Callable[[], None] | None = None,
    ended: asyncio.Event | None = None,
) -> None:
    """Run a node in a folder until `ended` is set; without one, until SIGTERM or SIGINT, a second
    of which ends the process at once.

    `started` hears when it serves, `leaving` when it begins to leave. Raises `FolderLocked`,
    `FolderMismatch`, `InvalidRequest`, of the engine, and `OperationalError` for the folder of
    another cluster.
    """
    _check_listener(settings, security)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    ended = ended if ended is not None else ended_by_signals()
    async with AsyncExitStack() as stack:
        workers = ThreadWorkers(asyncio.get_running_loop())
        stack.push_async_callback(workers.close)
        lock = FolderLock.of(data / _LOCK)
        stack.callback(lock.close)
        if not lock.try_take():
            raise FolderLocked(_in_use(data))
        node = await _made(stack, data, client, settings, workers, metrics)
        security = security.as_node()
        door = await stack.enter_async_context(users_door(client, security, "herd", readers=True))
        service = HerdService(
            node,
            workers,
            settings.wire,
            signer=ReadSigner(security.token_keys, client.clock) if security.secret else None,
            audit=door.audit if door is not None else NO_AUDIT,
        )
        await _serve(stack, service, client, settings, security, door, partial(_told, client, node))
        node.start()
        # Whoever reads that it serves may use it; without a metadata store it serves all the same.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LISTED_S):
                await node.listed()
        if started is not None:
            started(node)
        await ended.wait()
        if leaving is not None:
            leaving()


def check_free(data: Path) -> None:
    """Raise `FolderLocked` if a node runs in this folder. This creates no file."""
    if is_locked(data / _LOCK):
        raise FolderLocked(_in_use(data))


def _in_use(data: Path) -> str:
    return f"{data} is in use by another node: stop that one first"


async def _made(
    stack: AsyncExitStack,
    data: Path,
    client: LedgerClient,
    settings: HerdNodeSettings,
    workers: ThreadWorkers,
    metrics: Metrics,
) -> Node:
    """The node of a folder, which is locked, until the stack ends. Raises as `serve_node`."""
    from herd.sql.query_processes import query_processes

    kept = partial(BookieSettings().keeping(settings.reserve_bytes).kept_bytes, full=True)
    processes = query_processes(settings.herd.query_bytes, data / _QUERIES, kept)
    pool = await stack.enter_async_context(processes)
    drawn = f"{random.SystemRandom().getrandbits(48):012x}"
    identity = await workers.run(partial(identity_of, data, client.store.cluster_id, drawn))
    node = Node(
        client,
        identity.node_id,
        _address(settings),
        FolderStates(data, workers),
        workers,
        host=settings.host,
        settings=settings.node,
        herd=settings.herd,
        replica=settings.replica,
        metrics=metrics,
        query_pool=pool,
        return_memory=partial(return_memory, workers),
    )
    stack.push_async_callback(node.close)
    return node


def _address(settings: HerdNodeSettings) -> str:
    host, port = parse_host_port(settings.listen)
    if not port:
        raise InvalidRequest("a node listens at a port that clients find again after a restart")
    return TCP + (settings.advertise or join_host_port(host, port))


def _told(client: LedgerClient, node: Node) -> dict[str, Any]:
    """The options of WELCOME for a metadata session: the cluster, and which nodes serve it."""
    addresses = [fact.address for fact in node.outlook.nodes.values()][:_TOLD_NODES_MAX]
    told = {CLUSTER: client.store.cluster_id, NODES: addresses}
    return told | {PATH: client.url.chroot} if isinstance(client, Connection) else told


async def _listen(server: SessionServer, settings: HerdNodeSettings) -> Listener:
    host, port = parse_host_port(settings.listen)
    return await listen_tcp(
        server.accept_counted,
        host,
        port,
        sockets_max=server.sockets_max,
        context=server.context,
        handshake_timeout_ms=settings.wire.connect_timeout_ms,
        backlog=_BACKLOG,
    )


async def _serve(
    stack: AsyncExitStack,
    service: HerdService,
    client: LedgerClient,
    settings: HerdNodeSettings,
    security: Security,
    door: Door | None,
    told: Callable[[], dict[str, Any]],
) -> None:
    """Serve all wires until the stack ends."""
    opened = partial(metadata_for, client.store, client.clock.wall_ms, time=client.time)
    server = SessionServer(
        service,
        security=security,
        door=door,
        open_metadata=opened if security.on or not settings.zookeeper_user else None,
        told=told,
    )
    stack.push_async_callback(server.close)
    listener = await _listen(server, settings)
    stack.callback(listener.close)
    if settings.grpc:
        grpc = await _serve_grpc(service, client, settings.grpc, security, door)
        stack.push_async_callback(grpc)


async def _serve_grpc(
    service: HerdService, client: LedgerClient, listen: str, security: Security, door: Door | None
) -> Callable[[], Awaitable[None]]:
    """Serve the public wire, too; returns what ends that. Raises `InvalidRequest`."""
    # gRPC loads on first use.
    with needing_cluster():
        from herd.wire.grpc_server import GrpcSessionServer

        try:
            server = await GrpcSessionServer.start(
                service,
                listen=listen,
                clock=client.clock,
                rng=random.SystemRandom(),
                security=security,
                door=door,
                lack=lambda: client.capacity.lack,
            )
        except OSError as error:
            raise InvalidRequest(f"cannot listen at {listen}: {error}") from error
    return server.close


def _check_listener(settings: HerdNodeSettings, security: Security) -> None:
    for listen in filter(None, (settings.listen, settings.grpc)):
        host, _ = parse_host_port(listen)
        if not (security.on or settings.insecure or is_loopback(host)):
            raise InvalidRequest(
                f"anybody who reaches {listen} could write: give a secret or authorities, "
                "listen at 127.0.0.1, or say --insecure"
            )
