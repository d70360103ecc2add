"""Rules of the worker: what is copied where, when a ledger is whole, and what stays queued."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest

from engine.metadata.ledgers import Fragment
from engine.metadata.repairs import RepairItem
from engine.repair.repairer import LOCKS
from engine.transport.contract import ReadReply, ReadRequest, Status
from tests.engine.ledger.scripted import ScriptedBookie, turns
from tests.engine.repair.yard import SETTINGS, Yard, given_up, queue


def count_reads(bookie: ScriptedBookie, reads: list[int]) -> None:
    inner = bookie.read

    async def read(request: ReadRequest) -> ReadReply:
        reads.append(request.first)
        return await inner(request)

    bookie.read = read  # type: ignore[method-assign]


async def test_a_lost_bookies_ledgers_are_copied_to_another_and_leave_the_queue() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written(10)
    gone = metadata.fragments[0].ensemble[1]
    await given_up(yard, gone)
    await queue(yard, metadata, gone)
    assert await yard.repairer().run_once() == 1
    repaired = await yard.metadata(metadata.ledger_id)
    assert gone not in repaired.bookies()
    assert repaired.last_entry == 9 and yard.lacking(repaired) == []
    assert await yard.queue.ids() == []


async def test_a_striped_ledger_gives_the_new_bookie_its_own_stripes_only() -> None:
    yard = await Yard.of(5)
    metadata = await yard.written(600, (4, 2, 2))
    gone = metadata.fragments[0].ensemble[2]
    await given_up(yard, gone)
    await queue(yard, metadata, gone)
    assert await yard.repairer().run_once() == 1
    repaired = await yard.metadata(metadata.ledger_id)
    assert yard.lacking(repaired) == []
    new = yard.transport.bookies[repaired.fragments[0].ensemble[2]]
    held = set(new.entries[metadata.ledger_id])
    assert held == {entry for entry in range(600) if 2 in metadata.write_set(entry)}


async def test_what_is_lost_while_much_waits_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    yard = await Yard.of(4)
    ledgers = [await yard.written(1) for _ in range(30)]
    for metadata in ledgers[1:]:
        await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("look",)))
    repairer = yard.repairer(replace(SETTINGS, ledgers_a_page=4, ledgers_at_once=1))
    tried: list[int] = []
    attempt = repairer._attempt

    async def counted(ledger_id: int) -> None:
        tried.append(ledger_id)
        if len(tried) == 2:
            await yard.queue.request(ledgers[0].ledger_id, RepairItem(lost=("b9",)))
        yard.clock.now_s += SETTINGS.look_interval_ms / 1000
        await attempt(ledger_id)

    monkeypatch.setattr(repairer, "_attempt", counted)
    assert await repairer.run_once() == 30
    assert tried.index(ledgers[0].ledger_id) == 4
    assert sorted(tried) == sorted(metadata.ledger_id for metadata in ledgers)


async def test_a_ledger_with_a_password_is_repaired_without_it() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written(10, password=b"secret")
    gone = metadata.fragments[0].ensemble[0]
    await given_up(yard, gone)
    await queue(yard, metadata, gone)
    assert await yard.repairer().run_once() == 1
    reader = await yard.client().open_ledger(metadata.ledger_id, password=b"secret")
    assert [entry.entry_id async for entry in reader.read(0, 9)] == list(range(10))


async def test_damaged_missing_and_corrupt_replicas_are_written_again_in_place() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(10)
    ledger_id = metadata.ledger_id
    first, second, third = (yard.transport.bookies[name] for name in metadata.bookies())
    del first.entries[ledger_id][3]
    second.damaged.add((ledger_id, 5))
    third.corrupt(ledger_id, 7)
    await yard.queue.request(ledger_id, RepairItem(reasons=("a scrub found it",)))
    assert len(yard.lacking(metadata)) == 3
    assert await yard.repairer().run_once() == 1
    assert yard.lacking(metadata) == []
    assert (await yard.metadata(ledger_id)).fragments == metadata.fragments


async def test_a_ledger_is_whole_only_when_every_replica_was_read_or_written_to_the_end() -> None:
    """One bookie does not answer: nothing is lacking as far as anybody knows, and yet."""
    yard = await Yard.of(4)
    metadata = await yard.written(10)
    mute = yard.transport.bookies[metadata.fragments[0].ensemble[2]]
    mute.mute = True
    await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("look",)))
    assert await yard.repairer().run_once() == 0
    item = await yard.item(metadata.ledger_id)
    assert item is not None and item.blocked == f"bookie {mute.bookie_id} does not answer"
    mute.mute = False
    yard.clock.now_s += 2
    assert await yard.repairer().run_once() == 1


async def test_a_silent_replica_is_asked_again_though_all_others_were_found_whole() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written(10)
    mute = yard.transport.bookies[metadata.fragments[0].ensemble[2]]
    del mute.entries[metadata.ledger_id][4]
    mute.mute = True
    await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("look",)))
    repairer = yard.repairer()
    for _ in range(3):
        assert await repairer.run_once() == 0
        yard.clock.now_s += 100
    mute.mute = False
    assert await repairer.run_once() == 1
    assert yard.lacking(metadata) == []


async def test_the_flag_of_a_degraded_ledger_falls_only_when_it_is_whole() -> None:
    yard = await Yard.of(3)
    writer = await yard.writer(5)
    gone = writer.metadata.fragments[0].ensemble[0]
    await yard.lose(gone)
    await writer.append_many([b"more"] * 5)
    await writer.close()
    repairer = yard.repairer()
    assert await repairer.run_once() == 0
    assert (await yard.metadata(writer.ledger_id)).degraded
    await yard.bring_back(gone)
    yard.clock.now_s += 100
    assert await repairer.run_once() == 1
    repaired = await yard.metadata(writer.ledger_id)
    assert not repaired.degraded and yard.lacking(repaired) == []


async def test_what_was_asked_for_during_a_repair_is_not_lost_with_its_end() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(10)
    await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("first",)))
    asked: list[str] = []
    bookie = yard.bookies[0]
    inner = bookie.read

    async def read(request: ReadRequest) -> ReadReply:
        if not asked:
            asked.append("second")
            await yard.client()._ledgers.request_repair(metadata.ledger_id, "second")
        return await inner(request)

    bookie.read = read  # type: ignore[method-assign]
    repairer = yard.repairer()
    assert await repairer.run_once() == 0
    item = await yard.item(metadata.ledger_id)
    assert item is not None and item.reasons == ("first", "second")
    yard.clock.now_s += 2
    assert await repairer.run_once() == 1


async def test_a_fragment_moves_only_after_its_new_bookie_has_all_of_it() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written(10)
    gone = metadata.fragments[0].ensemble[1]
    spare = next(one for one in yard.bookies if one.bookie_id not in metadata.bookies())
    spare.holding = True
    await given_up(yard, gone)
    await queue(yard, metadata, gone)
    running = asyncio.ensure_future(yard.repairer().run_once())
    await turns(200)
    assert spare.held and gone in (await yard.metadata(metadata.ledger_id)).bookies()
    spare.holding = False
    spare.release()
    assert await running == 1


async def test_a_bookie_that_takes_no_copies_is_not_named_and_another_is_tried() -> None:
    yard = await Yard.of(5)
    metadata = await yard.written(10)
    gone = metadata.fragments[0].ensemble[1]
    spares = [one for one in yard.bookies if one.bookie_id not in metadata.bookies()]
    for spare in spares:
        spare.append_status = Status.READ_ONLY
    await given_up(yard, gone)
    await queue(yard, metadata, gone)
    repairer = yard.repairer()
    assert await repairer.run_once() == 0
    assert (await yard.metadata(metadata.ledger_id)).fragments == metadata.fragments
    item = await yard.item(metadata.ledger_id)
    assert item is not None and "took no copy: READ_ONLY" in item.blocked
    spares[1].append_status = Status.OK
    for _ in range(6):
        yard.clock.now_s += 4
        await repairer.run_once()
    repaired = await yard.metadata(metadata.ledger_id)
    assert (
        spares[1].bookie_id in repaired.bookies() and spares[0].bookie_id not in repaired.bookies()
    )
    assert yard.lacking(repaired) == []


async def test_a_lost_bookie_that_alone_has_an_entry_is_never_given_up_for_it() -> None:
    """Write quorum 1 (#4872): nothing can be copied, nothing spins, nothing is forgotten."""
    yard = await Yard.of(3)
    metadata = await yard.written(600, (2, 1, 1))
    gone = metadata.fragments[0].ensemble[1]
    await given_up(yard, gone)
    await queue(yard, metadata, gone)
    repairer = yard.repairer()
    reads: list[int] = []
    for bookie in yard.bookies:
        count_reads(bookie, reads)
    for _ in range(50):
        assert await repairer.run_once() == 0
        yard.clock.now_s += 1
    assert (await yard.metadata(metadata.ledger_id)).fragments == metadata.fragments
    item = await yard.item(metadata.ledger_id)
    assert item is not None and "entry 256 cannot be read" in item.blocked
    assert repairer.counts.tries_blocked < 10
    await yard.bring_back(gone)
    yard.clock.now_s += 100
    assert await repairer.run_once() == 1
    assert yard.lacking(await yard.metadata(metadata.ledger_id)) == []


async def test_an_empty_ledger_with_a_write_quorum_of_one_simply_moves() -> None:
    yard = await Yard.of(2)
    metadata = await yard.written(0, (1, 1, 1))
    gone = metadata.fragments[0].ensemble[0]
    await given_up(yard, gone)
    await queue(yard, metadata, gone)
    assert await yard.repairer().run_once() == 1
    assert gone not in (await yard.metadata(metadata.ledger_id)).bookies()


async def test_too_few_bookies_block_a_ledger_with_words_and_a_new_one_frees_it() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(10)
    gone = metadata.fragments[0].ensemble[1]
    await given_up(yard, gone)
    await queue(yard, metadata, gone)
    repairer = yard.repairer()
    assert await repairer.run_once() == 0
    item = await yard.item(metadata.ledger_id)
    assert item is not None and item.blocked == f"no bookie can take the place of {gone}"
    await yard.add("b9")
    yard.clock.now_s += 2
    assert await repairer.run_once() == 1
    assert "b9" in (await yard.metadata(metadata.ledger_id)).bookies()


async def test_what_was_found_whole_is_not_read_again_while_a_ledger_waits() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(10)
    gone = metadata.fragments[0].ensemble[1]
    await given_up(yard, gone)
    await queue(yard, metadata, gone)
    repairer = yard.repairer()
    await repairer.run_once()
    reads: list[int] = []
    for bookie in yard.bookies:
        count_reads(bookie, reads)
    for _ in range(10):
        yard.clock.now_s += 70
        await repairer.run_once()
    assert repairer.counts.tries_blocked == 2 and reads == []


async def test_a_blocked_ledger_waits_longer_each_time_and_its_item_is_written_once() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(10)
    gone = metadata.fragments[0].ensemble[1]
    await given_up(yard, gone)
    await queue(yard, metadata, gone)
    repairer = yard.repairer()
    tries = []
    for second in range(200):
        before = repairer.counts.tries_blocked
        await repairer.run_once()
        if repairer.counts.tries_blocked > before:
            tries.append(second)
        yard.clock.now_s += 1
    pauses = [later - sooner for sooner, later in pairwise(tries)]
    assert pauses == sorted(pauses) and pauses[-1] >= 32
    held = await yard.queue.read(metadata.ledger_id)
    assert held is not None and held.version == 1


async def test_a_bookie_that_is_away_and_not_given_up_is_waited_for() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written(10)
    away = metadata.fragments[0].ensemble[1]
    await yard.lose(away)
    await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("look",)))
    repairer = yard.repairer()
    assert await repairer.run_once() == 0
    assert repairer.counts.entries_read == 0
    await yard.bring_back(away)
    yard.clock.now_s += 2
    assert await repairer.run_once() == 1
    assert (await yard.metadata(metadata.ledger_id)).fragments == metadata.fragments


async def test_a_ledger_under_another_nodes_lock_is_left_to_it() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(10)
    await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("look",)))
    other = yard.tree.session()
    await other.create(f"{LOCKS}/{metadata.ledger_id}", b"n2", ephemeral=True)
    repairer = yard.repairer()
    assert await repairer.run_once() == 0
    assert repairer.counts.entries_read == 0
    await other.close()
    yard.clock.now_s += 2
    assert await repairer.run_once() == 1
    assert await yard.store.children(LOCKS) == []


async def test_two_workers_on_one_ledger_do_no_harm() -> None:
    """A lost session may leave two that both believe to have the lock."""
    yard = await Yard.of(6)
    metadata = await yard.written(50)
    gone = metadata.fragments[0].ensemble[1]
    await given_up(yard, gone)
    await queue(yard, metadata, gone)
    one, two = yard.repairer(node="same"), yard.repairer(node="same")
    await asyncio.gather(one.run_once(), two.run_once())
    for _ in range(3):
        yard.clock.now_s += 10
        await asyncio.gather(one.run_once(), two.run_once())
    repaired = await yard.metadata(metadata.ledger_id)
    assert await yard.queue.ids() == []
    assert gone not in repaired.bookies() and yard.lacking(repaired) == []


async def test_nothing_is_begun_while_repair_is_switched_off() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(10)
    await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("look",)))
    await yard.queue.disable("maintenance")
    repairer = yard.repairer()
    assert await repairer.run_once() == 0
    assert repairer.counts.entries_read == 0
    await yard.queue.enable()
    assert await repairer.run_once() == 1


async def test_a_deleted_ledger_leaves_the_queue() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(3)
    await yard.client().delete_ledger(metadata.ledger_id)
    await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("late",)))
    await yard.repairer().run_once()
    assert await yard.queue.ids() == []


async def test_a_repair_under_way_stops_at_its_next_step_when_repair_is_switched_off() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(40)
    await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("look",)))
    repairer = yard.repairer()
    reads: list[int] = []
    bookie = yard.bookies[0]
    inner = bookie.read

    async def read(request: ReadRequest) -> ReadReply:
        reads.append(request.first)
        if len(reads) == 2:
            await yard.queue.disable("maintenance")
            repairer._switched()
        reply = await inner(request)
        return msgspec.structs.replace(reply, runs=reply.runs[:4], missing=None)

    bookie.read = read  # type: ignore[method-assign]
    assert await repairer.run_once() == 0
    assert len(reads) == 2 and repairer.counts.tries_blocked == 0
    await yard.queue.enable()
    assert await repairer.run_once() == 1
    assert len(reads) == 10 and reads == sorted(set(reads))


async def test_a_returned_bookie_is_not_replaced_though_it_was_given_up() -> None:
    """It came back between the auditor's looks: registered now is not lost."""
    yard = await Yard.of(4)
    metadata = await yard.written(10)
    name = metadata.fragments[0].ensemble[1]
    await given_up(yard, name)
    await queue(yard, metadata, name)
    await yard.bring_back(name)
    assert await yard.repairer().run_once() == 1
    assert (await yard.metadata(metadata.ledger_id)).fragments == metadata.fragments


async def test_a_ledger_whose_fragments_changed_under_the_repair_is_looked_at_again() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written(10)
    await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("look",)))
    old = metadata.fragments[0].ensemble
    spare = next(one for one in yard.bookies if one.bookie_id not in old)
    reads: list[int] = []

    async def move_to_an_empty_bookie() -> None:
        ledgers = yard.client()._ledgers
        moved = Fragment(0, (spare.bookie_id, *old[1:]))
        held = await ledgers.read(metadata.ledger_id)
        await ledgers.update(held, lambda now: msgspec.structs.replace(now, fragments=(moved,)))

    inner = yard.transport.bookies[old[0]].read

    async def read(request: ReadRequest) -> ReadReply:
        if not reads:
            await move_to_an_empty_bookie()
        reads.append(request.first)
        return await inner(request)

    yard.transport.bookies[old[0]].read = read  # type: ignore[method-assign]
    repairer = yard.repairer()
    assert await repairer.run_once() == 0
    yard.clock.now_s += 2
    assert await repairer.run_once() == 1
    assert yard.lacking(await yard.metadata(metadata.ledger_id)) == []
