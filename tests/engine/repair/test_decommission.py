"""Emptying a bookie: nothing new comes, everything leaves, what blocks is told, and it ends."""

import asyncio

import pytest

from engine.errors import InvalidRequest, NotEnoughBookies
from engine.metadata.ledgers import State
from engine.repair.decommission import Decommission
from engine.repair.scrub import Scrub, ScrubMark, read_mark
from engine.repair.status import repair_status
from tests.engine.ledger.scripted import turns
from tests.engine.repair.yard import OPEN_GRACE_MS, Yard


async def work(yard: Yard, rounds: int = 8) -> None:
    """Let a worker see to what is queued."""
    repairer = yard.repairer()
    for _ in range(rounds):
        await repairer.run_once()
        yard.clock.now_s += 20


async def test_a_bookie_that_is_to_go_gets_no_new_ledger() -> None:
    yard = await Yard.of(3)
    await Decommission(yard.workshop(), "b1").begin()
    with pytest.raises(NotEnoughBookies):
        await yard.written(1, (3, 3, 3))


async def test_all_ledgers_leave_a_bookie_that_is_to_go_and_then_it_ends() -> None:
    yard = await Yard.of(5)
    ledgers = [await yard.written(number, (3, 2, 2)) for number in (0, 1, 5, 300)]
    emptying = Decommission(yard.workshop(), "b1")
    await emptying.begin()
    first = await emptying.look()
    assert first.left == first.total == sum("b1" in one.bookies() for one in ledgers)
    assert all(blocking.why == "waits for its turn" for blocking in first.blocking)
    await work(yard, 2)
    done = await emptying.run()
    assert (done.left, done.total, done.blocking) == (0, first.total, ())
    for metadata in ledgers:
        now = await yard.metadata(metadata.ledger_id)
        assert "b1" not in now.bookies() and yard.lacking(now) == []


async def test_a_writer_leaves_a_bookie_that_is_to_go_and_is_not_fenced() -> None:
    yard = await Yard.of(4)
    writer = await yard.writer(5)
    name = writer.metadata.fragments[0].ensemble[0]
    emptying = Decommission(yard.workshop(), name)
    await emptying.begin()
    await turns(200)
    assert name not in writer.metadata.fragments[-1].ensemble
    await emptying.look()
    await work(yard)
    assert (await emptying.look()).left == 0
    assert (await yard.metadata(writer.ledger_id)).state is State.OPEN
    assert await writer.append(b"more") == 5


async def test_an_empty_open_ledger_without_a_writer_does_not_keep_a_bookie_for_ever() -> None:
    """#3338, #3974: a decommission that never ended."""
    yard = await Yard.of(4)
    writer = await yard.writer(0)
    writer.abandon(RuntimeError("gone"))  # type: ignore[arg-type]
    name = writer.metadata.fragments[0].ensemble[0]
    emptying = Decommission(yard.workshop(), name)
    await emptying.begin()
    await emptying.look()
    await work(yard, 1)
    (blocking,) = (await emptying.look()).blocking
    assert blocking.ledger_id == writer.ledger_id and "OPEN" in blocking.why
    yard.clock.now_s += OPEN_GRACE_MS / 1000
    await work(yard)
    assert (await emptying.look()).left == 0
    assert (await yard.metadata(writer.ledger_id)).closed


async def test_a_damaged_copy_that_is_the_only_one_keeps_its_bookie_in_the_ensemble() -> None:
    """A bookie that cannot read an entry today may be read with other tools tomorrow."""
    yard = await Yard.of(3)
    metadata = await yard.written(10, (1, 1, 1))
    (name,) = metadata.bookies()
    yard.transport.bookies[name].damaged.add((metadata.ledger_id, 4))
    emptying = Decommission(yard.workshop(), name)
    await emptying.begin()
    await emptying.look()
    await work(yard, 3)
    (blocking,) = (await emptying.look()).blocking
    assert blocking.why == f"entry 4 cannot be read: {name} cannot tell for damage"
    assert (await yard.metadata(metadata.ledger_id)).fragments == metadata.fragments


async def test_what_blocks_a_decommission_is_told_ledger_by_ledger() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written()
    emptying = Decommission(yard.workshop(), "b1")
    await emptying.begin()
    await emptying.look()
    await work(yard, 1)
    (blocking,) = (await emptying.look()).blocking
    assert blocking.ledger_id == metadata.ledger_id
    assert blocking.why == "no bookie can take the place of b1"


async def test_a_decommission_says_that_repair_is_off() -> None:
    yard = await Yard.of(4)
    await yard.written()
    emptying = Decommission(yard.workshop(), "b1")
    await emptying.begin()
    await yard.queue.disable("rack work")
    found = await emptying.look()
    assert {each.why for each in found.blocking} <= {"repair is off (rack work)"}
    assert len(found.blocking) == found.left
    await yard.queue.enable()
    assert all("off" not in each.why for each in (await emptying.look()).blocking)


async def test_a_bookie_that_never_was_cannot_go_and_one_may_stay_after_all() -> None:
    yard = await Yard.of(3)
    with pytest.raises(InvalidRequest):
        await Decommission(yard.workshop(), "nobody").run()
    emptying = Decommission(yard.workshop(), "b1")
    await emptying.begin()
    assert (await repair_status(yard.store)).leaving_bookies == ("b1",)
    await emptying.cancel()
    await yard.written(1, (3, 3, 3))


# Scrub


async def test_a_scrub_finds_what_is_lacking_damaged_and_corrupt_and_writes_nothing() -> None:
    yard = await Yard.of(3)
    ledgers = [await yard.written() for _ in range(4)]
    names = [f"b{number}" for number in range(3)]
    one, two, three = (yard.transport.bookies[name] for name in names)
    del one.entries[ledgers[0].ledger_id][3]
    two.damaged.add((ledgers[1].ledger_id, 5))
    three.corrupt(ledgers[2].ledger_id, 9)
    writes = [len(bookie.requests) for bookie in yard.bookies]
    seen: list[tuple[int, int]] = []
    mark = await Scrub(yard.workshop()).run(
        progress=lambda mark, total: seen.append((mark.ledgers, total))
    )
    assert mark.faulty == tuple(one.ledger_id for one in ledgers[:3])
    assert (mark.ledgers, mark.faults, mark.entries, mark.silent) == (4, 3, 40, 0)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)] and mark.finished
    assert [len(bookie.requests) for bookie in yard.bookies] == writes
    assert await yard.queue.ids() == [one.ledger_id for one in ledgers[:3]]
    await work(yard, 1)
    assert [yard.lacking(one) for one in ledgers] == [[], [], [], []]


async def test_a_scrub_goes_on_where_it_was_interrupted() -> None:
    yard = await Yard.of(3)
    for _ in range(5):
        await yard.written(3)

    def stop_at_three(mark: ScrubMark, total: int) -> None:
        if mark.ledgers == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await Scrub(yard.workshop()).run(progress=stop_at_three)
    halfway = await read_mark(yard.store)
    assert halfway is not None and (halfway.last_ledger, halfway.finished) == (3, False)
    seen: list[int] = []
    mark = await Scrub(yard.workshop()).run(
        progress=lambda mark, total: seen.append(mark.last_ledger)
    )
    assert seen == [4, 5] and (mark.ledgers, mark.finished) == (5, True)
    again = await Scrub(yard.workshop()).run()
    assert again.ledgers == 5


async def test_a_bookie_that_does_not_answer_is_no_fault_of_its_ledgers() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written()
    yard.bookies[0].mute = True
    mark = await Scrub(yard.workshop()).run_for([metadata.ledger_id, 999])
    assert (mark.ledgers, mark.faults, mark.silent) == (1, 0, 1)
    assert await yard.queue.ids() == [] and await read_mark(yard.store) is None


# What an operator sees


async def test_the_status_tells_everything_at_a_glance() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written()
    auditor = yard.auditor("the auditor")
    await yard.lose("b1")
    await yard.look(auditor, 20)
    await work(yard, 1)
    await yard.queue.disable("maintenance")
    status = await repair_status(yard.store)
    assert (status.disabled, status.auditor) == ("maintenance", "the auditor")
    assert status.lost_bookies == ("b1",) and status.queued == 1
    (waiting,) = status.ledgers
    assert waiting.ledger_id == metadata.ledger_id and not waiting.under_way
    assert waiting.reason == "bookie b1 is lost"
    assert waiting.blocked == "no bookie can take the place of b1"


async def test_a_request_in_plain_words_is_read_as_its_own_reason() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written()
    await yard.store.create(f"/repair/ledgers/{metadata.ledger_id}", b"by an older program")
    status = await repair_status(yard.store)
    assert status.ledgers[0].reason == "by an older program"
    assert await yard.repairer().run_once() == 1


async def test_requests_from_many_at_once_are_all_kept() -> None:
    yard = await Yard.of(3)
    ledgers = yard.client()._ledgers
    await asyncio.gather(*(ledgers.request_repair(7, f"reason {n}") for n in range(5)))
    item = await yard.item(7)
    assert item is not None and sorted(item.reasons) == [f"reason {n}" for n in range(5)]
