"""Reaching a cluster through servers of bookies: nobody who does has a session of ZooKeeper."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import AsyncMock, patch

import pytest

from engine.bookie.index_memory import MemoryIndex
from engine.connecting import connect
from engine.errors import MetadataUnavailable
from engine.folder.owner import FolderPorts
from engine.metadata.contract import MetadataStore
from engine.metadata.zookeeper import ZooKeeperStore
from engine.place import Place, Through, for_tasks, let_go
from engine.ports.clock import SystemClock
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from engine.server import BookieServer
from tests.engine.ledger.scripted import turns
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper
from tests.engine.test_connecting_cluster import ONE, write_and_read


class Served(NamedTuple):
    """A cluster of one bookie."""

    url: str
    server: BookieServer

    @property
    def through(self) -> Through:
        """Its server."""
        return Through(self.server.store.cluster_id, (self.server.address,))


@asynccontextmanager
async def served(folder: Path, chroot: str = "") -> AsyncIterator[Served]:
    """A bookie's server over a real ZooKeeper."""
    hosts, chroot = shared_zookeeper().hosts, chroot or fresh_chroot()
    workers = ThreadWorkers(asyncio.get_running_loop())
    rng = random.Random(folder.name)
    ports = FolderPorts(SystemClock(), rng, workers, SystemDisk, lambda path: MemoryIndex())
    store = await ZooKeeperStore.connect(hosts, chroot=chroot)
    server = await BookieServer.start([folder / "bookie"], store=store, ports=ports)
    try:
        yield Served(f"herdbook://{hosts}{chroot}", server)
    finally:
        await server.close()
        await store.close()
        await workers.close()


async def test_ledgers_are_written_and_read_through_a_bookies_server(tmp_path: Path) -> None:
    reaching = AsyncMock(side_effect=AssertionError("ZooKeeper is reached"))
    async with served(tmp_path) as made:
        with patch("engine.connecting.open_metadata", reaching):
            async with connect(made.url, settings=ONE, through=made.through) as client:
                assert client.store.cluster_id == made.through.cluster_id
                await write_and_read(client)


async def test_where_no_server_passes_the_store_on_zookeeper_is_reached(tmp_path: Path) -> None:
    async with served(tmp_path / "one") as made, served(tmp_path / "other") as other:
        cluster_id = made.through.cluster_id
        assert cluster_id != other.through.cluster_id
        for addresses in ((), ("tcp:127.0.0.1:1",), other.through.addresses):
            through = Through(cluster_id, addresses)
            async with connect(made.url, settings=ONE, through=through) as client:
                assert client.store.cluster_id == cluster_id
                await write_and_read(client)


@pytest.mark.parametrize("first", [True, False], ids=["the-first", "the-second"])
async def test_a_server_that_ends_leaves_its_clients_the_other(tmp_path: Path, first: bool) -> None:
    chroot = fresh_chroot()
    async with served(tmp_path / "one", chroot) as one, served(tmp_path / "two", chroot) as two:
        addresses = (*one.through.addresses, *two.through.addresses)
        through = Through(one.through.cluster_id, addresses)
        reaching = AsyncMock(side_effect=AssertionError("ZooKeeper is reached"))
        with patch("engine.connecting.open_metadata", reaching):
            async with connect(one.url, settings=ONE, through=through) as client:
                assert len(await client.store.children("/bookies")) == 2
                await (one if first else two).server.close()
                async with asyncio.timeout(30):
                    while not await _answers(client.store):
                        await turns()
                await write_and_read(client)


async def _answers(store: MetadataStore) -> bool:
    """Whether the session is with a server that goes on."""
    try:
        return len(await store.children("/bookies")) == 1
    except MetadataUnavailable:
        return False


async def test_tasks_are_told_where_bookies_are_but_not_of_those_over_grpc(tmp_path: Path) -> None:
    async with served(tmp_path) as made:
        place, grpc = Place(url=made.url), Place(url=made.url, wire="grpc")
        try:
            told = await asyncio.to_thread(for_tasks, place)
            assert told.through == made.through and told.at(None) == told
            assert await asyncio.to_thread(for_tasks, grpc) == grpc
            folder = Place(url=str(tmp_path))
            assert for_tasks(folder) == folder
        finally:
            await asyncio.to_thread(let_go, place)
