"""What each role of a cluster's node is, on the real machine: settings in, a service until its end.

Invariants:
- A role says where it serves when it does, not before.
- What a role asks of the cluster it asks as any client does: by the file `client.toml` in the
  node's folder, which names the files of secrets and holds none.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from engine.errors import FolderError
from engine.folder.modes import ensure_private
from engine.ledger.capacity import Capacity, watched
from engine.ports.clock import SystemClock
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.system_disk import SystemDisk, naming
from engine.ports.system_workers import ThreadWorkers
from herdbook.finding import Configuration
from herdbook.node.reading import toml_value
from herdbook.node.settings import NodeSettings, Role

if TYPE_CHECKING:
    from engine.repair.settings import RepairSettings
    from engine.server import BookieServer
    from herdbook.http.serving import HttpServerSettings
    from herdbook.node.opening import FolderOpening, OpenFolder

Serving = Callable[[str], None]
_LOOKING_END_S: Final = 0.5
_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """What a role is told: to serve until `ended` is set; `serving` hears where, when it does."""

    settings: NodeSettings
    serving: Serving
    ended: asyncio.Event
    lacking: Callable[[], str]
    """Which roles of the node do not serve now; "": all do."""
    folder: "FolderOpening | None" = None
    """The folder that the node serves, opened once for all roles; None for a cluster's node."""
    once: str = field(default="", repr=False)
    """A ticket for one login over HTTP."""


Run = Callable[[Service], Awaitable[None]]
CLIENT_FILE: Final = "client.toml"


def write_client_file(settings: NodeSettings) -> Path:
    """The configuration by which this machine's clients reach the node's cluster.

    Raises `FolderError` if the node's own folder, which was made at its start, is gone.
    """
    told = {"url": settings.store, "wire": settings.wire, "survives": settings.survives}
    # An empty setting is left out: earlier programs refuse keys that they do not know.
    lines = [f"{name} = {toml_value(value)}" for name, value in told.items() if value]
    for name in ("security", "zookeeper", "audit"):
        lines += ["", f"[{name}]"]
        table = msgspec.structs.asdict(getattr(settings, name))
        lines += [f"{key} = {toml_value(value)}" for key, value in table.items() if value]
    file = settings.own_folder / CLIENT_FILE
    if not file.parent.is_dir():
        raise FolderError(
            f"{settings.data}, or the node's own folder in it, is missing: mount its disk; nothing "
            "is created there while the node runs"
        )
    text = "\n".join(lines) + "\n"
    if file.is_file() and file.read_bytes() == text.encode():
        return file
    # Each process of a node writes it, several at once.
    new = file.with_suffix(f".{os.getpid()}.new")
    with naming(file):
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    return file


async def _bookie(service: Service) -> None:
    from engine.access.audit import NO_AUDIT
    from engine.metadata.cluster_url import parse_url
    from engine.server import serve
    from engine.server_settings import ServerSettings
    from herdbook.access.auditing import configured_audit
    from herdbook.bookie_cluster import ClusterDoor

    settings = service.settings
    table, configuration = settings.bookie, configuration_of(settings)
    folders = settings.bookie_folders()
    door = ClusterDoor(
        parse_url(settings.url), configuration.make_zookeeper(), folders, _logger.info
    )

    def started(server: "BookieServer") -> None:
        door.remember()
        also = f", gRPC at {server.grpc_address}" if server.grpc_address else ""
        service.serving(f"{server.address}{also}")

    security = configuration.make_security()
    async with _measured(table.metrics) as metrics:
        await serve(
            folders,
            open_store=door.open,
            settings=ServerSettings(
                listen=table.listen,
                grpc=table.grpc,
                advertise=settings.reached(table.listen, table.advertise),
                advertise_grpc=settings.reached(table.grpc, table.advertise_grpc),
                host=settings.name,
                rack=settings.rack,
                zone=settings.zone,
                cpu_latency_us=table.cpu_latency_us,
                insecure=settings.insecure,
                passes_metadata_on=security.on or not settings.zookeeper.user,
                repair=_repair_settings(settings),
                audit=configured_audit("bookie") if security.secret else NO_AUDIT,
                repair_elsewhere=Role.REPAIR in settings.roles or not table.repairs,
                bookie=settings.bookie_settings,
            ),
            security=configuration_of(settings).make_security(),
            metrics=metrics,
            started=lambda node: service.serving(node.address),
            ended=service.ended,
        )


async def _repair(service: Service) -> None:
    from engine.repair.measures import watch_repair
    from engine.repair.node import RepairNode
    from herdbook.finding import open_store

    settings = service.settings
    async with open_store(settings.url) as client, _measured(settings.repair.metrics) as metrics:
        node = RepairNode(
            store=client.store,
            transport=client.transport,
            clock=client.clock,
            rng=client.rng,
            settings=_repair_settings(settings),
        )
        watch_repair(metrics, node)
        try:
            await node.start()
            service.serving(settings.url)
            await service.ended.wait()
        finally:
            await node.close()


async def _herd(service: Service) -> None:
    from engine.replica import ReplicaSettings
    from herd.nodes import NodeSettings as HostSettings
    from herd.settings import HerdSettings
    from herdbook.finding import open_store
    from herdbook.herd_node import HerdNodeSettings, serve_node

    settings = service.settings
    table, bounds = settings.herd, settings.bounds
    herd = HerdNodeSettings(
        listen=table.listen,
        grpc=table.grpc,
        advertise=settings.reached(table.listen, table.advertise),
        insecure=settings.insecure,
        host=settings.name,
        reserve_bytes=settings.reserve_bytes,
        zookeeper_user=settings.zookeeper.user,
        node=HostSettings(
            grace_ms=table.replica_grace_ms,
            replicas_planned=settings.memory.tablespaces if settings.memory.bytes_max else 0,
            suspend_after_ms=table.suspend_after_ms,
        ),
        herd=HerdSettings(
            transaction_bytes_max=bounds.transaction_bytes,
            query_bytes=bounds.query_bytes,
            columns_bytes=bounds.columns_bytes,
        ),
        replica=ReplicaSettings(
            pending_bytes_max=bounds.pending_bytes, unwritten_bytes_max=bounds.unwritten_bytes
        ),
    )

    data = settings.folder(Role.HERD)
    ensure_private(data)
    async with (
        open_store(settings.url) as client,
        _watching(client.capacity, [data], settings),
        _measured(table.metrics) as metrics,
    ):
        await serve_node(
            data.absolute(),
            client,
            herd,
            security=configuration_of(settings).make_security(),
            metrics=metrics,
            started=lambda node: service.serving(node.address),
            ended=service.ended,
        )


@asynccontextmanager
async def _opened(service: Service) -> "AsyncIterator[OpenFolder | None]":
    """The folder that the node serves, open as long as the block lasts; None in a cluster."""
    if service.folder is None:
        yield None
        return
    async with service.folder.use() as opened:
        yield opened


async def _broker(service: Service) -> None:
    from herdbook.task_server import TaskServerSettings, renewed_users, serve_tasks

    settings = service.settings
    table = settings.broker
    http = settings.reached(table.listen, "")
    scheme = "https" if table.certificate else "http"
    state = None
    if settings.clustered:
        state = settings.folder(Role.BROKER)
    tasks = TaskServerSettings(
        listen=table.listen,
        grpc=table.grpc,
        advertise=settings.reached(table.grpc, table.advertise),
        advertise_http=table.advertise_http or (f"{scheme}://{http}" if _fixed(http) else ""),
        state=state,
        users=renewed_users(Path(table.users)) if table.users else (),
        insecure=settings.insecure,
        certificate=Path(table.certificate) if table.certificate else None,
        private_key=Path(table.private_key) if table.private_key else None,
        lease_ms=table.lease_ms,
        discover=table.discover,
        on_alarm=table.on_alarm,
        proxies=table.proxies,
        keeping=settings.bookie_settings,
    )
    async with _opened(service) as opened:
        await serve_tasks(
            settings.store,
            tasks,
            lambda url: service.serving(f"{url}, gRPC at {table.grpc}"),
            opened=opened,
            ended=service.ended,
        )


def http_settings(settings: NodeSettings, once: str = "") -> "HttpServerSettings":
    """The settings of a node's HTTP. `once`: a ticket for one login."""
    from herdbook.http.serving import HttpServerSettings
    from herdbook.http.settings import WebSettings

    table = settings.http
    reached = settings.reached(table.listen, "")
    scheme = "https" if table.certificate else "http"
    return HttpServerSettings(
        listen=table.listen,
        advertise=table.advertise or (f"{scheme}://{reached}" if _fixed(reached) else ""),
        certificate=Path(table.certificate) if table.certificate else None,
        private_key=Path(table.private_key) if table.private_key else None,
        insecure=settings.insecure,
        proxies=table.proxies,
        web=WebSettings(names=table.hosts, open_metrics=table.open_metrics, once=once),
    )


async def _http(service: Service) -> None:
    from herdbook.http.serving import serve_http

    settings = service.settings
    served = http_settings(settings, service.once)
    disks = Capacity(0)
    async with (
        _opened(service) as opened,
        _watching(disks, settings.data_folders, settings),
    ):
        await serve_http(
            settings.store,
            served,
            opened=opened,
            lacking=lambda: service.lacking() or disks.lack_on_disks,
            started=lambda served: service.serving(served.url),
            ended=service.ended,
        )


@asynccontextmanager
async def _watching(
    capacity: Capacity, folders: Iterable[Path], settings: NodeSettings
) -> AsyncIterator[None]:
    """Count the disks of a node's folders as long as the block lasts.

    Nothing else uses the threads that look at them, so a disk that hangs does not delay the end.
    """
    workers = ThreadWorkers(asyncio.get_running_loop())
    keeping = settings.bookie_settings
    disks = [watched(folder, SystemDisk(folder), keeping) for folder in folders]
    try:
        async with capacity.watching(disks, workers):
            yield
    finally:
        with suppress(TimeoutError):
            await asyncio.wait_for(workers.close(), _LOOKING_END_S)


async def _folder(service: Service) -> None:
    """A folder's bookies: they run here, or in another process that has the folder open."""
    async with _opened(service):
        service.serving(service.settings.data)
        await service.ended.wait()


async def _tablespaces(service: Service) -> None:
    """A folder's tablespaces: they run here, or in another process that has them open."""
    async with _opened(service) as opened:
        assert opened is not None
        await (await opened.book.sql()).close()
        service.serving(service.settings.data)
        await service.ended.wait()


OF_CLUSTER: Final[Mapping[Role, Run]] = {
    Role.BOOKIE: _bookie,
    Role.REPAIR: _repair,
    Role.HERD: _herd,
    Role.BROKER: _broker,
    Role.HTTP: _http,
}
OF_FOLDER: Final[Mapping[Role, Run]] = {
    Role.BOOKIE: _folder,
    Role.HERD: _tablespaces,
    Role.BROKER: _broker,
    Role.HTTP: _http,
}


def _fixed(address: str) -> bool:
    """Whether an address says the port; 0 is one that is not known yet."""
    return not address.endswith(":0")


def configuration_of(settings: NodeSettings) -> Configuration:
    """The configuration for clients of the node's cluster on this machine."""
    return Configuration(
        url=settings.url,
        wire=settings.wire,
        security=settings.security,
        zookeeper=settings.zookeeper,
    )


def _repair_settings(settings: NodeSettings) -> "RepairSettings":
    from engine.repair.settings import RepairSettings

    table = settings.repair
    return RepairSettings(
        lost_bookie_grace_ms=table.grace_ms,
        scrub_interval_ms=table.scrub_interval_ms,
        copy_bytes_a_second=table.copy_bytes_a_second,
    )


@asynccontextmanager
async def _measured(listen: str) -> AsyncIterator[Metrics]:
    """Metrics, shown at an address as long as the block lasts; none without one."""
    if not listen:
        yield NO_METRICS
        return
    from herdbook.metrics import MetricsServer, PrometheusMetrics

    metrics = PrometheusMetrics()
    page = await MetricsServer.start(metrics, listen, SystemClock())
    try:
        yield metrics
    finally:
        await page.close()
