"""Placement: which bookies of a cluster are taken, and what is said when there are too few."""

import asyncio
import random
from functools import partial
from typing import get_args

import pytest

from engine.errors import NotEnoughBookies
from engine.ledger.placement import Ensemble, Placement
from engine.ledger.quorum import UNKNOWN, Quorums
from engine.metadata.bookies import (
    DECOMMISSIONS,
    LOST,
    Bookies,
    FolderAge,
    FolderPlace,
    Registration,
)
from engine.metadata.ledgers import Survives
from engine.metadata.memory import FaultyStore, MemoryTree

THREE = Quorums(3, 3, 2, 256)


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


class Yard:
    """A placement over bookies that a test names."""

    def __init__(self, local_host: str = "") -> None:
        self.bookies = Bookies(MemoryTree("cluster").session())
        self.clock = Hands()
        self.placement = Placement(
            self.bookies, random.Random(3), self.clock, 10_000, local_host=local_host
        )

    async def add(
        self, name: str, place: str = "/", *, boot: int = 1, writable: bool = True
    ) -> None:
        """Register a bookie at "host/rack/zone"."""
        host, rack, zone = f"{place}//".split("/")[:3]
        await self.bookies.raise_age(name, FolderAge(boot))
        await self.bookies.keep_place(name, FolderPlace(host, f"/{name}"))
        found = Registration(name, boot, host=host, rack=rack, zone=zone, writable=writable)
        await self.bookies.register(found)
        # Whoever watches the bookies hears of it in the next turn.
        await asyncio.sleep(0)

    async def decommission(self, name: str) -> None:
        """Say that a bookie is to go."""
        await self.bookies.store.create(f"{DECOMMISSIONS}/{name}", b"")


async def substitutes(
    yard: Yard, ensemble: tuple[str, ...], failed: frozenset[int]
) -> tuple[str, ...]:
    found = await yard.placement.substitutes(ensemble, failed, THREE)
    assert found is not None
    return found.bookies


async def test_replicas_stand_on_three_hosts_in_two_racks() -> None:
    yard = Yard()
    for name, place in {"a1": "a/x", "a2": "a/x", "b1": "b/x", "c1": "c/x", "d1": "d/y"}.items():
        await yard.add(name, place)
    for _ in range(50):
        chosen, absent, *_ = await yard.placement.new_ensemble(THREE)
        assert not absent
        assert len({name[0] for name in chosen}) == 3
        assert "d1" in chosen


async def test_two_replicas_share_a_host_only_when_there_is_no_other() -> None:
    yard = Yard()
    for name, place in {"a1": "a/", "a2": "a/", "a3": "a/", "b1": "b/"}.items():
        await yard.add(name, place)
    chosen = (await yard.placement.new_ensemble(THREE)).bookies
    assert "b1" in chosen and len(set(chosen)) == 3


async def test_a_bookie_of_the_clients_own_machine_holds_a_replica() -> None:
    yard = Yard(local_host="d")
    for name in ("a1", "b1", "c1", "d1", "d2", "e1", "f1"):
        await yard.add(name, f"{name[0]}/")
    for _ in range(30):
        chosen = (await yard.placement.new_ensemble(THREE)).bookies
        assert len({"d1", "d2"} & set(chosen)) == 1


async def test_full_and_leaving_bookies_are_avoided() -> None:
    yard = Yard()
    for name in "abcde":
        await yard.add(name, writable=name != "d")
    await yard.decommission("e")
    for _ in range(20):
        chosen, absent, *_ = await yard.placement.new_ensemble(THREE)
        assert set(chosen) == {"a", "b", "c"} and not absent
    assert await yard.placement.replacement(("a", "b", "c"), 0, THREE) is None


async def test_a_leaving_bookie_is_not_even_taken_as_one_that_is_away() -> None:
    yard = Yard()
    for name in "abc":
        await yard.add(name)
    await yard.bookies.unregister("c")
    chosen, absent, *_ = await yard.placement.new_ensemble(THREE)
    assert {chosen[index] for index in absent} == {"c"}
    await yard.decommission("c")
    with pytest.raises(NotEnoughBookies, match="1 being decommissioned"):
        await yard.placement.new_ensemble(THREE)


async def test_a_failed_bookie_waits_until_its_quarantine_is_over_or_it_restarted() -> None:
    yard = Yard()
    for name in "abcd":
        await yard.add(name)
    await yard.placement.new_ensemble(THREE)
    yard.placement.note_failure("d")
    for _ in range(20):
        assert "d" not in (await yard.placement.new_ensemble(THREE))[0]
    await yard.add("d", boot=2)
    assert await yard.placement.substitutes(("a", "b", "c"), frozenset({1}), THREE) is not None
    yard.placement.note_failure("d")
    assert await yard.placement.replacement(("a", "b", "c"), 1, THREE) is None
    yard.clock.now_s += 11
    assert await yard.placement.replacement(("a", "b", "c"), 1, THREE) == "d"


async def test_a_restart_ends_the_quarantine_of_a_bookie_that_was_seen_to_be_away() -> None:
    yard = Yard()
    for name in "abc":
        await yard.add(name)
    ensemble, failed = ("a", "b", "c"), frozenset({2})
    await yard.placement.new_ensemble(THREE)
    await yard.bookies.unregister("c")
    assert await yard.placement.substitutes(ensemble, failed, THREE) is None
    yard.placement.note_failure("c")
    await yard.bookies.register(Registration("c", 1))
    assert await yard.placement.substitutes(ensemble, failed, THREE) is None
    await yard.add("c", boot=2)
    assert await substitutes(yard, ensemble, failed) == ensemble


async def test_the_end_of_the_next_quarantine_is_known() -> None:
    yard = Yard()
    assert yard.placement.next_release_s() is None
    yard.placement.note_failure("a")
    yard.clock.now_s += 4
    yard.placement.note_failure("b")
    assert yard.placement.next_release_s() == 6
    yard.clock.now_s += 6
    assert yard.placement.next_release_s() == 4
    yard.clock.now_s += 4
    assert yard.placement.next_release_s() is None


async def test_a_substitute_goes_where_no_replica_is() -> None:
    yard = Yard()
    for name, place in {"a1": "a/", "b1": "b/", "b2": "b/", "c1": "c/", "a2": "a/"}.items():
        await yard.add(name, place)
    await yard.placement.new_ensemble(THREE)
    for name in ("c1",):
        yard.placement.note_failure(name)
    changed = await substitutes(yard, ("a1", "c1", "x1"), frozenset({1, 2}))
    assert changed[0] == "a1"
    assert changed[1] in {"b1", "b2"}
    assert changed[2] in {"a2", "b1", "b2"} and len(set(changed)) == 3


@pytest.mark.parametrize(("survives", "domains"), [("host", (0, 0, 2)), ("rack", (0, UNKNOWN, 2))])
async def test_a_substitute_counts_as_elsewhere_only_if_it_surely_is(
    survives: Survives, domains: tuple[int, ...]
) -> None:
    yard = Yard()
    await yard.add("a1", "a/x")
    await yard.bookies.unregister("a1")
    for name, place in {"a2": "a/x", "c1": "c/z"}.items():
        await yard.add(name, place)
    found = await yard.placement.substitutes(
        ("a1", "b1", "c1"), frozenset({1}), THREE, survives=survives, domains=(0, 1, 2)
    )
    assert found is not None
    # The host of a bookie that is away is known, its rack is not.
    assert (found.bookies, found.domains) == (("a1", "a2", "c1"), domains)


async def test_where_one_of_two_lost_bookies_has_a_substitute_the_other_keeps_its_name() -> None:
    yard = Yard()
    for name in "ad":
        await yard.add(name)
    changed = await substitutes(yard, ("a", "b", "c"), frozenset({1, 2}))
    assert changed == ("a", "d", "c")
    assert await yard.placement.substitutes(("a", "d", "c"), frozenset({2}), THREE) is None


async def test_a_failed_bookie_that_is_back_may_take_its_own_place_but_no_other() -> None:
    yard = Yard()
    for name in "abc":
        await yard.add(name)
    lost = frozenset({1, 2})
    assert await substitutes(yard, ("a", "b", "c"), lost) == ("a", "b", "c")


async def test_a_replacement_leaves_out_whom_the_caller_excludes() -> None:
    yard = Yard()
    for name in "abcde":
        await yard.add(name)
    assert await yard.placement.replacement(("a", "b", "c"), 2, THREE, excluded={"d"}) == "e"
    assert await yard.placement.replacement(("a", "b", "c"), 2, THREE, excluded={"d", "e"}) is None


async def test_too_few_bookies_are_counted_by_what_is_wrong_with_them() -> None:
    yard = Yard()
    for name in "abcde":
        await yard.add(name, writable=name != "b")
    await yard.placement.replacement(("a",), 0, Quorums(1, 1, 1, 256))
    yard.placement.note_failure("c")
    await yard.decommission("d")
    await yard.bookies.unregister("e")
    with pytest.raises(NotEnoughBookies) as failure:
        await yard.placement.new_ensemble(THREE)
    assert str(failure.value) == (
        "a ledger of 3/3/2 (ensemble/write/ack quorum) needs more than the 1 usable bookie; "
        "besides there are 1 read-only, 1 failing, and tried again later, 1 being "
        "decommissioned, 1 known but not registered"
    )


async def test_a_quarantine_that_ends_while_the_shortage_is_described_counts_as_failing() -> None:
    yard = Yard()
    await yard.add("a")
    await yard.placement.replacement(("a",), 0, Quorums(1, 1, 1, 256))
    yard.placement.note_failure("a")
    known = yard.bookies.known

    async def known_later() -> list[str]:
        yard.clock.now_s += 60.0
        return await known()

    yard.bookies.known = known_later  # type: ignore[method-assign]
    with pytest.raises(NotEnoughBookies, match="the 0 usable bookies; besides there are 1 failing"):
        await yard.placement.new_ensemble(Quorums(1, 1, 1, 256))


async def test_a_bookie_that_was_given_up_is_taken_after_those_that_are_just_away() -> None:
    yard = Yard()
    for name in ("a", "b"):
        await yard.add(name)
    for name in ("c", "d", "e"):
        await yard.bookies.raise_age(name, FolderAge(0))
    for name in ("c", "e"):
        await yard.bookies.store.create(f"{LOST}/{name}", b"0")
    for _ in range(20):
        chosen, absent, *_ = await yard.placement.new_ensemble(THREE)
        assert {chosen[index] for index in absent} == {"d"}


# What entries survive


async def test_in_a_cluster_of_more_than_two_hosts_entries_survive_the_loss_of_one() -> None:
    yard = Yard()
    for name in ("a1", "a2", "b1", "b2"):
        await yard.add(name, name[0])
    found = await yard.placement.new_ensemble(THREE, survives=None)
    assert (found.survives, found.domains) == ("bookie", ())
    await yard.add("c1", "c")
    found = await yard.placement.new_ensemble(THREE, survives=None)
    assert found.survives == "host" and sorted(found.domains) == [0, 1, 2]
    # A host that is away for a while is still a host of the cluster.
    for name in ("a1", "a2"):
        await yard.bookies.unregister(name)
    await asyncio.sleep(0)
    found = await yard.placement.new_ensemble(THREE, survives=None)
    assert found.survives == "host" and len(set(found.domains)) == 2
    one = await yard.placement.new_ensemble(Quorums(2, 2, 1, 256), survives=None)
    assert one.survives == "bookie"


async def test_no_ledger_begins_on_bookies_of_one_host_if_its_entries_have_to_survive_it() -> None:
    yard = Yard()
    for name in ("a1", "a2", "a3"):
        await yard.add(name, "a/r/z")
    for survives in get_args(Survives)[1:]:
        with pytest.raises(NotEnoughBookies, match=f"in two {survives}s"):
            await yard.placement.new_ensemble(THREE, survives=survives)
    # Nobody knows where x1 is, so it does not count as another host.
    await yard.add("x1", "")
    await yard.decommission("a3")
    with pytest.raises(NotEnoughBookies, match="in two hosts"):
        await yard.placement.new_ensemble(THREE, survives="host")
    await yard.add("b1", "b/r/z")
    found = await yard.placement.new_ensemble(THREE, survives="host")
    by_name = dict(zip(found.bookies, found.domains, strict=True))
    assert "b1" in by_name
    with pytest.raises(NotEnoughBookies, match="in two racks"):
        await yard.placement.new_ensemble(THREE, survives="rack")


async def test_a_substitute_is_refused_if_all_bookies_were_on_one_host_then() -> None:
    yard = Yard()
    for name in ("a1", "a2", "a3", "b1"):
        await yard.add(name, name[0])
    ensemble, domains = ("a1", "a2", "b1"), (0, 0, 1)

    async def instead_of(index: int) -> object:
        return await yard.placement.substitutes(
            ensemble, frozenset({index}), THREE, survives="host", domains=domains, strict=True
        )

    await yard.bookies.unregister("a1")
    found = await instead_of(0)
    assert isinstance(found, Ensemble)
    assert (found.bookies, found.domains) == (("a3", "a2", "b1"), (0, 0, 1))
    await yard.bookies.unregister("b1")
    assert await instead_of(2) is None
    # Nor if the third place is left to a bookie that may come back by itself.
    await yard.add("a4", "a")
    await yard.bookies.unregister("a2")
    lost, every = ("a1", "b1", "a2"), frozenset({0, 1, 2})
    found = await yard.placement.substitutes(lost, every, THREE, survives="bookie")
    assert found is not None and found.absent == {2}
    host = partial(yard.placement.substitutes, lost, every, THREE, survives="host")
    assert await host(domains=(0, 1, 0), strict=True) is None
    # If it only should be so, entries are acknowledged by any bookies from then on.
    found = await host(domains=(0, 1, 0))
    assert found is not None and found.domains == ()
    found = await host(domains=())
    assert found is not None and found.domains == ()
    for name in ("a1", "a2", "c1"):
        await yard.add(name, name[0], boot=2)
    found = await instead_of(2)
    assert isinstance(found, Ensemble)
    assert (found.bookies, found.domains) == (("a1", "a2", "c1"), (0, 0, 1))


async def test_bookies_that_stay_keep_the_domains_by_which_entries_were_acknowledged() -> None:
    yard = Yard()
    for name in ("a1", "a2", "b1", "c1"):
        await yard.add(name, name[0])
    await yard.placement.new_ensemble(THREE)
    # a2 was on a host of its own when the ledger began.
    found = await yard.placement.substitutes(
        ("a1", "a2", "b1"), frozenset({2}), THREE, survives="host", domains=(0, 1, 2)
    )
    assert found is not None and found.domains[:2] == (0, 1)
    # What was not known may become known: then it allows more, and forbids nothing.
    found = await yard.placement.substitutes(
        ("a1", "a2", "b1"), frozenset({2}), THREE, survives="host", domains=(5, UNKNOWN, 2)
    )
    assert found is not None and found.domains[:2] == (5, 5) and found.domains[2] not in (5, -1)


async def test_zones_are_above_racks_and_racks_above_hosts() -> None:
    yard = Yard()
    places = {"a1": "a/r1/z1", "b1": "b/r1/z1", "c1": "c/r2/z1", "d1": "d/r2/z1", "e1": "e/r3/z2"}
    for name, place in places.items():
        await yard.add(name, place)
    for _ in range(30):
        found = await yard.placement.new_ensemble(THREE, survives="zone")
        racks = {places[name].split("/")[1] for name in found.bookies}
        assert "e1" in found.bookies and len(racks) == 3


# What is not asked again


class CountedTree(FaultyStore):
    """Counts what is asked of the store."""

    asked = 0

    async def children(self, prefix: str) -> list[str]:
        self.asked += 1
        return await super().children(prefix)


async def test_the_bookies_are_not_asked_for_again_until_they_change() -> None:
    store = CountedTree(MemoryTree("cluster").session())
    yard = Yard()
    yard.bookies = Bookies(store)
    yard.placement = Placement(yard.bookies, random.Random(3), yard.clock, 10_000)
    for name in "abc":
        await yard.add(name)
    await yard.placement.new_ensemble(THREE)
    await asyncio.sleep(0)
    await yard.placement.new_ensemble(THREE)
    asked = store.asked
    for _ in range(10):
        await yard.placement.new_ensemble(THREE)
    assert store.asked == asked
    await yard.add("d")
    drawn = {name for _ in range(30) for name in (await yard.placement.new_ensemble(THREE)).bookies}
    assert drawn == set("abcd") and store.asked > asked
    # Of those known before two have failed: perhaps others have come unnoticed.
    asked = store.asked
    for name in "ab":
        yard.placement.note_failure(name)
    assert (await yard.placement.new_ensemble(THREE)).absent and store.asked > asked
    yard.placement.close()
    await yard.placement.new_ensemble(Quorums(1, 1, 1, 256))


async def test_what_was_found_while_bookies_came_is_not_kept() -> None:
    yard = Yard()
    for name in "abc":
        await yard.add(name)
    await yard.placement.new_ensemble(THREE)
    await yard.add("c", boot=2)
    available, begun, gate = yard.bookies.available, asyncio.Event(), asyncio.Event()

    async def slow() -> dict[str, Registration]:
        found = await available()
        begun.set()
        await gate.wait()
        return found

    yard.bookies.available = slow  # type: ignore[method-assign]
    looking = asyncio.ensure_future(yard.placement.new_ensemble(THREE))
    await begun.wait()
    yard.bookies.available = available  # type: ignore[method-assign]
    await yard.add("d")
    gate.set()
    await looking
    drawn = {name for _ in range(30) for name in (await yard.placement.new_ensemble(THREE)).bookies}
    assert drawn == set("abcd")


async def test_a_substitute_on_another_host_is_not_being_decommissioned() -> None:
    yard = Yard()
    for name in ("a1", "a2", "a3", "c1"):
        await yard.add(name, name[0])
    await yard.decommission("c1")
    found = await yard.placement.substitutes(
        ("a1", "a2", "b1"), frozenset({2}), THREE, survives="host", domains=(0, 0, 1), strict=True
    )
    assert found is None
