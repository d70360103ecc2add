"""Replicas that had to share a machine are parted by repair when another one has room."""

import asyncio
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from engine.ledger.placement import Placement
from engine.ledger.quorum import Quorums
from engine.ledger.spreading import cost_of
from engine.ledger.writer import LedgerWriter
from engine.metadata.bookies import DECOMMISSIONS, Registration
from engine.metadata.ledgers import Fragment, LedgerMetadata
from engine.metadata.repairs import RepairItem
from engine.repair import sharing
from engine.repair.auditor import AUDITOR, PARTED_AT_ONCE
from engine.repair.outlook import Outlook
from engine.repair.respreading import TOGETHER, move_apart
from engine.transport.contract import Status
from tests.engine.ledger.scripted import QUICK, turns
from tests.engine.repair.yard import GRACE_MS, SETTINGS, Yard, given_up, queue


class Hosts(Yard):
    """A yard whose bookies say where they stand: "a1" on host "a", in rack "rack-a"."""

    racks = False

    async def come(self, *names: str) -> None:
        """Bookies start, or start again."""
        for name in names:
            bookie = self.transport.bookies.get(name) or await self.add(name)
            bookie.down = False
            found = Registration(
                name, bookie.boot, host=name[0], rack=f"rack-{name[0]}" if self.racks else ""
            )
            await self.registry.register(found)

    async def ask(self, metadata: LedgerMetadata) -> None:
        """As the auditor asks for a ledger whose replicas share a machine."""
        await self.queue.request(metadata.ledger_id, RepairItem(reasons=(TOGETHER,)))

    async def survey(self) -> list[int]:
        """An auditor takes office, and looks at all ledgers: what is queued then."""
        auditor = self.auditor()
        await auditor.look()
        await auditor.close()
        return await self.queue.ids()

    async def part(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """A worker sees to what is queued, and nothing waits then."""
        await self.repairer().run_once()
        assert await self.queue.ids() == []
        return await self.metadata(metadata.ledger_id)


async def hosts(*names: str) -> Hosts:
    yard = await Hosts.of(0)
    await yard.come(*names)
    return yard


def machines(metadata: LedgerMetadata) -> list[int]:
    """On how many hosts each fragment lies."""
    return [len({name[0] for name in each.ensemble}) for each in metadata.fragments]


async def whole_again(writer: LedgerWriter) -> None:
    """Wait until the writer has replaced bookies and all of them have all entries."""
    async with asyncio.timeout(20):
        while len(writer.metadata.fragments) < 2 or not writer._replication.complete:
            await turns(1)


async def test_replicas_on_one_machine_part_when_another_one_comes() -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    assert machines(metadata) == [2] and await yard.survey() == []
    await yard.come("c1", "b2")
    assert await yard.survey() == [metadata.ledger_id]
    item = await yard.item(metadata.ledger_id)
    assert item is not None and item.text == TOGETHER
    parted = await yard.part(metadata)
    assert machines(parted) == [3] and yard.lacking(parted) == []
    assert parted.last_entry == 9 and await yard.survey() == []


async def test_all_that_share_a_machine_part_in_one_try() -> None:
    yard = await hosts("a1", "a2", "a3")
    metadata = await yard.written(600, (3, 3, 2))
    await yard.come("b1", "c1", "c2")
    await yard.survey()
    repairer = yard.repairer()
    await repairer.run_once()
    parted = await yard.metadata(metadata.ledger_id)
    assert machines(parted) == [3] and yard.lacking(parted) == []
    assert repairer.counts.fragments_moved == 2 and await yard.queue.ids() == []


async def test_every_fragment_that_holds_entries_is_looked_at() -> None:
    yard = await hosts("a1", "a2", "b1")
    writer = await yard.writer(4)
    await yard.come("a3")
    await yard.lose("a1")
    assert await writer.append(b"more") == 4
    await whole_again(writer)
    await writer.append(b"in the second")
    await writer.close()
    await yard.come("a1")
    metadata = await yard.metadata(writer.ledger_id)
    assert machines(await yard.part(metadata)) == machines(metadata) == [2, 2]
    await yard.come("c1")
    assert await yard.survey() == [writer.ledger_id]
    parted = await yard.part(metadata)
    assert machines(parted) == [3, 3] and yard.lacking(parted) == []


async def test_a_lone_rack_lets_one_replica_go_when_another_rack_has_room() -> None:
    yard = await Hosts.of(0)
    for name in ("a1", "b1", "c1"):
        await yard.add(name)
        await yard.registry.register(Registration(name, 1, host=name[0], rack="west"))
    metadata = await yard.written(10)
    assert await yard.survey() == []
    await yard.add("d1")
    await yard.registry.register(Registration("d1", 1, host="d", rack="east"))
    assert await yard.survey() == [metadata.ledger_id]
    parted = await yard.part(metadata)
    assert "d1" in parted.bookies() and len(parted.bookies()) == 3
    assert await yard.survey() == []


async def test_nothing_parts_while_a_bookie_of_the_ensemble_is_away() -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    await yard.come("c1")
    await yard.lose("b1")
    assert await yard.survey() == []
    await yard.ask(metadata)
    assert await yard.repairer().run_once() == 0
    assert await yard.metadata(metadata.ledger_id) == metadata
    assert await yard.queue.ids() == [], "the next survey asks again"


async def test_nothing_parts_while_a_bookie_of_the_ensemble_is_to_go() -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    await yard.come("c1", "c2")
    await yard.store.create(f"{DECOMMISSIONS}/b1", b"by hand")
    await yard.ask(metadata)
    await yard.repairer().run_once()
    assert await yard.metadata(metadata.ledger_id) == metadata
    assert await yard.survey() == [metadata.ledger_id]
    item = await yard.item(metadata.ledger_id)
    assert item is not None and (item.leaving, item.reasons) == (("b1",), ())


async def test_no_replica_parts_to_a_bookie_that_is_to_go_or_takes_nothing() -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    await yard.come("c1")
    await yard.store.create(f"{DECOMMISSIONS}/c1", b"by hand")
    assert await yard.survey() == []
    await yard.registry.register(Registration("d1", 1, host="d", writable=False))
    assert await yard.survey() == []
    await yard.ask(metadata)
    await yard.repairer().run_once()
    assert await yard.metadata(metadata.ledger_id) == metadata


async def test_no_replica_parts_to_a_bookie_that_does_not_say_where_it_stands() -> None:
    yard = await hosts("a1", "a2", "b1")
    await yard.written(10)
    await yard.add("c1")
    assert await yard.survey() == []


async def test_replicas_of_a_lost_machine_that_had_to_join_another_go_back_when_it_returns() -> (
    None
):
    yard = await hosts("a1", "a2", "b1", "b2", "c1", "c2")
    ledgers = [await yard.written(10) for _ in range(6)]
    assert all(machines(metadata) == [3] for metadata in ledgers)
    auditor = yard.auditor()
    await yard.lose("c1")
    await yard.lose("c2")
    await yard.look(auditor, 2 * GRACE_MS / 1_000)
    repairer = yard.repairer()
    assert await repairer.run_once() == 6
    joined = [await yard.metadata(each.ledger_id) for each in ledgers]
    assert all(machines(metadata) == [2] for metadata in joined)
    await yard.come("c1", "c2")
    assert len(await yard.survey()) == 6
    yard.clock.now_s += 2
    await repairer.run_once()
    back = [await yard.metadata(each.ledger_id) for each in ledgers]
    assert all(machines(metadata) == [3] for metadata in back)
    assert all(yard.lacking(metadata) == [] for metadata in back)


async def test_of_an_open_ledger_part_the_fragments_that_have_an_end_and_its_writer_goes_on() -> (
    None
):
    yard = await hosts("a1", "a2", "b1")
    writer = await yard.writer(4, settings=replace(QUICK, respread_ms=0))
    assert await yard.survey() == []
    await yard.come("c1")
    await whole_again(writer)
    # The writer asks for what it lacked during its change.
    await yard.part(writer.metadata)
    assert machines(await yard.metadata(writer.ledger_id)) == [2, 3]
    assert await yard.survey() == [writer.ledger_id]
    parted = await yard.part(writer.metadata)
    assert machines(parted) == [3, 3] and not parted.closed
    assert await writer.append(b"more") == 4 and await writer.close() == 4
    assert yard.lacking(await yard.metadata(writer.ledger_id)) == []


async def test_the_last_fragment_of_an_open_ledger_is_its_writers_affair() -> None:
    yard = await hosts("a1", "a2", "b1")
    writer = await yard.writer(4, settings=replace(QUICK, respread_ms=3_600_000))
    await yard.come("c1")
    assert await yard.survey() == []
    await yard.ask(writer.metadata)
    assert await yard.part(writer.metadata) == writer.metadata
    await writer.close()


async def test_an_empty_ledger_asks_for_nothing() -> None:
    yard = await hosts("a1", "a2", "b1")
    await yard.written(0)
    await yard.come("c1")
    assert await yard.survey() == []


async def test_another_bookie_takes_what_one_did_not() -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    await yard.come("c1")
    yard.transport.bookies["c1"].append_status = Status.UNAVAILABLE
    await yard.survey()
    assert await yard.part(metadata) == metadata
    await yard.come("d1")
    yard.transport.bookies["d1"].append_status = Status.OK
    yard.clock.now_s += 2
    assert await yard.survey() == [metadata.ledger_id]
    repairer = yard.repairer()
    for _ in range(2):
        await repairer.run_once()
        await yard.survey()
    parted = await yard.metadata(metadata.ledger_id)
    assert "d1" in parted.bookies() and yard.lacking(parted) == []


async def test_where_nothing_can_part_nothing_is_read() -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    await yard.ask(metadata)
    repairer = yard.repairer()
    await repairer.run_once()
    assert repairer.counts.entries_read == 0 and await yard.queue.ids() == []


async def test_replicas_part_only_where_that_was_asked_for() -> None:
    """A bookie that was away for a moment costs no copies when it is back."""
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    await yard.come("c1")
    await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("a replica is missing",)))
    assert await yard.repairer().run_once() == 1
    assert await yard.metadata(metadata.ledger_id) == metadata


async def test_few_are_asked_for_at_a_time_and_more_when_those_are_done() -> None:
    yard = await hosts("a1", "a2", "b1")
    ledgers = [await yard.written(1) for _ in range(2 * PARTED_AT_ONCE + 3)]
    await yard.come("c1")
    auditor, repairer = yard.auditor(), yard.repairer()
    for waiting in (PARTED_AT_ONCE, PARTED_AT_ONCE, 3):
        for _ in range(3):
            await auditor.look()
            assert len(await yard.queue.ids()) == waiting
        await repairer.run_once()
    await auditor.look()
    assert await yard.queue.ids() == []
    assert all([machines(await yard.metadata(each.ledger_id)) == [3] for each in ledgers])


async def test_a_machine_that_comes_or_comes_back_has_ledgers_looked_at_at_once() -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(1)
    auditor = yard.auditor()
    for _ in range(3):
        await auditor.look()
    assert auditor.surveys == 1
    await yard.come("b2")
    await auditor.look()
    assert auditor.surveys == 1, "another disk of a machine that is known"
    await yard.come("c1")
    await auditor.look()
    assert auditor.surveys == 2 and await yard.queue.ids() == [metadata.ledger_id]
    await yard.lose("c1")
    await yard.look(auditor, 2 * GRACE_MS / 1_000)
    surveys = auditor.surveys
    await yard.come("c1")
    await auditor.look()
    await auditor.look()
    assert auditor.surveys == surveys + 1


async def test_one_that_cannot_part_holds_others_up_until_the_next_survey() -> None:
    yard = await hosts("a1", "a2", "b1")
    ledgers = [await yard.written(1) for _ in range(PARTED_AT_ONCE + 3)]
    await yard.come("c1")
    auditor = yard.auditor()
    await auditor.look()
    asked = await yard.queue.ids()
    await auditor.look()
    assert await yard.queue.ids() == asked and len(asked) == PARTED_AT_ONCE
    yard.clock.now_s += SETTINGS.audit_interval_ms / 1000
    await auditor.look()
    assert await yard.queue.ids() == [metadata.ledger_id for metadata in ledgers]


async def test_an_ended_term_asks_for_nothing_more() -> None:
    yard = await hosts("a1", "a2", "b1")
    for _ in range(2 * PARTED_AT_ONCE):
        await yard.written(1)
    await yard.come("c1")
    auditor = yard.auditor()
    await auditor.look()
    await yard.repairer().run_once()
    await yard.store.delete(AUDITOR)
    await yard.auditor("n2").look()
    await yard.repairer().run_once()
    before = auditor.ledgers_queued
    await auditor.look()
    assert auditor.ledgers_queued == before == PARTED_AT_ONCE


async def test_one_ensemble_is_judged_once_a_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    yard = await hosts("a1", "a2", "a3")
    for _ in range(20):
        await yard.written(1)
    judged: list[object] = []

    def counted(*told: Any) -> None:
        judged.append(told)

    monkeypatch.setattr(sharing, "move_apart", counted)
    assert await yard.survey() == []
    ensembles = {(await yard.metadata(each)).fragments[0].ensemble for each in range(1, 21)}
    assert 0 < len(judged) == len(ensembles) <= 6


async def test_whoever_goes_on_with_a_copy_that_was_cut_short_copies_to_the_same_bookie() -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    others = [f"{host}1" for host in "cdefg"]
    await yard.come(*others)
    # Nobody can tell what entry 5 was: where it may be, nothing is given up.
    hiding = [yard.transport.bookies[name] for name in metadata.bookies()]
    for bookie in hiding:
        bookie.damaged.add((metadata.ledger_id, 5))
    for number in range(4):
        await yard.ask(metadata)
        await yard.repairer(node=f"n{number}").run_once()
    assert await yard.metadata(metadata.ledger_id) == metadata
    hiding[0].damaged.clear()
    await yard.survey()
    parted = await yard.part(metadata)
    given = [name for name in others if yard.transport.bookies[name].entries]
    assert len(given) == 1 and machines(parted) == [3] and yard.lacking(parted) == []


async def test_a_lost_bookie_is_replaced_before_replicas_part() -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    await yard.come("c1", "c2")
    await given_up(yard, "b1")
    await queue(yard, metadata, "b1")
    assert await yard.repairer().run_once() == 1
    replaced = await yard.metadata(metadata.ledger_id)
    assert "b1" not in replaced.bookies() and yard.lacking(replaced) == []


@pytest.mark.parametrize("seed", range(8))
async def test_moves_spread_better_each_time_and_rest_only_where_none_does(seed: int) -> None:
    rng = random.Random(seed)
    yard = await Hosts.of(0)
    for _ in range(50):
        count = rng.randint(4, 12)
        places = {
            f"b{number}": Registration(
                f"b{number}", 1, host=rng.choice("abcd"), rack=rng.choice(["", "east", "west"])
            )
            for number in range(count)
        }
        outlook = Outlook(places, frozenset(), frozenset())
        size = rng.randint(2, min(count, 6))
        quorums = Quorums(size, rng.randint(2, size), 2, 256)
        ensemble = tuple(rng.sample(sorted(places), size))
        placement = Placement(yard.registry, rng, yard.clock, 1_000)
        costs = [cost_of(ensemble, quorums.write, places)]
        while move := move_apart(7, Fragment(0, ensemble), quorums, outlook, placement):
            assert move.bookie_id not in ensemble
            ensemble = (*ensemble[: move.at], move.bookie_id, *ensemble[move.at + 1 :])
            costs.append(cost_of(ensemble, quorums.write, places))
        assert all(after < before for before, after in pairwise(costs))
        racks = any(places[name].rack for name in ensemble)
        exchanged = [
            (*ensemble[:index], name, *ensemble[index + 1 :])
            for index in range(size)
            for name in set(places) - set(ensemble)
            if places[name].rack or not racks
        ]
        assert all(
            cost_of(other, quorums.write, places).host_pairs >= costs[-1].host_pairs
            for other in exchanged
        )
