"""Clients of a tablespace: they transfer between accounts, append to lists, and ask what became.

Invariants:
- A client that heard nothing of a transaction asks for its outcome by its identity until somebody
  answers, and never does it again itself.
- What a history tells of a transaction is what its client knows of it in the end.
"""

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from engine.errors import EngineError
from herd.transaction import Isolation
from tests.herd.histories import Plan
from tests.serializability import Outcome, Transaction
from tests.simulation.herd_nodes import ACCOUNTS, BALANCE, LISTS, HerdNode, Transfer
from tests.simulation.nodes import World
from tests.simulation.oracles import Violation
from tests.simulation.replica_nodes import ReplicaNode
from tests.simulation.replica_oracle import ReplicaOracle
from tests.simulation.replica_workload import (
    _PATIENT_S,
    _PROBE_S,
    ReplicaLoad,
    ReplicaWorkload,
    _Client,
)

CLIENTS = 4
_OUTCOME_PAUSE_S = 0.2
_MARK_BYTES = 8


@dataclass(frozen=True)
class HerdLoad:
    """What one run's clients do, drawn from its seed."""

    transfers_share: float
    isolations: tuple[Isolation, ...]
    think_s: float
    at_once: int


class HerdWorkload(ReplicaWorkload):
    """The work of all clients of one run."""

    def __init__(
        self,
        world: World,
        load: ReplicaLoad,
        herd_load: HerdLoad,
        nodes: Sequence[HerdNode],
        oracle: ReplicaOracle,
    ) -> None:
        super().__init__(world, load, nodes, oracle)
        self.herd_load = herd_load
        self.history: list[Transaction] = []
        self.transfers: list[tuple[Transfer, Outcome]] = []
        self._values = itertools.count(1)

    def start(self) -> None:
        """Let every client work, in a process of its own."""
        for number in range(CLIENTS):
            process = self._world.process(f"client{number}")
            for turn in range(self.herd_load.at_once):
                # Each has one transaction at a time: the marks are of a client's last one.
                client = HerdClient(self, process, self._world.rng(process.name), turn)
                work = self._transactions(client)
                name = f"client{number} work {turn}"
                self.tasks.append(self._world.loop.spawn(process, work, name))

        process = self._world.process("prober")
        prober = HerdClient(self, process, self._world.rng(process.name), 0)
        self.tasks.append(self._world.loop.spawn(process, self._ask_around(prober), "prober work"))

    async def _ask_around(self, client: "HerdClient") -> None:
        """Read at whoever it is, also at a leader of old that does not know it yet."""
        while not self.stopped:
            node = client.rng.choice(self._nodes)
            lists = tuple((number, None) for number in range(LISTS))
            plan = Plan(lists, client.rng.choice(self.herd_load.isolations))
            name = f"{client.name} at {node.name}"
            self._world.loop.spawn(client.process, client.look_at(node, plan), name)
            await asyncio.sleep(_PROBE_S * client.rng.random())

    async def _transactions(self, client: "HerdClient") -> None:
        load, rng = self.herd_load, client.rng
        while not self.stopped:
            isolation = rng.choice(load.isolations)
            if rng.random() < load.transfers_share:
                source, target = rng.sample(range(ACCOUNTS), 2)
                wanted = Transfer(source, target, rng.randint(1, BALANCE), isolation)
                self.transfers.append((wanted, await client.transfer(wanted)))
            else:
                plan = Plan.drawn(rng, LISTS, isolation, lambda: next(self._values))
                self.history.append(await client.play(plan))
            await asyncio.sleep(load.think_s * rng.random())
            await self.rested()

    def write_at(self, node: ReplicaNode) -> None:
        """Clients of a tablespace ask any node anyway."""


class HerdClient(_Client):
    """One client."""

    _workload: HerdWorkload

    def __init__(self, workload: HerdWorkload, process: Any, rng: random.Random, turn: int) -> None:
        super().__init__(workload, process, rng)
        self.name = f"{process.name}.{turn}"

    async def transfer(self, wanted: Transfer) -> Outcome:
        """A transfer, and what became of it."""
        identity = self._identity()
        self._target = self.rng.choice(self._workload._nodes)
        try:
            call = partial(HerdNode.transfer, wanted=wanted, identity=identity)
            outcome = await self._ask(call, repeated=False)
        except (EngineError, TimeoutError):
            outcome = Outcome.UNKNOWN
        return self._ended(await self._certain(outcome, identity), identity)

    async def play(self, plan: Plan) -> Transaction:
        """A transaction over lists, as it is known in the end."""
        identity = self._identity()
        name = f"{self.name}:{int.from_bytes(identity[-_MARK_BYTES:])}"
        began = self._now()
        steps = plan.changes
        # One that only reads has no mark, and no word in the log that would find a leader replaced.
        told = Transaction(name, steps, Outcome.UNKNOWN if steps else Outcome.ROLLED_BACK)
        try:
            mark = identity if steps else b""
            call = partial(HerdNode.play, plan=plan, name=name, identity=mark)
            told = await self._ask(call, repeated=False)
        except (EngineError, TimeoutError):
            await asyncio.sleep(0)
        outcome = self._ended(await self._certain(told.outcome, identity), identity)
        return replace(told, outcome=outcome, began=began, ended=self._now())

    async def look_at(self, node: ReplicaNode, plan: Plan) -> None:
        """Read at one node, once, and wait long: a paused one may answer as soon as it wakes."""
        began, name = self._now(), f"{self.name}:look {self._workload.next_command()}"
        try:
            call = partial(HerdNode.play, plan=plan, name=name, identity=b"")
            told = await self._ask(call, repeated=False, node=node, answer_s=_PATIENT_S)
        except (EngineError, TimeoutError):
            return
        self._workload.history.append(replace(told, began=began, ended=self._now()))

    def _identity(self) -> bytes:
        return self.name.encode() + self._workload.next_command().to_bytes(_MARK_BYTES)

    async def _certain(self, outcome: Outcome, identity: bytes) -> Outcome:
        """Ask what became of a transaction, until somebody knows."""
        while outcome is Outcome.UNKNOWN:
            self._target = self.rng.choice(self._workload._nodes)
            try:
                call = partial(HerdNode.outcome, identity=identity)
                committed = await self._ask(call, repeated=False)
            except (EngineError, TimeoutError):
                await asyncio.sleep(_OUTCOME_PAUSE_S)
                continue
            return Outcome.COMMITTED if committed else Outcome.ROLLED_BACK
        return outcome

    def _ended(self, outcome: Outcome, identity: bytes) -> Outcome:  # type: ignore[override]
        self._workload.operations += outcome is Outcome.COMMITTED
        self._world.trace.event("transaction", identity, outcome.value)
        return outcome


def balances(transfers: Sequence[tuple[Transfer, Outcome]]) -> list[int]:
    """What all transfers that were committed make of the accounts."""
    found = [BALANCE] * ACCOUNTS
    for wanted, outcome in transfers:
        if outcome is Outcome.UNKNOWN:
            raise Violation(f"nobody knows what became of {wanted}")
        if outcome is Outcome.COMMITTED:
            found[wanted.source] -= wanted.amount
            found[wanted.target] += wanted.amount
    return found
