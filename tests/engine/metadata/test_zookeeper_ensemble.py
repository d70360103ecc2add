"""The store with an ensemble of three real servers, of which one after the other goes."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from engine.errors import KeyExists, MetadataUnavailable
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from herdbook.zookeeper_server import Ensemble, ZooKeeperServer, free_port

SETTINGS = ZooKeeperSettings(session_timeout_ms=10_000, reconnect_first_ms=10)
IMPATIENT = ZooKeeperSettings(request_timeout_ms=500, close_timeout_ms=10)


@contextmanager
def three_servers(folder: Path) -> Iterator[list[ZooKeeperServer]]:
    members = tuple(f"127.0.0.1:{free_port('127.0.0.1')}:{free_port('127.0.0.1')}" for _ in "123")
    servers = [
        ZooKeeperServer(folder / str(number), ensemble=Ensemble(members, number))
        for number in (1, 2, 3)
    ]
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.kill)
            server.start(wait=False)
        for server in servers:
            server.wait_until_it_serves()
        yield servers


def hosts_of(servers: list[ZooKeeperServer]) -> str:
    return ",".join(server.hosts for server in servers)


async def serving(store: ZooKeeperStore, servers: list[ZooKeeperServer]) -> ZooKeeperServer:
    """The server that a store is connected to."""
    while True:
        await store.sync()
        try:
            port = store._client._kazoo._connection._socket.getpeername()[1]
        except OSError:
            continue
        return next(server for server in servers if server.port == port)


async def insist(store: ZooKeeperStore, key: str, value: bytes) -> None:
    """Make a key, whatever becomes of the connections meanwhile."""
    while await store.get(key) is None:
        try:
            await store.create(key, value)
        except (MetadataUnavailable, KeyExists):
            continue


async def test_losing_one_server_of_three_loses_neither_the_session_nor_a_fact(
    tmp_path: Path,
) -> None:
    with three_servers(tmp_path) as servers:
        store = await ZooKeeperStore.connect(hosts_of(servers), chroot="/c", settings=SETTINGS)
        other = await ZooKeeperStore.connect(hosts_of(servers), chroot="/c", settings=SETTINGS)
        impatient = await ZooKeeperStore.connect(hosts_of(servers), chroot="/c", settings=IMPATIENT)
        losses: list[str] = []
        store.watch_session(lambda: losses.append("lost"))
        await store.create("/bookies/a", b"a", ephemeral=True)
        numbers = [await store.next_id("/ids/ledger")]
        changed = asyncio.Event()
        store.watch("/cow", changed.set)
        await changed.wait()
        lost = await serving(store, servers)
        changed.clear()
        await asyncio.to_thread(lost.kill)
        await insist(other, "/cow", b"berta")
        await changed.wait()
        assert await store.get("/cow") == (b"berta", 0)
        numbers += [await each.next_id("/ids/ledger") for each in (store, other, store)]
        assert numbers == sorted(set(numbers))
        assert await store.get("/bookies/a") == (b"a", 0) and losses == []
        second = await serving(store, servers)
        await asyncio.to_thread(second.kill)
        with pytest.raises(MetadataUnavailable):
            await impatient.set("/cow", b"alma", 0)
        await asyncio.to_thread(lost.start)
        # What had no majority then may have found one since.
        assert await store.get("/cow") in ((b"berta", 0), (b"alma", 1))
        assert losses == []
        assert await other.get("/bookies/a") == (b"a", 0)
        await asyncio.gather(store.close(), other.close(), impatient.close())
