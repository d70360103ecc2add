"""Entries that a bookie gives back: what is removed, and what is told meanwhile."""

import asyncio

import msgspec
import pytest

from engine.bookie.index import Place, Position
from engine.bookie.index_memory import MemoryIndex
from engine.bookie.indexing import Released, apply_items
from engine.bookie.upkeep import ServiceYard
from engine.errors import BookieUnavailable, Overloaded
from engine.limits import ENTRY_ID_MAX
from engine.transport.contract import Status
from tests.engine.bookie.house import KEY, LEDGER, House, bodies_of, facts_of, turns

ALL = (0, ENTRY_ID_MAX)
LATER_S = 1e9


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


async def furnished() -> House:
    """A bookie that holds entries 0 to 9 in three runs, all of them in the index."""
    house = House()
    await house.start()
    for first, count in ((0, 4), (4, 4), (8, 2)):
        reply = await house.stored(first, *[b"entry %d" % (first + at) for at in range(count)])
        assert reply.status is Status.OK
    await house.indexed()
    return house


async def test_entries_are_removed_within_a_run_too_and_the_others_stay() -> None:
    house = await furnished()
    service = house.service
    assert await service.held(LEDGER, ALL) == [(0, 9)]
    assert await service.release(LEDGER, [(2, 5), (9, ENTRY_ID_MAX)], LATER_S, yes)
    assert await service.held(LEDGER, ALL) == [(0, 1), (6, 8)]
    found = await house.read(0, 9)
    assert bodies_of(found) == [b"entry 0", b"entry 1"] and found.missing == (2, 5)
    assert bodies_of(await house.read(6, 9)) == [b"entry 6", b"entry 7", b"entry 8"]
    assert await service.held(LEDGER, (1, 6)) == [(1, 1), (6, 6)]


async def test_what_is_given_back_stays_so_over_a_restart_and_a_fence_is_not_forgotten() -> None:
    house = await furnished()
    assert (await house.service.fence(LEDGER, KEY)).status is Status.OK
    assert await house.service.release(LEDGER, [(0, ENTRY_ID_MAX)], LATER_S, yes)
    await house.service.storage.writer.flush()
    await house.crash(power=True)
    await house.start()
    assert await house.service.held(LEDGER, ALL) == []
    assert (await house.stored(10, b"late")).status is Status.FENCED
    assert LEDGER in await house.service.ledgers(-1, 10)


async def test_a_crash_soon_after_may_bring_the_entries_back_whole() -> None:
    house = await furnished()
    await house.service.storage.writer.flush()
    assert await house.service.release(LEDGER, [(2, 5)], LATER_S, yes)
    await house.crash(power=True)
    await house.start()
    assert await house.service.held(LEDGER, ALL) == [(0, 9)]
    assert len(bodies_of(await house.read(0, 9))) == 10


async def test_nothing_is_given_back_while_the_disk_is_full() -> None:
    """The index could not be written, and nobody be told anything of the ledger until then."""
    house = await furnished()
    house.service._gate.full = True
    assert not await house.service.release(LEDGER, [(0, 9)], LATER_S, yes)


async def test_facts_of_a_fragment_that_moved_here_are_kept_for_rebuilding_metadata() -> None:
    house = await furnished()
    later = msgspec.structs.replace(facts_of(LEDGER), fragment_first=10, ensemble=("c",))
    moved = msgspec.structs.replace(facts_of(LEDGER), ensemble=("d",))
    for facts in (later, moved, msgspec.structs.replace(moved, created_ms=6)):
        house.service.record(facts, KEY)
        await turns(100)
    kept = house.service.facts_of(LEDGER)
    assert kept is not None and kept.fragment_first == 10
    stored = bytes(house.segment())
    assert b"d" in stored and stored.count(msgspec.msgpack.encode(moved)) == 1


async def test_what_is_given_back_can_be_written_again() -> None:
    house = await furnished()
    assert await house.service.release(LEDGER, [(0, 9)], LATER_S, yes)
    reply = await house.stored(4, b"entry 4", b"entry 5", recovery=True)
    assert reply.status is Status.OK
    assert bodies_of(await house.read(4, 5)) == [b"entry 4", b"entry 5"]
    await house.indexed()
    assert await house.service.held(LEDGER, ALL) == [(4, 5)]


async def test_without_agreement_nothing_is_removed() -> None:
    house = await furnished()
    assert not await house.service.release(LEDGER, [(0, 9)], LATER_S, no)

    async def away() -> bool:
        raise Overloaded("the store")

    with pytest.raises(Overloaded):
        await house.service.release(LEDGER, [(0, 9)], LATER_S, away)
    assert await house.service.held(LEDGER, ALL) == [(0, 9)]
    assert bodies_of(await house.read(0, 9)) and (await house.stored(10, b"x")).status is Status.OK


async def test_while_entries_are_given_back_reads_find_nobody_and_appends_wait() -> None:
    """Whoever was told that they are here would name this bookie for them."""
    house = await furnished()
    gate, asked = asyncio.Event(), asyncio.Event()

    async def agreed() -> bool:
        asked.set()
        await gate.wait()
        return True

    releasing = asyncio.ensure_future(house.service.release(LEDGER, [(0, 9)], LATER_S, agreed))
    await asked.wait()
    assert (await house.read(0, 9)).status is Status.UNAVAILABLE
    waiting = house.append(0, b"entry 0", recovery=True)
    await turns(100)
    assert not waiting
    assert not await house.service.release(LEDGER, [(0, 9)], LATER_S, yes)
    gate.set()
    assert await releasing
    await turns(100)
    # It was written, not taken for one that is held.
    assert waiting[0].status is Status.OK
    assert bodies_of(await house.read(0, 0)) == [b"entry 0"]


@pytest.mark.parametrize("use", ["written since", "being written", "being read", "not indexed"])
async def test_nothing_is_given_back_of_a_ledger_that_is_in_use(use: str) -> None:
    house = await furnished()
    since_s, pins = LATER_S, house.service.storage.states.get(LEDGER)
    if use == "written since":
        since_s = house.service.written_s(LEDGER) - 1
    elif use == "being written":
        house.journal.holding = True
        house.append(10, b"on its way")
    elif use == "being read":
        pins.pins += 1
    else:
        house.workers.batchers["index"].holding = True
        await house.stored(10, b"in the journal")
    assert not await house.service.release(LEDGER, [(0, 9)], since_s, yes)
    assert await house.service.held(LEDGER, (0, 9)) == [(0, 9)]


async def test_a_caller_that_goes_away_leaves_nothing_half_done() -> None:
    house = await furnished()
    gate = asyncio.Event()

    async def agreed() -> bool:
        await gate.wait()
        return True

    releasing = asyncio.ensure_future(house.service.release(LEDGER, [(0, 9)], LATER_S, agreed))
    await turns()
    releasing.cancel()
    await asyncio.gather(releasing, return_exceptions=True)
    gate.set()
    await turns(100)
    assert await house.service.held(LEDGER, ALL) == []
    assert (await house.stored(0, b"entry 0", recovery=True)).status is Status.OK


async def test_a_bookie_that_closes_meanwhile_lets_go() -> None:
    house = await furnished()

    async def never() -> bool:
        await asyncio.Event().wait()
        return True

    releasing = asyncio.ensure_future(house.service.release(LEDGER, [(0, 9)], LATER_S, never))
    await turns()
    await house.service.close()
    assert isinstance((await asyncio.gather(releasing, return_exceptions=True))[0], BaseException)
    with pytest.raises(BookieUnavailable):
        await house.service.held(LEDGER, ALL)
    await house.start()
    assert await house.service.held(LEDGER, ALL) == [(0, 9)]


async def test_what_was_given_back_counts_as_dead_for_compaction() -> None:
    house = await furnished()
    yard = ServiceYard(house.service, house.disk)
    assert sum(place.size_bytes for place in yard.index.find(LEDGER, *ALL)) > 0
    await house.service.release(LEDGER, [ALL], LATER_S, yes)
    assert yard.index.find(LEDGER, *ALL) == []


def test_a_ledger_of_many_places_is_released_in_parts() -> None:
    index = MemoryIndex()
    places = [Place(7, 2 * at, 2 * at + 1, 1, 100 * at, 50, 2 * at) for at in range(3_000)]
    apply_items(index, places, Position(1, 10))
    apply_items(index, [Released(7, 1, 5_998, Position(1, 10))], Position(1, 20))
    found = index.find(7, *ALL)
    assert [(place.first, place.last) for place in found] == [(0, 0), (5_999, 5_999)]
    assert index.position() == Position(1, 20)
