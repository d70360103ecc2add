"""The real broker, coordinators that come and go, agents that die with their leases: never over m.

In virtual time, by seeds. A node is acting from the first line of its action until a check found
it healthy or an operator looked.
"""

from random import Random

import pytest

from broker.errors import BrokerError
from broker.rollouts.actions import UNHEALTHY, WAIT
from broker.rollouts.alarming import Alarms
from broker.rollouts.coordinator import Coordinator
from broker.rollouts.document import CHECK_NODE, EXECUTE, POST_CHECK, PRE_CHECK
from broker.rollouts.record import ENDED, Phase, State
from broker.rollouts.rollouts import AsyncRollouts
from broker.service import Broker
from broker.settings import Limit
from tests.broker.rollouts.agents import Agent, Herd, document
from tests.broker.service.yard import opened
from tests.simulation.virtual import elapse, virtually

NODES = ("a", "b", "c", "d", "e")
PARTS = (PRE_CHECK, EXECUTE, POST_CHECK, CHECK_NODE)
STUCK = (Phase.UNKNOWN, Phase.DEAD)


class Chaos:
    """One roll-out, and what is done to those who are to do it."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.rng = Random(seed)
        self.broker = broker
        self.herd = Herd()
        self.limit = self.rng.randrange(1, 4)
        self.rollouts = AsyncRollouts(broker)
        self.herd.lasts_s = lambda: self.rng.choice((0.0, 0.1, 0.5, 1.2))
        self.name = ""
        self.lives = 0
        self.agents: dict[str, Agent] = {}
        self.coordinators: list[Coordinator] = []

    async def start(self) -> None:
        for node in NODES:
            await self.bring(node)
        self.coordinate()
        self.name = await self.rollouts.start(document(*NODES, limit=self.limit))

    def coordinate(self) -> None:
        made = Coordinator(self.broker, alarms=Alarms())
        made.start()
        self.coordinators.append(made)

    async def bring(self, node: str) -> None:
        if node not in self.agents or not self.agents[node].alive:
            self.lives += 1
            made = Agent(self.herd, node)
            self.agents[node] = await made.connect(self.broker, f"life {self.lives}")

    async def harm(self) -> None:
        """Something goes wrong, or is mended."""
        rng, node = self.rng, self.rng.choice(NODES)
        what = rng.randrange(8)
        if what <= 1 and node in self.agents:
            await self.agents.pop(node).die()
        elif what == 2:
            await self.bring(node)
        elif what == 3:
            self.herd.hold ^= {(rng.choice(PARTS), node)}
        elif what == 4:
            bad = {PRE_CHECK: WAIT, POST_CHECK: UNHEALTHY, CHECK_NODE: UNHEALTHY}
            part = rng.choice(PARTS)
            self.herd.says[part, node] = [bad.get(part, RuntimeError("it broke"))]
        elif what == 5:
            await self.coordinators.pop().close()
            self.coordinate()
            if rng.random() < 0.3:
                self.coordinate()
        elif what == 6:
            limit = rng.choice((None, Limit(1), Limit(2), Limit(5)))
            await self.broker.set("resource", "cluster:geo", limit, "elsa")
        else:
            await self.operate()

    async def operate(self) -> None:
        """An operator looks at what is stuck, and lets it go on."""
        rollout = await self.rollouts.get(self.name)
        for node, known in rollout.nodes.items():
            if known.phase in STUCK:
                await self.rollouts.clear(self.name, node, done=self.rng.random() < 0.5, by="elsa")
                self.herd.acting.discard(node)
                return
        if rollout.state is State.PAUSED:
            await self.rollouts.resume(self.name, "elsa")

    async def mend(self) -> None:
        """All goes well from now on."""
        self.herd.hold.clear()
        self.herd.says.clear()
        self.herd.lasts_s = lambda: 0.0
        await self.broker.set("resource", "cluster:geo", None, "elsa")
        for node in NODES:
            if node in self.agents:
                await self.agents.pop(node).die()
        for _ in range(400):
            for node in NODES:
                await self.bring(node)
            await elapse(1.0)
            self.check()
            if (await self.rollouts.get(self.name)).state in ENDED:
                return
            await self.operate()
        raise AssertionError(await self.rollouts.get(self.name))

    def check(self) -> None:
        """What always holds."""
        assert len(self.herd.acting) <= self.limit and self.herd.most_acting <= self.limit

    async def end(self) -> None:
        for each in self.coordinators:
            await each.close()
        for agent in self.agents.values():
            await agent.die()


@pytest.mark.parametrize("seed", range(10))
def test_whatever_dies_no_more_than_m_are_acting_and_it_ends_when_that_does(seed: int) -> None:
    async def script() -> None:
        async with opened() as broker:
            chaos = Chaos(broker, seed)
            await chaos.start()
            for _ in range(50):
                await elapse(chaos.rng.choice((0.05, 0.3, 1.0, 2.5)))
                chaos.check()
                try:
                    await chaos.harm()
                except BrokerError:
                    continue
            await chaos.mend()
            assert not chaos.herd.acting and await broker.held_clusters() == []
            assert await broker.slots() == [], "no slot leaks"
            await chaos.end()

    virtually(script())
