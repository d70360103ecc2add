"""What a log drops, what holds it back, and what is left behind."""

from dataclasses import replace

import pytest

from engine.errors import InvalidRequest, NoSuchLedger, Overloaded, PositionTruncated
from engine.expiry import CLOCK_DIFFERENCE_MS
from engine.log import truncation
from engine.log.log import ReplicatedLog
from engine.log.log_writer import LogWriter
from engine.log.position import START, Position
from engine.log.truncation import FOR_REPLICAS, PINS_MAX
from engine.metadata.memory import FaultyStore
from tests.engine.log.yard import LIST, SETTINGS, ToldStore, Yard, bodies, led


async def filled(
    yard: Yard, ledgers: int = 4, **changed: int
) -> tuple[ReplicatedLog, LogWriter, list[Position]]:
    """A log of some ledgers with one entry each, and the entries' positions."""
    log, writer = await led(yard, replace(SETTINGS, **changed))
    places = [await writer.append(b"entry 0")]
    for number in range(1, ledgers):
        await writer.roll()
        places.append(await writer.append(b"entry %d" % number))
    return log, writer, places


async def test_truncation_drops_whole_ledgers_up_to_the_checkpoint() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    assert await log.truncate(places[1]) == places[1]
    listed = await log.list()
    assert listed.ledgers == (places[2].ledger, places[3].ledger)
    assert listed.first_ledger == places[0].ledger and not listed.full_history
    assert listed.first_position_kept == places[2]
    assert await bodies(log, places[1]) == [b"entry 2", b"entry 3"]
    for dropped in places[:2]:
        with pytest.raises(NoSuchLedger):
            await yard.client().ledger_metadata(dropped.ledger)


async def test_a_ledger_with_one_entry_past_the_checkpoint_is_kept_whole() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    first = await writer.append(b"one")
    await writer.append(b"two")
    await writer.roll()
    await writer.append(b"three")
    assert await log.truncate(first) == START
    assert await bodies(log) == [b"one", b"two", b"three"]


async def test_the_last_ledger_is_never_dropped() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    await log.truncate(Position(places[-1].ledger + 100, 0))
    assert (await log.list()).ledgers == (places[-1].ledger,)


async def test_dropping_an_empty_ledger_takes_no_position_away() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    one = await writer.append(b"one")
    await writer.roll()
    await writer.roll()
    two = await writer.append(b"two")
    await writer.roll()
    assert await log.truncate(Position(two.ledger, -1)) == one
    assert await bodies(log, one) == [b"two"]


async def test_a_pin_holds_the_ledgers_after_its_position() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    await log.pin("reader", places[0], 60_000)
    assert await log.truncate(places[3]) == places[0]
    assert await bodies(log, places[0]) == [b"entry 1", b"entry 2", b"entry 3"]
    await log.unpin("reader")
    await log.unpin("reader")
    assert await log.truncate(places[3]) == places[2]


async def test_the_slowest_pin_counts() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    await log.pin("quick", places[2], 60_000)
    await log.pin("slow", START, 60_000)
    assert await log.truncate(places[3]) == START
    await log.pin("slow", places[1], 60_000)
    assert await log.truncate(places[3]) == places[1]


async def test_a_pin_is_over_only_after_its_expiry_and_what_clocks_may_differ() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    await log.pin("reader", START, 5_000)
    yard.clock.now_ms += 5_000 + SETTINGS.clock_difference_ms - 1
    assert await log.truncate(places[1]) == START
    yard.clock.now_ms += 1
    assert await log.truncate(places[1]) == places[1]
    assert (await log.list()).pins == ()


async def test_renewing_a_pin_in_time_keeps_it() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    for _ in range(5):
        await log.pin("reader", START, 5_000)
        yard.clock.now_ms += 5_000
    assert await log.truncate(places[1]) == START
    assert len((await log.list()).pins) == 1


async def test_a_position_that_is_not_kept_cannot_be_pinned() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    await log.truncate(places[1])
    with pytest.raises(PositionTruncated):
        await log.pin("late", places[0], 60_000)
    await log.pin("in time", places[1], 60_000)


async def test_a_truncation_that_comes_first_wins_against_a_pin() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    faulty = FaultyStore(yard.tree.session())
    faulty.before_write(lambda: log.truncate(places[1]))
    with pytest.raises(PositionTruncated):
        await yard.log(store=faulty).pin("late", START, 60_000)


async def test_a_pin_that_comes_first_wins_against_a_truncation() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    faulty = FaultyStore(yard.tree.session())
    faulty.before_write(lambda: log.pin("quick", places[0], 60_000))
    assert await yard.log(store=faulty).truncate(places[3]) == places[0]
    assert await bodies(log, places[0]) == [b"entry 1", b"entry 2", b"entry 3"]


async def test_a_log_may_be_pinned_before_it_begins() -> None:
    yard = await Yard.of(3)
    log = yard.log()
    await log.pin("early", START, 60_000)
    _, _, places = await filled(yard)
    assert await log.truncate(places[2]) == START
    assert (await log.list()).epoch == 1


async def test_pins_have_names_and_a_bound() -> None:
    yard = await Yard.of(3)
    log, _, _ = await filled(yard, ledgers=1)
    for name in ("", "x" * 201):
        with pytest.raises(InvalidRequest):
            await log.pin(name, START, 1_000)
    for number in range(PINS_MAX - FOR_REPLICAS):
        await log.pin(f"pin {number}", START, 1_000)
    with pytest.raises(Overloaded):
        await log.pin("one too many", START, 1_000)
    await log.pin("pin 1", START, 2_000)


async def test_a_replica_pins_a_log_that_has_as_many_pins_as_others_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(truncation, "PINS_MAX", 5)
    monkeypatch.setattr(truncation, "FOR_REPLICAS", 2)
    yard = await Yard.of(3)
    log, _, _ = await filled(yard, ledgers=1)
    for name in ("replica 1", "one", "two", "three"):
        await log.pin(name, START, 1_000)
    with pytest.raises(Overloaded):
        await log.pin("four", START, 1_000)
    await log.pin("replica 2", START, 1_000)
    await log.pin("three", START, 2_000)
    with pytest.raises(Overloaded):
        await log.pin("replica 3", START, 1_000)


async def test_a_ledger_is_kept_for_the_retention_time_after_the_next_was_listed() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard, retention_ms=10_000, clock_difference_ms=500)
    assert await log.truncate(places[3]) == START
    yard.clock.now_ms += 10_499
    assert await log.truncate(places[3]) == START
    yard.clock.now_ms += 1
    assert await log.truncate(places[3]) == places[2]


async def test_a_machine_whose_clock_is_ahead_does_not_cut_the_retention_time_short() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard, retention_ms=1_000, clock_difference_ms=CLOCK_DIFFERENCE_MS)
    yard.clock.now_ms += 999 + CLOCK_DIFFERENCE_MS
    assert await log.truncate(places[3]) == START


async def test_ledgers_leave_the_list_before_they_are_deleted() -> None:
    yard = await Yard.of(3)
    _, _, places = await filled(yard)
    told = ToldStore(yard.tree.session())
    await yard.log(store=told).truncate(places[1])
    writes = [write for write in told.writes if not write[1].startswith("/repair")]
    assert writes == [
        ("set", LIST),
        ("delete", f"/ledgers/{places[0].ledger}"),
        ("delete", f"/ledgers/{places[1].ledger}"),
    ]


@pytest.mark.parametrize("reply", [True, False])
async def test_a_lost_reply_to_a_truncation_leaves_nothing_behind(reply: bool) -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    faulty = FaultyStore(yard.tree.session())
    if reply:
        faulty.lose_reply(lambda: log.pin("another's write", places[2], 60_000))
    else:
        faulty.lose_request()
    assert await yard.log(store=faulty).truncate(places[1]) == places[1]
    assert await yard.client().list_ledgers() == [places[2].ledger, places[3].ledger]


async def test_a_lost_reply_to_a_pin_is_a_success() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    faulty = FaultyStore(yard.tree.session())
    faulty.lose_reply(lambda: log.pin("another", places[2], 60_000))
    await yard.log(store=faulty).pin("reader", places[0], 60_000)
    assert [pin.name for pin in (await log.list()).pins] == ["reader", "another"]


# Sweeping


async def test_what_a_truncation_could_not_delete_is_swept() -> None:
    yard = await Yard.of(3)
    log, _, places = await filled(yard)
    faulty = FaultyStore(yard.tree.session())
    faulty.before_write(_nothing)
    faulty.lose_request()
    await yard.log(store=faulty).truncate(places[1])
    assert await log.sweep(set(), 1) == [places[0].ledger, places[1].ledger]
    assert await bodies(log, places[1]) == [b"entry 2", b"entry 3"]


async def test_the_sweeper_deletes_what_older_epochs_created_and_never_listed() -> None:
    yard = await Yard.of(3)
    log, old = await led(yard)
    client = yard.client()
    never_listed = await client.create_ledger(metadata=log.custom_metadata("log", old.epoch))
    snapshot = await client.create_ledger(metadata=log.custom_metadata("snapshot", old.epoch))
    in_use = await client.create_ledger(metadata=log.custom_metadata("snapshot", old.epoch))
    newer = await log.lead()
    assert await log.sweep({in_use.ledger_id}, newer.epoch) == [
        never_listed.ledger_id,
        snapshot.ledger_id,
    ]
    assert in_use.ledger_id in await client.list_ledgers()


async def test_the_sweeper_leaves_what_the_standing_leader_is_about_to_list() -> None:
    yard = await Yard.of(3)
    told = ToldStore(yard.tree.session())
    log = yard.log(store=told)
    writer = await log.lead()
    await writer.append(b"one")
    swept: list[int] = []

    async def sweep(kind: str, key: str) -> None:
        swept.extend(await yard.log().sweep(set(), writer.epoch))

    told.before = told.after = sweep
    await writer.roll()
    await writer.append(b"two")
    assert swept == []
    assert await bodies(log) == [b"one", b"two"]


async def test_the_sweeper_deletes_no_snapshot_of_the_present_epoch() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    being_written = await yard.client().create_ledger(
        metadata=log.custom_metadata("snapshot", writer.epoch)
    )
    await writer.roll()
    assert await log.sweep(set(), writer.epoch) == []
    assert being_written.ledger_id in await yard.client().list_ledgers()


async def test_a_sweeper_whose_epoch_is_over_deletes_nothing_of_a_later_one() -> None:
    yard = await Yard.of(3)
    log, old = await led(yard)
    later = await log.lead()
    named = await yard.client().create_ledger(metadata=log.custom_metadata("snapshot", later.epoch))
    await log.lead()
    assert named.ledger_id not in await log.sweep(set(), old.epoch)
    assert named.ledger_id in await yard.client().list_ledgers()


async def test_the_sweeper_touches_nothing_of_others() -> None:
    yard = await Yard.of(3)
    log, _ = await led(yard)
    client = yard.client()
    stranger = await client.create_ledger(metadata={"owner": b"log:sheep", "epoch": b"0"})
    nobody = await client.create_ledger()
    likeness = await client.create_ledger(metadata={"owner": b"log:cows", "epoch": b"soon"})
    epoch = (await log.lead()).epoch
    assert await log.sweep(set(), epoch) == []
    ids = {stranger.ledger_id, nobody.ledger_id, likeness.ledger_id}
    assert ids < set(await client.list_ledgers())


async def _nothing() -> None:
    return None
