"""Queries every node that believes it leads, all the time: its answers must be up to date.

Invariants checked (a breach raises `Violation`):
- A node that answers a read of the newest state has applied everything that any node has
  acknowledged before. Clients' histories show this too, but this check is immediate and covers
  every row.
- The ledger of the named snapshot exists.
- No replica raises the epoch while another one leads whose lease holds. (Others may: an operator
  who deposes a leader, for one.)
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from engine.errors import EngineError
from engine.log.log_list import LOGS, decode_list
from engine.metadata.ledgers import LEDGERS
from engine.replica.contract import Role
from engine.replica.snapshots import decode_snapshot
from tests.simulation.acknowledged import Acknowledged
from tests.simulation.nodes import World
from tests.simulation.oracles import Violation
from tests.simulation.replica_nodes import ReplicaNode

_ASK_S: Final = 0.05


class LeaderProbe:
    """Asks for as long as the run lasts."""

    def __init__(
        self,
        world: World,
        nodes: Sequence[ReplicaNode],
        acknowledged: Acknowledged,
        log: str,
        write: Callable[[ReplicaNode], None],
    ) -> None:
        self._world = world
        self._nodes = nodes
        self._acknowledged = acknowledged
        self._write = write
        self._key = f"{LOGS}/{log}/list"
        self._snapshot_key = f"{LOGS}/{log}/snapshot"
        self._epoch = 0
        self._found: Violation | None = None
        world.tree.tree.watch(self._key, self._list_changed)
        self._asking = asyncio.create_task(self._ask(), name="leader probe")

    def check(self) -> None:
        """Raise what was found."""
        if self._found is not None:
            raise self._found
        if self._asking.done():
            self._asking.result()
        self._check_snapshot()

    def _check_snapshot(self) -> None:
        tree = self._world.tree.tree
        found = tree.get(self._snapshot_key)
        named = 0 if found is None else decode_snapshot(found.value).ledger_id
        if named and tree.get(f"{LEDGERS}/{named}") is None:
            raise Violation(f"the snapshot of the log is ledger {named}, which is deleted")

    async def _ask(self) -> None:
        while True:
            leaders = [node for node in self._nodes if _believes(node)]
            for node in leaders:
                self._ask_one(node)
            if len(leaders) > 1:
                # One of them is old. Let the new one have entries that the old one lacks.
                self._world.trace.counts["two leaders"] += 1
                self._write(max(leaders, key=_term))
            await asyncio.sleep(_ASK_S)

    def _ask_one(self, node: ReplicaNode) -> None:
        replica, known = node.replica, self._acknowledged
        assert replica is not None
        try:
            found = replica.read_now(lambda rows: replica.position)
        except EngineError:
            return
        if found < known.position:
            raise Violation(
                f"{node.process.name} answers reads as of {tuple(found)}, in term {replica.term}; "
                f"{known.by} has acknowledged {tuple(known.position)}"
            )

    def _list_changed(self) -> None:
        found = self._world.tree.tree.get(self._key)
        epoch = 0 if found is None else decode_list(found.value).epoch
        before, self._epoch = self._epoch, epoch
        raiser = self._world.loop.acting_for
        raised = before and epoch > before and raiser is not None
        if not raised or raiser not in [node.process for node in self._nodes]:
            return
        for node in self._nodes:
            replica = node.replica
            other = replica is not None and replica.role is Role.LEADER
            if other and node.up and node.process is not raiser and self._answers(node):
                self._found = Violation(
                    f"{raiser.name} raises the epoch to {epoch} while {node.process.name} leads, "
                    "and its lease holds"
                )

    def _answers(self, node: ReplicaNode) -> bool:
        assert node.replica is not None
        try:
            node.replica.read_now(lambda rows: None)
        except EngineError:
            return False
        return True


def _believes(node: ReplicaNode) -> bool:
    """Whether a node would answer now that it leads."""
    replica = node.replica
    return (
        replica is not None and replica.role is Role.LEADER and node.up and not node.process.paused
    )


def _term(node: ReplicaNode) -> int:
    assert node.replica is not None
    return node.replica.term
