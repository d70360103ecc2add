"""Spreading replicas over machines and racks: drawn clusters, compared with every ensemble."""

import itertools
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.ledger.quorum import Quorums
from engine.ledger.spreading import Cost, Flaw, cost_of, fittest, flaws_of, spread
from engine.metadata.bookies import Registration

CLUSTERS = st.lists(
    st.tuples(st.sampled_from(["", "h1", "h2", "h3", "h4"]), st.integers(0, 1)),
    min_size=1,
    max_size=6,
)


def cluster(drawn: list[tuple[str, int]]) -> dict[str, Registration]:
    """Bookies with these hosts; a host lies in one rack, and nobody knows where the unnamed are."""
    racks = {"h1": "r1", "h2": "r1", "h3": "r2", "h4": "r3"}
    found = {}
    for number, (host, told) in enumerate(drawn):
        rack = racks[host] if host and told else ""
        found[f"b{number}"] = Registration(f"b{number}", 1, host=host, rack=rack)
    return found


def on(**places: str) -> dict[str, Registration]:
    """Bookies by name, each with "host/rack"."""
    found = {}
    for name, place in places.items():
        host, _, rack = place.partition("/")
        found[name] = Registration(name, 1, host=host, rack=rack)
    return found


def shared(
    ensemble: Sequence[str], write_quorum: int, where: dict[str, Registration]
) -> tuple[int, int, int]:
    """Pairs on one host, in one rack and in one zone, in any write set: counted one by one."""
    size = len(ensemble)
    pairs = set()
    for start in range(size):
        write_set = {(start + step) % size for step in range(min(write_quorum, size))}
        pairs |= {pair for pair in itertools.combinations(range(size), 2) if set(pair) <= write_set}
    found = [(where[ensemble[one]], where[ensemble[other]]) for one, other in pairs]
    hosts = sum(one.host == other.host != "" for one, other in found)
    racks = sum(one.rack == other.rack != "" for one, other in found)
    zones = sum(one.zone == other.zone != "" for one, other in found)
    return hosts, racks, zones


@given(CLUSTERS, st.integers(1, 4), st.integers(0, 1000))
def test_no_write_set_shares_a_host_more_than_it_must(
    drawn: list[tuple[str, int]], size: int, seed: int
) -> None:
    where = cluster(drawn)
    quorums = Quorums(size, size, 1, 256)
    chosen = spread(list(where), size, quorums, where, random.Random(seed))
    assert len(chosen) == len(set(chosen)) == min(size, len(where))
    every = itertools.combinations(where, len(chosen))
    least = min(shared(other, size, where)[0] for other in every)
    assert shared(chosen, size, where)[0] == least


@given(st.lists(st.sampled_from(["h1", "h2", "h3", "h4"]), min_size=1, max_size=6), st.data())
def test_where_every_rack_is_known_nothing_spreads_better(
    hosts: list[str], data: st.DataObject
) -> None:
    where = cluster([(host, 1) for host in hosts])
    size = data.draw(st.integers(1, len(where)))
    local = data.draw(st.sampled_from(["", *hosts]))
    quorums = Quorums(size, size, 1, 256)
    seed = data.draw(st.integers(0, 1000))
    chosen = spread(list(where), size, quorums, where, random.Random(seed), local)
    every = itertools.combinations(where, size)
    assert shared(chosen, size, where) == min(shared(other, size, where) for other in every)
    assert cost_of(chosen, size, where) == shared(chosen, size, where)
    assert not local or local in {where[name].host for name in chosen}


@given(
    st.lists(st.sampled_from(["h1", "h2", "h3", "h4"]), min_size=4, max_size=6),
    st.integers(2, 3),
    st.integers(0, 1000),
)
def test_striped_ensembles_share_no_host_where_they_need_not(
    hosts: list[str], write_quorum: int, seed: int
) -> None:
    where = cluster([(host, 1) for host in hosts])
    size = min(5, len(where))
    quorums = Quorums(size, write_quorum, 1, 256)
    chosen = spread(list(where), size, quorums, where, random.Random(seed))
    assert len(chosen) == len(set(chosen)) == size
    every = itertools.permutations(where, size)
    least = min(shared(other, write_quorum, where)[0] for other in every)
    assert shared(chosen, write_quorum, where)[0] == least
    assert cost_of(chosen, write_quorum, where) == shared(chosen, write_quorum, where)


def test_the_same_seed_chooses_the_same_bookies_whatever_their_order() -> None:
    where = on(a="h1/r1", b="h2/r1", c="h3/r2", d="h4/r2", e="h5/r3", f="h6/r3")
    quorums = Quorums(4, 2, 2, 256)
    chosen = [
        spread(names, 4, quorums, where, random.Random(5))
        for names in (sorted(where), sorted(where, reverse=True))
    ]
    assert chosen[0] == chosen[1]
    others = {spread(sorted(where), 4, quorums, where, random.Random(seed)) for seed in range(50)}
    assert len(others) > 10, "every seed chooses alike"


def test_without_hosts_and_racks_every_bookie_is_as_good_as_another() -> None:
    where = on(a="", b="", c="", d="")
    quorums = Quorums(2, 2, 2, 256)
    drawn = {spread(sorted(where), 2, quorums, where, random.Random(seed)) for seed in range(200)}
    assert drawn == set(itertools.permutations("abcd", 2))


def test_a_replacement_goes_to_the_rack_that_lacks_a_replica() -> None:
    where = on(a="h1/r1", b="h2/r1", c="h3/r2", d="h4/r1", e="h5/r2", f="h1/r2")
    assert fittest(["d", "e"], ("a", "b", "c"), 2, 3, where, random.Random(1)) == "e"
    assert fittest(["d", "f"], ("a", "b", "c"), 2, 3, where, random.Random(1)) == "d"
    assert fittest([], ("a", "b", "c"), 2, 3, where, random.Random(1)) is None


def test_the_judgement_names_hosts_with_two_replicas_and_racks_with_all() -> None:
    where = on(a="h1/r1", b="h1/r1", c="h2/r1", d="h3/r2")
    assert flaws_of(("a", "b", "c"), 3, where) == [
        Flaw("host", "h1", ("a", "b")),
        Flaw("rack", "r1", ("a", "b", "c")),
    ]
    assert flaws_of(("a", "c", "d"), 3, where) == []
    assert flaws_of(("a", "c", "b", "d"), 2, where) == [
        Flaw("rack", "r1", ("a", "c")),
        Flaw("rack", "r1", ("c", "b")),
    ]
    assert flaws_of(("x", "y"), 2, where) == []
    assert cost_of(("a", "b", "c"), 3, where) == Cost(1, 3)


def test_replicas_are_in_two_zones_if_there_are_two() -> None:
    where = {
        name: Registration(name, 1, host=name, rack=f"r{number}", zone=zone)
        for number, (name, zone) in enumerate(zip("abcde", "zzzzy", strict=True))
    }
    for seed in range(20):
        chosen = spread(sorted(where), 3, Quorums(3, 3, 2, 256), where, random.Random(seed))
        assert "e" in chosen and cost_of(chosen, 3, where) == Cost(0, 0, 1)
    assert fittest(["c", "e"], ("a", "b", "x"), 2, 3, where, random.Random(1)) == "e"
    assert flaws_of(("a", "b", "c"), 3, where) == [Flaw("zone", "z", ("a", "b", "c"))]
    assert flaws_of(("a", "b", "e"), 3, where) == []
