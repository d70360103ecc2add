"""Machines that each run one node with many tablespaces.

Invariants:
- A machine runs the product's node unchanged, with its auditor.
- A transaction runs in its node's process from beginning to end.
- The states of a machine's replicas stay on its disk, under the uuid of their tablespace.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.errors import CannotRead, EngineError, NotLeader, Unavailable
from engine.replica import ConfirmedReads
from engine.replica.contract import Role
from engine.state.stored import StateSettings, StoredState
from herd.errors import Error, InterfaceError, LeaderUnavailable
from herd.nodes.facts import SPACES, SpaceFact, decode_space
from herd.nodes.node import Node
from herd.nodes.settings import NodeSettings
from herd.settings import HerdSettings
from herd.tablespace import Tablespace
from tests.herd.histories import Plan, all_lists, play
from tests.herd.spaces import PLAIN, made
from tests.serializability import Outcome, Transaction, Version
from tests.simulation.disk import SimDisk
from tests.simulation.nodes import World
from tests.simulation.oracles import Violation
from tests.simulation.replica_nodes import ReplicaNode, ReplicaPlan
from tests.simulation.replica_oracle import ReplicaOracle
from tests.simulation.state import SimStates
from tests.simulation.workers import SimWorkers

LISTS = 2


@dataclass(frozen=True)
class GroupPlan:
    """How the nodes of one run behave."""

    replica: ReplicaPlan
    node: NodeSettings
    herd: HerdSettings
    pause_s_max: float
    """How long a transaction may pause between two steps."""


class Played(NamedTuple):
    """A transaction, and the tablespace in which it ran."""

    uuid: str
    transaction: Transaction


class GroupStates:
    """The states of one machine's replicas, kept across restarts of its process."""

    def __init__(self, world: World, machine: str, settings: StateSettings) -> None:
        self._world = world
        self._machine = machine
        self._settings = settings
        self._kept: dict[str, SimStates] = {}
        self._workers: SimWorkers | None = None
        self._rng = world.rng(f"{machine} states")

    def restart(self, workers: SimWorkers) -> None:
        """Let a new process use them from now on."""
        self._workers = workers

    def crash(self) -> None:
        """The process has ended: data that was not flushed is lost, in part or whole."""
        for states in self._kept.values():
            states.crash()

    def erase(self) -> None:
        """Erase everything that the machine stored."""
        self._kept.clear()

    # What a node asks for

    async def open(self, uuid: str) -> StoredState:
        """See `States.open`."""
        assert self._workers is not None
        found = self._kept.get(uuid)
        if found is None:
            found = self._kept[uuid] = SimStates(self._world.rng(f"{self._machine} {uuid}"))
        return found.open(self._workers, self._settings)

    async def wipe(self, uuid: str) -> None:
        """See `States.wipe`."""
        self._kept.pop(uuid, None)

    async def known(self) -> list[str]:
        """See `States.known`."""
        return sorted(self._kept)

    def folder(self, uuid: str) -> Path | None:
        """See `States.folder`. There are no checkpoints."""
        return None


class GroupNode(ReplicaNode):
    """A machine that runs a node."""

    runs = "node"

    def __init__(
        self, world: World, name: str, plan: GroupPlan, oracles: dict[str, ReplicaOracle]
    ) -> None:
        """`oracles` holds what is known about each tablespace, by its uuid."""
        self.group_plan = plan
        self.node: Node | None = None
        self.pauses_rng = world.rng(f"{name} pauses")
        self.group_states = GroupStates(world, name, plan.replica.state)
        self._oracles = oracles
        super().__init__(world, name, plan.replica, ReplicaOracle())

    async def _serve(self) -> None:
        """Start the node, which itself waits for services that are down."""
        world, plan = self.world, self.group_plan
        self.group_states.restart(
            SimWorkers(world.loop, self.process, SimDisk(world.rng("disk")), world.rng("workers"))
        )
        self.node = Node(
            *(self.client, self.name, self.name, self.group_states, None),
            settings=plan.node,
            herd=plan.herd,
            replica=plan.replica.replica,
            log=plan.replica.log,
        )
        open_space = self.node._open

        async def open_and_listen(name: str, fact: SpaceFact) -> Tablespace:
            space = await open_space(name, fact)
            known = self._oracles.setdefault(fact.uuid, ReplicaOracle())
            known.acknowledgements.listen(space.replica, self.process.name)
            return space

        self.node._open = open_and_listen  # type: ignore[method-assign]
        self.node.start()
        world.trace.event("node", self.process.name)

    def crash(self) -> None:
        """End the process abruptly; unflushed data of its states is lost, in part or whole."""
        super().crash()
        self.node = None
        self.group_states.crash()

    def wipe(self) -> None:
        """Erase everything that the machine stored."""
        super().wipe()
        self.group_states.erase()

    @property
    def serves(self) -> bool:
        """See `ReplicaNode`."""
        return self.node is not None

    async def stop(self) -> None:
        """Shut down cleanly, as for an upgrade."""
        node, self.node = self.node, None
        assert node is not None
        await node.close()

    def look(self) -> None:
        """Check that each replica works, has the same state as others, and never answers stale."""
        if self.node is None or not self.up or self.process.paused:
            return
        for name, hosted in self.node._hosted.items():
            space = hosted.space
            if space is None:
                continue
            oracle, replica = self._oracles[hosted.fact.uuid], space.replica
            if not self._is_there(name, hosted.fact.uuid):
                # It was dropped, and this node has not noticed yet.
                continue
            if replica.role is Role.FAILED:
                raise Violation(f"{self.process.name}: {name} has failed: {replica.failure!r}")
            applier = replica._applier
            if not (replica._following.restoring or applier.failed or applier._parts):
                oracle.on_hash(self.process.name, applier.cursor, applier.summary.hash)
            if replica.may_answer() and replica.position < oracle.acknowledgements.position:
                raise Violation(
                    f"{self.process.name} answers for {name} as of {tuple(replica.position)}; "
                    f"{tuple(oracle.acknowledgements.position)} is acknowledged"
                )

    def _is_there(self, name: str, uuid: str) -> bool:
        found = self.world.tree.tree.get(f"{SPACES}/{name}")
        fact = None if found is None else decode_space(found.value)
        return fact is not None and fact.uuid == uuid and not fact.dropped

    def leads(self, group: str) -> bool:
        """Whether this machine believes that it leads a tablespace."""
        hosted = None if self.node is None or not self.up else self.node.hosted(group)
        return hosted is not None and hosted.space is not None and bool(hosted.space.term)

    @property
    def running(self) -> int:
        """How many replicas run on this machine."""
        return 0 if self.node is None else len(self.node._hosted)

    # What clients call; runs in this node's process

    async def play(self, group: str, plan: Plan, name: str, identity: bytes) -> Played:
        """Run a transaction over the lists of a tablespace.

        Raises `NotLeader`, with the leader's address, if another node leads, and `Unavailable`. In
        both cases nothing was done.
        """
        space, uuid = await self._space(group)
        try:
            if space.catalog.find("lists") is None:
                await made(space, "lists", PLAIN)
            table = space.catalog.table("lists")
        except Error as error:
            raise Unavailable(f"{self.name}: {error}") from error
        changes = plan.changes
        # A transaction that only reads leaves no outcome to ask for.
        told = Transaction(name, changes, Outcome.UNKNOWN if changes else Outcome.ROLLED_BACK)
        with contextlib.suppress(EngineError):
            # As for a client's call, no lease is needed if the log confirms what was read.
            async with ConfirmedReads():
                played = await play(space, table, plan, name, self._pause, identity)
            # What the log did not confirm is no answer.
            told = played
        return Played(uuid, told)

    async def outcome(self, group: str, identity: bytes) -> tuple[str, bool]:
        """The uuid of the tablespace, and whether the transaction was committed.

        Raises as `play` does.
        """
        space, uuid = await self._space(group)
        try:
            return uuid, await space.outcome(identity)
        except Error as error:
            raise Unavailable(f"{self.name}: {error}") from error

    async def lists(self, group: str) -> tuple[str, dict[str, Version]]:
        """The uuid of the tablespace, and its current lists. Raises as `play`."""
        space, uuid = await self._space(group)
        async with ConfirmedReads():
            try:
                if space.catalog.find("lists") is None:
                    return uuid, {}
                return uuid, all_lists(space, space.catalog.table("lists"), LISTS)
            except Error as error:
                raise Unavailable(f"{self.name}: {error}") from error

    async def _space(self, group: str) -> tuple[Tablespace, str]:
        node = self.node
        if node is None:
            raise Unavailable(f"{self.name} is not there yet")
        try:
            space = await node.tablespace(group)
        except LeaderUnavailable as error:
            leader = None
            with contextlib.suppress(InterfaceError):
                # It may be closed by now.
                leader = node.leader_of(group)
            raise NotLeader(str(error), leader or "") from error
        except (Error, CannotRead, EngineError) as error:
            raise Unavailable(f"{self.name}: {error}") from error
        hosted = node.hosted(group)
        if hosted is None or hosted.space is not space:
            raise Unavailable(f"{self.name}: {group} is a different tablespace by now")
        return space, hosted.fact.uuid

    async def _pause(self) -> None:
        await asyncio.sleep(self.group_plan.pause_s_max * self.pauses_rng.random())
