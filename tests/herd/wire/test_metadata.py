"""The metadata store through nodes: who is let in, what is limited, and what a lost node means."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from engine.access.door import ReaderDoor, UserDoor
from engine.access.guesses import Guesses
from engine.access.shares import Shares
from engine.access.shown import ShownToken
from engine.access.tokens import READ, Claims, sign
from engine.connecting import connect
from engine.errors import (
    AccessRefused,
    BookieUnavailable,
    FrameInvalid,
    InvalidRequest,
    MetadataUnavailable,
    NoSuchCluster,
    NoZooKeeper,
)
from engine.ledger.settings import ClientSettings
from engine.metadata.contract import MetadataStore
from engine.metadata.ledgers import encode_metadata
from engine.metadata.memory import MemoryTree
from engine.metadata.permitted import reader_session
from engine.metadata.remote import RemoteStore
from engine.metadata.remote_messages import Watch
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from engine.ports.clock import SystemClock
from engine.transport.frames import Frame, Kind
from engine.transport.listening import listen_tcp
from engine.transport.messages import encode
from engine.transport.metadata_session import CLUSTER, NODES, PATH, MetadataSession
from engine.transport.security import NO_SECURITY, Security
from herd.errors import AccessDenied
from herd.wire.framed_client import dial_sessions
from herd.wire.framed_server import SessionServer
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings
from tests.broker.worker.looking import until
from tests.engine.access.known_users import KEY, SECRET, KeptAudit, KnownUsers, user
from tests.engine.metadata.proxy import proxy_to
from tests.engine.metadata.test_ledgers import metadata
from tests.engine.transport.certificates import Authority
from tests.herd.wire.test_route import NodeOf
from tests.herd.wire.wiring import embedded

NODE: Final = Security(secret=SECRET)
ANN: Final = Security(user="ann", password="ann's word")
TOKEN: Final = sign(Claims(READ, "ann", 2**52, (("tablespace", "shop"),)), KEY)
BRIEF: Final = ZooKeeperSettings(connect_timeout_ms=500)


class Nodes:
    """Nodes with one metadata store, each with a port."""

    def __init__(self, stack: AsyncExitStack, service: HerdService, security: Security) -> None:
        self.tree = MemoryTree("cluster")
        self.path = "/prod"
        self.servers: list[SessionServer] = []
        self.addresses: list[str] = []
        self._stack = stack
        self._service = service
        self._security = security

    async def start(self, **fields: Any) -> SessionServer:
        readers = ReaderDoor(lambda: (KEY,), SystemClock())
        users, audit = KnownUsers(user("ann"), user("root", admin=True)), KeptAudit()
        door = UserDoor(users, audit, "herd", Guesses(SystemClock()), readers=readers)
        server = SessionServer(
            self._service,
            security=self._security,
            door=door,
            open_metadata=partial(reader_session, self.tree.session()),
            told=lambda: {CLUSTER: "cluster", PATH: self.path, NODES: self.addresses},
        )
        listener = await listen_tcp(
            server.accept_counted,
            "127.0.0.1",
            0,
            sockets_max=server.sockets_max,
            context=server.context,
            handshake_timeout_ms=2_000,
            backlog=16,
        )
        self._stack.push_async_callback(server.close)
        self._stack.callback(listener.close)
        self.servers.append(server)
        self.addresses.append(f"tcp:127.0.0.1:{listener.port}")
        return server

    def url(self, number: int = 0, path: str = "") -> str:
        return f"herdbook://{self.addresses[number].removeprefix('tcp:')}{path}"

    async def session(self, security: Security) -> RemoteStore:
        async def find() -> str:
            return self.addresses[0]

        opening = RemoteStore.open(
            find, clock=SystemClock(), rng=random.Random(1), security=security
        )
        store = await opening
        self._stack.push_async_callback(store.close)
        return store


@asynccontextmanager
async def nodes(path: Path, security: Security = NODE) -> AsyncIterator[Nodes]:
    async with embedded(path) as herd, AsyncExitStack() as stack:
        service = HerdService(NodeOf(herd), herd.workers, WireSettings(connect_timeout_ms=2_000))
        made = Nodes(stack, service, security)
        await made.start()
        yield made


async def test_a_part_of_the_cluster_uses_the_store_through_a_node(tmp_path: Path) -> None:
    async with nodes(tmp_path) as made:
        store, own = await made.session(NODE), made.tree.session()
        changed = asyncio.Event()
        store.watch("/farm/cow", changed.set)
        assert await store.create("/farm/cow", b"moo") == 0
        await asyncio.wait_for(changed.wait(), 30)
        assert await store.children("/farm") == ["cow"]
        found = await own.get("/farm/cow")
        assert found is not None and found.value == b"moo"
        big = bytes(1 << 20)
        assert await store.create("/farm/big", big) == 0
        assert (await store.get("/farm/big")).value == big  # type: ignore[union-attr]


@pytest.mark.parametrize("shown", [ANN, Security(token=TOKEN)], ids=["login", "read token"])
async def test_a_user_has_the_rights_of_a_user(tmp_path: Path, shown: Security) -> None:
    async with nodes(tmp_path) as made:
        store = await made.session(shown)
        await made.tree.session().create("/bookies/one", b"here")
        assert await store.children("/bookies") == ["one"]
        with pytest.raises(AccessRefused):
            await store.create("/repair/disabled", b"")
        assert await made.tree.session().get("/repair/disabled") is None


@pytest.mark.parametrize(
    "shown", [NO_SECURITY, Security(user="ann", password="wrong"), Security(token="hb1.a.b")]
)
async def test_strangers_are_not_let_in(tmp_path: Path, shown: Security) -> None:
    async with nodes(tmp_path) as made:
        with pytest.raises(AccessRefused):
            await made.session(shown)


async def test_a_read_token_opens_no_session_of_tablespaces(tmp_path: Path) -> None:
    async with nodes(tmp_path) as made:
        with pytest.raises(AccessDenied, match="read token"):
            await dial_sessions(made.addresses[0], SystemClock(), security=Security(token=TOKEN))


async def test_one_user_has_a_share_of_the_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("herd.wire.framed_server.WATCHES_MAX", 64)
    async with nodes(tmp_path) as made:
        await made.start()
        made.addresses.reverse()
        held = made.servers[1].watches
        store = await made.session(ANN)
        ends = [store.watch("/bookies", lambda: None) for _ in range(10)]
        await until(lambda: held.held == 10)
        for end in ends:
            end()
        await until(lambda: not held.held)
        lost = asyncio.Event()
        store.watch_session(lost.set)
        for _ in range(16):
            store.watch("/bookies", lambda: None)
        await asyncio.wait_for(lost.wait(), 30)
        await store.close()
        await until(lambda: not held.held)
        assert held.has_room("ann", 10) and not held.has_room("ann", 16)


async def test_a_client_continues_at_another_node_when_its_own_stops(tmp_path: Path) -> None:
    async with nodes(tmp_path) as made:
        await made.start()
        async with connect(made.url(), security=NODE) as client:
            store = client.store
            await store.create("/farm/cow", b"moo")
            changed = asyncio.Event()
            store.watch("/farm/cow", changed.set)
            await made.servers[0].close()
            await asyncio.wait_for(changed.wait(), 30)

            await going_on(store)
            found = await store.get("/farm/cow")
            assert found is not None and found.value == b"moo"
            await store.set("/farm/cow", b"muh", 0)


@pytest.mark.parametrize("call", ["get", "create"])
async def test_a_client_continues_at_another_node_when_its_own_hangs(
    tmp_path: Path, call: str
) -> None:
    async with nodes(tmp_path) as made:
        await made.start()
        async with proxy_to(made.addresses.pop(0).removeprefix("tcp:")) as proxy:
            settings = ClientSettings(metadata_timeout_ms=1_000)
            url = f"herdbook://{proxy.hosts}"
            async with connect(url, settings=settings, security=NODE) as client:
                await client.store.create("/farm/cow", b"moo")
                assert not made.servers[1].connections
                proxy.swallowing = True
                with pytest.raises(MetadataUnavailable):
                    await (
                        client.store.get("/farm/cow")
                        if call == "get"
                        else client.store.create("/farm/pig", b"oink")
                    )
                await until(lambda: bool(made.servers[1].connections))
                await going_on(client.store)


async def test_a_client_stays_at_a_node_that_answers_pings(tmp_path: Path) -> None:
    async with nodes(tmp_path) as made:
        store, slow = made.tree.session(), asyncio.Event()
        get = store.get

        async def get_slowly(key: str) -> Any:
            await slow.wait()
            return await get(key)

        store.get = get_slowly  # type: ignore[method-assign]
        made.servers[0].open_metadata = partial(reader_session, store)
        async with connect(
            made.url(), settings=ClientSettings(metadata_timeout_ms=300), security=NODE
        ) as client:
            [before] = made.servers[0].connections
            for _ in range(3):
                with pytest.raises(MetadataUnavailable):
                    await client.store.get("/farm/cow")
            slow.set()
            await going_on(client.store)
            assert list(made.servers[0].connections) == [before]


async def test_over_tls_a_user_connects_without_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "company")
    end = authority.sign("node")
    node = Security(SECRET, end.certificate, end.private_key, authority.path)
    ann = Security(authorities=authority.path, user="ann", password="ann's word")
    async with nodes(tmp_path / "data", node) as made:
        async with connect(made.url(), security=ann) as client:
            assert await client.store.get("/bookies/one") is None
        wrong = replace(ann, password="another word")
        with pytest.raises(AccessRefused):
            async with connect(made.url(), security=wrong):
                pass
        with pytest.raises(NoZooKeeper, match="TLS with matching authorities"):
            async with connect(made.url(), security=ANN, zookeeper=BRIEF):
                pass


async def test_the_path_of_a_url_must_be_the_path_of_the_nodes(tmp_path: Path) -> None:
    async with nodes(tmp_path) as made:
        for path in ("", "/prod"):
            async with connect(made.url(path=path), security=NODE) as client:
                assert client.store.cluster_id == "cluster"
        with pytest.raises(NoSuchCluster, match="/prod"):
            async with connect(made.url(path="/test"), security=NODE):
                pass


async def test_the_next_node_is_tried_if_one_does_not_serve_the_client(tmp_path: Path) -> None:
    async with nodes(tmp_path) as made:
        await made.start()
        for wrong in (
            {"open_metadata": None},
            {"told": lambda: {CLUSTER: "another"}},
            {"connections_max": 0},
        ):
            before = {name: getattr(made.servers[0], name) for name in wrong}
            for name, value in wrong.items():
                setattr(made.servers[0], name, value)
            url = f"{made.url()},{made.addresses[1].removeprefix('tcp:')}"
            # A client that loses its node continues at the one that serves metadata.
            async with connect(made.url(1), security=NODE) as client:
                store = client.store
                assert await store.get("/farm/cow") is None
                for connection in list(made.servers[1].connections):
                    connection.wire.abort()
                await going_on(store)
            if "told" not in wrong:
                for _ in range(6):
                    async with connect(url, security=NODE) as client:
                        assert await client.store.get("/farm/cow") is None
            for name, value in before.items():
                setattr(made.servers[0], name, value)


async def going_on(store: MetadataStore) -> None:
    """Wait until a store answers again."""
    async with asyncio.timeout(30):
        while True:
            try:
                await store.get("/farm/cow")
                return
            except MetadataUnavailable:
                await asyncio.sleep(0)


async def test_each_connection_shows_the_current_read_token(tmp_path: Path) -> None:
    shown = ShownToken(sign(Claims(READ, "ann", 2**52, ()), KEY), clock=SystemClock())
    async with nodes(tmp_path) as made:
        await made.tree.session().create("/ledgers/1", ledger_of_shop())
        async with connect(made.url(), security=Security(read_token=shown)) as client:
            with pytest.raises(AccessRefused):
                await client.store.get("/ledgers/1")
            shown.renew(sign(Claims(READ, "ann", 2**53, (("tablespace", "shop"),)), KEY))
            for connection in list(made.servers[0].connections):
                connection.wire.abort()
            await going_on_with(client.store, "/ledgers/1")


async def going_on_with(store: MetadataStore, key: str) -> None:
    """Wait until a key can be read."""
    async with asyncio.timeout(30):
        while True:
            try:
                assert await store.get(key) is not None
                return
            except (MetadataUnavailable, AccessRefused):
                await asyncio.sleep(0)


def ledger_of_shop() -> bytes:
    return encode_metadata(metadata(1, custom={"owner": b"herd:shop"}))


def test_a_watch_that_the_store_refuses_holds_no_share() -> None:
    class Refusing:
        def watch(self, key: str, changed: Any) -> Any:
            raise InvalidRequest(f"{key} is not a valid key")

    held = Shares(64)
    session = MetadataSession(Refusing(), lambda *_: None, held, "ann")  # type: ignore[arg-type]
    frame = Frame(Kind.WATCH, 0, 7, encode(Watch("/..")), memoryview(b""))
    with pytest.raises(FrameInvalid, match="is not a valid key"):
        session.watch(frame)
    assert not held.held


async def test_a_login_that_a_node_refuses_raises_access_refused(tmp_path: Path) -> None:
    async with nodes(tmp_path) as made:
        with pytest.raises(AccessRefused):
            async with connect(made.url(), security=Security(user="ann", password="wrong")):
                pass


async def test_a_server_that_is_not_a_node_is_taken_for_zookeeper(tmp_path: Path) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(NoZooKeeper):
        async with connect(f"herdbook://127.0.0.1:{port}/prod", zookeeper=BRIEF):
            pass
    server.close()


async def test_a_client_with_two_secrets_connects(tmp_path: Path) -> None:
    both = Security(secret=b"another secret of many letters", other_secret=SECRET)
    async with nodes(tmp_path, both) as made, connect(made.url(), security=both) as client:
        assert client.store.cluster_id == "cluster"


async def test_an_open_cluster_lets_everybody_in(tmp_path: Path) -> None:
    async with nodes(tmp_path, NO_SECURITY) as made:
        async with connect(made.url()) as client:
            store: MetadataStore = client.store
            assert await store.create("/farm/cow", b"moo") == 0
        with pytest.raises((BookieUnavailable, MetadataUnavailable)):
            await store.get("/farm/cow")
