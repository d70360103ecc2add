"""Faults of an object store: its clients are killed and paused, on top of all faults below it.

Invariants:
- When a client's machine is killed, it starts again with empty memory and continues its work.
- After `stop` every client runs.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.simulation.blob_nodes import StoreNode
from tests.simulation.disturbances import Disturbed
from tests.simulation.herd_nodes import LOG
from tests.simulation.nodes import BookieNode, ClientNode, World
from tests.simulation.replica_faults import ReplicaNemesis
from tests.simulation.replica_nodes import ReplicaNode
from tests.simulation.workload import Workload

_KINDS: Final = ("kill store", "kill store", "pause store", "pause store for long", "cut store")
_LONG_S: Final = 12.0


class BlobNemesis(ReplicaNemesis):
    """Does harm to bookies, links, metadata, replicas and clients of the store."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        bookies: Sequence[BookieNode],
        replicas: Sequence[ReplicaNode],
        stores: Sequence[StoreNode],
        bystander: ClientNode,
        workload: Workload,
    ) -> None:
        super().__init__(world, rng, bookies, replicas, bystander, workload, log=LOG)
        self._stores = stores
        self._clients = [*replicas, *stores]
        own = [kind for kind in _KINDS if rng.random() < 0.6] or ["kill store"]
        self._kinds = own * rng.choice([2, 4, 8]) + self._kinds

    def stop(self) -> None:
        """End all harm: everything that can run runs."""
        super().stop()
        for node in self._stores:
            self._world.loop.resume(node.process)

    def _disturbed(self) -> Sequence[Disturbed]:
        return [*self._replicas, *self._stores, *self._bookies]

    def _strike(self, kind: str) -> None:
        if kind not in _KINDS:
            super()._strike(kind)
            return
        node = self._rng.choice(self._stores)
        strikes: dict[str, Callable[[], bool]] = {
            "kill store": lambda: self._kill(node),
            "pause store": lambda: self._pause(node),
            "pause store for long": lambda: self._pause_long(node),
            "cut store": lambda: self._cut(node),
        }
        if strikes[kind]():
            self._world.trace.fault(kind, node.name)

    def _pause_long(self, node: StoreNode) -> bool:
        """Longer than anything that a round of collection waits for."""
        process, loop = node.process, self._world.loop
        if process.paused or not process.alive:
            return False
        loop.pause(process)
        loop.deliver_at(loop.now + _LONG_S, loop.world, loop.resume, process)
        return True
