"""One seed is one run of many tablespaces on five nodes; most are idle, and any can be used.

Invariants:
- The history of each tablespace contains no anomaly that the isolation level forbids, including
  stale reads.
- When faults have ended, every tablespace that is asked answers, and has everything that was
  committed.
- When nobody uses them, all tablespaces are suspended, no node runs a replica, and the load of the
  metadata store does not depend on the number of tablespaces.
"""

import asyncio
import random
from typing import Final

from engine.errors import EngineError
from engine.ledger.settings import ClientSettings
from herd.nodes.facts import SPACES, SpaceFact, decode_space, encode_fact
from herd.nodes.outlook import _SUSPENDED_A_REFRESH as _REFRESHED
from herd.nodes.settings import NodeSettings
from herd.settings import HerdSettings
from herd.transaction import Isolation
from tests.serializability import READ_COMMITTED, SNAPSHOT, Outcome, Transaction, check
from tests.simulation.group_faults import GroupNemesis, GroupOperator
from tests.simulation.group_nodes import GroupNode, GroupPlan
from tests.simulation.group_workload import GroupLoad, GroupWorkload
from tests.simulation.loop import SimLoop
from tests.simulation.nodes import ClientNode
from tests.simulation.oracles import Violation
from tests.simulation.replica_oracle import ReplicaOracle
from tests.simulation.replicas import (
    FAULTY_S_MAX,
    PEACE_S_MAX,
    RUN_S_MAX,
    ReplicaScenario,
    _small_and_often,
)
from tests.simulation.running import Outcome as RunOutcome
from tests.simulation.running import Show, check_tasks, play

GROUPS: Final = 200
NODES: Final = 5
TRANSACTIONS_MIN: Final = 80
_ASKED: Final = 10
"""How many unused tablespaces are also asked at the end."""
_QUIET_S: Final = 20.0


def run_group_seed(seed: int, show: Show = None) -> RunOutcome:
    """Run one seed. `show` is called with a description of each event."""
    with _small_and_often():
        return play(seed, GroupScenario, RUN_S_MAX, show)


class GroupScenario(ReplicaScenario):
    """One run."""

    def __init__(self, loop: SimLoop, seed: int, show: Show) -> None:
        super().__init__(loop, seed, show)
        rng = random.Random(f"group scenario {seed}")
        self._seed = seed
        levels = ((Isolation.SNAPSHOT,), (Isolation.SNAPSHOT,), tuple(Isolation))
        self._group_load = GroupLoad(
            clients=rng.choice([2, 4, 6]),
            isolations=rng.choice(levels),
            think_s=rng.choice([0.05, 0.3]),
            in_use=rng.choice([1, 3, 8]),
            moves_s=rng.choice([1.0, 3.0, 10.0]),
        )
        self._group_plan = GroupPlan(
            replica=self._plan,
            node=NodeSettings(
                look_ms=rng.choice([200, 500]),
                refresh_ms=rng.choice([2_000, 30_000]),
                grace_ms=rng.choice([1_000, 4_000, 60_000]),
                made_at_once=rng.choice([1, 8]),
                preference_ms=rng.choice([500, 3_000]),
                patience_ms=rng.choice([100, 1_000]),
                restart_ms=rng.choice([200, 2_000]),
                makes_default=False,
                suspend_after_ms=rng.choice([300, 1_500, 6_000]),
                resume_ms=rng.choice([500, 5_000]),
            ),
            herd=HerdSettings(
                lock_timeout_ms=rng.choice([200, 1_000, 4_000]),
                idle_timeout_ms=rng.choice([1_000, 20_000]),
            ),
            pause_s_max=rng.choice([0.0, 0.02, 0.05]),
        )
        self._space_oracles: dict[str, ReplicaOracle] = {}
        self.nodes: list[GroupNode] = []
        self.groups = [f"tenant{number:03}" for number in range(GROUPS)]
        self._group_rng = rng

    async def run(self) -> None:
        """Faults and work together; then peace; then the verdict."""
        for bookie in self.bookies:
            bookie.start()
        await asyncio.sleep(1.0)
        for group in self.groups:
            await self._name(group)
        self.nodes = [
            GroupNode(self.world, f"node{number}", self._group_plan, self._space_oracles)
            for number in range(NODES)
        ]
        self.replicas = list(self.nodes)
        await asyncio.sleep(1.0)
        bystander = ClientNode(self.world, "bystander", ClientSettings(), lambda node: None)
        work = GroupWorkload(self.world, self._load, self._group_load, self.nodes, self.groups)
        self.workload = work
        work.start()
        nemesis = GroupNemesis(
            *(self.world, self._rng, self.bookies, self.nodes, bystander, work, self._no_work())
        )
        operator = GroupOperator(bystander, self._seed, self.nodes)
        self.world.disturbances.rest = work.rest
        operator.start(work)
        harming = asyncio.create_task(nemesis.run(), name="nemesis")
        await self._until(self._enough, FAULTY_S_MAX)
        await self._until(self._harmed_at_work, FAULTY_S_MAX)
        await self._until(self._faulty, PEACE_S_MAX)
        nemesis.stop()
        operator.stopped = True
        harming.cancel()
        self.world.trace.event("peace")
        await self._until(lambda: work.operations >= TRANSACTIONS_MIN, PEACE_S_MAX)
        work.stopped = True
        await self._until(lambda: work.ended and operator.ended, PEACE_S_MAX)
        await self._judge_groups(work)

    async def _name(self, group: str) -> None:
        """Add a tablespace that was created long ago and that nobody uses."""
        uuid = f"{group}-{self._group_rng.getrandbits(32):08x}"
        nodes = self._group_rng.sample([f"node{number}" for number in range(NODES)], 3)
        fact = SpaceFact(uuid, 1, 3, tuple(nodes), suspended=True)
        await self.world.tree.session().create(f"{SPACES}/{group}", encode_fact(fact))

    def _enough(self) -> bool:
        return self.operations >= TRANSACTIONS_MIN and self._faulty()

    # The verdict

    async def _judge_groups(self, work: GroupWorkload) -> None:
        """Check that, without faults, everything works and no committed data is missing."""
        if not work.ended:
            names = [task.get_name() for task in work.tasks if not task.done()]
            raise Violation(f"work does not end in peace: {names}; {self._groups_status()}")
        if work.operations < TRANSACTIONS_MIN:
            raise Violation(f"only {work.operations} transactions: {self._groups_status()}")
        unused = [group for group in self.groups if group not in work.used]
        others = self._group_rng.sample(unused, min(_ASKED, len(unused)))
        for group in [*work.used, *others]:
            await self._judge_group(group, work)
        await self._judge_quiet()
        if not self._faulty():
            raise Violation(f"only {self.world.trace.counts['faults']} faults: too few")
        check_tasks(self.world)

    async def _judge_group(self, group: str, work: GroupWorkload) -> None:
        """Ask a tablespace for its lists, and compare them with its history."""
        asked = Asking(self.nodes, group)
        if not await self._until(lambda: asked.answered(self._loop), PEACE_S_MAX):
            raise Violation(f"{group} does not answer in peace: {self._groups_status()}")
        assert asked.answer is not None
        uuid, lists = asked.answer
        history = work.histories.get(uuid, [])
        excluded = SNAPSHOT
        if Isolation.READ_COMMITTED in self._group_load.isolations:
            excluded = READ_COMMITTED
        for anomaly in check(history, lists):
            if anomaly.kind in excluded:
                raise Violation(f"{group} ({uuid}): {anomaly}")
        if committed(history) and not lists:
            raise Violation(f"{group} ({uuid}) has lost its table")

    async def _judge_quiet(self) -> None:
        """Check that unused tablespaces are suspended and that idle nodes make few requests."""

        def at_rest() -> bool:
            return not any(node.running for node in self.nodes) and not self._active()

        if not await self._until(at_rest, PEACE_S_MAX):
            raise Violation(f"tablespaces are not suspended: {self._groups_status()}")
        stores = [node.store for node in self.nodes]
        before = sum(store.calls for store in stores)
        await asyncio.sleep(_QUIET_S)
        asked = (sum(store.calls for store in stores) - before) / _QUIET_S / NODES
        if asked > self._calls_max():
            raise Violation(f"an idle node makes {asked:.0f} metadata requests a second")
        self._look()

    def _calls_max(self) -> float:
        """How many metadata requests a node may make per second, none of them for a tablespace.

        It looks at all nodes, rereads some facts, renews its lease, and elects an auditor.
        """
        node, client = self._group_plan.node, self._plan.client
        looks = (NODES + 6) * 1_000 / node.look_ms
        refreshes = (_REFRESHED + 5) * 1_000 / node.refresh_ms
        return looks + refreshes + 20 * 1_000 / client.lease_ms

    def _active(self) -> list[str]:
        tree = self.world.tree.tree
        found = {name: tree.get(f"{SPACES}/{name}") for name in tree.children(SPACES)}
        return [name for name, at in found.items() if at and not decode_space(at.value).rests]

    def _groups_status(self) -> str:
        running = [
            f"{node.name} runs {name} as {hosted.report.role}"
            for node in self.nodes
            if node.node is not None
            for name, hosted in node.node._hosted.items()
        ]
        return f"{self._active()[:10]} are active; {'; '.join(running)}"


class Asking:
    """Asks one node after another for the lists of a tablespace until one answers."""

    def __init__(self, nodes: list[GroupNode], group: str) -> None:
        self.answer: tuple[str, dict[str, tuple[int, ...]]] | None = None
        self._nodes = nodes
        self._group = group
        self._turn = 0
        self._task: asyncio.Task[tuple[str, dict[str, tuple[int, ...]]]] | None = None

    def answered(self, loop: SimLoop) -> bool:
        """Whether there is an answer; if not, ask again or keep waiting."""
        if self._task is not None and self._task.done():
            if self._task.exception() is None:
                self.answer = self._task.result()
                return True
            if not isinstance(self._task.exception(), EngineError):
                raise Violation(f"{self._group}: {self._task.exception()!r}")
            self._task = None
        if self._task is None:
            node = self._nodes[self._turn % len(self._nodes)]
            self._turn += 1
            name = f"{node.name} is asked for {self._group}"
            self._task = loop.spawn(node.process, node.lists(self._group), name)
        return False


def committed(history: list[Transaction]) -> bool:
    """Whether a history contains a committed write."""
    return any(one.outcome is Outcome.COMMITTED and one.steps for one in history)
