"""A store behind a socket passes the contract of every store; sessions end with connections."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.errors import BookieUnavailable, MetadataUnavailable
from engine.metadata.contract import MetadataStore
from engine.metadata.local import LocalStore
from engine.metadata.memory import MemoryStore, MemoryTree
from engine.metadata.remote import RemoteStore
from engine.ports.clock import Clock, SystemClock
from engine.ports.system_disk import SystemDisk
from engine.transport.framed_server import FramedServer
from engine.transport.framed_settings import FramedSettings
from tests.engine.metadata.store_contract import Scenario, StoreContract, cancel_and_look, numbers
from tests.engine.metadata.test_local import opened


class Served:
    """A tree, in memory unless told otherwise, behind a socket that may go and come back."""

    def __init__(self, path: Path, tree: MemoryTree | LocalStore | None = None) -> None:
        self.tree = tree or MemoryTree("cluster")
        self.path = str(path)
        self.server: FramedServer | None = None

    async def start(self) -> None:
        self.server = FramedServer(
            cluster_id=self.tree.cluster_id, open_session=lambda _caller: self.tree.session()
        )
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_unix_server(self.server.accept, self.path)

    async def stop(self) -> None:
        if self.server is not None:
            self._listening.close()
            await self.server.close()
            self.server = None

    async def find(self) -> str:
        if self.server is None:
            raise BookieUnavailable("the store is down")
        return f"unix:{self.path}"

    async def open(self, clock: Clock | None = None) -> RemoteStore:
        return await RemoteStore.open(self.find, clock=clock or SystemClock(), rng=random.Random(1))


@asynccontextmanager
async def served(path: Path, tree: MemoryTree | LocalStore | None = None) -> AsyncIterator[Served]:
    made = Served(path, tree)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


class TestRemoteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _socket(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.sock"

    def run_with_sessions(self, scenario: Scenario) -> None:
        async def run() -> None:
            async with served(self.path) as made, asyncio.timeout(60):
                opened: list[RemoteStore] = []

                async def open_session() -> MetadataStore:
                    opened.append(await made.open())
                    return opened[-1]

                await scenario(open_session)
                for store in opened:
                    await store.close()

        asyncio.run(run())

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, RemoteStore) and store.connection is not None
        store.connection.wire.abort()


async def test_ephemeral_keys_go_with_a_broken_connection(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as made:
        store, other = await made.open(), await made.open()
        await store.create("/bookies/berta", b"", ephemeral=True)
        gone = asyncio.Event()
        other.watch("/bookies", gone.set)
        await other.sync()
        assert store.connection is not None
        store.connection.wire.abort()
        await gone.wait()
        assert await other.children("/bookies") == []
        await store.close()
        await other.close()


async def test_a_lost_store_is_unavailable_and_a_watch_fires_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with served(tmp_path / "s") as made:
        store = await made.open()
        await store.create("/cow", b"berta")
        changed = asyncio.Event()
        store.watch("/cow", changed.set)
        await store.sync()
        changed.clear()
        assert store.connection is not None
        lost = asyncio.Event()
        store.connection.when_lost(lost.set)
        await made.stop()
        await lost.wait()
        with pytest.raises(MetadataUnavailable):
            await store.get("/cow")
        assert not changed.is_set()
        await made.start()
        await changed.wait()
        assert await store.get("/cow") == (b"berta", 0)
        await store.close()


async def test_more_names_than_one_answer_holds_are_all_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.metadata.remote_messages.NAMES_MAX", 7)
    async with served(tmp_path / "s") as made:
        store = await made.open()
        names = sorted(str(number) for number in range(50))
        for name in names:
            await store.create(f"/ledgers/{name}", b"")
        assert await store.children("/ledgers") == names
        assert await numbers(store, "/ledgers") == list(range(50))
        await store.close()


async def test_a_server_that_has_no_pages_is_asked_for_all_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path / "s") as made:
        store = await made.open()
        for number in (3, 20):
            await store.create(f"/ledgers/{number}", b"")
        monkeypatch.setattr("engine.metadata.remote.PAGES_MINOR", 99)
        monkeypatch.delattr("engine.metadata.remote_messages.Page")
        assert await numbers(store, "/ledgers") == [3, 20]
        await store.close()


async def test_the_next_read_sees_the_outcome_of_a_cancelled_write_to_a_folder(
    tmp_path: Path,
) -> None:
    disk, path = SystemDisk(tmp_path / "metadata"), tmp_path / "store.sock"
    async with opened(disk) as folder, served(path, folder) as made:
        store = await made.open()
        await store.create("/cow", b"")
        for turns in range(4):
            assert await cancel_and_look(store, turns), turns
        await store.close()


class SteppedClock:
    """A clock that stands until the test moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


class StuckSession(MemoryStore):
    """A session whose creations wait until `free` is set."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree, 1)
        self.asked, self.free = asyncio.Event(), asyncio.Event()

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        self.asked.set()
        await self.free.wait()
        return await super().create(key, value, ephemeral=ephemeral)


async def test_a_cancelled_write_that_is_late_still_holds_the_reads_of_its_key(
    tmp_path: Path,
) -> None:
    tree, clock = MemoryTree("cluster"), SteppedClock()
    session = StuckSession(tree)
    tree.session = lambda: session  # type: ignore[method-assign]
    async with served(tmp_path / "s", tree) as made:
        store = await made.open(clock)
        assert store.connection is not None
        writing = asyncio.ensure_future(store.create("/cow", b"berta"))
        await session.asked.wait()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        try:
            for _ in range(8):
                # Other answers arrive, so the connection itself is not given up.
                await store.get("/bull")
                clock.now_s += FramedSettings().request_timeout_ms / 4000
                store.connection._tick()
            reading = asyncio.ensure_future(store.get("/cow"))
            await store.get("/bull")
            assert not reading.done()
        finally:
            session.free.set()
        assert await reading == (b"berta", 0)
        await store.close()
