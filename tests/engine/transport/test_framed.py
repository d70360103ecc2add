"""Framed connections that break, stall, crowd or lie."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.errors import BookieUnavailable, FormatTooNew, InvalidRequest
from engine.limits import ENTRY_BYTES_MAX, FRAME_BYTES_MAX, MIB
from engine.ports.clock import SystemClock
from engine.transport.address import SOCKET_PATH_BYTES_MAX, may_trust
from engine.transport.contract import AppendReply, ReadRequest, Status
from engine.transport.framed_bookie import FramedBookie, FramedTransport
from engine.transport.framed_server import FramedServer
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import (
    WIRE_MAJOR,
    ErrorCode,
    FrameReader,
    Kind,
    decode_error,
    encode_greeting,
    frame_header,
)
from tests.engine.transport.bookie_contract import KEY, append, runs_of
from tests.engine.transport.model_bookie import ModelBookie


class Wired:
    """A model bookie `a` behind a server, and a transport to it."""

    def __init__(self, path: Path, settings: FramedSettings) -> None:
        self.path = str(path)
        self.settings = settings
        self.bookie = ModelBookie("a")
        self.server = FramedServer(cluster_id="c", settings=settings)
        self.server.add(self.bookie)
        self.finds = 0
        self.transport = FramedTransport(
            self.find, clock=SystemClock(), rng=random.Random(1), settings=settings
        )

    async def find(self, bookie_id: str) -> str:
        self.finds += 1
        return f"unix:{self.path}"

    async def connect(self) -> FramedBookie:
        bookie = await self.transport.connect("a")
        assert isinstance(bookie, FramedBookie)
        return bookie

    def cut(self) -> None:
        """Break every connection from the server's side."""
        for connection in list(self.server.connections):
            connection.wire.abort()


@asynccontextmanager
async def wired(path: Path, settings: FramedSettings | None = None) -> AsyncIterator[Wired]:
    made = Wired(path / "s", settings or FramedSettings())
    loop = asyncio.get_running_loop()
    listening = await loop.create_unix_server(made.server.accept, made.path)
    try:
        yield made
    finally:
        await made.transport.close()
        listening.close()
        await made.server.close()


async def raw(made: Wired) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(made.path)


async def test_a_broken_connection_answers_all_that_is_pending_once_and_a_new_one_serves(
    tmp_path: Path,
) -> None:
    async with wired(tmp_path) as made:
        bookie = await made.connect()
        made.bookie.holding = True
        pending = [append(bookie, runs_of(7, entry, [[b"moo"]])) for entry in range(50)]
        poll = asyncio.ensure_future(bookie.wait_lac(7, 0, 60_000))
        assert (await bookie.info()).bookie_id == "a"
        assert len(made.bookie.held) == 50
        made.cut()
        replies = [await answer for answer in pending]
        assert {reply.status for reply in replies} == {Status.UNAVAILABLE}
        assert [reply.first for reply in replies] == list(range(50))
        assert (await poll).status is Status.UNAVAILABLE
        assert (await append(bookie, runs_of(7, 50, [[b"moo"]]))).status is Status.UNAVAILABLE
        assert (await bookie.read(ReadRequest(7, 0, 0, 1))).status is Status.UNAVAILABLE
        with pytest.raises(BookieUnavailable):
            await bookie.info()
        made.bookie.holding = False
        made.bookie.release()
        again = await made.connect()
        assert again is not bookie
        assert (await append(again, runs_of(7, 50, [[b"moo"]]))).status is Status.OK


async def test_a_connection_is_shared_and_asked_for_again_without_a_message(
    tmp_path: Path,
) -> None:
    async with wired(tmp_path) as made:
        bookies = await asyncio.gather(*(made.connect() for _ in range(10)))
        assert len({id(bookie.connection) for bookie in bookies}) == 1
        assert len(made.server.connections) == 1
        assert await made.connect() is await made.connect()


async def test_a_stopped_bookie_is_unavailable_and_serves_again_after_its_start(
    tmp_path: Path,
) -> None:
    async with wired(tmp_path) as made:
        bookie = await made.connect()
        made.server.remove("a")
        assert (await append(bookie, runs_of(7, 0, [[b"moo"]]))).status is Status.UNAVAILABLE
        assert (await bookie.fence(7, KEY)).status is Status.UNAVAILABLE
        assert bookie.gone
        with pytest.raises(BookieUnavailable):
            await made.connect()
        made.server.add(ModelBookie("a", boot=2))
        again = await made.connect()
        assert (await append(again, runs_of(7, 0, [[b"moo"]]))).boot == 2
        assert (await append(bookie, runs_of(7, 1, [[b"moo"]]))).status is Status.UNAVAILABLE


async def test_an_address_where_nobody_listens_is_left_alone_for_a_while(tmp_path: Path) -> None:
    settings = FramedSettings(redial_first_ms=60_000, redial_max_ms=60_000)
    transport = FramedTransport(
        lambda bookie_id: _at(tmp_path / "nobody"),
        clock=SystemClock(),
        rng=random.Random(1),
        settings=settings,
    )
    with pytest.raises(BookieUnavailable, match="nobody listens"):
        await transport.connect("a")
    with pytest.raises(BookieUnavailable, match="a moment ago"):
        await transport.connect("a")


async def _at(path: Path) -> str:
    return f"unix:{path}"


async def test_many_tiny_entries_cross_in_several_frames_with_one_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transport.framed_bookie._RUNS_BYTES_MAX", 10_000)
    monkeypatch.setattr(
        "engine.transport.server_connection.FRAME_BYTES_MAX", ENTRY_BYTES_MAX // 4 + 10_000
    )
    async with wired(tmp_path) as made:
        bookie = await made.connect()
        runs = runs_of(7, 0, [[b""] * 256] * 20)
        reply = await append(bookie, runs)
        assert (reply.status, reply.first, reply.last) == (Status.OK, 0, runs[-1].last)
        assert made.bookie.calls[:2] == ["append 0-1023", "append 1024-2047"]
        answer = await bookie.read(ReadRequest(7, 0, runs[-1].last, MIB))
        assert [run.first for run in answer.runs] == [0, 256, 512, 768]
        assert answer.missing is None and answer.status is Status.OK


async def test_a_server_reads_no_more_than_it_may_hold_unanswered(tmp_path: Path) -> None:
    settings = FramedSettings(append_bytes_max=8 * MIB)
    async with wired(tmp_path, settings) as made:
        bookie = await made.connect()
        made.bookie.holding = True
        big = [b"x" * ENTRY_BYTES_MAX]
        pending = [append(bookie, runs_of(7, entry, [big])) for entry in range(8)]
        for _ in range(2_000):
            await asyncio.sleep(0)
        assert 2 <= len(made.bookie.held) <= 4
        while not all(answer.done() for answer in pending):
            made.bookie.release()
            await asyncio.sleep(0)
        assert {answer.result().status for answer in pending} == {Status.OK}


async def test_a_full_sending_queue_answers_overloaded_later(tmp_path: Path) -> None:
    settings = FramedSettings(send_bytes_max=FRAME_BYTES_MAX, append_bytes_max=4 * MIB)
    async with wired(tmp_path, settings) as made:
        bookie = await made.connect()
        made.bookie.holding = True
        big = [b"x" * ENTRY_BYTES_MAX]
        pending = [append(bookie, runs_of(7, entry, [big])) for entry in range(12)]
        assert not any(answer.done() for answer in pending)
        await asyncio.sleep(0)
        refused = [answer.result().status for answer in pending if answer.done()]
        assert len(refused) >= 6 and set(refused) == {Status.OVERLOADED}


async def test_a_reader_that_takes_nothing_stops_the_server_from_reading_on(
    tmp_path: Path,
) -> None:
    settings = FramedSettings(reply_bytes_max=2 * MIB)
    async with wired(tmp_path, settings) as made:
        bookie = await made.connect()
        await append(bookie, runs_of(7, 0, [[b"x" * MIB]]))
        bookie.connection.wire.hold()
        reads = [asyncio.ensure_future(bookie.read(ReadRequest(7, 0, 0, MIB))) for _ in range(40)]
        for _ in range(2_000):
            await asyncio.sleep(0)
        assert len([call for call in made.bookie.calls if call.startswith("read")]) < 30
        bookie.connection.wire.release()
        assert {(await read).status for read in reads} == {Status.OK}


async def test_an_answer_that_is_late_counts_as_none(tmp_path: Path) -> None:
    settings = FramedSettings(request_timeout_ms=80)
    async with wired(tmp_path, settings) as made:
        bookie = await made.connect()
        made.bookie.holding = True
        assert (await append(bookie, runs_of(7, 0, [[b"moo"]]))).status is Status.UNAVAILABLE
        made.bookie.release()


async def test_a_garbled_client_is_cut_off_and_harms_nobody(tmp_path: Path) -> None:
    async with wired(tmp_path) as made:
        bookie = await made.connect()
        for garbage in (
            b"GET / HTTP/1.1\r\n\r\n" * 4,
            frame_header(Kind.INFO, 9, 1, b""),
            b"\0" * 99,
        ):
            reader, writer = await raw(made)
            writer.write(garbage)
            (frame,) = FrameReader().feed(await reader.read())
            assert frame.kind == Kind.REFUSED
            assert decode_error(frame.head)[0] == ErrorCode.FRAME_INVALID
            writer.close()
        hello = encode_greeting({})
        reader, writer = await raw(made)
        writer.write(frame_header(Kind.HELLO, 0, 0, hello) + hello)
        (frame,) = FrameReader().feed(await reader.read(1_000))
        assert frame.kind == Kind.WELCOME
        writer.write(frame_header(Kind.READ, 77, 1, b"\xff") + b"\xff")
        (frame,) = FrameReader().feed(await reader.read())
        assert (frame.kind, frame.request) == (Kind.ERROR, 0)
        assert "target 77" in decode_error(frame.head)[1]
        writer.close()
        assert (await append(bookie, runs_of(7, 0, [[b"moo"]]))).status is Status.OK


async def test_a_newer_major_version_is_refused_with_a_reason(tmp_path: Path) -> None:
    async with wired(tmp_path) as made:
        reader, writer = await raw(made)
        hello = encode_greeting({}, WIRE_MAJOR + 1, 0)
        writer.write(frame_header(Kind.HELLO, 0, 0, hello) + hello)
        (frame,) = FrameReader().feed(await reader.read())
        assert frame.kind == Kind.REFUSED
        assert "wire format" in decode_error(frame.head)[1]
        writer.close()


async def test_a_client_names_a_server_that_is_too_new(tmp_path: Path) -> None:
    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = encode_greeting({}, WIRE_MAJOR + 1, 0)
        writer.write(frame_header(Kind.WELCOME, 0, 0, head) + head)
        await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    path = tmp_path / "s"
    server = await asyncio.start_unix_server(welcome, str(path))
    transport = FramedTransport(
        lambda bookie_id: _at(path), clock=SystemClock(), rng=random.Random(1)
    )
    with pytest.raises(FormatTooNew, match="wire format"):
        await transport.connect("a")
    await ended.wait()
    server.close()


async def test_an_unknown_kind_is_answered_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with wired(tmp_path) as made:
        bookie = await made.connect()
        with pytest.raises(InvalidRequest, match="unknown"):
            await bookie.connection.call(Kind.LAC_REPLY, b"")
        assert (await bookie.info()).bookie_id == "a"


async def test_a_reply_of_another_bookie_is_not_passed_on(tmp_path: Path) -> None:
    async with wired(tmp_path) as made:
        bookie = await made.connect()
        made.bookie.bookie_id = "impostor"
        reply = await append(bookie, runs_of(7, 0, [[b"moo"]]))
        assert (reply.status, reply.bookie_id) == (Status.UNAVAILABLE, "a")


async def test_a_path_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    transport = FramedTransport(
        lambda bookie_id: _at(tmp_path / ("x" * SOCKET_PATH_BYTES_MAX)),
        clock=SystemClock(),
        rng=random.Random(1),
    )
    with pytest.raises(InvalidRequest, match="107"):
        await transport.connect("a")


async def test_closing_the_transport_answers_what_is_pending(tmp_path: Path) -> None:
    async with wired(tmp_path) as made:
        bookie = await made.connect()
        made.bookie.holding = True
        pending = append(bookie, runs_of(7, 0, [[b"moo"]]))
        await asyncio.sleep(0)
        await made.transport.close()
        reply: AppendReply = await pending
        assert reply.status is Status.UNAVAILABLE
        with pytest.raises(BookieUnavailable):
            await made.connect()


def test_only_this_user_and_root_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert may_trust(1000) and may_trust(0) and may_trust(None)
    assert not may_trust(1001)


async def test_a_server_of_another_user_is_not_talked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired(tmp_path) as made:
        monkeypatch.setattr("engine.transport.address.peer_user", lambda transport: 4_000_000)
        with pytest.raises(BookieUnavailable, match="another user"):
            await made.connect()


async def test_a_client_of_another_user_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired(tmp_path) as made:
        monkeypatch.setattr("engine.transport.serving.peer_user", lambda transport: 4_000_000)
        with pytest.raises(BookieUnavailable):
            await made.connect()
        assert not made.server.connections


async def test_a_connection_that_never_greets_is_ended(tmp_path: Path) -> None:
    async with wired(tmp_path, FramedSettings(connect_timeout_ms=20)) as made:
        end = socket.socket(socket.AF_UNIX)
        end.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(end, made.path)
        (frame,) = FrameReader().feed(await loop.sock_recv(end, 1_000))
        assert "no greeting" in decode_error(frame.head)[1]
        assert await loop.sock_recv(end, 10) == b""
        end.close()
