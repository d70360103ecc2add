"""The store in a real ZooKeeper passes the contract of every store."""

import asyncio
import contextlib

from engine.metadata.contract import MetadataStore
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from tests.engine.metadata.store_contract import Scenario, StoreContract
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper

QUICK = ZooKeeperSettings(session_timeout_ms=4_000, connect_timeout_ms=20_000)


async def connect(chroot: str, settings: ZooKeeperSettings = QUICK) -> ZooKeeperStore:
    return await ZooKeeperStore.connect(shared_zookeeper().hosts, chroot=chroot, settings=settings)


async def end_session(store: ZooKeeperStore) -> None:
    """Close a store's session by its id and password, behind its back.

    The store comes back to its session at once and may take it away again before it is closed.
    """
    from kazoo.client import KazooClient

    ended = store.session

    def end() -> None:
        other = KazooClient(shared_zookeeper().hosts, client_id=ended)
        other.start()
        other.stop()
        other.close()

    lost = asyncio.Event()
    end_watch = store.watch_session(lost.set)
    try:
        while not lost.is_set():
            await asyncio.to_thread(end)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await lost.wait()
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
