"""A bookie server: the bookies of one machine's disks, the wires to them, and their end.

Each data folder holds one bookie: its identity, `journal/`, `index/`, and `lock`, which is locked
(`flock`) as long as the server runs.

Invariants:
- A folder is opened only while its lock is held; a start that fails leaves nothing running, nothing
  registered and nothing locked.
- An empty folder at the location of a bookie's data is not used, and nothing is created there. A
  folder whose bookie runs elsewhere is a copy, and is not started.
- A bookie is registered only when it serves, and with addresses at which its server listens.
- Without any proof asked of clients, a server listens to its own machine only, unless told.
- A server that ends takes no new appends first and takes its registrations away, finishes and
  answers what it has taken, and only then hangs up.
- A bookie whose disk fails or cannot be used, or whose folder is damaged, does not stop the others;
  the last one to fail ends the server.
"""

import asyncio
import logging
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.access.door import ReaderDoor
from engine.bookie.folder import FILE_NAME, FolderIdentity, check_folder, read_identity
from engine.bookie.index import Position
from engine.bookie.service import BookieService
from engine.bookie.upkeep import Upkeep, start_upkeep
from engine.errors import (
    BookieUnavailable,
    EngineError,
    FolderDamaged,
    FolderError,
    FolderLocked,
    FolderMismatch,
    InvalidRequest,
    Overloaded,
)
from engine.extras import needing_cluster
from engine.folder.lock import (
    BOOKIE_PREFIX,
    LOCK_NAME,
    METADATA_NAME,
    FolderLock,
    check_layout,
    is_locked,
)
from engine.folder.naming import refuse_url
from engine.folder.owner import FolderPorts
from engine.ledger.capacity import require_room
from engine.ledger.cluster_time import ClusterTime
from engine.metadata.bookies import Bookies, FolderPlace
from engine.metadata.contract import MetadataStore
from engine.metadata.permitted import reader_session
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.system_disk import SystemDisk
from engine.ports.system_latency import CpuLatency, quick_while_busy
from engine.ports.system_signals import ended_by_signals
from engine.server_settings import ServerSettings, check_listeners, keep_to, with_room_for_files
from engine.transport.address import TCP, join_host_port, parse_host_port
from engine.transport.contract import Bookie
from engine.transport.dialing import DialingTransport, framed_dial
from engine.transport.framed_server import FramedServer
from engine.transport.listening import Listener, listen_tcp
from engine.transport.reaching import listens
from engine.transport.security import NO_SECURITY, Security
from engine.transport.shortcut import Shortcut

if TYPE_CHECKING:
    from engine.ports.system_workers import ThreadWorkers
    from engine.repair.node import RepairNode
    from engine.transport.grpc_server import GrpcServer

SWITCH_INTERVAL_S: Final = 50e-6
_BACKLOG: Final = 256
_LOG: Final = logging.getLogger("engine.server")


class BookieServer:
    """The bookies of several folders and the wires to them. Made by `BookieServer.start`."""

    def __init__(
        self,
        folders: Sequence[Path],
        store: MetadataStore,
        ports: FolderPorts,
        settings: ServerSettings,
        security: Security,
        metrics: Metrics,
    ) -> None:
        self.store = store
        self.address = ""
        self.grpc_address = ""
        self.services: list[BookieService] = []
        self._folders = folders
        self._ports = ports
        self._settings = settings
        self._security = security
        self._metrics = metrics
        self._served: dict[str, Bookie] = {}
        self._locks: list[FolderLock] = []
        self._left_out: list[EngineError | OSError] = []
        self._upkeep: list[Upkeep] = []
        self._framed: FramedServer | None = None
        self._listener: Listener | None = None
        self._shortcut: Shortcut | None = None
        self._grpc: GrpcServer | None = None
        self._transport: DialingTransport | None = None
        self._repair: RepairNode | None = None
        self._drained = False

    @classmethod
    async def start(
        cls,
        folders: Sequence[Path],
        *,
        store: MetadataStore,
        ports: FolderPorts,
        settings: ServerSettings | None = None,
        security: Security = NO_SECURITY,
        metrics: Metrics = NO_METRICS,
    ) -> "BookieServer":
        """Lock the folders, listen, start a bookie in each, register them.

        Raises `FolderLocked` for a folder that another process uses, `FolderMismatch` for one of
        another cluster, `FolderRolledBack`, `FolderDamaged`, `FormatTooNew`, `InvalidRequest` for
        an address or security that cannot be used, `MetadataUnavailable`, `OSError`.
        """
        for folder in folders:
            refuse_url(folder, "a bookie keeps its entries in a folder of this machine")
        server = cls(
            [folder.absolute() for folder in folders],
            store,
            ports,
            settings or ServerSettings(),
            security,
            metrics,
        )
        try:
            await server._start()
        except BaseException:
            await server.close()
            raise
        return server

    @property
    def bookies(self) -> list[str]:
        """The ids of the bookies that run, in the order of their folders."""
        return [service.bookie_id for service in self.services if service.failure is None]

    def written_to(self) -> list[Position]:
        """Where the journals of the bookies end, in the order of their folders."""
        return [service.storage.journal.end for service in self.services]

    async def failed(self) -> EngineError:
        """Wait until no bookie runs any more; returns why the last one stopped."""
        await asyncio.gather(*(service.failed() for service in self.services))
        failures = [str(service.failure) for service in self.services]
        return BookieUnavailable(f"all bookies have stopped: {'; '.join(failures)}")

    async def drain(self) -> None:
        """Take nothing new, be found by nobody new, and finish what was taken; then `close`."""
        if self._drained:
            return
        self._drained = True
        ending = [service.leave() for service in self.services]
        if self._repair is not None:
            ending.append(self._repair.close())
        try:
            # All at once: a store that is silent keeps nobody from taking nothing new.
            async with asyncio.timeout(self._settings.drain_timeout_ms / 1000):
                await asyncio.gather(*ending)
        except TimeoutError:
            # Whoever waits for an answer learns by the end of the connection that there is none.
            return

    async def close(self) -> None:
        """`drain`, hang up, stop the bookies, let go of the folders. May be called twice."""
        await self.drain()
        for listening in (self._shortcut, self._listener):
            if listening is not None:
                listening.close()
        for bookie_id in list(self._served):
            if self._transport is not None:
                self._transport.remove_local(bookie_id)
        if self._framed is not None:
            await self._framed.close()
        if self._grpc is not None:
            await self._grpc.close(grace_ms=1_000)
        self._served.clear()
        for upkeep in self._upkeep:
            await upkeep.close()
        await asyncio.gather(*(service.close() for service in self.services))
        if self._transport is not None:
            await self._transport.close()
        for lock in self._locks:
            lock.close()
        self._repair = None
        self._grpc = None
        self._upkeep.clear()

    # Starting

    async def _start(self) -> None:
        check_listeners(self._settings, self._security)
        await self._leave_out_empty()
        self._lock_folders()
        await self._listen()
        await self._start_bookies()
        await self._start_repair()

    async def _leave_out_empty(self) -> None:
        """Leave out empty folders at the locations of bookies' data, before anything is created."""
        bookies, used = Bookies(self.store), []
        for folder in self._folders:
            try:
                if not (folder / FILE_NAME).exists():
                    await bookies.refuse_empty(self._place(folder))
                used.append(folder)
            except FolderDamaged as error:
                self._leave_out(folder, error)
            except OSError:
                # Locking it will raise an error that says why it cannot be used.
                used.append(folder)
        self._folders = used

    def _place(self, folder: Path) -> FolderPlace:
        return FolderPlace(self._settings.host, str(folder))

    def _lock_folders(self) -> None:
        for folder in self._folders:
            try:
                self._locks.append(_locked(folder))
            except (FolderLocked, FolderMismatch):
                raise
            except FolderError as error:
                self._leave_out(folder, error)

    async def _start_bookies(self) -> None:
        """Start all; one whose folder is of no use is left out, as one that failed would be."""
        bookies = Bookies(self.store)
        for lock in self._locks:
            try:
                await self._refuse_copy(lock.root, bookies)
                await self._start_bookie(lock.root)
            except (FolderDamaged, BookieUnavailable, Overloaded, OSError) as error:
                self._leave_out(lock.root, error)
        if not self.services and self._left_out:
            raise self._left_out[-1]

    def _leave_out(self, folder: Path, error: EngineError | OSError) -> None:
        self._left_out.append(error)
        _LOG.warning("the bookie in %s does not start: %s", folder, error)

    async def _listen(self) -> None:
        settings = self._settings
        self._framed = FramedServer(
            cluster_id=self.store.cluster_id,
            settings=settings.wire,
            security=self._security,
            door=self._door(),
            open_session=partial(
                reader_session, self.store, time=ClusterTime(self._ports.clock, self.store)
            )
            if settings.passes_metadata_on
            else None,
        )
        host, port = parse_host_port(settings.listen)
        self._listener = await listen_tcp(
            self._framed.accept_counted,
            host,
            port,
            sockets_max=self._framed.sockets_max,
            context=self._framed.context,
            handshake_timeout_ms=settings.wire.connect_timeout_ms,
            backlog=_BACKLOG,
        )
        port = self._listener.port
        if not (self._security.on or self._security.encrypts):
            beside = TCP + join_host_port(host, port)
            self._shortcut = await Shortcut.open(beside, self._framed.accept)
        self.address = TCP + (settings.advertise or join_host_port(self._reached(host), port))
        if settings.grpc:
            await self._listen_grpc()

    async def _listen_grpc(self) -> None:
        # gRPC loads on first use.
        with needing_cluster():
            from engine.transport.grpc_server import GrpcServer

        settings = self._settings
        host, _ = parse_host_port(settings.grpc)
        try:
            self._grpc = await GrpcServer.start(
                self._served,
                listen=settings.grpc,
                security=self._security,
                settings=settings.grpc_wire,
                door=self._door(),
                lack=self._lack,
            )
        except OSError as error:
            raise InvalidRequest(f"cannot listen at {settings.grpc}: {error}") from error
        reached = join_host_port(self._reached(host), self._grpc.port)
        self.grpc_address = settings.advertise_grpc or reached

    def _lack(self) -> str:
        roomy = any(service.writable for service in self.services)
        return "" if roomy else "no bookie here takes new data"

    def _door(self) -> ReaderDoor | None:
        """Tokens are signed with the secret: without one there are none."""
        security, audit = self._security, self._settings.audit
        if not security.secret:
            return None
        return ReaderDoor(security.token_keys, self._ports.clock, audit)

    def _reached(self, host: str) -> str:
        """Nobody can dial "every address": the machine's name stands for it."""
        if host not in ("0.0.0.0", "::"):
            return host
        if not self._settings.host:
            raise InvalidRequest(f"listening at {host} needs a host name, or what to advertise")
        return self._settings.host

    async def _refuse_copy(self, folder: Path, bookies: Bookies) -> None:
        """Raise `FolderLocked` if the folder's bookie runs at another address."""
        identity = read_identity(self._ports.make_disk(folder))
        if identity is None:
            return
        found = await bookies.registration(identity.bookie_id)
        if found is None or found.address in ("", self.address):
            return
        if await listens(found.address):
            raise FolderLocked(
                f"bookie {found.bookie_id} of {folder} runs at {found.address} (machine "
                f"{found.host or 'unknown'}): the folder was copied; start an empty one here. If "
                "the folder was moved, stop the bookie there, and start again when its session "
                "has ended"
            )

    async def _start_bookie(self, folder: Path) -> None:
        ports, settings = self._ports, self._settings
        disk = ports.make_disk(folder)
        await ports.workers.run(partial(require_room, folder, disk, settings.bookie))
        service = await BookieService.start(
            disk=disk,
            open_index=partial(ports.make_index, folder / "index"),
            workers=ports.workers,
            clock=ports.clock,
            rng=ports.rng,
            store=self.store,
            settings=replace(
                settings.bookie,
                address=self.address,
                grpc=self.grpc_address,
                host=settings.host,
                rack=settings.rack,
                zone=settings.zone,
            ),
            metrics=self._metrics,
        )
        self.services.append(service)
        if service.bookie_id in self._served:
            raise FolderMismatch(f"{folder} is a copy of another folder: remove one of them")
        assert self._framed is not None
        if settings.host:
            await Bookies(self.store).keep_place(service.bookie_id, self._place(folder))
        self._framed.add(service)
        self._served[service.bookie_id] = service
        _LOG.info("bookie %s serves from %s", service.bookie_id, folder)
        self._upkeep.append(
            start_upkeep(
                service,
                disk=disk,
                workers=ports.workers,
                clock=ports.clock,
                store=self.store,
                settings=settings.upkeep,
            )
        )

    async def _start_repair(self) -> None:
        from engine.repair.measures import watch_repair
        from engine.repair.node import RepairNode

        ports = self._ports
        dial = framed_dial(self._security, ports.clock, self._settings.wire)
        self._transport = DialingTransport(
            Bookies(self.store), dial=dial, clock=ports.clock, rng=ports.rng
        )
        for service in self.services:
            self._transport.add_local(service)
        self._repair = RepairNode(
            store=self.store,
            transport=self._transport,
            clock=ports.clock,
            rng=ports.rng,
            settings=self._settings.repair,
            local_bookies=self.services,
            local_only=self._settings.repair_elsewhere,
        )
        if not self._settings.repair_elsewhere:
            watch_repair(self._metrics, self._repair)
        await self._repair.start()


def _real_ports(workers: "ThreadWorkers") -> FolderPorts:
    from engine.bookie.index_rocks import RocksIndex
    from engine.ports.clock import SystemClock
    from engine.ports.system_disk import SystemDisk

    rng = random.SystemRandom()  # noqa: TID251 (this function wires the real components together)
    return FolderPorts(SystemClock(), rng, workers, SystemDisk, RocksIndex)


async def serve(
    folders: Sequence[Path],
    *,
    open_store: Callable[[], Awaitable[MetadataStore]],
    settings: ServerSettings | None = None,
    security: Security = NO_SECURITY,
    metrics: Metrics = NO_METRICS,
    started: Callable[[BookieServer], None] | None = None,
    draining: Callable[[], None] | None = None,
    ended: asyncio.Event | None = None,
) -> None:
    """Run a server on the real machine until `ended` is set; without one, until SIGTERM or SIGINT,
    a second of which ends the process at once.

    `started` hears when it serves, `draining` when it begins to end.
    Raises as `BookieServer.start`, and `BookieUnavailable` when all its bookies have failed.
    """
    from engine.ports.system_workers import ThreadWorkers

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    settings = with_room_for_files(settings or ServerSettings())
    keep_to(settings.cpus)
    latency = CpuLatency(settings.cpu_latency_us) if settings.cpu_latency_us >= 0 else None
    workers = ThreadWorkers(asyncio.get_running_loop(), pool_threads_max=4 * len(folders))
    ports = _real_ports(workers)
    ended = ended if ended is not None else ended_by_signals()
    store = await open_store()
    try:
        server = await BookieServer.start(
            folders,
            store=store,
            ports=ports,
            settings=settings,
            security=security,
            metrics=metrics,
        )
        try:
            if started is not None:
                started(server)
            async with quick_while_busy(latency, server.written_to):
                await _until(ended, server)
            if draining is not None:
                draining()
            await server.drain()
        finally:
            await server.close()
    finally:
        await store.close()
        await workers.close()


async def _until(ended: asyncio.Event, server: BookieServer) -> None:
    """Wait for a signal. Raises what stopped the last bookie, if that comes first."""
    failing = asyncio.ensure_future(server.failed())
    waiting = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait((failing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            raise failing.result()
    finally:
        failing.cancel()
        waiting.cancel()


def check_bookie_folder(folder: Path) -> FolderIdentity | None:
    """The identity of a folder in which a bookie may start, as far as can be seen; None: new.

    Nothing is changed. Raises `FolderLocked`, `FolderMismatch`, `FolderDamaged`, `FormatTooNew`,
    `OSError`.
    """
    if not folder.exists():
        return None
    _refuse_store(folder)
    if not (folder / FILE_NAME).exists():
        check_layout(folder)
    if is_locked(folder):
        raise FolderLocked(_in_use(folder))
    return check_folder(SystemDisk(folder))


def _refuse_store(folder: Path) -> None:
    stores = [METADATA_NAME] if (folder / METADATA_NAME).exists() else []
    stores += [path.name for path in folder.glob(f"{BOOKIE_PREFIX}*")]
    if stores:
        raise FolderMismatch(f"{folder} is a whole store ({stores[0]}), not one bookie's folder")


def _in_use(folder: Path) -> str:
    return f"{folder} is in use by another process: stop that one first"


def _locked(folder: Path) -> FolderLock:
    """Take the lock of a bookie's folder, making it if it is not there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_store(folder)
        if (folder / FILE_NAME).exists() and not (folder / LOCK_NAME).exists():
            (folder / LOCK_NAME).touch(mode=0o600)
    except OSError as error:
        raise FolderError(f"{folder} cannot be used: {error.strerror}") from error
    lock = FolderLock.of(folder)
    try:
        if not lock.try_take():
            raise FolderLocked(_in_use(folder))
    except BaseException:
        lock.close()
        raise
    return lock
