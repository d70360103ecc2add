"""How well the replicas of a ledger are spread over machines, racks and zones: pure functions.

Two bookies on one host fail together. So may two bookies in one rack or in one zone. This matters
only within a write set: the bookies that hold the same entries. In an ensemble wider than the write
quorum, bookies that share no write set may share a machine.

Invariants:
- An unknown host, rack or zone counts as different from all others.
- One pair of replicas on one host is worse than any number of pairs in one rack, and one pair in
  one rack is worse than any number of pairs in one zone.
- The choice depends on the given random generator, never on the order of a hash table.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from engine.ledger.quorum import Quorums
from engine.metadata.bookies import Registration

Where = Mapping[str, Registration]
"""The registrations by bookie id. The place of a bookie that is not among them is unknown."""

_ROUNDS: Final = 4
_UNPLACED: Final = Registration("", 0)


class Cost(NamedTuple):
    """How badly an ensemble is spread: counts of pairs within write sets, worst first."""

    host_pairs: int
    rack_pairs: int
    zone_pairs: int = 0


NO_COST: Final = Cost(0, 0)


class Flaw(NamedTuple):
    """Replicas of one write set that fail together: `domain` is "host", "rack" or "zone"."""

    domain: str
    name: str
    bookies: tuple[str, ...]


def cost_of(ensemble: Sequence[str], write_quorum: int, where: Where) -> Cost:
    """How badly an ensemble is spread; `NO_COST` is the best possible.

    >>> on = {name: Registration(name, 1, host=name[0]) for name in ("a1", "a2", "b1")}
    >>> cost_of(("a1", "a2", "b1"), 3, on)
    Cost(host_pairs=1, rack_pairs=0, zone_pairs=0)
    """
    placed = [where.get(name, _UNPLACED) for name in ensemble]
    size = len(placed)
    hosts = racks = zones = 0
    for index, mine in enumerate(placed):
        for other in range(index + 1, size):
            if min(other - index, size - other + index) < write_quorum:
                its = placed[other]
                hosts += bool(mine.host) and mine.host == its.host
                racks += bool(mine.rack) and mine.rack == its.rack
                zones += bool(mine.zone) and mine.zone == its.zone
    return Cost(hosts, racks, zones)


def flaws_of(ensemble: Sequence[str], write_quorum: int, where: Where) -> list[Flaw]:
    """What is wrong with an ensemble: hosts that hold two replicas of a write set, and racks and
    zones that hold all of them. In the order of the write sets, each once."""
    found: list[Flaw] = []
    size = len(ensemble)
    for start in range(size if write_quorum < size else 1):
        write_set = [ensemble[(start + step) % size] for step in range(write_quorum)]
        placed = [where.get(name, _UNPLACED) for name in write_set]
        for host in dict.fromkeys(each.host for each in placed if each.host):
            together = tuple(each.bookie_id for each in placed if each.host == host)
            if len(together) > 1:
                found.append(Flaw("host", host, together))
        for domain in ("rack", "zone") if write_quorum > 1 else ():
            names = {getattr(each, domain) for each in placed}
            if len(names) == 1 and names != {""}:
                found.append(Flaw(domain, names.pop(), tuple(write_set)))
    return list(dict.fromkeys(found))


def spread(
    candidates: Sequence[str],
    count: int,
    quorums: Quorums,
    where: Where,
    rng: random.Random,
    local_host: str = "",
) -> tuple[str, ...]:
    """At most `count` of the candidates, in the order of an ensemble, spread as well as possible.

    One of them is on `local_host`, if there is one. For an ensemble as wide as the write quorum,
    this is the best spread. For a wider one, it is the best of a few tries.
    """
    count = min(count, len(candidates))
    best = _grow(candidates, count, quorums, where, rng, local_host)
    if quorums.ensemble == quorums.write:
        rng.shuffle(best)
        return tuple(best)
    best_cost = _improve(best, candidates, quorums.write, where, local_host)
    for _ in range(_ROUNDS):
        if best_cost == NO_COST:
            break
        other = _grow(candidates, count, quorums, where, rng, local_host)
        other_cost = _improve(other, candidates, quorums.write, where, local_host)
        if other_cost < best_cost:
            best, best_cost = other, other_cost
    turn = rng.randrange(count) if count == quorums.ensemble else 0
    return tuple(best[turn:] + best[:turn])


def fittest(
    candidates: Sequence[str],
    ensemble: Sequence[str],
    index: int,
    write_quorum: int,
    where: Where,
    rng: random.Random,
) -> str | None:
    """The candidate that spreads best at one index of an ensemble, if the others stay."""
    others = _others(ensemble, index, write_quorum, where)
    costs = {name: _cost_beside(others, name, where) for name in sorted(candidates)}
    if not costs:
        return None
    least = min(costs.values())
    return rng.choice([name for name, cost in costs.items() if cost == least])


def _others(
    ensemble: Sequence[str], index: int, write_quorum: int, where: Where
) -> list[Registration]:
    """The bookies that share a write set with the one at an index."""
    size = len(ensemble)
    distances = ((abs(other - index), name) for other, name in enumerate(ensemble))
    return [
        where.get(name, _UNPLACED)
        for distance, name in distances
        if 0 < min(distance, size - distance) < write_quorum
    ]


def _cost_beside(others: Sequence[Registration], name: str, where: Where) -> Cost:
    """The number of others with which a bookie would share its host, its rack and its zone."""
    mine = where.get(name, _UNPLACED)
    hosts = sum(each.host == mine.host for each in others) if mine.host else 0
    racks = sum(each.rack == mine.rack for each in others) if mine.rack else 0
    zones = sum(each.zone == mine.zone for each in others) if mine.zone else 0
    return Cost(hosts, racks, zones)


def _grow(
    candidates: Sequence[str],
    count: int,
    quorums: Quorums,
    where: Where,
    rng: random.Random,
    local_host: str,
) -> list[str]:
    """Choose one bookie after the other, each the best next to those before it.

    Within one write set this finds the best spread: machines are in racks and racks in zones, and
    for pairs within nested sets the greedy choice is optimal. The first choice is free, so a local
    bookie costs nothing.
    """
    chosen = [""] * quorums.ensemble
    left = sorted(candidates)
    for index in range(count):
        local = [name for name in left if _is_local(name, where, local_host)]
        wanted = local if index == 0 and local else left
        name = fittest(wanted, chosen, index, quorums.write, where, rng)
        assert name is not None
        chosen[index] = name
        left.remove(name)
    return chosen[:count]


def _improve(
    chosen: list[str], candidates: Sequence[str], write_quorum: int, where: Where, local_host: str
) -> Cost:
    """Exchange bookies with others and with each other as long as that spreads better."""
    cost = cost_of(chosen, write_quorum, where)
    while cost != NO_COST:
        before = cost
        for index in range(len(chosen)):
            others = _others(chosen, index, write_quorum, where)
            if _cost_beside(others, chosen[index], where) == NO_COST:
                continue
            _exchange(chosen, index, candidates, write_quorum, where, local_host)
            cost = _swap(chosen, index, write_quorum, where)
        if cost == before:
            break
    return cost


def _exchange(
    chosen: list[str],
    index: int,
    candidates: Sequence[str],
    write_quorum: int,
    where: Where,
    local_host: str,
) -> None:
    """Take another bookie at an index if it fits better; the only local one stays."""
    local = [name for name in chosen if _is_local(name, where, local_host)]
    if local == [chosen[index]]:
        return
    others = _others(chosen, index, write_quorum, where)
    least = _cost_beside(others, chosen[index], where)
    for name in sorted(set(candidates) - set(chosen)):
        cost = _cost_beside(others, name, where)
        if cost < least:
            chosen[index], least = name, cost


def _swap(chosen: list[str], index: int, write_quorum: int, where: Where) -> Cost:
    """Let two bookies of an ensemble change places if that helps; returns the cost afterwards."""
    least = cost_of(chosen, write_quorum, where)
    for other in range(len(chosen)):
        chosen[index], chosen[other] = chosen[other], chosen[index]
        cost = cost_of(chosen, write_quorum, where)
        if cost < least:
            least = cost
        else:
            chosen[index], chosen[other] = chosen[other], chosen[index]
    return least


def _is_local(name: str, where: Where, local_host: str) -> bool:
    return bool(local_host) and where.get(name, _UNPLACED).host == local_host
