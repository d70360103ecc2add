"""Registrations and boot counts of bookies."""

import asyncio

import pytest

from engine.errors import FolderRolledBack, MetadataUnavailable
from engine.metadata.bookies import Bookies, Registration
from engine.metadata.contract import Versioned
from engine.metadata.memory import FaultyStore, MemoryStore, MemoryTree


async def test_registered_bookies_are_found_by_id_until_their_session_ends() -> None:
    tree = MemoryTree("cluster")
    first, second, looker = tree.session(), tree.session(), Bookies(tree.session())
    await Bookies(second).register(Registration("b", boot=1, address="host:1", rack="r1"))
    await Bookies(first).register(Registration("a", boot=4))
    found = await looker.available()
    assert list(found) == ["a", "b"]
    assert found["b"] == Registration("b", boot=1, address="host:1", rack="r1")
    await first.close()
    assert list(await looker.available()) == ["b"]
    await Bookies(second).unregister("b")
    assert await looker.available() == {}


async def test_a_registration_replaces_what_an_earlier_session_left() -> None:
    tree = MemoryTree("cluster")
    earlier, later = tree.session(), tree.session()
    await Bookies(earlier).register(Registration("a", boot=1))
    await Bookies(later).register(Registration("a", boot=2, writable=False))
    await earlier.close()
    assert await Bookies(later).available() == {"a": Registration("a", boot=2, writable=False)}


async def test_a_watch_tells_of_bookies_that_come_and_go() -> None:
    tree = MemoryTree("cluster")
    changed = asyncio.Event()
    Bookies(tree.session()).watch(changed.set)
    bookie = tree.session()
    await Bookies(bookie).register(Registration("a", boot=1))
    await changed.wait()
    changed.clear()
    bookie.expire()
    assert await changed.wait()


async def test_registrations_are_asked_for_together_not_one_after_the_other() -> None:
    tree = MemoryTree("cluster")
    asked: list[str] = []
    all_asked = asyncio.Event()

    class SlowStore(MemoryStore):
        async def get(self, key: str) -> Versioned | None:
            asked.append(key)
            if len(asked) == 3:
                all_asked.set()
            await all_asked.wait()
            return await super().get(key)

    for name in ("c", "a", "b"):
        await Bookies(tree.session()).register(Registration(name, boot=1))
    async with asyncio.timeout(10):
        found = await Bookies(SlowStore(tree, 99)).available()
    assert list(found) == ["a", "b", "c"]


async def test_each_start_is_counted_once() -> None:
    bookies = Bookies(MemoryTree("cluster").session())
    for folder_boot in range(5):
        assert await bookies.raise_boot("a", folder_boot) == folder_boot + 1
    assert await bookies.raise_boot("b", 0) == 1
    assert await bookies.known() == ["a", "b"]


async def test_a_start_that_ended_before_its_folder_knew_gets_the_same_count() -> None:
    bookies = Bookies(MemoryTree("cluster").session())
    assert await bookies.raise_boot("a", 0) == 1
    assert await bookies.raise_boot("a", 0) == 1


async def test_a_folder_that_was_put_back_is_refused() -> None:
    bookies = Bookies(MemoryTree("cluster").session())
    await bookies.raise_boot("a", 0)
    await bookies.raise_boot("a", 1)
    with pytest.raises(FolderRolledBack):
        await bookies.raise_boot("a", 0)
    assert await bookies.raise_boot("a", 2) == 3


async def test_a_store_that_was_put_back_takes_the_folders_count() -> None:
    bookies = Bookies(MemoryTree("cluster").session())
    assert await bookies.raise_boot("a", 7) == 8
    with pytest.raises(FolderRolledBack):
        await bookies.raise_boot("a", 6)


async def test_a_lost_reply_does_not_count_a_start_twice() -> None:
    store = FaultyStore(MemoryTree("cluster").session())
    bookies = Bookies(store)
    for folder_boot in range(3):
        store.lose_reply()
        with pytest.raises(MetadataUnavailable):
            await bookies.raise_boot("a", folder_boot)
        assert await bookies.raise_boot("a", folder_boot) == folder_boot + 1


async def test_a_conflict_is_decided_anew() -> None:
    tree = MemoryTree("cluster")
    store = FaultyStore(tree.session())
    bookies, other = Bookies(store), Bookies(tree.session())
    store.before_write(lambda: other.raise_boot("a", 0))
    assert await bookies.raise_boot("a", 0) == 1

    async def two_starts() -> None:
        await other.raise_boot("a", 1)
        await other.raise_boot("a", 2)

    store.before_write(two_starts)
    with pytest.raises(FolderRolledBack):
        await bookies.raise_boot("a", 1)
