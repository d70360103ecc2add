"""One value that cannot be read, and one failure that nobody thought of, do not end repair."""

import asyncio
import logging
import random
from dataclasses import replace

import msgspec
import pytest

from engine.errors import MetadataUnavailable
from engine.metadata.bookies import AVAILABLE, LOST
from engine.metadata.ledgers import LEDGERS
from engine.metadata.memory import FaultyStore
from engine.metadata.repairs import REPAIRS
from engine.repair.auditor import Auditor
from engine.repair.decommission import Decommission, DecommissionProgress
from engine.repair.doubt import Doubts
from engine.repair.keeping_on import keep_on
from engine.repair.node import RepairNode
from engine.repair.repairer import Repairer
from engine.repair.scrub import SCRUB, ScrubMark, read_mark
from engine.repair.status import repair_status
from tests.engine.ledger.scripted import turns
from tests.engine.repair.yard import GRACE_MS, SETTINGS, HandClock, Yard, given_up, queue

GRACE_S = GRACE_MS / 1_000
BAD = [b"\xc1", msgspec.msgpack.encode({"format_major": 99}), b"\x80"]


async def spoil(yard: Yard, ledger_id: int, value: bytes) -> bytes:
    """Let nobody read a ledger's metadata; returns what they were."""
    key = f"{LEDGERS}/{ledger_id}"
    found = await yard.store.get(key)
    assert found is not None
    await yard.store.set(key, value, found.version)
    return found.value


@pytest.mark.parametrize("value", BAD)
async def test_a_ledger_whose_metadata_cannot_be_read_ends_no_survey(value: bytes) -> None:
    yard = await Yard.of(4)
    bad, good = await yard.written(), await yard.written()
    kept = await spoil(yard, bad.ledger_id, value)
    name = good.fragments[0].ensemble[0]
    auditor = yard.auditor()
    await yard.lose(name)
    await yard.look(auditor, GRACE_S + 8)
    assert auditor.surveys > 0 and await yard.queue.ids() == [good.ledger_id]
    assert (await repair_status(yard.store)).unreadable == (bad.ledger_id,)
    await spoil(yard, bad.ledger_id, kept)
    yard.clock.now_s += SETTINGS.audit_interval_ms / 1000
    await auditor.look()
    assert (await repair_status(yard.store)).unreadable == ()


async def test_a_bookie_is_not_empty_while_a_ledger_cannot_be_read() -> None:
    yard = await Yard.of(4)
    bad = await yard.written()
    going = next(f"b{index}" for index in range(4) if f"b{index}" not in bad.bookies())
    kept = await spoil(yard, bad.ledger_id, b"\xc1")
    decommission = Decommission(yard.workshop(), going)
    await decommission.begin()
    found = await decommission.look()
    assert found.left == 1 and found.blocking[0].ledger_id == bad.ledger_id
    await spoil(yard, bad.ledger_id, kept)
    assert (await decommission.look()).left == 0


async def test_a_decommission_tells_what_keeps_it_from_looking() -> None:
    yard = await Yard.of(4)
    store = FaultyStore(yard.tree.session())
    store.lose_request()
    told: list[DecommissionProgress] = []
    workshop = yard.workshop(replace(SETTINGS, look_interval_ms=5), store=store)
    async with asyncio.timeout(10):
        await Decommission(workshop, "b0").run(told.append)
    assert "MetadataUnavailable" in told[0].trouble and not told[-1].trouble


class Doubtful:
    """A bookie that cannot tell what it lacks."""

    bookie_id = "b0"
    damaged = True

    async def clear_damage(self) -> None:
        self.damaged = False


async def test_a_doubt_is_not_cleared_while_a_ledger_cannot_be_read() -> None:
    yard = await Yard.of(3)
    bad = await yard.written()
    kept = await spoil(yard, bad.ledger_id, b"\xc1")
    bookie = Doubtful()
    doubts = Doubts(yard.workshop(), [bookie])
    await doubts.look()
    assert bookie.damaged
    await spoil(yard, bad.ledger_id, kept)
    await doubts.look()
    assert await yard.queue.ids() == [bad.ledger_id]
    assert bookie.damaged


async def test_a_request_that_cannot_be_read_is_a_request_all_the_same() -> None:
    yard = await Yard.of(4)
    metadata, other = await yard.written(), await yard.written()
    await yard.store.create(f"{REPAIRS}/{metadata.ledger_id}", b'{"lost": 7}')
    await yard.store.create(f"{REPAIRS}/notes", b"what somebody wrote")
    await queue(yard, other)
    assert await yard.repairer().run_once() == 2
    assert await yard.queue.ids() == []


async def test_a_name_that_is_no_ledger_ends_no_survey() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written()
    await yard.store.create(f"{LEDGERS}/notes", b"what somebody wrote")
    auditor = yard.auditor()
    await yard.lose(metadata.fragments[0].ensemble[0])
    await yard.look(auditor, GRACE_S + 8)
    assert await yard.queue.ids() == [metadata.ledger_id]


async def test_a_bookie_whose_registration_cannot_be_read_is_there_and_takes_nothing() -> None:
    yard = await Yard.of(4)
    await yard.written()
    await yard.store.set(f"{AVAILABLE}/b1", b"\xc1", 0)
    auditor = yard.auditor()
    await yard.look(auditor, GRACE_S + 8)
    assert await yard.store.children(LOST) == [] and auditor.surveys > 0
    assert not (await yard.registry.available())["b1"].writable


class Stumbling(Repairer):
    """A worker with a defect."""

    stumbles = 3

    async def run_once(self) -> int:
        if self.stumbles:
            self.stumbles -= 1
            raise ValueError("a defect")
        return await super().run_once()


async def test_a_loop_that_fails_unexpectedly_is_told_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    yard = await Yard.of(4)
    metadata = await yard.written()
    lost = metadata.fragments[0].ensemble[0]
    await given_up(yard, lost)
    await queue(yard, metadata, lost)
    workshop = yard.workshop(replace(SETTINGS, look_interval_ms=1))
    worker = Stumbling(workshop, "n1")
    worker.start()
    async with asyncio.timeout(10):
        while await yard.queue.ids():
            await turns(1)
    await worker.close()
    assert workshop.mishaps == 3 and "a defect" in caplog.text


async def test_one_ledgers_defect_is_not_the_other_ledgers_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL)
    yard = await Yard.of(4)
    bad, good = await yard.written(), await yard.written()
    await queue(yard, bad)
    await queue(yard, good)
    worker = yard.repairer()
    read = worker._workshop.ledgers.read

    async def stumble(ledger_id: int) -> object:
        if ledger_id == bad.ledger_id:
            raise ValueError("a defect")
        return await read(ledger_id)

    monkeypatch.setattr(worker._workshop.ledgers, "read", stumble)
    assert await worker.run_once() == 1
    assert await yard.queue.ids() == [bad.ledger_id] and worker._workshop.mishaps == 1


class CutOff(FaultyStore):
    """A store that fails when a survey begins, so many times."""

    times = 0

    async def sync(self) -> None:
        if self.times:
            self.times -= 1
            raise MetadataUnavailable("cut off")
        await super().sync()


async def test_a_survey_that_was_cut_short_is_owed_at_the_next_look() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written()
    store = CutOff(yard.tree.session())
    auditor = Auditor(yard.workshop(store=store), "n1")
    await auditor.look()
    await yard.lose(metadata.fragments[0].ensemble[0])
    store.times = 1
    with pytest.raises(MetadataUnavailable):
        await yard.look(auditor, GRACE_S + 8)
    assert await yard.queue.ids() == []
    await auditor.look()
    assert await yard.queue.ids() == [metadata.ledger_id]


async def test_a_survey_that_ended_when_repair_was_switched_off_is_owed_when_it_is_on() -> None:
    yard = await Yard.of(4)
    ledgers = [await yard.written() for _ in range(3)]
    auditor = Auditor(yard.workshop(replace(SETTINGS, ledgers_a_page=1)), "n1")
    await auditor.look()
    name = ledgers[0].fragments[0].ensemble[0]
    named = [each.ledger_id for each in ledgers if name in each.bookies()]
    await yard.lose(name)
    auditor._index = None
    goes_on = auditor._goes_on

    async def switched_off() -> bool:
        await yard.queue.disable("by hand")
        return await goes_on()

    auditor._goes_on = switched_off  # type: ignore[method-assign]
    await yard.look(auditor, GRACE_S + 8)
    assert await yard.queue.ids() == [] and await yard.store.children(LOST) == [name]
    auditor._goes_on = goes_on  # type: ignore[method-assign]
    await yard.queue.enable()
    await auditor.look()
    assert await yard.queue.ids() == named


async def test_failing_surveys_keep_no_bookie_from_being_given_up() -> None:
    yard = await Yard.of(4)
    await yard.written()
    store = CutOff(yard.tree.session())
    store.times = 1_000_000
    auditor = Auditor(yard.workshop(store=store), "n1")
    await yard.lose("b0")
    for _ in range(int(GRACE_S)):
        with pytest.raises(MetadataUnavailable):
            await auditor.look()
        yard.clock.now_s += 4.0
    assert await yard.store.children(LOST) == ["b0"]


async def test_the_next_scrub_is_due_by_the_end_of_the_last_one_whoever_restarts() -> None:
    yard = await Yard.of(3)
    await yard.written()
    interval_ms = 1_000_000
    settings = replace(SETTINGS, look_interval_ms=5, scrub_interval_ms=interval_ms)

    async def marked(clock: HandClock, ends: bool) -> ScrubMark | None:
        """What a node leaves that lives for a moment, or until it has scrubbed."""
        before = await read_mark(yard.store)
        node = RepairNode(
            store=yard.tree.session(),
            transport=yard.transport,
            clock=clock,
            rng=random.Random(round(clock.now_s)),
            settings=settings,
        )
        looks = 0
        disabled = node.workshop.queue.disabled

        async def looked() -> str | None:
            nonlocal looks
            looks += node.auditor.elected
            return await disabled()

        node.workshop.queue.disabled = looked  # type: ignore[method-assign]
        await node.start()
        async with asyncio.timeout(20):
            while True:
                mark = await read_mark(yard.store)
                if mark is not None and mark.finished and mark != before:
                    break
                if looks > 8 and not ends:
                    break
                await turns(1)
        await node.close()
        return await read_mark(yard.store)

    clock = HandClock()
    first = await marked(clock, True)
    assert first is not None and first.finished_ms == clock.wall_ms()
    clock.now_s += 0.9 * interval_ms / 1000
    assert await marked(clock, False) == first
    clock.now_s += 0.2 * interval_ms / 1000
    second = await marked(clock, True)
    assert second is not None and second.started_ms > first.finished_ms


async def test_a_scrubs_mark_that_cannot_be_read_is_none() -> None:
    yard = await Yard.of(3)
    await yard.store.create(SCRUB, b"7")
    assert await read_mark(yard.store) is None


async def test_a_loop_that_is_kept_on_ends_when_it_is_cancelled() -> None:
    yard = await Yard.of(0)
    task = keep_on(yard.workshop(), "a loop", asyncio.Event().wait)  # type: ignore[arg-type]
    await turns(3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
