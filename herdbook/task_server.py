"""A broker's HTTP on the real machine: for a folder, or as one of the brokers of a cluster.

Invariants:
- It listens before it says so, and says so before it takes requests of others.
- Without users only this machine is served, unless that is wanted otherwise.
- Told to end it answers what was asked and leaves.
"""

import asyncio
import contextlib
import fcntl
import os
import random
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from broker.errors import BrokerUnavailable
from broker.folder import FOLDER
from broker.http import Logins, User, create_app, desk_for
from broker.http.hosts import host_of
from broker.http.logins import Doorkeeper
from broker.http.relay import HttpRelay
from broker.ports import PayloadStore
from broker.rollouts.alarming import Alarms, CommandHook
from broker.rollouts.coordinator import Coordinator
from broker.rollouts.discovery import (
    COMMAND,
    ZOOKEEPER,
    CommandDiscovery,
    Discovery,
    StoreDiscovery,
)
from broker.service import Broker
from broker.settings import BrokerSettings
from broker.sweeping import keep_swept
from engine.access.door import UserDoor
from engine.access.guesses import Guesses
from engine.access.secret_files import secret_in
from engine.bookie.settings import BookieSettings
from engine.errors import InvalidRequest, KeyExists
from engine.extras import needing_cluster
from engine.folder.forks import guard
from engine.folder.modes import ensure_private
from engine.ledger.capacity import watched
from engine.ledger.client import LedgerClient
from engine.metadata.contract import MetadataStore
from engine.ports.clock import Clock
from engine.ports.metrics import Metrics
from engine.ports.renewing import Renewed
from engine.ports.switching import SWITCH_INTERVAL_S
from engine.ports.system_disk import SystemDisk, naming
from engine.ports.system_signals import ended_by_signals
from engine.ports.system_workers import ThreadWorkers
from engine.state.rocks import open_rocks
from engine.transport.address import is_loopback, parse_host_port
from engine.transport.security import Security, TlsFiles
from herd.store import AsyncHerd
from herdbook.access.auditing import configured_audit
from herdbook.access.opening import users_door, users_in
from herdbook.access.web_logins import FileUsers, StoreLogins
from herdbook.finding import find, is_cluster, open_store
from herdbook.http.gate import Gate
from herdbook.http.settings import WebSettings
from herdbook.http_listening import answer_at, listening_at, url_of
from herdbook.node.opening import OpenFolder, metrics_shown, open_to_serve
from herdbook.payload_store import OpenedPayloads
from herdbook.process_measures import process_measured
from herdbook.task_api import (
    SERVER_FILE,
    SERVERS,
    USER,
    TaskServerFact,
    check_unserved,
    read_configured,
    server_of,
)

if TYPE_CHECKING:
    from broker.wire.folder import FolderCalls

_WHERE: Final = "broker"
"""What the audit calls this door."""


@dataclass(frozen=True, slots=True)
class TaskServerSettings:
    """Where it listens, whom it serves. `grpc`: where workers connect, "host:port"; "": nowhere.

    `advertise` is what others dial instead of `grpc`, `advertise_http` the url instead of `listen`.
    `state` is where a cluster's broker keeps its rows; a folder's broker keeps them in the folder.
    `lease_ms` is how long a cluster's worker that is not heard of keeps its tasks.
    """

    listen: str = "127.0.0.1:7364"
    grpc: str = ""
    advertise: str = ""
    advertise_http: str = ""
    state: Path | None = None
    users: "tuple[User, ...] | Renewed[tuple[User, ...]]" = ()
    insecure: bool = False
    certificate: Path | None = None
    private_key: Path | None = None
    lease_ms: int = 10_000
    discover: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Commands that list the nodes of roll-outs, by the names that documents give them."""
    on_alarm: tuple[str, ...] = ()
    """A command for each alarm of roll-outs; empty: none."""
    proxies: tuple[str, ...] = ()
    """Addresses and networks whose `X-Forwarded-For` is trusted."""
    keeping: BookieSettings = field(default_factory=BookieSettings)
    """How much of the disk of `state` is kept for deletions: as much as for bookies."""

    @property
    def tls(self) -> tuple[Path | None, Path | None]:
        """The certificate and its key."""
        return self.certificate, self.private_key


@dataclass(frozen=True, slots=True)
class _Opened:
    """A broker or a client of it, its store, the store of large payloads, and the
    tablespaces of a folder."""

    broker: "Broker | FolderCalls"
    client: LedgerClient
    payloads: PayloadStore | None
    metrics: Metrics
    herd: AsyncHerd | None = None


class _UserTable(msgspec.Struct, forbid_unknown_fields=True):
    password: str
    admin: bool = False


class _UsersFile(msgspec.Struct, forbid_unknown_fields=True):
    users: dict[str, _UserTable]


def read_users(file: Path) -> tuple[User, ...]:
    """Users from a file: tables `[users.NAME]` with `password` and `admin`.

    Raises `InvalidRequest`, also if other users may read the file, or if it has no users.
    """
    content = secret_in(file)
    try:
        told = msgspec.convert(tomllib.loads(content.decode()), _UsersFile)
    except ValueError as error:
        raise InvalidRequest(f"{file} cannot be read as a list of users: {error}") from error
    if not told.users:
        raise InvalidRequest(f"{file} has no users: write a table [users.NAME] into it")
    return tuple(User(name, each.password, each.admin) for name, each in told.users.items())


def renewed_users(file: Path) -> Renewed[tuple[User, ...]]:
    """The same users, which can be read again."""
    return Renewed(partial(read_users, file))


async def serve_tasks(
    url: str | None,
    settings: TaskServerSettings,
    started: Callable[[str], None],
    *,
    opened: OpenFolder | None = None,
    ended: asyncio.Event | None = None,
) -> None:
    """Serve until `ended` is set; without one, until SIGTERM or SIGINT.

    `started` is called with the address when it serves. `opened` is the folder, if this process
    already has it open. A folder's tasks run here, or in another process; then each call is
    forwarded there.

    Raises `InvalidRequest`, also where another server answers for the folder's tasks.
    """
    configuration = read_configured()
    security = configuration.make_security().as_node()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    found = find(url, os.environ, configuration)
    _check_listeners(settings, security, clustered=is_cluster(found))
    if not is_cluster(found):
        check_unserved(Path(found))
    ended = ended if ended is not None else ended_by_signals()
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(listening_at(settings.listen))
        secure = settings.certificate is not None
        address = url_of(settings.listen, listening, secure=secure)
        owner = relay = None
        here = await stack.enter_async_context(_opening(found, settings, address, opened))
        broker = here.broker
        door = await _door(stack, here, security, closed=bool(settings.users))
        if settings.grpc:
            await _serve_grpc(stack, here, settings, security, door)
        if is_cluster(found):
            relay = await _relay(stack, here.client.store, security)
        else:
            owner = _owner(stack, Path(found), settings, address)
        known = _doorkeeper(settings, owner, door, here.client.clock)
        desk = desk_for(broker, here.payloads)
        app = create_app(
            desk,
            known,
            metrics=getattr(here.metrics, "text", None),
            relay=relay,
            names=_names(settings),
        )
        await answer_at(stack, app, listening, *settings.tls, proxies=settings.proxies)
        started(address)
        await ended.wait()


def _names(settings: TaskServerSettings) -> tuple[str, ...]:
    """The names by which it is asked, besides addresses."""
    told = settings.advertise_http.partition("//")[2].partition("/")[0]
    return host_of(told), host_of(settings.listen)


def _opening(
    found: str, settings: TaskServerSettings, address: str, opened: OpenFolder | None
) -> AbstractAsyncContextManager[_Opened]:
    if is_cluster(found):
        return _of_cluster(found, settings, address)
    return _of_folder(Path(found), settings, opened)


@asynccontextmanager
async def _of_folder(
    folder: Path, settings: TaskServerSettings, opened: OpenFolder | None
) -> AsyncIterator[_Opened]:
    """The broker of a folder, in any process."""
    async with AsyncExitStack() as stack:
        if opened is None:
            opening = open_to_serve(folder, settings.discover, settings.on_alarm)
            opened = await stack.enter_async_context(opening)
        book = opened.book
        calls = await book.broker.calls()
        yield _Opened(calls, book.ledgers, book.broker.payloads, opened.metrics, book.herd)


@asynccontextmanager
async def _of_cluster(
    url: str, settings: TaskServerSettings, address: str
) -> AsyncIterator[_Opened]:
    """One of a cluster's brokers, which leads or follows."""
    if settings.state is None or not settings.grpc:
        raise InvalidRequest(
            "a broker of a cluster keeps its rows in a folder and is known by its gRPC address: "
            "give --state FOLDER and --grpc HOST:PORT"
        )
    known_as = settings.advertise or settings.grpc
    metrics = metrics_shown()
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(process_measured(metrics))
            client = await stack.enter_async_context(open_store(url))
            await _register(client.store, known_as, settings.advertise_http or address)
            ensure_private(settings.state)
            disk = SystemDisk(settings.state)
            watching = client.capacity.watching(
                [watched(settings.state, disk, settings.keeping)], workers
            )
            await stack.enter_async_context(watching)
            rows = await open_rocks(settings.state / FOLDER, workers)
            broker = await Broker.open(
                client,
                rows,
                settings=BrokerSettings(lease_ms=settings.lease_ms),
                address=known_as,
                elect=True,
                metrics=metrics,
            )
            coordinator = Coordinator(
                broker,
                discoveries=_discoveries(settings, client.store),
                alarms=_alarms(settings),
                metrics=metrics,
            )
            coordinator.start()
            try:
                async with _payloads(url, broker) as payloads:
                    yield _Opened(broker, client, payloads, metrics)
            finally:
                await coordinator.close()
                await broker.close()
    finally:
        await workers.close()


def _discoveries(settings: TaskServerSettings, store: MetadataStore) -> dict[str, Discovery]:
    return {ZOOKEEPER: StoreDiscovery(store), COMMAND: CommandDiscovery(settings.discover)}


def _alarms(settings: TaskServerSettings) -> Alarms:
    return Alarms(CommandHook(settings.on_alarm) if settings.on_alarm else None)


async def _register(store: MetadataStore, known_as: str, url: str) -> None:
    """Say where a broker serves HTTP."""
    key = f"{SERVERS}/{known_as}"
    try:
        await store.create(key, url.encode())
    except KeyExists:
        before = await store.get(key)
        if before is not None:
            await store.set(key, url.encode(), before.version)


async def _relay(stack: AsyncExitStack, store: MetadataStore, security: Security) -> HttpRelay:
    import httpx

    clients: dict[TlsFiles | None, httpx.AsyncClient] = {}

    async def close() -> None:
        await asyncio.gather(*(each.aclose() for each in clients.values()))

    stack.push_async_callback(close)

    def client() -> httpx.AsyncClient:
        """A new client each time certificates were read; older ones finish their requests."""
        now = security.now
        if now.tls not in clients:
            clients[now.tls] = httpx.AsyncClient(verify=now.client_context() or True)
        return clients[now.tls]

    client()

    async def url_of(leader: str) -> str:
        try:
            return await server_of(store, leader)
        except BrokerUnavailable:
            return ""

    return HttpRelay(client, url_of)


@asynccontextmanager
async def _payloads(url: str, broker: Broker) -> AsyncIterator[OpenedPayloads]:
    """The store of large payloads, swept as long as the block lasts."""
    async with OpenedPayloads(url) as payloads:
        sweeping = asyncio.create_task(keep_swept(broker, payloads))
        try:
            yield payloads
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)


async def _door(
    stack: AsyncExitStack, opened: _Opened, security: Security, *, closed: bool
) -> UserDoor | None:
    """The door for the store's users; None if there cannot be any.

    `closed`: a folder's gRPC refuses clients without credentials, even if there are no users.
    """
    client, herd = opened.client, opened.herd
    if herd is None:
        return await stack.enter_async_context(users_door(client, security, _WHERE))
    known = users_in(herd, client.clock, security)
    audit, guesses = configured_audit(_WHERE), Guesses(client.clock)
    return UserDoor(known, audit, _WHERE, guesses, closed=closed)


def _doorkeeper(
    settings: TaskServerSettings, owner: User | None, door: UserDoor | None, clock: Clock
) -> Doorkeeper:
    """Who is let in at HTTP: those of the file, else the store's users, else everybody."""
    if settings.users:
        door = UserDoor(FileUsers(settings.users), configured_audit(_WHERE), _WHERE, Guesses(clock))
    if door is None:
        return Logins()
    web, rng = WebSettings(open=settings.insecure), random.SystemRandom()
    gate = Gate(door.authenticator, web, clock, rng, door.audit, door.guesses)
    return StoreLogins(gate, owner)


async def _serve_grpc(
    stack: AsyncExitStack,
    here: _Opened,
    settings: TaskServerSettings,
    security: Security,
    door: UserDoor | None,
) -> None:
    with needing_cluster():
        from broker.wire.grpc_server import GrpcBrokerServer

        try:
            server = await GrpcBrokerServer.start(
                here.broker,
                listen=settings.grpc,
                security=security,
                door=door,
                lack=lambda: here.client.capacity.lack,
            )
        except OSError as error:
            raise InvalidRequest(f"cannot listen at {settings.grpc}: {error}") from error
    stack.push_async_callback(server.close)


def _owner(stack: AsyncExitStack, folder: Path, settings: TaskServerSettings, address: str) -> User:
    """Let a folder know its server; whoever may read the folder, by what it says."""
    password = f"{random.SystemRandom().getrandbits(128):032x}"
    certificate = str(settings.certificate.absolute()) if settings.certificate else ""
    stack.enter_context(_Named(folder, TaskServerFact(address, password, certificate)))
    return User(USER, password, admin=True)


class _Named:
    """Publishes a server's address in the folder, as long as the block lasts.

    The file is locked before it gets its name, so if the file is unlocked, its server has ended in
    some way.
    """

    def __init__(self, folder: Path, fact: TaskServerFact) -> None:
        self._path = folder / SERVER_FILE
        self._fact = fact
        self._file: FileIO | None = None

    def __enter__(self) -> None:
        new = self._path.with_suffix(".new")
        new.touch(mode=0o600)
        self._file = new.open("r+b", buffering=0)
        guard(self)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A half-written file of a killed server is reused, one of a starting server is not.
            if not os.path.samestat(new.stat(), os.fstat(self._file.fileno())):
                raise BlockingIOError
            with naming(self._path):
                self._file.truncate(0)
                self._file.write(msgspec.json.encode(self._fact))
                new.replace(self._path)
        except (BlockingIOError, FileNotFoundError) as error:
            self._file.close()
            folder = self._path.parent
            raise InvalidRequest(
                f"another server for the tasks of {folder} is starting: use that one"
            ) from error

    def __exit__(self, *_: object) -> None:
        file, self._file = self._file, None
        assert file is not None
        with file, contextlib.suppress(FileNotFoundError):
            # By now the file may belong to another server.
            if os.path.samestat(os.stat(self._path), os.fstat(file.fileno())):
                self._path.unlink()

    def after_fork(self) -> list[int]:
        """In a forked child: it must not keep the lock."""
        return [] if self._file is None else [self._file.fileno()]


def _check_listeners(settings: TaskServerSettings, security: Security, *, clustered: bool) -> None:
    # Users of a cluster with a secret log in, and their passwords want a certificate.
    logins = clustered and bool(security.secret) and settings.certificate is not None
    for listen, guarded, remedy in (
        (settings.listen, bool(settings.users) or logins, "give --users FILE"),
        (settings.grpc, security.on, "give a secret or authorities in the configuration file"),
    ):
        if not listen or guarded or settings.insecure:
            continue
        host, _ = parse_host_port(listen)
        if not is_loopback(host):
            raise InvalidRequest(
                f"anybody who reaches {listen} could submit tasks: {remedy}, listen at "
                "127.0.0.1, or say --insecure"
            )
