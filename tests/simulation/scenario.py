"""One seed is one run: a drawn cluster, drawn clients, drawn faults, then peace and a verdict.

Invariants:
- A run does at least `OPERATIONS_MIN` operations and meets at least `FAULTS_MIN` faults.
- A seed decides everything; its trace hash is the same in every process.
- When the faults have stopped, everything that can finish does so in bounded virtual time, every
  ledger is recovered, and all of it is read again and compared.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Final

from engine.errors import CannotRead, EngineError, NotEnoughBookies, Unavailable
from engine.ledger.quorum import UNKNOWN, Quorums, writable
from engine.ledger.settings import ClientSettings
from engine.ledger.writer import LedgerWriter
from engine.metadata.memory import MemoryTree
from tests.simulation.drawing import draw_bookie_settings, draw_client_settings, draw_network_faults
from tests.simulation.faults import Nemesis
from tests.simulation.ledger_operator import LedgerOperator
from tests.simulation.loop import SimLoop
from tests.simulation.metadata import MetadataFaults
from tests.simulation.network import Network
from tests.simulation.nodes import BookieNode, ClientNode, World
from tests.simulation.oracles import LedgerOracle, Oracle, Violation, may_lose
from tests.simulation.repair import ReplicationJudge, draw_repair
from tests.simulation.running import Outcome, check_tasks, play
from tests.simulation.trace import Trace
from tests.simulation.workload import Workload, WorkloadPlan

OPERATIONS_MIN: Final = 1_000
FAULTS_MIN: Final = 20
STRIKES_MIN: Final = 5
"""Crashes, partitions, pauses and their like; messages that get lost are faults besides."""
FAULTY_S_MAX: Final = 20.0
PEACE_S_MAX: Final = 300.0
RUN_S_MAX: Final = 3_000.0
OPERATED_BOOKIES_MIN: Final = 4
_QUORUMS: Final = (
    (3, 3, 2),
    (3, 2, 2),
    (4, 3, 2),
    (5, 3, 2),
    (3, 3, 3),
    (2, 2, 2),
    (4, 4, 3),
    (5, 3, 3),
    (3, 2, 1),
    (2, 2, 1),
    (1, 1, 1),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed that broke a promise."""

    seed: int
    error: str


def run_seeds(seeds: Iterable[int]) -> list[Failure]:
    """Run seeds in this process; the failures, in order. Deterministic."""
    outcomes = [run_seed(seed) for seed in seeds]
    return [Failure(found.seed, found.error) for found in outcomes if found.error is not None]


def run_seed(seed: int, show: Callable[[str], None] | None = None) -> Outcome:
    """Run one seed. `show` is given each event in words."""
    return play(seed, Scenario, RUN_S_MAX, show)


class Scenario:
    """One run."""

    def __init__(self, loop: SimLoop, seed: int, show: Callable[[str], None] | None) -> None:
        rng = random.Random(f"scenario {seed}")
        trace = Trace(loop, show)
        self._loop = loop
        self._rng = rng
        self.stripe_entries = rng.choice([4, 16, 64, 256])
        network = Network(loop, random.Random(f"network {seed}"), trace, draw_network_faults(rng))
        tree = MemoryTree("simulated")
        metadata_faults = MetadataFaults(
            lost_before_share=rng.choice([0.0, 0.0, 0.02, 0.1]),
            lost_after_share=rng.choice([0.0, 0.0, 0.02, 0.1]),
        )
        self.world = World(loop, seed, trace, network, tree, metadata_faults)
        self.oracle = Oracle(tree, trace)
        bookie_count = rng.randint(3, 6)
        self._repair = draw_repair(seed)
        settings = draw_bookie_settings(rng)
        self.bookies = [
            BookieNode(self.world, f"bookie{number}", settings, self._repair)
            for number in range(bookie_count)
        ]
        plan = _plan(rng, bookie_count)
        self.workload = Workload(plan, self.oracle)
        self._client_settings = draw_client_settings(rng, seed)
        hosts = [node.settings.host for node in self.bookies]
        strict = len({*hosts} - {""}) > 2 and random.Random(f"strict {seed}").random() < 0.4
        if strict and all(_on_two_hosts(hosts, sizes) for sizes in plan.quorums):
            self._client_settings = replace(self._client_settings, survives="host")
        self.oracle.host_of = self._host_of
        self._client_count = rng.randint(2, 4)

    def _host_of(self, bookie_id: str) -> str:
        """Where a bookie really is, "" if it does not say so."""
        return next(
            (node.settings.host for node in self.bookies if bookie_id in node.bookie_ids), ""
        )

    @property
    def operations(self) -> int:
        """How many came to an end."""
        return self.workload.operations

    async def run(self) -> None:
        """Faults and work together; then peace; then the verdict."""
        for node in self.bookies:
            node.start()
        await asyncio.sleep(1.0)
        clients = [
            ClientNode(self.world, f"client{number}", self._client_settings, self.workload.start)
            for number in range(self._client_count)
        ]
        nemesis = Nemesis(self.world, self._rng, self.oracle, self.bookies, clients, self.workload)
        operator = self._operator()
        harming = asyncio.create_task(nemesis.run(), name="nemesis")
        await self._until(self._enough, FAULTY_S_MAX)
        await self._until(self._faulty, PEACE_S_MAX)
        nemesis.stop()
        harming.cancel()
        self.world.trace.event("peace")
        await self._until(lambda: self.workload.operations >= OPERATIONS_MIN, PEACE_S_MAX)
        self.workload.stopped = True
        if operator is not None:
            operator.stopped = True
        await self._until(self._all_ended, PEACE_S_MAX)
        check_tasks(self.world)
        await self._judge(nemesis.lossy)
        self._check_counts()

    def _operator(self) -> LedgerOperator | None:
        """In disturbed runs somebody restores ledgers and empties bookies meanwhile."""
        disturbances = self.world.disturbances
        if not disturbances.on or len(self.bookies) < OPERATED_BOOKIES_MIN:
            return None
        node = ClientNode(self.world, "operator", self._client_settings, lambda node: None)
        rng = random.Random(f"{disturbances.rng.random()} operator")
        operator = LedgerOperator(node, rng, self.oracle, self.bookies, self._repair)
        operator.start()
        return operator

    def _enough(self) -> bool:
        return self.workload.operations >= OPERATIONS_MIN and self._faulty()

    def _faulty(self) -> bool:
        counts = self.world.trace.counts
        return counts["faults"] >= FAULTS_MIN and counts["strikes"] >= STRIKES_MIN

    def _all_ended(self) -> bool:
        live = {id(process) for process in self.world.processes if process.alive}
        owned = [
            task
            for process in self.world.processes
            if id(process) in live
            for task in process.tasks
            if " work " in task.get_name()
        ]
        return all(task.done() for task in owned)

    async def _until(self, reached: Callable[[], bool], seconds_max: float) -> None:
        end = self._loop.now + seconds_max
        while not reached():
            if self._loop.now > end:
                return
            check_tasks(self.world)
            await asyncio.sleep(0.25)

    def _check_counts(self) -> None:
        if self.workload.operations < OPERATIONS_MIN:
            raise Violation(f"only {self.workload.operations} operations came to an end")
        if not self._faulty():
            raise Violation(f"only {self.world.trace.counts['faults']} faults: too few")

    # The verdict

    async def _judge(self, lossy: set[str]) -> None:
        """In peace everything works, and everything promised is there.

        A ledger that was created on a bookie just after that bookie was wiped may have lost more
        bookies than the promise allows before its first entry: its entries stay readable, but it
        may stay open. The same holds if a bookie was wiped before it first served.
        """
        await self._until(lambda: all(node.service for node in self.bookies), PEACE_S_MAX)
        if not all(node.service or node.damaged for node in self.bookies):
            raise Violation("a bookie does not come back in peace")
        await self._until(lambda: all(node.registered for node in self.bookies), PEACE_S_MAX)
        if not all(node.registered for node in self.bookies):
            raise Violation("a bookie that serves is not registered with the session it has")
        served = {name for node in self.bookies for name in node.bookie_ids}
        lossy = lossy | {
            name
            for ledger in self.oracle.ledgers.values()
            if ledger.metadata is not None
            for name in ledger.metadata.bookies() - served
        }
        if not self._all_ended():
            raise Violation(f"work does not end in peace: {self._loop.waiting()}")
        judge = ClientNode(self.world, "judge", ClientSettings(), lambda node: None)
        for ledger in self.oracle.ledgers.values():
            if not ledger.deleted and _promised(ledger, lossy):
                await self._judge_ledger(judge, ledger)
        if self._repair is not None:
            await self._judge_replication(judge, lossy)
        writer = await self._create_in_peace(judge)
        ledger = self.oracle.created(writer.ledger_id, b"", deferred_sync=False)
        ledger.on_acknowledged(await writer.append_many(ledger.bodies(10, 0)))
        await writer.close()
        await self._judge_ledger(judge, ledger)

    async def _judge_replication(self, judge: ClientNode, lossy: set[str]) -> None:
        """With repair, every ledger that the promise covers is fully replicated in the end."""
        assert self._repair is not None
        ledgers = [
            ledger
            for ledger in self.oracle.ledgers.values()
            if not ledger.deleted and ledger.closed_last is not None and _promised(ledger, lossy)
        ]
        await ReplicationJudge(judge, self.bookies, self._repair).judge(ledgers)

    async def _create_in_peace(self, judge: ClientNode) -> LedgerWriter:
        """Create a ledger. Bookies notice a little later that their disk has room again."""
        deadline = self._loop.now + 60.0
        while True:
            try:
                return await judge.client.create_ledger(3, 3, 2)
            except NotEnoughBookies:
                if self._loop.now > deadline:
                    raise
                await asyncio.sleep(1.0)

    async def _judge_ledger(self, judge: ClientNode, ledger: LedgerOracle) -> None:
        deadline = self._loop.now + 120.0
        while True:
            try:
                reader = await judge.client.open_ledger(ledger.ledger_id, password=ledger.password)
                last = reader.last_add_confirmed
                if last != ledger.closed_last:
                    raise Violation(f"ledger {ledger.ledger_id}: two ends")
                await self.workload.read(reader, ledger, 0, last)
                await reader.close()
                self.world.trace.event("judged", ledger.ledger_id, last)
                return
            except (CannotRead, Unavailable) as error:
                if self._loop.now > deadline:
                    raise Violation(
                        f"ledger {ledger.ledger_id}: not in peace: {error!r}"
                    ) from error
                await asyncio.sleep(1.0)
            except EngineError as error:
                raise Violation(f"ledger {ledger.ledger_id}: in peace: {error!r}") from error


def _promised(ledger: LedgerOracle, lossy: set[str]) -> bool:
    """Whether each fragment of a ledger lost only bookies that it has to survive the loss of."""
    assert ledger.metadata is not None
    return may_lose(ledger.metadata, lossy)


def _on_two_hosts(hosts: list[str], sizes: tuple[int, int, int]) -> bool:
    """Whether some ensemble of the bookies can store every entry on two hosts."""
    quorums = Quorums(*sizes, 1)
    if quorums.ack == 1:
        return True
    numbers = [hosts.index(host) if host else UNKNOWN for host in hosts]
    every = range(quorums.ensemble)
    return any(
        writable(quorums.with_domains(chosen), every)
        for chosen in permutations(numbers, quorums.ensemble)
    )


def _plan(rng: random.Random, bookie_count: int) -> WorkloadPlan:
    fitting = [quorums for quorums in _QUORUMS if quorums[0] <= bookie_count]
    weights = [4 if quorums[2] > 1 else 1 for quorums in fitting]
    return WorkloadPlan(
        quorums=tuple(rng.choices(fitting, weights, k=rng.randint(1, 3))),
        bursts_max=rng.choice([5, 30, 100]),
        burst_sizes=rng.choice([(1,), (1, 1, 5, 20), (1, 10, 60), (3, 30, 200)]),
        think_s=rng.choice([0.01, 0.1, 0.5]),
        deferred_share=rng.choice([0.0, 0.0, 0.3, 1.0]),
        close_share=rng.choice([0.3, 0.8]),
        delete_share=rng.choice([0.0, 0.0, 0.1]),
        write_weight=6,
        recover_weight=rng.choice([0, 1, 2, 5]),
        tail_weight=rng.choice([0, 2, 6]),
        loops=rng.choice([1, 2]),
    )
