"""What a bookie promises of every reply: fences, keys, held ids, deleted ledgers, full disks."""

import asyncio

from engine.limits import MIB
from engine.transport.contract import Status
from tests.engine.bookie.house import KEY, LEDGER, House, bodies_of, turns


async def test_an_append_is_answered_after_its_sync_and_not_before() -> None:
    house = House()
    await house.start()
    house.journal.holding = True
    replies = house.append(0, b"moo")
    await turns()
    assert replies == []
    house.journal.release()
    await turns()
    assert [reply.status for reply in replies] == [Status.OK]
    await house.service.close()


async def test_a_fenced_ledger_refuses_appends_and_takes_recovery_writes() -> None:
    house = House()
    await house.start()
    await house.stored(0, b"zero")
    assert (await house.service.fence(LEDGER, KEY)).status is Status.OK
    assert (await house.stored(1, b"one")).status is Status.FENCED
    assert (await house.stored(1, b"one", recovery=True)).status is Status.OK
    assert bodies_of(await house.read(0, 1)) == [b"zero", b"one"]
    await house.service.close()


async def test_a_fence_is_answered_only_when_it_is_durable() -> None:
    house = House()
    await house.start()
    await house.stored(0, b"zero")
    house.journal.holding = True
    fencing = asyncio.ensure_future(house.service.fence(LEDGER, KEY))
    await turns()
    assert not fencing.done()
    house.journal.release()
    assert (await fencing).status is Status.OK
    await house.service.close()


async def test_a_refusal_for_a_fence_is_answered_only_when_the_fence_is_durable() -> None:
    house = House()
    await house.start()
    await house.stored(0, b"zero")
    house.journal.holding = True
    fencing = asyncio.ensure_future(house.service.fence(LEDGER, KEY))
    await turns()
    replies = house.append(1, b"one")
    await turns()
    assert replies == []
    house.journal.release()
    await fencing
    await turns()
    assert [reply.status for reply in replies] == [Status.FENCED]
    await house.service.close()


async def test_a_fencing_read_of_an_unknown_ledger_waits_for_its_fence() -> None:
    """A negative that left before the fence is on disk could be unfenced by a crash."""
    house = House()
    await house.start()
    house.journal.holding = True
    reading = asyncio.ensure_future(house.read(0, 0, fence_key=KEY))
    await turns()
    assert not reading.done()
    house.journal.release()
    assert (await reading).missing == (0, 0)
    assert (await house.stored(0, b"late")).status is Status.FENCED
    await house.service.close()


async def test_a_fencing_read_knows_what_was_queued_before_it() -> None:
    house = House()
    await house.start()
    await house.service.fence(LEDGER, KEY)
    house.journal.holding = True
    house.append(0, b"written back", recovery=True)
    reading = asyncio.ensure_future(house.read(0, 0, fence_key=KEY))
    await turns()
    assert not reading.done()
    house.journal.release()
    reply = await reading
    assert reply.missing is None and bodies_of(reply) == [b"written back"]
    await house.service.close()


async def test_a_fence_survives_a_crash_and_a_clean_restart() -> None:
    for clean in (False, True):
        house = House()
        await house.start()
        await house.stored(0, b"zero")
        await house.service.fence(LEDGER, KEY)
        await house.stored(0, b"behind the fence", ledger_id=LEDGER + 1)
        if clean:
            await house.service.close()
        else:
            await house.crash(power=True)
        await house.start()
        assert (await house.stored(1, b"one")).status is Status.FENCED
        await house.service.close()


async def test_a_ledger_in_use_keeps_its_one_state() -> None:
    """BookKeeper #4701: with two states of a ledger an append passes beside a fence."""
    house = House(ledger_states_max=1)
    await house.start()
    await house.stored(0, b"zero")
    await house.indexed()
    house.journal.holding = True
    fencing = asyncio.ensure_future(house.service.fence(LEDGER, KEY))
    await turns()
    for other in range(100, 120):
        await house.read(0, 0, ledger_id=other)
    replies = house.append(1, b"beside the fence")
    house.journal.release()
    await fencing
    await turns()
    assert [reply.status for reply in replies] == [Status.FENCED]
    await house.service.close()


async def test_another_key_neither_appends_nor_fences() -> None:
    house = House()
    await house.start()
    await house.stored(0, b"zero")
    assert (await house.stored(1, b"one", key=b"guess")).status is Status.UNAUTHORIZED
    assert (await house.service.fence(LEDGER, b"guess")).status is Status.UNAUTHORIZED
    assert (await house.stored(1, b"one")).status is Status.OK
    await house.service.close()


async def test_other_bytes_for_a_held_id_are_a_conflict_and_the_same_bytes_are_none() -> None:
    house = House()
    await house.start()
    await house.stored(0, b"zero", b"one")
    assert (await house.stored(1, b"one")).status is Status.OK
    assert (await house.stored(1, b"eins")).status is Status.CONFLICT
    assert bodies_of(await house.read(0, 1)) == [b"zero", b"one"]
    await house.service.close()


async def test_a_deleted_ledger_stays_deleted_over_a_restart() -> None:
    """BookKeeper #4462: an append after the deletion made the ledger again."""
    house = House()
    await house.start()
    await house.stored(0, b"zero")
    await house.service.bury([LEDGER])
    assert (await house.stored(1, b"one")).status is Status.DELETED
    await house.crash(power=True)
    await house.start()
    assert (await house.stored(1, b"one", recovery=True)).status is Status.DELETED
    assert (await house.read(0, 0)).status is Status.DELETED
    await house.service.close()


async def test_a_full_disk_still_takes_fences_and_recovery_writes() -> None:
    house = House(
        full_ratio=0.01, full_ratio_low=0.005, full_free_bytes=1 * MIB, reserve_bytes=1_000
    )
    await house.start()
    await house.stored(0, b"zero")
    house.disk.total_bytes = (1 << 30) - house.disk.room_bytes() + 20_000
    await house.stored(1, b"one")
    assert (await house.stored(2, b"two")).status is Status.READ_ONLY
    assert (await house.service.fence(LEDGER, KEY)).status is Status.OK
    assert (await house.stored(2, b"two", recovery=True)).status is Status.OK
    await house.service.close()
