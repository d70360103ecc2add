"""An operator who makes replicas step down, in some disturbed runs.

Invariants checked:
- A replica that stepped down no longer leads in the same term.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from engine.errors import EngineError
from engine.replica.contract import Role
from herd.errors import Error
from tests.simulation.disturbances import OLDER, CallCancelled
from tests.simulation.herd_nodes import HerdNode
from tests.simulation.nodes import World
from tests.simulation.oracles import Violation
from tests.simulation.replica_nodes import ReplicaNode

SHARE: Final = 0.5


class LeaderMover:
    """One operator."""

    def __init__(self, world: World, seed: int) -> None:
        rng = random.Random(f"{seed}:leaders move")
        self.on = world.disturbances.on and seed not in OLDER and rng.random() < SHARE
        self.stopped = False
        self._world = world
        self._rng = rng
        self._pause_s = rng.choice([1.0, 3.0, 8.0])

    def start(self, nodes: Sequence[ReplicaNode]) -> None:
        """Move leaders from now on, until `stopped`."""
        if self.on:
            loop = self._world.loop
            loop.spawn(loop.world, self._move_again(nodes), "leaders move")

    async def _move_again(self, nodes: Sequence[ReplicaNode]) -> None:
        loop = self._world.loop
        while not self.stopped:
            await asyncio.sleep(self._rng.expovariate(1 / self._pause_s))
            leads = [node for node in nodes if node.up and _role_of(node) is Role.LEADER]
            if leads and not self.stopped:
                node = self._rng.choice(leads)
                loop.spawn(node.process, self._move(node), f"{node.name} gives way")

    async def _move(self, node: ReplicaNode) -> None:
        replica, patience_ms = node.replica, self._rng.choice([0, 100, 1_000])
        if replica is None:
            return
        leading = replica._leading
        if self._rng.random() < 0.5:
            replica.defer(3 * self._rng.random())
        self._world.trace.event("gives way", node.name)
        giving = replica.give_way(patience_ms)
        if isinstance(node, HerdNode) and node.space is not None:
            giving.close()
            giving = node.space.give_way(patience_ms)
        try:
            await self._world.disturbances.cancellable(giving, "give way")
        except (CallCancelled, EngineError, Error) as error:
            self._world.trace.event("not moved", node.name, type(error).__name__)
            return
        if leading is not None and replica._leading is leading:
            raise Violation(f"{node.process.name} stepped down, but still leads")
        self._world.trace.counts["moved"] += 1


def _role_of(node: ReplicaNode) -> Role | None:
    return None if node.replica is None else node.replica.role
