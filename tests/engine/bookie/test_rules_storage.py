"""What is on the disk and what only seemed to be: syncs, power losses, torn tails, damage."""

import pytest

from engine.bookie.index import Place, Position
from engine.bookie.index_memory import MemoryIndex
from engine.bookie.indexing import Moved, apply_items
from engine.bookie.segment import Origin
from engine.transport.contract import Status
from tests.engine.bookie.house import House, bodies_of, turns

SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_acknowledged_entry_survives_a_power_loss(seed: int) -> None:
    house = House(seed)
    await house.start()
    assert (await house.stored(0, b"moo" * 100)).status is Status.OK
    await house.crash(power=True)
    await house.start()
    assert bodies_of(await house.read(0, 0)) == [b"moo" * 100]
    await house.service.close()


async def test_a_failed_sync_is_never_tried_again() -> None:
    """After a failed fsync the kernel may call lost pages clean: a second proves nothing."""
    house = House()
    await house.start()
    await house.stored(0, b"zero")
    house.disk.fail_after = 1
    assert (await house.stored(1, b"one")).status is Status.UNAVAILABLE
    assert (await house.stored(2, b"two")).status is Status.UNAVAILABLE
    assert (await house.read(0, 0)).status is Status.UNAVAILABLE
    await house.crash()


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_a_restarted_bookie_serves_survives_a_power_loss(seed: int) -> None:
    """A process that was killed leaves bytes that were written and not synced."""
    house = House(seed)
    await house.start()
    await house.stored(0, b"zero")
    house.disk.lose_power_after = 1
    house.append(1, b"one" * 100)
    await turns()
    await house.crash()
    await house.start()
    served = bodies_of(await house.read(0, 1))
    assert served == [b"zero", b"one" * 100]
    await house.crash(power=True)
    await house.start()
    assert bodies_of(await house.read(0, 1)) == served
    await house.service.close()


async def test_the_indexs_position_never_runs_ahead_of_what_it_holds() -> None:
    """BookKeeper #3329: a mark that moved too far loses what lies before it."""
    house = House()
    await house.start()
    for number in range(5):
        await house.stored(number, b"%d" % number)
        await house.indexed()
        await house.crash()
        await house.start()
    assert bodies_of(await house.read(0, 4)) == [b"0", b"1", b"2", b"3", b"4"]
    await house.service.close()


async def test_a_torn_last_batch_is_cut_and_is_no_damage() -> None:
    """BookKeeper #3949: a torn tail must not keep a bookie from starting."""
    house = House()
    await house.start()
    await house.stored(0, b"zero")
    await house.stored(1, b"one" * 100)
    await house.crash(index_lost=True)
    del house.segment()[-50:]
    await house.start()
    assert not house.service.damaged
    reply = await house.read(0, 1)
    assert bodies_of(reply) == [b"zero"] and reply.missing == (1, 1)
    assert (await house.stored(1, b"new")).status is Status.OK
    await house.service.close()


BATCH_HEADER, RECORD_HEADER = 20, 56 + 28


async def test_an_unreadable_header_makes_negatives_unknown() -> None:
    """BookKeeper #2908: called missing, what damage hides would be cut off by recovery."""
    await _check_negatives_after_damage_at(RECORD_HEADER)


async def test_an_unreadable_batch_header_makes_negatives_unknown() -> None:
    await _check_negatives_after_damage_at(BATCH_HEADER)


async def _check_negatives_after_damage_at(offset: int) -> None:
    house = House()
    await house.use_ids(10)
    await house.start()
    await house.stored(0, b"zero")
    start = len(house.segment())
    await house.stored(1, b"one")
    await house.stored(2, b"two", ledger_id=8)
    await house.crash(index_lost=True)
    house.segment()[start + offset] ^= 1
    await house.start()
    assert house.service.damaged
    reply = await house.read(0, 1)
    assert bodies_of(reply) == [b"zero"]
    reply = await house.read(1, 1)
    assert reply.missing is None and reply.unknown == (1, 1)
    assert (await house.read(0, 0, ledger_id=9)).status is Status.UNKNOWN
    await house.service.close()


async def test_corrupt_bytes_are_no_copy_and_may_be_written_again() -> None:
    house = House()
    await house.start()
    await house.stored(0, b"zero")
    await house.stored(1, b"one")
    await house.service.close()
    found = bytes(house.segment()).index(b"zero")
    house.segment()[found] ^= 1
    await house.start()
    assert (await house.stored(0, b"zero", recovery=True)).status is Status.OK
    assert bodies_of(await house.read(0, 0)) == [b"zero"]
    assert bodies_of(await house.read(1, 1)) == [b"one"]
    await house.service.close()


async def test_bytes_under_a_failed_sync_are_not_trusted_after_a_restart() -> None:
    """They look written, a later sync succeeds, and the next power loss drops them."""
    for seed in SEEDS:
        house = House(seed)
        await house.start()
        await house.stored(0, b"zero")
        house.disk.fail_after = 1
        assert (await house.stored(1, b"one" * 100)).status is Status.UNAVAILABLE
        await house.crash()
        await house.start()
        served = bodies_of(await house.read(1, 1))
        await house.crash(power=True)
        await house.start()
        assert bodies_of(await house.read(0, 0)) == [b"zero"]
        assert bodies_of(await house.read(1, 1)) == served
        await house.service.close()


def test_a_move_takes_only_what_still_lies_at_its_origin() -> None:
    index = MemoryIndex()
    old, newer = Place(7, 0, 4, 1, 100, 500, 0), Place(7, 5, 9, 2, 300, 500, 5)
    apply_items(index, [old, newer], Position(2, 800))
    moved = Place(7, 0, 9, 3, 50, 900, 0)
    apply_items(index, [Moved(moved, Origin(1, 100))], Position(3, 950))
    assert index.find(7, 0, 9) == [moved._replace(last=4), newer]


async def test_a_segment_cut_between_two_batches_is_damage() -> None:
    """All that is left of it is intact: only its successor knows that there was more."""
    house = House(segment_bytes=2_000)
    await house.use_ids(10)
    await house.start()
    await house.stored(0, b"0" * 500)
    end = len(house.segment())
    await house.stored(1, b"1" * 500)
    first = max(name for name in house.disk._names if name.endswith(".segment"))
    await house.stored(2, b"2" * 500)
    assert house.disk._names[first].data is not house.segment()
    await house.crash(index_lost=True)
    house.disk.truncate(first, end)
    await house.start()
    assert house.service.damaged
    assert (await house.read(1, 1)).missing is None
    assert bodies_of(await house.read(2, 2)) == [b"2" * 500]
    await house.service.close()


async def test_what_was_queued_behind_a_refused_append_is_refused_too() -> None:
    """It may stand on what was not written: a gap below an acknowledged entry."""
    house = House(journal_batch_bytes_max=1_000, reserve_bytes=1_000, full_ratio=1.0)
    await house.start()
    await house.stored(0, b"zero")
    house.disk.total_bytes = (1 << 30) - house.disk.room_bytes() + 4_000
    house.journal.holding = True
    big = house.append(1, b"1" * 3_500)
    small = house.append(2, b"two")
    house.journal.release()
    await turns()
    assert [reply.status for reply in big + small] == [Status.READ_ONLY, Status.READ_ONLY]
    assert (await house.read(1, 2)).missing == (1, 2)
    await house.service.close()
