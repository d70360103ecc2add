"""A cluster of an earlier version, whose numbered keys are moved into folders while it is used."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

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
from engine.metadata.upgrade import Upgrade
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_client import ConnectionLost, Set
from engine.metadata.zookeeper_paths import Spread
from engine.ports.clock import SystemClock
from tests.engine.metadata.store_contract import Scenario, StoreContract, numbers
from tests.engine.metadata.test_zookeeper import connect, end_session
from tests.engine.metadata.zookeeper_fixture import fresh_chroot


async def write_cluster(chroot: str, format_major: int, numbered: Spread) -> None:
    """Make a cluster with an earlier layout, or one that is being moved."""
    maker = await connect(chroot)
    node = zookeeper.ClusterNode(maker.cluster_id, format_major, numbered)
    await maker._client.set(f"{chroot}/cluster!", msgspec.json.encode(node), 0)
    await maker.close()


class EarlierLayout(StoreContract):
    """The contract of every store, in a cluster with another layout."""

    format_major: int
    numbered: Spread

    def run_with_sessions(self, scenario: Scenario) -> None:
        chroot = fresh_chroot()

        async def run() -> None:
            await write_cluster(chroot, self.format_major, self.numbered)
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
    numbered = Spread.FOLDERS


class TestStoreThatIsBeingUpgraded(EarlierLayout):
    format_major = 2
    numbered = Spread.MOVING


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
    await write_cluster(chroot, 1, Spread.FOLDERS)
    stores = [await connect(chroot) for _ in range(sessions)]
    try:
        assert all(store._layout.spread is Spread.FLAT for store in stores)
        yield Old(chroot, stores)
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def ready() -> None:
    """No program of an earlier version is running."""


def nobody(count: int) -> None:
    """Nobody is told how many keys were moved."""


async def move_all(store: ZooKeeperStore) -> int:
    return await store.upgrade(ready, nobody)


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
        assert await store.upgrade(ready, heard.append) == 41
        assert heard[-1] == 41 and await move_all(store) == 0
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
        await move_all(store)
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
        await move_all(store)
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
        await store._write_layout(Spread.MOVING)
        for each in (store, late):
            with pytest.raises(KeyExists):
                await each.create("/repair/ledgers/7", b"second")
        await move_all(late)
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
                await move_all(store)

        monkeypatch.setattr(other._client, "get", get_and_move)
        assert await other.get("/ledgers/17") == (b"cow", 0)
        assert await old.nodes("/ledgers") == {"0!"}


async def test_a_key_that_is_changed_while_it_is_moved_keeps_the_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with old_cluster() as old:
        store, other = old.stores
        await store.create("/ledgers/17", b"old")
        commit: Any = store._client.commit

        async def late(steps: object) -> None:
            held = await other.get("/ledgers/17")
            if held == (b"old", 0):
                await other.set("/ledgers/17", b"new", 0)
            await commit(steps)

        monkeypatch.setattr(store._client, "commit", late)
        assert await move_all(store) == 1
        assert await other.get("/ledgers/17") == (b"new", 1)


async def test_an_interrupted_upgrade_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    async with old_cluster() as old:
        store, other = old.stores
        for number in range(100):
            await store.create(f"/ledgers/{number}", b"%d" % number)
        monkeypatch.setattr(zookeeper, "_MOVED_A_CHECK", 16)
        moved = asyncio.Event()
        upgrading = asyncio.ensure_future(store.upgrade(ready, lambda count: moved.set()))
        await moved.wait()
        upgrading.cancel()
        await asyncio.gather(upgrading, return_exceptions=True)
        assert len(await old.nodes("/ledgers")) > 1
        assert await numbers(other, "/ledgers") == list(range(100))
        fresh = await connect(old.chroot)
        assert fresh._layout.spread is Spread.MOVING
        assert await fresh.children("/ledgers") == sorted(map(str, range(100)))
        assert 0 < await move_all(fresh) < 100
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
        assert sum(await asyncio.gather(move_all(first), move_all(second))) == 60
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
        await move_all(mover)
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
        await move_all(store)
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
        await move_all(old.stores[0])
        monkeypatch.setattr(zookeeper, "FORMAT_MAJOR", 1)
        with pytest.raises(FormatTooNew):
            await connect(old.chroot)


class Hands:
    """A clock that is set."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0


async def test_nothing_is_moved_while_a_bookie_of_an_earlier_version_runs() -> None:
    async with old_cluster() as old:
        store, other = old.stores
        await store.create("/ledgers/17", b"")
        bookies = Bookies(other)
        await bookies.raise_age("b1", FolderAge(1))
        await bookies.register(Registration("b1", 1))
        with pytest.raises(Unavailable, match="bookie b1 cannot read"):
            await Upgrade(store, Hands(), 0).run()
        assert await old.nodes("/ledgers") == {"17"}
        await bookies.register(Registration("b1", 1, layout=LAYOUT_MAJOR))
        assert await Upgrade(store, Hands(), 0).run() == 1
        assert await old.nodes("/ledgers") == {"0!"}


async def test_a_process_of_an_earlier_version_is_waited_for_until_its_lease_is_over() -> None:
    async with old_cluster() as old:
        store, other = old.stores
        await store.create("/ledgers/17", b"")
        process = Liveness(
            store=other, clock=SystemClock(), rng=Random(3), lease_ms=1000, clock_drift=0.1
        )
        await process.incarnation()
        record = msgspec.msgpack.encode(Record(2_000))
        await other.create(f"{PROCESSES}/earlier", record)
        clock = Hands()
        upgrade = Upgrade(store, clock, 0)
        for version in range(3):
            with pytest.raises(Unavailable, match="process earlier cannot read"):
                await upgrade.run()
            clock.now_s += 5
            await other.set(f"{PROCESSES}/earlier", record, version)
        with pytest.raises(Unavailable):
            await upgrade.run()
        clock.now_s += 7
        assert await upgrade.run() == 1
        await process.close()


async def test_where_nothing_is_to_be_moved_nobody_is_waited_for() -> None:
    store = await connect(fresh_chroot())
    await store.create("/ledgers/17", b"")
    async with asyncio.timeout(10):
        assert await Upgrade(store, Hands()).run() == 0
    await store.close()


async def test_an_upgrade_stops_when_a_bookie_of_an_earlier_version_registers_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had connected before, and was reading its journal."""
    monkeypatch.setattr(zookeeper, "_MOVED_A_CHECK", 4)
    async with old_cluster() as old:
        store, other = old.stores
        for number in range(20):
            await store.create(f"/ledgers/{number}", b"")
        bookies = Bookies(other)
        await bookies.raise_age("b1", FolderAge(1))
        late: list[asyncio.Future[None]] = []

        def moved(count: int) -> None:
            late.append(asyncio.ensure_future(bookies.register(Registration("b1", 1))))

        move_all = store._move_all

        async def move_later(*given: Any) -> None:
            await asyncio.gather(*late, return_exceptions=True)
            await move_all(*given)

        monkeypatch.setattr(store, "_move_all", move_later)
        with pytest.raises(Unavailable, match="bookie b1 cannot read"):
            await Upgrade(store, Hands(), 0).run(moved)
        await asyncio.gather(*late, return_exceptions=True)
        assert 4 < len(await old.nodes("/ledgers")) < 21
        assert await numbers(store, "/ledgers") == list(range(20))


async def test_what_a_program_of_an_earlier_version_makes_afterwards_is_found_and_moved() -> None:
    async with old_cluster() as old:
        store, other = old.stores
        await store.create("/ledgers/17", b"")
        await move_all(store)
        await store._client.create(f"{old.chroot}/ledgers+/12345", b"stray")
        for each in (store, other):
            await each._read_layout()
            assert await each.get("/ledgers/12345") == (b"stray", 0)
            assert await numbers(each, "/ledgers") == [17, 12_345]
            assert await numbers(each, "/ledgers", 17) == [12_345]
            assert await each.children("/ledgers") == ["12345", "17"]
        assert await other.set("/ledgers/12345", b"known", 0) == 1
        assert await move_all(store) == 1
        assert await old.nodes("/ledgers") == {"0!", "1!"}
        assert await other.get("/ledgers/12345") == (b"known", 1)
        await store._client.create(f"{old.chroot}/ledgers+/12345", b"again")
        with pytest.raises(KeyExists, match="/ledgers/12345 is there twice"):
            await move_all(store)
        await other.delete("/ledgers/12345", 1)
        assert await other.get("/ledgers/12345") == (b"again", 0)
        await other.delete("/ledgers/12345")
        await other.delete("/ledgers/12345")
        assert await numbers(other, "/ledgers") == [17]


async def test_an_upgrade_survives_lost_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async with old_cluster() as old:
        store, _ = old.stores
        for number in range(40):
            await store.create(f"/ledgers/{number}", b"")
        monkeypatch.setattr(zookeeper, "_MOVED_A_CHECK", 8)
        monkeypatch.setattr("engine.metadata.upgrade._PAUSE_S", 0.0)
        lost = 0
        heard: list[int] = []

        async def losing(steps: object) -> None:
            nonlocal lost
            if len(heard) % 2 and lost < len(heard):
                lost += 1
                raise ConnectionLost("in the middle")
            await commit(steps)

        commit: Any = store._client.commit
        monkeypatch.setattr(store._client, "commit", losing)
        assert await Upgrade(store, Hands(), 0).run(heard.append) == 40
        assert lost and heard == sorted(heard)
        assert await old.nodes("/ledgers") == {"0!"}


async def test_a_key_that_was_changed_very_often_is_moved() -> None:
    async with old_cluster() as old:
        store, _ = old.stores
        await store.create("/repair/ledgers/7", b"why")
        path = f"{old.chroot}/repair+/ledgers+/7"
        for _ in range(6_100 // 100):
            await store._client.commit([Set(path, b"why")] * 100)
        assert await move_all(store) == 1
        assert await store.get("/repair/ledgers/7") == (b"why", 5_000)


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


async def test_a_listing_of_an_empty_folder_that_fills_again_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, other = [await connect(chroot) for chroot in [fresh_chroot()] * 2]
    for number in (5, 20_005):
        await store.create(f"/repair/ledgers/{number}", b"")
    await store.delete("/repair/ledgers/5")
    listed = store._client.children

    async def children(path: str, **watch: bool) -> list[str]:
        found = await listed(path, **watch)
        if path.endswith("/0!") and not found:
            await other.create("/repair/ledgers/6", b"")
        return found

    monkeypatch.setattr(store._client, "children", children)
    assert await numbers(store, "/repair/ledgers") == [20_005]
    assert await numbers(store, "/repair/ledgers") == [6, 20_005]
    for each in (store, other):
        await each.close()


async def test_a_key_of_a_cluster_that_is_gone_is_not_made_for_ever() -> None:
    async with old_cluster(1) as old:
        (store,) = old.stores
        await store.create("/ledgers/1", b"")
        await store._client.delete(f"{old.chroot}/cluster!", None)
        with pytest.raises(MetadataUnavailable) as caught:
            await store.create("/ledgers/2", b"")
        assert not isinstance(caught.value, ConnectionLost)
