"""Whatever happens to agents, leases, nodes and coordinators, no more than m of n are touched."""

from random import Random

import pytest

from broker.rollouts.record import ENDED, Phase, State
from tests.broker.rollouts.world import World

HISTORIES = 1_200
STEPS = 60


@pytest.mark.parametrize("part", range(4))
def test_no_more_nodes_than_the_limit_are_ever_touched(part: int) -> None:
    actions = ended = unknown = opened = paused = 0
    for seed in range(part * HISTORIES // 4, (part + 1) * HISTORIES // 4):
        rng = Random(seed)
        nodes = rng.choice((3, 4, 5, 7))
        world = World(rng, nodes, rng.randrange(1, nodes))
        for _ in range(STEPS):
            world.step()
        rollout = world.rollout
        actions += len(world.actions)
        ended += rollout.state in ENDED
        unknown += any(node.phase is Phase.UNKNOWN for node in rollout.nodes.values())
        opened += rollout.breaker.failures > 0
        paused += rollout.state is State.PAUSED
    # The histories are worth something: all of this is met in them.
    assert actions > HISTORIES // 8 and min(ended, unknown, opened, paused) > 0


def test_every_roll_out_ends_when_the_faults_have() -> None:
    for seed in range(100):
        rng = Random(seed)
        world = World(rng, 4, rng.choice((1, 2, 3)))
        for _ in range(STEPS):
            world.step()
        world.there, world.operators_limit = list(world.names), None
        for _ in range(600):
            world.agents_return()
            world.mend()
            world.begin_tasks()
            world.end_one()
            world.now_ms += 5_000
            world.put(*world.look())
            world.check()
            rollout = world.known
            if rollout.state in ENDED:
                break
            if rollout.state is State.PAUSED or rollout.count(Phase.DEAD):
                world.operate()
        assert rollout.state in ENDED, (seed, rollout)
        assert not world.touched
