"""Who may do what in tablespaces, over both wires: every kind of call, from the lists of them."""

import asyncio
import random
import typing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from grpc import aio

from engine.access.scram import ScramVerifier
from engine.access.signing import ReadSigner
from engine.access.tokens import READ, SESSION, Claims, sign, verify
from engine.ports.clock import SystemClock
from engine.transport.framed_client import ClientConnection
from engine.transport.framed_settings import FramedSettings
from engine.transport.grpc_login import Credentials
from engine.transport.listening import listen_tcp
from engine.transport.security import NO_SECURITY, Security
from herd.errors import AccessDenied, Error, OperationalError
from herd.store import AsyncHerd
from herd.types import BIGINT, TEXT
from herd.wire import messages
from herd.wire.framed_client import FramedChannel, dial_sessions
from herd.wire.framed_server import SessionServer
from herd.wire.framing import CALL
from herd.wire.grpc_generated import herd_pb2 as wire
from herd.wire.grpc_server import GrpcSessionServer
from herd.wire.grpc_service import SERVICE
from herd.wire.herd import RemoteHerd
from herd.wire.messages import Failed, decode_answer, encode
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings
from tests.broker.worker.looking import until
from tests.engine.access.known_users import KEY, SECRET, KeptAudit, KnownUsers, door_of, user
from tests.engine.transport.certificates import Authority
from tests.herd.wire.test_route import NodeOf, reaching
from tests.herd.wire.wiring import embedded

SETTINGS: Final = WireSettings(patience_ms=1_000, connect_timeout_ms=2_000)
NODE: Final = Security(secret=SECRET)
CALLS: Final = typing.get_args(messages.Call)
METHODS: Final = [each.name for each in wire.DESCRIPTOR.services_by_name["Tablespaces"].methods]


def logged_in(name: str) -> Security:
    """A user's own."""
    return Security(user=name, password=f"{name}'s word")


class House:
    """Tablespaces `shop`, `barn` and `system` behind both wires, and users of them."""

    def __init__(self, herd: AsyncHerd, users: KnownUsers, audit: KeptAudit) -> None:
        self.herd = herd
        self.users = users
        self.audit = audit
        self.address = ""
        self.server: SessionServer | None = None
        self.grpc: GrpcSessionServer | None = None

    @asynccontextmanager
    async def remote(self, security: Security) -> AsyncIterator[RemoteHerd]:
        """What somebody sees of it."""
        async with reaching(self.herd, [self.address], SETTINGS, security) as remote:
            yield remote

    async def refused(self, security: Security, text: str, tablespace: str = "shop") -> str:
        """Why a statement is refused."""
        async with self.remote(security) as remote:
            session = await remote.session(tablespace)
            with pytest.raises(AccessDenied) as refusal:
                await session.execute(text)
            await session.close()
            return refusal.value.message

    async def told(self, security: Security, text: str, tablespace: str = "shop") -> list[Any]:
        """What a query answers."""
        async with self.remote(security) as remote:
            session = await remote.session(tablespace)
            rows = list((await session.execute(text)).rows)
            await session.close()
            return rows

    async def channel(self, security: Security) -> FramedChannel:
        """A channel for calls by hand."""
        return await dial_sessions(
            self.address,
            SystemClock(),
            settings=SETTINGS,
            security=security,
        )


@asynccontextmanager
async def opened(path: Path, security: Security = NODE) -> AsyncIterator[House]:
    users = KnownUsers(
        user("root", admin=True),
        user("ann", ("tablespace", "shop", "admin")),
        user("ben", ("tablespace", "shop", "write")),
        user("cat", ("tablespace", "shop", "read")),
        user("dan", ("tablespace", "barn", "admin"), ("bucket", "shop", "admin")),
        user("eve", ("tablespace", "*", "admin"), ("tablespace", "blobs__pool_1", "admin")),
    )
    audit = KeptAudit()
    async with embedded(path) as herd:
        for name in ("shop", "barn", "system"):
            await herd.make(name)
            await herd.create_table("cow", {"id": BIGINT, "name": TEXT}, ("id",), name)
        house, door = House(herd, users, audit), door_of(users, audit)
        signer = ReadSigner(lambda: (KEY,), SystemClock())
        service = HerdService(NodeOf(herd), herd.workers, SETTINGS, signer=signer, audit=audit)
        house.server = SessionServer(service, security=security, door=door)
        listener = await listen_tcp(
            house.server.accept_counted,
            "127.0.0.1",
            0,
            sockets_max=house.server.sockets_max,
            context=house.server.context,
            handshake_timeout_ms=2_000,
            backlog=16,
        )
        house.address = f"tcp:127.0.0.1:{listener.port}"
        house.grpc = await GrpcSessionServer.start(
            service,
            listen="127.0.0.1:0",
            clock=SystemClock(),
            rng=random.Random(1),
            security=security,
            door=door,
        )
        try:
            yield house
        finally:
            listener.close()
            await house.server.close()
            await house.grpc.close(0)


# Coming in


async def test_users_come_by_password_by_token_and_nodes_by_the_secret(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        for security in (logged_in("ann"), Security(token="token-ann"), NODE):
            assert await house.told(security, "SELECT count(*) FROM cow") == [(0,)]
        allowed = [(event.who, event.what) for event in house.audit.events if event.allowed]
        assert allowed[:2] == [("ann", "log in"), ("ann", "log in by token")]


@pytest.mark.parametrize(
    "security",
    [
        NO_SECURITY,
        Security(secret=b"the cows come home at ten"),
        Security(user="ann", password="ben's word"),
        Security(user="zoe", password="zoe's word"),
        Security(token="token-zoe"),
        Security(token=sign(Claims(READ, "ann", 2**52, (("tablespace", "shop"),)), KEY)),
        Security(token=sign(Claims(SESSION, "ann", 1), KEY)),
        Security(token=sign(Claims(SESSION, "ann", 2**52), bytes(32))),
    ],
    ids=lambda security: repr(security)[:60],
)
async def test_nobody_else_is_greeted(tmp_path: Path, security: Security) -> None:
    async with opened(tmp_path) as house:
        with pytest.raises(AccessDenied):
            await house.channel(security)


async def test_a_login_is_refused_if_the_password_changes_meanwhile(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        users, scram = house.users, house.users.scram

        async def then_another(user: str) -> ScramVerifier:
            found = await scram(user)
            users.give_password(user, "another word")
            return found

        users.scram = then_another  # type: ignore[method-assign]
        assert house.grpc is not None
        with pytest.raises(AccessDenied, match="is wrong"):
            await house.channel(logged_in("ann"))
        users.give_password("ann", "ann's word")
        async with aio.insecure_channel(f"127.0.0.1:{house.grpc.port}") as channel:
            with pytest.raises(aio.AioRpcError, match="is wrong"):
                await Credentials(logged_in("ann"), SystemClock()).metadata(channel)


async def test_an_unknown_user_and_a_wrong_password_look_the_same(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        told = []
        for name in ("ann", "zoe"):
            house.users.asked.clear()
            with pytest.raises(AccessDenied) as refusal:
                await house.channel(Security(user=name, password="wrong"))
            asked = [each.replace(name, "NAME") for each in house.users.asked]
            told.append((refusal.value.message, refusal.value.hint, asked))
        assert told[0] == told[1] and "the password is wrong" in told[0][0]
        refused = [event for event in house.audit.events if not event.allowed]
        assert [event.who for event in refused] == ["ann", "zoe"]


async def test_users_that_cannot_be_looked_up_are_not_refused_for_that(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        house.users.reachable = False
        for security in (logged_in("ann"), Security(token="token-ann")):
            with pytest.raises(OperationalError) as failure:
                await house.channel(security)
            assert not isinstance(failure.value, AccessDenied) and failure.value.retryable


async def test_a_user_who_is_removed_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transport.serving.CHECK_S", 0.01)
    async with opened(tmp_path) as house:
        channel = await house.channel(logged_in("ann"))
        gone = asyncio.Event()
        channel.when_lost(gone.set)
        del house.users.users["ann"]
        await asyncio.wait_for(gone.wait(), 5)
        with pytest.raises(AccessDenied):
            await house.channel(logged_in("ann"))


async def test_a_grant_that_is_taken_back_counts_in_open_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transport.serving.CHECK_S", 0.01)
    async with opened(tmp_path) as house, house.remote(logged_in("ben")) as remote:
        session = await remote.session("shop")
        await session.execute("INSERT INTO cow VALUES (1, 'Alma')")
        house.users.users["ben"] = user("ben", ("tablespace", "shop", "read"))
        asked = len(house.users.asked)
        await until(lambda: len(house.users.asked) >= asked + 2)
        with pytest.raises(AccessDenied):
            await session.execute("INSERT INTO cow VALUES (2, 'Berta')")
        assert list((await session.execute("SELECT count(*) FROM cow")).rows) == [(1,)]
        await session.close()


async def test_over_tls_users_need_no_certificate_and_nodes_do(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "company")
    end = authority.sign("node")
    node = Security(SECRET, end.certificate, end.private_key, authority.path)
    async with opened(tmp_path / "data", node) as house:
        house.address = house.address.replace("127.0.0.1", "localhost")
        trusting = Security(authorities=authority.path, user="ann", password="ann's word")
        assert await house.told(trusting, "SELECT count(*) FROM cow") == [(0,)]
        assert await house.told(node, "SELECT count(*) FROM cow") == [(0,)]
        with pytest.raises(AccessDenied, match="certificate"):
            await house.channel(Security(secret=SECRET, authorities=authority.path))


# Statements


STATEMENTS: Final = {
    "cat": [
        "SELECT * FROM cow",
        "SHOW TABLES",
        "EXPLAIN SELECT 1",
        "CHECKPOINT IF CHANGED",
        "BEGIN",
    ],
    "ben": [
        "INSERT INTO cow VALUES (7, 'Gerda')",
        "UPDATE cow SET name = 'Hilde' WHERE id = 7",
        "DELETE FROM cow WHERE id = 7",
        "UPDATE cow SET name = 'x' WHERE name LIKE 'y%'",
        "SELECT * FROM cow FOR UPDATE",
    ],
    "ann": [
        "CREATE TABLE calf (id INT PRIMARY KEY)",
        "ALTER TABLE cow ADD COLUMN milk INT",
        "CREATE INDEX by_name ON cow (name)",
        "CREATE VIEW herd AS SELECT * FROM cow",
        "TRUNCATE TABLE cow",
        "DROP TABLE calf",
    ],
    "root": ["ALTER TABLESPACE barn SET replicas = 1", "DROP TABLESPACE barn"],
}
LADDER: Final = ("cat", "ben", "ann", "root")


@pytest.mark.parametrize("place", range(len(LADDER)))
async def test_a_statement_needs_its_right_and_no_more(tmp_path: Path, place: int) -> None:
    async with opened(tmp_path) as house:
        for text in STATEMENTS[LADDER[place]]:
            for name in LADDER[:place]:
                assert "may not" in await house.refused(logged_in(name), text), (name, text)
            async with house.remote(logged_in(LADDER[place])) as remote:
                session = await remote.session("shop")
                try:
                    await session.execute(text)
                except AccessDenied:
                    raise
                except Error:
                    # A folder makes its tablespaces in another way: it was let through to that.
                    assert "TABLESPACE" in text
                await session.close()


async def test_another_tablespace_is_not_reached_by_any_way(tmp_path: Path) -> None:
    async with opened(tmp_path) as house, house.remote(logged_in("dan")) as remote:
        assert await remote.names() == ["barn"]
        for name in ("shop", "system", "SYSTEM"):
            with pytest.raises(AccessDenied):
                await remote.session(name)
            with pytest.raises(AccessDenied):
                await remote.table("cow", name)
        session = await remote.session("barn")
        for text in (
            "CREATE TABLESPACE meadow",
            "DROP TABLESPACE shop",
            "RESTORE TABLESPACE shop UNTIL 1/1",
        ):
            with pytest.raises(AccessDenied):
                await session.execute(text)
        with pytest.raises(Error):
            await session.execute("SELECT * FROM shop.cow")
        await session.close()


async def test_a_restore_names_no_tablespace_that_the_user_may_not_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        house.users.users["dan"] = user(
            "dan", ("tablespace", "barn", "admin"), ("tablespace", "attic", "read")
        )
        async with house.remote(logged_in("dan")) as remote:
            session = await remote.session("barn")
            with pytest.raises(Error, match="there is no tablespace attic") as refusal:
                await session.execute("RESTORE TABLESPACE attic UNTIL 1/1")
            assert refusal.value.hint == "there are barn"
            await session.close()


async def test_a_session_of_one_tablespace_changes_no_rows_of_another(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        channel = await house.channel(NODE)
        opened_one = decode_answer(await channel.ask(encode(messages.Open("barn"))))
        assert isinstance(opened_one, messages.Opened)
        number = opened_one.session
        await channel.ask(encode(messages.Begin(number, 0)))
        rows = [{"id": 1, "name": "Alma"}]
        answer = decode_answer(
            await channel.ask(encode(messages.Put("shop", "cow", rows, True, number)))
        )
        assert isinstance(answer, Failed) and "another tablespace" in answer.message
        channel.close()


async def test_system_tables_show_what_may_be_seen(tmp_path: Path) -> None:
    async with opened(tmp_path) as house, house.remote(logged_in("ann")) as others:
        kept = await others.session("shop")
        await kept.execute("SELECT 1")
        seen = "SELECT count(*) FROM sysclients"
        assert await house.told(logged_in("cat"), seen) == [(1,)]
        assert await house.told(logged_in("ann"), seen) == [(2,)]
        assert await house.told(NODE, seen) == [(2,)]
        running = "SELECT query FROM sysstatements"
        assert await house.told(logged_in("cat"), running) == [(running,)]
        await kept.close()


# Calls


def call_of(kind: Any) -> messages.Call:
    """A call of a kind, that names the tablespace `shop` wherever it names one."""
    values: dict[str, Any] = {
        "tablespace": "shop",
        "table": "cow",
        "mode": 1,
        "client": bytes(16),
        "sequence": 1,
        "session": 0,
        "text": "DROP TABLE cow",
        "rows": [],
        "keys": [1],
        "key": 1,
        "result": 0,
        "changes": {},
        "columns": [],
        "primary": [],
        "path": "/tmp/x",
        "source": "shop",
        "ledger": 1,
        "entry": 1,
    }
    needed = [name for name in kind.__struct_fields__ if name in values]
    made: messages.Call = kind(**{name: values[name] for name in needed})
    return made


async def test_every_kind_of_call_is_refused_to_who_has_no_right(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        channel = await house.channel(logged_in("dan"))
        answers = {kind: decode_answer(await channel.ask(encode(call_of(kind)))) for kind in CALLS}
        channel.close()
    for kind in (messages.Renew, messages.Close):
        assert isinstance(answers.pop(kind), messages.Done)
    assert answers.pop(messages.Names) == messages.Told(["barn"])
    token = answers.pop(messages.ReadToken)
    assert isinstance(token, messages.Told)
    claims = verify(token.value, (KEY,), READ, SystemClock().wall_ms())
    assert claims.grants == (("tablespace", "barn"), ("bucket", "shop"))
    for kind, answer in answers.items():
        assert isinstance(answer, Failed), kind
        if answer.name == "SessionLost":
            assert "session" in kind.__struct_fields__ or kind is messages.Fetch
        else:
            assert answer.name == "AccessDenied", (kind, answer)


async def test_no_kind_of_call_is_heard_before_a_proof(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        host, port = house.address.removeprefix("tcp:").split(":")
        loop = asyncio.get_running_loop()
        for kind in CALLS:
            settings = FramedSettings(connect_timeout_ms=2_000)
            connection = ClientConnection(house.address, SystemClock(), settings)
            connection._greeted.add_done_callback(asyncio.Future.exception)
            await loop.create_connection(partial(_same, connection.wire), host, int(port))
            lost = asyncio.Event()
            connection.when_lost(lost.set)
            connection.wire.send(CALL, encode(call_of(kind)), request=1)
            await asyncio.wait_for(lost.wait(), 5)
            assert not any(event.allowed for event in house.audit.events)
        assert await house.told(NODE, "SELECT count(*) FROM cow") == [(0,)]


def _same(wire: asyncio.Protocol) -> asyncio.Protocol:
    return wire


# gRPC


def request_of(name: str) -> Any:
    method = wire.DESCRIPTOR.services_by_name["Tablespaces"].methods_by_name[name]
    request = getattr(wire, method.input_type.name)()
    for field, value in (("tablespace", "shop"), ("table", "cow"), ("client", bytes(16))):
        if field in method.input_type.fields_by_name:
            setattr(request, field, value)
    if name in ("Get", "Delete"):
        request.keys = b"\x91\x01"
    if name == "Put":
        request.rows = b"\x91\x81\xa2id\x01"
    return request


async def answered(channel: aio.Channel, name: str, metadata: Any) -> Any:
    """The first reply to a call, or the status with which it fails."""
    method = wire.DESCRIPTOR.services_by_name["Tablespaces"].methods_by_name[name]
    path, reply = f"/herdbook.v1.Tablespaces/{name}", getattr(wire, method.output_type.name)
    data = request_of(name).SerializeToString()
    try:
        if name == "ExecuteMany":
            many = channel.stream_unary(path, None, None)
            return reply.FromString(await many(iter([data]), metadata=metadata, timeout=10))
        if name in ("Execute", "Scan"):
            async for got in channel.unary_stream(path, None, None)(
                data, metadata=metadata, timeout=10
            ):
                return reply.FromString(got)
            return None
        call = channel.unary_unary(path, None, None)
        return reply.FromString(await call(data, metadata=metadata, timeout=10))
    except aio.AioRpcError as error:
        return error.code()


async def test_every_method_over_grpc_is_refused_without_a_right(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        assert house.grpc is not None
        async with aio.insecure_channel(f"127.0.0.1:{house.grpc.port}") as channel:
            dan = await Credentials(logged_in("dan"), SystemClock()).metadata(channel)
            expired = [("authorization", f"Bearer {sign(Claims(SESSION, 'ann', 1), KEY)}")]
            strangers: list[Any] = [
                *((), [("authorization", "Bearer token-zoe")], [("authorization", "Basic x")]),
                *(expired, [("herdbook-secret-bin", b"the cows come home at ten")]),
            ]
            for name in METHODS:
                for metadata in strangers:
                    found = await answered(channel, name, metadata)
                    assert found is grpc.StatusCode.UNAUTHENTICATED, (name, metadata)
                reply = await answered(channel, name, dan)
                if name == "Names":
                    assert list(reply.names) == ["barn"]
                elif name == "Close":
                    assert not reply.failure.name
                else:
                    assert reply.failure.name in ("AccessDenied", "SessionLost"), (name, reply)


async def test_a_session_over_grpc_is_its_users_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        assert house.grpc is not None
        async with aio.insecure_channel(f"127.0.0.1:{house.grpc.port}") as channel:
            ben = await Credentials(logged_in("ben"), SystemClock()).metadata(channel)
            root = await Credentials(logged_in("root"), SystemClock()).metadata(channel)
            begun = await answered(channel, "Open", ben)
            assert begun.session
            call = channel.unary_unary("/herdbook.v1.Tablespaces/Begin", None, None)
            data = wire.BeginRequest(session=begun.session).SerializeToString()
            told = wire.SessionReply.FromString(await call(data, metadata=root))
            assert told.failure.name == "SessionLost"
            told = wire.SessionReply.FromString(await call(data, metadata=ben))
            assert not told.failure.name
            del house.users.users["ben"]
            with pytest.raises(aio.AioRpcError, match="UNAUTHENTICATED"):
                await call(data, metadata=ben)


async def test_a_login_over_grpc_is_refused_alike(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        assert house.grpc is not None
        async with aio.insecure_channel(f"127.0.0.1:{house.grpc.port}") as channel:
            told = []
            for name in ("ann", "zoe"):
                wrong = Credentials(Security(user=name, password="wrong"), SystemClock())
                with pytest.raises(aio.AioRpcError) as refusal:
                    await wrong.metadata(channel)
                told.append((refusal.value.code(), refusal.value.details()))
            assert told[0] == told[1] and told[0][0] is grpc.StatusCode.UNAUTHENTICATED


async def test_rows_that_a_user_sends_without_end_over_grpc_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transport.grpc_security._REQUESTS_BYTES_MAX", 16_000_000)
    rows = encode([["x" * 900_000]])
    part = wire.ExecuteManyRequest(text="INSERT INTO cow VALUES (1, ?)", rows=rows)
    async with opened(tmp_path) as house:
        assert house.grpc is not None
        async with aio.insecure_channel(f"127.0.0.1:{house.grpc.port}") as channel:
            begin: Any = channel.stream_unary(f"/{SERVICE}/ExecuteMany", None, None)
            ben, cat = ([("authorization", f"Bearer token-{name}")] for name in ("ben", "cat"))
            calls = [begin(metadata=ben) for _ in range(8)]
            codes = [asyncio.ensure_future(call.code()) for call in calls]
            # Not one of them ends its request.
            writes = [asyncio.ensure_future(call.write(part.SerializeToString())) for call in calls]
            refused, _ = await asyncio.wait(codes, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            assert {each.result() for each in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            await asyncio.gather(*writes, return_exceptions=True)
            ask: Any = channel.unary_unary(f"/{SERVICE}/Names", None, None)
            assert wire.NamesReply.FromString(await ask(b"", metadata=cat)).names == ["shop"]
            for call in calls:
                call.cancel()
