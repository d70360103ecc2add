"""One seed is one run of three replicas on five bookies: work, faults, peace and a verdict.

Invariants:
- A run does at least `OPERATIONS_MIN` calls and meets at least `FAULTS_MIN` faults.
- When the faults have stopped, one replica leads, all come to the same position with the same
  state, and everything that was ever acknowledged is in it, also in a replica that starts empty.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Final
from unittest.mock import patch

from engine.ledger.settings import ClientSettings
from engine.log.settings import LogSettings
from engine.metadata.memory import MemoryTree
from engine.replica import applier, entries
from engine.replica.contract import Role
from engine.replica.settings import ReplicaSettings
from engine.state.stored import StateSettings
from tests.simulation.drawing import draw_bookie_settings, draw_client_settings, draw_network_faults
from tests.simulation.leader_mover import LeaderMover
from tests.simulation.leaders import LeaderProbe
from tests.simulation.loop import SimLoop
from tests.simulation.metadata import MetadataFaults
from tests.simulation.network import Network, NetworkFaults
from tests.simulation.nodes import BookieNode, ClientNode, World
from tests.simulation.oracles import Oracle, Violation
from tests.simulation.repair import draw_repair
from tests.simulation.replica_faults import ReplicaNemesis
from tests.simulation.replica_nodes import DRIFT, LOG, ReplicaNode, ReplicaPlan
from tests.simulation.replica_oracle import ReplicaOracle
from tests.simulation.replica_workload import ReplicaLoad, ReplicaWorkload
from tests.simulation.running import Outcome, Show, check_tasks, play
from tests.simulation.trace import Trace
from tests.simulation.workload import Workload, WorkloadPlan

OPERATIONS_MIN: Final = 150
FAULTS_MIN: Final = 20
STRIKES_MIN: Final = 5
"""Crashes, partitions, pauses and their like; messages that get lost are faults besides."""
FAULTY_S_MAX: Final = 25.0
"""Twice as long where fewer than `_FAULTY_OPERATIONS_MIN` calls were answered by then."""
PEACE_S_MAX: Final = 300.0
RUN_S_MAX: Final = 3_000.0
REPLICAS: Final = 3
BOOKIES: Final = 5
_HASH_EVERY: Final = 20
_ENTRY_BYTES: Final = 400
_FAULTY_OPERATIONS_MIN: Final = 20
_LOOK_S: Final = 0.25
_LOOKS_A_CHECK: Final = 8
_QUORUMS: Final = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 4, 3), (3, 3, 3))


def run_replica_seed(seed: int, show: Show = None) -> Outcome:
    """Run one seed. `show` is given each event in words."""
    with _small_and_often():
        return play(seed, ReplicaScenario, RUN_S_MAX, show)


@contextmanager
def _small_and_often() -> Iterator[None]:
    """Replicas tell each other their hashes every few entries, and commands have small parts."""
    with (
        patch.object(applier, "HASH_EVERY", _HASH_EVERY),
        patch.object(entries, "_PART_BYTES", _ENTRY_BYTES - 1),
        patch.object(entries, "limits", SimpleNamespace(ENTRY_BYTES_MAX=_ENTRY_BYTES)),
    ):
        yield


class ReplicaScenario:
    """One run."""

    def __init__(self, loop: SimLoop, seed: int, show: Show) -> None:
        rng = random.Random(f"replica scenario {seed}")
        trace = Trace(loop, show)
        self._loop = loop
        self._rng = rng
        self.stripe_entries = rng.choice([4, 16, 64, 256])
        network = Network(loop, random.Random(f"network {seed}"), trace, draw_network_faults(rng))
        tree = MemoryTree("simulated")
        faults = MetadataFaults(
            lost_before_share=rng.choice([0.0, 0.0, 0.02, 0.1]),
            lost_after_share=rng.choice([0.0, 0.0, 0.02, 0.1]),
        )
        self.world = World(loop, seed, trace, network, tree, faults)
        self.oracle = ReplicaOracle()
        settings, repair = draw_bookie_settings(rng), draw_repair(seed)
        self.bookies = [
            BookieNode(self.world, f"bookie{number}", settings, repair) for number in range(BOOKIES)
        ]
        plan = _plan(rng, seed)
        self._plan = replace(plan, client=self.world.disturbances.patient(plan.client))
        self.world.disturbances.lease_s = plan.client.lease_ms / 1000
        self._load = _load(rng)
        self.replicas: list[ReplicaNode] = []
        self.workload: ReplicaWorkload | None = None
        self._looks = 0
        self.mover = LeaderMover(self.world, seed)
        self._probe: LeaderProbe | None = None

    @property
    def operations(self) -> int:
        """How many calls were answered."""
        return self.workload.operations if self.workload is not None else 0

    async def run(self) -> None:
        """Faults and work together; then peace; then the verdict."""
        for node in self.bookies:
            node.start()
        await asyncio.sleep(1.0)
        self.replicas = [
            ReplicaNode(self.world, f"replica{number}", self._plan, self.oracle)
            for number in range(REPLICAS)
        ]
        bystander = ClientNode(self.world, "bystander", ClientSettings(), lambda node: None)
        workload = ReplicaWorkload(self.world, self._load, self.replicas, self.oracle)
        self.workload = workload
        workload.start()
        nemesis = ReplicaNemesis(
            self.world, self._rng, self.bookies, self.replicas, bystander, self._no_work()
        )
        self._ask_leaders(workload.write_at)
        self.world.disturbances.rest = workload.rest
        self.mover.start(self.replicas)
        harming = asyncio.create_task(nemesis.run(), name="nemesis")
        await self._until(self._enough, FAULTY_S_MAX)
        await self._until(self._harmed_at_work, FAULTY_S_MAX)
        await self._until(self._faulty, PEACE_S_MAX)
        nemesis.stop()
        self.mover.stopped = True
        harming.cancel()
        self.world.trace.event("peace")
        await self._until(lambda: workload.operations >= OPERATIONS_MIN, PEACE_S_MAX)
        workload.stopped = True
        await self._until(lambda: workload.ended, PEACE_S_MAX)
        await self._judge(workload)

    def _ask_leaders(self, write: Callable[[ReplicaNode], None], log: str = LOG) -> None:
        """Ask every node that believes it leads from now on; `write` at the newest of them."""
        acknowledged = self.oracle.acknowledgements
        self._probe = LeaderProbe(self.world, self.replicas, acknowledged, log, write)

    @contextmanager
    def _calm(self) -> Iterator[None]:
        """Lose no messages for a while: with too many losses, no leader would last."""
        network, faults = self.world.network, self.world.metadata_faults
        drawn, network.faults = network.faults, NetworkFaults()
        shares = faults.lost_before_share, faults.lost_after_share
        faults.lost_before_share = faults.lost_after_share = 0.0
        try:
            yield
        finally:
            faults.lost_before_share, faults.lost_after_share = shares
            network.faults = drawn

    def _no_work(self) -> Workload:
        """For the nemesis, which could give clients of ledgers work."""
        plan = WorkloadPlan((), 0, (), 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0)
        return Workload(plan, Oracle(self.world.tree, self.world.trace))

    def _enough(self) -> bool:
        return self.operations >= OPERATIONS_MIN and self._faulty()

    def _harmed_at_work(self) -> bool:
        return self.operations >= _FAULTY_OPERATIONS_MIN and self._faulty()

    def _faulty(self) -> bool:
        counts = self.world.trace.counts
        return counts["faults"] >= FAULTS_MIN and counts["strikes"] >= STRIKES_MIN

    async def _until(self, reached: Callable[[], bool], seconds_max: float) -> bool:
        end_s = self._loop.now + seconds_max
        while not reached():
            if self._loop.now > end_s:
                return False
            self._look()
            await asyncio.sleep(_LOOK_S)
        self._look()
        return True

    def _look(self) -> None:
        self._looks += 1
        if self._looks % _LOOKS_A_CHECK == 0:
            check_tasks(self.world)
        if self._probe is not None:
            self._probe.check()
        for node in self.replicas:
            node.look()

    # The verdict

    async def _judge(self, workload: ReplicaWorkload) -> None:
        """In peace everything works, and everything promised is there."""
        if not workload.ended:
            raise Violation(f"work does not end in peace: {self._loop.waiting()}")
        if workload.operations < OPERATIONS_MIN:
            raise Violation(f"only {workload.operations} calls were answered: {self._status()}")
        self.oracle.judge_history()
        await self._converge()
        empty = self._rng.choice(self.replicas)
        empty.crash()
        empty.wipe()
        empty.start()
        await self._converge()
        if not self._faulty():
            raise Violation(f"only {self.world.trace.counts['faults']} faults: too few")

    async def _converge(self) -> None:
        """One leads, all have the same position, and their rows have everything acknowledged."""
        if not await self._until(self._converged, PEACE_S_MAX):
            raise Violation(f"replicas do not come together: {self._status()}")
        rows = [self._rows(node) for node in self.replicas]
        if rows.count(rows[0]) != len(rows):
            raise Violation(f"replicas at {self._status()} have different rows")
        for command in self.oracle.acknowledged:
            if b"m%d" % command not in rows[0]:
                raise Violation(f"command {command} was acknowledged and is lost")
        check_tasks(self.world)
        self.world.trace.event("converged", len(rows[0]))

    def _converged(self) -> bool:
        running = [node.replica for node in self.replicas if node.replica is not None]
        roles = [replica.role for replica in running]
        return (
            len(running) == REPLICAS
            and roles.count(Role.LEADER) == 1
            and len({replica.position for replica in running}) == 1
        )

    def _rows(self, node: ReplicaNode) -> dict[bytes, bytes]:
        assert node.replica is not None
        found, _ = node.replica.stale_read(lambda rows: rows.scan(b"\x01", None, 1_000_000))
        return dict(found)

    def _status(self) -> str:
        return "; ".join(
            f"{node.name} {'down' if node.replica is None else node.replica.role.value} "
            f"{'' if node.replica is None else tuple(node.replica.position)}"
            for node in self.replicas
        )


def _plan(rng: random.Random, seed: int) -> ReplicaPlan:
    ensemble, write_quorum, ack_quorum = rng.choice(_QUORUMS)
    lease_ms = rng.choice([400, 1_000, 1_500])
    return ReplicaPlan(
        client=replace(draw_client_settings(rng, seed), lease_ms=lease_ms, clock_drift=DRIFT),
        log=LogSettings(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            roll_bytes=rng.choice([2_000, 20_000, 1 << 20]),
            roll_entries=rng.choice([5, 30, 1_000]),
            roll_ms=rng.choice([0, 2_000]),
            pending_bytes_max=rng.choice([2_000, 1 << 20]),
            retention_ms=rng.choice([0, 0, 3_000]),
            turn_timeout_ms=rng.choice([3_000, 20_000]),
            look_interval_ms=rng.choice([200, 2_000]),
        ),
        replica=ReplicaSettings(
            retry_pause_ms_max=lease_ms,
            pending_bytes_max=rng.choice([1_000, 1 << 20]),
            unwritten_bytes_max=rng.choice([500, 1 << 20]),
            batch_commands_max=rng.choice([1, 4, 1_024]),
            snapshot_entries=rng.choice([0, 20, 100]),
        ),
        state=StateSettings(
            gather_bytes=rng.choice([200, 100_000]), gather_ms=rng.choice([10, 50, 1_000])
        ),
    )


def _load(rng: random.Random) -> ReplicaLoad:
    return ReplicaLoad(
        clients=rng.randint(2, 4),
        registers=rng.randint(1, 4),
        reads_share=rng.choice([0.2, 0.5]),
        conditional_share=rng.choice([0.0, 0.3, 0.8]),
        session_share=rng.choice([0.0, 0.5, 1.0]),
        repeated_share=rng.choice([0.0, 0.2]),
        sizes_bytes=rng.choice([(0,), (0, 200), (0, 0, 0, 1_500)]),
        think_s=rng.choice([0.05, 0.3, 1.0]),
        patience_s=rng.choice([4.0, 15.0]),
        answer_s=rng.choice([1.0, 3.0]),
    )
