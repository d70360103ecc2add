"""Replicas that had to share a machine are parted by repair when another one has room."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from engine.ledger.placement import Placement
from engine.ledger.quorum import Quorums
from engine.ledger.spreading import cost_of, flaws_of
from engine.metadata.bookies import Registration
from engine.metadata.ledgers import LedgerMetadata
from engine.metadata.repairs import RepairItem
from engine.repair.outlook import Outlook
from engine.repair.respreading import TOGETHER, moves_apart
from engine.transport.contract import Status
from tests.engine.ledger.scripted import QUICK
from tests.engine.ledger.test_coming_back import until
from tests.engine.repair.yard import GRACE_MS, Yard, given_up, queue


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

    async def survey(self) -> list[int]:
        """An auditor takes office, and looks at all ledgers: what it has queued."""
        auditor = self.auditor()
        await auditor.look()
        await auditor.close()
        return await self.queue.ids()


async def hosts(*names: str) -> Hosts:
    yard = await Hosts.of(0)
    await yard.come(*names)
    return yard


def machines(metadata: LedgerMetadata) -> list[int]:
    """On how many hosts each fragment lies."""
    return [len({name[0] for name in each.ensemble}) for each in metadata.fragments]


async def test_replicas_on_one_machine_part_when_another_one_comes() -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    assert machines(metadata) == [2] and await yard.survey() == []
    await yard.come("c1", "b2")
    assert await yard.survey() == [metadata.ledger_id]
    item = await yard.item(metadata.ledger_id)
    assert item is not None and item.text == TOGETHER
    assert await yard.repairer().run_once() == 1
    parted = await yard.metadata(metadata.ledger_id)
    assert machines(parted) == [3] and yard.lacking(parted) == []
    assert parted.last_entry == 9 and await yard.survey() == []


async def test_all_that_share_a_machine_part_in_one_try() -> None:
    yard = await hosts("a1", "a2", "a3")
    metadata = await yard.written(600, (3, 3, 2))
    await yard.come("b1", "c1", "c2")
    await yard.survey()
    repairer = yard.repairer()
    assert await repairer.run_once() == 1
    parted = await yard.metadata(metadata.ledger_id)
    assert machines(parted) == [3] and yard.lacking(parted) == []
    assert repairer.counts.fragments_moved == 1


async def test_every_fragment_that_holds_entries_is_looked_at() -> None:
    yard = await hosts("a1", "a2", "b1")
    writer = await yard.writer(4)
    await yard.come("a3")
    await yard.lose("a1")
    assert await writer.append(b"more") == 4
    await until(lambda: len(writer.metadata.fragments) == 2 and writer._replication.complete)
    await writer.append(b"in the second")
    await writer.close()
    await yard.come("a1")
    metadata = await yard.metadata(writer.ledger_id)
    assert machines(metadata) == [2, 2]
    await yard.come("c1")
    assert await yard.survey() == [writer.ledger_id]
    assert await yard.repairer().run_once() == 1
    parted = await yard.metadata(writer.ledger_id)
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
    assert await yard.repairer().run_once() == 1
    parted = await yard.metadata(metadata.ledger_id)
    assert "d1" in parted.bookies() and len(parted.bookies()) == 3
    assert await yard.survey() == []


@pytest.mark.parametrize("left", ["away", "to go"])
async def test_nothing_parts_while_a_bookie_of_the_ensemble_is_away_or_to_go(left: str) -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    await yard.come("c1")
    if left == "away":
        await yard.lose("b1")
        assert await yard.survey() == []
        await yard.queue.request(metadata.ledger_id, RepairItem(reasons=("look",)))
        assert await yard.repairer().run_once() == 0
        assert await yard.metadata(metadata.ledger_id) == metadata
    else:
        await yard.store.create("/repair/decommissions/a1", b"by hand")
        registered = await yard.registry.available()
        outlook = Outlook(registered, frozenset(), frozenset(["a1"]))
        placement = yard.workshop().placement
        ensemble = metadata.fragments[0].ensemble
        assert moves_apart(ensemble, Quorums(3, 3, 2, 256), outlook, placement) == {}


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
    assert await repairer.run_once() == 6
    back = [await yard.metadata(each.ledger_id) for each in ledgers]
    assert all(machines(metadata) == [3] for metadata in back)
    assert all(yard.lacking(metadata) == [] for metadata in back)


async def test_of_an_open_ledger_the_fragments_part_that_have_an_end_and_its_writer_goes_on() -> (
    None
):
    yard = await hosts("a1", "a2", "b1")
    writer = await yard.writer(4, settings=replace(QUICK, respread_ms=0))
    assert await yard.survey() == []
    await yard.come("c1")
    await until(lambda: len(writer.metadata.fragments) == 2 and writer._replication.complete)
    assert machines(await yard.metadata(writer.ledger_id)) == [2, 3]
    assert await yard.survey() == [writer.ledger_id]
    assert await yard.repairer().run_once() == 1
    parted = await yard.metadata(writer.ledger_id)
    assert machines(parted) == [3, 3] and not parted.closed
    assert await writer.append(b"more") == 4 and await writer.close() == 4
    assert yard.lacking(await yard.metadata(writer.ledger_id)) == []


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
    repairer = yard.repairer()
    assert await repairer.run_once() == 0
    assert await yard.metadata(metadata.ledger_id) == metadata
    await yard.come("d1")
    yard.clock.now_s += 2
    assert await repairer.run_once() == 1
    parted = await yard.metadata(metadata.ledger_id)
    assert "d1" in parted.bookies() and yard.lacking(parted) == []


async def test_a_replica_that_parts_is_copied_to_the_same_bookie_in_the_next_try() -> None:
    yard = await hosts("a1", "a2", "b1")
    metadata = await yard.written(10)
    others = [f"{host}1" for host in "cdefg"]
    await yard.come(*others)
    # Nobody can tell what entry 5 was: where it may be, nothing is given up.
    hiding = [yard.transport.bookies[name] for name in metadata.bookies()]
    for bookie in hiding:
        bookie.damaged.add((metadata.ledger_id, 5))
    await yard.survey()
    repairer = yard.repairer()
    for _ in range(4):
        assert await repairer.run_once() == 0
        yard.clock.now_s += 100
    assert await yard.metadata(metadata.ledger_id) == metadata
    hiding[0].damaged.clear()
    assert await repairer.run_once() == 1
    parted = await yard.metadata(metadata.ledger_id)
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
        while moves := moves_apart(ensemble, quorums, outlook, placement):
            assert len({*moves.values(), *ensemble}) == len(moves) + size
            ensemble = tuple(moves.get(index, name) for index, name in enumerate(ensemble))
            costs.append(cost_of(ensemble, quorums.write, places))
        assert all(after < before for before, after in pairwise(costs))
        exchanged = [
            (*ensemble[:index], name, *ensemble[index + 1 :])
            for index in range(size)
            for name in set(places) - set(ensemble)
        ]
        assert not flaws_of(ensemble, quorums.write, places) or all(
            cost_of(other, quorums.write, places) >= costs[-1] for other in exchanged
        )
