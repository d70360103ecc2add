"""Taking a log over: what a new leader does, in which order, and what an old one cannot do."""

import asyncio

import pytest

from engine.errors import (
    CannotRead,
    Deposed,
    MetadataUnavailable,
    NotEnoughBookies,
    RecoveryIncomplete,
)
from engine.log.log_list import Leader
from engine.log.position import START, Position
from engine.metadata.bookies import Registration
from engine.metadata.ledgers import State
from engine.metadata.memory import FaultyStore
from tests.engine.log.yard import LIST, ToldStore, Yard, bodies, led, numbered, positions, whole


async def test_a_new_log_begins_with_its_first_leader() -> None:
    yard = await Yard.of(3)
    log = yard.log()
    assert (await log.list()).epoch == 0
    assert await log.end() == START
    assert await bodies(log) == []
    writer = await log.lead()
    assert (writer.epoch, writer.last) == (1, START)
    listed = await log.list()
    assert listed.ledgers == (listed.first_ledger,) == (writer.ledger,)
    assert listed.full_history
    assert await log.end() == START


async def test_appends_resolve_with_their_places_and_can_be_read() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    first = await writer.append(b"first")
    spans = await writer.append_many(numbered(0, 5))
    assert first == Position(writer.ledger, 0)
    assert positions(spans) == [Position(writer.ledger, entry) for entry in range(1, 6)]
    assert writer.last == spans[-1].last == await log.end()
    assert await bodies(yard.log()) == [b"first", *numbered(0, 5)]


async def test_a_ledger_of_a_log_says_whose_it_is() -> None:
    yard = await Yard.of(3)
    _, writer = await led(yard)
    custom = (await yard.client().ledger_metadata(writer.ledger)).custom
    assert custom == {"owner": b"log:cows", "purpose": b"log", "epoch": b"1"}


async def test_a_takeover_raises_the_epoch_then_recovers_then_lists() -> None:
    yard = await Yard.of(3)
    _, old = await led(yard)
    await old.append_many(numbered(0, 3))
    seen: list[tuple[int, State, int]] = []
    told = ToldStore(yard.tree.session())

    async def look(kind: str, key: str) -> None:
        listed = await yard.log().list()
        metadata = await yard.client().ledger_metadata(old.ledger)
        seen.append((listed.epoch, metadata.state, len(listed.ledgers)))

    told.after = look
    await yard.log(store=told).lead()
    order = list(dict.fromkeys(seen))
    assert order == [
        (2, State.OPEN, 1),
        (2, State.IN_RECOVERY, 1),
        (2, State.CLOSED, 1),
        (2, State.CLOSED, 2),
    ]


async def test_a_new_leader_knows_the_newest_entry_and_lists_where_the_old_ledger_ends() -> None:
    yard = await Yard.of(3)
    _, old = await led(yard)
    spans = await old.append_many(numbered(0, 3))
    log, new = await led(yard)
    assert new.last == spans[-1].last
    assert [found.last_entry for found in (await log.list()).listed] == [2, None]
    again = await yard.log().lead()
    assert again.last == spans[-1].last, "an empty ledger in between holds nothing"


async def test_an_old_leader_gets_nothing_acknowledged_after_a_takeover() -> None:
    yard = await Yard.of(3)
    _, old = await led(yard)
    await old.append(b"old")
    _, new = await led(yard)
    with pytest.raises(Deposed):
        await old.append(b"too late")
    assert isinstance(await old.ended(), Deposed)
    with pytest.raises(Deposed):
        old.append_many([b"later still"])
    await new.append(b"new")
    assert await bodies(yard.log()) == [b"old", b"new"]


async def test_an_idle_leader_hears_of_its_successor() -> None:
    yard = await Yard.of(3)
    _, old = await led(yard)
    told: list[Exception] = []
    old.on_end(told.append)
    await yard.log().lead()
    assert isinstance(await old.ended(), Deposed)
    await asyncio.sleep(0)
    assert [type(error) for error in told] == [Deposed]


async def test_an_idle_leader_whose_look_finds_no_store_looks_again() -> None:
    yard = await Yard.of(3)
    told = ToldStore(yard.tree.session())
    old = await yard.log(store=told).lead()
    told.lost_gets = 3
    await yard.log().lead()
    assert isinstance(await old.ended(), Deposed)
    assert told.lost_gets == 0


async def test_an_old_leader_that_cannot_hear_the_list_is_stopped_by_the_bookies() -> None:
    yard = await Yard.of(3)
    told = ToldStore(yard.tree.session())
    told.deaf = True
    old = await yard.log(store=told).lead()
    await old.append(b"old")
    await yard.log().lead()
    with pytest.raises(Deposed):
        await old.append(b"too late")
    assert await bodies(yard.log()) == [b"old"]


async def test_a_deposed_leader_with_a_queue_fails_all_of_it_and_stores_none_of_it() -> None:
    yard = await Yard.of(3)
    told = ToldStore(yard.tree.session())
    told.deaf = True
    old = await yard.log(store=told).lead()
    for bookie in yard.bookies:
        bookie.holding = True
    queued = [old.append_many([b"queued %d" % number]) for number in range(5)]
    await asyncio.sleep(0)
    lost = asyncio.gather(*queued, return_exceptions=True)
    for bookie in yard.bookies:
        bookie.holding = False
    _, new = await led(yard)
    await new.append(b"new")
    for bookie in yard.bookies:
        bookie.held.clear()
    with pytest.raises(Deposed):
        await old.append(b"wakes it")
    assert {type(found) for found in await lost} == {Deposed}
    stored = await bodies(yard.log())
    assert stored == [*(b"queued %d" % number for number in range(5)), b"new"]


async def test_the_epoch_counts_on_when_leaders_race_and_one_writer_is_left() -> None:
    yard = await Yard.of(3)
    results = await asyncio.gather(*(yard.log().lead() for _ in range(4)), return_exceptions=True)
    writers = [found for found in results if not isinstance(found, BaseException)]
    failures = [found for found in results if isinstance(found, BaseException)]
    assert all(isinstance(found, Deposed) for found in failures), failures
    epochs = [writer.epoch for writer in writers]
    assert len(set(epochs)) == len(epochs)
    listed = await yard.log().list()
    newest = max(writers, key=lambda writer: writer.epoch)
    assert newest.epoch == listed.epoch
    await newest.append(b"the one")
    for writer in writers:
        if writer is not newest:
            assert isinstance(await writer.ended(), Deposed)
    assert await bodies(yard.log()) == [b"the one"]


async def test_a_leader_that_was_overtaken_while_it_recovered_is_deposed() -> None:
    yard = await Yard.of(3)
    _, first = await led(yard)
    await first.append(b"one")
    told = ToldStore(yard.tree.session())
    slow = yard.log(store=told)
    overtaken = False

    async def overtake(kind: str, key: str) -> None:
        nonlocal overtaken
        if kind == "create" and key.startswith("/ledgers/") and not overtaken:
            overtaken = True
            await (await yard.log().lead()).append(b"two")

    told.before = overtake
    with pytest.raises(Deposed):
        await slow.lead()
    assert await bodies(yard.log()) == [b"one", b"two"]
    listed = await yard.log().list()
    assert len(listed.ledgers) == 2, "what a deposed leader created is not listed"


async def test_the_epoch_is_raised_only_from_what_was_read_while_the_caller_held_the_lead() -> None:
    yard = await Yard.of(3)
    _, first = await led(yard)
    asked: list[int] = []

    class Slow(ToldStore):
        """Another leader begins before the epoch is raised, and before it is read."""

        async def set(self, key: str, value: bytes, version: int) -> int:
            if key == LIST and not asked:
                asked.append((await yard.log().lead()).epoch)
            return await super().set(key, value, version)

    with pytest.raises(Deposed):
        await yard.log(store=Slow(yard.tree.session())).lead()
    assert asked == [first.epoch + 1]
    assert (await yard.log().list()).epoch == first.epoch + 1, "it is not raised once more"


async def test_a_takeover_goes_on_from_the_list_by_which_its_leader_was_elected_alone() -> None:
    yard = await Yard.of(3)
    log, first = await led(yard)
    seen = await log.seen()
    leader = Leader("process", "replica", "address", 1_000)
    second = await yard.log().lead(leader, seen)
    assert second.epoch == first.epoch + 1
    named = (await log.list()).leader
    assert named is not None and (named.address, named.epoch) == ("address", second.epoch)
    with pytest.raises(Deposed):
        await yard.log().lead(leader, seen)
    assert (await log.list()).epoch == second.epoch
    await second.append(b"goes on")


async def test_a_resignation_that_is_late_changes_nothing_of_the_next_leader() -> None:
    yard = await Yard.of(3)
    log = yard.log()
    await log.lead(Leader("one", "replica", "address", 1_000), await log.seen())
    former = (await log.list()).leader
    await log.lead(Leader("two", "other", "elsewhere", 1_000), await log.seen())
    assert former is not None
    await log.resign(former)
    now = await log.list()
    assert now.leader_address == "elsewhere" and now.leader is not None
    await log.resign(now.leader)
    assert (await log.list()).leader_address == ""


@pytest.mark.parametrize("lost_write", range(8))
@pytest.mark.parametrize("reply", [True, False])
async def test_a_takeover_whose_write_is_lost_can_be_tried_again(
    lost_write: int, reply: bool
) -> None:
    yard = await Yard.of(3)
    _, old = await led(yard)
    await old.append_many(numbered(0, 3))
    faulty = FaultyStore(yard.tree.session())
    for _ in range(lost_write):
        faulty.before_write(_nothing)
    if reply:
        faulty.lose_reply()
    else:
        faulty.lose_request()
    log = yard.log(store=faulty)
    try:
        writer = await log.lead()
    except MetadataUnavailable:
        writer = await log.lead()
    await writer.append(b"after")
    assert await bodies(yard.log()) == [*numbered(0, 3), b"after"]
    assert (await log.list()).epoch == writer.epoch


async def test_a_lost_reply_about_the_epoch_is_settled_by_the_token() -> None:
    yard = await Yard.of(3)
    await led(yard)
    faulty = FaultyStore(yard.tree.session())
    faulty.lose_reply()
    writer = await yard.log(store=faulty).lead()
    assert writer.epoch == 2


async def test_an_epoch_raised_by_somebody_who_then_listed_nothing_stops_the_old_leader() -> None:
    yard = await Yard.of(3)
    _, old = await led(yard)
    await old.append(b"one")
    for bookie in yard.bookies[:2]:
        await yard.registry.unregister(bookie.bookie_id)
    with pytest.raises(NotEnoughBookies):
        await yard.log().lead()
    assert isinstance(await old.ended(), Deposed)
    for bookie in yard.bookies[:2]:
        await yard.registry.register(Registration(bookie.bookie_id, bookie.boot))
    log, writer = await led(yard)
    assert writer.epoch == 3
    await writer.append(b"two")
    assert await bodies(log) == [b"one", b"two"]


async def test_a_leader_that_cannot_decide_the_end_leaves_everything_to_another_try() -> None:
    yard = await Yard.of(3)
    _, old = await led(yard)
    await old.append(b"one")
    for bookie in yard.bookies[:2]:
        bookie.down = True
    with pytest.raises(RecoveryIncomplete):
        await yard.log().lead()
    assert len((await yard.log().list()).ledgers) == 1
    for bookie in yard.bookies[:2]:
        bookie.down = False
    log, writer = await led(yard)
    await writer.append(b"two")
    assert await bodies(log) == [b"one", b"two"]


async def test_a_log_whose_last_ledger_was_deleted_is_not_taken_for_an_empty_one() -> None:
    yard = await Yard.of(3)
    log, old = await led(yard)
    await old.append(b"one")
    await yard.client().delete_ledger(old.ledger)
    with pytest.raises(CannotRead):
        await log.lead()


async def test_a_closed_log_is_led_again_and_goes_on() -> None:
    yard = await Yard.of(3)
    log, first = await led(yard)
    await first.append(b"one")
    await first.close()
    await first.close()
    assert len((await log.list()).ledgers) == 1
    _, second = await led(yard)
    position = await second.append(b"two")
    assert position == Position(second.ledger, 0)
    assert [found for found, _ in await whole(log)] == [Position(first.ledger, 0), position]


async def test_a_writer_whose_ledger_another_leader_deleted_can_be_closed() -> None:
    yard = await Yard.of(3)
    _, writer = await led(yard)
    await writer.append(b"one")
    await yard.client().delete_ledger(writer.ledger)
    await writer.close()
    assert isinstance(await writer.ended(), Deposed)


async def test_the_list_lies_under_the_name_of_the_log() -> None:
    yard = await Yard.of(3)
    await led(yard)
    assert await yard.store.get(LIST) is not None


async def _nothing() -> None:
    return None
