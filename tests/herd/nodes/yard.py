"""Nodes over a cluster in memory, each a process of its own, in virtual time.

Invariants:
- A node that is killed does nothing more, not even a `finally`; its session ends a while later.
- States are in memory: a replica that is started again fills its state from the log.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.ledger.client import LedgerClient
from engine.log.settings import LogSettings
from engine.metadata.memory import MemoryTree
from engine.replica.settings import ReplicaSettings
from engine.state.contract import State
from engine.state.memory import MemoryState
from herd.errors import CommitUnknown, DatabaseError
from herd.nodes import Node, NodeSettings, SpaceCommands
from herd.nodes.facts import SpaceFact
from herd.settings import HerdSettings
from herd.tablespace import Tablespace
from tests.engine.ledger.scripted import QUICK, Cluster
from tests.herd.spaces import insert, key_of, locked, made, update
from tests.simulation.ending import without_collector
from tests.simulation.loop import Process, SimLoop, new_loop
from tests.simulation.metadata import MetadataFaults, SimStore
from tests.simulation.trace import Trace
from tests.simulation.virtual import elapse

SETTINGS = NodeSettings(look_ms=200, grace_ms=5_000, makes_default=False)
REPLICA = ReplicaSettings(snapshot_entries=0, duties_ms=1_000, level_settle_ms=0, retry_pause_ms=20)
LOG = LogSettings(
    ensemble=1,
    write_quorum=1,
    ack_quorum=1,
    look_interval_ms=500,
    retry_pause_ms=20,
    roll_entries=25,
)
LEASE_MS = 1_000
HERD = HerdSettings(lock_timeout_ms=1_000)
SESSION_S = 3.0
_PATIENCE_S = 60.0
_CLIENT = replace(
    QUICK,
    ensemble=1,
    write_quorum=1,
    ack_quorum=1,
    retry_pause_ms=50,
    metadata_timeout_ms=2_000,
    lease_ms=LEASE_MS,
)


class LoopClock:
    """The loop's time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1000)


class MemoryStates:
    """States that are there as long as their node is not removed."""

    def __init__(self) -> None:
        self.open_now: dict[str, MemoryState] = {}
        self.wiped: list[str] = []
        self.left: list[str] = []
        self.delay_s = 0.0
        """How long it takes to open one."""
        self.opening = self.opening_max = 0

    async def open(self, uuid: str) -> State:
        if self.delay_s:
            self.opening += 1
            self.opening_max = max(self.opening, self.opening_max)
            try:
                await elapse(self.delay_s)
            finally:
                self.opening -= 1
        self.open_now[uuid] = MemoryState()
        return self.open_now[uuid]

    async def wipe(self, uuid: str) -> None:
        self.wiped.append(uuid)
        self.open_now.pop(uuid, None)

    async def known(self) -> list[str]:
        return sorted({*self.left, *self.open_now})

    def folder(self, uuid: str) -> Path | None:
        return None


class Machine:
    """Where a node runs."""

    def __init__(self, yard: "Yard", name: str, settings: NodeSettings) -> None:
        self.name = name
        self.states = MemoryStates()
        self.returned_at_s: list[float] = []
        """When the node returned free memory."""
        self.returned_early = False
        """Whether it did so while a replica was ending."""
        self.settings = settings
        self._yard = yard
        self.alive = False
        self.start()

    def start(self) -> None:
        """Power on."""
        assert not self.alive
        yard, self.alive = self._yard, True
        self.process = Process(self.name)
        self.store = yard.store(self.process)
        self.client = yard.client(self.store)
        before, yard.loop.current = yard.loop.current, self.process
        try:
            self.node = Node(
                self.client,
                self.name,
                f"{self.name}:1",
                self.states,
                None,
                settings=self.settings,
                herd=HERD,
                replica=REPLICA,
                log=LOG,
                return_memory=self._return_memory,
            )
            self.node.start()
        finally:
            yard.loop.current = before

    async def _return_memory(self) -> None:
        self.returned_early |= bool(self.node._names_ending)
        self.returned_at_s.append(self._yard.loop.now)

    def kill(self) -> None:
        """`kill -9`."""
        loop = self._yard.loop
        self.alive = False
        loop.kill(self.process)
        loop.deliver_at(loop.now + SESSION_S, loop.world, self.store.expire)

    def space(self, name: str) -> Tablespace | None:
        """Its replica of a tablespace, if it runs."""
        hosted = self.node.hosted(name) if self.alive else None
        return hosted.space if hosted is not None else None

    def leads(self, name: str) -> bool:
        """Whether it leads a tablespace."""
        space = self.space(name)
        return space is not None and bool(space.term)

    async def run(self, work: Awaitable[Any]) -> Any:
        """Do something in this process."""

        async def working() -> Any:
            return await work

        task = self._yard.loop.spawn(self.process, working(), f"work of {self.name}")
        # Who waited for the task itself would be woken as a part of its process.
        await self._yard.until(task.done, "work is done")
        return task.result()


class Yard:
    """All nodes, and the metadata store."""

    def __init__(self, loop: SimLoop, cluster: Cluster) -> None:
        self.loop = loop
        self.cluster = cluster
        self.faults = MetadataFaults(silent_share=0.0)
        self.machines: dict[str, Machine] = {}
        self._rng = random.Random(1)
        self.own = self.client(self.store(loop.world))
        self.commands = SpaceCommands(self.own.store, self.own.clock, random.Random(2))

    def store(self, process: Process) -> SimStore:
        """A session of a process."""
        rng = random.Random(self._rng.getrandbits(64))
        return SimStore(self.cluster.tree, self.loop, process, rng, Trace(self.loop), self.faults)

    def client(self, store: SimStore) -> LedgerClient:
        """A client over a session."""
        return LedgerClient(
            store=store,
            transport=self.cluster.transport,
            clock=LoopClock(self.loop),
            rng=random.Random(self._rng.getrandbits(64)),
            settings=_CLIENT,
        )

    async def add(self, *names: str, settings: NodeSettings = SETTINGS) -> None:
        """Start nodes, and wait until they are listed."""
        for name in names:
            self.machines[name] = Machine(self, name, settings)
        while not set(names) <= set(await self.commands.nodes()):
            await elapse(0.01)

    def leaders(self, name: str) -> list[str]:
        """Who leads a tablespace, as they say themselves."""
        return [one.name for one in self.machines.values() if one.leads(name)]

    async def led(self, name: str = "farm", by: str = "") -> str:
        """Wait until one node leads, and no other; which."""

        def one_leads() -> bool:
            found = self.leaders(name)
            return len(found) == 1 and by in ("", found[0])

        await self.until(one_leads, f"{by or 'somebody'} leads")
        return self.leaders(name)[0]

    async def until(self, holds: Callable[[], bool], what: str = "") -> float:
        """Wait for a condition; how long it took. Fails when it does not come."""
        began_s = self.loop.time()
        while not holds():
            assert self.loop.time() - began_s < _PATIENCE_S, f"never: {what}"
            await elapse(0.01)
        return self.loop.time() - began_s

    async def fact(self, name: str = "farm") -> SpaceFact:
        """What the store says of a tablespace."""
        return (await self.commands.spaces())[name]

    def ready(self, name: str = "farm") -> set[str]:
        """The nodes whose replica of a tablespace follows or leads."""
        found = {one.name: one.node.hosted(name) for one in self.machines.values() if one.alive}
        return {node for node, hosted in found.items() if hosted and hosted.report.ready}

    async def replicas_on(self, *nodes: str, name: str = "farm") -> None:
        """Wait until replicas run on exactly these nodes, and the fact says so."""

        def there() -> bool:
            running = {one.name for one in self.machines.values() if one.space(name)}
            return running == set(nodes)

        await self.until(there, f"replicas on {nodes}")
        assert set((await self.fact(name)).replicas) >= set(nodes)


def in_yard(script: Callable[[Yard], Awaitable[None]], seed: int = 1) -> None:
    """Run a script in a yard of its own."""
    with without_collector():
        _run(script, seed)


def _run(script: Callable[[Yard], Awaitable[None]], seed: int) -> None:
    """Nothing of the run is referred to when this has returned: the collector finds all of it."""
    loop = new_loop(seed)

    async def main() -> None:
        cluster = Cluster(MemoryTree("cluster"))
        await cluster.add("b0")
        await script(Yard(loop, cluster))

    try:
        loop.run(main(), until_s=400.0)
    finally:
        loop.close()


class Bank:
    """Ten accounts, and transfers that go where the leader is."""

    ACCOUNTS = 10
    START = 100

    def __init__(self, yard: Yard, name: str = "farm") -> None:
        self._yard = yard
        self._name = name
        self._rng = random.Random(3)
        self.transfers = 0
        self.errors: list[DatabaseError] = []
        self.ending = self.resting = False

    async def open(self) -> None:
        """Make the accounts."""
        machine = self._yard.machines[await self._yard.led(self._name)]

        async def fill() -> None:
            space = machine.space(self._name)
            assert space is not None
            table = await made(space, "account")
            transaction = space.begin()
            rows = [[number, self.START, ""] for number in range(self.ACCOUNTS)]
            await insert(transaction, table, *rows)
            await transaction.commit()

        await machine.run(fill())

    async def work(self) -> None:
        """Transfer until told to end, asking whoever leads."""
        while not self.ending:
            await elapse(0.02)
            if self.resting:
                continue
            leaders = self._yard.leaders(self._name)
            if leaders:
                machine = self._yard.machines[leaders[0]]
                task = self._yard.loop.spawn(machine.process, self._transfer(machine), "transfer")
            else:
                machine = self._rng.choice([*self._yard.machines.values()])
                if not machine.alive:
                    continue
                self._yard.loop.spawn(machine.process, self._ask(machine), "ask")
                continue
            while not task.done() and machine.alive:
                await elapse(0.005)
            if task.done():
                self._heard(task)

    async def _ask(self, machine: Machine) -> None:
        """Ask for the tablespace, so that it runs again if it was suspended."""
        with suppress(DatabaseError):
            await machine.node.tablespace(self._name)

    def _heard(self, task: "asyncio.Task[None]") -> None:
        error = task.exception()
        if error is None:
            self.transfers += 1
        else:
            assert isinstance(error, DatabaseError), repr(error)
            self.errors.append(error)

    async def _transfer(self, machine: Machine) -> None:
        space = machine.space(self._name)
        assert space is not None
        transaction = space.begin()
        try:
            table = space.catalog.table("account")
            one, two = self._rng.sample(range(self.ACCOUNTS), 2)
            for account, change in ((one, -1), (two, 1)):
                row = await locked(transaction, table, key_of(space, table, account))
                assert row is not None and isinstance(row[1], int)
                await update(transaction, table, (account, [account, row[1] + change, ""]))
            await transaction.commit()
        finally:
            transaction.rollback()

    def unknown(self) -> int:
        """How many commits had no known outcome."""
        return sum(isinstance(error, CommitUnknown) for error in self.errors)

    def total(self, node: str) -> int | None:
        """The sum as one node's replica has it; None before it has the table."""
        space = self._yard.machines[node].space(self._name)
        assert space is not None
        if space.catalog.find("account") is None:
            return None
        table = space.catalog.table("account")
        decode = space.catalog.plan(table).decode

        def look(rows: Any) -> list[Any]:
            found = rows.scan(table.prefix, table.prefix + b"\xff", 100)
            return [decode(value)[1] for _, value in found]

        return int(sum(space.stale_read(look)[0]))
