"""Fences: at once in memory, in order in the journal, and never claimed before they are durable."""

import asyncio

from engine.bookie.scan import Found, JournalScan
from engine.bookie.segment import Kind
from engine.run import NO_ENTRY
from engine.transport.contract import Status
from engine.transport.repair_key import key_hash_of, repair_key
from tests.engine.bookie import stable
from tests.engine.bookie.stable import KEY, OTHER_KEY, Stable, append, ask, ids_of, read, run_of


def kinds(stable_: Stable) -> list[int]:
    records = JournalScan(stable_.disk, stable_.index.position()).records()
    return [found.header.kind for found in records if isinstance(found, Found)]


async def test_a_fenced_ledger_refuses_a_normal_append_and_takes_a_recovery_append() -> None:
    service = await Stable().start()
    await append(service, run_of(7, 0, 3))
    assert (await service.fence(7, KEY)).status is Status.OK
    assert (await append(service, run_of(7, 4, 5))).status is Status.FENCED
    assert (await append(service, run_of(7, 4, 5), recovery=True)).status is Status.OK
    assert ids_of(await read(service, 7, 0, 9)) == [0, 1, 2, 3, 4, 5]


async def test_an_append_after_the_fence_request_is_refused_once_the_fence_is_durable() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    yard.hold()
    fencing = asyncio.ensure_future(service.fence(7, KEY))
    await stable.turns()
    late = ask(service, run_of(7, 4, 5))
    await stable.turns()
    # "Fenced" is a claim as well: it may not be heard before the fence is on the disk.
    assert not fencing.done() and not late.replies
    yard.release()
    assert (await late.reply()).status is Status.FENCED
    assert (await fencing).status is Status.OK
    assert ids_of(await read(service, 7, 0, 9)) == [0, 1, 2, 3]


async def test_a_fenced_read_sees_every_append_that_was_queued_before_it() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    yard.hold()
    queued = ask(service, run_of(7, 4, 5))
    reading = asyncio.ensure_future(read(service, 7, 4, 9, fence_key=KEY))
    await stable.turns()
    assert not reading.done()
    yard.release()
    assert (await queued.reply()).status is Status.OK
    reply = await reading
    assert ids_of(reply) == [4, 5] and reply.missing == (6, 9)


async def test_a_negative_fenced_read_waits_until_the_fence_is_durable() -> None:
    yard = Stable()
    service = await yard.start()
    yard.hold()
    reading = asyncio.ensure_future(read(service, 7, 0, 9, fence_key=KEY))
    await stable.turns()
    assert not reading.done()
    yard.release()
    assert (await reading).missing == (0, 9)
    service = await yard.crash()
    assert (await append(service, run_of(7, 0, 0))).status is Status.FENCED


async def test_a_fenced_read_of_a_fenced_ledger_waits_for_recovery_writes_on_their_way() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 0))
    await service.fence(7, KEY)
    yard.hold()
    writing = ask(service, run_of(7, 1, 1), recovery=True)
    reading = asyncio.ensure_future(read(service, 7, 1, 1, fence_key=KEY))
    await stable.turns()
    assert not reading.done()
    yard.release()
    assert ids_of(await reading) == [1]
    assert (await writing.reply()).status is Status.OK


async def test_two_fences_wait_for_one_record() -> None:
    yard = Stable()
    service = await yard.start()
    yard.hold()
    fences = [asyncio.ensure_future(service.fence(7, KEY)) for _ in range(2)]
    await stable.turns()
    assert not any(fence.done() for fence in fences)
    yard.release()
    assert [(await fence).status for fence in fences] == [Status.OK, Status.OK]
    assert (await service.fence(7, KEY)).status is Status.OK
    assert kinds(yard).count(Kind.FENCE) == 1


async def test_a_fence_survives_a_power_loss_with_the_index_lost() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3, lac=-1))
    await service.fence(7, KEY)
    service = await yard.crash()
    assert (await append(service, run_of(7, 4, 5))).status is Status.FENCED


async def test_a_fence_outlives_a_checkpoint_of_the_index() -> None:
    yard = Stable()
    service = await yard.start()
    await service.fence(7, KEY)
    await service.close()
    service = await yard.start()
    assert (await append(service, run_of(7, 0, 0))).status is Status.FENCED


async def test_a_ledger_never_seen_becomes_known_as_fenced_with_the_key() -> None:
    yard = Stable()
    service = await yard.start()
    reply = await service.fence(7, KEY)
    assert (reply.status, reply.lac) == (Status.OK, NO_ENTRY)
    service = await yard.crash()
    assert (await service.fence(7, OTHER_KEY)).status is Status.UNAUTHORIZED
    run = run_of(7, 0, 0)
    assert (await append(service, run, facts=None, recovery=True)).status is Status.OK


async def test_a_wrong_key_neither_appends_nor_fences() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    for _ in range(2):
        assert (await append(service, run_of(7, 4, 4), key=OTHER_KEY)).status is Status.UNAUTHORIZED
        assert (await service.fence(7, OTHER_KEY)).status is Status.UNAUTHORIZED
        reply = await read(service, 7, 4, 4, fence_key=OTHER_KEY)
        assert reply.status is Status.UNAUTHORIZED
        assert (await append(service, run_of(7, 0, 3))).status is Status.OK
        service = await yard.crash()
    assert (await append(service, run_of(7, 4, 4))).status is Status.OK


async def test_facts_with_another_key_than_the_one_shown_are_refused() -> None:
    service = await Stable().start()
    facts = stable.facts_of(7, OTHER_KEY)
    assert (await append(service, run_of(7, 0, 0), facts=facts)).status is Status.UNAUTHORIZED
    await append(service, run_of(7, 0, 0))
    assert (await append(service, run_of(7, 1, 1), facts=facts)).status is Status.UNAUTHORIZED


async def test_a_deleted_ledger_is_never_written_again() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    await append(service, run_of(8, 0, 3))
    await service.bury([7])
    for _ in range(2):
        assert (await append(service, run_of(7, 0, 3))).status is Status.DELETED
        assert (await service.fence(7, KEY)).status is Status.DELETED
        assert (await read(service, 7, 0, 3)).status is Status.DELETED
        assert ids_of(await read(service, 8, 0, 3)) == [0, 1, 2, 3]
        assert await service.ledgers(-1, 10) == [8]
        service = await yard.crash()


async def test_an_append_queued_ahead_of_the_tombstone_leaves_nothing() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    yard.hold()
    burying = asyncio.ensure_future(service.bury([7]))
    await stable.turns(3)
    late = ask(service, run_of(7, 4, 5))
    await stable.turns()
    yard.release()
    assert (await late.reply()).status is Status.DELETED
    await burying
    service = await yard.crash()
    assert (await read(service, 7, 4, 5)).status is Status.DELETED
    assert yard.index.find(7, 0, 100) == []


async def test_repairs_key_fences_and_writes_back_and_appends_nothing_new() -> None:
    """Repair knows no password, only what the metadata keep of it."""
    yard = Stable()
    service = await yard.start()
    key = repair_key(key_hash_of(KEY))
    assert (await append(service, run_of(7, 0, 3), key=key)).status is Status.UNAUTHORIZED
    assert (await append(service, run_of(7, 0, 3), key=key, recovery=True)).status is Status.OK
    assert (await append(service, run_of(7, 4, 5), key=key)).status is Status.UNAUTHORIZED
    assert (await append(service, run_of(7, 4, 5))).status is Status.OK
    assert (await service.fence(7, repair_key(key_hash_of(OTHER_KEY)))).status is not Status.OK
    assert (await service.fence(7, key)).status is Status.OK
    # A ledger first seen through repair knows its own key, and no other one.
    assert (await service.fence(8, key)).status is Status.OK
    service = await yard.crash()
    assert (await service.fence(8, OTHER_KEY)).status is Status.UNAUTHORIZED
    assert (await service.fence(8, KEY)).status is Status.OK
