"""One seed is one run of three replicas of a tablespace: transfers, lists, faults, peace, verdict.

Invariants:
- The sum of all accounts is the same in every snapshot, on leaders and followers, all the time.
- The history of lists contains no anomaly that the transactions' isolation level forbids.
- After the faults have stopped, each account holds the sum of its committed transfers, and all
  replicas have the same rows, including one that starts empty.
"""

import asyncio
import random
from contextlib import nullcontext
from typing import Final

from engine.ledger.settings import ClientSettings
from engine.replica.contract import Role
from herd.schema import Table
from herd.settings import HerdSettings
from herd.transaction import Isolation
from tests.herd.spaces import index_is_right
from tests.serializability import READ_COMMITTED, SNAPSHOT, check
from tests.simulation.checkpoints import Checkpoints, copies_in_memory
from tests.simulation.disturbances import UNDISTURBED
from tests.simulation.herd_nodes import LOG, HerdNode, balance_of
from tests.simulation.herd_workload import HerdLoad, HerdWorkload, balances
from tests.simulation.loop import SimLoop
from tests.simulation.nodes import ClientNode
from tests.simulation.oracles import Violation
from tests.simulation.replica_faults import ReplicaNemesis
from tests.simulation.replicas import (
    FAULTY_S_MAX,
    PEACE_S_MAX,
    REPLICAS,
    RUN_S_MAX,
    ReplicaScenario,
    _small_and_often,
)
from tests.simulation.running import Outcome, Show, check_tasks, play

TRANSACTIONS_MIN: Final = 120


def run_herd_seed(seed: int, show: Show = None) -> Outcome:
    """Run one seed. `show` is given each event in words."""
    with _small_and_often():
        return play(seed, HerdScenario, RUN_S_MAX, show)


class HerdScenario(ReplicaScenario):
    """One run."""

    def __init__(self, loop: SimLoop, seed: int, show: Show) -> None:
        super().__init__(loop, seed, show)
        rng = random.Random(f"herd scenario {seed}")
        # Older seeds lose messages from the beginning.
        self._uncalm = seed in UNDISTURBED
        self._herd_settings = HerdSettings(
            lock_timeout_ms=rng.choice([200, 1_000, 4_000]),
            idle_timeout_ms=rng.choice([1_000, 20_000]),
            row_locks_max=rng.choice([1, 3, 100_000]),
        )
        levels = ((Isolation.SNAPSHOT,), (Isolation.SNAPSHOT,), tuple(Isolation))
        self._herd_load = HerdLoad(
            transfers_share=rng.choice([0.3, 0.6]),
            isolations=rng.choice(levels),
            think_s=rng.choice([0.05, 0.3]),
            at_once=rng.choice([1, 2, 4]),
        )
        self._pause_s_max = rng.choice([0.02, 0.05, 0.6])
        self.nodes: list[HerdNode] = []
        self.checkpoints = Checkpoints(self.world, seed)

    async def run(self) -> None:
        """Tables first; then faults and work together; then peace; then the verdict."""
        try:
            with copies_in_memory():
                await self._run()
        finally:
            self.checkpoints.end()

    async def _run(self) -> None:
        """See `run`."""
        for node in self.bookies:
            node.start()
        await asyncio.sleep(1.0)
        self.nodes = [
            HerdNode(
                *(self.world, f"replica{number}", self._plan, self.oracle),
                *(self._herd_settings, self._pause_s_max),
            )
            for number in range(REPLICAS)
        ]
        self.replicas = list(self.nodes)
        with nullcontext() if self._uncalm else self._calm():
            await self._set_up()
        bystander = ClientNode(self.world, "bystander", ClientSettings(), lambda node: None)
        workload = HerdWorkload(self.world, self._load, self._herd_load, self.nodes, self.oracle)
        self.workload = workload
        workload.start()
        nemesis = ReplicaNemesis(
            self.world, self._rng, self.bookies, self.replicas, bystander, self._no_work(), log=LOG
        )
        self._ask_leaders(workload.write_at, LOG)
        self.world.disturbances.rest = workload.rest
        self.mover.start(self.replicas)
        self.checkpoints.start(self.nodes)
        harming = asyncio.create_task(nemesis.run(), name="nemesis")
        await self._until(self._enough, FAULTY_S_MAX)
        await self._until(self._harmed_at_work, FAULTY_S_MAX)
        await self._until(self._faulty, PEACE_S_MAX)
        nemesis.stop()
        self.mover.stopped = self.checkpoints.stopped = True
        harming.cancel()
        self.world.trace.event("peace")
        await self._until(lambda: workload.operations >= TRANSACTIONS_MIN, PEACE_S_MAX)
        workload.stopped = True
        await self._until(lambda: workload.ended, PEACE_S_MAX)
        await self._judge_herd(workload)

    def _enough(self) -> bool:
        return self.operations >= TRANSACTIONS_MIN and self._faulty()

    async def _set_up(self) -> None:
        def leader() -> HerdNode | None:
            leads = [n for n in self.nodes if n.replica and n.replica.role is Role.LEADER]
            return leads[0] if leads else None

        for _ in range(10):
            await self._until(lambda: leader() is not None, PEACE_S_MAX)
            node = leader()
            if node is None:
                break
            making = self._loop.spawn(node.process, node.set_up(), f"{node.name} set up")
            # Awaiting it would continue in its process, and end with it.
            if await self._until(making.done, PEACE_S_MAX) and making.result():
                return
            await asyncio.sleep(1.0)
        raise Violation(f"no tables could be made in peace: {self._status()}")

    # The verdict

    async def _judge_herd(self, workload: HerdWorkload) -> None:
        """In peace everything works, and everything promised is there."""
        if not workload.ended:
            raise Violation(f"work does not end in peace: {self._loop.waiting()}")
        if workload.operations < TRANSACTIONS_MIN:
            raise Violation(f"only {workload.operations} transactions: {self._status()}")
        await self._converge()
        await self._judge_rows(workload)
        if self.checkpoints.on:
            reader = ClientNode(self.world, "judge", ClientSettings(), lambda node: None)
            await self.checkpoints.judge(reader.client)
        empty = self._rng.choice(self.nodes)
        empty.crash()
        empty.wipe()
        empty.start()
        await self._converge()
        await self._judge_rows(workload)
        counts = self.world.trace.counts
        if not self._faulty():
            raise Violation(f"only {counts['faults']} faults: too few")
        if not counts["sums"]:
            raise Violation("the sum of the accounts was never checked")

    async def _judge_rows(self, workload: HerdWorkload) -> None:
        if not await self._until(lambda: any(n.readable for n in self.nodes), PEACE_S_MAX):
            raise Violation(f"nobody may answer reads in peace: {self._status()}")
        leader = next(node for node in self.nodes if node.readable)
        wanted = balances(workload.transfers)
        for node in self.nodes:
            found = [balance_of(row) for row in node.accounts()]
            if found != wanted:
                raise Violation(f"{node.name} has {found}, the transfers make {wanted}")
        assert leader.space is not None
        table = leader.space.catalog.table("accounts")
        assert isinstance(table, Table)
        index_is_right(leader.space, table)
        excluded = SNAPSHOT
        if Isolation.READ_COMMITTED in self._herd_load.isolations:
            excluded = READ_COMMITTED
        for anomaly in check(workload.history, leader.lists()):
            if anomaly.kind in excluded:
                raise Violation(str(anomaly))
        check_tasks(self.world)
