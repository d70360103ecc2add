"""A cluster of an earlier version, whose numbered keys are moved into folders while it is used."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random

import msgspec
import pytest

from engine.errors import (
    FormatTooNew,
    KeyExists,
    MetadataUnavailable,
    Unavailable,
    VersionConflict,
)
from engine.metadata import zookeeper
from engine.metadata.bookies import Bookies, FolderAge, Registration
from engine.metadata.contract import MetadataStore, Versioned
from engine.metadata.liveness import PROCESSES, Liveness, Record
from engine.metadata.majors import LAYOUT_MAJOR
from engine.metadata.upgrade import upgrade
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_client import ConnectionLost
from engine.metadata.zookeeper_paths import Spread
from engine.ports.clock import SystemClock
from tests.engine.metadata.store_contract import Scenario, StoreContract, numbers
from tests.engine.metadata.test_zookeeper import connect, end_session
from tests.engine.metadata.zookeeper_fixture import fresh_chroot


async def write_cluster(chroot: str, format_major: int, *, moving: bool = False) -> None:
    """Make a cluster with an earlier layout, or one that is being moved."""
    maker = await connect(chroot)
    node = zookeeper.ClusterNode(maker.cluster_id, format_major, moving)
    await maker._client.set(f"{chroot}/cluster!", msgspec.json.encode(node), 0)
    await maker.close()


class EarlierLayout(StoreContract):
    """The contract of every store, in a cluster with another layout."""

    format_major: int
    moving: bool

    def run_with_sessions(self, scenario: Scenario) -> None:
        chroot = fresh_chroot()

        async def run() -> None:
            await write_cluster(chroot, self.format_major, moving=self.moving)
            async with asyncio.timeout(60), AsyncExitStack() as stack:

                async def open_session() -> MetadataStore:
                    store = await connect(chroot)
                    stack.push_async_callback(store.close)
                    return store

                await scenario(open_session)

        asyncio.run(run())

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        await end_session(store)


class TestStoreOfAnEarlierVersion(EarlierLayout):
    format_major = 1
    moving = False


class TestStoreThatIsBeingUpgraded(EarlierLayout):
    format_major = 2
    moving = True


@dataclass
class Old:
    """A cluster of an earlier version, and sessions that began when it was one."""

    chroot: str
    stores: list[ZooKeeperStore]

    async def nodes(self, prefix: str) -> set[str]:
        """The nodes directly under a prefix."""
        return set(await self.stores[0]._client.children(f"{self.chroot}{prefix}+"))


@asynccontextmanager
async def old_cluster(sessions: int = 2) -> AsyncIterator[Old]:
    chroot = fresh_chroot()
    await write_cluster(chroot, 1)
    stores = [await connect(chroot) for _ in range(sessions)]
    try:
        assert all(store._layout.spread is Spread.FLAT for store in stores)
        yield Old(chroot, stores)
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def test_an_earlier_version_finds_what_is_made_before_the_upgrade() -> None:
    async with old_cluster(1) as old:
        (store,) = old.stores
        await store.create("/ledgers/17", b"")
        await store.create("/ledgers/123456", b"")
        assert await old.nodes("/ledgers") == {"17", "123456"}


async def test_an_upgrade_moves_every_key_with_its_version() -> None:
    async with old_cluster() as old:
        store, other = old.stores
        for number in range(40):
            await store.create(f"/ledgers/{number * 1000}", b"%d" % number)
            for version in range(number % 5):
                await store.set(f"/ledgers/{number * 1000}", b"%d.%d" % (number, version), version)
        await store.create("/repair/ledgers/12345", b"why")
        before = {n: await store.get(f"/ledgers/{n}") for n in await numbers(store, "/ledgers")}
        heard: list[int] = []
        assert await store.upgrade(heard.append) == 41
        assert heard[-1] == 41 and await store.upgrade() == 0
        assert await old.nodes("/ledgers") == {"0!", "1!", "2!", "3!"}
        assert await old.nodes("/repair+/ledgers") == {"1!"}
        for reader in (other, await connect(old.chroot)):
            assert await numbers(reader, "/ledgers") == sorted(before)
            assert {n: await reader.get(f"/ledgers/{n}") for n in before} == before
            assert await reader.get("/repair/ledgers/12345") == (b"why", 0)
        await reader.close()


async def test_a_compare_and_set_by_an_old_version_fails_after_the_move() -> None:
    async with old_cluster() as old:
        store, other = old.stores
        await store.create("/ledgers/17", b"a")
        for version in range(3):
            assert await store.set("/ledgers/17", b"b", version) == version + 1
        held = await other.get("/ledgers/17")
        assert held == (b"b", 3)
        await store.upgrade()
        assert await store.set("/ledgers/17", b"c", 3) == 4
        with pytest.raises(VersionConflict):
            await other.set("/ledgers/17", b"mine", 3)
        with pytest.raises(VersionConflict):
            await other.delete("/ledgers/17", 3)
        assert await other.set("/ledgers/17", b"d", 4) == 5
        await other.delete("/ledgers/17")
        assert await store.get("/ledgers/17") is None


async def test_a_session_from_before_the_upgrade_makes_keys_where_all_find_them() -> None:
    async with old_cluster() as old:
        store, late = old.stores
        await store.create("/ledgers/1", b"")
        await store.upgrade()
        with pytest.raises(KeyExists):
            await late.create("/ledgers/1", b"again")
        await late.create("/ledgers/2", b"new")
        assert await store.get("/ledgers/2") == (b"new", 0)
        assert await old.nodes("/ledgers") == {"0!"}
        assert late._layout.spread is Spread.FOLDERS


async def test_a_key_that_was_not_moved_yet_is_not_made_twice() -> None:
    async with old_cluster() as old:
        store, late = old.stores
        await store.create("/repair/ledgers/7", b"first")
        await store._write_layout(moving=True)
        for each in (store, late):
            with pytest.raises(KeyExists):
                await each.create("/repair/ledgers/7", b"second")
        await late.upgrade()
        assert await store.get("/repair/ledgers/7") == (b"first", 0)


async def test_a_key_that_is_moved_while_it_is_looked_for_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with old_cluster() as old:
        store, other = old.stores
        await store.create("/ledgers/17", b"cow")
        assert await old.nodes("/ledgers") == {"17"}
        client_get = other._client.get

        async def get_and_move(path: str) -> Versioned:
            try:
                return await client_get(path)
            finally:
                await store.upgrade()

        monkeypatch.setattr(other._client, "get", get_and_move)
        assert await other.get("/ledgers/17") == (b"cow", 0)
        assert await old.nodes("/ledgers") == {"0!"}


async def test_an_interrupted_upgrade_is_continued() -> None:
    async with old_cluster() as old:
        store, other = old.stores
        for number in range(100):
            await store.create(f"/ledgers/{number}", b"%d" % number)
        moved = asyncio.Event()
        upgrading = asyncio.ensure_future(store.upgrade(lambda count: moved.set()))
        await moved.wait()
        upgrading.cancel()
        await asyncio.gather(upgrading, return_exceptions=True)
        assert len(await old.nodes("/ledgers")) > 1
        assert await numbers(other, "/ledgers") == list(range(100))
        fresh = await connect(old.chroot)
        assert fresh._layout.spread is Spread.MOVING
        assert await fresh.children("/ledgers") == sorted(map(str, range(100)))
        assert 0 < await fresh.upgrade() < 100
        await fresh.close()
        assert await old.nodes("/ledgers") == {"0!"}
        assert [await other.get(f"/ledgers/{n}") for n in range(100)] == [
            (b"%d" % n, 0) for n in range(100)
        ]


async def test_two_upgrades_at_once_move_each_key_once() -> None:
    async with old_cluster(3) as old:
        store, first, second = old.stores
        for number in range(60):
            await store.create(f"/ledgers/{number}", b"%d" % number)
        assert sum(await asyncio.gather(first.upgrade(), second.upgrade())) == 60
        assert await numbers(store, "/ledgers") == list(range(60))
        assert await old.nodes("/ledgers") == {"0!"}


async def test_nothing_is_lost_of_what_others_write_during_an_upgrade() -> None:
    """Counters that several sessions raise by compare-and-set, and keys that come and go."""
    async with old_cluster(5) as old:
        mover, *users = old.stores
        for number in range(30):
            await mover.create(f"/ledgers/{number}", b"0")
        done = asyncio.Event()
        raised = [0] * 30
        made: set[int] = set()

        async def use(user: int, store: ZooKeeperStore) -> None:
            number = user
            while not done.is_set():
                number = (number + 7) % 30
                held = await store.get(f"/ledgers/{number}")
                assert held is not None
                with_one = b"%d" % (int(held.value) + 1)
                try:
                    await store.set(f"/ledgers/{number}", with_one, held.version)
                    raised[number] += 1
                except VersionConflict:
                    pass
                fresh = 100 + user + 10 * len(made)
                await store.create(f"/ledgers/{fresh}", b"")
                made.add(fresh)
                if len(made) % 3 == 0:
                    made.remove(fresh)
                    await store.delete(f"/ledgers/{fresh}")
                    assert await store.get(f"/ledgers/{fresh}") is None

        using = [asyncio.ensure_future(use(user, store)) for user, store in enumerate(users)]
        await asyncio.wait(using, timeout=0.2)
        await mover.upgrade()
        await asyncio.wait(using, timeout=0.2)
        done.set()
        await asyncio.gather(*using)
        assert mover._layout.spread is Spread.FOLDERS
        assert not [name for name in await old.nodes("/ledgers") if not name.endswith("!")]
        assert await numbers(mover, "/ledgers") == [*range(30), *sorted(made)]
        for number in range(30):
            assert await mover.get(f"/ledgers/{number}") == Versioned(
                b"%d" % raised[number], raised[number]
            )


async def test_a_watch_from_before_the_upgrade_hears_of_changes_after_it() -> None:
    async with old_cluster() as old:
        store, other = old.stores
        await store.create("/ledgers/17", b"")
        changed, listed = asyncio.Event(), asyncio.Event()
        ends = [other.watch("/ledgers/17", changed.set), other.watch("/repair/ledgers", listed.set)]
        await changed.wait()
        await store.upgrade()
        await other.sync()
        changed.clear()
        listed.clear()
        await store.set("/ledgers/17", b"new", 0)
        await changed.wait()
        await store.create("/repair/ledgers/90000", b"")
        await listed.wait()
        for end in ends:
            end()
        assert not other._watches._keys


async def test_a_program_of_an_earlier_version_refuses_the_upgraded_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with old_cluster(1) as old:
        await old.stores[0].upgrade()
        monkeypatch.setattr(zookeeper, "FORMAT_MAJOR", 1)
        with pytest.raises(FormatTooNew):
            await connect(old.chroot)


async def test_nothing_is_moved_while_a_program_of_an_earlier_version_runs() -> None:
    async with old_cluster() as old:
        store, other = old.stores
        await store.create("/ledgers/17", b"")
        bookies = Bookies(other)
        await bookies.raise_age("b1", FolderAge(1))
        await bookies.register(Registration("b1", 1))
        process = Liveness(
            store=other, clock=SystemClock(), rng=Random(3), lease_ms=1000, clock_drift=0.1
        )
        incarnation = await process.incarnation()
        key = f"{PROCESSES}/{incarnation.process_id}"
        earlier = f"{PROCESSES}/earlier"
        await other.create(earlier, msgspec.msgpack.encode(Record(1000)))
        with pytest.raises(Unavailable, match="bookie b1, process earlier cannot read"):
            await upgrade(store, lambda count: None)
        assert await old.nodes("/ledgers") == {"17"}
        await bookies.register(Registration("b1", 1, layout=LAYOUT_MAJOR))
        with pytest.raises(Unavailable, match="process earlier cannot read"):
            await upgrade(store, lambda count: None)
        await other.set(earlier, msgspec.msgpack.encode(Record(1000, ended=True)), 0)
        assert await other.get(key) is not None
        assert await upgrade(store, lambda count: None) == 1
        assert await old.nodes("/ledgers") == {"0!"}
        await process.close()


async def test_an_empty_folder_goes_and_comes_again() -> None:
    store = await connect(fresh_chroot())
    chroot = store._layout.chroot
    for number in (5, 10_005, 20_005):
        await store.create(f"/ledgers/{number}", b"")
    await store.delete("/ledgers/5")
    await store.delete("/ledgers/20005")
    assert await numbers(store, "/ledgers") == [10_005]
    assert set(await store._client.children(f"{chroot}/ledgers+")) == {"1!", "2!"}
    await store.create("/ledgers/6", b"")
    assert await numbers(store, "/ledgers") == [6, 10_005]
    await store.close()


async def test_a_key_of_a_cluster_that_is_gone_is_not_made_for_ever() -> None:
    async with old_cluster(1) as old:
        (store,) = old.stores
        await store.create("/ledgers/1", b"")
        await store._client.delete(f"{old.chroot}/cluster!", None)
        with pytest.raises(MetadataUnavailable) as caught:
            await store.create("/ledgers/2", b"")
        assert not isinstance(caught.value, ConnectionLost)
