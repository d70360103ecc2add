"""A replica on an empty disk begins with a snapshot; the log keeps what is pinned."""

import asyncio

import pytest

from engine.errors import PositionTruncated
from engine.log.log import ReplicatedLog
from engine.log.log_reader import Batch
from engine.log.position import START
from engine.replica.following import Following
from herd.errors import LeaderUnavailable
from herd.reading_log import log_of
from tests.herd.nodes.yard import Bank, Yard, in_yard
from tests.simulation.virtual import elapse


async def worked(yard: Yard) -> tuple[Bank, ReplicatedLog]:
    """A bank on one node, with transfers over several ledgers of its log."""
    await yard.add("a", "b")
    await yard.commands.create("farm", expected=1, nodes=["a"])
    bank = Bank(yard)
    await bank.open()
    working = asyncio.create_task(bank.work())
    await yard.until(lambda: bank.transfers >= 60, "transfers")
    bank.ending = True
    await working
    return bank, ReplicatedLog(yard.own, log_of("farm"))


async def snapshot(yard: Yard) -> None:
    """Take a snapshot at the leader, and drop what the log need not keep."""
    machine = yard.machines["a"]
    space = machine.space("farm")
    assert space is not None
    await machine.run(space.replica.snapshot())


def test_an_added_replica_begins_with_a_snapshot_and_the_log_after_it() -> None:
    async def script(yard: Yard) -> None:
        bank, log = await worked(yard)
        assert (await log.list()).full_history and len((await log.list()).ledgers) > 2
        await snapshot(yard)
        assert not (await log.list()).full_history
        await yard.commands.add_replica("farm", "b")
        await yard.replicas_on("a", "b")
        await yard.until(lambda: bank.total("b") == 1_000, "it has caught up")
        await yard.commands.move_leader("farm", "b")
        await yard.led(by="b")
        assert bank.total("b") == 1_000
        assert [pin.name for pin in (await log.list()).pins] == []

    in_yard(script)


def test_a_replica_is_not_read_nor_counted_before_it_has_caught_up() -> None:
    async def script(yard: Yard) -> None:
        bank, _ = await worked(yard)
        machine = yard.machines["b"]
        # What it reads of the log waits at the door.
        go_on = asyncio.Event()
        usual = Following._apply

        async def late(self: Following, batch: Batch) -> None:
            if self._pin == f"replica {replica_id(yard)}":
                await go_on.wait()
            await usual(self, batch)

        Following._apply = late  # type: ignore[method-assign]
        try:
            await yard.commands.add_replica("farm", "b")
            await yard.until(lambda: machine.space("farm") is not None)
            await elapse(3.0)
            nodes = await yard.commands.nodes()
            assert nodes["b"].replicas["farm"].role == "catching up"
            with pytest.raises(LeaderUnavailable, match="not yet"):
                await machine.run(machine.node.follower_session("farm"))
            go_on.set()
            await yard.until(lambda: bank.total("b") == 1_000, "it has caught up")
        finally:
            Following._apply = usual  # type: ignore[method-assign]

    def replica_id(yard: Yard) -> str:
        space = yard.machines["b"].space("farm")
        return space.replica.replica_id if space is not None else ""

    in_yard(script)


def test_a_pin_of_who_reads_changes_keeps_the_log_behind_a_snapshot() -> None:
    async def script(yard: Yard) -> None:
        _, log = await worked(yard)
        await log.pin("changes", START, 10_000)
        await snapshot(yard)
        assert (await log.list()).full_history
        bodies = [batch async for batch in log.read(START, await log.end())]
        assert bodies
        # A pin is kept as long as it was asked for, and renewed by who still reads.
        await elapse(20.0)
        bank = Bank(yard)
        working = asyncio.create_task(bank.work())
        await yard.until(lambda: bank.transfers >= 5, "transfers")
        bank.ending = True
        await working
        await snapshot(yard)
        assert not (await log.list()).full_history
        try:
            await log.pin("late", START, 10_000)
        except PositionTruncated:
            return
        raise AssertionError("what is gone cannot be pinned")

    in_yard(script)


@pytest.mark.parametrize(("delay_s", "opens"), [(0.1, 8), (0.7, 16), (60.0, 40)])
def test_a_node_opens_few_replicas_at_once_but_waits_for_no_slow_one(
    delay_s: float, opens: int
) -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a")
        names = [f"t{number:02}" for number in range(40)]
        for name in names:
            await yard.commands.create(name, expected=1, nodes=["a"])
        machine = yard.machines["a"]
        await yard.until(lambda: all(machine.leads(name) for name in names))
        machine.kill()
        machine.states.delay_s = delay_s
        machine.start()
        await elapse(10.0)
        assert machine.states.opening_max == opens
        await yard.until(lambda: all(machine.leads(name) for name in names))
        await elapse(1.0)
        assert machine.node._opening._value == 8

    in_yard(script)
