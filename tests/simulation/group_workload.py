"""Clients of many tablespaces: each transaction goes to one of those currently in use.

Invariants:
- A client that gets no answer to a transaction asks for its outcome by its identity until a node
  answers, and never repeats the transaction itself.
- A history records what the client finally knows about each transaction.
- A history belongs to one tablespace, not to a name: names are reused.
"""

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

from engine.errors import EngineError, NotLeader
from herd.transaction import Isolation
from tests.herd.histories import Plan
from tests.serializability import Outcome, Transaction
from tests.simulation.group_nodes import LISTS, GroupNode, Played
from tests.simulation.nodes import World
from tests.simulation.replica_nodes import ReplicaNode
from tests.simulation.replica_oracle import ReplicaOracle
from tests.simulation.replica_workload import (
    _PATIENT_S,
    _PROBE_S,
    ReplicaLoad,
    ReplicaWorkload,
    _Client,
)

_OUTCOME_PAUSE_S: Final = 0.2
_MARK_BYTES: Final = 8


@dataclass(frozen=True)
class GroupLoad:
    """What one run's clients do, drawn from its seed."""

    clients: int
    isolations: tuple[Isolation, ...]
    think_s: float
    in_use: int
    """How many tablespaces are in use at a time."""
    moves_s: float
    """The mean time between replacements of one of them by another."""


class GroupWorkload(ReplicaWorkload):
    """The work of all clients of one run."""

    def __init__(
        self,
        world: World,
        load: ReplicaLoad,
        group_load: GroupLoad,
        nodes: Sequence[GroupNode],
        groups: Sequence[str],
    ) -> None:
        super().__init__(world, load, nodes, ReplicaOracle())
        self.group_load = group_load
        self.histories: dict[str, list[Transaction]] = defaultdict(list)
        """The transactions of each tablespace, by its uuid."""
        self.used: dict[str, None] = {}
        """The names of the tablespaces that were ever used."""
        self._groups = groups
        self.in_use = self._rng.sample(list(groups), group_load.in_use)
        self._values = itertools.count(1)

    def start(self) -> None:
        """Let every client work, in a process of its own."""
        for number in range(self.group_load.clients):
            process = self._world.process(f"client{number}")
            client = GroupClient(self, process, self._world.rng(process.name))
            work = self._transactions(client)
            self.tasks.append(self._world.loop.spawn(process, work, f"client{number} work"))
        process = self._world.process("prober")
        prober = GroupClient(self, process, self._world.rng(process.name))
        self.tasks.append(self._world.loop.spawn(process, self._ask_around(prober), "prober work"))
        world = self._world.loop.world
        self.tasks.append(self._world.loop.spawn(world, self._move_on(), "others are used"))

    async def _move_on(self) -> None:
        """Repeatedly replace one of the tablespaces in use by another."""
        while not self.stopped:
            await asyncio.sleep(self._rng.expovariate(1 / self.group_load.moves_s))
            left = self._rng.randrange(len(self.in_use))
            self.in_use[left] = self._rng.choice(self._groups)

    async def _ask_around(self, prober: "GroupClient") -> None:
        """Read at random nodes, including a deposed leader that does not know it yet."""
        while not self.stopped:
            await asyncio.sleep(_PROBE_S * prober.rng.random())
            node = cast("GroupNode", prober.rng.choice(self._nodes))
            leads = [name for name in sorted(self.used) if node.leads(name)]
            if leads:
                group = prober.rng.choice(leads)
                name = f"{prober.name} at {node.name}"
                self._world.loop.spawn(prober.process, prober.look_at(node, group), name)

    async def _transactions(self, client: "GroupClient") -> None:
        load, rng = self.group_load, client.rng
        while not self.stopped:
            group = rng.choice(self.in_use)
            self.used[group] = None
            isolation = rng.choice(load.isolations)
            plan = Plan.drawn(rng, LISTS, isolation, lambda: next(self._values))
            played = await client.play(group, plan)
            if played is not None:
                self.histories[played.uuid].append(played.transaction)
            await asyncio.sleep(load.think_s * rng.random())
            await self.rested()

    def write_at(self, node: ReplicaNode) -> None:
        """Do nothing: no client writes at a given node."""


class GroupClient(_Client):
    """One client."""

    _workload: GroupWorkload

    def __init__(self, workload: GroupWorkload, process: Any, rng: random.Random) -> None:
        super().__init__(workload, process, rng)
        self._leaders: dict[str, GroupNode] = {}

    async def play(self, group: str, plan: Plan) -> Played | None:
        """Run a transaction; returns its final outcome, or None if no node could be asked."""
        end_s = self._now() + self._load.patience_s
        while self._now() < end_s:
            identity = self.name.encode() + self._workload.next_command().to_bytes(_MARK_BYTES)
            name = f"{self.name}:{int.from_bytes(identity[-_MARK_BYTES:])}"
            steps = plan.changes
            began = self._now()
            try:
                # A transaction that only reads has no mark, and no command in the log.
                mark = identity if steps else b""
                call = partial(_play, group=group, plan=plan, name=name, identity=mark)
                played = await self._ask_leader(group, call)
            except EngineError as error:
                await self._other(group, error)
                continue
            except TimeoutError:
                self._leaders.pop(group, None)
                played = Played("", Transaction(name, steps, Outcome.UNKNOWN))
                if not steps:
                    return None
            return await self._certain(group, played, identity, began)
        return None

    async def look_at(self, node: GroupNode, group: str) -> None:
        """Read once at one node, and wait long: a paused node may answer when it wakes up."""
        began, lists = self._now(), tuple((number, None) for number in range(LISTS))
        plan = Plan(lists, self.rng.choice(self._workload.group_load.isolations))
        name = f"{self.name}:look {self._workload.next_command()}"
        call = partial(_play, group=group, plan=plan, name=name, identity=b"")
        try:
            uuid, told = await self._ask(call, repeated=False, node=node, answer_s=_PATIENT_S)
        except (EngineError, TimeoutError):
            return
        history = self._workload.histories[uuid]
        history.append(replace(told, began=began, ended=self._now()))

    async def _certain(self, group: str, played: Played, identity: bytes, began: float) -> Played:
        """Ask for the outcome of a transaction until a node knows it."""
        uuid, told = played
        while told.outcome is Outcome.UNKNOWN:
            try:
                call = partial(_outcome, group=group, identity=identity)
                uuid, committed = await self._ask_leader(group, call)
            except (EngineError, TimeoutError) as error:
                await self._other(group, error)
                await asyncio.sleep(_OUTCOME_PAUSE_S)
                continue
            told = replace(told, outcome=Outcome.COMMITTED if committed else Outcome.ROLLED_BACK)
        self._workload.operations += told.outcome is Outcome.COMMITTED
        self._world.trace.event("transaction", group, identity, told.outcome.value)
        return Played(uuid, replace(told, began=began, ended=self._now()))

    async def _ask_leader(self, group: str, call: Any) -> Any:
        node = self._leaders.get(group) or self.rng.choice(self._workload._nodes)
        return await self._ask(call, repeated=False, node=node)

    async def _other(self, group: str, error: Exception) -> None:
        """Choose the node to ask next, and wait a while."""
        leader = error.leader if isinstance(error, NotLeader) else ""
        named = [node for node in self._workload._nodes if node.name == leader]
        self._leaders.pop(group, None)
        if named:
            self._leaders[group] = cast("GroupNode", named[0])
        await asyncio.sleep(0.05 + 0.2 * self.rng.random())


async def _play(node: ReplicaNode, **arguments: Any) -> Played:
    assert isinstance(node, GroupNode)
    return await node.play(**arguments)


async def _outcome(node: ReplicaNode, **arguments: Any) -> tuple[str, bool]:
    assert isinstance(node, GroupNode)
    return await node.outcome(**arguments)
