"""Registrations of bookies, and the ages of their folders."""

import asyncio

import pytest

from engine.errors import CannotRead, FolderRolledBack, MetadataUnavailable
from engine.metadata.bookies import BOOTS, Bookies, FolderAge, Registration
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


async def test_a_registration_replaces_one_that_a_killed_process_sent_and_that_arrives_late() -> (
    None
):
    tree = MemoryTree("cluster")
    killed, store = tree.session(), FaultyStore(tree.session())
    old, new = Registration("a", boot=1), Registration("a", boot=2)
    store.before_write(store.sync)
    store.before_write(lambda: Bookies(killed).register(old))
    await Bookies(store).register(new)
    await killed.close()
    assert await Bookies(store).available() == {"a": new}


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


async def test_an_age_that_was_reached_is_remembered() -> None:
    bookies = Bookies(MemoryTree("cluster").session())
    for age in (FolderAge(1), FolderAge(1, 1), FolderAge(1, 12), FolderAge(2), FolderAge(9, 3)):
        await bookies.raise_age("a", age)
        await bookies.check_age("a", age)
        assert FolderAge.unpack(age.pack()) == age
    await bookies.raise_age("b", FolderAge(1))
    assert await bookies.known() == ["a", "b"]


async def test_a_registration_that_was_cut_off_is_absent_or_whole_and_can_be_made_again() -> None:
    old, new = (Registration("a", boot, address=f"unix:/{boot}") for boot in (1, 2))
    left = [old, None, new]
    for write in range(2):
        for done in (False, True):
            tree = MemoryTree("meadow")
            await Bookies(tree.session()).register(old)
            store = FaultyStore(tree.session())
            if write:
                store.before_write(store.sync)
            if done:
                store.lose_reply()
            else:
                store.lose_request()
            bookies = Bookies(store)
            with pytest.raises(MetadataUnavailable):
                await bookies.register(new)
            assert await bookies.registration("a") == left[write + done]
            await bookies.register(new)
            assert await bookies.registration("a") == new


async def test_a_folder_that_was_put_back_is_refused() -> None:
    bookies = Bookies(MemoryTree("cluster").session())
    await bookies.raise_age("a", FolderAge(2, 10))
    for younger in (FolderAge(2, 9), FolderAge(2), FolderAge(1, 11)):
        with pytest.raises(FolderRolledBack):
            await bookies.check_age("a", younger)
    for older in (FolderAge(2, 10), FolderAge(3)):
        await bookies.check_age("a", older)


async def test_a_store_that_was_put_back_takes_the_folders_count() -> None:
    bookies = Bookies(MemoryTree("cluster").session())
    await bookies.check_age("a", FolderAge(7))
    await bookies.raise_age("a", FolderAge(8))
    with pytest.raises(FolderRolledBack):
        await bookies.check_age("a", FolderAge(7))


async def test_a_lost_reply_does_not_refuse_the_next_start() -> None:
    store = FaultyStore(MemoryTree("cluster").session())
    bookies = Bookies(store)
    for boot in range(1, 7, 2):
        store.lose_reply()
        with pytest.raises(MetadataUnavailable):
            await bookies.raise_age("a", FolderAge(boot))
        await bookies.check_age("a", FolderAge(boot))
        await bookies.raise_age("a", FolderAge(boot + 1))


async def test_a_write_that_comes_late_is_passed_and_an_equal_age_is_anothers() -> None:
    tree = MemoryTree("cluster")
    store = FaultyStore(tree.session())
    bookies, other = Bookies(store), Bookies(tree.session())
    store.before_write(lambda: other.raise_age("a", FolderAge(1)))
    await bookies.raise_age("a", FolderAge(2))

    store.before_write(lambda: other.raise_age("a", FolderAge(3)))
    with pytest.raises(FolderRolledBack):
        await bookies.raise_age("a", FolderAge(3))


async def test_an_age_that_cannot_be_read_is_no_young_one() -> None:
    store = MemoryTree("cluster").session()
    await store.create(f"{BOOTS}/a", b"young")
    with pytest.raises(CannotRead):
        await Bookies(store).check_age("a", FolderAge(1))
    with pytest.raises(CannotRead):
        await Bookies(store).raise_age("a", FolderAge(2))


class LaggingStore(FaultyStore):
    """A store that knows of nothing before it is told to catch up."""

    behind = True

    async def get(self, key: str) -> Versioned | None:
        return None if self.behind else await super().get(key)

    async def sync(self) -> None:
        self.behind = False


async def test_a_store_that_lags_behind_lets_no_old_folder_start() -> None:
    store = LaggingStore(MemoryTree("cluster").session())
    await Bookies(store).raise_age("a", FolderAge(2))
    with pytest.raises(FolderRolledBack):
        await Bookies(store).check_age("a", FolderAge(1))
