"""A store with every door that a server has, in one process, and one caller of each role.

Things named `alma` are those that grants name; things named `umbra` are nobody's but an
administrator's, and no reply to anybody else may name one of them.

Invariants:
- Every server is the real one, at a port of its own. Users stand in the store's own rows.
"""

import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec

from broker.commands import Spec
from broker.http.app import create_app as create_broker_app
from broker.wire.folder import OWNER as tasks_owner
from broker.wire.grpc_server import GrpcBrokerServer
from engine.access.door import ReaderDoor, UserDoor
from engine.access.guesses import Guesses
from engine.access.principal import KINDS, Grant, Right
from engine.access.signing import ReadSigner
from engine.access.tokens import key_of
from engine.folder.lock import FolderLock
from engine.metadata.memory import MemoryTree
from engine.metadata.permitted import reader_session
from engine.ports.system_loop import BackgroundLoop, background_loop
from engine.transport.address import UNIX
from engine.transport.framed_server import FramedServer
from engine.transport.grpc_server import GrpcServer
from engine.transport.listening import listen_tcp
from engine.transport.security import Security
from engine.transport.shortcut import Shortcut
from herd.nodes.facts import SPACES, SpaceFact, encode_fact
from herd.store import FOLDER
from herd.wire.folder import OWNER as herd_owner
from herd.wire.framed_server import SessionServer
from herd.wire.grpc_server import GrpcSessionServer
from herd.wire.service import HerdService
from herdbook.access.authenticator import StoreAuthenticator
from herdbook.access.metadata_rights import metadata_for
from herdbook.access.proving import PasswordThreads
from herdbook.access.rows import UserRows
from herdbook.access.web_logins import StoreLogins
from herdbook.book import AsyncBook, open_async
from herdbook.http import create_app, house_of
from herdbook.http.gate import Gate
from herdbook.http.settings import WebSettings
from herdbook.http_listening import answer_at, listening_at
from tests.engine.access.known_users import KeptAudit
from tests.engine.transport.bookie_contract import append, facts_of, runs_of
from tests.engine.transport.test_readers import Shelf
from tests.herd.wire.test_route import NodeOf

T = TypeVar("T")

SECRET: Final = b"known to parts of the cluster alone"
SECURITY: Final = Security(secret=SECRET)
WRONG_TOKEN: Final = "hbt_0011223344556677_nobodys"
LEDGER: Final = 1
"""The ledger of the tablespace `alma`."""
_IDLE_S: Final = 1.0
_ACCEPTS: Final = "00010000"
"""The flag of a socket in `/proc/net/unix` at which somebody listens."""
ROLES: Final = ("nobody", "wrong", "none", "reader", "writer", "keeper", "other", "root", "part")
USERS: Final[dict[str, tuple[str, Right] | None]] = {
    "none": None,
    "reader": ("alma", "read"),
    "writer": ("alma", "write"),
    "keeper": ("alma", "admin"),
    "other": ("other", "admin"),
    "root": None,
}
"""What each user was granted: a name, of every kind, and a right."""


@dataclass(frozen=True, slots=True)
class Thing:
    """What an action is about: the name of a tablespace, bucket and tenant; a task that has ended,
    one that waits, an open transaction."""

    name: str
    ended: int = 0
    waiting: int = 0
    transaction: int = 0


ALMA: Final = "alma"
GHOST: Final = Thing("ghosts", 7_000_001, 7_000_002, 7_000_003)
"""What there is not."""


@dataclass(frozen=True, slots=True)
class Page:
    """A reply of HTTP."""

    status: int
    text: str

    def json(self) -> Any:
        """What it says."""
        return msgspec.json.decode(self.text)


class Web:
    """Asks a server of HTTP over one connection, with a token or without."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = HTTPConnection(url.removeprefix("http://"), timeout=20)
        self._used_s = 0.0
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(
        self, method: str, path: str, query: dict[str, Any] | None = None, body: bytes = b""
    ) -> Page:
        """The reply to a request."""
        if time.monotonic() > self._used_s + _IDLE_S:
            # The server hangs up on who says nothing for a while.
            self._connection.close()
        target = f"{path}?{urlencode(query)}" if query else path
        self._connection.request(method, target, body, self._headers)
        reply = self._connection.getresponse()
        page = Page(reply.status, reply.read().decode())
        self._used_s = time.monotonic()
        return page

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def keys() -> tuple[bytes, ...]:
    """The keys by which tokens are signed."""
    return (key_of(SECRET),)


class Fort:
    """The servers and the callers. On a loop of its own."""

    def __init__(self, folder: Path) -> None:
        self._listened_before = frozenset(_listened_at())
        self.loop: BackgroundLoop = background_loop()
        self._stack = AsyncExitStack()
        self.audit = KeptAudit()
        self.tokens: dict[str, str] = {"wrong": WRONG_TOKEN}
        self.read_tokens: dict[str, str] = {"wrong": WRONG_TOKEN}
        self.urls: dict[str, str] = {}
        self.grpc: dict[str, str] = {}
        self.frames: dict[str, int] = {}
        self.apps: dict[str, Any] = {}
        self._clients: dict[tuple[str, str], Web] = {}
        self.book: AsyncBook
        self.shelf = Shelf("a")
        self.bookie_server: FramedServer
        self.alma = self.umbra = Thing("")
        self.folder = folder
        self._beside_port = ""
        self.run(lambda: self._open(folder))

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """What comes of it on the loop of the servers."""

        async def do() -> T:
            return await work()

        return self.loop.run(do)

    def close(self) -> None:
        """End all."""
        for client in self._clients.values():
            client.close()
        self.run(self._stack.aclose)

    def web(self, door: str, role: str) -> Web:
        """A client of HTTP."""
        if (door, role) not in self._clients:
            self._clients[door, role] = Web(self.urls[door], self.tokens.get(role, ""))
        return self._clients[door, role]

    async def _open(self, folder: Path) -> None:
        self.book = await self._stack.enter_async_context(open_async(folder))
        rows = UserRows(self.book.herd, self.book.ledgers.clock)
        signer = ReadSigner(keys, self.book.ledgers.clock)
        for user, grant in USERS.items():
            await rows.add(user, admin=user == "root")
            for kind in KINDS if grant is not None else ():
                assert grant is not None
                await rows.grant(user, Grant(kind, *grant))
            self.tokens[user] = await rows.make_token(user)
            known = await rows.user(user)
            assert known is not None
            self.read_tokens[user] = signer.sign(known.principal)
        await self._serve_http(rows)
        await self._serve_frames_and_grpc(rows, signer)
        await self._serve_bookie()
        self.alma = await self.furnished(ALMA)
        self.umbra = await self.furnished("umbra")

    def _authenticator(self, rows: UserRows) -> StoreAuthenticator:
        clock = self.book.ledgers.clock
        return StoreAuthenticator(rows, keys, clock, PasswordThreads())

    def _door(self, rows: UserRows, where: str) -> UserDoor:
        guesses = Guesses(self.book.ledgers.clock)
        return UserDoor(self._authenticator(rows), self.audit, where, guesses)

    async def _serve_http(self, rows: UserRows) -> None:
        house = await house_of(self.book, name="fort")
        self._stack.push_async_callback(house.chores.close)
        known = self._authenticator(rows)
        self.apps["node-http"] = create_app(house, known, metrics=lambda: b"herdbook_up 1\n")
        gate = Gate(known, WebSettings(), self.book.ledgers.clock, random.Random(1), self.audit)
        self.apps["broker-http"] = create_broker_app(
            house.desk, StoreLogins(gate), metrics=lambda: b"herdbook_up 1\n"
        )
        for door, app in self.apps.items():
            listening = self._stack.enter_context(listening_at("127.0.0.1:0"))
            await answer_at(self._stack, app, listening)
            self.urls[door] = f"http://127.0.0.1:{listening.getsockname()[1]}"

    async def _serve_frames_and_grpc(self, rows: UserRows, signer: ReadSigner) -> None:
        herd, clock = self.book.herd, self.book.ledgers.clock
        door = self._door(rows, "herd")
        service = HerdService(NodeOf(herd), herd.workers, signer=signer, audit=self.audit)
        metadata = MemoryTree("c").session()
        for name in (ALMA, "umbra"):
            await metadata.create(f"{SPACES}/{name}", encode_fact(SpaceFact("uuid", 1)))
        sessions = SessionServer(
            service,
            security=SECURITY,
            door=door,
            open_metadata=partial(metadata_for, metadata, clock.wall_ms),
        )
        await self._listen("herd", sessions)
        grpc = await GrpcSessionServer.start(
            service,
            listen="127.0.0.1:0",
            clock=clock,
            rng=random.Random(1),
            security=SECURITY,
            door=door,
        )
        self._stack.push_async_callback(grpc.close, 0)
        self.grpc["herd"] = f"127.0.0.1:{grpc.port}"
        broker: Any = (await self.book.tasks()).calls
        tasks = await GrpcBrokerServer.start(
            broker, listen="127.0.0.1:0", security=SECURITY, door=self._door(rows, "broker")
        )
        self._stack.push_async_callback(tasks.close, 0)
        self.grpc["broker"] = f"127.0.0.1:{tasks.port}"

    async def _serve_bookie(self) -> None:
        await append(self.shelf, runs_of(LEDGER, 0, [[b"milk of alma"]], lac=-1))
        custom = {"owner": b"herd:alma"}
        self.shelf.facts = [msgspec.structs.replace(facts_of(LEDGER), custom=custom)]
        door = ReaderDoor(keys, self.book.ledgers.clock)

        async def control(head: bytes) -> bytes:
            return b""

        server = FramedServer(
            cluster_id="c",
            security=SECURITY,
            door=door,
            open_session=partial(reader_session, MemoryTree("c").session()),
            control=control,
        )
        server.add(self.shelf)
        self.bookie_server = server
        await self._listen("bookie", server)
        await self._serve_beside_port()
        grpc = await GrpcServer.start(
            {"a": self.shelf}, listen="127.0.0.1:0", security=SECURITY, door=door
        )
        self._stack.push_async_callback(grpc.close, 0)
        self.grpc["bookie"] = f"127.0.0.1:{grpc.port}"

    async def _serve_beside_port(self) -> None:
        """What a bookie without security has beside a port of the loopback."""
        server = FramedServer(cluster_id="c")
        self._stack.push_async_callback(server.close)
        shortcut = await Shortcut.open("tcp:127.0.0.1:7", server.accept)
        assert shortcut is not None
        self._stack.callback(shortcut.close)
        self._beside_port = shortcut.address

    def sockets(self) -> dict[str, Path]:
        """The Unix sockets that this process listens at, as the system knows them, by what is
        served there."""
        named = {self._beside_port.removeprefix(UNIX): "beside a port"}
        for name, lock in (
            ("bookies", "."),
            ("tablespaces", f"{FOLDER}/{herd_owner}"),
            ("tasks", tasks_owner),
        ):
            with closing(FolderLock.of(self.folder / lock)) as held:
                owner = held.read()
            if owner is not None:
                named[owner.address.removeprefix(UNIX)] = name
        own = [path for path in _listened_at() if path not in self._listened_before]
        return {named.get(str(path), str(path)): path for path in own}

    async def _listen(self, name: str, server: Any) -> None:
        listener = await listen_tcp(
            server.accept_counted,
            "127.0.0.1",
            0,
            sockets_max=server.sockets_max,
            context=server.context,
            handshake_timeout_ms=2_000,
            backlog=128,
        )
        self._stack.push_async_callback(server.close)
        self._stack.callback(listener.close)
        self.frames[name] = listener.port

    async def furnished(self, name: str) -> Thing:
        """Make a tablespace, a bucket and a tenant of a name, with something in each."""
        herd, milk = self.book.herd, f"milk-of-{name}"
        await herd.make(name)
        session = await herd.session(name)
        await session.execute("CREATE TABLE cow (id BIGINT PRIMARY KEY, name TEXT)")
        await session.execute(f"CREATE TABLE table_of_{name} (id BIGINT PRIMARY KEY)")
        await session.execute("CREATE INDEX cow_name ON cow (name)")
        await session.execute(f"INSERT INTO cow VALUES (1, '{milk}')")
        await session.close()
        bucket = await self.book.blobs.create_bucket(name)
        await bucket.put(f"object-of-{name}", milk.encode())
        return await self.fresh(name)

    async def fresh(self, name: str) -> Thing:
        """New tasks and a new transaction of a tenant."""
        milk = f"milk-of-{name}"
        calls: Any = (await self.book.tasks()).calls
        spec = Spec(f"type-of-{name}", name, milk.encode(), submitter=f"clerk-of-{name}")
        ended, waiting = await calls.submit([spec] * 2)
        await calls.cancel([ended])
        # It must not end by itself while a slow machine runs all tests.
        transaction = await calls.begin(f"clerk-{waiting}-of-{name}", 3_600_000)
        return Thing(name, ended, waiting, transaction)


def _listened_at() -> list[Path]:
    """The paths of the Unix sockets that this process accepts connections at."""
    own = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            own.add(os.readlink(each).removeprefix("socket:[").removesuffix("]"))
    found = []
    for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[3] == _ACCEPTS and words[6] in own:
            found.append(Path(words[7]))
    return found
