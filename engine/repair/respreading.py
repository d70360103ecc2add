"""Replicas that share a machine, though another one has room: which of them are to move.

A bookie that is lost is replaced at once, if need be by another disk of a machine that holds a
replica already. When a machine comes, writers move such a replica again, for what they will append
(`engine.ledger.respreading`); repair moves what stands in fragments that have an end.

Invariants:
- Nothing moves while a bookie of the ensemble is away, lost or to go: its replica comes first.
- A replica moves only where the ensemble is spread better for it: moves come to rest.
- No bookie that the fragment names takes another replica of it.
"""

from typing import Final

from engine.ledger.placement import Placement
from engine.ledger.quorum import Quorums
from engine.ledger.spreading import flaws_of
from engine.repair.outlook import Outlook

TOGETHER: Final = "replicas share a machine or a rack, and another one has room"


def moves_apart(
    ensemble: tuple[str, ...], quorums: Quorums, outlook: Outlook, placement: Placement
) -> dict[int, str]:
    """Who takes the place of whom, by index, so that replicas fail apart; {} where nobody can."""
    if not outlook.stay(ensemble):
        return {}
    staying = {
        name: found for name, found in outlook.registered.items() if name not in outlook.leaving
    }
    targets: dict[int, str] = {}
    while flaws_of(ensemble, quorums.write, staying):
        movable = [index for index in range(len(ensemble)) if index not in targets]
        found = placement.better(ensemble, movable, quorums, staying)
        if found.at is None:
            break
        # Who is left is a candidate no more: it still holds the replica that moves.
        del staying[ensemble[found.at]]
        targets[found.at] = found.bookie_id
        ensemble = (*ensemble[: found.at], found.bookie_id, *ensemble[found.at + 1 :])
    return targets
