"""Questions share a stream: in order in, answers as they come, and nobody in another's way."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from grpc import aio

from broker.commands import Spec
from broker.errors import BrokerUnavailable, OutcomeUnknown, TooLarge
from broker.service import Broker
from broker.wire import ask_server, grpc_service
from broker.wire.asking import ASKS_MAX, METHODS
from broker.wire.grpc_generated import broker_pb2 as wire
from broker.wire.grpc_server import GrpcBrokerServer
from broker.wire.remote import RemoteCalls
from engine.access.door import Door
from engine.ports.clock import SystemClock
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import NO_SECURITY, Security
from tests.engine.access.known_users import SECRET, KnownUsers, door_of, user

SECURITY = Security(secret=SECRET)

_ASKS = "/herdbook.broker.v1.Broker/Asks"


class Gate:
    """A broker whose submits wait until they are let through, tenant by tenant."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.came = asyncio.Event()
        self._open: dict[str, asyncio.Event] = {}

    async def submit(self, specs: list[Spec], **_: Any) -> list[int]:
        tenant = specs[0].tenant
        self.begun.append(tenant)
        self.came.set()
        await self._gate(tenant).wait()
        return [len(self.begun)]

    async def now_ms(self) -> int:
        return 7

    async def payload(self, task: Any) -> bytes:
        return bytes(1_000)

    async def counts(self) -> dict[str, int]:
        raise RuntimeError("a defect")

    def let(self, tenant: str) -> None:
        self._gate(tenant).set()

    async def until(self, count: int) -> None:
        while len(self.begun) < count:
            self.came.clear()
            await self.came.wait()

    def _gate(self, tenant: str) -> asyncio.Event:
        return self._open.setdefault(tenant, asyncio.Event())


@asynccontextmanager
async def served(gate: Gate, door: Door | None = None) -> AsyncIterator[GrpcBrokerServer]:
    server = await GrpcBrokerServer.start(
        cast(Broker, gate),
        listen="127.0.0.1:0",
        security=SECURITY if door else NO_SECURITY,
        door=door,
    )
    try:
        yield server
    finally:
        await server.close(0)


@asynccontextmanager
async def asking(
    *ports: int, leaderless_ms: int = 0, security: Security = NO_SECURITY
) -> AsyncIterator[RemoteCalls]:
    calls = RemoteCalls(
        [f"127.0.0.1:{port}" for port in ports],
        SystemClock(),
        random.Random(1),
        security=security,
        leaderless_ms=leaderless_ms,
    )
    try:
        yield calls
    finally:
        await calls.close()


def submitting(calls: RemoteCalls, tenant: str) -> "asyncio.Task[list[Any]]":
    return asyncio.create_task(calls.submit([Spec("milk", tenant)]))


@asynccontextmanager
async def stream_to(server: GrpcBrokerServer, name: str = "") -> AsyncIterator[Any]:
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call: Any = channel.stream_stream(_ASKS, None, None)
        yield call(metadata=[("authorization", f"Bearer token-{name}")] if name else None)


async def test_a_slow_question_holds_up_no_other_one() -> None:
    gate = Gate()
    async with served(gate) as server, asking(server.port) as calls:
        slow = submitting(calls, "elsa")
        await gate.until(1)
        assert await calls.now_ms() == 7
        other = submitting(calls, "berta")
        gate.let("berta")
        assert await other == [2] and not slow.done()
        gate.let("elsa")
        assert await slow == [2]
        assert len(calls._streams) == 1


async def test_who_gives_up_waiting_disturbs_nobody() -> None:
    gate = Gate()
    async with served(gate) as server, asking(server.port) as calls:
        first, second = submitting(calls, "elsa"), submitting(calls, "berta")
        await gate.until(2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.let("berta")
        assert await second == [2] and await calls.now_ms() == 7


async def test_what_an_ending_server_never_took_is_asked_of_another_one() -> None:
    gate, other_gate = Gate(), Gate()
    other_gate.let("berta")
    async with (
        served(gate) as server,
        served(other_gate) as other,
        asking(server.port, other.port, leaderless_ms=10_000) as calls,
    ):
        taken = submitting(calls, "elsa")
        await gate.until(1)
        ending = asyncio.create_task(server.close(10_000))
        stream = next(iter(calls._streams.values()))
        while not server._calls.streams._finished:
            await asyncio.wait((ending,), timeout=0)
        late = submitting(calls, "berta")
        while stream._sent < 2:
            await asyncio.wait((late,), timeout=0)
        gate.let("elsa")
        assert await taken == [1]
        assert await late == [1]
        assert gate.begun == ["elsa"] and other_gate.begun == ["berta"]
        await ending


async def test_what_a_lost_server_may_have_taken_has_an_unknown_outcome() -> None:
    gate = Gate()
    async with served(gate) as server, asking(server.port) as calls:
        taken = submitting(calls, "elsa")
        await gate.until(1)
        await server.close(0)
        with pytest.raises(OutcomeUnknown):
            await taken
        with pytest.raises(BrokerUnavailable):
            await calls.submit([Spec("milk")])
    assert gate.begun == ["elsa"]


async def test_a_question_nobody_has_looked_at_in_time_was_never_asked() -> None:
    settings = GrpcSettings(request_timeout_ms=50)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        rng = random.Random(1)
        calls = RemoteCalls([address], SystemClock(), rng, settings=settings, leaderless_ms=0)
        with pytest.raises(BrokerUnavailable, match="did not answer"):
            await calls.submit([Spec("milk")])
        await calls.close()


async def test_a_defect_of_the_broker_ends_the_stream_and_not_the_wait() -> None:
    gate = Gate()
    async with served(gate) as server, asking(server.port) as calls:
        waiting = submitting(calls, "elsa")
        await gate.until(1)
        with pytest.raises(BrokerUnavailable):
            await calls.counts()
        with pytest.raises(OutcomeUnknown):
            await waiting
        assert await calls.now_ms() == 7


@pytest.mark.parametrize("in_a_message", [1, 5])
async def test_a_client_with_many_questions_is_read_no_further_until_some_are_answered(
    monkeypatch: pytest.MonkeyPatch, in_a_message: int
) -> None:
    monkeypatch.setattr(ask_server, "_UNDER_WAY_MAX", 2)
    gate = Gate()
    async with served(gate) as server, stream_to(server) as stream:
        spec = METHODS["submit"]
        asks = []
        for number in range(1, 6):
            packed = spec.pack([[Spec("milk", str(number))]], {})
            asks.append(wire.AskRequest(name="submit", arguments=packed, number=number))
        for first in range(0, 5, in_a_message):
            message = wire.AskRequests(asks=asks[first : first + in_a_message])
            await stream.write(message.SerializeToString())
        await gate.until(2)
        gate.let("1")
        reply = wire.AskReplies.FromString(await stream.read())
        assert [each.number for each in reply.replies] == [1]
        await gate.until(3)
        assert gate.begun == ["1", "2", "3"]


@pytest.mark.parametrize("streams", [1, 3])
async def test_answers_that_nobody_takes_count_before_they_are_known(
    monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    """Of one stream, and of all streams of one user."""
    monkeypatch.setattr(ask_server, "_EXPECTED_BYTES", {"submit": 1_000})
    monkeypatch.setattr(ask_server, "_BYTES_MAX", 3_500)
    monkeypatch.setattr(ask_server, "_ALL_BYTES_MAX", 23_500)
    gate, known = Gate(), KnownUsers(user("wim", ("tenant", "*", "write")))
    async with served(gate, door_of(known)) as server, AsyncExitStack() as stack:
        asked = METHODS["submit"].pack([[Spec("milk", "elsa")]], {})
        asks = [wire.AskRequest(name="submit", arguments=asked, number=n + 1) for n in range(40)]
        message = wire.AskRequests(asks=asks).SerializeToString()
        for _ in range(streams):
            stream = await stack.enter_async_context(stream_to(server, "wim"))
            await stream.write(message)
        most = 4 if streams == 1 else 6
        await gate.until(most)
        async with asking(server.port, security=SECURITY) as calls:
            # Others are answered, and so had everything that came before its turn.
            assert await calls.now_ms() == 7
        assert len(gate.begun) == most
        gate.let("elsa")
        await gate.until(40)


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xff",
        wire.AskRequests(asks=[wire.AskRequest(name="now_ms")]).SerializeToString(),
        wire.AskRequests(asks=[wire.AskRequest(name="now_ms", number=2)] * 2).SerializeToString(),
        b"\n\x02\x18\x01" * (ASKS_MAX + 1),
    ],
)
async def test_what_is_no_question_is_refused(message: bytes) -> None:
    async with served(Gate()) as server, stream_to(server) as stream:
        await stream.write(message)
        with pytest.raises(aio.AioRpcError):
            while await stream.read():
                continue
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        async with asking(server.port) as calls:
            assert await calls.now_ms() == 7


async def test_a_long_wait_is_no_question_for_the_stream() -> None:
    async with served(Gate()) as server, stream_to(server) as stream:
        asked = wire.AskRequest(name="wait", number=1)
        await stream.write(wire.AskRequests(asks=[asked]).SerializeToString())
        [reply] = wire.AskReplies.FromString(await stream.read()).replies
        assert (reply.number, reply.failure.code) == (1, "invalid_task")


async def test_an_answer_that_fits_no_message_is_refused_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_service, "_ANSWER_BYTES", 500)
    async with served(Gate()) as server, stream_to(server) as stream:
        asks = [wire.AskRequest(name="payload", arguments=b"\x91\xc0", number=1)]
        asks.append(wire.AskRequest(name="now_ms", arguments=b"\x90", number=2))
        await stream.write(wire.AskRequests(asks=asks).SerializeToString())
        said: dict[int, Any] = {}
        while len(said) < 2:
            for each in wire.AskReplies.FromString(await stream.read()).replies:
                said[each.number] = each
        assert said[2].result == b"\x07"
        assert said[1].failure.code in ("invalid_task", TooLarge.code)
