"""One seed is one run of a log: leaders that take it over from each other, tails, truncation.

Invariants:
- A run does at least `OPERATIONS_MIN` operations, has at least `REIGNS_MIN` leaders and meets at
  least `FAULTS_MIN` faults.
- When the faults have stopped, the log is led and grows, one tail has seen all that ever was in
  it, and no ledger of the log is left that it does not list.
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from engine.errors import NoSuchLedger, OutcomeUnknown, Unavailable
from engine.expiry import CLOCK_DIFFERENCE_MS
from engine.ledger.settings import ClientSettings
from engine.log.log import ReplicatedLog
from engine.log.log_list import LOGS
from engine.log.log_writer import LogWriter
from engine.log.position import START, Position
from engine.log.settings import LogSettings
from engine.metadata.memory import MemoryTree
from tests.simulation.drawing import draw_bookie_settings, draw_client_settings, draw_network_faults
from tests.simulation.faults import Nemesis
from tests.simulation.log_oracle import LogOracle, require
from tests.simulation.log_removals import LogRemovals
from tests.simulation.log_workload import NAME, LogPlan, LogWorkload
from tests.simulation.loop import SimLoop
from tests.simulation.metadata import MetadataFaults
from tests.simulation.network import Network
from tests.simulation.nodes import WALL_START_MS, BookieNode, ClientNode, World
from tests.simulation.oracles import Violation
from tests.simulation.repair import draw_repair
from tests.simulation.replica_faults import LedgersInTree
from tests.simulation.running import Outcome, Show, check_tasks, play
from tests.simulation.trace import Trace

OPERATIONS_MIN: Final = 250
REIGNS_MIN: Final = 6
FAULTS_MIN: Final = 12
FAULTY_S_MAX: Final = 120.0
PEACE_S_MAX: Final = 300.0
RUN_S_MAX: Final = 3_000.0
BOOKIES: Final = 4
_QUORUMS: Final = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3))


def run_log_seed(seed: int, show: Show = None) -> Outcome:
    """Run one seed. `show` is given each event in words."""
    return play(seed, LogScenario, RUN_S_MAX, show)


class LogNemesis(Nemesis):
    """The faults of ledgers, and one that only logs have: the last ledger is fenced."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        bookies: Sequence[BookieNode],
        clients: Sequence[ClientNode],
        workload: LogWorkload,
        fence: Callable[[], None],
    ) -> None:
        self._ledgers = LedgersInTree(world.tree, world.trace)
        super().__init__(world, rng, self._ledgers, bookies, clients, workload)
        self._fence = fence
        self._kinds += ["fence log"] * rng.choice([0, 2, 6])

    def _strike(self, kind: str) -> None:
        self._ledgers.refresh()
        if kind != "fence log":
            super()._strike(kind)
            return
        self._fence()
        self._world.trace.fault(kind)

    def _may_lose(self, nodes: Sequence[BookieNode]) -> bool:
        # One bookie at most: a ledger may be on its way that no oracle has heard of.
        node, *others = nodes
        if others or (self.lossy and node.bookie_ids and node.bookie_ids[-1] not in self.lossy):
            return False
        return super()._may_lose(nodes)


class LogScenario:
    """One run."""

    def __init__(self, loop: SimLoop, seed: int, show: Show) -> None:
        rng = random.Random(f"log scenario {seed}")
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
        self.oracle = LogOracle(tree, trace, f"{LOGS}/{NAME}/list")
        settings, repair = draw_bookie_settings(rng), draw_repair(seed)
        self.bookies = [
            BookieNode(self.world, f"bookie{number}", settings, repair) for number in range(BOOKIES)
        ]
        self._client_settings = draw_client_settings(rng, seed)
        self._client_count = rng.randint(2, 4)
        plan = _plan(rng)
        if self.world.walls_differ:
            usual = replace(plan.settings, clock_difference_ms=CLOCK_DIFFERENCE_MS)
            plan = replace(plan, settings=usual)
            self.oracle.retention_s = usual.retention_ms / 1_000
            self.oracle.moment_s = self._moment_s
        self.workload = LogWorkload(plan, self.oracle)
        self.removals = LogRemovals(self.world, seed, plan.settings)
        self._archive: list[Position] = []
        self._archivist: ClientNode | None = None

    @property
    def operations(self) -> int:
        """How many entries were acknowledged."""
        return self.workload.operations

    async def run(self) -> None:
        """Faults and work together; then peace; then the verdict."""
        for node in self.bookies:
            node.start()
        await asyncio.sleep(1.0)
        self._archivist = ClientNode(self.world, "archivist", ClientSettings(), self._keep_archive)
        # Until its first pin is set, nothing keeps the beginning of the log for it.
        await self._until(lambda: bool(self.oracle.list.pins), PEACE_S_MAX)
        clients = [
            ClientNode(self.world, f"client{number}", self._client_settings, self.workload.start)
            for number in range(self._client_count)
        ]
        self.removals.start(self._client_settings)
        clients += self.removals.keepers
        nemesis = LogNemesis(
            self.world, self._rng, self.bookies, clients, self.workload, self._fence
        )
        harming = asyncio.create_task(nemesis.run(), name="nemesis")
        await self._until(self._enough, FAULTY_S_MAX)
        nemesis.stop()
        harming.cancel()
        self.world.trace.event("peace")
        await self._until(self._worked, PEACE_S_MAX)
        self.workload.stopped = self.removals.stopped = True
        await self._until(self._all_ended, PEACE_S_MAX)
        await self._judge()

    def _moment_s(self, listed_ms: int) -> float:
        """When the process whose call is being carried out had this time on its wall clock."""
        raiser = self._loop.acting_for
        machine = raiser.name.partition("#")[0] if raiser is not None else ""
        return (listed_ms - WALL_START_MS) / 1_000 - (self.world.wall_s(machine) or 0.0)

    def _log(self, node: ClientNode) -> ReplicatedLog:
        patient = replace(LogSettings(), read_patience_ms=10**9, clock_difference_ms=10**9)
        return ReplicatedLog(node.client, NAME, patient)

    def _keep_archive(self, node: ClientNode) -> None:
        loop = self.world.loop
        loop.spawn(node.process, self._read_all(node), "archivist reads")
        loop.spawn(node.process, self._renew_pin(node), "archivist pins")

    async def _read_all(self, node: ClientNode) -> None:
        await self.workload.follow(self._log(node), START, self._archive, math.inf)

    async def _renew_pin(self, node: ClientNode) -> None:
        """Nothing is dropped that the archivist has not read; its pin moves as it reads."""
        log = self._log(node)
        self.oracle.pinned("archive", math.inf)
        while True:
            try:
                await log.pin("archive", self._archive[-1] if self._archive else START, 10**9)
            except Unavailable:
                pass
            await asyncio.sleep(1.0)

    def _fence(self) -> None:
        """Somebody recovers the last ledger, as a repair might, though its leader is well."""
        node = self._archivist
        assert node is not None

        async def fence() -> None:
            ledgers = self.oracle.list.ledgers
            if ledgers:
                try:
                    reader = await node.client.open_ledger(ledgers[-1])
                    await reader.close()
                except (NoSuchLedger, Unavailable) as error:
                    # The leader may have dropped it from the list and deleted it meanwhile.
                    self.world.trace.event("not fenced", type(error).__name__)

        self.world.loop.spawn(node.process, fence(), "archivist fences")

    def _enough(self) -> bool:
        return self._worked() and self.world.trace.counts["faults"] >= FAULTS_MIN

    def _worked(self) -> bool:
        return self.operations >= OPERATIONS_MIN and len(self.oracle.writers) >= REIGNS_MIN

    def _all_ended(self) -> bool:
        return all(
            task.done()
            for process in self.world.processes
            if process.alive
            for task in process.tasks
            if task.get_name().endswith(" work")
        )

    async def _until(self, reached: Callable[[], bool], seconds_max: float) -> None:
        end_s = self._loop.now + seconds_max
        while not reached() and self._loop.now <= end_s:
            check_tasks(self.world)
            await asyncio.sleep(0.25)

    # The verdict

    async def _judge(self) -> None:
        """In peace the log is led and grows, and everything promised is there."""
        check_tasks(self.world)
        require(self._all_ended(), f"work does not end in peace: {self._loop.waiting()}")
        require(
            self._worked(),
            f"only {self.operations} operations of {len(self.oracle.writers)} leaders",
        )
        require(self.world.trace.counts["faults"] >= FAULTS_MIN, "too few faults")
        judge = ClientNode(self.world, "judge", ClientSettings(), lambda node: None)
        log = ReplicatedLog(judge.client, NAME, LogSettings())
        writer = await self._in_peace(log)
        oracle = self.oracle.leads(writer.epoch, writer.last)
        spans = await writer.append_many(oracle.bodies(10))
        oracle.on_acknowledged(0, 10, spans)
        await writer.close()
        last = writer.last
        await self._until(lambda: bool(self._archive) and self._archive[-1] == last, PEACE_S_MAX)
        self.oracle.judge(last, self._archive)
        await log.sweep(set(), writer.epoch)
        await self.removals.judge(judge)
        left = set(await judge.client.list_ledgers()) - set(self.oracle.list.ledgers)
        require(not left, f"ledgers {sorted(left)} are left, and nothing references them")
        self.world.trace.event("judged", tuple(last), len(self._archive))

    async def _in_peace(self, log: ReplicatedLog) -> LogWriter:
        deadline_s = self._loop.now + PEACE_S_MAX
        while True:
            try:
                return await log.lead()
            except (Unavailable, OutcomeUnknown) as error:
                if self._loop.now > deadline_s:
                    raise Violation(f"nobody can lead in peace: {error!r}") from error
                await asyncio.sleep(1.0)


def _plan(rng: random.Random) -> LogPlan:
    ensemble, write_quorum, ack_quorum = rng.choice(_QUORUMS)
    settings = LogSettings(
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        roll_bytes=rng.choice([500, 5_000, 1 << 20]),
        roll_entries=rng.choice([3, 20, 200]),
        roll_ms=rng.choice([0, 500, 5_000]),
        pending_bytes_max=rng.choice([500, 5_000, 1 << 20]),
        retention_ms=rng.choice([0, 0, 2_000]),
        clock_difference_ms=10**9,
        turn_timeout_ms=rng.choice([1_000, 10_000]),
        look_interval_ms=rng.choice([100, 2_000]),
        read_patience_ms=rng.choice([500, 5_000]),
    )
    return LogPlan(
        settings=settings,
        bursts_max=rng.choice([5, 20, 60]),
        burst_sizes=rng.choice([(1,), (1, 1, 5, 20), (1, 10, 60)]),
        think_s=rng.choice([0.01, 0.1, 0.5]),
        rest_s=rng.choice([1.0, 3.0, 10.0]),
        roll_share=rng.choice([0.02, 0.1, 0.3]),
        truncate_share=rng.choice([0.0, 0.05, 0.3]),
        sweep_share=rng.choice([0.0, 0.05]),
        pin_share=rng.choice([0.0, 0.3]),
        tails=rng.choice([1, 2]),
    )
