"""`herdbook bookie`: the bookies of this machine's disks, in the foreground.

Invariants:
- The first line printed says which bookies serve, and where; it comes when they do. The second one
  says that a signal came.
- On SIGTERM and SIGINT the bookies take nothing new, finish what they took, and the status is 0; a
  second signal ends the command at once.
- What keeps it from starting, or from going on, is one line on standard error, and the status is 1.
"""

import asyncio
import logging
import socket
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from engine.access.secret_files import shared_secrets_in
from engine.errors import EngineError
from herdbook.cli.late import Late, late
from herdbook.cli.store import refuse_url_as_data
from herdbook.finding import Configuration, ZooKeeperTable

if TYPE_CHECKING:
    from engine.access.audit import Audit
    from engine.repair.settings import RepairSettings
    from engine.server import BookieServer
    from engine.server_settings import ServerSettings
    from engine.transport.security import Security
    from herdbook.bookie_cluster import ClusterDoor

_CPU_DIGITS_MAX: Final = 4
OPEN_ZOOKEEPER: Final = (
    "warning: bookies ask for a proof and ZooKeeper does not: whoever reaches it can delete "
    "ledgers and switch repair off; give --zookeeper-user and --zookeeper-password-file"
)

LOOKING: Final = {
    "ls": Late(
        "herdbook.cli.bookies:list_bookies",
        "List the bookies that are registered, and those that are known but away.",
    ),
    "info": Late(
        "herdbook.cli.bookies:show_bookie",
        "Ask one bookie who it is and how full its disk is, and count its ledgers.",
    ),
    "check": Late(
        "herdbook.cli.bookies:check_bookies",
        "Ask bookies whether they serve; exit status 1 if any does not, or is not what it should "
        "be.",
    ),
    "gc": Late(
        "herdbook.cli.bookie_garbage:gc",
        "Show bookies that ask before they forget so many deleted ledgers, and answer them.",
    ),
    "decommission": Late(
        "herdbook.cli.repair:decommission",
        "Empty a bookie that is to go, and show what still keeps it. It may be stopped afterwards.",
    ),
    "forget": Late(
        "herdbook.cli.repair:forget",
        "Take a bookie that will not come back out of all lists, if no ledger names it.",
    ),
}

app = typer.Typer(
    cls=late(LOOKING),
    rich_markup_mode=None,
    help="Run bookies, and look at those of a cluster.",
    invoke_without_command=True,
    no_args_is_help=True,
)

Data = Annotated[
    list[Path] | None,
    typer.Option("--data", help="A folder on a disk: one bookie each. Repeat it."),
]
ZooKeeper = Annotated[
    str | None, typer.Option(help="The cluster's metadata: HOST:PORT,HOST:PORT/chroot.")
]
ZooKeeperUser = Annotated[str, typer.Option(help="Who this is to ZooKeeper: a digest's user.")]
ZooKeeperPassword = Annotated[
    Path | None, typer.Option(help="A file with the password of that user.")
]
ZooKeeperAuthorities = Annotated[
    Path | None,
    typer.Option(help="The authorities that sign ZooKeeper's certificates, PEM: use TLS."),
]
ZooKeeperCertificate = Annotated[
    Path | None, typer.Option(help="The client certificate for a ZooKeeper that requires one, PEM.")
]
ZooKeeperKey = Annotated[Path | None, typer.Option(help="That certificate's key, PEM.")]
Listen = Annotated[str, typer.Option(help="Where clients reach the bookies: HOST:PORT.")]
Grpc = Annotated[
    str, typer.Option(help="Where gRPC clients reach them: HOST:PORT. Default: no gRPC.")
]
Advertise = Annotated[
    str, typer.Option(help="What clients dial, if not --listen: for example a proxy's address.")
]
AdvertiseGrpc = Annotated[str, typer.Option(help="The same for --grpc.")]
Rack = Annotated[str, typer.Option(help="The rack, for placement. Example: /row-1/rack-7.")]
Zone = Annotated[str, typer.Option(help="The zone, for placement. Example: building-2.")]
Host = Annotated[
    str | None, typer.Option(help="The machine, for placement. Default: this machine's name.")
]
Cpus = Annotated[
    str,
    typer.Option(
        help="Run on these processors only (for example 0,2-3), without interrupting others there: "
        "for a process that shares its machine with its callers. Default: all."
    ),
]
CpuLatency = Annotated[
    int,
    typer.Option(
        help="While entries arrive, ask the processors of this machine to wake within this many "
        "microseconds. 0: they spin. -1: do not ask. Linux only: the user must be allowed to write "
        "to /dev/cpu_dma_latency.",
        min=-1,
        max=2_000_000_000,
    ),
]
SecretFile = Annotated[
    Path | None, typer.Option(help="A file with the secret that the whole cluster shares.")
]
Certificate = Annotated[Path | None, typer.Option(help="This server's certificate, PEM.")]
PrivateKey = Annotated[Path | None, typer.Option(help="The certificate's key, PEM.")]
Authorities = Annotated[
    Path | None,
    typer.Option(
        help="The authorities that sign clients' certificates, PEM: each client needs one."
    ),
]
Insecure = Annotated[
    bool, typer.Option(help="Serve other machines without asking them for any proof.")
]
MetricsAt = Annotated[str, typer.Option("--metrics", help="Serve Prometheus metrics at HOST:PORT.")]
RepairGrace = Annotated[
    int | None,
    typer.Option(
        help="How many milliseconds a bookie may be away before it is given up and its data is "
        "copied again. Default: 300000 (five minutes). Only the auditor's value counts, and any "
        "bookie process may be the auditor: give all of them the same value.",
        min=1,
    ),
]


@app.callback()
def bookie(
    context: typer.Context,
    data: Data = None,
    zookeeper: ZooKeeper = None,
    listen: Listen = "127.0.0.1:3181",
    grpc: Grpc = "",
    advertise: Advertise = "",
    advertise_grpc: AdvertiseGrpc = "",
    rack: Rack = "",
    zone: Zone = "",
    host: Host = None,
    cpus: Cpus = "",
    cpu_latency_us: CpuLatency = -1,
    secret_file: SecretFile = None,
    certificate: Certificate = None,
    private_key: PrivateKey = None,
    authorities: Authorities = None,
    insecure: Insecure = False,
    metrics: MetricsAt = "",
    repair_grace_ms: RepairGrace = None,
    zookeeper_user: ZooKeeperUser = "",
    zookeeper_password_file: ZooKeeperPassword = None,
    zookeeper_authorities: ZooKeeperAuthorities = None,
    zookeeper_certificate: ZooKeeperCertificate = None,
    zookeeper_private_key: ZooKeeperKey = None,
) -> None:
    """Run a bookie in each folder. SIGTERM drains and stops them, a second one stops at once."""
    if context.invoked_subcommand is not None:
        return
    data, zookeeper = _checked(data, zookeeper)
    from engine.server_settings import ServerSettings

    with _failing():
        security = security_of(secret_file, certificate, private_key, authorities)
        settings = ServerSettings(
            listen=listen,
            grpc=grpc,
            advertise=advertise,
            advertise_grpc=advertise_grpc,
            host=socket.gethostname() if host is None else host,
            rack=rack,
            zone=zone,
            cpus=_processors(cpus),
            cpu_latency_us=cpu_latency_us,
            insecure=insecure,
            passes_metadata_on=security.on or not zookeeper_user,
            repair=_repair_settings(repair_grace_ms),
        )
        door = _door(zookeeper, _zookeeper_told(context), data, security)
        _run(_serve(data, door, settings, security, metrics))


def _checked(data: list[Path] | None, zookeeper: str | None) -> tuple[list[Path], str]:
    """The folder and the store's url, if both are given. Raises `typer.BadParameter`."""
    if not data or not zookeeper:
        option = "--zookeeper" if data else "--data"
        raise typer.BadParameter("a bookie needs --data and --zookeeper", param_hint=option)
    for folder in data:
        refuse_url_as_data(folder, "a bookie keeps its entries in a folder of this machine")
    return data, zookeeper


@contextmanager
def _failing() -> Iterator[None]:
    """End the command with one line if the block fails."""
    try:
        yield
    except (EngineError, OSError) as error:
        typer.echo(f"{type(error).__name__}: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from error


def _audit(security: "Security") -> "Audit":
    """Who hears of strangers: nobody, where a bookie does not know any."""
    from engine.access.audit import NO_AUDIT
    from herdbook.access.auditing import configured_audit

    return configured_audit("bookie") if security.secret else NO_AUDIT


def _run(serving: Coroutine[Any, Any, None]) -> None:
    from engine.folder.modes import set_private_umask
    from engine.ports.system_loop import new_event_loop

    set_private_umask()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serving)


def security_of(
    secret_file: Path | None,
    certificate: Path | None,
    private_key: Path | None,
    authorities: Path | None,
) -> "Security":
    """Security from files. Raises `InvalidRequest` for a secret that cannot be read."""
    from engine.transport.security import Security

    def read() -> Security:
        secret, other = shared_secrets_in(secret_file)
        return Security(secret, certificate, private_key, authorities, other_secret=other)

    return Security.renewed(read)


def _zookeeper_told(context: typer.Context) -> ZooKeeperTable:
    """The options that begin with `--zookeeper-`."""
    said = {name: context.params[f"zookeeper_{name}"] for name in ZooKeeperTable.__struct_fields__}
    return ZooKeeperTable(**{name: str(value) for name, value in said.items() if value})


def _door(
    zookeeper: str, told: ZooKeeperTable, data: list[Path], security: "Security"
) -> "ClusterDoor":
    """The way to the cluster's metadata. Raises `InvalidRequest`."""
    from engine.metadata.cluster_url import SCHEME, parse_url
    from engine.metadata.zookeeper_settings import unencrypted_password
    from herdbook.bookie_cluster import ClusterDoor

    where = parse_url(SCHEME + zookeeper.removeprefix(SCHEME))
    settings = Configuration(zookeeper=told).make_zookeeper()
    if security.on and not told.user:
        _say_aside(OPEN_ZOOKEEPER)
    if why := unencrypted_password(where.hosts, told.user, settings.tls.encrypts):
        _say_aside(f"warning: {why}, with --zookeeper-authorities")
    return ClusterDoor(where, settings, data, _say_aside)


async def _serve(
    data: list[Path],
    door: "ClusterDoor",
    settings: "ServerSettings",
    security: "Security",
    metrics_at: str,
) -> None:
    from engine.ports.clock import SystemClock
    from engine.server import serve
    from engine.server_settings import check_listeners

    # Before the way to the metadata store is gone: on it a new cluster is made.
    check_listeners(settings, security)
    _log_with_times()

    def started(server: "BookieServer", more: str = "") -> None:
        door.remember()
        _say(server, more)

    run = partial(
        serve,
        data,
        open_store=door.open,
        settings=replace(settings, audit=_audit(security)),
        security=security,
        started=started,
        draining=_say_farewell,
    )
    if not metrics_at:
        await run()
        return
    from herdbook.metrics import MetricsServer, PrometheusMetrics

    measures = PrometheusMetrics()
    page = await MetricsServer.start(measures, metrics_at, SystemClock())
    try:
        await run(
            metrics=measures,
            started=lambda server: started(server, f", metrics at {page.url}"),
        )
    finally:
        await page.close()


def _processors(named: str) -> frozenset[int]:
    """The numbers in "0,2-3"."""
    found: set[int] = set()
    for part in named.split(",") if named else ():
        first, _, last = part.partition("-") if "-" in part else (part, "", part)
        spelled = first.isdecimal() and last.isdecimal() and len(last) <= _CPU_DIGITS_MAX
        if not spelled or int(first) > int(last):
            raise typer.BadParameter("processors are named as 0,2-3", param_hint="--cpus")
        found.update(range(int(first), int(last) + 1))
    return frozenset(found)


def _say(server: "BookieServer", more: str = "") -> None:
    also = f", gRPC at {server.grpc_address}" if server.grpc_address else ""
    typer.echo(f"serving {' '.join(server.bookies)} at {server.address}{also}{more}")


def _log_with_times() -> None:
    """What happens to the cluster goes to standard error, each line with its moment."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("engine").setLevel(logging.INFO)


def _say_aside(line: str) -> None:
    typer.echo(line, err=True)


def _say_farewell() -> None:
    typer.echo("draining; a second signal ends it at once")


def _repair_settings(grace_ms: int | None) -> "RepairSettings | None":
    from engine.repair.settings import RepairSettings

    if grace_ms is None:
        return None
    return RepairSettings(lost_bookie_grace_ms=grace_ms)
