"""A repair that could not end goes on where it was: nothing is copied twice or left out."""

import asyncio

import msgspec

from engine.errors import BookieUnavailable, MetadataUnavailable
from engine.transport.contract import ReadReply, ReadRequest
from tests.engine.ledger.scripted import ScriptedBookie, turns
from tests.engine.repair.yard import Yard, given_up, queue


def watch_reads(bookie: ScriptedBookie) -> list[tuple[int, int]]:
    """The ranges that a bookie is asked for from now on."""
    reads: list[tuple[int, int]] = []
    inner = bookie.read

    async def read(request: ReadRequest) -> ReadReply:
        reads.append((request.first, request.last))
        return await inner(request)

    bookie.read = read  # type: ignore[method-assign]
    return reads


def answer_shortly(bookie: ScriptedBookie) -> None:
    """Let each read have ten entries at most, as if they were big."""
    inner = bookie.read

    async def read(request: ReadRequest) -> ReadReply:
        reply = await inner(request)
        if len(reply.runs) <= 10:
            return reply
        return msgspec.structs.replace(reply, runs=reply.runs[:10], missing=None, unknown=None)

    bookie.read = read  # type: ignore[method-assign]


async def test_an_entry_that_nobody_can_read_costs_one_copy_and_then_a_look() -> None:
    yard = await Yard.of(12)
    metadata = await yard.written(600)
    lost, *others = metadata.fragments[0].ensemble
    damage = [(yard.transport.bookies[name].damaged, (metadata.ledger_id, 300)) for name in others]
    for damaged, entry in damage:
        damaged.add(entry)
    await given_up(yard, lost)
    await queue(yard, metadata, lost)
    repairer = yard.repairer()
    for _ in range(4):
        assert await repairer.run_once() == 0
        yard.clock.now_s += 1_000
    written = repairer.counts.entries_written
    assert written == 599
    held = [each for each in yard.bookies if len(each.entries.get(metadata.ledger_id, {})) > 500]
    assert len(held) == 4
    item = await yard.item(metadata.ledger_id)
    assert item is not None and "entry 300 cannot be read" in item.blocked

    reads = watch_reads(yard.transport.bookies[others[0]])
    assert await repairer.run_once() == 0
    assert reads == [(300, 300)]
    for damaged, entry in damage:
        damaged.discard(entry)
    yard.clock.now_s += 1_000
    assert await repairer.run_once() == 1
    assert repairer.counts.entries_written == written + 1
    assert yard.lacking(await yard.metadata(metadata.ledger_id)) == []


async def test_the_neighbours_of_an_entry_that_nobody_can_read_are_mended() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(200)
    for name in metadata.fragments[0].ensemble:
        yard.transport.bookies[name].damaged.add((metadata.ledger_id, 3))
    for name in metadata.fragments[0].ensemble[1:]:
        kept = yard.transport.bookies[name].entries[metadata.ledger_id]
        for entry_id in range(4, 200):
            del kept[entry_id]
    await queue(yard, metadata)
    assert await yard.repairer().run_once() == 0
    assert {entry_id for _, entry_id in yard.lacking(metadata)} == {3}


async def test_a_replica_that_was_silent_for_a_while_is_seen_to_only_there() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written(200)
    lost, shaky, steady = metadata.fragments[0].ensemble
    yard.transport.bookies[steady].damaged.add((metadata.ledger_id, 150))
    kept = yard.transport.bookies[shaky].entries[metadata.ledger_id]
    del kept[150]
    for entry_id in range(40, 60):
        del kept[entry_id]
    await given_up(yard, lost)
    await queue(yard, metadata, lost)
    for each in yard.bookies:
        answer_shortly(each)
    bookie = yard.transport.bookies[shaky]
    inner = bookie.read

    async def read(request: ReadRequest) -> ReadReply:
        if 20 <= request.first < 80:
            raise BookieUnavailable("away for a moment")
        return await inner(request)

    bookie.read = read  # type: ignore[method-assign]
    repairer = yard.repairer()
    assert await repairer.run_once() == 0
    assert not set(range(40, 60)) & set(kept)
    bookie.read = inner  # type: ignore[method-assign]
    yard.clock.now_s += 1_000
    reads = watch_reads(bookie)
    await repairer.run_once()
    assert set(range(40, 60)) <= set(kept)
    assert reads and all(first >= 20 and last < 160 for first, last in reads)


async def test_a_copy_that_was_refused_goes_to_another_bookie_whole() -> None:
    yard = await Yard.of(5)
    metadata = await yard.written(30)
    lost = metadata.fragments[0].ensemble[0]
    await given_up(yard, lost)
    await queue(yard, metadata, lost)
    spare = [each for each in yard.bookies if each.bookie_id not in metadata.bookies()]
    for each in spare:
        each.mute = True
    repairer = yard.repairer()
    assert await repairer.run_once() == 0
    for each in spare:
        each.mute = False
    for _ in range(3):
        yard.clock.now_s += 1_000
        await repairer.run_once()
    assert await yard.queue.ids() == []
    assert yard.lacking(await yard.metadata(metadata.ledger_id)) == []


async def test_an_event_beside_the_switch_stops_nothing() -> None:
    """#2302: each new session's first event stopped the copy under way, which began anew."""
    yard = await Yard.of(5)
    metadata = await yard.written(200)
    lost = metadata.fragments[0].ensemble[0]
    await given_up(yard, lost)
    await queue(yard, metadata, lost)
    repairer = yard.repairer()
    for bookie in yard.bookies:

        async def read(request: ReadRequest, bookie: ScriptedBookie = bookie) -> ReadReply:
            repairer._switched()
            assert not repairer._disabled
            return await ScriptedBookie.read(bookie, request)

        bookie.read = read  # type: ignore[method-assign]
    assert await repairer.run_once() == 1
    await repairer.close()


async def test_the_switch_is_asked_until_the_store_answers() -> None:
    yard = await Yard.of(3)
    repairer = yard.repairer()
    disabled = repairer._workshop.queue.disabled
    refusals = 3

    async def refused() -> str | None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise MetadataUnavailable("cut off")
        return await disabled()

    repairer._workshop.queue.disabled = refused  # type: ignore[method-assign]
    await yard.queue.disable("by hand")
    repairer._switched()
    async with asyncio.timeout(20):
        while not repairer._disabled:
            await turns(1)
    assert refusals == 0
    await repairer.close()
