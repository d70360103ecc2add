"""Surplus: entries on bookies to which their ledger does not assign them are given back."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from engine.errors import BookieUnavailable, EngineError
from engine.metadata.bookies import DECOMMISSIONS
from engine.metadata.ledgers import Fragment, LedgerMetadata, State
from engine.metadata.repairs import RepairItem
from engine.repair.surplus import Ids, Surplus, elsewhere
from engine.run import Run
from engine.transport.contract import LedgerFacts, ReadReply, ReadRequest
from tests.engine.ledger.scripted import ScriptedBookie
from tests.engine.repair.yard import SETTINGS, Yard

QUIET_S, INTERVAL_S = 100, 60
QUICK = replace(SETTINGS, surplus_quiet_ms=1_000 * QUIET_S, surplus_interval_ms=1_000 * INTERVAL_S)


class Local:
    """A scripted bookie as its own node sees it."""

    def __init__(self, bookie: ScriptedBookie) -> None:
        self.bookie = bookie
        self.wrote_s: dict[int, float] = {}
        self.in_use = False
        self.facts: LedgerFacts | None = None

    @property
    def bookie_id(self) -> str:
        return self.bookie.bookie_id

    async def ledgers(self, above: int, limit: int) -> list[int]:
        return sorted(each for each in self.bookie.entries if each > above)[:limit]

    def written_s(self, ledger_id: int) -> float:
        return self.wrote_s.get(ledger_id, 0.0)

    def facts_of(self, ledger_id: int) -> LedgerFacts | None:
        return self.facts

    async def held(self, ledger_id: int, ids: Ids) -> list[Ids]:
        held = self.bookie.entries.get(ledger_id, {})
        return [(each, each) for each in sorted(held) if ids[0] <= each <= ids[1]]

    async def release(
        self,
        ledger_id: int,
        ranges: Sequence[Ids],
        unwritten_since_s: float,
        agreed: Callable[[], Awaitable[bool]],
    ) -> bool:
        if self.in_use or self.written_s(ledger_id) > unwritten_since_s or not await agreed():
            return False
        for first, last in ranges:
            for entry_id in range(first, last + 1):
                self.bookie.entries[ledger_id].pop(entry_id, None)
        return True


class Field:
    """A closed ledger of ten entries whose replica on `left` was moved to a spare bookie."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.ledger_id = -1
        self.left: ScriptedBookie
        self.surplus: Surplus
        self.local: Local
        self.facts: LedgerFacts

    @classmethod
    async def of(cls) -> "Field":
        field = cls(await Yard.of(4))
        yard = field.yard
        metadata = await yard.written(10)
        field.ledger_id = metadata.ledger_id
        name = metadata.fragments[0].ensemble[0]
        field.left = yard.transport.bookies[name]
        await yard.registry.store.create(f"/repair/decommission/{name}", b"moved")
        await yard.queue.request(field.ledger_id, RepairItem(leaving=(name,)))
        assert await yard.repairer(QUICK).run_once() == 1
        await yard.registry.store.delete(f"/repair/decommission/{name}")
        assert name not in (await field.metadata()).bookies() and field.held() == 10
        field.local = Local(field.left)
        field.local.facts = field.facts = field.left.facts[-1]
        field.surplus = Surplus(yard.workshop(QUICK), [field.local])
        yard.clock.now_s += QUIET_S
        return field

    def held(self) -> int:
        """How many entries the bookie holds that the replica has left."""
        return len(self.left.entries[self.ledger_id])

    async def metadata(self) -> LedgerMetadata:
        return await self.yard.metadata(self.ledger_id)

    async def change(self, change: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
        """Somebody writes the metadata."""
        ledgers = self.yard.client()._ledgers
        await ledgers.update(await ledgers.read(self.ledger_id), change)

    async def look(self, *, times: int = 1) -> None:
        """The node looks at its bookie, an interval after it did so before."""
        for _ in range(times):
            self.yard.clock.now_s += INTERVAL_S
            await self.surplus.look(self.local)


async def test_what_a_moved_replica_has_left_behind_is_given_back_after_two_looks() -> None:
    field = await Field.of()
    await field.look()
    assert field.held() == 10 and (await field.metadata()).released == 0
    await field.look()
    metadata = await field.metadata()
    assert field.held() == 0 and field.surplus.released == 10 and metadata.released == 1
    assert field.yard.lacking(metadata) == []
    await field.look(times=3)
    assert (await field.metadata()).released == 1


async def test_bookies_that_the_ledger_names_give_nothing_back() -> None:
    field = await Field.of()
    metadata = await field.metadata()
    for name in metadata.bookies():
        field.local = Local(field.yard.transport.bookies[name])
        await field.look(times=4)
    assert field.yard.lacking(metadata) == [] and (await field.metadata()).released == 0


async def test_what_follows_the_end_of_a_ledger_stays() -> None:
    """The metadata may be older than the end: then this is what was acknowledged since."""
    field = await Field.of()
    metadata = await field.metadata()
    bookie = field.yard.transport.bookies[metadata.fragments[0].ensemble[1]]
    held = bookie.entries[field.ledger_id]
    held[10] = msgspec.structs.replace(held[9], first=10)
    field.local = Local(bookie)
    field.local.facts = field.facts
    await field.look(times=4)
    assert sorted(held) == list(range(11))


@pytest.mark.parametrize("memory", ["nothing", "a later fragment", "another end", "another ledger"])
async def test_a_bookie_that_remembers_something_else_gives_nothing_back(memory: str) -> None:
    """As after metadata were put back from a backup, or the id was given to another ledger."""
    field = await Field.of()
    changed = {
        "nothing": None,
        "a later fragment": msgspec.structs.replace(field.facts, fragment_first=10),
        "another end": msgspec.structs.replace(field.facts, closed_last=12, closed_length=1),
        "another ledger": msgspec.structs.replace(
            field.facts, created_ms=field.facts.created_ms + 1
        ),
    }
    field.local.facts = changed[memory]
    await field.look(times=4)
    assert field.held() == 10
    field.local.facts = msgspec.structs.replace(field.facts, closed_last=9, closed_length=70)
    await field.look(times=2)
    assert field.held() == 0


async def test_nothing_is_given_back_of_a_ledger_that_waits_for_repair() -> None:
    """Whoever repairs it may have read the entries here, and go on for hours."""
    field = await Field.of()
    await field.look()
    await field.yard.queue.request(field.ledger_id, RepairItem(reasons=("look",)))
    await field.look(times=3)
    assert field.held() == 10
    held = await field.yard.queue.read(field.ledger_id)
    assert held is not None and await field.yard.queue.remove(held)
    await field.look()
    assert field.held() == 0


async def test_other_bytes_elsewhere_are_not_the_same_entries() -> None:
    field = await Field.of()
    name = (await field.metadata()).fragments[0].ensemble[1]
    held = field.yard.transport.bookies[name].entries[field.ledger_id]
    held[9] = Run.pack(field.ledger_id, 9, [b"other bytes"], lac=8, length_before=0)
    await field.look(times=4)
    assert field.held() == 10


async def test_a_bookie_that_is_decommissioned_and_still_runs_gives_back_what_was_moved() -> None:
    field = await Field.of()
    await field.yard.store.create(f"{DECOMMISSIONS}/{field.left.bookie_id}", b"it goes")
    await field.look(times=4)
    assert field.held() == 0


@pytest.mark.parametrize("known", [True, False])
async def test_an_entry_that_is_damaged_here_is_given_back_if_the_others_have_it(
    known: bool,
) -> None:
    field = await Field.of()
    if known:
        field.left.damaged.add((field.ledger_id, 9))
    else:
        field.left.corrupt(field.ledger_id, 9)
    await field.look(times=4)
    assert field.held() == 0
    field = await Field.of()
    field.left.corrupt(field.ledger_id, 9)
    name = (await field.metadata()).fragments[0].ensemble[1]
    field.yard.transport.bookies[name].corrupt(field.ledger_id, 9)
    await field.look(times=4)
    assert field.held() == 10


@pytest.mark.parametrize("state", ["open", "written", "in use", "repair is off", "restored"])
async def test_nothing_is_given_back_of_a_ledger_or_store_that_is_being_worked_on(
    state: str,
) -> None:
    field = await Field.of()
    store = field.yard.store
    if state == "open":
        writer = await field.yard.writer(3)
        field.ledger_id = writer.ledger_id
        spare = next(
            one for one in field.yard.bookies if one.bookie_id not in writer.metadata.bookies()
        )
        ensemble = field.yard.transport.bookies[next(iter(writer.metadata.bookies()))]
        spare.entries[field.ledger_id] = dict(ensemble.entries[field.ledger_id])
        field.left, field.local = spare, Local(spare)
        before = 3
    elif state == "written":
        field.local.wrote_s[field.ledger_id], before = field.yard.clock.now_s - 1, 10
    elif state == "in use":
        field.local.in_use, before = True, 10
    elif state == "repair is off":
        await field.yard.queue.disable("a test")
        before = 10
    else:
        await store.create("/restoring", msgspec.json.encode({"backup": "b", "finished": False}))
        before = 10
        with pytest.raises(EngineError):
            await field.look()
    if state == "written":
        await field.look()
        field.local.wrote_s[field.ledger_id] = field.yard.clock.now_s
        await field.look()
    elif state != "restored":
        await field.look(times=3)
    assert field.held() == before


async def test_a_write_between_two_looks_makes_the_first_one_void_and_no_later_one() -> None:
    field = await Field.of()
    await field.look()
    field.local.wrote_s[field.ledger_id] = field.yard.clock.now_s + 1
    field.yard.clock.now_s += QUIET_S + 1
    await field.look()
    assert field.held() == 10
    await field.look()
    assert field.held() == 0


async def test_a_change_of_the_metadata_between_two_looks_makes_the_first_one_void() -> None:
    field = await Field.of()
    for number in range(3):
        await field.look()
        custom = {"seen": b"%d" % number}
        await field.change(partial(msgspec.structs.replace, custom=custom))
        assert field.held() == 10
    await field.look(times=2)
    assert field.held() == 0


async def test_a_change_of_the_metadata_at_the_last_moment_keeps_the_entries() -> None:
    field = await Field.of()
    await field.look()
    inner = field.local.release

    async def release(
        ledger_id: int,
        ranges: Sequence[Ids],
        since_s: float,
        agreed: Callable[[], Awaitable[bool]],
    ) -> bool:
        ensemble = (await field.metadata()).fragments[0].ensemble
        fragment = Fragment(0, (field.left.bookie_id, *ensemble[1:]))
        await field.change(lambda now: msgspec.structs.replace(now, fragments=(fragment,)))
        return await inner(ledger_id, ranges, since_s, agreed)

    field.local.release = release  # type: ignore[method-assign,assignment]
    await field.look()
    assert field.held() == 10
    assert field.yard.lacking(await field.metadata()) == []


@pytest.mark.parametrize("fault", ["silent", "lacks the first", "lacks the last", "corrupt"])
async def test_entries_stay_while_a_bookie_that_should_have_them_does_not_show_them(
    fault: str,
) -> None:
    """As after metadata were put back from a backup: they say where the entries were once."""
    field = await Field.of()
    name = (await field.metadata()).fragments[0].ensemble[2]
    bookie = field.yard.transport.bookies[name]
    if fault == "silent":
        bookie.mute = True
    elif fault == "corrupt":
        bookie.corrupt(field.ledger_id, 9)
    else:
        del bookie.entries[field.ledger_id][0 if fault == "lacks the first" else 9]
    await field.look(times=4)
    assert field.held() == 10 and (await field.metadata()).released == 0
    if fault == "silent":
        bookie.mute = False
        await field.look()
        assert field.held() == 0


async def test_repair_that_found_the_entries_before_does_not_name_the_bookie() -> None:
    """It has read the old replica to the end, and stands still before it names it again."""
    field = await Field.of()
    yard = field.yard
    leaving = (await field.metadata()).fragments[0].ensemble[1]
    await yard.store.create(f"/repair/decommission/{leaving}", b"it goes")
    await yard.queue.request(field.ledger_id, RepairItem(leaving=(leaving,)))
    repairer = yard.repairer(QUICK)
    update, reached, gate = repairer._workshop.ledgers.update, asyncio.Event(), asyncio.Event()

    async def late(*given: object) -> object:
        reached.set()
        await gate.wait()
        return await update(*given)  # type: ignore[arg-type]

    repairer._workshop.ledgers.update = late  # type: ignore[method-assign,assignment]
    repairing = asyncio.ensure_future(repairer.run_once())
    await reached.wait()
    # Somebody takes it out of the queue, which keeps the entries here.
    held = await yard.queue.read(field.ledger_id)
    assert held is not None and await yard.queue.remove(held)
    await field.look(times=2)
    assert field.held() == 0
    gate.set()
    assert await repairing == 0
    assert field.left.bookie_id not in (await field.metadata()).bookies()
    yard.clock.now_s += 120
    await yard.queue.request(field.ledger_id, RepairItem(leaving=(leaving,)))
    await repairer.run_once()
    metadata = await field.metadata()
    assert leaving not in metadata.bookies() and yard.lacking(metadata) == []


async def test_a_store_that_fails_ends_the_look_and_the_next_one_begins_anew() -> None:
    field = await Field.of()
    field.surplus.start()
    await field.look()

    async def unavailable(request: ReadRequest) -> ReadReply:
        raise BookieUnavailable("away")

    for bookie in field.yard.bookies:
        bookie.read = unavailable  # type: ignore[method-assign]
    await field.look()
    assert field.held() == 10
    await field.surplus.close()


async def test_a_bookie_whose_ledger_is_gone_or_damaged_leaves_it_to_others() -> None:
    field = await Field.of()
    await field.look()
    await field.yard.client().delete_ledger(field.ledger_id)
    await field.look(times=3)
    assert field.held() == 10
    await field.yard.store.create(f"/ledgers/{field.ledger_id}", b"nonsense")
    await field.look(times=3)
    assert field.held() == 10


def test_elsewhere_is_all_but_the_fragments_that_name_the_bookie() -> None:
    fragments = Fragment(0, ("a", "b")), Fragment(5, ("b", "c")), Fragment(9, ("a", "c"))
    ledger = LedgerMetadata(7, 2, 2, 1, fragments, b"", 0, 0)
    closed = msgspec.structs.replace(ledger, state=State.CLOSED, last_entry=11, length=0)
    assert elsewhere(closed, "a") == [(5, 8)]
    assert elsewhere(closed, "b") == [(9, 11)]
    assert elsewhere(closed, "c") == [(0, 4)]
    assert elsewhere(closed, "d") == [(0, 11)]
    early = msgspec.structs.replace(closed, last_entry=6)
    assert elsewhere(early, "a") == [(5, 6)]
