"""Who is served on the gRPC wire, and what a stranger is told."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from engine.access.door import UserDoor
from engine.access.guesses import Guesses
from engine.errors import AccessRefused, BookieUnavailable, InvalidRequest
from engine.ports.clock import SystemClock
from engine.transport.contract import Bookie, Status
from engine.transport.grpc_generated import bookie_pb2
from engine.transport.grpc_listener import GrpcListener
from engine.transport.grpc_security import (
    SECRET_METADATA,
    Strangers,
    UserCalls,
    channel_credentials,
)
from engine.transport.grpc_server import GrpcServer
from engine.transport.grpc_service import BookieCalls
from engine.transport.grpc_settings import GrpcSettings, server_options
from engine.transport.security import NO_SECURITY, Security
from tests.engine.access.known_users import KeptAudit, KnownUsers, user
from tests.engine.transport.bookie_contract import BookieContract, Scenario, append, runs_of
from tests.engine.transport.certificates import Authority
from tests.engine.transport.grpc_wiring import GrpcTransport, Wired, until, wired
from tests.engine.transport.model_bookie import ModelBookie

SECRET = b"the cows come home at six"
OTHER = b"the cows come home at ten"


class TestMutualTlsAndSecret(BookieContract):
    """The whole contract, with certificates both ways and a secret on top."""

    @pytest.fixture(autouse=True)
    def _authority(self, tmp_path: Path) -> None:
        self.security = Authority(tmp_path, "herd").security("cow", secret=SECRET)

    def run_with_bookies(self, scenario: Scenario) -> None:
        async def run() -> None:
            bookies: list[Bookie] = [ModelBookie(self.first), ModelBookie(self.second)]
            async with asyncio.timeout(60):
                server = await GrpcServer.start(
                    {bookie.bookie_id: bookie for bookie in bookies},
                    listen="127.0.0.1:0",
                    security=self.security,
                )
                transport = GrpcTransport(f"127.0.0.1:{server.port}", self.security)
                await scenario(transport)
                await transport.close()
                await server.close()

        asyncio.run(run())


async def serves(made: Wired, security: Security) -> bool:
    """Whether a client with this security may append."""
    transport = GrpcTransport(made.address, security)
    bookie = await transport.connect("a")
    reply = await append(bookie, runs_of(7 + len(made.bookie.calls), 0, [[b"moo"]]))
    await transport.close()
    return reply.status is Status.OK


async def refusal(made: Wired, security: Security) -> str:
    """What a client with this security is told."""
    transport = GrpcTransport(made.address, security)
    with pytest.raises(BookieUnavailable) as told:
        await transport.connect("a")
    assert isinstance(told.value, AccessRefused), told.value
    await transport.close()
    return str(told.value)


async def test_a_wrong_secret_and_a_missing_one_are_told_so_and_harm_nobody() -> None:
    async with wired(server_security=Security(secret=SECRET)) as made:
        assert "secret" in await refusal(made, Security(secret=OTHER))
        assert "secret" in await refusal(made, NO_SECURITY)
        assert made.bookie.calls == []
        assert await serves(made, Security(secret=SECRET))


async def test_no_call_of_the_service_is_open_without_the_secret() -> None:
    methods = {"Append": "stream_stream", "Read": "unary_stream"} | dict.fromkeys(
        ("WaitLac", "Fence", "Info"), "unary_unary"
    )
    async with wired(server_security=Security(secret=SECRET)) as made:
        channel = aio.insecure_channel(made.address)
        for wrong in ([], [(SECRET_METADATA, OTHER)], [("herdbook-secret", "moo")]):
            for method, kind in methods.items():
                make: Any = getattr(channel, kind)(f"/herdbook.v1.Bookie/{method}", None, None)
                call = (
                    make(metadata=wrong) if kind == "stream_stream" else make(b"", metadata=wrong)
                )
                assert await call.code() is StatusCode.UNAUTHENTICATED, method
        await channel.close(None)
        assert made.bookie.calls == []


async def test_a_big_message_of_a_stranger_is_refused_before_it_is_read() -> None:
    async with wired(server_security=Security(secret=SECRET)) as made:
        channel = aio.insecure_channel(made.address, [("grpc.max_send_message_length", -1)])
        call: Any = channel.unary_unary("/herdbook.v1.Bookie/Fence", None, None)
        # Over the limit of a message, which is looked at when one is read.
        with pytest.raises(aio.AioRpcError) as told:
            await call(bytes(64 * 1024 * 1024))
        assert told.value.code() is StatusCode.UNAUTHENTICATED
        await channel.close(None)


def test_a_secret_never_crosses_a_network_in_the_clear(tmp_path: Path) -> None:
    secret = Security(secret=SECRET)
    with pytest.raises(InvalidRequest, match="TLS"):
        channel_credentials(secret, "cow.example:4181")
    assert channel_credentials(secret, "127.0.0.1:4181") is None
    safe = Authority(tmp_path, "herd").security("cow", secret=SECRET)
    assert channel_credentials(safe, "cow.example:4181") is not None


async def test_a_server_asks_for_no_secret_in_the_clear() -> None:
    with pytest.raises(InvalidRequest, match="TLS"):
        await GrpcServer.start({}, listen="0.0.0.0:0", security=Security(secret=SECRET))


async def test_a_server_of_another_authority_is_not_believed(tmp_path: Path) -> None:
    security = Authority(tmp_path, "herd").security("cow")
    others = Authority(tmp_path, "wolves")
    async with wired(server_security=security) as made:
        await refusal(made, Security(authorities=others.path))
        assert await serves(made, security)


async def test_a_certificate_for_another_host_is_not_believed(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "herd")
    signed = authority.sign("elsewhere", hosts=("elsewhere.example",))
    server = Security(certificate=signed.certificate, private_key=signed.private_key)
    async with wired(server_security=server) as made:
        told = await refusal(made, Security(authorities=authority.path))
        assert "verification" in told.lower()


async def test_a_client_without_a_certificate_or_with_a_strangers_is_refused(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path, "herd")
    security = authority.security("cow")
    strange = Authority(tmp_path, "wolves").sign("wolf")
    wolf = Security(
        certificate=strange.certificate,
        private_key=strange.private_key,
        authorities=authority.path,
    )
    async with wired(server_security=security) as made:
        for stranger in (Security(authorities=authority.path), wolf, NO_SECURITY):
            transport = GrpcTransport(made.address, stranger)
            with pytest.raises(BookieUnavailable):
                await transport.connect("a")
            await transport.close()
        assert made.bookie.calls == []
        assert await serves(made, security)


def test_verification_cannot_be_turned_off() -> None:
    with pytest.raises(InvalidRequest, match="always verifies"):
        channel_credentials(Security(verify=False), "localhost:4181")


CHECK = "/grpc.health.v1.Health/Check"
LOGIN = "/herdbook.access.v1.Access/Login"
WATCH = "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
INFO = "/herdbook.v1.Bookie/Info"
APPEND = "/herdbook.v1.Bookie/Append"
HELLO = bookie_pb2.AppendRequest(hello=bookie_pb2.Hello(format_major=1)).SerializeToString()


def asked_for_health() -> bytes:
    request = health_pb2.HealthCheckRequest(service="herdbook.v1.Bookie")
    return bytes(request.SerializeToString())


async def test_a_full_disk_ends_the_health_of_writes_and_not_that_of_the_service() -> None:
    lacks = ["the disk is full"]
    server = await GrpcServer.start({}, listen="127.0.0.1:0", lack=lambda: "".join(lacks))
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        response = health_pb2.HealthCheckResponse
        for name, expected in (
            ("herdbook.v1.Bookie", response.SERVING),
            ("", response.SERVING),
            ("writes", response.NOT_SERVING),
        ):
            said = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert said.status == expected
        watched = health.Watch(health_pb2.HealthCheckRequest(service="writes"))
        assert (await watched.read()).status == response.NOT_SERVING
        lacks.clear()
        async with asyncio.timeout(30):
            assert (await watched.read()).status == response.SERVING
        watched.cancel()
    await server.close(0)


async def test_a_health_check_is_open_to_everybody_and_nothing_else_is() -> None:
    async with wired(server_security=Security(secret=SECRET)) as made:
        channel = aio.insecure_channel(made.address)
        check: Any = channel.unary_unary(CHECK, None, None)
        said = health_pb2.HealthCheckResponse.FromString(await check(asked_for_health()))
        assert said.status == health_pb2.HealthCheckResponse.SERVING
        watch: Any = channel.unary_stream(WATCH, None, None)
        assert await watch(asked_for_health()).code() is StatusCode.UNAUTHENTICATED
        reflect: Any = channel.stream_stream(REFLECT, None, None)
        assert await reflect().code() is StatusCode.UNAUTHENTICATED
        await channel.close(None)


async def test_reflection_tells_the_service_to_who_knows_the_secret() -> None:
    async with wired(server_security=Security(secret=SECRET)) as made:
        channel = aio.insecure_channel(made.address)
        reflect: Any = channel.stream_stream(REFLECT, None, None)
        stream = reflect(metadata=[(SECRET_METADATA, SECRET)])
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        await stream.write(listing.SerializeToString())
        found = reflection_pb2.ServerReflectionResponse.FromString(await stream.read())
        names = [service.name for service in found.list_services_response.service]
        assert "herdbook.v1.Bookie" in names
        stream.cancel()
        await channel.close(None)


async def test_strangers_never_take_the_calls_of_those_who_know_the_secret() -> None:
    """They begin checks and never say what they check; others are served all the while."""
    settings = GrpcSettings(calls_max=64, open_calls_max=12)
    async with wired(settings, server_security=Security(secret=SECRET)) as made:
        strangers = aio.insecure_channel(made.address)
        half: Any = strangers.stream_stream(CHECK, None, None)
        calls = [half() for _ in range(20)]
        refused = {asyncio.ensure_future(call.code()) for call in calls}
        await until(lambda: sum(code.done() for code in refused) == 17)
        codes = {code.result() for code in refused if code.done()}
        assert codes == {StatusCode.RESOURCE_EXHAUSTED}
        assert await serves(made, Security(secret=SECRET))
        for call in calls:
            call.cancel()
        await asyncio.wait(refused)
        await strangers.close(None)


def test_one_address_has_a_quarter_of_the_calls_of_strangers() -> None:
    strangers = Strangers(8)
    with ExitStack() as stack:

        def rooms(peer: str, count: int) -> list[bool]:
            return [stack.enter_context(strangers.running(peer)) for _ in range(count)]

        assert rooms("ipv4:10.0.0.1:7", 2) == [True, True]
        assert rooms("ipv4:10.0.0.1:8", 1) == [False]
        assert (
            rooms("ipv6:%5B2001:db8::1%5D:7", 1) == rooms("ipv6:%5B2001:db8::2%5D:7", 1) == [True]
        )
        assert rooms("ipv6:%5B2001:db8::3%5D:7", 1) == [False], "a network is one address"
        assert [rooms(f"ipv4:10.0.0.{each}:7", 1) for each in range(2, 7)] == [[True]] * 4 + [
            [False]
        ]
    with strangers.running("ipv4:10.0.0.1:9") as room:
        assert room


async def test_one_address_begins_a_quarter_of_the_logins_at_most() -> None:
    settings, clock = GrpcSettings(open_calls_max=12), SystemClock()
    listener = await GrpcListener.open(
        bookie_pb2.DESCRIPTOR.services_by_name["Bookie"],
        BookieCalls({}, settings).handlers(),
        listen="127.0.0.1:0",
        security=Security(secret=SECRET),
        settings=settings,
        door=UserDoor(KnownUsers(), KeptAudit(), "bookies", Guesses(clock)),
        logins=True,
    )
    async with aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
        half: Any = channel.stream_stream(LOGIN, None, None)
        calls = [half() for _ in range(5)]
        codes = {asyncio.ensure_future(call.code()) for call in calls}
        await until(lambda: sum(code.done() for code in codes) == 2)
        assert {code.result() for code in codes if code.done()} == {StatusCode.RESOURCE_EXHAUSTED}
        for call in calls:
            call.cancel()
        await asyncio.wait(codes)
    await listener.close(0)


async def test_calls_of_one_user_keep_out_neither_other_users_nor_the_cluster() -> None:
    """Calls without a request count, too."""
    bob, eve = ([("authorization", f"Bearer token-{name}")] for name in ("bob", "eve"))
    async with (
        served_to("bob", "eve") as address,
        aio.insecure_channel(address) as channel,
        aio.insecure_channel(address) as other,
    ):
        begun: Any = [
            channel.stream_stream(method, None, None) for method in (INFO, APPEND, REFLECT)
        ]
        calls = [begun[number % 3](metadata=bob) for number in range(40)]
        codes = {asyncio.ensure_future(call.code()) for call in calls}
        await until(lambda: sum(code.done() for code in codes) == 25)
        assert {code.result() for code in codes if code.done()} == {StatusCode.RESOURCE_EXHAUSTED}
        ask: Any = other.unary_unary(INFO, None, None)
        for known in (eve, [(SECRET_METADATA, SECRET)]):
            assert await ask(b"", metadata=known) == b""
        with pytest.raises(aio.AioRpcError, match="too many calls of bob"):
            await ask(b"", metadata=bob)
        for call in calls:
            call.cancel()
        await asyncio.wait(codes)
        # What has ended leaves its place; the server hears of it a little later.
        async with asyncio.timeout(60):
            while not await answered(ask, bob):
                pass


async def test_calls_of_many_users_leave_room_for_one_more_and_for_administrators() -> None:
    names = ("ann", "bob", "cid", "dan", "eve")
    known = {name: [("authorization", f"Bearer token-{name}")] for name in (*names, "root")}
    async with served_to(*names) as address, AsyncExitStack() as stack:
        calls: list[Any] = []
        for name in names[:4]:
            channel = await stack.enter_async_context(aio.insecure_channel(address))
            begin: Any = channel.stream_stream(APPEND, None, None)
            begun = [begin(metadata=known[name]) for _ in range(20)]
            codes = [asyncio.ensure_future(call.code()) for call in begun]
            calls += begun
            # Those that are too many for this user are refused, beside those of the users before.
            await asyncio.wait(codes, return_when=asyncio.FIRST_COMPLETED)
        other = await stack.enter_async_context(aio.insecure_channel(address))
        ask: Any = other.unary_unary(INFO, None, None)
        for shown in (known["eve"], known["root"], [(SECRET_METADATA, SECRET)]):
            assert await ask(b"", metadata=shown) == b""
        for call in calls:
            call.cancel()


@asynccontextmanager
async def served_to(*names: str) -> AsyncIterator[str]:
    """The address of a server that lets these users in, and 64 calls at once."""
    users = KnownUsers(*map(user, names), user("root", admin=True))
    settings = GrpcSettings(calls_max=64)
    listener = await GrpcListener.open(
        bookie_pb2.DESCRIPTOR.services_by_name["Bookie"],
        BookieCalls({}, settings).handlers(),
        listen="127.0.0.1:0",
        security=Security(secret=SECRET),
        settings=settings,
        door=UserDoor(users, KeptAudit(), "bookies", Guesses(SystemClock())),
        logins=True,
    )
    try:
        yield f"127.0.0.1:{listener.port}"
    finally:
        await listener.close(0)


class Untaken:
    """A call whose client takes no reply; what it is told when it is refused."""

    def __init__(self) -> None:
        self.written = asyncio.Event()
        self.refused: StatusCode | None = None

    async def read(self) -> bytes:
        return b""

    async def write(self, reply: bytes) -> None:
        self.written.set()
        await asyncio.Event().wait()

    async def abort(self, code: StatusCode, text: str) -> None:
        self.refused = code
        raise aio.AbortError(text)


async def test_replies_that_one_user_does_not_take_have_a_quarter_of_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.transport.grpc_security._REPLIES_BYTES_MAX", 100)

    async def reply(request: bytes, context: Any) -> bytes:
        return bytes(10)

    shared = UserCalls(64)

    def begin(name: str) -> tuple[Untaken, "asyncio.Task[None]"]:
        handler: Any = shared.handler(grpc.unary_unary_rpc_method_handler(reply), name)
        call = Untaken()
        return call, asyncio.create_task(handler.stream_stream(None, call))

    bobs = [begin("bob") for _ in range(3)]
    for call, _ in bobs[:2]:
        await call.written.wait()
    refused, ended = bobs[2]
    with pytest.raises(aio.AbortError):
        await ended
    assert refused.refused is StatusCode.RESOURCE_EXHAUSTED
    eve, _ = begin("eve")
    await eve.written.wait()
    bobs[0][1].cancel()
    await asyncio.wait([bobs[0][1]])
    again, _ = begin("bob")
    await again.written.wait()


class Unsent:
    """A call whose client lets the messages of its request wait."""

    def __init__(self, *messages: bytes) -> None:
        self.messages = list(messages)
        self.read_count = 0
        self.may_come = asyncio.Event()
        self.refused: StatusCode | None = None

    async def read(self) -> Any:
        self.read_count += 1
        await self.may_come.wait()
        return self.messages.pop(0) if self.messages else aio.EOF  # type: ignore[attr-defined]

    async def write(self, reply: bytes) -> None:
        return

    async def abort(self, code: StatusCode, text: str) -> None:
        self.refused = code
        raise aio.AbortError(text)


async def taken_in(requests: AsyncIterator[bytes], context: Any) -> bytes:
    """A call that keeps what it is sent."""
    return b"".join([each async for each in requests])


async def test_no_more_messages_of_one_user_are_asked_for_than_may_be_on_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.transport.grpc_security._ARRIVING_MAX", 8)

    async def reply(request: bytes, context: Any) -> bytes:
        return request

    shared = UserCalls(64)
    kinds = [
        grpc.unary_unary_rpc_method_handler(reply),
        grpc.stream_unary_rpc_method_handler(taken_in),
    ]

    def begin(name: str, number: int) -> tuple[Unsent, "asyncio.Task[None]"]:
        handler: Any = shared.handler(kinds[number % 2], name)
        call = Unsent(b"moo")
        return call, asyncio.create_task(handler.stream_stream(None, call))

    bobs = [begin("bob", number) for number in range(12)]
    eve, of_eve = begin("eve", 0)
    await until(lambda: eve.read_count == 1)
    assert sum(call.read_count for call, _ in bobs) == 2
    eve.may_come.set()
    await of_eve
    for call, _ in bobs:
        call.may_come.set()
    await asyncio.gather(*(task for _, task in bobs))


def test_a_server_takes_in_no_more_of_a_fast_stream_than_it_asks_for() -> None:
    """gRPC would let the window of each stream grow with the network's speed."""
    assert dict(server_options(GrpcSettings()))["grpc.http2.bdp_probe"] == 0


async def test_messages_that_a_call_keeps_have_a_share_of_the_room_for_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.transport.grpc_security._REQUESTS_BYTES_MAX", 12_000)
    shared = UserCalls(64)
    ended: list[asyncio.Task[None]] = []

    def begin(name: str, *messages: bytes) -> Unsent:
        handler: Any = shared.handler(grpc.stream_unary_rpc_method_handler(taken_in), name)
        call = Unsent(*messages)
        call.may_come.set()
        ended.append(asyncio.create_task(handler.stream_stream(None, call)))
        return call

    large, small = begin("bob", *[bytes(1_500)] * 9), begin("bob", *[bytes(1_000)] * 9)
    eve = begin("eve", *[bytes(1_500)] * 2)
    await asyncio.wait(ended)
    assert large.refused is StatusCode.RESOURCE_EXHAUSTED and len(large.messages) == 6
    assert small.refused is eve.refused is None
    assert shared.requests.held == 0


async def test_streams_of_one_user_that_last_have_a_share_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.transport.grpc_security._STREAMS_MAX", 8)
    bob, eve = ([("authorization", f"Bearer token-{name}")] for name in ("bob", "eve"))
    async with served_to("bob", "eve") as address, aio.insecure_channel(address) as channel:
        begin: Any = channel.stream_stream(APPEND, None, None)
        calls = [begin(metadata=bob) for _ in range(6)]
        codes = {asyncio.ensure_future(call.code()) for call in calls}
        await until(lambda: sum(code.done() for code in codes) == 4)
        assert {code.result() for code in codes if code.done()} == {StatusCode.RESOURCE_EXHAUSTED}
        other = begin(metadata=eve)
        await other.write(HELLO)
        assert await other.read() is not aio.EOF  # type: ignore[attr-defined]
        for call in (*calls, other):
            call.cancel()
        await asyncio.wait(codes)


async def answered(ask: Any, known: Any) -> bool:
    """Whether a call is answered, and not one of too many."""
    try:
        await ask(b"", metadata=known)
    except aio.AioRpcError as error:
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        return False
    return True


async def test_a_users_call_whose_request_does_not_come_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.transport.grpc_security._REQUEST_S", 0.05)
    async with served_to("bob") as address, aio.insecure_channel(address) as channel:
        begun: Any = channel.stream_stream(INFO, None, None)
        bob = [("authorization", "Bearer token-bob")]
        assert await begun(metadata=bob).code() is StatusCode.DEADLINE_EXCEEDED
        empty = begun(metadata=bob)
        await empty.done_writing()
        assert await empty.code() is StatusCode.INVALID_ARGUMENT


async def test_a_check_that_asks_nothing_is_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.transport.grpc_security._OPEN_CALL_S", 0.05)
    async with wired(server_security=Security(secret=SECRET)) as made:
        channel = aio.insecure_channel(made.address)
        half: Any = channel.stream_stream(CHECK, None, None)
        assert await half().code() is StatusCode.DEADLINE_EXCEEDED
        finished = half()
        await finished.done_writing()
        assert await finished.code() is StatusCode.OK, "an end without a request harms nobody"
        await channel.close(None)


async def test_health_says_that_a_server_is_ending() -> None:
    async with wired() as made:
        bookie = await made.connect()
        made.bookie.holding = True
        pending = append(bookie, runs_of(7, 0, [[b"moo"]]))
        await until(lambda: bool(made.bookie.held))
        channel = aio.insecure_channel(made.address)
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)
        call = watch(health_pb2.HealthCheckRequest().SerializeToString())
        response = health_pb2.HealthCheckResponse
        assert response.FromString(await call.read()).status == response.SERVING
        closing = asyncio.ensure_future(made.server.close(60_000))
        assert response.FromString(await call.read()).status == response.NOT_SERVING
        call.cancel()
        made.bookie.release()
        assert (await pending).status is Status.OK
        await closing
        await channel.close(None)


def test_a_server_that_is_refused_its_certificate_names_the_file(tmp_path: Path) -> None:
    wrong = tmp_path / "no.pem"
    wrong.write_text("moo")
    wrong.chmod(0o600)
    code = (
        "import asyncio, sys; from pathlib import Path; "
        "from engine.transport.grpc_server import GrpcServer; "
        "from engine.transport.security import Security; "
        f"security = Security(certificate=Path({str(wrong)!r})); "
        "asyncio.run(GrpcServer.start({}, listen='127.0.0.1:0', security=security))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "InvalidRequest: cannot use" in done.stderr
    assert "no.pem" in done.stderr
