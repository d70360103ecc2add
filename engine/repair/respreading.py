"""Replicas that share a machine, though another one has room: which of them is to move.

A bookie that is lost is replaced at once, if need be by another disk of a machine that holds a
replica already. When a machine comes, writers move such a replica again, for what they will append
(`engine.ledger.respreading`); repair moves what stands in fragments that have an end.

Invariants:
- Nothing moves while a bookie of the ensemble is away, lost or to go: its replica comes first.
- A replica moves only to a bookie that says where it stands, and only where fewer replicas fail
  together for it: moves come to rest.
- The same bookies give the same move: a copy that was cut short, by whomever, is gone on with.
"""

import random
from typing import Final, NamedTuple

from engine.ledger.placement import Placement
from engine.ledger.quorum import Quorums
from engine.ledger.spreading import cost_of, flaws_of
from engine.metadata.ledgers import Fragment
from engine.repair.outlook import Outlook

TOGETHER: Final = "replicas share a machine or a rack, and another one has room"


class Move(NamedTuple):
    """A bookie that takes the place of the one that stands `at` an index of an ensemble."""

    at: int
    bookie_id: str


def move_apart(
    ledger_id: int, fragment: Fragment, quorums: Quorums, outlook: Outlook, placement: Placement
) -> Move | None:
    """The move after which the fewest replicas of a fragment fail together, None for none."""
    ensemble, registered = fragment.ensemble, outlook.registered
    flaws = flaws_of(ensemble, quorums.write, registered)
    if not flaws or not outlook.stay(ensemble):
        return None
    racks = any(registered[name].rack for name in ensemble)
    told = {
        name: found
        for name, found in registered.items()
        if name in ensemble
        or (name not in outlook.leaving and found.host and (found.rack or not racks))
    }
    rng = random.Random(f"{ledger_id} {fragment.first}")
    found = placement.better(ensemble, range(len(ensemble)), quorums, told, rng)
    if found.at is None:
        return None
    changed = (*ensemble[: found.at], found.bookie_id, *ensemble[found.at + 1 :])
    fewer = len(flaws_of(changed, quorums.write, registered)) < len(flaws)
    before = cost_of(ensemble, quorums.write, registered)
    if fewer or found.cost.host_pairs < before.host_pairs:
        return Move(found.at, found.bookie_id)
    return None
