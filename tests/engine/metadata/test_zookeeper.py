"""The store in a real ZooKeeper passes the contract of every store."""

import asyncio
import contextlib
import struct

from engine.metadata.contract import MetadataStore
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from tests.engine.metadata.store_contract import Scenario, StoreContract
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper

QUICK = ZooKeeperSettings(session_timeout_ms=4_000, connect_timeout_ms=20_000)

# ZooKeeper's protocol: the kind of request that ends a session.
_CLOSE_SESSION = -11


async def connect(chroot: str, settings: ZooKeeperSettings = QUICK) -> ZooKeeperStore:
    return await ZooKeeperStore.connect(shared_zookeeper().hosts, chroot=chroot, settings=settings)


async def end_session(store: ZooKeeperStore) -> None:
    """Close a store's session by its id and password, behind its back.

    The store takes its session back the moment it loses it. So the request that closes it travels
    in one piece with the greeting, before the store can know; and is sent again until it is told.
    """
    assert store.session is not None
    session_id, password = store.session
    greeting = struct.pack(">iqiqi", 0, 0, 4_000, session_id, len(password)) + password + b"\0"
    close = struct.pack(">ii", 1, _CLOSE_SESSION)
    packets = b"".join(struct.pack(">i", len(packet)) + packet for packet in (greeting, close))
    host, port = shared_zookeeper().hosts.split(":")
    lost = asyncio.Event()
    end_watch = store.watch_session(lost.set)
    try:
        while not lost.is_set():
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(packets)
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(1):
                    await reader.read()
                    await lost.wait()
            writer.close()
    finally:
        end_watch()


class TestZooKeeperStore(StoreContract):
    def run_with_sessions(self, scenario: Scenario) -> None:
        chroot = fresh_chroot()
        opened: list[ZooKeeperStore] = []

        async def open_session() -> MetadataStore:
            opened.append(await connect(chroot))
            return opened[-1]

        async def run() -> None:
            async with asyncio.timeout(60):
                try:
                    await scenario(open_session)
                finally:
                    await asyncio.gather(*(store.close() for store in opened))

        asyncio.run(run())

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        await end_session(store)
