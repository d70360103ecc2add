"""Floods of reads and fences on the framed wire: what one connection may make a bookie hold."""

import asyncio

from engine.limits import ENTRY_BYTES_MAX, MIB
from engine.transport.allowance import Allowance
from engine.transport.contract import LacReply, ReadReply, ReadRequest, Status
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import ErrorCode, Kind, decode_error, frame_header
from engine.transport.messages import Fence, Lac, Read, WaitLac, decode, encode
from tests.engine.transport.bookie_contract import KEY, append, runs_of
from tests.engine.transport.model_bookie import ModelBookie
from tests.engine.transport.tcp_wiring import RawEnd, tcp_house
from tests.engine.transport.test_hostile import connected, reached

FLOOD = 5_000


class SlowBookie(ModelBookie):
    """Reads and fences wait until `go_on` is called."""

    def __init__(self, bookie_id: str) -> None:
        super().__init__(bookie_id)
        self.running = 0
        self.running_most = 0
        self._way = asyncio.Event()

    def go_on(self) -> None:
        self._way.set()

    async def fence(self, ledger_id: int, key: bytes) -> LacReply:
        if ledger_id < FLOOD:
            await self._slowly()
        return await super().fence(ledger_id, key)

    async def read(self, request: ReadRequest) -> ReadReply:
        if request.fence_key is None:
            await self._slowly()
        return await super().read(request)

    async def _slowly(self) -> None:
        self.running += 1
        self.running_most = max(self.running_most, self.running)
        try:
            await self._way.wait()
        finally:
            self.running -= 1


def reads(count: int, *, max_bytes: int = 1) -> bytes:
    """So many reads of ledger 7's first entry, to target 1."""
    head = encode(Read(7, 0, 0, max_bytes))
    return b"".join(
        frame_header(Kind.READ, 1, request, head) + head for request in range(2, 2 + count)
    )


def fences(count: int) -> bytes:
    heads = [encode(Fence(number, KEY)) for number in range(count)]
    return b"".join(
        frame_header(Kind.FENCE, 1, request, head) + head for request, head in enumerate(heads, 2)
    )


async def settle(turns: int = 2_000) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def replies(end: RawEnd, kind: Kind, count: int) -> None:
    for _ in range(count):
        frame = await end.frame()
        assert frame is not None and frame.kind == kind


async def test_reads_of_one_byte_count_as_the_whole_entries_that_answer_them() -> None:
    slow = SlowBookie("a")
    async with tcp_house(bookies=[slow]) as house:
        bookie = await (await house.transport()).connect("a")
        await append(bookie, runs_of(7, 0, [[b"x" * (ENTRY_BYTES_MAX - 1_000)]]))
        end = await connected(house)
        end.writer.write(reads(100))
        await reached(lambda: slow.running == 4)
        await settle()
        assert slow.running == 4 == house.settings.read_bytes_max // ENTRY_BYTES_MAX
        assert house.server.reads.taken_bytes == house.settings.read_bytes_max
        slow.go_on()
        await replies(end, Kind.READ_REPLY, 100)
        assert slow.running_most == 4
        await reached(lambda: house.server.reads.taken_bytes == 0)
        await end.close()


async def test_small_replies_that_nobody_takes_leave_room_for_further_reads() -> None:
    """What a read was granted for the worst case is free as soon as its reply is known."""
    async with tcp_house() as house:
        bookie = await (await house.transport()).connect("a")
        await append(bookie, runs_of(7, 0, [[b"moo"]]))
        end = await connected(house)
        end.writer.write(reads(1_000))
        await replies(end, Kind.READ_REPLY, 1_000)
        assert house.server.reads.taken_bytes == 0
        await end.close()


async def test_a_flood_of_reads_is_read_no_further_than_a_few_thousand() -> None:
    slow = SlowBookie("a")
    async with tcp_house(bookies=[slow]) as house:
        end = await connected(house)
        end.writer.write(reads(FLOOD))
        (connection,) = house.server.connections
        await reached(lambda: connection.wire.held)
        await settle()
        assert connection.wire.received_frames < 2_100
        assert (await (await house.transport()).connect("a")).bookie_id == "a"
        slow.go_on()
        await replies(end, Kind.READ_REPLY, FLOOD)
        assert not connection.wire.held
        await end.close()


async def test_a_lost_connection_with_thousands_of_waiting_reads_leaves_nothing_counted() -> None:
    slow = SlowBookie("a")
    async with tcp_house(bookies=[slow]) as house:
        end = await connected(house)
        end.writer.write(reads(FLOOD))
        (connection,) = house.server.connections
        await reached(lambda: connection.wire.held)
        connection.wire.abort()
        await reached(lambda: not house.server.connections and not slow.running)
        assert house.server.reads.taken_bytes == 0


async def test_fences_beyond_a_thousand_are_told_so_and_others_are_served() -> None:
    slow = SlowBookie("a")
    async with tcp_house(bookies=[slow]) as house:
        end = await connected(house)
        end.writer.write(fences(FLOOD))
        for _ in range(FLOOD - 1_024):
            frame = await end.frame()
            assert frame is not None and frame.kind == Kind.LAC_REPLY
            assert decode(frame.head, Lac).status == Status.OVERLOADED
        assert slow.running == 1_024
        other = await (await house.transport()).connect("a")
        assert (await other.fence(FLOOD, KEY)).status is Status.OK
        slow.go_on()
        await replies(end, Kind.LAC_REPLY, 1_024)
        end.writer.write(fences(1))
        frame = await end.frame()
        assert frame is not None and decode(frame.head, Lac).status == Status.OK
        await end.close()


async def test_long_polls_beyond_the_bound_are_told_so_and_keep_no_fence_out() -> None:
    async with tcp_house(settings=FramedSettings(calls_max=50)) as house:
        end = await connected(house)
        head = encode(WaitLac(7, 5, 60_000))
        for request in range(2, 82):
            end.writer.write(frame_header(Kind.WAIT_LAC, 1, request, head) + head)
        for _ in range(30):
            frame = await end.frame()
            assert frame is not None and frame.kind == Kind.ERROR
            assert decode_error(frame.head)[0] == ErrorCode.OVERLOADED
        end.writer.write(fences(1))
        frame = await end.frame()
        assert frame is not None and decode(frame.head, Lac).status == Status.OK
        end.writer.write(reads(1))
        await replies(end, Kind.READ_REPLY, 1)
        await end.close()


async def test_a_recovery_reads_from_a_server_that_is_full_of_reads() -> None:
    slow = SlowBookie("a")
    settings = FramedSettings(reads_bytes_max=48 * MIB, urgent_bytes=16 * MIB)
    async with tcp_house(bookies=[slow], settings=settings) as house:
        ends = [await connected(house) for _ in range(4)]
        for end in ends:
            end.writer.write(reads(10))
        await reached(lambda: slow.running == 8)
        await settle()
        assert slow.running == 8 and house.server.reads.exhausted
        recoverer = await (await house.transport()).connect("a")
        reply = await recoverer.read(ReadRequest(FLOOD, 0, 0, 1, KEY))
        assert reply.status is Status.NO_SUCH_LEDGER
        for end in ends:
            end.writer.transport.abort()


async def test_room_is_granted_past_thousands_who_wait_no_more() -> None:
    allowance = Allowance(100)
    await allowance.acquire(100)
    waiting = [asyncio.ensure_future(allowance.acquire(60)) for _ in range(FLOOD)]
    await asyncio.sleep(0)
    for one in waiting[:-1]:
        one.cancel()
    allowance.give_back(100)
    await asyncio.wait(waiting)
    assert not waiting[-1].cancelled() and allowance.taken_bytes == 60
    late = asyncio.ensure_future(allowance.acquire(60))
    await asyncio.sleep(0)
    allowance.give_back(60)
    late.cancel()
    await asyncio.wait([late])
    assert allowance.taken_bytes == 0, "granted and cancelled in one turn"
