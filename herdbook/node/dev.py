"""A whole cluster on this machine, for development: ZooKeeper, and nodes that are everything.

Each node is one process with all its roles; ports stay the same as long as they are free.

Invariants:
- What it starts ends with it, however it ends; a folder that it made itself is removed.
- It says that it is ready when a statement, an object's name and a task could be taken.
"""

import asyncio
import math
import random
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.errors import EngineError, InvalidRequest, Unavailable
from engine.folder.modes import ensure_private
from engine.folder.naming import refuse_url
from engine.ports.clock import SystemClock
from herdbook.node.child import quiet_grpc
from herdbook.node.passing_on import PassingOn
from herdbook.node.ports import Ports
from herdbook.node.serving import DYING_S, locked
from herdbook.node.settings import (
    BookieTable,
    BrokerTable,
    HerdTable,
    HttpTable,
    NodeSettings,
    RepairTable,
    Role,
    SupervisorTable,
)
from herdbook.node.status import StatusFile, was_killed
from herdbook.node.supervisor import Ending, Member, MemberState, Supervisor
from herdbook.zookeeper_server import ZooKeeperFailed, ZooKeeperServer, find_jars, find_java

HOST: Final = "127.0.0.1"
NODES_MAX: Final = 9
LOG: Final = "dev.log"
_OWN: Final = ".node"
_PORTS_FILE: Final = "ports.json"
ROLES: Final = (Role.BOOKIE, Role.HERD, Role.BROKER, Role.HTTP)
_PORTS: Final = {"bookie": 3181, "herd": 7180, "broker": 7364, "grpc": 7464, "http": 7380}
_ZOOKEEPER_PORT: Final = 2181
_BOOKIES_MIN: Final = 3
_ONCE_BITS: Final = 256
_LOOK_S: Final = 0.1
_ALIVE_S: Final = 0.5
_STEADY_S: Final = 5.0
"""If ZooKeeper ends sooner than this after a restart, it is not started again."""
_READY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class DevSettings:
    """How many nodes, where they keep what they hold (None: for as long as it runs).

    `grace_ms` is how long a bookie may be away before others take what it held, a node its
    replicas, milliseconds: short, so that one sees it come about.
    """

    nodes: int = 3
    data: Path | None = None
    grace_ms: int = 20_000
    quiet: bool = False
    """Leave what nodes log in the file `dev.log` of the folder; else it is shown, too."""


@dataclass(frozen=True, slots=True)
class DevCluster:
    """A cluster that runs: what to reach it by."""

    url: str
    folder: Path
    console: tuple[str, ...]
    """Each node's HTTP."""
    login: str
    """Where a browser is logged in, once; "" for no HTTP."""
    moved: Mapping[str, tuple[int, int]]
    """What listens elsewhere than people know, for somebody else does there: both ports."""
    states: Callable[[], dict[str, MemberState]]
    """Each node's process."""

    @property
    def log(self) -> Path:
        """What its nodes say."""
        return self.folder / LOG


Ready = Callable[[DevCluster], Awaitable[None]]


def check_java() -> None:
    """Raise `ZooKeeperMissing`, which says what to install, where ZooKeeper cannot be started."""
    find_java()
    find_jars()


class Fates:
    """Tells what becomes of nodes once all of them have served, a line each."""

    def __init__(self, tell: Callable[[str], None], log: Path) -> None:
        self._tell = tell
        self._log = log
        self._before: dict[str, str] = {}

    def note(self, states: dict[str, MemberState]) -> None:
        """A state is another one."""
        now = {name: each.state for name, each in states.items()}
        if not self._before and set(now.values()) != {"serving"}:
            return
        for name, state in states.items():
            if self._before.get(name, state.state) == state.state:
                continue
            if state.state == "waiting":
                self._tell(f"{name} died: {state.error}. It is started again; see {self._log}")
            elif state.state == "silent":
                self._tell(f"{name} is silent: its event loop stands still; see {self._log}")
            elif state.state == "serving":
                self._tell(f"{name} is back")
        self._before = now


async def run_dev(
    settings: DevSettings, ending: Ending, ready: Ready, tell: Callable[[str], None]
) -> None:
    """Run a cluster until told to end; `ready` is called when it can be used, and may go on.

    `tell` hears what becomes of nodes, and what they log unless that is to be quiet. Raises
    `InvalidRequest`, `ZooKeeperMissing`, `ZooKeeperFailed`, `NodeFailed`, and what `ready` raises.
    """
    if not 1 <= settings.nodes <= NODES_MAX:
        raise InvalidRequest(f"a cluster for development has 1 to {NODES_MAX} nodes")
    check_java()
    quiet_grpc()
    with _folder(settings) as folder, ExitStack() as stack:
        ports = stack.enter_context(_ports(folder))
        server = ZooKeeperServer(
            folder / "zookeeper",
            port=ports.take("ZooKeeper", _ZOOKEEPER_PORT),
            ends_with_parent=True,
        )
        stack.callback(server.stop)
        # It starts beside the nodes, which wait for it: that is a second for all of them.
        server.start(wait=False)
        once = f"{random.SystemRandom().getrandbits(_ONCE_BITS):064x}"
        members = [
            _member(settings, number, folder, server.hosts, ports) for number in _numbers(settings)
        ]
        ports.remember()
        members[0] = members[0]._replace(once=once)
        first = members[0].settings
        status = stack.enter_context(StatusFile(folder / _OWN, first))
        shown = stack.enter_context(PassingOn(tell))
        log = stack.enter_context((folder / LOG).open("a", encoding="utf-8"))
        fates = Fates(shown.pass_on, folder / LOG)

        def copy(name: str, line: str) -> None:
            with suppress(OSError):
                log.write(f"{name} | {line}\n")
                log.flush()
            if not settings.quiet:
                shown.pass_on(f"{name} | {line}")

        def changed(supervisor: Supervisor) -> None:
            status.write(supervisor.states)
            fates.note(supervisor.states)

        supervisor = Supervisor(members, first.supervisor, SystemClock(), say=copy, changed=changed)
        told = _tell(supervisor, _cluster(members, folder, ports, supervisor), ready)
        beside = (_keep_zookeeper(server, shown.pass_on), status.beat(), told)
        async with _beside(ending, *beside):
            await supervisor.run(ending)


def _cluster(
    members: list[Member], folder: Path, ports: Ports, supervisor: Supervisor
) -> DevCluster:
    """What there is to tell of it."""
    console = tuple(f"http://{each.settings.http.listen}" for each in members)
    return DevCluster(
        members[0].settings.url,
        folder,
        console,
        f"{console[0]}/login?once={members[0].once}",
        ports.moved,
        lambda: supervisor.states,
    )


def _ports(folder: Path) -> Ports:
    """The ports. If it was killed, its old processes release them within a moment."""
    patience_s = DYING_S if was_killed(folder / _OWN) else 0.0
    return Ports(HOST, patience_s, folder / _OWN / _PORTS_FILE)


def _numbers(settings: DevSettings) -> range:
    return range(1, settings.nodes + 1)


def _member(
    settings: DevSettings, number: int, folder: Path, zookeeper: str, ports: Ports
) -> Member:
    """A node with all roles in one process, at ports of its own."""
    at = {
        name: f"{HOST}:{ports.take(f'node-{number} {name}', port + number - 1)}"
        for name, port in _PORTS.items()
    }
    data = folder / f"node-{number}"
    # Three copies need three bookies, however few the nodes are.
    each = -(-_BOOKIES_MIN // settings.nodes)
    bookies = tuple(str(data / f"bookie-{one}") for one in range(1, each + 1))
    node = NodeSettings(
        roles=ROLES,
        data=str(data),
        url=f"herdbook://{zookeeper}/dev",
        host=f"node-{number}",
        one_process=True,
        bookie=BookieTable(listen=at["bookie"], folders=bookies),
        repair=RepairTable(grace_ms=settings.grace_ms),
        herd=HerdTable(listen=at["herd"], replica_grace_ms=settings.grace_ms),
        broker=BrokerTable(listen=at["broker"], grpc=at["grpc"]),
        http=HttpTable(listen=at["http"]),
        supervisor=SupervisorTable(stop_timeout_ms=20_000),
    )
    ensure_private(node.own_folder)
    return Member(f"node-{number}", node, ROLES)


@contextmanager
def _folder(settings: DevSettings) -> Iterator[Path]:
    if settings.data is not None:
        refuse_url(settings.data, "the cluster keeps its data in a folder of this machine")
        folder = settings.data.absolute()
    else:
        folder = Path(tempfile.mkdtemp(prefix="herdbook-dev-"))
    try:
        with locked(folder / _OWN):
            yield folder
    finally:
        if settings.data is None:
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _beside(ending: Ending, *works: Awaitable[None]) -> AsyncIterator[None]:
    """Do something beside the block; what fails there ends the cluster, and is raised after it."""
    failures: list[BaseException] = []

    async def run(work: Awaitable[None]) -> None:
        try:
            await work
        except (EngineError, OSError) as error:
            failures.append(error)
            ending.asked.set()

    tasks = [asyncio.create_task(run(work)) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    failures += [each for each in outcomes if isinstance(each, Exception)]
    if failures:
        raise failures[0]


async def _keep_zookeeper(server: ZooKeeperServer, tell: Callable[[str], None]) -> None:
    """Restart ZooKeeper when it ends. Raises `ZooKeeperFailed` if it ends again at once."""
    clock, restarted_s = SystemClock(), -math.inf
    while True:
        await asyncio.sleep(_ALIVE_S)
        if server.runs:
            continue
        if clock.monotonic() - restarted_s < _STEADY_S:
            raise ZooKeeperFailed(f"ZooKeeper ended soon after it was restarted: see {server.log}")
        tell(f"ZooKeeper died. It is started again; see {server.log}")
        server.start(wait=False)
        restarted_s = clock.monotonic()


async def _tell(supervisor: Supervisor, cluster: DevCluster, ready: Ready) -> None:
    """Wait until the cluster can be used. Raises `Unavailable` where it does not come to that."""
    try:
        async with asyncio.timeout(_READY_S):
            await supervisor.served.wait()
            await _answered(cluster)
    except TimeoutError as error:
        log = cluster.folder / LOG
        raise Unavailable(f"the cluster was not ready in time: see {log}") from error
    await ready(cluster)


async def _answered(cluster: DevCluster) -> None:
    """A statement is answered, and a broker leads."""
    from broker.errors import BrokerError
    from herd.errors import Error
    from herdbook.connecting import connect_async

    async with connect_async(cluster.url) as connected:
        tasks = await connected.tasks()
        while True:
            try:
                async with await connected.sql() as connection:
                    await connection.execute("SELECT 1")
                await tasks.dead(limit=1)
                return
            except (Error, BrokerError, EngineError):
                await asyncio.sleep(_LOOK_S)


def end_by_signals(ending: Ending) -> None:
    """Let SIGTERM, SIGINT and the end of the terminal end it."""
    ending.on_signals()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, ending.tell, signal.SIGHUP)
