"""Rules of the auditor: who it is, whom it gives up, what it asks for and takes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from engine.errors import MetadataUnavailable
from engine.metadata.bookies import DECOMMISSIONS, LOST
from engine.metadata.ledgers import Held, LedgerMetadata
from engine.metadata.memory import MemoryTree
from engine.metadata.repairs import RepairItem
from engine.repair.auditor import AUDITOR, Auditor
from engine.repair.doubt import Doubts
from engine.repair.pace import Pace
from engine.repair.survey import survey
from tests.engine.ledger.scripted import LoopClock
from tests.engine.repair.yard import GRACE_MS, SETTINGS, Yard

GRACE_S = GRACE_MS / 1_000


async def test_a_bookie_that_is_away_for_less_than_the_grace_time_costs_nothing() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written()
    auditor = yard.auditor()
    await auditor.look()
    name = metadata.fragments[0].ensemble[0]
    await yard.lose(name)
    await yard.look(auditor, GRACE_S - 4)
    await yard.bring_back(name)
    await yard.look(auditor, GRACE_S)
    assert await yard.queue.ids() == [] and await yard.store.children(LOST) == []


async def test_a_lost_bookies_ledgers_are_queued_and_no_others() -> None:
    yard = await Yard.of(6)
    ledgers = [await yard.written() for _ in range(12)]
    name = "b2"
    auditor = yard.auditor()
    await yard.lose(name)
    await yard.look(auditor, GRACE_S + 8)
    assert await yard.store.children(LOST) == [name]
    wanted = [metadata.ledger_id for metadata in ledgers if name in metadata.bookies()]
    assert 0 < len(wanted) < 12 and await yard.queue.ids() == wanted
    item = await yard.item(wanted[0])
    assert item is not None and item.text == "bookie b2 is lost"


async def test_a_bookie_that_comes_back_takes_its_requests_with_it_and_no_others() -> None:
    """#2766: a bookie was back, and everything was copied nevertheless."""
    yard = await Yard.of(4)
    first, second = await yard.written(), await yard.written()
    name = next(iter(set(first.bookies()) & set(second.bookies())))
    auditor = yard.auditor()
    await yard.lose(name)
    await yard.look(auditor, GRACE_S + 8)
    await yard.queue.request(second.ledger_id, RepairItem(reasons=("a scrub found it",)))
    await yard.bring_back(name)
    await yard.look(auditor, 4)
    assert await yard.queue.ids() == [second.ledger_id]
    item = await yard.item(second.ledger_id)
    assert item is not None and (item.lost, item.reasons) == ((), ("a scrub found it",))
    assert await yard.store.children(LOST) == [] and auditor.ledgers_taken_back == 1


async def test_a_pause_of_the_auditor_is_no_absence_of_a_bookie() -> None:
    yard = await Yard.of(4)
    await yard.written()
    auditor = yard.auditor()
    await yard.look(auditor, 8)
    await yard.lose("b1")
    await auditor.look()
    yard.clock.now_s += 100 * GRACE_S
    await auditor.look()
    assert await yard.store.children(LOST) == []
    await yard.look(auditor, GRACE_S + 8)
    assert await yard.store.children(LOST) == ["b1"]


async def test_there_is_one_auditor_and_its_lost_session_ends_its_term() -> None:
    yard = await Yard.of(3)
    session = yard.tree.session()
    one = Auditor(yard.workshop(store=session), "one")
    two = yard.auditor("two")
    await one.look()
    await two.look()
    assert [one.elected, two.elected] == [True, False]
    session.expire()
    await two.look()
    one._workshop.store._store = yard.tree.session()
    await one.look()
    assert [one.elected, two.elected] == [False, True]
    found = await yard.store.get(AUDITOR)
    assert found is not None and found.value == b"two"


async def test_degraded_ledgers_that_nobody_queued_are_found() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written()
    ledgers = yard.client()._ledgers
    held = await ledgers.read(metadata.ledger_id)
    await ledgers.update(held, lambda now: msgspec.structs.replace(now, degraded=True))
    auditor = yard.auditor()
    await auditor.look()
    assert await yard.queue.ids() == [metadata.ledger_id]


async def test_what_is_queued_already_is_not_written_again() -> None:
    """A thousand nodes of one reason are still one reason (#3541: churn filled a disk)."""
    yard = await Yard.of(4)
    metadata = await yard.written()
    auditor = yard.auditor()
    await yard.lose(metadata.fragments[0].ensemble[0])
    await yard.look(auditor, GRACE_S + 8)
    held = await yard.queue.read(metadata.ledger_id)
    await yard.look(auditor, 2 * SETTINGS.audit_interval_ms / 1000 / 100)
    auditor._surveyed_s = None
    await auditor.look()
    again = await yard.queue.read(metadata.ledger_id)
    assert held is not None and again == held and auditor.surveys >= 3


async def test_nothing_is_looked_at_while_repair_is_switched_off() -> None:
    yard = await Yard.of(4)
    await yard.written()
    auditor = yard.auditor()
    await yard.queue.disable("maintenance")
    await yard.lose("b1")
    await yard.look(auditor, 5 * GRACE_S)
    assert await yard.store.children(LOST) == [] and await yard.queue.ids() == []
    await yard.queue.enable()
    await yard.look(auditor, GRACE_S - 4)
    assert await yard.store.children(LOST) == []


async def test_a_survey_reads_a_page_at_a_time() -> None:
    yard = await Yard.of(3)
    for _ in range(7):
        await yard.written(1)
    workshop = yard.workshop(replace(SETTINGS, ledgers_a_page=2))
    reading: list[int] = []
    most: list[int] = []
    inner = workshop.ledgers.read

    async def read(ledger_id: int) -> Held:
        reading.append(ledger_id)
        most.append(len(reading))
        try:
            await asyncio.sleep(0)
            return await inner(ledger_id)
        finally:
            reading.remove(ledger_id)

    workshop.ledgers.read = read  # type: ignore[method-assign]
    assert len([metadata async for metadata in survey(workshop)]) == 7
    assert max(most) == 2


async def test_the_ledgers_of_a_lost_bookie_are_queued_before_the_next_survey(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard = await Yard.of(6)
    written = [await yard.written(1) for _ in range(20)]
    opened = await yard.writer(3)
    workshop = yard.workshop(replace(SETTINGS, ledgers_a_page=4))
    auditor = Auditor(workshop, "n1")
    await auditor.look()
    assert auditor.surveys == 1
    later = await yard.written(1)
    read: list[int] = []
    inner = workshop.ledgers.read

    async def reading(ledger_id: int) -> Held:
        read.append(ledger_id)
        return await inner(ledger_id)

    def failing(*_: object) -> AsyncIterator[LedgerMetadata]:
        raise MetadataUnavailable("before it has read any ledger")

    monkeypatch.setattr(workshop.ledgers, "read", reading)
    monkeypatch.setattr("engine.repair.auditor.survey", failing)
    await yard.lose("b1")
    for _ in range(2):
        with contextlib.suppress(MetadataUnavailable):
            await yard.look(auditor, GRACE_S + 4)
    named = [each.ledger_id for each in written if "b1" in each.bookies()]
    assert 0 < len(named) < 20
    assert read == [*named, opened.ledger_id, later.ledger_id]
    queued = [each for each in (*written, opened.metadata, later) if "b1" in each.bookies()]
    assert await yard.queue.ids() == [each.ledger_id for each in queued]


async def test_bookies_are_looked_at_while_a_long_survey_runs() -> None:
    yard = await Yard.of(5)
    for _ in range(30):
        await yard.written(1)
    workshop = yard.workshop(replace(SETTINGS, ledgers_a_page=2))
    auditor = Auditor(workshop, "n1")
    inner = workshop.ledgers.read
    given_up: list[tuple[int, list[str]]] = []

    async def slow(ledger_id: int) -> Held:
        yard.clock.now_s += 2
        given_up.append((auditor.surveys, await yard.store.children(LOST)))
        return await inner(ledger_id)

    await yard.lose("b1")
    workshop.ledgers.read = slow  # type: ignore[method-assign]
    await auditor.look()
    assert auditor.surveys == 1 and (0, ["b1"]) in given_up


class Slow:
    """An auditor whose surveys take a second for each ledger, of 30 ledgers on five bookies."""

    def __init__(self, yard: Yard, ledgers: list[LedgerMetadata]) -> None:
        self.yard = yard
        self.ledgers = ledgers
        workshop = yard.workshop(replace(SETTINGS, ledgers_a_page=2))
        self.auditor = Auditor(workshop, "n1")
        self.reads = 0
        self.at: dict[int, Callable[[], Awaitable[object]]] = {}
        """What happens at a read, by its number."""
        self._read = workshop.ledgers.read
        workshop.ledgers.read = self._slowly  # type: ignore[method-assign]

    @classmethod
    async def of(cls) -> "Slow":
        yard = await Yard.of(5)
        return cls(yard, [await yard.written(1) for _ in range(30)])

    async def _slowly(self, ledger_id: int) -> Held:
        self.yard.clock.now_s += 1
        self.reads += 1
        happens = self.at.pop(self.reads, None)
        if happens is not None:
            await happens()
        return await self._read(ledger_id)

    async def look_for_half_an_hour(self) -> None:
        end_s = self.yard.clock.now_s + 1_800
        while self.yard.clock.now_s < end_s:
            self.yard.clock.now_s += 4
            await self.auditor.look()

    async def not_queued(self, name: str) -> set[int]:
        """The ledgers that name a bookie and are not in the queue."""
        named = {each.ledger_id for each in self.ledgers if name in each.bookies()}
        assert named
        return named - set(await self.yard.queue.ids())


async def test_a_bookie_that_is_given_up_during_the_first_survey_is_not_forgotten() -> None:
    slow = await Slow.of()
    await slow.yard.lose("b1")
    await slow.auditor.look()
    assert slow.auditor.surveys == 1 and await slow.yard.store.children(LOST) == ["b1"]
    await slow.look_for_half_an_hour()
    assert await slow.not_queued("b1") == set()


async def test_a_bookie_that_is_decommissioned_during_a_survey_is_not_forgotten() -> None:
    slow = await Slow.of()
    slow.at[16] = partial(slow.yard.store.create, f"{DECOMMISSIONS}/b1", b"")
    await slow.auditor.look()
    await slow.look_for_half_an_hour()
    assert await slow.not_queued("b1") == set()


async def test_a_bookie_that_returns_and_is_lost_again_during_a_survey_is_not_forgotten() -> None:
    slow = await Slow.of()
    await slow.auditor.look()
    await slow.yard.lose("b1")
    await slow.look_for_half_an_hour()
    await slow.yard.bring_back("b1")
    slow.at[slow.reads + 2] = partial(slow.yard.lose, "b1")
    await slow.auditor.look()
    await slow.look_for_half_an_hour()
    assert await slow.yard.store.children(LOST) == ["b1"]
    assert await slow.not_queued("b1") == set()


async def test_ledgers_that_were_moved_since_a_survey_to_a_bookie_that_is_lost_are_found() -> None:
    slow = await Slow.of()
    await slow.auditor.look()
    ledgers = slow.yard.client()._ledgers
    held = await ledgers.read(
        next(each.ledger_id for each in slow.ledgers if "b0" not in each.bookies())
    )
    first = held.metadata.fragments[0]
    moved = msgspec.structs.replace(first, ensemble=("b0", *first.ensemble[1:]))
    await ledgers.update(held, lambda now: msgspec.structs.replace(now, fragments=(moved,)))
    await slow.yard.lose("b0")
    slow.auditor._surveyed_s = None
    await slow.auditor.look()
    await slow.look_for_half_an_hour()
    assert held.metadata.ledger_id in await slow.yard.queue.ids()


async def test_nothing_more_is_queued_when_repair_is_switched_off() -> None:
    slow = await Slow.of()
    await slow.auditor.look()
    await slow.yard.lose("b1")
    slow.at[slow.reads + 4] = partial(slow.yard.queue.disable, "by hand")
    reads = slow.reads
    await slow.look_for_half_an_hour()
    assert 4 <= slow.reads - reads <= 6


async def test_a_survey_reads_only_so_many_ledgers_in_a_second() -> None:
    yard = await Yard.of(3)
    for _ in range(7):
        await yard.written(1)
    workshop = yard.workshop(replace(SETTINGS, ledgers_a_page=2, metadata_reads_a_second=400))
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    workshop.reading = Pace(LoopClock(), 400)
    assert len([metadata async for metadata in survey(workshop)]) == 7
    assert loop.time() - begun_s >= 6 / 400


# Doubt


class Doubtful:
    """A bookie of this node, as the doubts see it."""

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.damaged = True

    async def clear_damage(self) -> None:
        self.damaged = False


async def test_a_doubt_is_cleared_when_every_ledger_of_the_bookie_was_looked_at() -> None:
    yard = await Yard.of(4)
    ledgers = [await yard.written() for _ in range(4)]
    local = Doubtful("b1")
    on_it = [metadata for metadata in ledgers if "b1" in metadata.bookies()]
    lacking = on_it[-1]
    yard.transport.bookies["b1"].damaged.add((lacking.ledger_id, 4))
    doubts = Doubts(yard.workshop(), [local])
    await doubts.look()
    assert await yard.queue.ids() == [metadata.ledger_id for metadata in on_it]
    await doubts.look()
    assert local.damaged
    await yard.repairer().run_once()
    await doubts.look()
    assert [local.damaged, yard.lacking(lacking)] == [False, []]


async def test_an_open_ledger_on_a_doubtful_bookie_keeps_its_doubt_until_it_is_closed() -> None:
    yard = await Yard.of(3)
    writer = await yard.writer()
    local = Doubtful("b1")
    doubts = Doubts(yard.workshop(), [local])
    repairer = yard.repairer()
    for _ in range(5):
        await doubts.look()
        await repairer.run_once()
        yard.clock.now_s += 70
    assert local.damaged and not (await yard.metadata(writer.ledger_id)).closed
    await writer.close()
    for _ in range(3):
        yard.clock.now_s += 70
        await repairer.run_once()
        await doubts.look()
    assert not local.damaged


async def test_a_cluster_without_ledgers_has_nothing_to_repair() -> None:
    yard = Yard(MemoryTree("cluster"))
    auditor = yard.auditor()
    await auditor.look()
    assert auditor.elected and auditor.surveys == 1
