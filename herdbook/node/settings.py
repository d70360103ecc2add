"""What a node is told: one structure, a table a role. Plain values; secrets are names of files.

    roles = ["bookie", "herd", "broker", "http"]
    url = "herdbook://zookeeper-1:2181,zookeeper-2:2181/prod"   # left out: the folder `data` alone
    data = "/var/lib/herdbook"
    [herd]
    listen = "0.0.0.0:7180"

Times are in milliseconds. Paths are relative to the file that says them, else to the folder in
which the command was called.

Invariants:
- Nothing here opens, reads or listens; `herdbook.node.checking` says what is wrong with it.
"""

import socket
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from engine.bookie.settings import BookieSettings
from engine.transport.address import join_host_port, parse_host_port
from herdbook.finding import AuditTable, SecurityTable, ZooKeeperTable, is_cluster
from herdbook.memory_plan import USUAL, Bounds, Holding, plan

PLACE: Final = {"kind": "place"}
FILE: Final = {"kind": "file"}
Place = Annotated[str, Meta(extra=PLACE)]
"""A folder; made if it is not there."""
File = Annotated[str, Meta(extra=FILE)]
"""A file that has to be there."""
Milliseconds = Annotated[int, Meta(ge=1)]
EVERYWHERE: Final = ("0.0.0.0", "::", "")


class Role(StrEnum):
    """What a node can be, in the order in which the roles start; they end in the opposite one."""

    BOOKIE = "bookie"
    REPAIR = "repair"
    HERD = "herd"
    BROKER = "broker"
    HTTP = "http"


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file."""


class BookieTable(Table, frozen=True):
    """Bookies: one in each of `folders`; none named: one in `data`/bookie."""

    folders: tuple[Place, ...] = ()
    listen: str = "127.0.0.1:3181"
    grpc: str = ""
    advertise: str = ""
    advertise_grpc: str = ""
    metrics: str = ""
    cpu_latency_us: Annotated[int, Meta(ge=-1, le=2_000_000_000)] = -1
    """Within how long processors are asked to wake while entries come; 0: they spin, -1: never."""
    repairs: bool = True
    """Whether this process also repairs, where the node has no role `repair`."""


class RepairTable(Table, frozen=True):
    """Repair, wherever it runs. Give all nodes the same: that of the elected auditor counts."""

    grace_ms: Milliseconds = 300_000
    scrub_interval_ms: Annotated[int, Meta(ge=0)] = 7 * 24 * 3_600_000
    copy_bytes_a_second: Annotated[int, Meta(ge=0)] = 64 * 1024 * 1024
    metrics: str = ""
    """Where Prometheus finds `/metrics` of the role `repair`; empty: nowhere."""


class HerdTable(Table, frozen=True):
    """Tablespaces."""

    listen: str = "127.0.0.1:7180"
    grpc: str = ""
    advertise: str = ""
    metrics: str = ""
    replica_grace_ms: Milliseconds = 60_000
    suspend_after_ms: Annotated[int, Meta(ge=0)] = 60_000
    """How long nobody uses a tablespace until it is suspended, with its memory; 0: never."""


class BrokerTable(Table, frozen=True):
    """Tasks. Workers connect to `grpc`; brokers ask each other, and commands them, at `listen`."""

    listen: str = "127.0.0.1:7364"
    grpc: str = "127.0.0.1:7365"
    advertise: str = ""
    advertise_http: str = ""
    users: File = ""
    certificate: File = ""
    private_key: File = ""
    lease_ms: Annotated[int, Meta(ge=500)] = 10_000
    discover: dict[str, tuple[str, ...]] = {}
    on_alarm: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose X-Forwarded-For is trusted."""


class HttpTable(Table, frozen=True):
    """The HTTP interface and the console."""

    listen: str = "127.0.0.1:7380"
    advertise: str = ""
    hosts: tuple[str, ...] = ()
    """Names that browsers may call this server by, beside its own address."""
    proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose X-Forwarded-For is trusted."""
    certificate: File = ""
    private_key: File = ""
    open_metrics: bool = False
    """Whether /metrics is shown to whoever asks."""


class SupervisorTable(Table, frozen=True):
    """How roles are started again and ended.

    A role that ends is started again after `restart_pause_ms`, doubled each time up to
    `restart_pause_ms_max`, and counts as well again after `steady_ms`; after `restarts_max` in a
    row the node ends. Ending takes at most `stop_timeout_ms`, then what still runs is killed. A
    role whose event loop gives no sign of life for `silence_ms` counts as silent, and is killed and
    started again after `silence_ms_max`; 0: never.
    """

    restart_pause_ms: Milliseconds = 500
    restart_pause_ms_max: Milliseconds = 30_000
    restarts_max: Annotated[int, Meta(ge=0)] = 10
    steady_ms: Milliseconds = 60_000
    stop_timeout_ms: Milliseconds = 60_000
    silence_ms: Annotated[int, Meta(ge=100)] = 5_000
    silence_ms_max: Annotated[int, Meta(ge=0)] = 60_000

    @property
    def beat_ms(self) -> float:
        """How often a loop gives a sign of life, milliseconds."""
        return self.silence_ms / 5


class SlowTable(Table, frozen=True):
    """From how many milliseconds on an operation has a line in the log; 0: never."""

    append_ms: Annotated[int, Meta(ge=0)] = 500
    """Until a bookie has acknowledged appends."""
    sync_ms: Annotated[int, Meta(ge=0)] = 500
    """A sync of a bookie's journal."""
    sql_ms: Annotated[int, Meta(ge=0)] = 1_000
    """A statement; of one row by its key its append."""
    object_ms: Annotated[int, Meta(ge=0)] = 2_000
    """Putting or getting an object."""
    round_ms: Annotated[int, Meta(ge=0)] = 500
    """A broker's round, from taking tasks until their assignments are durable."""
    lines_a_second: Annotated[int, Meta(ge=1)] = 10


class MemoryTable(Table, frozen=True):
    """What a node of a cluster may hold, divided over queues and caches; see the sizing guide."""

    bytes_max: Annotated[int, Meta(ge=0)] = 0
    """0: every bound is as usual, whatever the machine has."""
    tablespaces: Annotated[int, Meta(ge=1)] = 4
    """How many it is divided for; a node that runs more holds more."""


class NodeSettings(Table, frozen=True):
    """All of it. `host` is how other machines call this one; "": by the machine's own name."""

    roles: tuple[Role, ...] = (Role.BOOKIE, Role.HERD, Role.BROKER, Role.HTTP)
    data: Place = ""
    url: str = ""
    wire: Literal["framed", "grpc"] = "framed"
    survives: Literal["", "bookie", "host", "rack", "zone"] = ""
    """The loss that acknowledged data survives: `bookie`, `host`, `rack` or `zone`. By default
    `host` in a cluster of more than two hosts, otherwise `bookie`.
    """
    host: str = ""
    rack: str = ""
    zone: str = ""
    one_process: bool = False
    insecure: bool = False
    """Serve other machines without asking them for any proof."""
    reserve_bytes: Annotated[int, Meta(ge=0)] = 0
    """If less is free on a folder's disk, new data is refused: the rest is kept for deletions. 0: 1
    GiB, or 5 % of a smaller disk, at least 16 MiB.
    """
    security: SecurityTable = SecurityTable()
    zookeeper: ZooKeeperTable = ZooKeeperTable()
    audit: AuditTable = AuditTable()
    bookie: BookieTable = BookieTable()
    repair: RepairTable = RepairTable()
    herd: HerdTable = HerdTable()
    broker: BrokerTable = BrokerTable()
    http: HttpTable = HttpTable()
    supervisor: SupervisorTable = SupervisorTable()
    slow: SlowTable = SlowTable()
    memory: MemoryTable = MemoryTable()

    @property
    def clustered(self) -> bool:
        """Whether this is a node of a cluster; else it serves the folder `data`."""
        return is_cluster(self.url)

    @property
    def store(self) -> str:
        """The store that it is a node of: the cluster's url, or the folder."""
        return self.url or str(Path(self.data).absolute())

    @property
    def ordered_roles(self) -> tuple[Role, ...]:
        """Its roles in the order in which they start."""
        return tuple(role for role in Role if role in self.roles)

    @property
    def holding(self) -> Holding:
        """What its memory is divided for."""
        return Holding(
            len(self.bookie_folders()) if Role.BOOKIE in self.roles else 0,
            self.memory.tablespaces if Role.HERD in self.roles else 0,
            tuple(role.value for role in self.roles),
        )

    @property
    def bounds(self) -> Bounds:
        """How much queues and caches may hold. Raises `InvalidRequest` if there is too little."""
        return plan(self.memory.bytes_max, self.holding) if self.memory.bytes_max else USUAL

    @property
    def name(self) -> str:
        """How other machines call this one."""
        return self.host or socket.gethostname()

    @property
    def own_folder(self) -> Path:
        """What the node itself keeps; hidden, for a store's folder holds nothing else."""
        return Path(self.data, ".node")

    def folder(self, role: Role) -> Path:
        """What a role keeps on this machine."""
        return Path(self.data, role.value)

    def bookie_folders(self) -> list[Path]:
        """A bookie each."""
        return [Path(each) for each in self.bookie.folders] or [self.folder(Role.BOOKIE)]

    @property
    def bookie_settings(self) -> BookieSettings:
        """The settings of bookies, and how much of each folder's disk is kept for deletions."""
        bounds = self.bounds
        return BookieSettings(
            journal_queue_bytes_max=bounds.journal_queue_bytes,
            recent_runs_bytes_max=bounds.recent_runs_bytes,
        ).keeping(self.reserve_bytes)

    @property
    def data_folders(self) -> list[Path]:
        """The folders on whose disks the node keeps data."""
        folders = [Path(self.data)] if self.data else []
        if self.clustered and Role.BOOKIE in self.roles:
            folders += self.bookie_folders()
        return folders

    def reached(self, listen: str, advertise: str) -> str:
        """What others dial: nobody can dial every address, so the machine's name stands for it."""
        if advertise or not listen:
            return advertise
        host, port = parse_host_port(listen)
        return join_host_port(self.name, port) if host in EVERYWHERE else listen


class Listener(NamedTuple):
    """A key that names an address at which this node listens, and the role that does."""

    key: str
    role: Role
    address: str


LISTENING: Final = {
    Role.BOOKIE: ("listen", "grpc", "metrics"),
    Role.REPAIR: ("metrics",),
    Role.HERD: ("listen", "grpc", "metrics"),
    Role.BROKER: ("listen", "grpc"),
    Role.HTTP: ("listen",),
}


def listeners(settings: NodeSettings) -> Iterator[Listener]:
    """Where the roles of a node listen. A folder alone has no bookies and tablespaces to dial."""
    for role in settings.ordered_roles:
        if not settings.clustered and role in (Role.BOOKIE, Role.HERD):
            continue
        for key in LISTENING.get(role, ()):
            address = getattr(getattr(settings, role.value), key)
            if address:
                yield Listener(f"{role.value}.{key}", role, address)
