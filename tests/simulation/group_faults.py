"""Faults of nodes of many tablespaces, and what operators do meanwhile.

Invariants:
- Any node may be wiped, all of them at once too: logs and their snapshots are enough.
- After `stop` every node runs, and nobody changes facts any more.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from engine.errors import EngineError
from herd.errors import Error, NameTaken
from herd.nodes.commands import SpaceCommands
from herd.reading_log import log_of
from tests.simulation.group_nodes import GroupNode
from tests.simulation.group_workload import GroupWorkload
from tests.simulation.nodes import BookieNode, ClientNode, World
from tests.simulation.replica_faults import ReplicaNemesis
from tests.simulation.replica_nodes import ReplicaNode
from tests.simulation.workload import Workload

SHARE: Final = 0.6
"""In so many runs an operator is at work."""


class GroupNemesis(ReplicaNemesis):
    """Does harm to bookies, links, metadata and nodes."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        bookies: Sequence[BookieNode],
        nodes: Sequence[GroupNode],
        bystander: ClientNode,
        work: GroupWorkload,
        no_work: Workload,
    ) -> None:
        super().__init__(world, rng, bookies, nodes, bystander, no_work)
        self._work = work
        self._nodes = nodes

    def _strike(self, kind: str) -> None:
        """As of replicas. What is done to a log is done to that of some tablespace in use."""
        self._log = log_of(self._rng.choice(sorted(self._work.used) or ["nobody's"]))
        super()._strike(kind)

    def _leader(self) -> GroupNode | None:
        """The machine that leads most of what is in use."""
        leads = {
            node: sum(node.leads(group) for group in self._work.in_use) if node.up else 0
            for node in self._nodes
        }
        most = max(self._nodes, key=lambda node: leads[node])
        return most if leads[most] else None

    def _stop_replica(self, node: ReplicaNode) -> bool:
        """Close a node as for an upgrade. It ends when closing is done, or after a time-out."""
        assert isinstance(node, GroupNode)
        if not node.up or node.node is None or node.process.paused:
            return False
        process = node.process
        self._world.loop.spawn(process, node.stop(), f"{node.name} stop")

        def end() -> None:
            if node.up and node.process is process:
                node.crash()
            self._start_replica(node)

        self._mend_later(end)
        return True

    def _fail_state(self, node: ReplicaNode) -> bool:
        """Disks of nodes work: a failing one is what seeds of one tablespace are for."""
        return False

    def _snapshot(self, node: ReplicaNode) -> bool:
        """Leaders take snapshots by themselves."""
        return False


class GroupOperator:
    """Changes facts: who should lead, which nodes run what, and drops tablespaces and makes new."""

    def __init__(self, machine: ClientNode, seed: int, nodes: Sequence[GroupNode]) -> None:
        rng = random.Random(f"{seed}:operator of groups")
        self.on = rng.random() < SHARE
        self.stopped = False
        self._rng = rng
        self._nodes = [node.name for node in nodes]
        self._machine = machine
        self._pause_s = rng.choice([0.5, 2.0, 6.0])
        self._commands = SpaceCommands(machine.client.store, machine.clock, machine.client.rng)
        self._task: asyncio.Task[None] | None = None

    def start(self, work: GroupWorkload) -> None:
        """Act from now on, until `stopped`."""
        if self.on:
            loop, process = self._machine.world.loop, self._machine.process
            self._task = loop.spawn(process, self._act_again(work), "operator of groups")

    @property
    def ended(self) -> bool:
        """Whether nothing that it began is under way."""
        return self._task is None or self._task.done()

    async def _act_again(self, work: GroupWorkload) -> None:
        acts: list[Callable[[str], Awaitable[object]]] = [
            self._move_leader,
            self._move_leader,
            self._move,
            self._replace,
            self._suspend,
        ]
        while not self.stopped:
            await asyncio.sleep(self._rng.expovariate(1 / self._pause_s))
            groups = sorted(work.used)
            if not groups or self.stopped:
                continue
            act, group = self._rng.choice(acts), self._rng.choice(groups)
            trace = self._machine.world.trace
            trace.event(act.__name__, group)
            try:
                await act(group)
            except (EngineError, Error) as error:
                trace.event("not done", act.__name__, type(error).__name__)
            else:
                trace.counts["operated"] += 1

    async def _move_leader(self, group: str) -> object:
        return await self._commands.move_leader(group, self._rng.choice([*self._nodes, ""]))

    async def _move(self, group: str) -> object:
        count = self._rng.randint(1, len(self._nodes) - 1)
        return await self._commands.set_replicas(group, self._rng.sample(self._nodes, count))

    async def _replace(self, group: str) -> object:
        """Drop a tablespace; a new one of its name comes when the old one is gone."""
        with contextlib.suppress(EngineError, Error):
            # It may be dropped all the same.
            await self._commands.drop(group)
        # Clients wait for the new one, so it is made in peace at the latest.
        while True:
            try:
                return await self._commands.create(group)
            except NameTaken as error:
                return error
            except (EngineError, Error):
                await asyncio.sleep(0.5)

    async def _suspend(self, group: str) -> object:
        """Suspend a tablespace in the midst of use, as a leader that is mistaken would."""

        def suspended(fact: object) -> object:
            return msgspec.structs.replace(fact, suspended=True)  # type: ignore[type-var]

        return await self._commands._change(group, suspended)  # type: ignore[arg-type]
