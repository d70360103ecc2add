"""Connecting to a real ZooKeeper: a cluster that is there, one that is not, a session that ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.connecting import connect
from engine.errors import InvalidRequest, MetadataUnavailable, NoSuchCluster
from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from engine.metadata.bookies import Bookies, FolderAge, Registration
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from engine.transport.contract import Bookie
from engine.transport.grpc_server import GrpcServer
from engine.transport.security import NO_SECURITY
from tests.engine.metadata.zookeeper_fixture import (
    fresh_chroot,
    running_zookeeper,
    shared_zookeeper,
)
from tests.engine.transport.model_bookie import ModelBookie

ONE = ClientSettings(ensemble=1, write_quorum=1, ack_quorum=1)


@asynccontextmanager
async def one_bookie(hosts: str, chroot: str) -> AsyncIterator[None]:
    """A cluster of one bookie that speaks gRPC."""
    bookies: dict[str, Bookie] = {"b1": ModelBookie("b1")}
    server = await GrpcServer.start(bookies, listen="127.0.0.1:0", security=NO_SECURITY)
    store = await ZooKeeperStore.connect(hosts, chroot=chroot)
    registry = Bookies(store)
    await registry.raise_age("b1", FolderAge(1))
    await registry.register(Registration("b1", 1, grpc=f"127.0.0.1:{server.port}", host="here"))
    try:
        yield
    finally:
        await store.close()
        await server.close(100)


async def write_and_read(client: LedgerClient) -> None:
    """One ledger, from the first entry to the last, must come back."""
    writer = await client.create_ledger()
    assert await writer.append_many([b"moo", b"baa"]) == [0, 1]
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    assert [entry.body async for entry in reader.read(0, 1)] == [b"moo", b"baa"]


async def test_a_client_connects_by_url_writes_and_reads() -> None:
    hosts, chroot = shared_zookeeper().hosts, fresh_chroot()
    async with (
        one_bookie(hosts, chroot),
        connect(f"herdbook://{hosts}{chroot}", settings=ONE, wire="grpc") as client,
    ):
        await write_and_read(client)
        assert str(client.url) == f"herdbook://{hosts}{chroot}"
        assert client.settings.host, "the client does not know its own machine"


async def test_a_tail_does_not_outlive_the_connection() -> None:
    hosts, chroot = shared_zookeeper().hosts, fresh_chroot()
    async with one_bookie(hosts, chroot):
        async with connect(f"herdbook://{hosts}{chroot}", settings=ONE, wire="grpc") as client:
            writer = await client.create_ledger()
            await writer.append(b"moo")
            reader = await client.open_ledger(writer.ledger_id, recover=False)
            tail = reader.tail()
            assert (await anext(tail)).body == b"moo"
            waiting = asyncio.ensure_future(anext(tail))
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            with pytest.raises(InvalidRequest, match="was closed: open it again"):
                await waiting


async def test_a_path_without_a_cluster_is_one_clear_error_and_makes_nothing() -> None:
    hosts, chroot = shared_zookeeper().hosts, fresh_chroot()
    for _ in range(2):
        with pytest.raises(NoSuchCluster, match=f"no cluster at herdbook://{hosts}{chroot}: "):
            async with connect(f"herdbook://{hosts}{chroot}"):
                raise AssertionError("connected")


async def test_a_zookeeper_that_does_not_answer_is_one_clear_error() -> None:
    quick = ZooKeeperSettings(connect_timeout_ms=300)
    with pytest.raises(MetadataUnavailable, match="no ZooKeeper answered"):
        async with connect("herdbook://127.0.0.1:1/prod", zookeeper=quick):
            raise AssertionError("connected")


async def test_a_client_goes_on_after_zookeeper_was_away(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path) as server:
        settings = ZooKeeperSettings(session_timeout_ms=2_000)
        url = f"herdbook://{server.hosts}/prod"
        async with (
            one_bookie(server.hosts, "/prod"),
            connect(url, settings=ONE, wire="grpc", zookeeper=settings) as client,
        ):
            await write_and_read(client)
            server.stop()
            server.start()
            await write_and_read(client)
            assert await client.list_ledgers() == [1, 2]
