"""When frames leave: together in a turn, and at once where turns have had one each."""

import asyncio
from collections.abc import Iterable

from engine.transport.connection import FramedConnection
from engine.transport.frames import Frame, FrameReader, Kind, frame_header


class KeepingTransport(asyncio.Transport):
    """Keeps what was written, a piece a call; takes no more while it is `full`."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.high_bytes: int | None = None

    def writelines(self, parts: Iterable[bytes]) -> None:  # type: ignore[override]
        self.writes.append(b"".join(parts))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high_bytes = high

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


def connected() -> tuple[FramedConnection, KeepingTransport]:
    connection = FramedConnection(lambda frame: None, lambda failure: None)
    transport = KeepingTransport()
    connection.connection_made(transport)
    return connection, transport


def frames_of(pieces: list[bytes]) -> list[int]:
    """The requests of the frames in what was written."""
    reader = FrameReader()
    found: list[Frame] = []
    for piece in pieces:
        found += reader.feed(piece)
    return [frame.request for frame in found]


async def lone_turns(connection: FramedConnection, count: int) -> None:
    for number in range(count):
        connection.send(Kind.READ, b"", request=number + 1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_frames_of_one_turn_leave_in_one_write_when_it_is_over() -> None:
    connection, transport = connected()
    for request in (1, 2, 3):
        connection.send(Kind.READ, b"", request=request)
    assert not transport.writes
    await asyncio.sleep(0)
    assert len(transport.writes) == 1 and frames_of(transport.writes) == [1, 2, 3]


async def test_where_turns_have_had_one_frame_each_the_next_leaves_at_once() -> None:
    connection, transport = connected()
    await lone_turns(connection, 8)
    transport.writes.clear()
    connection.send(Kind.READ, b"", request=101)
    assert frames_of(transport.writes) == [101]


async def test_what_follows_in_the_same_turn_leaves_behind_it_and_ends_that() -> None:
    connection, transport = connected()
    await lone_turns(connection, 8)
    transport.writes.clear()
    for request in (101, 102, 103):
        connection.send(Kind.READ, b"", request=request)
    assert frames_of(transport.writes) == [101]
    await asyncio.sleep(0)
    assert len(transport.writes) == 2 and frames_of(transport.writes) == [101, 102, 103]
    connection.data_received(frame_header(Kind.READ_REPLY, 0, 101, b""))
    connection.send(Kind.READ, b"", request=104)
    assert len(transport.writes) == 2, "turns have more than one frame now"
    await asyncio.sleep(0)
    assert frames_of(transport.writes) == [101, 102, 103, 104]


async def test_requests_and_answers_in_turn_leave_at_once_and_cost_the_loop_no_turn() -> None:
    connection, transport = connected()
    await lone_turns(connection, 8)
    transport.writes.clear()
    for request in (101, 102, 103):
        connection.send(Kind.READ, b"", request=request)
        assert frames_of(transport.writes)[-1] == request and not connection._flush_due
        connection.data_received(frame_header(Kind.READ_REPLY, 0, request, b""))
    assert frames_of(transport.writes) == [101, 102, 103]


async def test_one_that_follows_before_an_answer_waits_for_company() -> None:
    connection, transport = connected()
    await lone_turns(connection, 8)
    connection.send(Kind.READ, b"", request=101)
    await asyncio.sleep(0)
    transport.writes.clear()
    for request in (102, 103):
        connection.send(Kind.READ, b"", request=request)
    assert not transport.writes
    await asyncio.sleep(0)
    assert len(transport.writes) == 1 and frames_of(transport.writes) == [102, 103]


async def test_what_nobody_answers_leaves_with_its_turn_and_makes_no_request_wait() -> None:
    connection, transport = connected()
    await lone_turns(connection, 8)
    for request in range(100, 120):
        transport.writes.clear()
        connection.send(Kind.APPEND, b"", request=request)
        assert frames_of(transport.writes) == [request], "behind answers and confirmations"
        connection.data_received(frame_header(Kind.APPEND_REPLIES, 0, 0, b""))
        connection.send(Kind.CONFIRM, b"", posted=True)
        assert len(transport.writes) == 1
        await asyncio.sleep(0)
        assert frames_of(transport.writes) == [request, 0]


async def test_who_asks_when_all_is_taken_is_told_when_nothing_follows() -> None:
    connection, _ = connected()
    await lone_turns(connection, 8)
    connection.send(Kind.READ, b"", request=101)
    told: list[bool] = []
    connection.when_empty(lambda: told.append(True))
    assert not told
    await asyncio.sleep(0)
    assert told


async def test_nothing_leaves_while_the_other_side_takes_nothing() -> None:
    connection, transport = connected()
    assert transport.high_bytes == 0, "what the kernel does not take is counted here"
    await lone_turns(connection, 8)
    transport.writes.clear()
    connection.pause_writing()
    emptied: list[bool] = []
    connection.when_empty(lambda: emptied.append(True))
    for request in (101, 102):
        connection.send(Kind.READ, b"x", request=request)
    await asyncio.sleep(0)
    assert not transport.writes and connection.queued_bytes == 2 and not emptied
    connection.resume_writing()
    assert frames_of(transport.writes) == [101, 102] and emptied
    assert connection.queued_bytes == 0
