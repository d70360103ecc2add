"""What a stranger may do to the gRPC port: nothing that others notice."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode, aio

from engine.errors import Overloaded
from engine.limits import ENTRY_BYTES_MAX, KIB, MIB
from engine.transport.contract import Bookie, ReadReply, ReadRequest, Status
from engine.transport.grpc_generated import bookie_pb2 as wire
from engine.transport.grpc_settings import MESSAGE_BYTES_MAX, GrpcSettings
from tests.engine.transport.bookie_contract import KEY, append, runs_of
from tests.engine.transport.grpc_wiring import GrpcTransport, until, wired
from tests.engine.transport.model_bookie import ModelBookie

ROOT = Path(__file__).resolve().parents[3]
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
IDLE_CONNECTIONS = 1_000
IDLE_BYTES_MAX = 64 * KIB
"""What a connection that says nothing may cost the server."""


@asynccontextmanager
async def stranger(address: str) -> AsyncIterator[aio.Channel]:
    """A channel that keeps to no limit."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    channel = aio.insecure_channel(address, options)
    try:
        yield channel
    finally:
        await channel.close(None)


def ordered(channel: aio.Channel) -> Any:
    """An ordered stream that sends bytes as they are."""
    call: Any = channel.stream_stream("/herdbook.v1.Bookie/Append", None, None)
    return call()


def hello() -> wire.AppendRequest:
    """What a stream begins with."""
    return wire.AppendRequest(hello=wire.Hello(format_major=1))


async def end_of(stream: Any, *messages: bytes) -> tuple[StatusCode, str]:
    """How a stream ends on which these messages were sent."""
    try:
        for message in messages:
            await stream.write(message)
        while isinstance(await stream.read(), bytes):
            pass
    except (aio.AioRpcError, asyncio.InvalidStateError):
        pass
    return await stream.code(), await stream.details()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: cow\r\n\r\n" * 4,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"\0" * 999,
        HTTP2_PREFACE + b"\xff" * 999,
        HTTP2_PREFACE + b"\x7f\xff\xff\x00\x01\x00\x00\x00\x01" + b"x" * 999,
    ],
    ids=["http1", "tls", "zeros", "no frames", "huge frame"],
)
async def test_garbage_ends_its_own_connection_and_nothing_else(garbage: bytes) -> None:
    async with wired() as made:
        bookie = await made.connect()
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        writer.write(garbage)
        try:
            answer = await reader.read()
        except ConnectionError:
            answer = b""
        assert len(answer) < KIB
        writer.close()
        assert (await append(bookie, runs_of(7, 0, [[b"moo"]]))).status is Status.OK


async def test_a_connection_that_never_greets_is_ended() -> None:
    async with wired(GrpcSettings(connect_timeout_ms=100)) as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        await reader.read()
        assert reader.at_eof()
        writer.close()


async def test_a_stream_that_never_says_hello_is_ended() -> None:
    settings = GrpcSettings(connect_timeout_ms=100)
    async with wired(settings) as made, stranger(made.address) as channel:
        code, _ = await end_of(ordered(channel))
        assert code is StatusCode.DEADLINE_EXCEEDED


async def test_what_a_stream_may_not_say_ends_it_with_one_clear_error() -> None:
    good = hello()
    order = good.orders.add(request=1, bookie_id="a")
    order.append.ledger_id, order.append.run_count, order.append.runs = 7, 1, b"x" * 99
    unnumbered = hello()
    unnumbered.orders.add(bookie_id="a").append.ledger_id = 7
    cases = [
        (b"\xff\xff\xff", "cannot be read"),
        (wire.AppendRequest(echo=1).SerializeToString(), "begins with a hello"),
        (good.SerializeToString(), "malformed"),
        (unnumbered.SerializeToString(), "without runs"),
    ]
    async with wired() as made:
        bookie = await made.connect()
        for message, words in cases:
            async with stranger(made.address) as channel:
                code, details = await end_of(ordered(channel), message)
                assert code is StatusCode.INVALID_ARGUMENT and words in details
        assert made.bookie.calls == []
        assert (await append(bookie, runs_of(7, 0, [[b"moo"]]))).status is Status.OK
        # The answer may be here before its bytes are counted off there.
        await until(lambda: made.server.calls.held_bytes == 0)


async def test_a_call_that_cannot_be_read_fails_with_one_clear_error() -> None:
    backwards = wire.ReadRequest(bookie_id="a", ledger_id=7, first=5, last=3)
    async with wired() as made, stranger(made.address) as channel:
        for method in ("WaitLac", "Fence", "Info"):
            with pytest.raises(aio.AioRpcError) as caught:
                await channel.unary_unary(f"/herdbook.v1.Bookie/{method}", None, None)(b"\xff")
            assert caught.value.code() is StatusCode.INVALID_ARGUMENT
        for data in (b"\xff", backwards.SerializeToString()):
            with pytest.raises(aio.AioRpcError) as caught:
                await channel.unary_stream("/herdbook.v1.Bookie/Read", None, None)(data).read()
            assert caught.value.code() is StatusCode.INVALID_ARGUMENT
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary("/herdbook.v2.Bookie/Info", None, None)(b"")
        assert caught.value.code() is StatusCode.UNIMPLEMENTED


async def test_a_message_over_the_limit_is_refused_and_says_so() -> None:
    async with wired() as made, stranger(made.address) as channel:
        huge = hello()
        huge.orders.add(request=1, bookie_id="a").append.runs = bytes(MESSAGE_BYTES_MAX)
        code, details = await end_of(ordered(channel), huge.SerializeToString())
        assert code is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details
        assert made.server.calls.held_bytes == 0


async def test_calls_over_the_limit_are_refused_and_the_next_one_is_served() -> None:
    async with wired(GrpcSettings(calls_max=4)) as made:
        transports = [GrpcTransport(made.address) for _ in range(6)]
        bookies: list[Bookie] = []
        with pytest.raises(Overloaded):
            for transport in transports:
                bookies.append(await transport.connect("a"))
        for bookie in bookies:
            assert (await append(bookie, runs_of(7, 0, [[b"moo"]]))).status is Status.OK
        assert len(bookies) == 3, "each has its stream, and one call is left to be greeted"
        await transports[0].close()
        await transports[-1].connect("a")
        for transport in transports:
            await transport.close()


async def test_long_polls_never_keep_writers_out() -> None:
    async with wired(GrpcSettings(calls_max=8)) as made:
        followers = [GrpcTransport(made.address) for _ in range(2)]
        polls = [
            asyncio.ensure_future((await follower.connect("a")).wait_lac(7, 5, 60_000))
            for follower in followers
            for _ in range(4)
        ]
        # Those that are refused take the place of calls until they have ended.
        await until(lambda: sum(poll.done() for poll in polls) == 4)
        assert {poll.result().status for poll in polls if poll.done()} <= {Status.OVERLOADED}
        bookie = await made.connect()
        assert (await append(bookie, runs_of(7, 0, [[b"moo"]]))).status is Status.OK
        assert (await bookie.fence(7, KEY)).status is Status.OK
        bookie.confirm(7, 6)
        answers = [(await poll).status for poll in polls]
        assert set(answers) == {Status.OK, Status.OVERLOADED}
        for follower in followers:
            await follower.close()


async def test_readers_that_take_nothing_cost_a_bounded_number_of_bytes() -> None:
    settings = GrpcSettings(connection_read_bytes_max=6 * MIB, read_bytes_max=64 * MIB)
    async with wired(settings) as made:
        bookie = await made.connect()
        await append(bookie, runs_of(7, 0, [[b"x" * MIB]] * 8))
        asked = wire.ReadRequest(bookie_id="a", ledger_id=7, first=0, last=7)
        async with stranger(made.address) as channel:
            read = channel.unary_stream("/herdbook.v1.Bookie/Read", None, None)
            idle = [read(asked.SerializeToString()) for _ in range(40)]
            await until(lambda: made.server.calls.held_bytes >= 2 * MIB)
            # Others are served all the while.
            for entry in range(8):
                answer = await bookie.read(ReadRequest(7, entry, entry, MIB))
                assert len(answer.runs) == 1
                # Ours gives its bytes back when the server hears that its reply has left.
                assert made.server.calls.held_bytes < 4 * MIB
            for call in idle:
                call.cancel()
        await until(lambda: made.server.calls.held_bytes == 0)


async def test_a_read_of_one_byte_counts_as_the_entry_that_may_answer_it() -> None:
    held: list[int] = []
    waits = asyncio.Event()

    class SlowBookie(ModelBookie):
        async def read(self, request: ReadRequest) -> ReadReply:
            held.append(made.server.calls.held_bytes)
            await waits.wait()
            return await super().read(request)

    async with wired() as made:
        made.bookies["a"] = SlowBookie("a")
        asked = wire.ReadRequest(bookie_id="a", ledger_id=7, first=0, last=7, bytes_max=1)
        most = made.settings.connection_read_bytes_max // ENTRY_BYTES_MAX
        async with stranger(made.address) as channel:
            read = channel.unary_stream("/herdbook.v1.Bookie/Read", None, None)
            calls = [read(asked.SerializeToString()) for _ in range(3 * most)]
            await until(lambda: len(held) == most)
            # A call that is answered only after all reads had their chance to begin.
            await (await made.connect()).info()
            assert held == [ENTRY_BYTES_MAX * (one + 1) for one in range(most)]
            waits.set()
            for call in calls:
                assert await call.read() is not aio.EOF  # type: ignore[attr-defined]
        await until(lambda: made.server.calls.held_bytes == 0)


def memory_bytes(process: int) -> int:
    """The memory that a process has in use."""
    said = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(process)], check=True, capture_output=True, text=True
    )
    return int(said.stdout) * KIB


@contextmanager
def server_process() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server in a process of its own, and its port."""
    command = [sys.executable, "-m", "tests.engine.transport.grpc_server_process"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait()


async def test_a_thousand_idle_connections_and_half_sent_messages_cost_little_memory() -> None:
    with server_process() as (process, port):
        transport = GrpcTransport(f"127.0.0.1:{port}")
        bookie = await transport.connect("a")
        for entry in range(20):
            await append(bookie, runs_of(7, entry, [[b"x" * MIB]]))
        await bookie.read(ReadRequest(7, 0, 19, 8 * MIB))
        before = memory_bytes(process.pid)
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(IDLE_CONNECTIONS)]
        for number, end in enumerate(idle):
            if number % 2:
                # It greets, opens a stream's headers, and says no more.
                end.sendall(HTTP2_PREFACE + b"\0\0\0\x04\0\0\0\0\0" + b"\0\x40\0\x01\0\0\0\0\x01")
        for entry in range(20, 40):
            reply = await append(bookie, runs_of(7, entry, [[b"moo"]]))
            assert reply.status is Status.OK
        assert (await bookie.fence(7, KEY)).status is Status.OK
        grown = memory_bytes(process.pid) - before
        assert grown < IDLE_CONNECTIONS * IDLE_BYTES_MAX, grown
        for end in idle:
            end.close()
        await transport.close()
