"""Tablespaces with too few replicas get the missing ones as nodes join, one at a time."""

import asyncio
from dataclasses import replace

import pytest

from engine.errors import CannotRead
from herd.errors import ProgrammingError
from herd.nodes.directory import Directory
from herd.nodes.facts import SETTINGS as SETTINGS_KEY
from herd.nodes.facts import missing_replicas
from tests.herd.nodes.yard import LEASE_MS, SETTINGS, Bank, Yard, in_yard
from tests.simulation.virtual import elapse

GRACE_S = SETTINGS.grace_ms / 1000
SLOW_S = 2.0
"""How long a replica takes to start in these tests: much longer than one check of the auditor."""


async def add_slow(yard: Yard, *names: str) -> None:
    """Start nodes whose replicas take a while to be ready."""
    await yard.add(*names)
    for name in names:
        yard.machines[name].states.delay_s = SLOW_S


async def watched(yard: Yard, ended: asyncio.Event, name: str = "farm") -> list[tuple[str, ...]]:
    """The replicas that a tablespace had, one after the other, until told to end.

    Fails if a replica is added while another one is not ready.
    """
    found = [(await yard.fact(name)).replicas]
    while not ended.is_set():
        ready, now = yard.ready(name), (await yard.fact(name)).replicas
        if now != found[-1]:
            before = [node for node in found[-1] if yard.machines[node].alive]
            assert len(set(now) - set(found[-1])) <= 1, f"two at once: {found[-1]}, then {now}"
            if set(now) - set(found[-1]):
                assert set(before) <= ready, f"{now} of {found[-1]}, ready were {ready}"
            found.append(now)
        await elapse(0.01)
    return found


async def missing(yard: Yard, name: str = "farm") -> int:
    return missing_replicas(name, await yard.fact(name), await yard.commands.nodes())


async def made_up(yard: Yard, name: str = "farm") -> None:
    """Wait until a tablespace has the replicas that it should have."""
    for _ in range(600):
        if not await missing(yard, name):
            return
        await elapse(0.1)
    raise AssertionError(f"never made up: {await yard.fact(name)}, ready are {yard.ready(name)}")


def test_a_tablespace_made_with_one_node_up_gets_three_replicas_one_at_a_time() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a")
        await yard.commands.create("farm")
        await yard.led(by="a")
        assert await missing(yard) == 2
        outlook = yard.machines["a"].node.outlook
        await yard.until(lambda: outlook.under_replicated() == 1)
        bank = Bank(yard)
        await bank.open()
        ended = asyncio.Event()
        watching = asyncio.create_task(watched(yard, ended))
        await elapse(0.1)
        await add_slow(yard, "b", "c", "d")
        await made_up(yard)
        ended.set()
        steps = await watching
        assert [len(step) for step in steps] == [1, 2, 3]
        await yard.until(lambda: outlook.under_replicated() == 0)
        assert await yard.led() == "a"
        for name in steps[-1]:
            await yard.until(lambda name=name: bank.total(name) == 1_000)  # type: ignore[misc]

    in_yard(script)


def test_a_killed_leader_of_a_tablespace_made_with_one_node_up_is_followed_within_its_lease() -> (
    None
):
    async def script(yard: Yard) -> None:
        await yard.add("a")
        await yard.commands.create("farm")
        await yard.led(by="a")
        await yard.add("b", "c")
        await made_up(yard)
        yard.machines["a"].kill()
        killed_s = yard.loop.time()
        await yard.led()
        assert yard.loop.time() - killed_s < 2 * LEASE_MS / 1000

    in_yard(script)


def test_two_replicas_are_never_added_at_once_even_if_the_leader_and_auditor_die() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a")
        await yard.commands.create("farm")
        await yard.led(by="a")
        assert yard.machines["a"].node.auditor.elected
        ended = asyncio.Event()
        watching = asyncio.create_task(watched(yard, ended))
        await add_slow(yard, "b", "c")
        while len((await yard.fact()).replicas) < 2:
            await elapse(0.01)
        yard.machines["a"].kill()
        assert not yard.ready()
        await yard.until(lambda: yard.ready() == {"b", "c"}, "both are ready")
        ended.set()
        assert [len(step) for step in await watching] == [1, 2, 3]
        assert await yard.led() in "bc"

    in_yard(script)


def test_a_node_that_is_away_for_a_moment_is_not_replaced_and_a_dead_one_is_after_a_while() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c", "d")
        await yard.commands.create("farm", nodes=["a", "b", "c"])
        await made_up(yard)
        before = (await yard.fact()).replicas
        yard.machines["c"].kill()
        await elapse(0.6 * GRACE_S)
        assert await missing(yard) in (0, 1) and (await yard.fact()).replicas == before
        yard.machines["c"].start()
        await made_up(yard)
        await elapse(2 * GRACE_S)
        assert (await yard.fact()).replicas == before
        yard.machines["c"].kill()
        killed_s = yard.loop.time()
        while "d" not in (await yard.fact()).replicas:
            await elapse(0.1)
        assert yard.loop.time() - killed_s > GRACE_S
        await made_up(yard)
        await yard.replicas_on("a", "b", "d")

    in_yard(script)


def test_a_node_comes_back_while_another_takes_its_place() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c")
        await yard.commands.create("farm", nodes=["a", "b", "c"])
        await made_up(yard)
        ended = asyncio.Event()
        watching = asyncio.create_task(watched(yard, ended))
        await add_slow(yard, "d")
        yard.machines["c"].kill()
        while "d" not in (await yard.fact()).replicas:
            await elapse(0.1)
        yard.machines["c"].start()
        while len((await yard.fact()).replicas) > 3:
            await elapse(0.1)
        ended.set()
        await watching
        assert set((await yard.fact()).replicas) == {"a", "b", "c"}
        await made_up(yard)

    in_yard(script)


def test_a_new_node_creates_only_a_few_replicas_at_a_time() -> None:
    async def script(yard: Yard) -> None:
        few = replace(SETTINGS, made_at_once=2)
        names = [f"farm-{number}" for number in range(6)]
        await yard.add("a", settings=few)
        for name in names:
            await yard.commands.create(name, expected=2)
            await yard.led(name, by="a")
        await yard.add("b", settings=few)
        yard.machines["b"].states.delay_s = SLOW_S
        most = 0
        while any([await missing(yard, name) for name in names]):
            begun = sum(["b" in (await yard.fact(name)).replicas for name in names])
            ready = sum("b" in yard.ready(name) for name in names)
            most = max(most, begun - ready)
            await elapse(0.05)
        assert most == 2

    in_yard(script)


def test_the_clusters_default_applies_to_all_tablespaces_without_a_number_of_their_own() -> None:
    async def script(yard: Yard) -> None:
        assert await yard.commands.default_replicas() == 3
        await yard.add("a", "b", "c", "d", settings=replace(SETTINGS, makes_default=True))
        await yard.commands.create("farm")
        await yard.commands.create("own", expected=3)
        assert await yard.commands.set_default_replicas(4) == 4
        for name in ("farm", "default"):
            await yard.replicas_on("a", "b", "c", "d", name=name)
            assert (await yard.fact(name)).expected == 4
        assert len((await yard.fact("own")).replicas) == 3
        await yard.commands.set_expected("own", None)
        await yard.replicas_on("a", "b", "c", "d", name="own")
        await yard.commands.set_expected("farm", 2)
        await yard.until(lambda: len(yard.ready()) == 2)
        await yard.commands.set_default_replicas(1)
        await yard.until(lambda: len(yard.ready("own")) == len(yard.ready("default")) == 1)
        assert len(yard.ready()) == 2
        with pytest.raises(ProgrammingError, match="1 to 64"):
            await yard.commands.set_default_replicas(0)

    in_yard(script)


def test_settings_that_cannot_be_read_change_no_tablespace() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("farm")
        await yard.led()
        await yard.own.store.create(SETTINGS_KEY, b"what is this")
        yard.machines["a"].store.expire()
        await elapse(2 * GRACE_S)
        fact = await yard.fact()
        assert (fact.expected, set(fact.replicas)) == (3, {"a", "b"})
        with pytest.raises(CannotRead):
            await Directory(yard.own.store, yard.own.rng).settings()

    in_yard(script)


def test_a_replica_moved_by_hand_gives_the_tablespace_a_number_of_its_own() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c", "d")
        await yard.commands.create("farm", nodes=["a", "b", "c"])
        fact = await yard.fact()
        assert (fact.expected, fact.by_default) == (3, True)
        fact = await yard.commands.add_replica("farm", "d")
        assert (fact.expected, fact.by_default) == (4, False)
        fact = await yard.commands.remove_replica("farm", "a")
        assert (fact.expected, fact.by_default) == (3, False)
        fact = await yard.commands.set_expected("farm", None)
        assert (fact.expected, fact.by_default) == (3, True)

    in_yard(script)
