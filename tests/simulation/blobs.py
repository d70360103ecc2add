"""One seed is one run of an object store: clients, collection, faults, recovery, final checks.

Three replicas hold its tablespace, five bookies its ledgers; three machines put, read, append, copy
and delete, and each of them collects the garbage of all. In some runs three more replicas hold a
second tablespace, and buckets are moved from one to the other while they are in use.

Invariants:
- Every object that is read is complete and of one put, nothing that was acknowledged is lost, and
  the history of every name is linearizable, while ledgers are compacted and deleted all the time.
- After the faults have stopped and some rounds of collection have run, every object with a name or
  a kept id is complete, every row is correct, and no unused ledger is left.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final
from unittest.mock import patch

from blobit import compaction, moving
from blobit.copying import copy_part
from blobit.errors import BlobError
from blobit.garbage_settings import GarbageSettings
from blobit.naming import pool_tablespace_name
from blobit.object_id import ObjectId
from blobit.settings import BlobSettings
from blobit.tables import REGISTRY
from blobit.writers import LedgerPool
from engine.ledger.reader import LedgerReader
from engine.ledger.settings import ClientSettings
from herd.reading_log import log_of
from herd.settings import HerdSettings
from tests.simulation.blob_faults import BlobNemesis
from tests.simulation.blob_nodes import SpaceNode, StoreNode
from tests.simulation.blob_oracle import BlobOracle
from tests.simulation.blob_verdict import BlobVerdict
from tests.simulation.blob_workload import BlobLoad, BlobWorkload
from tests.simulation.disturbances import OLDER, UNDISTURBED
from tests.simulation.herd_nodes import LOG, SPACE
from tests.simulation.leaders import LeaderProbe
from tests.simulation.loop import SimLoop
from tests.simulation.nodes import ClientNode
from tests.simulation.oracles import Violation
from tests.simulation.replica_nodes import ReplicaPlan
from tests.simulation.replica_oracle import ReplicaOracle
from tests.simulation.replicas import (
    BOOKIES,
    FAULTS_MIN,
    PEACE_S_MAX,
    REPLICAS,
    ReplicaScenario,
)
from tests.simulation.running import Outcome, Show, check_tasks, play

CALLS_MIN: Final = 70
STORES: Final = 3
MOVES_SHARE: Final = 0.4
"""Of the runs: those in which buckets are moved."""
SECOND: Final = "barn"
"""The tablespace that buckets are moved to."""
FAULTY_S_MAX: Final = 25.0
RUN_S_MAX: Final = 3_000.0
_ROUNDS_MAX: Final = 12
_STILL_S: Final = 3.0


def run_blob_seed(seed: int, show: Show = None) -> Outcome:
    """Run one seed. `show` is given each event in words."""
    with (
        patch.object(compaction, "copy_part", _slow_copies(seed)),
        patch.object(moving, "STILL_S", _STILL_S),
    ):
        return play(seed, BlobScenario, RUN_S_MAX, show)


def _slow_copies(seed: int) -> Callable[[LedgerReader, ObjectId, LedgerPool], Awaitable[ObjectId]]:
    """Compaction commits a copy some time after it was made, so names change meanwhile."""
    rng = random.Random(f"copies {seed}")

    async def copy(reader: LedgerReader, part: ObjectId, pool: LedgerPool) -> ObjectId:
        copied = await copy_part(reader, part, pool)
        await asyncio.sleep(rng.choice((0.0, 0.5, 3.0)))
        return copied

    return copy


class BlobScenario(ReplicaScenario):
    """One run."""

    def __init__(self, loop: SimLoop, seed: int, show: Show) -> None:
        super().__init__(loop, seed, show)
        rng = random.Random(f"blob scenario {seed}")
        self._herd_settings = HerdSettings(
            lock_timeout_ms=rng.choice([1_000, 4_000]),
            idle_timeout_ms=rng.choice([1_000, 5_000]),
        )
        self._plan = _roomy(self._plan)
        self._store_settings = _store_settings(rng)
        self._store_client = _client_settings(rng)
        self._blob_load = _load(rng)
        rng = random.Random(f"blob moves {seed}")
        if rng.random() < MOVES_SHARE and seed not in OLDER | UNDISTURBED:
            self._blob_load = replace(self._blob_load, move_s=rng.choice([2.0, 5.0]))
        self._probes: list[LeaderProbe] = []
        self.blob_oracle = BlobOracle()
        self.nodes: dict[str, list[SpaceNode]] = {}
        """The machines of each tablespace."""
        self.stores: list[StoreNode] = []

    @property
    def operations(self) -> int:
        """How many calls were answered."""
        return self.blob_oracle.answered

    async def run(self) -> None:
        """Faults and work together; then peace; then the verdict."""
        for bookie in self.bookies:
            bookie.start()
        await asyncio.sleep(1.0)
        self._start_replicas()
        load = BlobWorkload(self.world, self._blob_load, self.blob_oracle)
        self.stores = [
            StoreNode(
                *(self.world, f"store{number}", self._store_client, self._store_settings),
                *(self.nodes, load.begin),
            )
            for number in range(STORES)
        ]
        bystander = ClientNode(self.world, "bystander", ClientSettings(), lambda node: None)
        await self._until(lambda: self.operations > 0, PEACE_S_MAX)
        nemesis = BlobNemesis(
            *(self.world, self._rng, self.bookies, self.replicas, self.stores),
            *(bystander, self._no_work()),
        )
        self.mover.start(self.replicas)
        harming = asyncio.create_task(nemesis.run(), name="nemesis")
        await self._until(self._enough, FAULTY_S_MAX)
        await self._until(self._harmed, PEACE_S_MAX)
        nemesis.stop()
        self.mover.stopped = True
        harming.cancel()
        self.world.trace.event("peace")
        await self._until(lambda: self.operations >= CALLS_MIN, PEACE_S_MAX)
        load.stopped = True
        await self._until(lambda: load.ended, PEACE_S_MAX)
        await self._judge_store(load)

    def _start_replicas(self) -> None:
        names = [REGISTRY, pool_tablespace_name(1)]
        moving = self._blob_load.move_s is not None
        known = [*names, pool_tablespace_name(2)] if moving else names

        def started(name: str, space: str, oracle: ReplicaOracle) -> list[SpaceNode]:
            return [
                SpaceNode(
                    *(self.world, f"{name}{number}", self._plan, oracle),
                    *(self._herd_settings, space, known),
                )
                for number in range(REPLICAS)
            ]

        first = started("replica", SPACE, self.oracle)
        self.nodes = dict.fromkeys(names, first)
        second: list[SpaceNode] = []
        if moving:
            oracle = ReplicaOracle()
            second = self.nodes[known[-1]] = started("second", SECOND, oracle)
        self.replicas = [*first, *second]
        self._probes = [
            LeaderProbe(self.world, nodes, nodes[0].oracle.acknowledgements, log, lambda node: None)
            for nodes, log in ((first, LOG), (second, log_of(SECOND)))
            if nodes
        ]

    def _look(self) -> None:
        super()._look()
        for probe in self._probes:
            probe.check()

    def _enough(self) -> bool:
        return self.operations >= CALLS_MIN and self._harmed()

    def _harmed(self) -> bool:
        return self.world.trace.counts["faults"] >= FAULTS_MIN

    # The verdict

    async def _judge_store(self, load: BlobWorkload) -> None:
        """In peace everything works, and everything promised is there."""
        if not load.ended:
            raise Violation(f"work does not end in peace: {self._loop.waiting()}")
        if self.operations < CALLS_MIN:
            raise Violation(f"only {self.operations} calls were answered: {self._status()}")
        self.blob_oracle.judge()
        judged: list[BlobError | None] = []

        async def judge(node: StoreNode) -> None:
            verdict = BlobVerdict(node, self.world, self.blob_oracle, load)
            await verdict.settle(_ROUNDS_MAX)
            await verdict.judge()
            judged.append(None)

        judging: list[asyncio.Task[None]] = []

        def begin(node: StoreNode) -> None:
            # Awaiting it would continue in its process.
            judging.append(self._loop.spawn(node.process, judge(node), "verdict"))

        for store in self.stores:
            store.kill()
        StoreNode(
            *(self.world, "judge", self._store_client, self._store_settings, self.nodes, begin)
        )
        [task] = judging
        await self._until(task.done, PEACE_S_MAX)
        if not task.done():
            raise Violation(f"the verdict does not come: {self._loop.waiting()}")
        task.result()
        check_tasks(self.world)
        faults = self.world.trace.counts["faults"]
        if faults < FAULTS_MIN:
            raise Violation(f"only {faults} faults: too few")


def _roomy(plan: ReplicaPlan) -> ReplicaPlan:
    """Settings that leave room for a store's transactions, with rolls that are not too frequent."""
    return replace(
        plan,
        client=replace(plan.client, writer_bytes_max=1 << 20, read_bytes_max=100_000),
        log=replace(plan.log, roll_bytes=200_000, roll_entries=1_000, pending_bytes_max=1 << 20),
        replica=replace(
            plan.replica,
            pending_bytes_max=1 << 20,
            unwritten_bytes_max=1 << 20,
            snapshot_entries=plan.replica.snapshot_entries * 10,
        ),
        state=replace(plan.state, gather_bytes=100_000),
    )


def _client_settings(rng: random.Random) -> ClientSettings:
    return ClientSettings(
        ensemble=min(BOOKIES, rng.choice([3, 3, 4])),
        write_quorum=3,
        ack_quorum=2,
        append_timeout_ms=rng.choice([500, 2_000]),
        read_timeout_ms=rng.choice([500, 2_000]),
        recovery_timeout_ms=rng.choice([2_000, 5_000]),
        metadata_timeout_ms=rng.choice([500, 2_000]),
        retry_pause_ms=20,
        quarantine_ms=rng.choice([200, 2_000]),
        speculative_read_ms=50,
    )


def _store_settings(rng: random.Random) -> BlobSettings:
    return BlobSettings(
        entry_bytes=rng.choice([50, 400]),
        stream_entry_bytes=rng.choice([100, 400]),
        ledger_bytes_max=rng.choice([1_500, 6_000]),
        shared_object_bytes_max=rng.choice([500, 1_200]),
        shared_pending_bytes_max=4_000,
        stream_pending_bytes_max=2_000,
        batch_bytes=500,
        ledger_idle_ms=rng.choice([200, 1_000]),
        ledgers_open_max=rng.choice([2, 64]),
        commit_patience_ms=8_000,
        upload_ttl_ms=3_000,
        garbage=GarbageSettings(
            grace_ms=rng.choice([0, 0, 500, 4_000]),
            settle_ms=rng.choice([0, 0, 300]),
            abandoned_ms=rng.choice([500, 2_000, 4_000]),
            orphan_ms=rng.choice([0, 0, 3_000]),
            live_share_min=rng.choice([0.5, 1.0, 1.0]),
            batch_rows=rng.choice([1, 3, 500]),
            batch_bytes=rng.choice([300, 100_000]),
        ),
    )


def _load(rng: random.Random) -> BlobLoad:
    return BlobLoad(
        lengths=rng.choice([(8, 60), (8, 200, 900), (200, 900, 4_000)]),
        sleeping_share=rng.choice([0.0, 0.05, 0.2]),
        sleeps_s=(0.5, 3.0, 12.0),
        think_s=rng.choice([0.05, 0.3]),
        collect_s=rng.choice([0.3, 1.0]),
        ttl_ms=rng.choice([500, 3_000]),
        at_once=rng.choice([2, 4]),
    )
