"""Compaction gives space back, and at no moment is a live range without a readable place."""

import asyncio

import pytest
from msgspec import structs

from engine.bookie.compaction import CompactionRound, CompactionSettings, Compactor, live_bytes
from engine.bookie.indexing import DROPPED, FACTS, FENCE, TOMBSTONE, fact_key
from engine.bookie.scan import Found, JournalScan
from engine.bookie.segment import Kind, facts_record, name_of
from tests.engine.bookie.yard import Inline, Yard, facts_of
from tests.simulation.disk import PowerLoss
from tests.simulation.loop import SimLoop
from tests.simulation.nodes import SimClock

LIVE, DEAD = 7, 8
ENTRIES = 60


def mixed(seed: int = 1) -> Yard:
    """Several segments in which one ledger lives and another, bigger one was deleted."""
    yard = Yard(seed)
    for ledger_id in (LIVE, DEAD):
        yard.create(ledger_id)
    yard.fence(LIVE)
    for number in range(ENTRIES):
        yard.append(LIVE, number, 1)
        yard.append(DEAD, 6 * number, 6)
    yard.bury(DEAD)
    return yard


async def compact(yard: Yard, **settings: float) -> CompactionRound:
    return await yard.compactor(**settings).compact(major=True)


async def test_space_of_deleted_ledgers_comes_back_and_live_entries_stay() -> None:
    yard = mixed()
    before = len(yard.segments())
    done = await compact(yard)
    assert len(done.removed) >= before - 2 and done.kept == ()
    assert len(yard.segments()) < before // 2
    assert yard.held(LIVE) == list(range(ENTRIES)) and yard.held(DEAD) == []


async def test_what_was_moved_is_found_after_a_restart_and_without_an_index() -> None:
    for index_lost in (False, True):
        yard = mixed()
        await compact(yard)
        yard.restart(index_lost=index_lost)
        assert yard.held(LIVE) == list(range(ENTRIES)) and yard.held(DEAD) == []
        assert yard.index.fact(fact_key(FACTS, LIVE)) is not None
        assert yard.index.fact(fact_key(FENCE, LIVE)) == b"k" * 32
        assert yard.index.fact(fact_key(TOMBSTONE, DEAD)) is not None


async def test_a_segment_that_is_mostly_alive_stays() -> None:
    yard = Yard()
    for number in range(ENTRIES):
        yard.append(LIVE, 6 * number, 6)
    before = yard.segments()
    done = await compact(yard)
    assert done.removed == () and yard.segments() == before


async def test_a_minor_round_leaves_what_only_a_major_one_takes() -> None:
    yard = Yard()
    for number in range(ENTRIES):
        yard.append(LIVE, 2 * number, 2)
        yard.append(DEAD, 2 * number, 2)
    yard.bury(DEAD)
    assert (await yard.compactor().compact()).removed == ()
    assert (await yard.compactor().compact(major=True)).removed != ()


async def test_the_active_segment_is_never_removed() -> None:
    yard = Yard()
    yard.append(DEAD, 0, 6)
    yard.bury(DEAD)
    assert (await compact(yard)).removed == () and len(yard.segments()) == 1


async def test_a_range_that_changed_while_it_was_copied_keeps_its_newer_place() -> None:
    yard = mixed()
    compactor = yard.compactor()
    task = asyncio.ensure_future(compactor.compact(major=True))
    await yard.moved.wait()
    assert yard.held(LIVE)
    yard.bury(LIVE)
    await task
    assert yard.held(LIVE) == []
    yard.restart()
    assert yard.held(LIVE) == []


async def test_a_moved_range_moves_again() -> None:
    yard = mixed()
    await compact(yard)
    for ledger_id in range(20, 40):
        yard.append(ledger_id, 0, 20)
    for ledger_id in range(20, 40):
        yard.bury(ledger_id)
    assert (await compact(yard, major_ratio=1.0)).removed
    assert yard.held(LIVE) == list(range(ENTRIES))
    yard.restart(index_lost=True)
    assert yard.held(LIVE) == list(range(ENTRIES)) and yard.held(20) == []


async def test_bytes_that_are_corrupt_are_not_copied_and_their_segment_stays() -> None:
    yard = mixed()
    place = yard.index.find(LIVE, 3, 3)[0]
    flip(yard, place.segment, place.offset + place.size_bytes - 1)
    done = await compact(yard)
    assert place.segment in done.kept and name_of(place.segment)[8:] in yard.segments()
    assert yard.index.find(LIVE, 3, 3)[0] == place
    while (done := await compact(yard)).removed:
        assert place.segment in done.kept
    # Only facts and the fence are copied again: what had moved on is no longer alive there.
    assert done.kept == (place.segment,) and 0 < done.copied_bytes < 400


async def test_a_segment_with_an_unreadable_header_is_left_alone() -> None:
    yard = mixed()
    place = yard.index.find(LIVE, 3, 3)[0]
    flip(yard, place.segment, place.offset + 1)
    done = await compact(yard)
    assert place.segment not in done.removed and done.removed


async def test_facts_count_as_alive_so_they_are_not_copied_round_after_round() -> None:
    yard = Yard()
    for start in range(0, 300, 30):
        yard.put([facts_record(facts_of(number)) for number in range(start, start + 30)])
    assert len(yard.segments()) > 2
    compactor = yard.compactor()
    for _ in range(2):
        done = await compactor.compact(major=True)
        assert (done.removed, done.copied_bytes) == ((), 0)


async def test_copied_facts_keep_the_position_of_the_first_writing() -> None:
    yard = mixed()
    first = next(found for found in records(yard) if found.header.kind == Kind.FACTS)
    await compact(yard)
    await compact(yard, major_ratio=1.0)
    copies = [found for found in records(yard) if found.header.kind == Kind.FACTS]
    assert [found.header.ledger_id for found in copies] == [LIVE]
    assert (copies[0].header.first, copies[0].header.lac) == first.position
    assert copies[0].head == first.head


async def test_a_copy_of_old_facts_does_not_pass_for_news() -> None:
    yard = mixed()
    closed = facts_record(structs.replace(facts_of(LIVE), closed_last=59, closed_length=6_000))
    yard.put([closed])
    await compact(yard)
    heads = [found.head for found in records(yard) if found.header.kind == Kind.FACTS]
    assert heads[-1] != closed.head
    yard.restart(index_lost=True)
    assert yard.index.fact(fact_key(FACTS, LIVE)) == closed.head


async def test_a_full_disk_gives_back_the_segments_whose_copies_fit() -> None:
    yard = mixed()
    yard.disk.total_bytes = yard.disk.total_bytes - yard.disk.room_bytes() + 3_000
    done = await compact(yard, free_bytes_min=1_000)
    assert done.removed and yard.disk.room_bytes() > 3_000
    assert yard.held(LIVE) == list(range(ENTRIES))


async def test_no_segment_goes_from_a_disk_without_any_space() -> None:
    yard = mixed()
    yard.disk.total_bytes = yard.disk.total_bytes - yard.disk.room_bytes() + 100
    done = await compact(yard, free_bytes_min=1_000)
    assert done.removed == () and done.kept != ()


async def test_live_bytes_are_those_that_the_index_points_at() -> None:
    yard = mixed()
    live = live_bytes(yard.index)
    assert sum(live.values()) == ENTRIES * (56 + 8 + 100)


@pytest.mark.parametrize("seed", range(6))
async def test_a_power_loss_at_any_step_leaves_every_live_entry_readable(seed: int) -> None:
    step = 0
    while True:
        yard = mixed(seed)
        yard.index.flush()
        yard.disk.lose_power_after = step
        try:
            await compact(yard)
        except PowerLoss:
            ended = False
        else:
            ended = True
        yard.restart(power=True, index_lost=step % 5 == 4)
        assert yard.held(LIVE) == list(range(ENTRIES)), step
        assert yard.held(DEAD) == [], step
        await compact(yard)
        assert yard.held(LIVE) == list(range(ENTRIES)), step
        if ended:
            assert step > 20
            return
        step += 7


async def test_a_segment_is_removed_only_after_the_index_is_durable_past_its_moves() -> None:
    yard = mixed()
    taken: list[int] = []
    remove = yard.disk.remove

    def crash_then_look(name: str) -> None:
        remove(name)
        snapshot = yard.index
        lost = yard.index._unflushed  # a crash now would forget exactly these
        taken.append(len(lost))
        assert snapshot.fact(fact_key(DROPPED, int(name[8:20]))) is not None

    yard.disk.remove = crash_then_look  # type: ignore[method-assign]
    await compact(yard)
    assert taken and set(taken) == {0}


def test_copying_is_throttled_by_bytes() -> None:
    loop = SimLoop(1)  # type: ignore[abstract]
    yard = mixed()
    settings = CompactionSettings(bytes_per_s=1_000)
    compactor = Compactor(yard, Inline(), SimClock(loop, 0.0), settings)  # type: ignore[arg-type]
    before_s = loop.time()
    done = loop.run(compactor.compact(major=True), until_s=3_600)
    loop.close()
    assert done.copied_bytes > 5_000
    assert loop.time() - before_s >= done.copied_bytes / 1_000 - 0.01


def records(yard: Yard) -> list[Found]:
    scan = JournalScan(yard.disk, yard.index.position())
    return [found for found in scan.records() if isinstance(found, Found)]


def flip(yard: Yard, segment: int, offset: int) -> None:
    yard.disk._names[name_of(segment)].data[offset] ^= 1
