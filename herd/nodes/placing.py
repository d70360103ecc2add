"""Which nodes should have a tablespace's replicas: a pure decision.

Invariants:
- A replica that is away or has failed counts until it is given up, because it may come back.
- A tablespace gets one more replica at a time: while one is being created, no other is begun, and
  none is begun on a node that is creating many. Only a tablespace without any replica gets all of
  them at once, because there is nothing to copy yet.
- No replica is removed before the wanted number of replicas exists and is ready.
- The replica that leads, and the one that should lead, are removed last; if there are enough others
  to remove, they stay.
- The same facts give the same decision, whoever takes it.
"""

from collections.abc import Callable, Collection, Mapping

import msgspec

from herd.nodes.facts import ReplicaReport, SpaceFact

Reports = Callable[[str], ReplicaReport | None]
"""What the node with an id says of its replica of the tablespace."""
Busy = Callable[[str], bool]
"""Whether the node with an id is creating as many replicas as it may at a time."""


def placed(
    fact: SpaceFact,
    reports: Reports,
    given_up: Collection[str],
    loads: Mapping[str, int],
    default_replicas: int,
    busy: Busy,
) -> SpaceFact:
    """The fact with the right number of replicas, on the right nodes.

    `loads` has the nodes that are up, and how many replicas each of them has; `given_up` the nodes
    whose replica was away, or had failed, for too long. `default_replicas` is the cluster's.
    """
    if not fact.hosted:
        return fact
    if fact.by_default:
        fact = msgspec.structs.replace(fact, expected=default_replicas)
    wanted = _with_missing(fact, reports, given_up, loads, busy)
    if wanted is fact.replicas:
        wanted = _without_surplus(fact, reports, loads)
    leader = fact.leader if fact.leader in wanted else ""
    return msgspec.structs.replace(fact, replicas=wanted, leader=leader)


def _with_missing(
    fact: SpaceFact,
    reports: Reports,
    given_up: Collection[str],
    loads: Mapping[str, int],
    busy: Busy,
) -> tuple[str, ...]:
    missing = fact.expected - sum(node not in given_up for node in fact.replicas)
    free = sorted((load, node) for node, load in loads.items() if node not in fact.replicas)
    if missing <= 0 or not free:
        return fact.replicas
    if not fact.replicas:
        return tuple(node for _, node in free[:missing])
    there = [node for node in fact.replicas if node in loads and node not in given_up]
    if not all(map(_is_ready, map(reports, there))):
        return fact.replicas
    chosen = next((node for _, node in free if not busy(node)), None)
    return fact.replicas if chosen is None else (*fact.replicas, chosen)


def _is_ready(report: ReplicaReport | None) -> bool:
    return report is not None and report.ready


def _without_surplus(
    fact: SpaceFact, reports: Reports, loads: Mapping[str, int]
) -> tuple[str, ...]:
    surplus = len(fact.replicas) - fact.expected
    found = {node: reports(node) for node in fact.replicas if node in loads}
    ready = [node for node, report in found.items() if _is_ready(report)]
    if surplus <= 0 or len(ready) < fact.expected:
        return fact.replicas

    def keeping(node: str) -> tuple[int, int, str]:
        """How much a replica is worth: those with the least go."""
        report = found.get(node)
        if node not in loads:
            return 0, 0, node
        if node not in ready:
            return 1, -loads[node], node
        leads = report is not None and report.role == "leader"
        return 2 + leads + 2 * (node == fact.leader), -loads[node], node

    going = set(sorted(fact.replicas, key=keeping)[:surplus])
    return tuple(node for node in fact.replicas if node not in going)
