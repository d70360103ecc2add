"""Open ledgers that wait for repair: writers that are well are left alone, others are closed."""

import msgspec

from engine.metadata.bookies import LOST
from engine.metadata.ledgers import State
from tests.engine.ledger.scripted import turns
from tests.engine.repair.yard import OPEN_GRACE_MS, Yard, given_up, queue


async def test_a_writer_that_is_well_is_left_alone_and_its_old_fragments_are_repaired() -> None:
    yard = await Yard.of(5)
    writer = await yard.writer(5)
    gone = writer.metadata.fragments[0].ensemble[0]
    await yard.lose(gone)
    await turns(100)
    await writer.append_many([b"more"] * 5)
    assert gone not in writer.metadata.fragments[-1].ensemble
    await yard.store.create(f"{LOST}/{gone}", b"0")
    repairer = yard.repairer()
    for _ in range(10):
        await repairer.run_once()
        yard.clock.now_s += OPEN_GRACE_MS / 1000
    metadata = await yard.metadata(writer.ledger_id)
    assert metadata.state is State.OPEN and gone not in metadata.bookies()
    await writer.append(b"and more")
    assert await writer.close() == 10
    assert yard.lacking(await yard.metadata(writer.ledger_id)) == []


async def test_a_writer_that_goes_on_without_a_replacement_is_not_fenced() -> None:
    yard = await Yard.of(3)
    writer = await yard.writer(5)
    gone = writer.metadata.fragments[0].ensemble[0]
    await given_up(yard, gone)
    await queue(yard, writer.metadata, gone)
    await writer.append(b"more")
    repairer = yard.repairer()
    for _ in range(10):
        await repairer.run_once()
        yard.clock.now_s += OPEN_GRACE_MS / 1000
    assert await writer.append(b"and more") == 6
    item = await yard.item(writer.ledger_id)
    assert item is not None and "no bookie can take the place" in item.blocked


async def test_an_abandoned_ledger_is_fenced_only_after_the_grace_time() -> None:
    yard = await Yard.of(4)
    writer = await yard.writer(5)
    writer.abandon(RuntimeError("gone"))  # type: ignore[arg-type]
    gone = writer.metadata.fragments[0].ensemble[0]
    await given_up(yard, gone)
    await queue(yard, writer.metadata, gone)
    repairer = yard.repairer()
    await repairer.run_once()
    yard.clock.now_s += OPEN_GRACE_MS / 1000 - 5
    await repairer.run_once()
    assert (await yard.metadata(writer.ledger_id)).state is State.OPEN
    assert not any(bookie.fenced for bookie in yard.bookies)
    for _ in range(5):
        yard.clock.now_s += 20
        await repairer.run_once()
    repaired = await yard.metadata(writer.ledger_id)
    assert repaired.closed and repaired.last_entry == 4
    assert gone not in repaired.bookies() and yard.lacking(repaired) == []
    assert repairer.counts.ledgers_fenced == 1


async def test_what_is_past_the_last_fragments_start_of_an_open_ledger_is_never_copied() -> None:
    yard = await Yard.of(5)
    writer = await yard.writer(5)
    gone = writer.metadata.fragments[0].ensemble[0]
    await given_up(yard, gone)
    await queue(yard, writer.metadata, gone)
    before = [list(bookie.requests) for bookie in yard.bookies]
    await yard.repairer().run_once()
    after = [bookie.requests for bookie in yard.bookies]
    copies = [
        request
        for one, other in zip(before, after, strict=True)
        for request in other[len(one) :]
        if request[0] == "recovery"
    ]
    assert copies == []


async def test_a_recovery_that_nobody_finished_is_finished_after_the_grace_time() -> None:
    yard = await Yard.of(3)
    writer = await yard.writer(5)
    writer.abandon(RuntimeError("gone"))  # type: ignore[arg-type]
    ledgers = yard.client()._ledgers
    held = await ledgers.read(writer.ledger_id)
    await ledgers.update(held, lambda now: msgspec.structs.replace(now, state=State.IN_RECOVERY))
    auditor = yard.auditor()
    await auditor.look()
    assert await yard.queue.ids() == [writer.ledger_id]
    repairer = yard.repairer()
    for _ in range(6):
        await repairer.run_once()
        yard.clock.now_s += 20
    assert (await yard.metadata(writer.ledger_id)).closed
    assert await yard.queue.ids() == []
