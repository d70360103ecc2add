"""A node from its start to its end: one process under a supervisor a role, or all in this one.

Invariants:
- A node's folder has one node at a time: its lock is held as long as the node is.
- What it prints is one line for each thing that came about; the roles' own lines carry their names.
- A line that cannot be printed ends nothing, and nobody waits for whoever reads it.
"""

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from engine.errors import FolderLocked, InvalidRequest
from engine.folder.lock import FolderLock, is_locked
from engine.folder.modes import make_private
from engine.ledger.capacity import require_room
from engine.ports.clock import SystemClock
from engine.ports.system_disk import SystemDisk, existing
from engine.ports.system_files import raise_files_max
from engine.ports.system_signals import renewed_by_signal
from engine.transport.address import parse_host_port
from herdbook.node.child import log_with_times, quiet_grpc
from herdbook.node.here import Roles
from herdbook.node.passing_on import PassingOn
from herdbook.node.settings import NodeSettings, Role, listeners
from herdbook.node.status import StatusFile, tell_systemd, was_killed
from herdbook.node.supervisor import Ending, Member, MemberState, Supervisor

Say = Callable[[str], None]
HERE: Final = "node"
DYING_S: Final = 2.0
"""How long the system may take to end the processes of a node that was killed."""
_LOOK_S: Final = 0.05


async def serve_node(settings: NodeSettings, say: Say) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends it at once. On SIGHUP all of its processes
    read secrets and certificates again.

    Raises `FolderLocked` if a node runs in the folder, `InvalidRequest` if another program uses its
    ports, `DiskFull` if a folder's disk has too little space to start, `NodeFailed` if a role
    cannot go on, or in one process what that role raised.
    """
    quiet_grpc()
    raise_files_max()
    ending = Ending()
    ending.on_signals()
    renewed_by_signal()
    folder = settings.own_folder
    file = StatusFile(folder, settings)
    if settings.clustered and not {Role.HERD, Role.BROKER}.isdisjoint(settings.roles):
        data = Path(settings.data)
        require_room(data, SystemDisk(existing(data)), settings.bookie_settings)
    killed = was_killed(folder)
    if not folder.exists():
        # Of a node that cannot be nothing stays.
        refuse_taken(settings)
    with locked(folder), file as status, PassingOn(say) as told:
        await _until_free(settings, DYING_S if killed else 0.0)
        watch = Watch(status, told.pass_on)
        async with _beside(status.beat()):
            await _run(settings, ending, watch)


async def _run(settings: NodeSettings, ending: Ending, watch: "Watch") -> None:
    if settings.one_process or not settings.clustered:
        await _here(settings, ending, watch)
    else:
        members = [Member(role.value, settings, (role,)) for role in settings.ordered_roles]
        await supervised(members, settings, ending, watch)


def refuse_taken(settings: NodeSettings) -> None:
    """Raise `InvalidRequest` where somebody else listens at a port of it; all of them are named.

    Any other reason why one cannot listen somewhere its role finds out.
    """
    taken = []
    for key, _, address in listeners(settings):
        try:
            listen_once(key, address)
        except InvalidRequest as error:
            taken.append(str(error))
        except OSError:
            continue
    if taken:
        raise InvalidRequest("; ".join(taken))


def listen_once(key: str, address: str) -> None:
    """Listen at an address for a moment. Raises `InvalidRequest` if another program does,
    `OSError` if it fails."""
    host, port = parse_host_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        taken = f"{address} is in use: name another, --set {key}=HOST:PORT"
        raise InvalidRequest(taken) from error


async def _until_free(settings: NodeSettings, patience_s: float) -> None:
    """Wait for ports that a killed node's processes still hold. Raises as `refuse_taken`."""
    clock = SystemClock()
    until_s = clock.monotonic() + patience_s
    while True:
        try:
            refuse_taken(settings)
            return
        except InvalidRequest:
            if clock.monotonic() >= until_s:
                raise
        await asyncio.sleep(_LOOK_S)


class Watch:
    """Passes on how processes fare: to whoever reads, to the node's file, to systemd."""

    def __init__(self, status: StatusFile, say: Say) -> None:
        self._status = status
        self._print = say
        self._told: dict[str, str] = {}
        self._ready = False

    def note(self, members: dict[str, MemberState]) -> None:
        """A state is another one."""
        self._status.write(members)
        for name, state in members.items():
            again = self._told.get(name) in ("serving", "silent")
            if state.state == "serving" and not again:
                for role, at in state.at.items():
                    self._say(f"{role} serves at {at}")
            self._told[name] = state.state
        serving = sum(each.state == "serving" for each in members.values())
        if serving == len(members) and not self._ready:
            self._ready = True
            self._say("ready")
            tell_systemd("READY=1")
        tell_systemd(f"STATUS={serving} of {len(members)} processes serve")

    def leaving(self, most_ms: int | None = None) -> None:
        """The first signal came; what still runs after `most_ms`, if that is said, is killed."""
        tell_systemd("STOPPING=1")
        most = "" if most_ms is None else f", for {most_ms / 1000:g} s at most"
        self._say(f"draining{most}; a second signal ends it at once")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._print(line)


async def supervised(
    members: list[Member], settings: NodeSettings, ending: Ending, watch: Watch
) -> None:
    """Run processes under a supervisor until told to end. Raises `NodeFailed`."""
    width = max(len(each.name) for each in members)

    with PassingOn(_write) as log:
        supervisor = Supervisor(
            members,
            settings.supervisor,
            SystemClock(),
            say=lambda name, line: log.pass_on(f"{name:<{width}} | {line}"),
            changed=lambda it: watch.note(it.states),
        )
        renewed_by_signal(supervisor.renew)
        async with _beside(_farewell(ending, watch, settings.supervisor.stop_timeout_ms)):
            await supervisor.run(ending)


async def _here(settings: NodeSettings, ending: Ending, watch: Watch) -> None:
    state = MemberState(pid=os.getpid())

    def serving(role: Role, at: str) -> None:
        state.at[role.value] = at
        if len(state.at) == len(settings.ordered_roles):
            state.state = "serving"
        watch.note({HERE: state})

    roles = Roles(settings, settings.ordered_roles, serving)
    with PassingOn(_write) as log:
        log_with_times(log.pass_on)
        async with _beside(_farewell(ending, watch)), _beside(_cut_short(ending)):
            await roles.run(ending.asked)


def _write(line: str) -> None:
    # Without a buffer: one that a stuck write has locked is waited for when the process ends.
    os.write(sys.stderr.fileno(), f"{line}\n".encode())


async def _farewell(ending: Ending, watch: Watch, most_ms: int | None = None) -> None:
    """Say so when the first signal comes."""
    await ending.asked.wait()
    watch.leaving(most_ms)


async def _cut_short(ending: Ending) -> None:
    """The second signal ends this process: what it serves is durable."""
    await ending.urged.wait()
    os._exit(1)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do something as long as the block lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()


def refuse_running(folder: Path) -> None:
    """Raise `FolderLocked` if a node runs in this folder of its own. This creates no file."""
    if is_locked(folder):
        raise FolderLocked(_runs(folder))


def _runs(folder: Path) -> str:
    return f"a node already runs in {folder.parent}: stop that one first"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a node's folder, and make its parent private. Raises `FolderLocked`."""
    with ExitStack() as stack:
        lock = FolderLock.of(folder)
        stack.callback(lock.close)
        if not lock.try_take():
            raise FolderLocked(_runs(folder))
        make_private(folder.parent)
        yield
