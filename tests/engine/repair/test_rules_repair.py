"""Rules of repair, each shown by the harm that its absence would do."""

from dataclasses import replace
from typing import Any

import msgspec

from engine.metadata.bookies import LOST
from engine.metadata.contract import Page
from engine.metadata.ledgers import Fragment, State
from engine.metadata.memory import FaultyStore
from engine.metadata.repairs import HeldItem, RepairItem
from engine.repair.auditor import AUDITOR, Auditor
from engine.repair.claim import Claim
from engine.repair.doubt import Doubts
from engine.repair.ledger_repair import extents
from engine.repair.survey import survey
from engine.transport.contract import AppendReply, ReadReply, ReadRequest, Status
from tests.engine.repair.yard import GRACE_MS, OPEN_GRACE_MS, SETTINGS, Yard, given_up, queue

GRACE_S = GRACE_MS / 1_000


async def test_another_bookies_acknowledgement_moves_no_fragment() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written()
    lost = metadata.fragments[0].ensemble[0]
    spare = next(each for each in yard.bookies if each.bookie_id not in metadata.bookies())
    await given_up(yard, lost)
    await queue(yard, metadata, lost)
    inner = spare.append

    def answer_as_another(runs: Any, reply: Any, **more: Any) -> None:
        def told(answer: AppendReply) -> None:
            reply(msgspec.structs.replace(answer, bookie_id="another"))

        inner(runs, told, **more)

    spare.append = answer_as_another  # type: ignore[method-assign]
    await yard.repairer().run_once()
    assert lost in (await yard.metadata(metadata.ledger_id)).bookies()


async def test_a_bookie_that_can_tell_nothing_of_a_ledger_is_written_to() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written()
    bookie = yard.transport.bookies[metadata.fragments[0].ensemble[1]]
    kept = bookie.entries.pop(metadata.ledger_id)
    inner = bookie.read

    async def read(request: ReadRequest) -> ReadReply:
        reply = await inner(request)
        if request.ledger_id in bookie.entries:
            return reply
        return msgspec.structs.replace(reply, status=Status.UNKNOWN, missing=None, runs=())

    bookie.read = read  # type: ignore[method-assign]
    await queue(yard, metadata)
    assert await yard.repairer().run_once() == 1
    assert bookie.entries[metadata.ledger_id].keys() == kept.keys()


async def test_what_was_found_whole_is_read_again_when_somebody_asked_anew() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written()
    await queue(yard, metadata)
    repairer = yard.repairer()
    remove = repairer._workshop.queue.remove

    async def harmed_meanwhile(held: HeldItem) -> bool:
        if not repairer.counts.tries_blocked:
            del yard.bookies[0].entries[metadata.ledger_id][4]
            item = RepairItem(reasons=("a scrub found it",))
            await yard.queue.request(metadata.ledger_id, item)
        return await remove(held)

    repairer._workshop.queue.remove = harmed_meanwhile  # type: ignore[method-assign]
    assert await repairer.run_once() == 0
    yard.clock.now_s += 1_000
    assert await repairer.run_once() == 1
    assert yard.lacking(metadata) == []


async def test_a_claim_that_passed_to_another_is_not_taken_from_it() -> None:
    yard = await Yard.of(0)
    first, second = yard.tree.session(), yard.tree.session()
    claim = Claim(first, AUDITOR, "n1")
    assert await claim.hold()
    await first.delete(AUDITOR)
    assert await Claim(second, AUDITOR, "n2").hold()
    await claim.release()
    assert await Claim(second, AUDITOR, "n2").still()


class Doubtful:
    """A bookie that cannot tell what it lacks."""

    bookie_id = "b0"
    damaged = True

    async def clear_damage(self) -> None:
        self.damaged = False


async def test_a_new_doubt_asks_anew_for_what_was_asked_before() -> None:
    """A try under way may have read the ledger before the damage was there."""
    yard = await Yard.of(3)
    metadata = await yard.written()
    await yard.queue.request(metadata.ledger_id, RepairItem(doubtful=("b0",)))
    held = await yard.queue.read(metadata.ledger_id)
    assert held is not None
    bookie = Doubtful()
    await Doubts(yard.workshop(), [bookie]).look()
    assert not await yard.queue.remove(held) and bookie.damaged


async def test_a_recovery_that_has_begun_gets_a_grace_time_of_its_own() -> None:
    yard = await Yard.of(4)
    writer = await yard.writer(5)
    writer.abandon(RuntimeError("gone"))  # type: ignore[arg-type]
    gone = writer.metadata.fragments[0].ensemble[0]
    await given_up(yard, gone)
    await queue(yard, writer.metadata, gone)
    repairer = yard.repairer()
    await repairer.run_once()
    yard.clock.now_s += OPEN_GRACE_MS / 1000 - 5
    ledgers = repairer._workshop.ledgers
    await ledgers.update(
        await ledgers.read(writer.ledger_id),
        lambda current: msgspec.structs.replace(current, state=State.IN_RECOVERY),
    )
    await repairer.run_once()
    yard.clock.now_s += 10
    await repairer.run_once()
    assert (await yard.metadata(writer.ledger_id)).state is State.IN_RECOVERY
    for _ in range(5):
        yard.clock.now_s += OPEN_GRACE_MS / 1000
        await repairer.run_once()
    assert (await yard.metadata(writer.ledger_id)).closed


class LaggingStore(FaultyStore):
    """A store that lags behind until it is told to catch up."""

    behind = True

    async def page(self, prefix: str, above: int = -1) -> Page:
        return Page([], more=False) if self.behind else await super().page(prefix, above)

    async def sync(self) -> None:
        self.behind = False


async def test_a_survey_sees_every_ledger_that_there_was_when_it_began() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written()
    workshop = yard.workshop(store=LaggingStore(yard.tree.session()))
    assert [found.ledger_id async for found in survey(workshop)] == [metadata.ledger_id]


async def repair_auditor(yard: Yard) -> bytes | None:
    found = await yard.store.get(AUDITOR)
    return None if found is None else found.value


async def test_absences_of_an_earlier_term_do_not_count() -> None:
    yard = await Yard.of(4)
    await yard.written()
    auditor = yard.auditor()
    await yard.lose("b1")
    await yard.look(auditor, GRACE_S - 2)
    key = await yard.store.get(AUDITOR)
    assert key is not None
    await yard.store.set(AUDITOR, b"another", key.version)
    await auditor.look()
    assert not auditor.elected
    await yard.store.set(AUDITOR, key.value, key.version + 1)
    await yard.look(auditor, 4)
    assert await repair_auditor(yard) == key.value
    assert await yard.store.children(LOST) == []


async def test_a_bookie_that_is_to_go_is_seen_to_before_the_next_audit() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written()
    auditor = yard.auditor()
    await auditor.look()
    name = metadata.fragments[0].ensemble[0]
    await yard.store.create(f"/repair/decommission/{name}", b"by hand")
    await auditor.look()
    item = await yard.item(metadata.ledger_id)
    assert item is not None and item.leaving == (name,)


async def test_an_item_that_changed_while_a_bookie_was_welcomed_ends_no_look() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written()
    name = metadata.fragments[0].ensemble[0]
    await given_up(yard, name)
    wanted = RepairItem(lost=(name,), reasons=("a scrub found it",))
    await yard.queue.request(metadata.ledger_id, wanted)
    await yard.bring_back(name)
    store = FaultyStore(yard.tree.session())
    auditor = Auditor(yard.workshop(store=store), "n1")

    async def nothing() -> None:
        return

    async def ask_anew() -> None:
        await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("another reason",)))

    for intrusion in (nothing, nothing, ask_anew):
        store.before_write(intrusion)
    await auditor.look()
    item = await yard.item(metadata.ledger_id)
    assert item is not None and "another reason" in item.reasons and auditor.surveys == 1


async def test_no_extent_goes_past_the_end_of_a_closed_ledger() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(10)
    first = metadata.fragments[0]
    later = tuple(Fragment(start, first.ensemble) for start in (8, 12, 20))
    found = extents(msgspec.structs.replace(metadata, fragments=(first, *later)))
    assert [(extent.fragment.first, extent.last) for extent in found] == [
        (0, 7),
        (8, 9),
        (12, 9),
        (20, 9),
    ]


async def test_a_fragment_that_changed_under_the_copy_is_not_moved() -> None:
    yard = await Yard.of(6)
    metadata = await yard.written()
    lost = metadata.fragments[0].ensemble[0]
    await given_up(yard, lost)
    await queue(yard, metadata, lost)
    repairer = yard.repairer()
    ledgers = repairer._workshop.ledgers
    kept = metadata.fragments[0].ensemble
    spares = [each.bookie_id for each in yard.bookies if each.bookie_id not in kept]
    meddled = False

    async def meddle(request: ReadRequest) -> ReadReply:
        nonlocal meddled
        if not meddled:
            meddled = True
            fragment = Fragment(0, (kept[0], kept[1], spares[0]))
            await ledgers.update(
                await ledgers.read(metadata.ledger_id),
                lambda current: msgspec.structs.replace(current, fragments=(fragment,)),
            )
        return await inner(request)

    bookie = yard.transport.bookies[kept[1]]
    inner = bookie.read
    bookie.read = meddle  # type: ignore[method-assign]
    assert await repairer.run_once() == 0
    assert repairer.counts.fragments_moved == 0
    item = await yard.item(metadata.ledger_id)
    assert item is not None and item.blocked == "its metadata changed meanwhile"


async def test_repairs_writes_keep_to_the_pace() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written()
    lost = metadata.fragments[0].ensemble[0]
    await given_up(yard, lost)
    await queue(yard, metadata, lost)
    repairer = yard.repairer(replace(SETTINGS, copy_bytes_a_second=1))
    spent: list[int] = []

    async def spend(amount: int) -> None:
        spent.append(amount)

    repairer._workshop.pace.spend = spend  # type: ignore[method-assign]
    await repairer.run_once()
    assert sum(spent) >= 3 * repairer.counts.bytes_written > 0
