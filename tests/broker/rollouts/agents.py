"""Agents without processes, on the real broker, and a cluster whose nodes they touch."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from broker.connection import Completion, Ended, Run, WorkerLimits
from broker.errors import BrokerError
from broker.rollouts.actions import GO, HEALTHY, Verdict
from broker.rollouts.document import CHECK_NODE, EXECUTE, POST_CHECK, PRE_CHECK, Step
from broker.rollouts.steps import agent_id, group_of, ping_type, step_type
from broker.service import Broker
from tests.broker.service.yard import FakeWorker
from tests.simulation.virtual import elapse

PLAIN = {"action": "restart", "version": 1, "limit": 1, "cluster_name": "geo", "owner": "storage"}
QUICK = {
    "retry_count": 2,
    "retry_ms": 500,
    "start_ms": 5_000,
    "breaker_ms": 2_000,
    "stale_ms": 60_000,
    "discover_ms": 1_000,
}
GOOD = {PRE_CHECK: GO, EXECUTE: "done", POST_CHECK: HEALTHY, CHECK_NODE: HEALTHY}


class _Payload(msgspec.Struct):
    step: Step


def document(*nodes: str, **more: object) -> dict[str, object]:
    """A document over these nodes."""
    return {**PLAIN, "nodes": list(nodes), "params": {"workqueue_args": QUICK}, **more}


class Herd:
    """What happened on the nodes, in order, and what their agents are to say."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        """Part and node, as they began."""
        self.acting: set[str] = set()
        self.most_acting = 0
        self.says: dict[tuple[str, str], list[str | Exception]] = {}
        """What a part of a node comes to, one after the other; else what is good."""
        self.hold: set[tuple[str, str]] = set()
        """Parts that never end."""
        self.lasts_s: Callable[[], float] = lambda: 0.0
        """How long a part lasts, in virtual time."""

    def begin(self, step: Step) -> None:
        """A part begins."""
        self.steps.append((step.part, step.destnode))
        if step.part == EXECUTE:
            self.acting.add(step.destnode)
            self.most_acting = max(self.most_acting, len(self.acting))

    def end(self, run: Run, step: Step) -> Completion:
        """A part ends."""
        said = self.says.get((step.part, step.destnode))
        word = said.pop(0) if said else GOOD[step.part]
        if isinstance(word, Exception):
            return Completion(run.id, run.attempt, Ended.FAILED, error=f"{word!r}")
        if step.part in (POST_CHECK, CHECK_NODE) and word == HEALTHY:
            self.acting.discard(step.destnode)
        result = msgspec.json.encode(Verdict(word, "as it was said"))
        return Completion(run.id, run.attempt, Ended.FINISHED, result)

    def parts(self, name: str) -> list[str]:
        """What was begun for a node."""
        return [part for part, node in self.steps if node == name]


class Agent:
    """The agent of one node."""

    def __init__(self, herd: Herd, node: str) -> None:
        self.node = node
        self.pings = 0
        self._herd = herd
        self._living: asyncio.Task[None] | None = None
        self._worker: FakeWorker | None = None

    async def connect(self, broker: Broker, process_id: str = "first") -> "Agent":
        """Begin to live."""
        self._worker = await FakeWorker.connected(
            broker,
            agent_id(self.node),
            process_id=process_id,
            types=(step_type(self.node), ping_type(self.node)),
            limits=WorkerLimits(4, groups=(group_of(self.node),)),
        )
        self._living = asyncio.create_task(self._live(self._worker))
        return self

    @property
    def alive(self) -> bool:
        """Whether it is linked: another life may have been refused as long as one has a lease."""
        return self._living is not None and not self._living.done()

    async def die(self) -> None:
        """Say nothing more; whatever runs is over."""
        assert self._living is not None
        self._living.cancel()
        await asyncio.gather(self._living, return_exceptions=True)

    async def _live(self, worker: FakeWorker) -> None:
        with suppress(BrokerError):
            while True:
                while worker.runs:
                    await self._take(worker, worker.runs.pop(0))
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await worker.listen()
                await worker.beat()

    async def _take(self, worker: FakeWorker, run: Run) -> None:
        if run.type == ping_type(self.node):
            self.pings += 1
            await worker.tell(Completion(run.id, run.attempt, Ended.FINISHED, b"1"))
            return
        step = msgspec.json.decode(run.payload, type=_Payload).step
        assert step.node == self.node and run.type == step_type(self.node)
        self._herd.begin(step)
        lasts_s = self._herd.lasts_s()
        if lasts_s:
            await elapse(lasts_s)
        if (step.part, step.destnode) not in self._herd.hold:
            await worker.tell(self._herd.end(run, step))


async def agents(broker: Broker, herd: Herd, *nodes: str) -> list[Agent]:
    """An agent for each node."""
    return [await Agent(herd, node).connect(broker) for node in nodes]
