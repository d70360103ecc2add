"""Of an index one write failed: no other one follows, or the position would pass what is lost."""

import asyncio

import pytest

from engine.bookie.index import Changes, Position
from engine.bookie.indexing import DAMAGE_KEY, Fact
from engine.bookie.segment import SEGMENT_HEADER_BYTES
from engine.errors import BookieUnavailable, Overloaded
from engine.transport.contract import Status
from tests.engine.bookie.house import KEY, LEDGER, House, bodies_of, turns


class OneFailure:
    """Lets one write of a house's index fail, as a store does that recovers by itself."""

    def __init__(self, house: House) -> None:
        self.calls = 0
        self._apply = house.index.apply
        house.index.apply = self._fail_once  # type: ignore[method-assign]

    def _fail_once(self, changes: Changes) -> None:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("IO error: the index has lost a write")
        self._apply(changes)


async def failed_at_entry_one(index_delay_ms: int = 3_600_000) -> tuple[House, OneFailure]:
    """Entries 0 to 2 are acknowledged; the index has 0, lost 1, and hears of 2 afterwards."""
    house = House(index_delay_ms=index_delay_ms)
    await house.start()
    await house.stored(0, b"zero")
    await house.indexed()
    failure = OneFailure(house)
    thread = house.workers.batchers["index"]
    thread.holding = True
    await house.stored(1, b"one")
    house.service.storage.writer._send(None)
    assert (await house.stored(2, b"two")).status is Status.OK
    return house, failure


async def check_nothing_is_lost(house: House) -> None:
    await house.service.close()
    del house.index.apply
    await house.crash()
    await house.start()
    reply = await house.read(0, 2)
    assert bodies_of(reply) == [b"zero", b"one", b"two"] and reply.missing is None


async def test_what_was_queued_behind_a_failed_index_write_is_not_written() -> None:
    house, failure = await failed_at_entry_one()
    house.service.storage.writer._send(None)
    thread = house.workers.batchers["index"]
    first, second = thread._queue
    thread._queue = []
    # A thread goes on with what is queued before the loop has heard of its failure.
    with pytest.raises(RuntimeError, match="lost a write") as raised:
        thread._work([first])
    with pytest.raises(RuntimeError, match="lost a write"):
        thread._work([second])
    assert house.index.position() < first.position
    thread._done([first], None, raised.value)
    thread._done([second], None, raised.value)
    assert house.service.failure is raised.value and failure.calls == 1
    await check_nothing_is_lost(house)


async def test_a_timer_that_was_set_before_an_index_write_failed_writes_nothing() -> None:
    house, failure = await failed_at_entry_one(index_delay_ms=200)
    writer = house.service.storage.writer
    armed = writer._timer
    assert armed is not None
    house.workers.batchers["index"].release()
    await turns()
    assert house.service.failure is not None and armed.cancelled()
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_at(armed.when() + 0.001, over.set_result, None)
    await over
    await turns()
    assert failure.calls == 1
    await check_nothing_is_lost(house)


async def test_a_flush_after_a_failed_index_write_says_that_the_bookie_has_stopped() -> None:
    house, failure = await failed_at_entry_one()
    house.workers.batchers["index"].release()
    await turns()
    with pytest.raises(BookieUnavailable) as raised:
        await house.service.storage.writer.flush()
    assert raised.value.__cause__ is house.service.failure and failure.calls == 1
    assert house.service.storage.writer.window.last(LEDGER) == 2
    await check_nothing_is_lost(house)


async def test_an_index_without_room_on_its_disk_waits_and_comes_back() -> None:
    house = House(index_delay_ms=500)
    service = await house.start()
    await house.stored(0, b"zero")
    await house.indexed()
    before = house.index.position()
    assert (await house.stored(1, b"one")).status is Status.OK
    house.disk.total_bytes -= house.disk.room_bytes()
    with pytest.raises(Overloaded):
        await service.storage.writer.flush()
    assert service.failure is None and house.index.position() == before
    assert bodies_of(await house.read(0, 1)) == [b"zero", b"one"]
    assert (await service.fence(LEDGER, KEY)).status is Status.UNAVAILABLE
    house.disk.total_bytes += 1 << 30
    assert (await service.fence(LEDGER, KEY)).status is Status.OK
    async with asyncio.timeout(20):
        # Nobody asks for it: it is tried again.
        while service.storage.writer.pending:
            await turns(1)
    assert house.index.position() > before and service.writable
    await service.close()
    await house.start()
    assert bodies_of(await house.read(0, 1)) == [b"zero", b"one"]
    assert (await house.stored(2, b"two")).status is Status.FENCED
    await house.service.close()


async def test_a_bookie_on_a_full_disk_closes_and_loses_nothing() -> None:
    house = House()
    service = await house.start()
    assert (await house.stored(0, b"zero")).status is Status.OK
    house.disk.total_bytes -= house.disk.room_bytes()
    real = house.index.close

    def fail() -> None:
        raise RuntimeError("IO error: No space left on device")

    house.index.close = fail  # type: ignore[method-assign]
    await service.close()
    assert service.failure is None
    house.index.close = real  # type: ignore[method-assign]
    house.disk.total_bytes += 1 << 30
    await house.crash()
    await house.start()
    assert bodies_of(await house.read(0, 0)) == [b"zero"]
    await house.service.close()


async def test_an_index_claims_nothing_of_a_segment_whose_header_may_be_on_no_disk() -> None:
    house = House()
    await house.start()
    await house.stored(0, b"zero")
    await house.indexed()
    before, writer = house.index.position(), house.service.storage.writer
    # As after a first batch of a new segment that did not come to the disk.
    writer.reached(Position(before.segment + 1, SEGMENT_HEADER_BYTES))
    writer.add(Fact(DAMAGE_KEY, b""))
    await writer.flush()
    assert house.index.fact(DAMAGE_KEY) == b"" and house.index.position() == before
    await house.service.close()
