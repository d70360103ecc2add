"""Clients of a broker: they submit, in batches, graphs and transactions, wait, cancel, and pause.

Invariants:
- A task's payload is its tag. A tag is submitted again only after an error that says that nothing
  was changed; so no tag may ever be there twice.
- What a client was told goes to the oracle in the instant in which it heard it.
- After `stopped` every client ends what it is doing and begins nothing new.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from broker.commands import Parent, Refusal, Spec
from broker.errors import (
    BrokerError,
    BrokerUnavailable,
    NotLeader,
    OutcomeUnknown,
    UnknownTask,
    UnknownTransaction,
    WaitTimedOut,
)
from broker.service import Broker
from broker.task import Mode, Rule, Status
from tests.simulation.broker_nodes import BrokerNode
from tests.simulation.broker_operator import BACKOFF, FOR_EVER_MS, Operator
from tests.simulation.broker_oracle import RESOURCES, BrokerOracle
from tests.simulation.loop import Process
from tests.simulation.nodes import SimClock, World
from tests.simulation.oracles import Violation

R = TypeVar("R")
CLIENTS: Final = 3
SUBMITS_MAX: Final = 60
_ANSWER_S: Final = 4.0
_FLEETING_MS: Final = 500
_TYPES: Final = ("mow", "plough")


class Unanswered(Exception):
    """Nobody knows whether it was done."""


@dataclass(frozen=True)
class BrokerLoad:
    """What one run's clients do, drawn from its seed."""

    think_s: float
    batch: int
    transactions_share: float
    graphs_share: float
    slots: int
    once_share: float
    hurried_share: float
    fleeting_share: float
    operator_s: float


@dataclass
class Bundle:
    """Tasks of one transaction. `committed`: None while nobody knows."""

    tags: list[str] = field(default_factory=list)
    committed: bool | None = None


class BrokerWorkload:
    """The work of all clients of one run."""

    def __init__(
        self, world: World, load: BrokerLoad, nodes: Sequence[BrokerNode], oracle: BrokerOracle
    ) -> None:
        self.world = world
        self.load = load
        self.nodes = nodes
        self.oracle = oracle
        self.stopped = False
        self.bundles: list[Bundle] = []
        self.children: dict[str, tuple[str, Rule]] = {}
        """The tags of a child's parent, and the rule between them."""
        self.tasks: list[asyncio.Task[Any]] = []
        self.operator: Operator | None = None
        self._rested_s = 0.0
        self._tags = 0

    @property
    def operations(self) -> int:
        """How many submits were acknowledged."""
        return len(self.oracle.accepted)

    @property
    def ended(self) -> bool:
        """Whether every client has come to its end."""
        return all(task.done() for task in self.tasks)

    def start(self) -> None:
        """Let every client work, in a process of its own."""
        for number in range(CLIENTS):
            process = self.world.process(f"client{number}")
            client = BrokerClient(self, process)
            self.tasks.append(self.world.loop.spawn(process, client.work(), f"client{number} work"))
        process = self.world.process("operator")
        client = BrokerClient(self, process)
        self.operator = Operator(client, self.oracle, self.world.rng("operator deeds"))
        operating = client.operate(self.operator)
        self.tasks.append(self.world.loop.spawn(process, operating, "operator work"))

    def rest(self, seconds: float) -> None:
        """Let every client begin nothing new for a while."""
        self._rested_s = max(self._rested_s, self.world.loop.now + seconds)

    async def rested(self) -> None:
        """Wait until nobody has to rest any more."""
        left_s = self._rested_s - self.world.loop.now
        if left_s > 0:
            await asyncio.sleep(left_s)

    def tag(self) -> str:
        """A new one."""
        self._tags += 1
        return f"tag {self._tags}"


class BrokerClient:
    """One client."""

    def __init__(
        self, workload: BrokerWorkload, process: Process, rng: random.Random | None = None
    ) -> None:
        self._workload = workload
        self._world = workload.world
        self._load = workload.load
        self._oracle = workload.oracle
        self._process = process
        self._rng = rng or workload.world.rng(process.name)
        self._target = self._rng.choice(workload.nodes)

    # Work

    async def work(self) -> None:
        """Do this and that, until it is enough."""
        load, rng = self._load, self._rng
        while not self._workload.stopped:
            draw = rng.random()
            if self._workload.operations > SUBMITS_MAX:
                # More of them would only wait for each other in the end.
                draw = rng.uniform(0.8, 1.0)
            if draw < load.transactions_share:
                await self._transaction()
            elif draw < load.transactions_share + load.graphs_share:
                await self._graph()
            elif draw < 0.8:
                await self._submit([self._plain() for _ in range(rng.randint(1, load.batch))])
            elif draw < 0.9:
                await self._cancel()
            else:
                await self._wait()
            await asyncio.sleep(load.think_s * rng.random())
            await self._workload.rested()

    async def operate(self, operator: Operator) -> None:
        """Do this and that as operators do, until it is enough."""
        while not self._workload.stopped:
            await operator.act()
            await asyncio.sleep(self._load.operator_s * self._rng.random())
            await self._workload.rested()
        await operator.end()

    def _plain(self) -> Spec:
        """A task by itself: some are gone soon after their end, some say where they run."""
        spec, rng = self._spec(), self._rng
        if rng.random() < self._load.fleeting_share:
            spec.retention_ms = spec.dead_retention_ms = _FLEETING_MS
            self._oracle.fleeting.add(spec.payload.decode())
            if spec.deadline_ms or spec.attempts_max or spec.mode == Mode.AT_MOST_ONCE:
                self._oracle.frail.add(spec.payload.decode())
        if rng.random() < 0.1:
            spec.fixed, spec.resources = True, ("press",)
            self._oracle.fixed.add(spec.payload.decode())
        return spec

    def _spec(self) -> Spec:
        rng, tag = self._rng, self._workload.tag()
        once = rng.random() < self._load.once_share
        return Spec(
            rng.choice(_TYPES),
            rng.choice(list(RESOURCES)),
            tag.encode(),
            priority=rng.choice([0, 0, 5]),
            attempts_max=rng.choice([0, 0, 1, 3]),
            mode=Mode.AT_MOST_ONCE if once else Mode.AT_LEAST_ONCE,
            slot=f"slot {rng.randrange(self._load.slots)}" if rng.random() < 0.2 else "",
            unique_key=f"key {rng.randrange(20)}" if rng.random() < 0.2 else "",
            backoff=BACKOFF,
            due_ms=rng.choice([200, 2_000]) if rng.random() < 0.1 else 0,
            deadline_ms=rng.choice([2_500, 9_000])
            if rng.random() < self._load.hurried_share
            else 0,
            # Jumps of wall clocks shall not purge what the verdict looks at.
            retention_ms=FOR_EVER_MS,
            dead_retention_ms=FOR_EVER_MS,
        )

    async def _submit(self, specs: list[Spec], transaction: int = 0, atomic: bool = False) -> bool:
        """Submit until it is known whether they were taken, or never will be."""
        oracle = self._oracle
        tags = [spec.payload.decode() for spec in specs]
        while not self._workload.stopped or transaction:
            # They go as they are: whoever is asked at last shall not see what others did to them.
            try:
                answers = await self._ask(
                    lambda broker: broker.submit(
                        self._timed(broker, specs), transaction=transaction, atomic=atomic
                    ),
                    on_sent=lambda: oracle.tried.update(tags),
                )
            except BrokerUnavailable:
                oracle.tried.difference_update(tags)
                await self._elsewhere()
                continue
            except (Unanswered, OutcomeUnknown, UnknownTransaction):
                return False
            for tag, answer in zip(tags, answers, strict=True):
                if isinstance(answer, Refusal):
                    oracle.tried.discard(tag)
                elif not transaction:
                    oracle.accepted[tag] = answer
            self._world.trace.event("submitted", *tags)
            return not any(isinstance(answer, Refusal) for answer in answers)
        return False

    def _timed(self, broker: Broker, specs: list[Spec]) -> list[Spec]:
        """The same, to begin when a right clock shows it, with deadlines by the broker's time.

        Where a leader is ahead everything may begin at once, but none is refused as too late.
        """
        right_ms, now_ms = SimClock(self._world.loop, 0.0).wall_ms(), broker.term.time.now_ms()
        return [
            msgspec.structs.replace(
                spec,
                due_ms=spec.due_ms and right_ms + spec.due_ms,
                deadline_ms=spec.deadline_ms and now_ms + spec.deadline_ms,
            )
            for spec in specs
        ]

    async def _graph(self) -> None:
        """A parent and its child."""
        rule = self._rng.choice(list(Rule))
        parent, child = self._spec(), self._spec()
        child.parents = (Parent(index=0, rule=rule),)
        tags = parent.payload.decode(), child.payload.decode()
        self._workload.children[tags[1]] = (tags[0], rule)
        await self._submit([parent, child], atomic=True)

    async def _transaction(self) -> None:
        """Some submits that go together, or not at all."""
        try:
            number = await self._ask(lambda broker: broker.begin("client"))
        except (BrokerError, Unanswered):
            await self._elsewhere()
            return
        bundle = Bundle()
        self._workload.bundles.append(bundle)
        for _ in range(self._rng.randint(1, 3)):
            specs = [self._spec() for _ in range(self._rng.randint(1, 2))]
            for spec in specs:
                # What may be refused would make a bundle smaller.
                spec.slot = spec.unique_key = ""
            bundle.tags += [spec.payload.decode() for spec in specs]
            if not await self._submit(specs, transaction=number):
                # Perhaps all of them, perhaps not: it is never committed.
                bundle.committed = False
                return
            await asyncio.sleep(self._rng.random() * self._load.think_s)
        await self._end(bundle, number)

    async def _end(self, bundle: Bundle, number: int) -> None:
        draw = self._rng.random()
        if draw < 0.2:
            bundle.committed = False
            if draw < 0.1:
                await self.once(lambda broker: broker.rollback(number))
            return
        try:
            await self._ask(lambda broker: broker.commit(number))
            bundle.committed = True
        except (UnknownTransaction, BrokerUnavailable):
            bundle.committed = False
        except (BrokerError, Unanswered):
            bundle.committed = None

    async def _cancel(self) -> None:
        accepted = list(self._oracle.accepted.values())
        if accepted:
            task_id = self._rng.choice(accepted[-20:])
            self._oracle.cancelled.add(task_id)
            await self.once(lambda broker: broker.cancel([task_id], "client"))

    async def _wait(self) -> None:
        accepted = list(self._oracle.accepted.values())
        if not accepted:
            return
        task_id = self._rng.choice(accepted[-30:])
        try:
            task = await self._ask(lambda broker: broker.wait(task_id, 600))
        except (WaitTimedOut, BrokerUnavailable, Unanswered):
            return
        except UnknownTask:
            fleeting = self._oracle.accepted_tag(task_id) in self._oracle.fleeting
            if not fleeting and task_id not in self._oracle.deleted:
                raise
            return
        self._oracle.see(task.id, Status(task.status))

    # Calls

    async def once(self, call: Callable[[Broker], Coroutine[Any, Any, R]]) -> bool:
        """Ask once; whether it is known to be done."""
        try:
            await self._ask(call)
        except (BrokerError, Unanswered):
            await self._elsewhere()
            return False
        return True

    async def until_done(self, call: Callable[[Broker], Coroutine[Any, Any, R]]) -> R:
        """Ask until somebody has done it."""
        while True:
            try:
                return await self._ask(call)
            except (BrokerError, Unanswered):
                await self._elsewhere()

    async def _elsewhere(self) -> None:
        self._target = self._rng.choice(self._workload.nodes)
        await asyncio.sleep(0.05 + 0.2 * self._rng.random())

    async def _ask(
        self,
        call: Callable[[Broker], Coroutine[Any, Any, R]],
        *,
        on_sent: Callable[[], object] = lambda: None,
    ) -> R:
        """Ask a node, and whom it names as the leader. Raises what it raised, `Unanswered`."""
        for _ in range(3):
            try:
                return await self._ask_once(call, on_sent)
            except NotLeader as error:
                named = [node for node in self._workload.nodes if node.name == error.leader]
                if not named or named[0] is self._target:
                    raise
                self._target = named[0]
        raise BrokerUnavailable("nobody leads")

    async def _ask_once(
        self, call: Callable[[Broker], Coroutine[Any, Any, R]], on_sent: Callable[[], object]
    ) -> R:
        network, loop, node = self._world.network, self._world.loop, self._target
        process = node.process
        answered: asyncio.Future[R] = loop.create_future()

        def settle(result: R | None, error: BrokerError | None) -> None:
            if answered.done():
                return
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(result)  # type: ignore[arg-type]

        async def serve() -> None:
            result: R | None = None
            failed: BrokerError | None = None
            try:
                result = await call(node.running())
            except BrokerError as error:
                failed = error
            if network.unlucky(network.faults.lost_share):
                self._world.trace.fault("lost answer", node.name, self._process.name)
                return
            when = loop.now + network.latency_s()
            loop.deliver_at(when, self._process, settle, result, failed)

        def arrive() -> None:
            task = loop.create_task(serve(), name=f"{self._process.name} at {node.name}")
            self._world.disturbances.perhaps_cancel(task)

        on_sent()
        if network.unlucky(network.faults.lost_share):
            self._world.trace.fault("lost call", self._process.name, node.name)
        else:
            loop.deliver_at(loop.now + network.latency_s(), process, arrive)
        try:
            async with asyncio.timeout(_ANSWER_S + 2 * network.faults.slow_s):
                return await answered
        except TimeoutError:
            raise Unanswered from None


def judge_bundles(workload: BrokerWorkload, present: set[str]) -> None:
    """Transactions: all of their tasks or none, and which, if their client knows."""
    for bundle in workload.bundles:
        found = [tag for tag in bundle.tags if tag in present]
        if bundle.committed is None:
            wanted = (0, len(bundle.tags))
        else:
            wanted = (len(bundle.tags),) * 2 if bundle.committed else (0, 0)
        if len(found) not in wanted:
            raise Violation(f"of {bundle} there are {found}")


def draw_load(rng: random.Random) -> BrokerLoad:
    """What the clients of a run do."""
    return BrokerLoad(
        think_s=rng.choice([0.02, 0.1, 0.3]),
        batch=rng.choice([2, 4, 12]),
        transactions_share=rng.choice([0.0, 0.2]),
        graphs_share=rng.choice([0.0, 0.2]),
        slots=rng.choice([1, 5]),
        once_share=rng.choice([0.1, 0.5]),
        hurried_share=rng.choice([0.0, 0.3]),
        fleeting_share=rng.choice([0.0, 0.3]),
        operator_s=rng.choice([0.5, 2.0]),
    )
