"""What happens to brokers and workers, beside all that happens to replicas and bookies.

Invariants:
- Wall clocks of brokers jump by hours, forward and back; monotonic ones do not.
- After `stop` every worker runs and every broker, all links work, and all clocks are right.
"""

import random
from collections.abc import Callable, Sequence

from tests.simulation.broker_nodes import LOG, BrokerNode
from tests.simulation.broker_workers import WorkerNode
from tests.simulation.disturbances import Disturbed
from tests.simulation.nodes import BookieNode, ClientNode, World
from tests.simulation.replica_faults import ReplicaNemesis
from tests.simulation.workload import Workload

_KINDS = (
    "crash worker",
    "crash worker",
    "pause worker",
    "cut worker",
    "half-cut worker",
    "hold worker",
    "drain worker",
    "jump clock",
)
_JUMPS_S = (-7_200.0, -90.0, 90.0, 3_600.0)


class BrokerNemesis(ReplicaNemesis):
    """Does harm to bookies, links, metadata, brokers and workers."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        bookies: Sequence[BookieNode],
        brokers: Sequence[BrokerNode],
        workers: Sequence[WorkerNode],
        bystander: ClientNode,
        workload: Workload,
    ) -> None:
        super().__init__(world, rng, bookies, brokers, bystander, workload, log=LOG)
        self._brokers = brokers
        self._workers = workers
        own = [kind for kind in _KINDS if rng.random() < 0.6] or ["crash worker"]
        self._kinds = [*self._kinds, *own * rng.choice([1, 2, 4])]
        # Many that are short: what lasts for long only keeps everybody waiting.
        self._pause_s = rng.choice([0.1, 0.2, 0.4])
        self._duration_s = rng.choice([0.3, 1.0, 3.0])

    def stop(self) -> None:
        """End all harm: everything that can run runs."""
        super().stop()
        for broker in self._brokers:
            broker.set_right()
        for node in self._workers:
            if not node.up:
                node.start()

    def _disturbed(self) -> Sequence[Disturbed]:
        return [*self._brokers, *self._brokers, *self._workers, *self._bookies]

    def _strike(self, kind: str) -> None:
        if kind not in _KINDS:
            super()._strike(kind)
            return
        worker, broker = self._rng.choice(self._workers), self._rng.choice(self._brokers)
        strikes: dict[str, Callable[[], bool]] = {
            "crash worker": lambda: self._crash_worker(worker),
            "pause worker": lambda: self._pause(worker),
            "cut worker": lambda: self._cut_worker(worker, out=True, back=True),
            "half-cut worker": lambda: self._half_cut(worker),
            "hold worker": lambda: self._hold_worker(worker, broker),
            "drain worker": lambda: self._drain(worker),
            "jump clock": lambda: self._jump(broker),
        }
        if strikes[kind]():
            self._world.trace.fault(kind, worker.name, broker.name)

    def _crash_worker(self, node: WorkerNode) -> bool:
        if not node.up:
            return False
        node.crash()

        def start() -> None:
            if not node.up:
                node.start()

        self._mend_later(start)
        return True

    def _half_cut(self, node: WorkerNode) -> bool:
        out = self._rng.random() < 0.5
        return self._cut_worker(node, out=out, back=not out)

    def _cut_worker(self, node: WorkerNode, *, out: bool, back: bool) -> bool:
        links = [
            self._world.network.link_to(node.name, broker.name) for broker in self._some_brokers()
        ]
        for link in links:
            link.blocked_out = link.blocked_out or out
            link.blocked_in = link.blocked_in or back
        self._mend_later(lambda: self._unblock(links))
        return True

    def _some_brokers(self) -> list[BrokerNode]:
        return self._rng.sample(list(self._brokers), self._rng.randint(1, len(self._brokers)))

    def _hold_worker(self, node: WorkerNode, broker: BrokerNode) -> bool:
        link = self._world.network.link_to(node.name, broker.name)
        link.holding = True
        self._mend_later(lambda: self._world.network.release(link))
        return True

    def _drain(self, node: WorkerNode) -> bool:
        if not node.up or node.worker is None or node.process.paused:
            return False
        worker = node.worker
        # In its own process, as a signal is.
        self._world.network.later(0.0, node.process, worker.drain)
        return True

    def _jump(self, node: BrokerNode) -> bool:
        node.jump(self._rng.choice(_JUMPS_S))
        return True
