"""One seed is one run of three brokers, five workers and five bookies: faults, peace, a verdict.

Invariants:
- While it runs: what `BrokerOracle` says of attempts, limits and ends.
- When the faults have stopped, every task ends, whoever submitted it; no slot, no unique key and no
  transaction is held; of what was submitted there is what `BrokerVerdict` says; all replicas have
  the same rows, and so has one that starts empty.
"""

import asyncio
import random
from dataclasses import replace
from typing import Final

from broker import keys
from broker.connection import Run, WorkerLimits
from broker.leading.clock import DOUBT_MS, SETTLED_S
from broker.settings import BrokerSettings, Limit, Mapping
from broker.task import Status, decode_task
from engine.errors import EngineError
from engine.ledger.settings import ClientSettings
from tests.simulation.broker_faults import BrokerNemesis
from tests.simulation.broker_haste import HastyClient
from tests.simulation.broker_nodes import LOG, BrokerNode, given_by, tasks_of
from tests.simulation.broker_operator import FOR_EVER_MS, setting
from tests.simulation.broker_oracle import LIMITS, RESOURCES, BrokerOracle
from tests.simulation.broker_verdict import BrokerVerdict, in_words
from tests.simulation.broker_workers import WorkerNode
from tests.simulation.broker_workload import BrokerClient, BrokerWorkload, draw_load
from tests.simulation.loop import SimLoop
from tests.simulation.nodes import ClientNode
from tests.simulation.oracles import Violation
from tests.simulation.replicas import (
    FAULTS_MIN,
    PEACE_S_MAX,
    REPLICAS,
    RUN_S_MAX,
    ReplicaScenario,
    _small_and_often,
)
from tests.simulation.running import Outcome, Show, check_tasks, play

TASKS_MIN: Final = 45
WORKERS: Final = 5
BROKER_FAULTY_S_MAX: Final = 10.0
REST_S: Final = 18.0
"""Longer than a leader's lease, an election and a worker's lease together."""
CLOCKS_S: Final = (SETTLED_S + DOUBT_MS / 1_000) * 1.05 + 30.0
"""Longer than a leader with a wrong clock waits for dates, and keeps tasks that have ended."""
REPAIRED_SHARE: Final = 0.25
"""The share of runs with repair. Other kinds of run test repair, and it takes time."""
_HELD: Final = {
    "slots": keys.SLOT,
    "unique keys": keys.UNIQUE,
    "transactions": keys.TRANSACTION,
    "edges": keys.EDGE,
    "unsettled parents": keys.UNSETTLED,
    "active tasks": keys.ACTIVE,
    "ending transactions": keys.ENDING,
    "parents": keys.PARENTS,
    "schedules": keys.SCHEDULE,
}


def run_broker_seed(seed: int, show: Show = None) -> Outcome:
    """Run one seed. `show` is given each event in words."""
    with _small_and_often():
        return play(seed, BrokerScenario, RUN_S_MAX, show)


class BrokerScenario(ReplicaScenario):
    """One run."""

    def __init__(self, loop: SimLoop, seed: int, show: Show) -> None:
        super().__init__(loop, seed, show)
        rng = random.Random(f"broker scenario {seed}")
        if rng.random() >= REPAIRED_SHARE:
            for bookie in self.bookies:
                bookie.repair = None
        # Most of the run time is spent on followers' checks that find nothing.
        plan = self._plan
        self._plan = replace(
            plan,
            client=replace(plan.client, long_poll_ms=1_000),
            log=replace(plan.log, look_interval_ms=rng.choice([500, 2_000])),
        )
        self._settings = BrokerSettings(
            lease_ms=rng.choice([1_000, 2_000, 4_000]),
            aging_ms=rng.choice([0, 1_000]),
            transaction_ttl_ms=rng.choice([2_000, 20_000]),
        )
        self._broker_load = draw_load(rng)
        self._worker_limits = [_limits(rng) for _ in range(WORKERS)]
        self.tasks = BrokerOracle(loop)
        self.nodes: list[BrokerNode] = []
        self.workers: list[WorkerNode] = []
        self.clients: BrokerWorkload | None = None
        self.hasty: HastyClient | None = None

    @property
    def operations(self) -> int:
        """How many submits were acknowledged."""
        return self.clients.operations if self.clients is not None else 0

    async def run(self) -> None:
        """Limits first; then faults and work together; then peace; then the verdict."""
        for bookie in self.bookies:
            bookie.start()
        await asyncio.sleep(1.0)
        self.nodes = [
            BrokerNode(self.world, f"broker{n}", self._plan, self.oracle, self._settings)
            for n in range(REPLICAS)
        ]
        self.replicas = list(self.nodes)
        self.tasks.given = lambda run: given_by(self.nodes, run)
        self.clients = clients = BrokerWorkload(
            self.world, self._broker_load, self.nodes, self.tasks
        )
        await self._set_up(clients)
        self.workers = [
            WorkerNode(self.world, f"worker{number}", self.nodes, self.tasks, limits)
            for number, limits in enumerate(self._worker_limits)
        ]
        clients.start()
        bystander = ClientNode(self.world, "bystander", ClientSettings(), lambda node: None)
        nemesis = BrokerNemesis(
            *(self.world, self._rng, self.bookies, self.nodes, self.workers),
            *(bystander, self._no_work()),
        )
        self._ask_leaders(lambda node: None, LOG)
        disturbances = self.world.disturbances
        disturbances.rest, disturbances.rest_s = clients.rest, REST_S
        disturbances.others_come = self._restart_idle_workers
        disturbances.rests_max = min(disturbances.rests_max, 1)
        if disturbances.on:
            self._begin_haste(clients)
        harming = asyncio.create_task(nemesis.run(), name="nemesis")
        await self._until(self._enough, BROKER_FAULTY_S_MAX)
        await self._until(self._faulty, PEACE_S_MAX)
        await self._until(lambda: not disturbances.quiet, PEACE_S_MAX)
        nemesis.stop()
        harming.cancel()
        self.world.trace.event("peace")
        await self._until(lambda: self.operations >= TASKS_MIN, PEACE_S_MAX)
        clients.stopped = True
        await self._until(lambda: clients.ended, PEACE_S_MAX)
        await self._judge_brokers(clients)

    def _restart_idle_workers(self) -> None:
        """Restart some idle workers, which then look for a leader."""
        busy = [one.process for one in self.tasks.running.values()]
        idle = [node for node in self.workers if node.up and node.process not in busy]
        for node in idle[:2]:
            node.crash()
            node.start()

    def _look(self) -> None:
        super()._look()
        for node in self.nodes:
            self._check_memory(node)
        for one in self.tasks.running.values():
            if not one.stopped and one.process.alive:
                self._check_not_lost(one.run)

    def _check_memory(self, node: BrokerNode) -> None:
        """A leader's memory matches its rows, and it never has to rebuild its memory."""
        if node.broker is None or not node.process.alive or node.process.paused:
            return
        try:
            found = node.broker.check_memory()
        except EngineError:
            # Its term is over, but it does not know that yet.
            return
        if found:
            raise Violation(f"the memory of {node.name} differs from its rows: {found[:3]}")
        if node.mended:
            raise Violation(f"{node.name} rebuilt its memory: {node.mended[0]}")

    def _check_not_lost(self, run: Run) -> None:
        """No broker reports a task as lost while it is still running."""
        for node in self.nodes:
            row = node.look_at(lambda rows: rows.get(keys.numbered(keys.FINAL, run.id)))
            task = decode_task(row) if row is not None else None
            if task and task.status is Status.LOST and task.attempt == run.attempt:
                raise Violation(f"{node.name} has lost {in_words(task)}, and it still runs")

    def _begin_haste(self, clients: BrokerWorkload) -> None:
        process = self.world.process("hasty client")
        rng = random.Random(f"{self.world.disturbances.rng.random()} haste")
        self.hasty = hasty = HastyClient(clients, process, rng)
        clients.tasks.append(self._loop.spawn(process, hasty.hurry(), "hasty client work"))

    def _enough(self) -> bool:
        faults = self.world.trace.counts["faults"]
        return self.operations >= TASKS_MIN and faults >= FAULTS_MIN

    async def _set_up(self, clients: BrokerWorkload) -> None:
        process = self.world.process("setup")
        client = BrokerClient(clients, process)

        async def work() -> None:
            for name, limit in LIMITS.items():
                await client.until_done(setting("resource", name, Limit(limit)))
            for tenant, resources in RESOURCES.items():
                mapping = Mapping(resources=resources)
                await client.until_done(setting("mapping", tenant, mapping))

        making = self._loop.spawn(process, work(), "set up")
        with self._calm():
            if not await self._until(making.done, PEACE_S_MAX):
                raise Violation(f"no limits could be set in peace: {self._status()}")
            making.result()

    # The verdict

    async def _judge_brokers(self, clients: BrokerWorkload) -> None:
        """In peace everything works, and everything promised is there."""
        if not clients.ended:
            raise Violation(f"work does not end in peace: {self._loop.waiting()}")
        if self.operations < TASKS_MIN:
            raise Violation(f"only {self.operations} tasks were taken: {self._status()}")
        if not await self._until(self._all_ended, PEACE_S_MAX + CLOCKS_S):
            raise Violation(f"tasks do not end in peace: {self._unended()}")
        if self.hasty is not None:
            self.hasty.judge()
        if not await self._until(self._nobody_queued, PEACE_S_MAX):
            raise Violation(f"tasks have ended, yet queues are not empty: {self._queues()}")
        if not await self._until(self._purged, PEACE_S_MAX + CLOCKS_S):
            raise Violation("tasks are kept longer than they should be")
        await self._converge()
        self._judge_rows(clients)
        empty = self._rng.choice(self.nodes)
        empty.crash()
        empty.wipe()
        empty.start()
        await self._converge()
        self._judge_rows(clients)
        check_tasks(self.world)
        counts = self.world.trace.counts
        if counts["faults"] < FAULTS_MIN:
            raise Violation(f"only {counts['faults']} faults: too few")

    def _leader(self) -> BrokerNode | None:
        return next((node for node in self.nodes if node.serving), None)

    def _all_ended(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        return not (leader.some_rows(keys.ACTIVE) or leader.some_rows(keys.TRANSACTION))

    def _nobody_queued(self) -> bool:
        return self._queues() == (0, 0)

    def _queues(self) -> tuple[int, int] | None:
        """How many tasks wait and run, by the leader's memory."""
        leader = self._leader()
        if leader is None or leader.broker is None:
            return None
        scheduler = leader.broker.term.scheduler
        return scheduler.waiting, scheduler.running

    def _purged(self) -> bool:
        """Whether every task with a short retention was removed.

        If the time was set back, tasks that ended before are kept until that time comes again.
        """
        leader = self._leader()
        if leader is None or leader.broker is None:
            return False
        now_ms = leader.broker.term.time.now_ms()
        tasks = leader.look_at(lambda rows: tasks_of(rows, keys.FINAL)) or []
        return not any(
            task.retention_ms < FOR_EVER_MS and task.events[-1][0] <= now_ms for task in tasks
        )

    def _unended(self) -> str:
        leader = self._leader()
        if leader is None or leader.replica is None:
            return f"nobody leads: {self._status()}"
        found, _ = leader.replica.stale_read(lambda rows: tasks_of(rows, keys.ACTIVE))
        return "; ".join(map(in_words, found[:5])) or "a transaction stays open"

    def _judge_rows(self, clients: BrokerWorkload) -> None:
        for node in self.nodes:
            assert node.replica is not None
            for what, kind in _HELD.items():
                left = node.some_rows(kind)
                if left:
                    raise Violation(f"{node.name} still has {what}: {left}")
            found, _ = node.replica.stale_read(lambda rows: tasks_of(rows, keys.FINAL))
            BrokerVerdict(self.tasks, clients, found).judge()


def _limits(rng: random.Random) -> WorkerLimits:
    return WorkerLimits(
        places=rng.randint(2, 6),
        places_by_type=rng.choice([{}, {"mow": 1}, {"any": 2}]),
        share_percent=rng.choice([0, 0, 50]),
        resource_limits=rng.choice([{}, {"database": 1}]),
    )
