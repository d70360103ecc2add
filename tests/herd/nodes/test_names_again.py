"""What an older tablespace left, and who worked for it, never touches the next one of its name."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from engine.replica.snapshots import SnapshotRecord
from herd.errors import OperationalError
from herd.nodes import auditor
from herd.nodes.dropping import sweep_dropped
from herd.nodes.facts import RESTORING
from herd.nodes.restoring import made_whole
from herd.tablespace import Tablespace
from tests.herd.nodes.test_restoring import empty, fill, maker, making, swept
from tests.herd.nodes.yard import SESSION_S, Bank, Machine, Yard, in_yard
from tests.herd.spaces import insert, made
from tests.simulation.virtual import elapse

NEW = ["account"]
CALLS = 16
"""How often a sweep calls the metadata store."""


async def used_again(yard: Yard) -> Bank:
    """A new tablespace of the name, with rows, that all its replicas have."""
    await yard.commands.create("farm", expected=2)
    bank = Bank(yard)
    await bank.open()
    await whole(yard, bank)
    return bank


async def whole(yard: Yard, bank: Bank) -> None:
    """Wait until every replica of the tablespace has the new one's rows, and nothing else."""
    await yard.led()

    def all_there() -> bool:
        running = [one.name for one in yard.machines.values() if one.space("farm")]
        return len(running) >= 2 and all(bank.total(name) == 1_000 for name in running)

    await yard.until(all_there, "all rows are there")
    assert [catalog_of(one) for one in yard.machines.values() if one.space("farm")] == [
        NEW for one in yard.machines.values() if one.space("farm")
    ]


async def another_replica(yard: Yard, bank: Bank) -> None:
    """A replica that begins with nothing gets the new one's rows."""
    await yard.add("c")
    await yard.commands.add_replica("farm", "c")
    await yard.until(lambda: yard.machines["c"].space("farm") is not None, "it runs")
    await whole(yard, bank)


def catalog_of(machine: Machine) -> list[str]:
    space = machine.space("farm")
    assert space is not None
    return space.catalog.names


async def old_rows(space: Tablespace) -> None:
    """A table that the next tablespace does not have."""
    table = await made(space, "goat")
    transaction = space.begin()
    await insert(transaction, table, *[[number, number, ""] for number in range(10)])
    await transaction.commit()


def test_a_maker_that_was_paused_before_it_named_its_snapshot_names_none_for_the_next() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        process, store, client = maker(yard)
        filled = asyncio.Event()

        async def make() -> None:
            async with making(client) as space:
                await old_rows(space)
                usual = space.replica._snapshots._name

                async def late(wanted: SnapshotRecord) -> Any:
                    yard.loop.pause(process)
                    filled.set()
                    await asyncio.sleep(0)
                    return await usual(wanted)

                space.replica._snapshots._name = late  # type: ignore[method-assign]

        task = yard.loop.spawn(process, make(), "making")
        await yard.until(filled.is_set, "it is filled")
        store.expire()
        await swept(yard)
        bank = await used_again(yard)
        yard.loop.resume(process)
        await yard.until(task.done, "the maker has ended")
        with pytest.raises(OperationalError, match="given up"):
            task.result()
        await another_replica(yard, bank)

    in_yard(script)


def test_a_maker_that_was_paused_before_it_led_fills_no_other_tablespace() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        process, store, client = maker(yard)
        begun, filled = asyncio.Event(), []

        async def late() -> Any:
            yard.loop.pause(process)
            begun.set()
            await asyncio.sleep(0)
            return await empty()

        async def make() -> None:
            async with made_whole(client, "farm", late, expected=2) as space:
                filled.append(space)
                await old_rows(space)

        task = yard.loop.spawn(process, make(), "making")
        await yard.until(begun.is_set, "it has begun")
        store.expire()
        await swept(yard)
        bank = await used_again(yard)
        # Nobody else is there to lead the log when it goes on.
        for name in "ab":
            yard.machines[name].kill()
        await elapse(SESSION_S)
        yard.loop.resume(process)
        await yard.until(task.done, "the maker has ended")
        with pytest.raises(OperationalError, match="given up"):
            task.result()
        assert filled == []
        for name in "ab":
            yard.machines[name].start()
        await yard.replicas_on("a", "b")
        await yard.until(lambda: {bank.total(one) for one in "ab"} == {1_000}, "all is there")
        await whole(yard, bank)

    in_yard(script)


@pytest.mark.parametrize("point", range(CALLS))
def test_an_auditor_that_was_paused_in_a_sweep_touches_nothing_of_the_next_tablespace(
    point: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeping: ContextVar[bool] = ContextVar("sweeping", default=False)

    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("farm", expected=2)
        leader = yard.machines[await yard.led()]
        space = leader.space("farm")
        assert space is not None
        await leader.run(old_rows(space))
        paused: list[Machine] = []
        _pause_in_sweep(yard, monkeypatch, sweeping, point, paused)
        await yard.commands.drop("farm")
        await yard.until(lambda: bool(paused), "the sweep has come so far")
        paused[0].store.expire()
        await swept(yard)
        _, _, client = maker(yard)
        async with making(client) as again:
            await fill(again)
        bank = Bank(yard)
        await yard.led()
        yard.loop.resume(paused[0].process)
        await elapse(5.0)
        await whole(yard, bank)
        await another_replica(yard, bank)

    in_yard(script)


def _pause_in_sweep(
    yard: Yard,
    monkeypatch: pytest.MonkeyPatch,
    sweeping: ContextVar[bool],
    point: int,
    paused: list[Machine],
) -> None:
    """Pause the first node that sweeps before the call to the store that has that number."""
    usual = sweep_dropped

    async def sweep(*args: Any) -> int:
        sweeping.set(True)
        try:
            return await usual(*args)
        finally:
            sweeping.set(False)

    monkeypatch.setattr(auditor, "sweep_dropped", sweep)
    for machine in yard.machines.values():
        _count_calls(yard, machine, sweeping, point, paused)


def _count_calls(
    yard: Yard, machine: Machine, sweeping: ContextVar[bool], point: int, paused: list[Machine]
) -> None:
    call, calls = machine.store._call, 0

    async def counted(*args: Any) -> Any:
        nonlocal calls
        if sweeping.get() and not paused:
            calls += 1
            if calls > point:
                paused.append(machine)
                yard.loop.pause(machine.process)
                await asyncio.sleep(0)
        return await call(*args)

    machine.store._call = counted  # type: ignore[method-assign, assignment]


def test_a_maker_gives_its_name_back_as_soon_as_the_store_answers_again() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        process, store, client = maker(yard)

        async def make() -> None:
            async with making(client) as space:
                await fill(space)
                store.reachable = False
                raise RuntimeError("the disk is full")

        task = yard.loop.spawn(process, make(), "making")
        await yard.until(lambda: not store.reachable, "it has failed")
        # It ends its log before it gives its name back; either is told that nobody answers.
        await elapse(10 * SESSION_S)
        assert await yard.own.store.children(RESTORING) == ["farm"], "its session goes on"
        store.reachable = True
        await yard.until(task.done, "the maker has ended")
        with pytest.raises(RuntimeError, match="the disk is full"):
            task.result()
        await swept(yard)

    in_yard(script)
