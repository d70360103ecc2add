"""Tablespaces that nobody uses are suspended, and run again for whoever asks."""

import asyncio
import itertools
from dataclasses import replace

from herd.errors import DatabaseError
from tests.herd.nodes.yard import SETTINGS, Bank, Machine, Yard, in_yard
from tests.simulation.virtual import elapse

SUSPENDING = replace(SETTINGS, suspend_after_ms=5_000)
NODES = ("a", "b", "c")


async def used_once(yard: Yard) -> Bank:
    """Three nodes, and a tablespace that was used."""
    await yard.add(*NODES, settings=SUSPENDING)
    await yard.commands.create("farm", expected=3)
    bank = Bank(yard)
    await bank.open()
    await yard.replicas_on(*NODES)
    return bank


async def suspended(yard: Yard) -> None:
    """Wait until no node runs the tablespace any more."""
    await yard.until(lambda: not any(one.space("farm") for one in yard.machines.values()))
    assert (await yard.fact()).suspended


def epoch(yard: Yard, machine: Machine) -> int:
    space = machine.space("farm")
    assert space is not None
    return space.term


def test_a_tablespace_that_nobody_uses_runs_nowhere_until_somebody_asks() -> None:
    async def script(yard: Yard) -> None:
        bank = await used_once(yard)
        leader = yard.machines[await yard.led()]
        term = epoch(yard, leader)
        await suspended(yard)
        nodes = [machine.node for machine in yard.machines.values()]
        await yard.until(lambda: not any(one.outlook.nodes[one.node_id].replicas for one in nodes))
        asked = yard.machines["a"]
        try:
            await asked.run(asked.node.tablespace("farm"))
        except DatabaseError as error:
            assert "does not lead" in str(error)
        led_by = yard.machines[await yard.led()]
        # One term, not one for each replica that noticed that the leader had gone.
        assert epoch(yard, led_by) == term + 1
        assert bank.total(led_by.name) == bank.START * bank.ACCOUNTS
        await yard.replicas_on(*NODES)

    in_yard(script)


def test_the_leader_of_a_suspended_tablespace_ends_after_the_other_replicas() -> None:
    async def script(yard: Yard) -> None:
        await used_once(yard)
        leader = yard.machines[await yard.led()]
        slow = next(one for one in yard.machines.values() if one is not leader)

        def is_idle() -> bool:
            report = leader.node.outlook.report("farm", slow.name)
            return report is not None and report.idle

        await yard.until(is_idle)
        yard.loop.pause(slow.process)
        await yard.until(lambda: leader.node.outlook.spaces["farm"].suspended)
        await elapse(1.0)
        # If it ended now, the slow one would be elected for nothing.
        assert leader.leads("farm")
        yard.loop.resume(slow.process)
        await suspended(yard)

    in_yard(script)


def test_a_node_returns_free_memory_after_replicas_have_ended_but_not_too_often() -> None:
    async def script(yard: Yard) -> None:
        await used_once(yard)
        assert not any(one.returned_at_s for one in yard.machines.values())
        await suspended(yard)
        await yard.until(lambda: all(one.returned_at_s for one in yard.machines.values()))
        await elapse(150)
        once = (len(one.returned_at_s) == 1 for one in yard.machines.values())
        assert all(once), "no replica has ended since"
        one = yard.machines["a"]
        for _ in range(3):
            await yard.commands.resume("farm")
            await yard.replicas_on(*NODES)
            await suspended(yard)
        await yard.until(lambda: len(one.returned_at_s) > 2)
        pauses_s = [late - early for early, late in itertools.pairwise(one.returned_at_s)]
        assert min(pauses_s) >= 60 and not one.returned_early

    in_yard(script)


def test_a_tablespace_in_use_is_not_suspended() -> None:
    async def script(yard: Yard) -> None:
        bank = await used_once(yard)
        working = asyncio.create_task(bank.work())
        await elapse(20)
        assert not (await yard.fact()).suspended
        bank.ending = True
        await working
        assert bank.transfers > 100 and not bank.errors

    in_yard(script)


def test_a_statement_that_runs_at_any_replica_keeps_a_tablespace_running() -> None:
    class Session:
        """Stands for one that runs a long query."""

        running = "SELECT"

    async def script(yard: Yard) -> None:
        from herd.sql.clients import clients_of

        await used_once(yard)
        leader = await yard.led()
        follower = next(one for one in yard.machines.values() if one.name != leader)
        space, session = follower.space("farm"), Session()
        assert space is not None
        clients_of(space).enter(session)  # type: ignore[arg-type]
        await elapse(20)
        assert not (await yard.fact()).suspended
        clients_of(space).leave(session)  # type: ignore[arg-type]
        await suspended(yard)

    in_yard(script)


def test_a_node_that_begins_to_use_a_suspended_tablespace_has_it_run_again() -> None:
    async def script(yard: Yard) -> None:
        await used_once(yard)
        leader = yard.machines[await yard.led()]
        space = leader.space("farm")
        assert space is not None
        await yard.until(lambda: leader.node.outlook.spaces["farm"].suspended)
        # The replica has not ended yet, because it waits for the others.
        space.uses += 1
        await yard.until(lambda: not leader.node.outlook.spaces["farm"].suspended)
        await yard.replicas_on(*NODES)
        assert leader.space("farm") is space and space.term

    in_yard(script)


def test_a_suspended_tablespace_of_a_node_that_died_is_led_by_another_one() -> None:
    async def script(yard: Yard) -> None:
        bank = await used_once(yard)
        await suspended(yard)
        yard.machines["a"].kill()
        working = asyncio.create_task(bank.work())
        await yard.commands.resume("farm")
        assert await yard.led() in ("b", "c")
        await elapse(5)
        bank.ending = True
        await working
        assert bank.transfers > 50

    in_yard(script)


def test_a_suspended_tablespace_can_be_dropped() -> None:
    async def script(yard: Yard) -> None:
        await used_once(yard)
        await suspended(yard)
        await yard.commands.drop("farm")
        machine = yard.machines["a"]
        await yard.until(lambda: "farm" not in machine.node.outlook.spaces, "it is gone")
        assert machine.states.wiped

    in_yard(script)


def test_tablespaces_that_are_never_to_be_suspended_are_not() -> None:
    async def script(yard: Yard) -> None:
        await yard.add(*NODES, settings=replace(SUSPENDING, never_suspended=("farm",)))
        await yard.commands.create("farm", expected=3)
        await yard.led()
        await elapse(20)
        assert not (await yard.fact()).suspended

    in_yard(script)
