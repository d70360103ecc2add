"""A cluster under maintenance as it really is: agents that die, actions that hang, nodes that go.

Invariants:
- A node is touched from the first line of its action until somebody who knows found it healthy.
- What the coordinator is told of a task is what a broker would know, not what really happened.
"""

from dataclasses import dataclass, field
from random import Random

import msgspec

from broker.commands import Spec
from broker.errors import NotInState
from broker.rollout_commands import RolloutRow
from broker.rollouts import operating
from broker.rollouts.actions import GO, HEALTHY, REFUSED, UNHEALTHY, WAIT
from broker.rollouts.document import (
    CHECK_NODE,
    EXECUTE,
    POST_CHECK,
    PRE_CHECK,
    Document,
    Params,
    Queue,
    Step,
)
from broker.rollouts.facts import End, EndKind, Facts, Plan
from broker.rollouts.plan import advance
from broker.rollouts.record import BUSY, COUNTED, ENDED, Phase, Rollout, encode_rollout, load


class _Payload(msgspec.Struct):
    step: Step


@dataclass
class Given:
    """A step's task."""

    part: str
    node: str
    agent: str
    begun: bool = False
    end: End | None = None


@dataclass
class World:
    """Nodes `a`, `b`, ...; the record as the log has it; and what really is."""

    rng: Random
    nodes: int = 5
    limit: int = 2
    document: Document = field(init=False)
    now_ms: int = 1_000_000
    touched: set[str] = field(default_factory=set)
    """Actions began here, and nobody who could know has said that all is well."""
    broken: set[str] = field(default_factory=set)
    """Really not healthy: checks say so."""
    tasks: dict[int, Given] = field(default_factory=dict)
    actions: list[str] = field(default_factory=list)
    operators_limit: int | None = None
    _known: tuple[int, Rollout] | None = None

    def __post_init__(self) -> None:
        self.names = [chr(97 + number) for number in range(self.nodes)]
        self.there = list(self.names)
        self.agents = set(self.names)
        queue = Queue(
            retry_count=self.rng.choice((0, 1, 2)),
            retry_ms=1_000,
            start_ms=20_000,
            breaker_ms=5_000,
            breaker_failures=self.rng.choice((1, 1, 2)),
            stale_ms=60_000,
        )
        self.document = Document(
            action="restart",
            version=1,
            limit=self.limit,
            cluster_name="geo",
            discovery="zookeeper:/geo",
            params=Params(workqueue_args=queue),
        )
        rollout = Rollout("geo-1", self.document, started_ms=self.now_ms, progress_ms=self.now_ms)
        self.row = RolloutRow("geo-1", 1, encode_rollout(rollout), "geo", False, [], "", 0, 0)

    @property
    def rollout(self) -> Rollout:
        """The record as it is now."""
        return load(self.row)

    @property
    def known(self) -> Rollout:
        """The same, to look at only: decoded once a change."""
        if self._known is None or self._known[0] != self.row.version:
            self._known = (self.row.version, load(self.row))
        return self._known[1]

    # The coordinator

    def look(self) -> tuple[int, Rollout, Plan]:
        """What a coordinator plans from what it sees now."""
        rollout = self.rollout
        under_way = {task: self.tasks[task] for task in rollout.tasks}
        ends = {task: each.end for task, each in under_way.items() if each.end is not None}
        unbegun = frozenset(t for t, each in under_way.items() if not each.begun and not each.end)
        discovered = tuple(self.there) if self.rng.random() < 0.9 else None
        facts = Facts(
            ends, unbegun, frozenset(self.agents), frozenset(), self.operators_limit, discovered
        )
        plan = advance(rollout, facts, self.now_ms)
        return self.row.version, rollout, plan

    def put(self, version: int, rollout: Rollout, plan: Plan) -> bool:
        """Compare and set, with the tasks, as the state machine does it."""
        if version != self.row.version:
            return False
        first = len(self.tasks) + 1
        for spec in plan.specs:
            self._submit(spec)
        ids = list(range(first, len(self.tasks) + 1))
        record, ended = encode_rollout(rollout), rollout.state in ENDED
        self.row = RolloutRow("geo-1", version + 1, record, "geo", ended, ids, "", 0, 0)
        for task in plan.cancels:
            given = self.tasks[task]
            if given.begun:
                self._lose(given)
            elif given.end is None:
                given.end = End(EndKind.UNBEGUN, why="cancelled")
        return True

    def _submit(self, spec: Spec) -> None:
        step = msgspec.json.decode(spec.payload, type=_Payload).step
        name, part = step.destnode, step.part
        others = [t for t in self.tasks.values() if t.node == name and t.end is None]
        assert part == CHECK_NODE or not [t for t in others if t.part != CHECK_NODE]
        if part == EXECUTE:
            rollout = self.known
            gone = {each for each, node in rollout.nodes.items() if node.phase is Phase.GONE}
            assert len(self.touched | gone | {name}) <= self.limit
        self.tasks[len(self.tasks) + 1] = Given(part, name, step.node)

    def check(self) -> None:
        """What always holds."""
        assert len(self.touched) <= self.limit, self.touched
        rollout = self.known
        assert rollout.count(*(COUNTED - {Phase.GONE})) <= self.limit
        for name in self.touched & set(rollout.nodes):
            node = rollout.nodes[name]
            assert node.phase in COUNTED, (name, node)
        assert rollout.state not in ENDED or not any(
            node.phase in BUSY for node in rollout.nodes.values()
        )

    # What happens

    def step(self) -> None:
        """Something happens."""
        happen = self.rng.choice(HAPPENINGS)
        happen(self)
        self.check()

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice((10, 500, 2_000, 8_000, 30_000))

    def plan_and_put(self) -> None:
        self.put(*self.look())

    def two_coordinators(self) -> None:
        """One looks, another one acts, then the first one does what it had decided."""
        late = self.look()
        self._go_on()
        self.put(*self.look())
        self.put(*late)

    def _go_on(self) -> None:
        waiting = [each for each in self.tasks.values() if each.end is None]
        for given in waiting:
            if given.agent in self.agents and not given.begun:
                given.begun = True
                if given.part == EXECUTE:
                    self.actions.append(given.node)
                    self.touched.add(given.node)
                    assert len(self.touched) <= self.limit, self.touched

    begin_tasks = _go_on

    def end_one(self) -> None:
        running = [each for each in self.tasks.values() if each.begun and each.end is None]
        if running:
            given = self.rng.choice(running)
            given.end = self._end(given)

    def _end(self, given: Given) -> End:
        lucky = self.rng.random()
        if given.part == PRE_CHECK:
            return End(EndKind.VERDICT, GO if lucky < 0.8 else WAIT if lucky < 0.98 else REFUSED)
        if given.part == EXECUTE:
            if self.rng.random() < 0.15:
                self.broken.add(given.node)
            if lucky < 0.8:
                return End(EndKind.VERDICT, "done")
            return End(EndKind.FAILED, why="it broke")
        healthy = given.node not in self.broken
        if healthy and given.part == POST_CHECK:
            self.touched.discard(given.node)
        if healthy and given.part == CHECK_NODE and self._is_unknown(given):
            self.touched.discard(given.node)
        return End(EndKind.VERDICT, HEALTHY if healthy else UNHEALTHY, "as it looks")

    def _is_unknown(self, given: Given) -> bool:
        """Whether this very look counts: no other step of the node began meanwhile."""
        node = self.known.nodes.get(given.node)
        return node is not None and node.task > 0 and self.tasks[node.task] is given

    def lose_agent(self) -> None:
        """An agent dies: what ran there is over, and nobody knows how far it came."""
        if self.agents:
            name = self.rng.choice(sorted(self.agents))
            self.agents.discard(name)
            for given in self.tasks.values():
                if given.agent == name and given.begun and given.end is None:
                    self._lose(given)

    def _lose(self, given: Given) -> None:
        given.end = End(EndKind.LOST, why="its worker died")

    def agents_return(self) -> None:
        self.agents = set(self.names)

    def mend(self) -> None:
        self.broken.clear()

    def change_nodes(self) -> None:
        gone = self.rng.sample(self.names, self.rng.choice((0, 0, 0, 0, 1, 1, 2)))
        self.there = [name for name in self.names if name not in gone]

    def operate(self) -> None:
        """An operator does something, and clears only what is well."""
        rollout = self.rollout
        by, now = "elsa", self.now_ms
        unproven = sorted(
            name
            for name, node in rollout.nodes.items()
            if node.phase in COUNTED - BUSY and name not in self.broken
        )
        try:
            what = self.rng.choice(("pause", "resume", "resume", "resume", "clear", "clear"))
            if what == "pause":
                operating.pause(rollout, "lunch", by, now)
            elif what == "resume":
                operating.resume(rollout, by, now)
            elif unproven:
                name = self.rng.choice(unproven)
                operating.clear(rollout, name, self.rng.random() < 0.5, by, now)
                self.touched.discard(name)
        except NotInState:
            return
        self.put(self.row.version, rollout, Plan())

    def change_limit(self) -> None:
        self.operators_limit = self.rng.choice((None, None, 1, 2, 3))


HAPPENINGS = (
    *(World.plan_and_put,) * 6,
    *(World.begin_tasks,) * 4,
    *(World.end_one,) * 6,
    *(World.pass_time,) * 3,
    World.two_coordinators,
    World.lose_agent,
    World.agents_return,
    World.mend,
    World.change_nodes,
    World.operate,
    World.operate,
    World.change_limit,
)
