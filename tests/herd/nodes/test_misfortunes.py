"""Nodes under random misfortunes: in the end one leads, replicas are where they should be, and all
of them have the same money.

`HERDBOOK_NODE_SEEDS=100` tries as many; a seed that fails is replayed by its number alone.
"""

import asyncio
import os
import random
from dataclasses import replace

import pytest

from tests.herd.nodes.yard import SETTINGS, Bank, Yard, in_yard
from tests.simulation.virtual import elapse

SEEDS = range(1, 1 + int(os.environ.get("HERDBOOK_NODE_SEEDS", "2")))
NODES = ("a", "b", "c", "d")
QUICK = replace(SETTINGS, grace_ms=3_000, preference_ms=1_500, suspend_after_ms=1_000)
_STEPS = 14


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_befalls_nodes_the_money_is_there_and_one_leads(seed: int) -> None:
    async def script(yard: Yard) -> None:
        chance = random.Random(seed)
        await yard.add(*NODES, settings=QUICK)
        await yard.commands.create("farm", expected=3)
        bank = Bank(yard)
        await bank.open()
        working = asyncio.create_task(bank.work())
        for _ in range(_STEPS):
            await elapse(chance.uniform(0.1, 4.0))
            await befall(yard, bank, chance)
        await heal(yard)
        bank.resting = False
        await settle(yard)
        await yard.until(lambda: bank.transfers > 50, "transfers")
        assert len(await yard.commands.nodes()) == len(NODES)
        bank.ending = True
        await working
        await money_is_there(yard, bank)

    in_yard(script, seed)


async def befall(yard: Yard, bank: Bank, chance: random.Random) -> None:
    """One misfortune, or one command, or nobody uses the tablespace for a while."""
    machine = yard.machines[chance.choice(NODES)]
    alive = [each for each in yard.machines.values() if each.alive]
    draw = chance.randrange(10)
    if draw == 0 and machine.alive and len(alive) > 2:
        machine.kill()
    elif draw == 1 and not machine.alive:
        machine.start()
    elif draw == 2 and machine.alive:
        yard.loop.pause(machine.process)
        await elapse(chance.uniform(0.5, 4.0))
        yard.loop.resume(machine.process)
    elif draw == 3 and machine.alive:
        machine.store.expire()
    elif draw == 4:
        yard.faults.lost_before_share = yard.faults.lost_after_share = chance.choice([0.0, 0.1])
    elif draw == 5 and machine.alive:
        machine.store.reachable = False
        await elapse(chance.uniform(0.5, 4.0))
        machine.store.reachable = True
    elif draw in (6, 7):
        bank.resting = not bank.resting
    else:
        await command(yard, chance)


async def command(yard: Yard, chance: random.Random) -> None:
    """A command to some node that is there; the store may lose it."""
    yard.faults.lost_before_share = yard.faults.lost_after_share = 0.0
    nodes = sorted(await yard.commands.nodes())
    if not nodes:
        return
    node = chance.choice(nodes)
    draw = chance.randrange(4)
    if draw == 0:
        await yard.commands.add_replica("farm", node)
    elif draw == 1 and len((await yard.fact()).replicas) > 2:
        await yard.commands.remove_replica("farm", (await yard.fact()).replicas[0])
    elif draw == 2:
        await yard.commands.set_expected("farm", chance.choice([2, 3]))
    else:
        await yard.commands.move_leader("farm", node)


async def heal(yard: Yard) -> None:
    """Let everything be well again."""
    yard.faults.lost_before_share = yard.faults.lost_after_share = 0.0
    for machine in yard.machines.values():
        if not machine.alive:
            machine.start()
    await yard.commands.set_expected("farm", 3)


async def settle(yard: Yard) -> None:
    """Wait until the fact and the nodes agree, and the designated leader leads."""
    for _ in range(600):
        await elapse(0.2)
        fact, leaders = await yard.fact(), yard.leaders("farm")
        running = {each.name for each in yard.machines.values() if each.space("farm")}
        led = len(leaders) == 1 and fact.leader in ("", leaders[0])
        if led and len(fact.replicas) == 3 and running == set(fact.replicas):
            return
    raise AssertionError(f"not settled: {fact}, run by {running}, led by {leaders}")


async def money_is_there(yard: Yard, bank: Bank) -> None:
    """All replicas have all the money, at one position."""
    spaces = {each.name: each.space("farm") for each in yard.machines.values()}
    there = {name: space for name, space in spaces.items() if space is not None}
    assert len(there) == 3
    await yard.until(
        lambda: len({space.replica.position for space in there.values()}) == 1, "one position"
    )
    totals = {name: bank.total(name) for name in there}
    assert set(totals.values()) == {bank.ACCOUNTS * bank.START}, totals
