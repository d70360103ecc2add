"""Faults of nodes with many tablespaces, and operators who work at the same time.

Invariants:
- Any node may be wiped, even all of them at once: logs and their snapshots are enough.
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
"""The share of runs in which an operator is at work."""


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
        """As for replicas. A fault of a log hits the log of some tablespace in use."""
        self._log = log_of(self._rng.choice(sorted(self._work.used) or ["nobody's"]))
        super()._strike(kind)

    def _leader(self) -> GroupNode | None:
        """The machine that leads most of the tablespaces in use."""
        leads = {
            node: sum(node.leads(group) for group in self._work.in_use) if node.up else 0
            for node in self._nodes
        }
        most = max(self._nodes, key=lambda node: leads[node])
        return most if leads[most] else None

    def _fail_state(self, node: ReplicaNode) -> bool:
        """The disks of nodes never fail here: the seeds of one tablespace test failing disks."""
        return False

    def _snapshot(self, node: ReplicaNode) -> bool:
        """Leaders take snapshots by themselves."""
        return False


class GroupOperator:
    """Moves leaders and replicas, suspends tablespaces, and drops and creates tablespaces."""

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
        """Act until `stopped` is set."""
        if self.on:
            loop, process = self._machine.world.loop, self._machine.process
            self._task = loop.spawn(process, self._act_again(work), "operator of groups")

    @property
    def ended(self) -> bool:
        """Whether nothing that it started is still running."""
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
        """Drop a tablespace, and create a new one of the same name when the old one is gone."""
        with contextlib.suppress(EngineError, Error):
            # It may have been dropped anyway.
            await self._commands.drop(group)
        # Clients wait for the new one, so it must be created, at the latest when faults have ended.
        while True:
            try:
                return await self._commands.create(group)
            except NameTaken as error:
                return error
            except (EngineError, Error):
                await asyncio.sleep(0.5)

    async def _suspend(self, group: str) -> object:
        """Suspend a tablespace that is in use, as a leader might by mistake."""

        def suspended(fact: object) -> object:
            return msgspec.structs.replace(fact, suspended=True)  # type: ignore[type-var]

        return await self._commands._change(group, suspended)  # type: ignore[arg-type]
