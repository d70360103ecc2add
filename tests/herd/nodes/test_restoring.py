"""A tablespace that is filled before any node runs it is there whole or not at all."""

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest

from engine.ledger.client import LedgerClient
from engine.log.log import ReplicatedLog
from engine.state.contract import State
from engine.state.memory import MemoryState
from herd.errors import NameTaken, OperationalError, ProgrammingError
from herd.nodes.facts import RESTORING, SPACES
from herd.nodes.restoring import made_whole
from herd.reading_log import log_of
from herd.tablespace import Tablespace
from tests.herd.nodes.yard import SESSION_S, SETTINGS, Bank, Yard, in_yard
from tests.herd.spaces import insert, made
from tests.simulation.loop import Process
from tests.simulation.metadata import SimStore
from tests.simulation.virtual import elapse


async def empty() -> State:
    return MemoryState()


def making(client: LedgerClient, name: str = "farm") -> AbstractAsyncContextManager[Tablespace]:
    return made_whole(client, name, empty, expected=2)


async def fill(space: Tablespace) -> None:
    """The accounts of a `Bank`."""
    table = await made(space, "account")
    transaction = space.begin()
    rows = [[number, Bank.START, ""] for number in range(Bank.ACCOUNTS)]
    await insert(transaction, table, *rows)
    await transaction.commit()


def maker(yard: Yard) -> tuple[Process, SimStore, LedgerClient]:
    """A process beside the nodes, its session and its client."""
    process = Process("maker")
    store = yard.store(process)
    return process, store, yard.client(store)


async def left(yard: Yard) -> set[bytes]:
    """Whose ledgers there are, but the log of another tablespace."""
    custom = [
        (await yard.own.ledger_metadata(ledger)).custom for ledger in await yard.own.list_ledgers()
    ]
    return {one["owner"] for one in custom} - {b"log:" + log_of("other").encode()}


async def swept(yard: Yard, *names: str) -> None:
    """Wait until no names but these are taken, and nothing is left of any other."""
    async with asyncio.timeout(60.0):
        while await yard.own.store.children(SPACES) != list(names) or await left(yard):
            await elapse(0.05)
    assert await yard.own.store.children(RESTORING) == []


def test_nodes_run_what_was_filled_and_it_outlives_its_leader() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        bank = Bank(yard)
        process, _, client = maker(yard)

        async def make() -> None:
            async with making(client) as space:
                await fill(space)
                # Several looks of the nodes.
                await elapse(5 * SETTINGS.look_ms / 1000)
                assert await yard.commands.spaces() == {}
                assert [await m.run(m.node.names()) for m in yard.machines.values()] == [[], []]
                assert yard.leaders("farm") == []

        task = yard.loop.spawn(process, make(), "making")
        await yard.until(task.done, "it is made")
        task.result()
        yard.loop.kill(process)
        log = ReplicatedLog(yard.own, log_of("farm"))
        await yard.replicas_on("a", "b")
        await yard.until(lambda: [bank.total(one) for one in "ab"] == [1_000] * 2, "all is there")
        # Whoever fills a state at any time begins with the snapshot: it is named.
        assert await yard.own.store.get("/logs/herd/farm/snapshot") is not None
        await yard.led()
        assert (await log.list()).epoch == 2, "its maker, then a node"
        working, wanted = asyncio.create_task(bank.work()), [0]
        for _ in range(2):
            wanted.append(bank.transfers + 5)
            await yard.until(lambda: bank.transfers >= wanted[-1], "transfers")
            leader = yard.machines[await yard.led()]
            leader.kill()
            await yard.led(by="b" if leader.name == "a" else "a")
            leader.start()
            await yard.replicas_on("a", "b")
        bank.ending = True
        await working
        await yard.until(lambda: [bank.total(one) for one in "ab"] == [1_000] * 2, "all is there")

    in_yard(script)


def test_what_fails_on_the_way_leaves_no_tablespace_and_its_name_is_free() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        with pytest.raises(RuntimeError, match="the disk is full"):
            async with making(yard.own) as space:
                await fill(space)
                raise RuntimeError("the disk is full")
        assert await yard.commands.spaces() == {}
        await swept(yard)
        await yard.commands.create("farm", expected=2)
        leader = yard.machines[await yard.led()].space("farm")
        assert leader is not None and leader.catalog.names == []

    in_yard(script)


def test_what_a_killed_maker_left_is_swept_when_its_session_has_ended() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        process, store, client = maker(yard)
        filled = asyncio.Event()

        async def make() -> None:
            async with making(client) as space:
                await fill(space)
                filled.set()
                await asyncio.Event().wait()

        yard.loop.spawn(process, make(), "making")
        await yard.until(filled.is_set, "it is filled")
        yard.loop.kill(process)
        await elapse(SESSION_S)
        assert await yard.own.store.children(SPACES) == ["farm"], "its session may go on"
        assert await left(yard)
        store.expire()
        await swept(yard)

    in_yard(script)


def test_a_maker_that_comes_back_too_late_makes_nothing() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        _, store, client = maker(yard)
        making_it = making(client)
        space = await making_it.__aenter__()
        await fill(space)
        usual = space.replica.snapshot

        async def late() -> object:
            """Its session ends before its last step, and the auditor has looked."""
            taken = await usual()
            store.expire()
            while (fact := await client.store.get(f"{SPACES}/farm")) and b"restoring" in fact.value:
                await elapse(0.01)
            return taken

        space.replica.snapshot = late  # type: ignore[method-assign, assignment]
        with pytest.raises(OperationalError, match="given up"):
            await making_it.__aexit__(None, None, None)
        assert await yard.commands.spaces() == {}
        await swept(yard)

    in_yard(script)


def test_a_name_is_given_once_also_when_two_ask_for_it_at_once() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("other", expected=1)

        async def make(client: LedgerClient, name: str) -> None:
            async with making(client, name) as space:
                await fill(space)

        clients = [maker(yard)[2] for _ in range(3)]
        told = await asyncio.gather(
            *map(partial(make, name="farm"), clients), return_exceptions=True
        )
        assert sorted(map(type, told), key=str) == sorted(
            [type(None), NameTaken, NameTaken], key=str
        )
        await yard.led()
        for name, error in (("farm", NameTaken), ("other", NameTaken), ("a/b", ProgrammingError)):
            with pytest.raises(error):
                await make(yard.own, name)
        async with making(yard.own, "third"):
            with pytest.raises(NameTaken, match="being restored"):
                await yard.commands.create("third", expected=2)
            with pytest.raises(ProgrammingError, match="no tablespace"):
                await yard.commands.drop("third")
        assert sorted(await yard.commands.spaces()) == ["farm", "other", "third"]
        assert await yard.own.store.children(RESTORING) == []

    in_yard(script)
