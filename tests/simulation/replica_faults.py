"""Faults of replicas, on top of all faults of the cluster below them.

Invariants:
- Any replica may be wiped, all of them at once too: the log and its snapshots are enough.
- One bookie of the run may lose data for good, which three copies bear.
- After `stop` every replica runs, with a disk that works.
"""

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from engine.errors import EngineError, NotFound
from engine.log.log import ReplicatedLog
from engine.metadata.ledgers import LEDGERS, decode_metadata
from engine.metadata.memory import MemoryTree
from engine.replica.contract import Role
from tests.simulation.disturbances import Disturbed
from tests.simulation.faults import Nemesis
from tests.simulation.nodes import BookieNode, ClientNode, World
from tests.simulation.oracles import LedgerOracle, Oracle
from tests.simulation.replica_nodes import LOG, ReplicaNode
from tests.simulation.trace import Trace
from tests.simulation.workload import Workload

_KINDS = (
    "crash replica",
    "crash leader",
    "crash leader",
    "wipe replica",
    "wipe all replicas",
    "pause replica",
    "pause leader",
    "pause leader",
    "stop replica",
    "failing state",
    "cut replica",
    "cut leader",
    "expire replica",
    "fence log",
    "depose leader",
    "snapshot",
)
_NOT_FOR_CLIENTS = ("take over", "kill client", "pause client")


class LedgersInTree(Oracle):
    """Every ledger that the metadata store has at the moment."""

    def __init__(self, tree: MemoryTree, trace: Trace) -> None:
        super().__init__(tree, trace)
        self._memory = tree.tree

    def refresh(self) -> None:
        """Look again."""
        self.ledgers = {}
        for name in self._memory.children(LEDGERS):
            found = self._memory.get(f"{LEDGERS}/{name}")
            if found is not None and name.isdigit():
                ledger = LedgerOracle(int(name), b"", deferred_sync=False)
                ledger.metadata = decode_metadata(found.value)
                self.ledgers[int(name)] = ledger


class ReplicaNemesis(Nemesis):
    """Does harm to bookies, links, metadata and replicas."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        bookies: Sequence[BookieNode],
        replicas: Sequence[ReplicaNode],
        bystander: ClientNode,
        workload: Workload,
        *,
        log: str = LOG,
    ) -> None:
        self._tree = LedgersInTree(world.tree, world.trace)
        super().__init__(world, rng, self._tree, bookies, replicas, workload)
        self._replicas = replicas
        self._bystander = bystander
        self._log = log
        own = [kind for kind in _KINDS if rng.random() < 0.6] or ["crash leader"]
        common = [kind for kind in self._kinds if kind not in _NOT_FOR_CLIENTS]
        self._kinds = own * rng.choice([1, 2, 4]) + common

    def stop(self) -> None:
        """End all harm: everything that can run runs."""
        super().stop()
        for node in self._replicas:
            node.states.storage.fail_after = None
            if node.up and node.replica is not None and node.replica.role is Role.FAILED:
                node.crash()
            node.state_fails = False
            if not node.up:
                node.start()

    def _disturbed(self) -> Sequence[Disturbed]:
        return [*self._replicas, *self._replicas, *self._bookies]

    def _strike(self, kind: str) -> None:
        self._tree.refresh()
        if kind not in _KINDS:
            super()._strike(kind)
            return
        node = self._rng.choice(self._replicas)
        leader = self._leader() or node
        strikes: dict[str, Callable[[], bool]] = {
            "crash replica": lambda: self._crash_replica(node),
            "crash leader": lambda: self._crash_replica(leader),
            "wipe replica": lambda: self._wipe_replica(node),
            "wipe all replicas": self._wipe_all,
            "pause replica": lambda: self._pause(node),
            "pause leader": lambda: self._pause(leader),
            "stop replica": lambda: self._stop_replica(node),
            "failing state": lambda: self._fail_state(node),
            "cut replica": lambda: self._cut(node),
            "cut leader": lambda: self._cut(leader),
            "expire replica": lambda: self._expire(node),
            "fence log": lambda: self._meddle(self._fence()),
            "depose leader": lambda: self._meddle(self._depose()),
            "snapshot": lambda: self._snapshot(leader),
        }
        if strikes[kind]():
            self._world.trace.fault(kind, node.name, leader.name)

    def _leader(self) -> ReplicaNode | None:
        for node in self._replicas:
            if node.up and node.replica is not None and node.replica.role is Role.LEADER:
                return node
        return None

    def _may_lose(self, nodes: Sequence[BookieNode]) -> bool:
        # One bookie at most: a ledger may be on its way that no oracle has heard of.
        node, *others = nodes
        if others or (self.lossy and node.bookie_ids and node.bookie_ids[-1] not in self.lossy):
            return False
        return super()._may_lose(nodes)

    # Replicas

    def _crash_replica(self, node: ReplicaNode) -> bool:
        if not node.up:
            return False
        node.crash()
        self._mend_later(lambda: self._start_replica(node))
        return True

    def _start_replica(self, node: ReplicaNode) -> None:
        if not node.up:
            node.start()

    def _wipe_replica(self, node: ReplicaNode) -> bool:
        if not self._crash_replica(node):
            return False
        node.wipe()
        return True

    def _wipe_all(self) -> bool:
        wiped = [self._wipe_replica(node) for node in self._replicas]
        return any(wiped)

    def _stop_replica(self, node: ReplicaNode) -> bool:
        """Close it as for an upgrade. It ends when closing is done, or after a time-out."""
        if not node.up or not node.serves or node.process.paused:
            return False
        loop, process = self._world.loop, node.process
        loop.spawn(process, node.stop(), f"{node.name} stop")

        def end() -> None:
            if node.up and node.process is process:
                node.crash()
            self._start_replica(node)

        self._mend_later(end)
        return True

    def _fail_state(self, node: ReplicaNode) -> bool:
        """One write of the state fails; the replica that stopped for it is started again."""
        if not node.up or node.state_fails:
            return False
        storage, node.state_fails = node.states.storage, True
        storage.fail_after = self._rng.randrange(4)

        def mend() -> None:
            storage.fail_after = None
            if node.up:
                node.crash()
            node.state_fails = False
            self._start_replica(node)

        self._mend_later(mend)
        return True

    def _snapshot(self, node: ReplicaNode) -> bool:
        replica = node.replica
        if not node.up or replica is None:
            return False

        async def take() -> None:
            try:
                await replica.snapshot()
            except EngineError as error:
                self._world.trace.event("no snapshot", node.name, type(error).__name__)

        loop = self._world.loop

        def begin() -> None:
            task = loop.create_task(take(), name=f"{node.name} snapshot")
            self._world.disturbances.perhaps_cancel(task, rare=True)

        loop.deliver_at(loop.now, node.process, begin)
        return True

    # Somebody else at the log

    def _meddle(self, work: Coroutine[Any, Any, None]) -> bool:
        self._world.loop.spawn(self._bystander.process, work, "bystander")
        return True

    async def _fence(self) -> None:
        """Recover the last ledger, as a repair that took its writer for dead would."""
        try:
            listed = await ReplicatedLog(self._bystander.client, self._log).list()
            if listed.ledgers:
                await self._bystander.client.open_ledger(listed.ledgers[-1])
        except (EngineError, NotFound) as error:
            self._world.trace.event("not fenced", type(error).__name__)

    async def _depose(self) -> None:
        """Raise the epoch, and go away."""
        try:
            writer = await ReplicatedLog(self._bystander.client, self._log).lead()
            await writer.close()
        except EngineError as error:
            self._world.trace.event("not deposed", type(error).__name__)
