"""What a server of bookies is told: values, and what can be wrong with them before it starts."""

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from engine.access.audit import NO_AUDIT, Audit
from engine.bookie.settings import BookieSettings
from engine.bookie.upkeep import UpkeepSettings
from engine.errors import InvalidRequest
from engine.ports.system_files import raise_files_max
from engine.transport.address import is_loopback, parse_host_port
from engine.transport.framed_settings import FramedSettings
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import Security

if TYPE_CHECKING:
    from engine.repair.settings import RepairSettings


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a server listens and what it says of itself. Times in milliseconds.

    `listen` and `grpc` are "host:port" (port 0: a free one; `grpc` "": no gRPC). `advertise` and
    `advertise_grpc` are what clients dial, if that is something else. `host` names the machine,
    `rack` the rack and `zone` the zone, for placement. `insecure` allows listening to other
    machines without any proof from them. With `passes_metadata_on`, clients that are let in may
    use the metadata store through this server. Ending takes at most about `drain_timeout_ms`. With
    `repair_elsewhere`, other processes are the auditor and copy; this one only clears the doubts of
    its own bookies and gives back their surplus. `audit` is told of clients that are not let in.
    `cpus` are for a server that shares its machine with its callers (`keep_to`); if empty, it runs
    on any processor. While entries arrive, the processors of the machine are asked to wake within
    `cpu_latency_us` (`CpuLatency`); -1: they are not asked.
    """

    listen: str = "127.0.0.1:0"
    grpc: str = ""
    advertise: str = ""
    advertise_grpc: str = ""
    host: str = ""
    rack: str = ""
    zone: str = ""
    insecure: bool = False
    passes_metadata_on: bool = True
    drain_timeout_ms: int = 10_000
    bookie: BookieSettings = field(default_factory=BookieSettings)
    wire: FramedSettings = field(default_factory=FramedSettings)
    grpc_wire: GrpcSettings = field(default_factory=GrpcSettings)
    upkeep: UpkeepSettings = field(default_factory=UpkeepSettings)
    repair: "RepairSettings | None" = None
    repair_elsewhere: bool = False
    audit: Audit = NO_AUDIT
    cpus: frozenset[int] = frozenset()
    cpu_latency_us: int = -1


def check_listeners(settings: ServerSettings, security: Security) -> None:
    """Raises `InvalidRequest` for an address that is none, or at which anybody could write."""
    for advertised in filter(None, (settings.advertise, settings.advertise_grpc)):
        parse_host_port(advertised)
    addresses = filter(None, (settings.listen, settings.grpc))
    hosts = {listen: parse_host_port(listen)[0] for listen in addresses}
    if security.on or settings.insecure:
        return
    for listen, host in hosts.items():
        if not is_loopback(host):
            raise InvalidRequest(
                f"anybody who reaches {listen} could write: give a secret or authorities, "
                "listen at 127.0.0.1, or say --insecure"
            )


def with_room_for_files(settings: ServerSettings) -> ServerSettings:
    """As many open files as the system allows, and never more connections than fit in them, of both
    wires together.

    A journal that cannot open its next segment would stop its bookie.
    """
    files = raise_files_max()
    wire, grpc_wire = settings.wire, settings.grpc_wire
    share = files // 4 if settings.grpc else files // 2
    return replace(
        settings,
        wire=replace(wire, connections_max=max(16, min(wire.connections_max, share))),
        grpc_wire=replace(
            grpc_wire, connections_max=max(16, min(grpc_wire.connections_max, share))
        ),
    )


def keep_to(cpus: frozenset[int]) -> None:
    """Keep this process, and all that it starts from now on, to these processors.

    There it interrupts nobody: who calls several servers of one machine, one after the other, has
    called the last before the first begins. Beside a process that only computes it waits for its
    turn, as much as some milliseconds.
    Raises `InvalidRequest` for a processor that there is not, or where the system cannot do it.
    """
    if not cpus:
        return
    named = ",".join(map(str, sorted(cpus)))
    try:
        lacking = cpus - os.sched_getaffinity(0)
        if lacking:
            raise InvalidRequest(f"cannot keep to the processors {named}: {min(lacking)} is none")
        os.sched_setaffinity(0, cpus)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError) as error:
        raise InvalidRequest(f"cannot keep to the processors {named}: {error}") from error
