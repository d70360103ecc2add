"""Bad input on the framed wire: the bookie stays up, says what is wrong, and stays small."""

import asyncio
import random
import resource
import socket
import tracemalloc
from collections.abc import Callable

import pytest

from engine.limits import FRAME_BYTES_MAX, KIB, MIB
from engine.transport.contract import Status
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import (
    GREETING_BYTES_MAX,
    ErrorCode,
    Kind,
    decode_error,
    frame_header,
)
from engine.transport.messages import Connect, encode, encode_append
from engine.transport.security import Security
from tests.engine.transport.bookie_contract import KEY, append, facts_of, runs_of
from tests.engine.transport.model_bookie import ModelBookie
from tests.engine.transport.tcp_wiring import RawEnd, TcpHouse, tcp_house


async def reached(condition: Callable[[], bool]) -> None:
    """Wait until it holds, for ten seconds at most."""
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


async def is_served(house: TcpHouse, ledger_id: int) -> bool:
    bookie = await (await house.transport()).connect("a")
    return (await append(bookie, runs_of(ledger_id, 0, [[b"moo"]]))).status is Status.OK


async def refusal(end: RawEnd) -> tuple[int, str]:
    """The one error that ends a connection."""
    frame = await end.frame()
    assert frame is not None and frame.kind in (Kind.REFUSED, Kind.ERROR) and not frame.request
    assert await end.frame() is None
    await end.close()
    return decode_error(frame.head)


async def test_garbage_is_answered_by_one_clear_error_and_harms_nobody() -> None:
    rng = random.Random(7)
    async with tcp_house() as house:
        for _ in range(100):
            end = await house.raw()
            end.writer.write(rng.randbytes(rng.randrange(28, 4_000)))
            code, text = await refusal(end)
            assert code == ErrorCode.FRAME_INVALID and text
        assert await is_served(house, 7)
        assert len(house.server.connections) == 1


async def test_garbage_after_the_greeting_is_answered_too() -> None:
    rng = random.Random(8)
    async with tcp_house() as house:
        for kind in (Kind.APPEND, Kind.READ, Kind.FENCE, Kind.METADATA, Kind.WATCH, Kind.PROOF):
            end = await house.raw()
            end.hello()
            assert await end.frame() is not None
            end.send(Kind.CONNECT, encode(Connect("a")), request=1)
            connected = await end.frame()
            assert connected is not None and connected.kind == Kind.CONNECTED
            head = rng.randbytes(50)
            end.writer.write(frame_header(kind, 1, 0, head) + head + rng.randbytes(100))
            code, text = await refusal(end)
            assert code == ErrorCode.FRAME_INVALID and text
        assert await is_served(house, 7)


async def test_an_oversized_frame_is_refused_from_its_header_on() -> None:
    async with tcp_house() as house:
        end = await house.raw()
        end.writer.write(frame_header(Kind.HELLO, 0, 0, b"x", GREETING_BYTES_MAX))
        assert "over 4096" in (await refusal(end))[1]
        end = await house.raw()
        end.hello()
        assert await end.frame() is not None
        small = frame_header(Kind.APPEND, 1, 1, b"", FRAME_BYTES_MAX - 28)
        # What no `frame_header` would make: one byte more than the biggest frame.
        end.writer.write(_with_body_bytes(small, FRAME_BYTES_MAX - 27))
        assert f"over {FRAME_BYTES_MAX}" in (await refusal(end))[1]
        assert await is_served(house, 7)


def _with_body_bytes(header: bytes, body_bytes: int) -> bytes:
    import google_crc32c

    fields = header[:4] + body_bytes.to_bytes(4, "big") + header[8:24]
    check: int = google_crc32c.value(fields)
    return fields + check.to_bytes(4, "big")


@pytest.mark.parametrize("secret", [b"", b"the cows come home"])
async def test_a_half_open_connection_is_ended_in_time(secret: bytes) -> None:
    settings = FramedSettings(connect_timeout_ms=50)
    async with tcp_house(Security(secret=secret), settings) as house:
        silent = await house.raw()
        assert "no greeting" in (await refusal(silent))[1]
        if secret:
            slow = await house.raw()
            slow.hello(challenge=bytes(32))
            assert await slow.frame() is not None
            assert "no greeting" in (await refusal(slow))[1]
        await reached(lambda: not house.server.connections)


async def test_one_connection_too_many_is_told_so() -> None:
    async with tcp_house(settings=FramedSettings(connections_max=3)) as house:
        ends = [await house.raw() for _ in range(3)]
        for end in ends:
            end.hello()
            assert await end.frame() is not None
        code, text = await refusal(await house.raw())
        assert code == ErrorCode.OVERLOADED and "too many connections" in text
        await ends.pop().close()
        await reached(lambda: len(house.server.connections) == 2)
        assert await is_served(house, 7)
        for end in ends:
            await end.close()


async def test_a_thousand_idle_connections_cost_little_and_slow_nobody() -> None:
    _raise_file_limit(2_500)
    async with tcp_house(settings=FramedSettings(connections_max=1_010)) as house:
        loop = asyncio.get_running_loop()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        ends: list[socket.socket] = []
        hello = _hello()
        for _ in range(1_000):
            end = socket.socket()
            end.setblocking(False)
            await loop.sock_connect(end, ("127.0.0.1", house.port))
            await loop.sock_sendall(end, hello)
            assert await loop.sock_recv(end, 1_000)
            ends.append(end)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(house.server.connections) == 1_000
        assert after - before < 1_000 * 16 * KIB
        assert await is_served(house, 7)
        for end in ends:
            end.close()
        await reached(lambda: len(house.server.connections) == 1)


def _raise_file_limit(files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= files, f"allow {files} open files (ulimit -n)"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))


def _hello() -> bytes:
    from engine.transport.frames import encode_greeting

    head = encode_greeting({})
    return frame_header(Kind.HELLO, 0, 0, head) + head


def append_frame(ledger_id: int, first: int, size_bytes: int, *, recovery: bool = False) -> bytes:
    """An APPEND as a client sends it, to target 1."""
    runs = runs_of(ledger_id, first, [[b"x" * size_bytes]])
    facts = facts_of(ledger_id) if first == 0 else None
    head, body = encode_append(runs, KEY, facts, recovery)
    header = frame_header(Kind.APPEND, 1, 1, head, len(b"".join(body)), int(recovery))
    return header + head + b"".join(body)


async def connected(house: TcpHouse) -> RawEnd:
    """A raw end that was greeted and has bookie `a` as target 1."""
    end = await house.raw()
    end.hello()
    assert await end.frame() is not None
    end.send(Kind.CONNECT, encode(Connect("a")), request=1)
    assert await end.frame() is not None
    return end


SMALL = FramedSettings(frames_bytes_max=40 * MIB, appends_bytes_max=40 * MIB, urgent_bytes=16 * MIB)


async def test_big_frames_of_many_connections_wait_until_there_is_room() -> None:
    """A hundred clients begin a frame of 4 MiB each: of most nothing but the start is taken in."""
    async with tcp_house(settings=SMALL) as house:
        bookie = house.bookies[0]
        assert isinstance(bookie, ModelBookie)
        bookie.holding = True
        ends = [await connected(house) for _ in range(100)]
        for number, end in enumerate(ends):
            end.writer.write(append_frame(number, 0, 4 * MIB - 100_000))
        await reached(lambda: len(bookie.held) >= 4 and house.server.appends.exhausted)
        for _ in range(500):
            await asyncio.sleep(0)
        # 24 MiB of appends that are not answered, one that crosses it, as much that came meanwhile.
        assert house.server.frames.taken_bytes <= 24 * MIB
        assert house.server.appends.taken_bytes <= 52 * MIB
        assert len(bookie.held) <= 13
        answered = 0
        while answered < len(ends):
            answered += len(bookie.held)
            bookie.release()
            await asyncio.sleep(0)
        for end in ends:
            reply = await end.frame()
            assert reply is not None and reply.kind == Kind.APPEND_REPLIES
            await end.close()
        assert house.server.appends.taken_bytes == house.server.frames.taken_bytes == 0


async def test_a_recovery_and_a_fence_pass_a_server_that_is_full_of_appends() -> None:
    async with tcp_house(settings=SMALL) as house:
        bookie = house.bookies[0]
        assert isinstance(bookie, ModelBookie)
        bookie.holding = True
        ends = [await connected(house) for _ in range(40)]
        for number, end in enumerate(ends):
            end.writer.write(append_frame(number, 0, 3 * MIB))
        full = house.server.frames
        await reached(lambda: house.server.appends.exhausted and full.taken_bytes > 21 * MIB)
        for _ in range(500):
            await asyncio.sleep(0)
        assert full.taken_bytes > 21 * MIB
        recoverer = await connected(house)
        recoverer.writer.write(append_frame(99, 0, 3 * MIB, recovery=True))
        await reached(lambda: any(call.endswith("recovery") for call in bookie.calls))
        client = await (await house.transport()).connect("a")
        assert (await client.fence(98, KEY)).status is Status.OK
        # Of 24 MiB for normal appends eight have room, as many came in meanwhile, and one recovers.
        assert len(bookie.held) <= 17
        bookie.holding = False
        while bookie.held:
            bookie.release()
            await asyncio.sleep(0)
        for end in [*ends, recoverer]:
            reply = await end.frame()
            assert reply is not None and reply.kind == Kind.APPEND_REPLIES
            await end.close()


async def test_who_stops_in_the_middle_of_a_frame_is_cut_off_and_frees_its_room() -> None:
    async with tcp_house(settings=FramedSettings(request_timeout_ms=100)) as house:
        end = await connected(house)
        end.writer.write(append_frame(7, 0, 3 * MIB)[: 1 * MIB])
        await reached(lambda: house.server.frames.taken_bytes > 3 * MIB)
        assert await end.frame() is None
        await reached(lambda: house.server.frames.taken_bytes == 0)
        await end.close()
        assert await is_served(house, 7)


async def test_who_begins_big_frames_and_stops_does_not_hinder_others() -> None:
    async with tcp_house(settings=SMALL) as house:
        ends = [await connected(house) for _ in range(12)]
        for number, end in enumerate(ends):
            end.writer.write(append_frame(number, 0, 4 * MIB - 100_000)[: 1 * MIB])
        await reached(lambda: house.server.frames.taken_bytes > 20 * MIB)
        bookie = await (await house.transport()).connect("a")
        async with asyncio.timeout(1):
            reply = await append(bookie, runs_of(99, 0, [[b"x" * KIB] * 256]))
        assert reply.status is Status.OK
        for end in ends:
            end.writer.transport.abort()
        await reached(lambda: len(house.server.connections) == 1)
        assert house.server.appends.taken_bytes == house.server.frames.taken_bytes == 0


async def test_who_takes_no_answers_is_cut_off_in_time() -> None:
    settings = FramedSettings(request_timeout_ms=200, reply_bytes_max=2 * MIB)
    async with tcp_house(settings=settings) as house:
        first = await (await house.transport()).connect("a")
        await append(first, runs_of(7, 0, [[b"x" * 3 * MIB]]))
        deaf = await connected(house)
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        from engine.transport.messages import Read

        head = encode(Read(7, 0, 0, MIB))
        for request in range(2, 40):
            deaf.writer.write(frame_header(Kind.READ, 1, request, head) + head)
        await reached(lambda: house.server.reads.taken_bytes > 0)
        await reached(lambda: len(house.server.connections) == 1)
        await reached(lambda: house.server.reads.taken_bytes == 0)
        await deaf.close()
        assert await is_served(house, 8)
