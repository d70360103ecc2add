"""Replicas compare their rows at one position, whatever changes meanwhile and wherever they are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.log.position import Position
from engine.ports.system_workers import ThreadWorkers
from engine.state.memory import MemoryState
from herd.checking import Checker, Difference, Group, Hashing, check_replicas
from herd.commands import Check, Erase, Write, encode_command
from herd.errors import LeaderUnavailable
from herd.keys import prefix
from herd.machine import HerdMachine
from herd.schema import Index, Table
from herd.tablespace import Tablespace
from tests.engine.ledger.scripted import Cluster
from tests.herd.spaces import LOG, REPLICA, insert, key_of, made, opened, update


@asynccontextmanager
async def following(
    cluster: Cluster, state: MemoryState, number: int = 1
) -> AsyncIterator[Tablespace]:
    """A replica that never leads, with an id of its own by its number."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    client = cluster.client()
    client.rng.seed(number)
    space = await Tablespace.open(
        client,
        "default",
        state,
        elect=True,
        candidate=False,
        replica_settings=REPLICA,
        log_settings=LOG,
        workers=workers,
    )
    try:
        yield space
    finally:
        await space.close()
        await workers.close()


async def farm(space: Tablespace) -> Table:
    """A table with an index and fifty rows."""
    table = await made(space, "cows", indexes=[Index(1, "by_b", (1,))])
    transaction = space.begin()
    await insert(transaction, table, *[[number, number, ""] for number in range(50)])
    await transaction.commit()
    return table


async def test_replicas_that_are_equal_say_so_beside_writers() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as leader:
        table = await farm(leader)
        over = asyncio.Event()

        async def write() -> None:
            number = 0
            while not over.is_set():
                transaction = leader.begin()
                await update(transaction, table, (number % 50, [number % 50, number, "x"]))
                await transaction.commit()
                number += 1

        async with (
            following(cluster, MemoryState()) as one,
            following(cluster, MemoryState(), 2) as two,
        ):
            writing = asyncio.create_task(write())
            for _ in range(5):
                verdict = await check_replicas(leader)
                assert verdict.well, verdict
                names = {one.replica.replica_id, two.replica.replica_id}
                assert set(verdict.agreeing) == names
            over.set()
            await writing
            assert leader._machine._undos == one._machine._undos == []
        assert await cluster.store.children("/herd/tablespaces/default/checks") == []


async def test_a_row_that_a_disk_changed_is_found_and_named() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as leader:
        table = await farm(leader)
        state = MemoryState()
        async with following(cluster, state) as follower:
            await follower.replica.wait_for(leader.replica.position)
            name = follower.replica.replica_id
            key = key_of(leader, table, 7)
            right = state.get(key)
            assert right is not None
            state._blocks.put(key, right[:-1] + b"\x01")
            assert (await check_replicas(leader)).differences == (
                Difference(name, "table cows", 50, 50),
            )
            state._blocks.delete(key)
            assert (await check_replicas(leader)).differences == (
                Difference(name, "table cows", 49, 50),
            )
            state._blocks.put(key, right)
            state._blocks.put(prefix(table.store, 1) + b"stray", b"")
            assert (await check_replicas(leader)).differences == (
                Difference(name, "index by_b of table cows", 51, 50),
            )
            state._blocks.delete(prefix(table.store, 1) + b"stray")
            assert (await check_replicas(leader)).well


async def test_a_row_that_only_one_replica_has_is_found() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as leader:
        await farm(leader)
        state = MemoryState()
        async with following(cluster, state) as follower:
            await follower.replica.wait_for(leader.replica.position)
            state._blocks.put(prefix(99) + b"stray", b"")
            (difference,) = (await check_replicas(leader)).differences
            assert difference[1:] == ("rows of a table that was dropped (store 99)", 1, 0)


async def test_one_that_does_not_answer_is_told_as_unheard() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as leader:
        await farm(leader)
        async with following(cluster, MemoryState()) as follower:
            follower.checker = None
            verdict = await check_replicas(leader, patience_ms=300)
            assert verdict.unheard == (follower.replica.replica_id,) and not verdict.well
            with pytest.raises(LeaderUnavailable):
                await check_replicas_of(follower, leader)


async def check_replicas_of(follower: Tablespace, leader: Tablespace) -> None:
    """Ask one that does not lead."""
    assert leader.checker is not None
    follower.checker = Checker(follower, leader.checker._store, None)
    await check_replicas(follower)


KEYS = st.binary(max_size=2).map(lambda rest: prefix(3) + rest)
WRITES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3)), min_size=1, max_size=5)


@given(st.lists(WRITES, max_size=5), st.lists(WRITES, max_size=5), st.booleans())
def test_what_changed_after_the_position_is_taken_back(
    before: list[list[tuple[bytes, bytes | None]]],
    after: list[list[tuple[bytes, bytes | None]]],
    erased: bool,
) -> None:
    state, machine = MemoryState(), HerdMachine()
    number = 0

    def apply(command: Write | Erase | Check) -> None:
        nonlocal number
        number += 1
        machine.apply(state, encode_command(command), Position(1, number))

    for changes in before:
        apply(Write(changes, [(b"\x01c", b"%d" % number)]))
    apply(Check(1))
    state.commit(Position(1, number))
    wanted = digest(state, {})
    undo = machine.note()
    for changes in after:
        apply(Write((), changes))
        apply(Write(changes, [(b"\x01c", b"%d" % number)]))
    if erased:
        apply(Erase(3, 2))
    state.commit(Position(1, number))
    assert digest(state, undo) == wanted
    machine.forget(undo)
    noted = dict(undo)
    apply(Erase(3, 100))
    assert undo == noted


def digest(state: MemoryState, undo: dict[bytes, bytes | None]) -> list[Group]:
    """All groups of a state."""
    snapshot = state.snapshot()
    hashing = Hashing(snapshot, undo)
    while not hashing.done:
        hashing.step()
    snapshot.close()
    return hashing.groups
