"""The store in memory passes the contract; the faulty store fails exactly as it is told."""

import asyncio

import pytest

from engine.errors import KeyExists, MetadataUnavailable
from engine.metadata.contract import MetadataStore
from engine.metadata.memory import FaultyStore, MemoryStore, MemoryTree
from tests.engine.metadata.store_contract import Scenario, StoreContract


class TestMemoryStore(StoreContract):
    def run_with_sessions(self, scenario: Scenario) -> None:
        tree = MemoryTree("cluster")

        async def open_session() -> MetadataStore:
            return tree.session()

        async def run() -> None:
            async with asyncio.timeout(60):
                await scenario(open_session)

        asyncio.run(run())

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryStore)
        store.expire()


class TestFaultyStoreWithoutFaults(StoreContract):
    @pytest.fixture(autouse=True)
    def _behind(self) -> None:
        self.behind: dict[FaultyStore, MemoryStore] = {}

    def run_with_sessions(self, scenario: Scenario) -> None:
        tree = MemoryTree("cluster")

        async def open_session() -> MetadataStore:
            session = tree.session()
            store = FaultyStore(session)
            self.behind[store] = session
            return store

        async def run() -> None:
            async with asyncio.timeout(60):
                await scenario(open_session)

        asyncio.run(run())

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, FaultyStore)
        self.behind[store].expire()


async def test_a_lost_reply_leaves_the_write_done_and_a_lost_request_does_not() -> None:
    store = FaultyStore(MemoryTree("cluster").session())
    store.lose_reply()
    store.lose_request()
    with pytest.raises(MetadataUnavailable):
        await store.create("/done", b"")
    with pytest.raises(MetadataUnavailable):
        await store.create("/not", b"")
    assert store.faults_left == 0
    assert await store.children("") == ["done"]
    with pytest.raises(KeyExists):
        await store.create("/done", b"")


async def test_a_lost_reply_hides_a_refusal_too() -> None:
    store = FaultyStore(MemoryTree("cluster").session())
    await store.create("/cow", b"")
    store.lose_reply()
    with pytest.raises(MetadataUnavailable):
        await store.create("/cow", b"")


async def test_an_intruder_is_quicker() -> None:
    tree = MemoryTree("cluster")
    store = FaultyStore(tree.session())
    store.before_write(lambda: tree.session().create("/cow", b"the intruder's"))
    with pytest.raises(KeyExists):
        await store.create("/cow", b"mine")


async def test_an_expired_session_loses_its_ephemeral_keys_and_watches() -> None:
    tree = MemoryTree("cluster")
    session, other = tree.session(), tree.session()
    calls: list[str] = []
    session.watch("/cow", lambda: calls.append("told"))
    await session.create("/cow", b"", ephemeral=True)
    await asyncio.sleep(0)
    session.expire()
    await asyncio.sleep(0)
    assert calls == ["told"]
    assert await other.get("/cow") is None
    with pytest.raises(MetadataUnavailable):
        await session.create("/cow", b"")
