"""Going on in another ledger: when, in which order, and what happens to appends meanwhile."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from engine.errors import (
    AppendFailed,
    Deposed,
    EntryTooLarge,
    InvalidRequest,
    LedgerClosed,
    MetadataUnavailable,
    NotEnoughBookies,
    Overloaded,
)
from engine.limits import ENTRY_BYTES_MAX
from engine.log import log_writer
from engine.log.log_writer import LogWriter
from engine.log.position import Position
from engine.metadata.ledgers import State
from engine.metadata.memory import FaultyStore
from engine.transport.contract import Status
from tests.engine.ledger.scripted import turns
from tests.engine.log.yard import (
    LIST,
    SETTINGS,
    ToldStore,
    Yard,
    bodies,
    led,
    numbered,
    positions,
    until,
    whole,
)


async def test_a_log_rolls_by_the_number_of_entries() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard, replace(SETTINGS, roll_entries=10))
    for start in range(0, 60, 3):
        await writer.append_many(numbered(start, 3))
    assert await bodies(log) == numbered(0, 60)
    assert len((await log.list()).ledgers) >= 4


async def test_a_log_rolls_by_bytes() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard, replace(SETTINGS, roll_bytes=1_000))
    for _ in range(30):
        await writer.append(b"x" * 100)
    assert len((await log.list()).ledgers) >= 3
    assert len(await bodies(log)) == 30


async def test_a_log_rolls_by_age_but_not_while_its_ledger_is_empty() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard, replace(SETTINGS, roll_ms=5))
    first = writer.ledger
    loop = asyncio.get_running_loop()
    several_ages_s = loop.time() + 0.03

    async def aged() -> bool:
        return loop.time() > several_ages_s

    await until(aged)
    assert writer.ledger == first
    await writer.append(b"one")
    await until(lambda: _left(writer, first))
    position = await writer.append(b"two")
    assert position.ledger > first
    await until(lambda: _left(writer, position.ledger))
    assert await bodies(log) == [b"one", b"two"]


async def test_a_roll_creates_then_closes_then_lists_and_only_then_acknowledges() -> None:
    yard = await Yard.of(3)
    told = ToldStore(yard.tree.session())
    log = yard.log(store=told)
    writer = await log.lead()
    old = writer.ledger
    await writer.append(b"before")
    told.writes.clear()
    pending: list[asyncio.Future[Position]] = []

    async def append_meanwhile(kind: str, key: str) -> None:
        assert all(not future.done() for future in pending), "acknowledged before it was listed"
        if kind == "set" and key == LIST:
            metadata = await yard.client().ledger_metadata(old)
            assert metadata.state is State.CLOSED, "listed while the predecessor was open"
        if told.writes:
            pending.append(writer.append(b"meanwhile"))
            await turns()
            assert not pending[-1].done()

    told.before = append_meanwhile
    await writer.roll()
    told.before = None
    new = writer.ledger
    assert told.writes == [
        ("create", f"/ledgers/{new}"),
        ("set", f"/ledgers/{old}"),
        ("set", LIST),
    ]
    await asyncio.gather(*pending)
    assert {future.result().ledger for future in pending} == {new}
    assert await bodies(log) == [b"before", *[b"meanwhile"] * len(pending)]


async def test_appends_resolve_in_the_order_of_the_calls_across_rolls() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard, replace(SETTINGS, roll_entries=7))
    order: list[int] = []
    futures = []
    for number in range(100):
        future = writer.append_many([b"%d" % number] * (number % 3 + 1))
        future.add_done_callback(partial(lambda number, _: order.append(number), number))
        futures.append(future)
        if number % 5 == 0:
            await asyncio.sleep(0)
    spans = [span for future in futures for span in await future]
    await asyncio.sleep(0)
    assert order == list(range(100))
    assert positions(spans) == [position for position, _ in await whole(log)]
    assert positions(spans) == sorted(set(positions(spans)))


async def test_a_ledger_that_was_fenced_under_a_standing_epoch_is_left_and_nothing_is_lost() -> (
    None
):
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append_many(numbered(0, 3))
    first = writer.ledger
    await yard.fence(first)
    spans = await writer.append_many(numbered(3, 3))
    assert {span.ledger for span in spans} == {writer.ledger} != {first}
    assert await bodies(log) == numbered(0, 6)
    assert (await log.list()).epoch == writer.epoch == 1


async def test_a_deposed_leader_does_not_touch_its_ledger_again() -> None:
    yard = await Yard.of(3)
    told = ToldStore(yard.tree.session())
    told.deaf = True
    old = await yard.log(store=told).lead()
    await old.append(b"one")
    await yard.log().lead()
    told.writes.clear()
    with pytest.raises(Deposed):
        await old.append(b"too late")
    assert told.writes == [], "a deposed leader neither closes nor creates a ledger"


async def test_what_the_end_of_a_fenced_ledger_proves_durable_is_not_appended_again() -> None:
    yard = await Yard.of(3)
    told = ToldStore(yard.tree.session())
    log = yard.log(store=told)
    writer = await log.lead()
    first = writer.ledger
    await writer.append(b"entry 0")
    for bookie in yard.bookies:
        bookie.holding = True
    pending = writer.append_many(numbered(1, 4))
    await turns()
    for bookie in yard.bookies:
        bookie.held.clear()
        bookie.holding = False
        for entry in (3, 4):
            del bookie.entries[first][entry]
    assert await yard.fence(first) == 2
    newest: list[asyncio.Future[Position]] = []

    async def append_meanwhile(kind: str, key: str) -> None:
        if not newest:
            newest.append(writer.append(b"entry 7"))

    told.before = append_meanwhile
    later = writer.append_many(numbered(5, 2))
    spans = await pending
    assert positions(spans) == [
        Position(first, 1),
        Position(first, 2),
        Position(writer.ledger, 0),
        Position(writer.ledger, 1),
    ]
    assert positions(await later) == [Position(writer.ledger, 2), Position(writer.ledger, 3)]
    assert await newest[0] == writer.last == Position(writer.ledger, 4)
    assert await bodies(log) == numbered(0, 8)


async def test_a_ledger_whose_bookies_fail_is_left_for_another() -> None:
    yard = await Yard.of(6)
    log, writer = await led(yard)
    await writer.append(b"one")
    metadata = await yard.client().ledger_metadata(writer.ledger)
    for bookie_id in metadata.fragments[-1].ensemble[:2]:
        yard.transport.bookies[bookie_id].append_status = Status.FENCED
    position = await writer.append(b"two")
    assert position.ledger > metadata.ledger_id
    assert await bodies(log) == [b"one", b"two"]


async def test_a_roll_that_finds_no_bookies_waits_and_the_old_ledger_goes_on() -> None:
    yard = await Yard.of(4)
    log, writer = await led(yard)
    first = writer.ledger
    for bookie in yard.bookies:
        await yard.registry.unregister(bookie.bookie_id)
    with pytest.raises(NotEnoughBookies):
        await writer.roll()
    position = await writer.append(b"goes on")
    assert position.ledger == first
    assert await bodies(log) == [b"goes on"]


async def test_a_leader_that_finds_no_other_ledger_in_time_ends_and_says_so() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard, replace(SETTINGS, turn_timeout_ms=30))
    await writer.append(b"one")
    await yard.fence(writer.ledger)
    for bookie in yard.bookies:
        await yard.registry.unregister(bookie.bookie_id)
    with pytest.raises(AppendFailed):
        await writer.append(b"two")
    assert isinstance(await writer.ended(), AppendFailed)
    assert isinstance(writer.failure, AppendFailed)
    assert await bodies(log) == [b"one"]


@pytest.mark.parametrize("lost_write", range(6))
@pytest.mark.parametrize("reply", [True, False])
async def test_a_roll_survives_every_lost_write(lost_write: int, reply: bool) -> None:
    yard = await Yard.of(3)
    faulty = FaultyStore(yard.tree.session())
    log = yard.log(store=faulty)
    writer = await log.lead()
    await writer.append_many(numbered(0, 3))
    for _ in range(lost_write):
        faulty.before_write(_nothing)
    if reply:
        faulty.lose_reply()
    else:
        faulty.lose_request()
    for start in range(3, 15, 3):
        try:
            await writer.roll()
        except MetadataUnavailable:
            assert writer.failure is None
        await writer.append_many(numbered(start, 3))
    assert faulty.faults_left == 0
    assert await bodies(log) == numbered(0, 15)
    listed = await log.list()
    assert listed.epoch == 1 and listed.ledgers[-1] == writer.ledger


async def test_bytes_that_wait_are_bounded_and_refused_appends_store_nothing() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard, replace(SETTINGS, pending_bytes_max=1_000))
    for bookie in yard.bookies:
        bookie.holding = True
    accepted = [writer.append_many([b"x" * 300]) for _ in range(3)]
    with pytest.raises(Overloaded):
        writer.append_many([b"y" * 300])
    assert writer.pending_bytes == 900
    await turns()
    for bookie in yard.bookies:
        bookie.holding = False
        bookie.release()
    await asyncio.gather(*accepted)
    assert writer.pending_bytes == 0
    await writer.append(b"room again")
    assert await bodies(log) == [b"x" * 300] * 3 + [b"room again"]


async def test_one_append_over_the_bound_is_taken_when_nothing_waits() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard, replace(SETTINGS, pending_bytes_max=10))
    await writer.append(b"x" * 100)
    assert await bodies(log) == [b"x" * 100]


async def test_a_ledger_writer_that_is_full_makes_appends_wait_in_order() -> None:
    yard = await Yard.of(3)
    tight = replace(yard.client().settings, writer_bytes_max=50, writer_parked_bytes_max=50)
    log = yard.log(client=yard.client(tight))
    writer = await log.lead()
    futures = [writer.append(body) for body in numbered(0, 200)]
    found = await asyncio.gather(*futures)
    assert found == sorted(found)
    assert await bodies(log) == numbered(0, 200)


async def test_a_small_append_does_not_overtake_a_big_one_that_waits() -> None:
    yard = await Yard.of(3)
    tight = replace(yard.client().settings, writer_bytes_max=50, writer_parked_bytes_max=50)
    log = yard.log(client=yard.client(tight))
    writer = await log.lead()
    entries = [b"a" * 40, b"b" * 45, b"c" * 60, b"d"]
    await asyncio.gather(*map(writer.append, entries))
    assert await bodies(log) == entries


async def test_what_is_no_entry_is_refused_at_once() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    with pytest.raises(EntryTooLarge):
        writer.append_many([b"fits", bytes(ENTRY_BYTES_MAX + 1)])
    with pytest.raises(InvalidRequest):
        writer.append("text")  # type: ignore[arg-type]
    assert await writer.append_many([]) == ()
    assert await bodies(log) == []


async def test_giving_up_a_wait_does_not_take_the_entry_back() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    given_up = writer.append(b"given up")
    given_up.cancel()
    await writer.append(b"next")
    assert await bodies(log) == [b"given up", b"next"]


async def test_close_waits_for_what_is_pending_and_takes_no_more() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    for bookie in yard.bookies:
        bookie.holding = True
    pending = writer.append(b"pending")
    closing = asyncio.ensure_future(writer.close())
    await turns()
    assert not closing.done()
    with pytest.raises(LedgerClosed):
        writer.append(b"too late")
    for bookie in yard.bookies:
        bookie.holding = False
        bookie.release()
    await closing
    assert pending.done()
    assert isinstance(await writer.ended(), LedgerClosed)
    metadata = await yard.client().ledger_metadata(writer.ledger)
    assert metadata.closed and len((await log.list()).ledgers) == 1


async def test_close_during_a_roll_ends_the_roll_first() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    pending = writer.append(b"pending")
    rolling = asyncio.ensure_future(writer.roll())
    await asyncio.sleep(0)
    await writer.close()
    await pending
    await asyncio.wait([rolling])
    listed = await log.list()
    assert (await yard.client().ledger_metadata(listed.ledgers[-1])).closed


async def test_an_abandoned_writer_leaves_its_ledger_to_be_recovered() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append(b"one")
    pending = writer.append(b"two")
    writer.abandon(LedgerClosed("the process ends"))
    with pytest.raises(LedgerClosed):
        await pending
    assert not (await yard.client().ledger_metadata(writer.ledger)).closed
    assert await (await log.lead()).append(b"three")


async def test_a_closed_client_ends_its_logs_and_lists_no_other_ledger() -> None:
    yard = await Yard.of(3)
    client = yard.client()
    log = yard.log(client=client)
    writer = await log.lead()
    await writer.append(b"one")
    pending = writer.append(b"two")
    client.abandon_writers("the folder was closed")
    for append in (pending, writer.ended()):
        outcome = (await asyncio.gather(append, return_exceptions=True))[0]
        assert isinstance(outcome, LedgerClosed)
    with pytest.raises(LedgerClosed):
        writer.append(b"three")
    assert len((await yard.log().list()).ledgers) == 1


async def test_an_append_to_a_client_that_was_closed_just_now_fails() -> None:
    yard = await Yard.of(3)
    client = yard.client()
    writer = await yard.log(client=client).lead()
    client.abandon_writers("the folder was closed")
    with pytest.raises(LedgerClosed):
        await writer.append(b"too late")


async def test_a_log_of_very_many_ledgers_rolls_only_where_it_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_writer, "LEDGERS_MAX", 3)
    yard = await Yard.of(3)
    log, writer = await led(yard, replace(SETTINGS, roll_entries=1))
    for number in range(10):
        await writer.append(b"%d" % number)
        await turns()
    assert len((await log.list()).ledgers) == 3
    await yard.fence(writer.ledger)
    await writer.append(b"must")
    assert len((await log.list()).ledgers) == 4


async def test_a_roll_does_not_wait_for_a_straggler_and_the_mark_falls_when_it_has_caught_up() -> (
    None
):
    yard = await Yard.of(3)
    patient = replace(yard.client().settings, straggler_close_ms=5_000)
    log = yard.log(client=yard.client(patient))
    writer = await log.lead()
    first = writer.ledger
    await writer.append(b"one")
    slow = yard.bookies[0]
    slow.holding = True
    await writer.append(b"two")
    async with asyncio.timeout(2):
        await writer.roll()
        await writer.append(b"three")
    assert (await yard.client().ledger_metadata(first)).degraded
    slow.holding = False
    slow.release()

    async def whole_again() -> bool:
        return not (await yard.client().ledger_metadata(first)).degraded

    await until(whole_again)
    assert await yard.client().repairs() == []
    assert await bodies(log) == [b"one", b"two", b"three"]


async def test_a_straggler_that_never_catches_up_puts_the_rolled_ledger_into_the_repair_queue() -> (
    None
):
    yard = await Yard.of(3)
    _, writer = await led(yard)
    first = writer.ledger
    await writer.append(b"one")
    yard.bookies[0].holding = True
    await writer.append(b"two")
    await writer.roll()

    async def queued() -> bool:
        return first in await yard.client().repairs()

    await until(queued)
    assert (await yard.client().ledger_metadata(first)).degraded


async def _nothing() -> None:
    return None


async def _left(writer: LogWriter, ledger: int) -> bool:
    return writer.ledger != ledger
