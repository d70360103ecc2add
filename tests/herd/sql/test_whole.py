"""CHECK TABLESPACE and RESTORE TABLESPACE: in a folder, from a second opener and in a cluster."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from engine.log import START, Position
from engine.ports.clock import SystemClock
from engine.ports.system_workers import ThreadWorkers
from engine.state.memory import MemoryState
from herd.checking import Difference, Verdict, verdict_of
from herd.errors import ProgrammingError, SqlSyntaxError
from herd.nodes import Node, SpaceCommands
from herd.opening import open_herd
from herd.store import AsyncHerd
from herd.types import BIGINT, TEXT
from herd.wire.calling import Calling
from herd.wire.cluster import ClusterHerd
from herd.wire.contract import Channel
from herd.wire.guest import Guest
from herd.wire.herd import RemoteHerd
from herd.wire.local import LocalChannel
from herd.wire.service import HerdService
from tests.herd.nodes.pair import leader_of, nodes, until
from tests.herd.wire.wiring import embedded, through_socket

Open = Callable[[Path], AbstractAsyncContextManager[AsyncHerd]]


class ToLeaders:
    """Finds the node that leads, in this process; a `Route`."""

    def __init__(self, found: list[Node], workers: ThreadWorkers) -> None:
        self._found = found
        self._workers = workers
        self._channels: dict[str, LocalChannel] = {}

    async def channel(self, tablespace: str) -> Channel:
        """The channel to its node."""
        node = await leader_of(self._found, tablespace)
        if node.node_id not in self._channels:
            guest = Guest(HerdService(node, self._workers))
            self._channels[node.node_id] = LocalChannel(guest)
        return self._channels[node.node_id]

    def moved(self, tablespace: str, leader: str) -> bool:
        """Nobody moves."""
        return False

    async def close(self) -> None:
        """End what was begun over the channels."""
        for channel in self._channels.values():
            await channel.close()


@asynccontextmanager
async def clustered(count: int) -> AsyncIterator[tuple[ClusterHerd, list[Node]]]:
    """A client of nodes, each of which has a replica of `default`."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    async with nodes(count, replicas=count) as found:
        route, clock, rng = ToLeaders(found, workers), SystemClock(), random.Random(1)
        calling = Calling(route, clock, rng, workers)
        await until(lambda: all(node.hosted("default") for node in found))
        client = found[0].client
        commands = SpaceCommands(client.store, clock, rng)
        yield ClusterHerd(calling, calling, commands, client), found
        await route.close()
    await workers.close()


async def cows(herd: AsyncHerd | RemoteHerd, name: str = "default") -> list[tuple[object, ...]]:
    """The rows of the table, as SQL tells them."""
    session = await herd.session(name)
    try:
        return list((await session.execute("SELECT id, name FROM cow ORDER BY id")).rows)
    finally:
        await session.close()


@pytest.mark.parametrize("opened", [embedded, through_socket])
async def test_the_only_replica_of_a_folder_agrees_with_itself(
    tmp_path: Path, opened: Open
) -> None:
    async with opened(tmp_path) as herd:
        verdict = await herd.check_replicas()
        assert verdict.well and verdict.agreeing == () and verdict.position > START
        session = await herd.session()
        result = await session.execute("check tablespace;")
        assert [column.name for column in result.columns][:4] == [
            *("replica", "address", "verdict", "what")
        ]
        assert result.rows[0][:4] == (verdict.leader, "", "leader", None)
        for wrong in ("CHECK", "CHECK TABLE cow", "CHECK TABLESPACE farm"):
            with pytest.raises(SqlSyntaxError):
                await session.execute(wrong)
        await session.close()


async def test_a_client_of_a_cluster_is_told_which_replica_has_other_rows() -> None:
    async with clustered(2) as (herd, found):
        table = await herd.create_table("cow", {"id": BIGINT, "name": TEXT}, ["id"])
        await table.put({"id": 1, "name": "Elsa"})
        verdict = await herd.check_replicas()
        async with asyncio.timeout(20):
            while len(verdict.addresses) < 2:
                # The follower has not been listed yet.
                verdict = await herd.check_replicas()
        assert verdict.well and len(verdict.agreeing) == 1
        leader = await leader_of(found)
        assert verdict.addresses[verdict.leader] == leader.address
        (follower,) = [node for node in found if node is not leader]
        hosted = follower.hosted("default")
        assert hosted is not None and hosted.space is not None
        (state,) = follower._states.open_now.values()  # type: ignore[attr-defined]
        assert isinstance(state, MemoryState)
        key = next(key for key, _ in state.scan(b"\x02", None, 100))
        state._blocks.delete(key)
        verdict = await herd.check_replicas()
        other = hosted.space.replica.replica_id
        assert verdict.differences == (Difference(other, "table cow", 0, 1),)
        assert not verdict.well and verdict.addresses[other] == follower.address


def test_a_verdict_is_the_same_when_it_comes_back_from_its_rows() -> None:
    verdict = Verdict(
        Position(3, 4),
        ("b",),
        (Difference("c", "table cow", 1, 2), Difference("c", "the definitions", 0, 1)),
        ("d",),
        "a",
        {"a": "tcp:a:1", "b": "tcp:b:1", "c": "", "d": ""},
    )
    assert verdict_of(verdict.rows()) == verdict


@pytest.mark.parametrize("opened", [embedded, through_socket])
async def test_an_empty_tablespace_is_filled_by_a_statement(tmp_path: Path, opened: Open) -> None:
    async with opened(tmp_path) as herd:
        session = await herd.session()
        await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        await session.execute("INSERT INTO cow VALUES (1, 'before')")
        at = (await herd.check_replicas()).position
        await session.execute("UPDATE cow SET name = 'after'")
        await session.execute("CREATE TABLESPACE then")
        then = await herd.session("then")
        text = f"RESTORE TABLESPACE default UNTIL {at.ledger}/{at.entry}"
        for wrong, error in (
            ("RESTORE TABLESPACE default", SqlSyntaxError),
            ("RESTORE TABLESPACE default UNTIL yesterday", SqlSyntaxError),
            ("RESTORE TABLESPACE nowhere UNTIL 1/1", ProgrammingError),
        ):
            with pytest.raises(error):
                await then.execute(wrong)
        await then.execute("BEGIN")
        with pytest.raises(ProgrammingError, match="inside a transaction"):
            await then.execute(text)
        await then.execute("ROLLBACK")
        await then.execute(text)
        assert await cows(herd, "then") == [(1, "before")]
        with pytest.raises(ProgrammingError, match="not empty"):
            await then.execute(text)
        assert await cows(herd) == [(1, "after")]
        await then.close()
        await session.close()


async def test_a_cluster_restores_a_tablespace_to_a_position() -> None:
    async with clustered(2) as (herd, _):
        table = await herd.create_table("cow", {"id": BIGINT, "name": TEXT}, ["id"])
        await table.put({"id": 1, "name": "before"})
        at = (await herd.check_replicas()).position
        await table.put({"id": 1, "name": "after"})
        with pytest.raises(ProgrammingError, match="no tablespace nowhere"):
            await herd.restore_until("nowhere", at, "then")
        # What is there and empty, for its nodes were chosen, is filled.
        for name in ("then", "chosen"):
            await herd.make("chosen")
            await herd.restore_until("Default", at, name)
            assert await cows(herd, name) == [(1, "before")]
            with pytest.raises(ProgrammingError, match="not empty"):
                await herd.restore_until("default", at, name)
        assert await cows(herd) == [(1, "after")]
        assert (await herd.check_replicas("then")).well


def test_the_same_is_there_without_await(tmp_path: Path) -> None:
    with open_herd(tmp_path) as herd:
        table = herd.create_table("cow", {"id": BIGINT, "name": TEXT}, ["id"])
        table.put({"id": 1, "name": "before"})
        verdict = herd.check_replicas()
        assert verdict.well
        table.put({"id": 1, "name": "after"})
        herd.restore_until("default", verdict.position, "then")
        assert herd.table("cow", "then").get(1) == {"id": 1, "name": "before"}
