"""What strangers and broken clients send: one clear refusal, and nobody else notices."""

import asyncio
import struct
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.access.shares import Shares
from engine.ports.clock import SystemClock
from engine.transport.frames import (
    Frame,
    FrameReader,
    Kind,
    decode_error,
    encode_greeting,
    frame_header,
)
from engine.transport.security import Security
from herd.errors import InterfaceError, TooLarge
from herd.store import AsyncHerd
from herd.wire import messages
from herd.wire.folder import OWNER
from herd.wire.framed_client import dial_sessions
from herd.wire.framing import CALL, HERD, MORE
from herd.wire.messages import Failed, Open, Opened, decode_answer, encode
from herd.wire.settings import WireSettings
from tests.engine.access.known_users import SECRET, KnownUsers, door_of, user
from tests.engine.transport.grpc_wiring import until
from tests.herd.wire.test_route import reaching, serving
from tests.herd.wire.wiring import embedded


class Stranger:
    """A connection of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader()
        self._heard: list[Frame] = []

    @classmethod
    async def come(cls, address: str) -> "Stranger":
        """Connect."""
        host, port = address.removeprefix("tcp:").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def say(self, kind: int, head: bytes, request: int = 0, target: int = 0) -> None:
        """A frame."""
        self.writer.write(frame_header(kind, target, request, head) + head)

    async def hear(self) -> Frame | None:
        """The next frame, None at the end."""
        while not self._heard:
            try:
                data = await self.reader.read(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._heard += self._frames.feed(data)
        return self._heard.pop(0)

    async def greet(self, **more: Any) -> None:
        """Be welcome."""
        self.say(Kind.HELLO, encode_greeting({HERD: [1, 0], **more}))
        welcome = await self.hear()
        assert welcome is not None and welcome.kind == Kind.WELCOME

    async def ask(self, call: Any, request: int = 1) -> Any:
        """A call, and its answer."""
        self.say(CALL, encode(call), request)
        frame = await self.hear()
        assert frame is not None
        return decode_answer(frame.head)

    async def leave(self) -> None:
        """Hang up."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


async def still_serves(herd: AsyncHerd, address: str) -> bool:
    """Whether others are served."""
    async with reaching(herd, [address]) as remote:
        return list((await (await remote.session()).execute("SELECT 7")).rows) == [(7,)]


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: cow\r\n\r\n" + b"x" * 64,
    b"\x00" * 64,
    b"\xff" * 64,
    frame_header(CALL, 0, 1, b"x") + b"x",
    frame_header(Kind.HELLO, 0, 0, b"HERDBOOK") + b"HERDBOOK",
    frame_header(Kind.HELLO, 0, 0, encode_greeting({})) + encode_greeting({}),
    frame_header(Kind.HELLO, 0, 0, encode_greeting({HERD: "x"})) + encode_greeting({HERD: "x"}),
    frame_header(Kind.HELLO, 0, 0, encode_greeting({HERD: [9]})) + encode_greeting({HERD: [9]}),
    frame_header(Kind.PROOF, 0, 0, b"x") + b"x",
    struct.pack(">II", 2**31, 2**31) + b"x" * 20,
]


async def test_what_is_no_greeting_is_refused_in_words(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd, serving(herd) as one:
        for garbage in GARBAGE:
            stranger = await Stranger.come(one.address)
            stranger.writer.write(garbage)
            refused = await stranger.hear()
            assert refused is not None and refused.kind == Kind.REFUSED, garbage
            assert decode_error(refused.head)[1]
            assert await stranger.hear() is None
            await stranger.leave()
        assert await still_serves(herd, one.address)


async def test_a_call_that_cannot_be_read_is_answered(tmp_path: Path) -> None:
    heads = [b"", b"\xc1", b"\x91", encode([1]), encode([99, 1]), encode([2, 1, 1, 5])]
    async with embedded(tmp_path) as herd, serving(herd) as one:
        stranger = await Stranger.come(one.address)
        await stranger.greet()
        for head in [*heads, b"\x81" * 900]:
            stranger.say(CALL, head, 1)
            told = await stranger.hear()
            assert told is not None
            failure = decode_answer(told.head)
            assert isinstance(failure, Failed) and failure.name == "InterfaceError", head
        assert isinstance(await stranger.ask(Open("default"), 2), Opened)
        await stranger.leave()


async def test_calls_that_are_begun_and_never_finished_are_bounded(tmp_path: Path) -> None:
    few = WireSettings(calls_max=8)
    async with embedded(tmp_path) as herd, serving(herd, few) as one:
        stranger = await Stranger.come(one.address)
        await stranger.greet()
        for request in range(1, 20):
            stranger.say(CALL, b"", request, MORE)
        told = await stranger.hear()
        assert told is not None and (told.kind, told.request) == (Kind.ERROR, 0)
        assert await stranger.hear() is None
        await stranger.leave()
        assert await still_serves(herd, one.address)


async def test_frames_of_other_services_are_answered(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd, serving(herd) as one:
        stranger = await Stranger.come(one.address)
        await stranger.greet()
        stranger.say(Kind.READ, b"x", 5)
        told = await stranger.hear()
        assert told is not None and (told.kind, told.request) == (Kind.ERROR, 5)
        assert isinstance(await stranger.ask(Open("default")), Opened)
        await stranger.leave()


async def test_a_folders_socket_serves_those_who_come_for_that_folder(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd:
        await herd.tablespace()
        ownership = msgspec.json.decode((tmp_path / "herd" / OWNER / "lock").read_bytes())
        address, nonce = ownership["address"], ownership["nonce"]
        assert (tmp_path / "/" / address.removeprefix("unix:")).stat().st_mode & 0o777 == 0o600
        for options in ({}, {"nonce": "0" * 32}):
            with pytest.raises(InterfaceError, match="another folder"):
                await dial_sessions(address, SystemClock(), options=options)
        (await dial_sessions(address, SystemClock(), options={"nonce": nonce})).close()


async def test_sessions_of_others_are_out_of_reach(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd, serving(herd) as one:
        first, second = await Stranger.come(one.address), await Stranger.come(one.address)
        await first.greet()
        await second.greet()
        opened = await first.ask(Open("default"))
        answer = await second.ask(messages.Execute(opened.session, 1, "SELECT 1"))
        assert isinstance(answer, Failed) and answer.lost
        answer = await second.ask(messages.Fetch(1))
        assert isinstance(answer, Failed)
        await first.leave()
        await second.leave()


async def test_a_call_that_is_too_large_is_refused_and_the_next_one_served(tmp_path: Path) -> None:
    small = WireSettings(call_bytes_max=300_000, part_bytes=100_000)
    async with embedded(tmp_path) as herd, serving(herd, small) as one:
        stranger = await Stranger.come(one.address)
        await stranger.greet()
        for _ in range(5):
            stranger.say(CALL, b"x" * 100_000, 3, MORE)
        stranger.say(CALL, b"", 3)
        told = await stranger.hear()
        assert told is not None
        failure = decode_answer(told.head)
        assert isinstance(failure, Failed) and failure.name == TooLarge.__name__
        assert isinstance(await stranger.ask(Open("default"), 4), Opened)
        assert one.server.calls.held == 0
        await stranger.leave()
        async with reaching(herd, [one.address]) as remote:
            session = await remote.session()
            with pytest.raises(TooLarge):
                await session.execute("SELECT ?", ["x" * 400_000])
            assert (await session.execute("SELECT ?", ["x" * 200_000])).count == 1


async def test_parts_of_calls_that_never_end_are_bounded(tmp_path: Path) -> None:
    small = WireSettings(calls_bytes_max=250_000, part_bytes=100_000)
    async with embedded(tmp_path) as herd, serving(herd, small) as one:
        stranger = await Stranger.come(one.address)
        await stranger.greet()
        for request in range(1, 10):
            stranger.say(CALL, b"x" * 90_000, request, MORE)
        told = await stranger.hear()
        assert told is not None and isinstance(decode_answer(told.head), Failed)
        assert one.server.calls.held <= 250_000
        await stranger.leave()
        assert await still_serves(herd, one.address)


async def test_parts_of_nothing_are_bounded_too(tmp_path: Path) -> None:
    small = WireSettings(call_bytes_max=100_000, part_bytes=1_000)
    async with embedded(tmp_path) as herd, serving(herd, small) as one:
        stranger = await Stranger.come(one.address)
        await stranger.greet()
        for _ in range(101):
            stranger.say(CALL, b"", 3, MORE)
        told = await stranger.hear()
        assert told is not None
        failure = decode_answer(told.head)
        assert isinstance(failure, Failed) and failure.name == TooLarge.__name__
        assert one.server.calls.held == 0
        await stranger.leave()


async def test_calls_that_wait_for_their_turn_are_bounded_in_bytes(tmp_path: Path) -> None:
    small = WireSettings(calls_bytes_max=100_000)
    async with (
        embedded(tmp_path) as herd,
        serving(herd, small) as one,
        reaching(herd, [one.address], small) as remote,
    ):
        session = await remote.session()
        await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        await session.execute("INSERT INTO cow VALUES (1, '')")
        await session.begin()
        await session.execute("UPDATE cow SET name = 'mine' WHERE id = 1")
        stranger = await Stranger.come(one.address)
        await stranger.greet()
        opened = await stranger.ask(Open("default", messages.AUTOCOMMIT))
        text = "UPDATE cow SET name = ? WHERE id = 1"
        update = messages.Execute(opened.session, messages.AUTOCOMMIT, text, ["x" * 60_000])
        for request in (2, 3):
            # The first of them waits for the row, the second one is too much beside it.
            stranger.say(CALL, encode(update), request)
        told = await stranger.hear()
        assert told is not None and told.request == 3
        failure = decode_answer(told.head)
        assert isinstance(failure, Failed) and failure.name == TooLarge.__name__
        # What is small gets through.
        assert isinstance(await stranger.ask(messages.Renew(), 4), messages.Done)
        await session.rollback()
        told = await stranger.hear()
        assert told is not None and told.request == 2
        assert not isinstance(decode_answer(told.head), Failed)
        assert not isinstance(await stranger.ask(update, 5), Failed)
        assert one.server.calls.held == 0
        await stranger.leave()


async def test_a_call_of_too_many_values_is_refused_before_they_are_made(tmp_path: Path) -> None:
    few = WireSettings(call_values_max=1_000)
    async with embedded(tmp_path) as herd, serving(herd, few) as one:
        stranger = await Stranger.come(one.address)
        await stranger.greet()
        stranger.say(CALL, encode(messages.ExecuteMany(1, 1, "", [[]] * 1_000)), 1)
        told = await stranger.hear()
        assert told is not None
        failure = decode_answer(told.head)
        assert isinstance(failure, Failed) and "values" in failure.message
        await stranger.leave()


async def test_a_client_that_falls_silent_loses_its_locks(tmp_path: Path) -> None:
    short = WireSettings(lease_ms=300)
    async with (
        embedded(tmp_path) as herd,
        serving(herd, short) as one,
        reaching(herd, [one.address], short) as remote,
    ):
        session = await remote.session()
        await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, n INT)")
        await session.execute("INSERT INTO cow VALUES (1, 0)")
        stranger = await Stranger.come(one.address)
        await stranger.greet()
        opened = await stranger.ask(Open("default", 0))
        update = messages.Execute(opened.session, 0, "UPDATE cow SET n = 1 WHERE id = 1")
        assert not isinstance(await stranger.ask(update), Failed)
        assert (await session.execute("UPDATE cow SET n = 2 WHERE id = 1")).count == 1
        assert await stranger.hear() is None
        await stranger.leave()


async def test_a_client_that_hangs_up_loses_its_locks_at_once(tmp_path: Path) -> None:
    async with (
        embedded(tmp_path) as herd,
        serving(herd) as one,
        reaching(herd, [one.address]) as remote,
    ):
        session = await remote.session()
        await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, n INT)")
        await session.execute("INSERT INTO cow VALUES (1, 0)")
        stranger = await Stranger.come(one.address)
        await stranger.greet()
        opened = await stranger.ask(Open("default", 0))
        update = messages.Execute(opened.session, 0, "UPDATE cow SET n = 1 WHERE id = 1")
        assert not isinstance(await stranger.ask(update), Failed)
        await stranger.leave()
        assert (await session.execute("UPDATE cow SET n = 2 WHERE id = 1")).count == 1


async def test_who_takes_no_answers_is_not_read_from(tmp_path: Path) -> None:
    small = WireSettings(queued_bytes_max=100_000, calls_max=8)
    async with embedded(tmp_path) as herd, serving(herd, small) as one:
        table = await herd.create_table("big", *_BIG)
        await table.put({"id": 1, "data": b"x" * 500_000})
        stranger = await Stranger.come(one.address)
        stranger.writer.transport.set_write_buffer_limits(1 << 26)
        await stranger.greet()
        get = encode(messages.Get("default", "big", [1]))
        for request in range(1, 201):
            stranger.say(CALL, get, request)
        assert await still_serves(herd, one.address)
        (connection,) = [each for each in one.server.connections if each.wire.queued_bytes]
        assert connection.wire.queued_bytes < 20 * 500_000
        heard = 0
        while heard < 200:
            frame = await stranger.hear()
            assert frame is not None
            heard += frame.target != MORE
        await stranger.leave()


async def test_answers_that_a_user_does_not_take_count_over_all_connections(
    tmp_path: Path,
) -> None:
    small = WireSettings(results_bytes_max=12_000_000)
    ann = user("ann", ("tablespace", "default", "read"))
    door, security = door_of(KnownUsers(ann)), Security(secret=SECRET)
    async with (
        embedded(tmp_path) as herd,
        serving(herd, small, security, door) as one,
        reaching(herd, [one.address], small, security) as node,
    ):
        table = await herd.create_table("big", *_BIG)
        await table.put({"id": 1, "data": b"x" * 500_000})
        get = encode(messages.Get("default", "big", [1]))
        strangers = [await Stranger.come(one.address) for _ in range(4)]
        for each in strangers:
            await each.greet(token="token-ann")
            each.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for request in range(1, 101):
                each.say(CALL, get, request)
        session = await node.session()
        while one.server.answers.held < 2_500_000 or any(
            each._tasks for each in one.server.connections
        ):
            # Parts of the cluster are answered all the while.
            assert (await session.execute("SELECT id FROM big WHERE id = 1")).rows == [(1,)]
        assert sum(each.wire.queued_bytes for each in one.server.connections) < 4_000_000
        refused = 0
        for each in strangers:
            each.writer.transport.resume_reading()  # type: ignore[attr-defined]
            heard = 0
            while heard < 100:
                frame = await each.hear()
                assert frame is not None
                heard += frame.target != MORE
                refused += b"wait to be taken" in frame.head
        assert refused
        await session.close()
        for each in strangers:
            await each.leave()
        assert one.server.answers.held == 0


async def test_calls_of_a_user_that_wait_count_over_all_connections(tmp_path: Path) -> None:
    small = WireSettings(calls_max=8)
    ann = user("ann", ("tablespace", "default", "write"))
    door, security = door_of(KnownUsers(ann)), Security(secret=SECRET)
    async with (
        embedded(tmp_path) as herd,
        serving(herd, small, security, door) as one,
        reaching(herd, [one.address], small, security) as node,
    ):
        session = await node.session()
        await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, n INT)")
        await session.execute("INSERT INTO cow VALUES (1, 0)")
        await session.begin()
        await session.execute("UPDATE cow SET n = 1 WHERE id = 1")
        strangers = [await Stranger.come(one.address) for _ in range(9)]
        sessions = []
        for each in strangers:
            await each.greet(token="token-ann")
            sessions.append(await each.ask(Open("default", messages.AUTOCOMMIT)))
        text = "UPDATE cow SET n = 2 WHERE id = 1"
        for number, (each, opened) in enumerate(zip(strangers, sessions, strict=True)):
            await until(partial(is_held, one.server.running, min(8 * number, 60)))
            update = encode(messages.Execute(opened.session, messages.AUTOCOMMIT, text))
            for request in range(2, 10):
                each.say(CALL, update, request)
        # Of eight connections almost all wait, and what comes over the ninth is too much beside.
        for _ in range(8):
            told = await strangers[-1].hear()
            assert told is not None
            failure = decode_answer(told.head)
            assert isinstance(failure, Failed) and "too many calls" in failure.message
        assert one.server.running.held == 60
        await session.commit()
        for each in strangers:
            await each.leave()
        await session.close()


_FOUR = ("ann", "bob", "cid", "dan")


def _known(*names: str) -> KnownUsers:
    writers = [user(name, ("tablespace", "default", "write")) for name in names]
    return KnownUsers(*writers, user("root", admin=True))


@pytest.mark.parametrize(
    ("calls_max", "connections", "size_bytes", "held"),
    [(2, 8, 0, (15, 26, 34, 40)), (4, 1, 11_000, (44_000, 66_000, 77_000, 77_000))],
    ids=["in number", "in bytes"],
)
async def test_statements_of_four_users_that_wait_leave_room_for_others(
    tmp_path: Path, calls_max: int, connections: int, size_bytes: int, held: tuple[int, ...]
) -> None:
    few = WireSettings(calls_max=calls_max, calls_bytes_max=100_000)
    door, security = door_of(_known(*_FOUR, "eve")), Security(secret=SECRET)
    async with (
        embedded(tmp_path) as herd,
        serving(herd, few, security, door) as one,
        reaching(herd, [one.address], few, security) as node,
    ):
        session = await node.session()
        await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        await session.execute("INSERT INTO cow VALUES (1, ''), (2, '')")
        await session.begin()
        await session.execute("UPDATE cow SET name = 'mine' WHERE id = 1")
        strangers = [await _writer(one.address, name) for name in _FOUR for _ in range(connections)]
        text, values = "UPDATE cow SET name = ? WHERE id = {}", ["x" * size_bytes]
        shares = one.server.calls if size_bytes else one.server.running
        for number, (stranger, opened) in enumerate(strangers, 1):
            waits = encode(messages.Execute(opened, messages.AUTOCOMMIT, text.format(1), values))
            for request in range(2, 2 + calls_max):
                stranger.say(CALL, waits, request)
            if number % connections == 0:
                await until(partial(is_held, shares, held[number // connections - 1]))
        for shown in (security, Security(token="token-eve"), Security(token="token-root")):
            async with reaching(herd, [one.address], few, shown) as remote:
                other = await remote.session()
                assert (await other.execute(text.format(2), ["y" * 3_000])).count == 1
                await other.close()
        await session.rollback()
        await session.close()
        for stranger, _ in strangers:
            await stranger.leave()


async def _writer(address: str, name: str) -> tuple[Stranger, int]:
    """A user's connection, and a session on it."""
    stranger = await Stranger.come(address)
    await stranger.greet(token=f"token-{name}")
    opened = await stranger.ask(Open("default", messages.AUTOCOMMIT))
    assert isinstance(opened, Opened)
    return stranger, opened.session


def is_held(shares: Shares, count: int) -> bool:
    """Whether so much is held."""
    return shares.held >= count


def _big() -> tuple[Any, list[str]]:
    from herd.types import BIGINT, ColumnType, Kind

    return {"id": BIGINT, "data": ColumnType(Kind.BLOB)}, ["id"]


_BIG = _big()


async def test_a_request_number_is_used_once_at_a_time(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd, serving(herd) as one:
        stranger = await Stranger.come(one.address)
        await stranger.greet()
        opened = await stranger.ask(Open("default"))
        query = encode(messages.Execute(opened.session, 1, "SELECT count(*) FROM range(10)"))
        stranger.say(CALL, query, 9)
        stranger.say(CALL, query, 9)
        told = await stranger.hear()
        assert told is not None and told.kind == Kind.ERROR
        await stranger.leave()
