"""Placement: which bookies of a cluster are taken, and what is said when there are too few."""

import random

import pytest

from engine.errors import NotEnoughBookies
from engine.ledger.placement import Placement
from engine.ledger.quorum import Quorums
from engine.metadata.bookies import DECOMMISSIONS, LOST, Bookies, FolderAge, Registration
from engine.metadata.memory import MemoryTree

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
        """Register a bookie at "host/rack"."""
        host, _, rack = place.partition("/")
        await self.bookies.raise_age(name, FolderAge(boot))
        found = Registration(name, boot, host=host, rack=rack, writable=writable)
        await self.bookies.register(found)

    async def decommission(self, name: str) -> None:
        """Say that a bookie is to go."""
        await self.bookies.store.create(f"{DECOMMISSIONS}/{name}", b"")


async def test_replicas_stand_on_three_hosts_in_two_racks() -> None:
    yard = Yard()
    for name, place in {"a1": "a/x", "a2": "a/x", "b1": "b/x", "c1": "c/x", "d1": "d/y"}.items():
        await yard.add(name, place)
    for _ in range(50):
        chosen, absent = await yard.placement.new_ensemble(THREE)
        assert not absent
        assert len({name[0] for name in chosen}) == 3
        assert "d1" in chosen


async def test_two_replicas_share_a_host_only_when_there_is_no_other() -> None:
    yard = Yard()
    for name, place in {"a1": "a/", "a2": "a/", "a3": "a/", "b1": "b/"}.items():
        await yard.add(name, place)
    chosen, _ = await yard.placement.new_ensemble(THREE)
    assert "b1" in chosen and len(set(chosen)) == 3


async def test_a_bookie_of_the_clients_own_machine_holds_a_replica() -> None:
    yard = Yard(local_host="d")
    for name in ("a1", "b1", "c1", "d1", "d2", "e1", "f1"):
        await yard.add(name, f"{name[0]}/")
    for _ in range(30):
        chosen, _ = await yard.placement.new_ensemble(THREE)
        assert len({"d1", "d2"} & set(chosen)) == 1


async def test_full_and_leaving_bookies_are_avoided() -> None:
    yard = Yard()
    for name in "abcde":
        await yard.add(name, writable=name != "d")
    await yard.decommission("e")
    for _ in range(20):
        chosen, absent = await yard.placement.new_ensemble(THREE)
        assert set(chosen) == {"a", "b", "c"} and not absent
    assert await yard.placement.replacement(("a", "b", "c"), 0, THREE) is None


async def test_a_leaving_bookie_is_not_even_taken_as_one_that_is_away() -> None:
    yard = Yard()
    for name in "abc":
        await yard.add(name)
    await yard.bookies.unregister("c")
    chosen, absent = await yard.placement.new_ensemble(THREE)
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
    assert await yard.placement.substitutes(ensemble, failed, THREE) == ensemble


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
    changed = await yard.placement.substitutes(("a1", "c1", "x1"), frozenset({1, 2}), THREE)
    assert changed is not None and changed[0] == "a1"
    assert changed[1] in {"b1", "b2"}
    assert changed[2] in {"a2", "b1", "b2"} and len(set(changed)) == 3


async def test_where_one_of_two_lost_bookies_has_a_substitute_the_other_keeps_its_name() -> None:
    yard = Yard()
    for name in "ad":
        await yard.add(name)
    changed = await yard.placement.substitutes(("a", "b", "c"), frozenset({1, 2}), THREE)
    assert changed == ("a", "d", "c")
    assert await yard.placement.substitutes(("a", "d", "c"), frozenset({2}), THREE) is None


async def test_a_failed_bookie_that_is_back_may_take_its_own_place_but_no_other() -> None:
    yard = Yard()
    for name in "abc":
        await yard.add(name)
    lost = frozenset({1, 2})
    assert await yard.placement.substitutes(("a", "b", "c"), lost, THREE) == ("a", "b", "c")


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
        chosen, absent = await yard.placement.new_ensemble(THREE)
        assert {chosen[index] for index in absent} == {"d"}
