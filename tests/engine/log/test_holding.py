"""A log that is held stops appending for a moment, and no longer."""

import asyncio
from collections.abc import Callable

import pytest

from engine.errors import KeyExists, MetadataUnavailable
from engine.log import LogWriter, ReplicatedLog
from engine.log.holding import HOLD, HOLD_MS, logs_held
from engine.metadata.contract import Versioned
from tests.engine.ledger.scripted import Cluster, LoopClock, turns
from tests.simulation.virtual import elapse, virtually


async def led(bookies: Cluster) -> LogWriter:
    bookies.client_clock = LoopClock()
    leader = await ReplicatedLog(bookies.client(), "mine").lead()
    await leader.append(b"before")
    return leader


def entries_held(bookies: Cluster, leader: LogWriter) -> int:
    return max(len(bookie.entries.get(leader.ledger, {})) for bookie in bookies.bookies)


def test_a_log_that_is_held_sends_nothing_and_goes_on_when_it_is_released() -> None:
    async def script() -> None:
        bookies = await Cluster.of(3)
        leader = await led(bookies)
        async with logs_held(bookies.tree.session(), "a backup", 1):
            await turns()
            waiting = [leader.append(b"%d" % number) for number in range(3)]
            await elapse(HOLD_MS / 2_000)
            assert not any(each.done() for each in waiting)
            assert entries_held(bookies, leader) == 1
        assert [place.entry for place in await asyncio.gather(*waiting)] == [1, 2, 3]
        await leader.close()

    virtually(script())


def test_appends_sent_before_a_hold_are_acknowledged_during_it() -> None:
    async def script() -> None:
        bookies = await Cluster.of(3)
        leader = await led(bookies)
        for bookie in bookies.bookies:
            bookie.holding = True
        sent = leader.append(b"on its way")
        await turns()
        async with logs_held(bookies.tree.session(), "a backup", 1):
            await turns()
            for bookie in bookies.bookies:
                bookie.holding = False
                bookie.release()
            assert (await sent).entry == 1
        await leader.close()

    virtually(script())


def test_a_log_is_held_no_longer_than_a_second_for_one_backup() -> None:
    async def script() -> None:
        bookies = await Cluster.of(3)
        leader = await led(bookies)
        # Whoever made it was killed, and its session has not ended yet.
        await bookies.store.create(HOLD, b"a backup 1", ephemeral=True)
        await turns()
        waiting = leader.append(b"moo")
        await elapse(HOLD_MS / 1000 - 0.01)
        assert not waiting.done()
        await elapse(0.02)
        assert waiting.done() and (await leader.append(b"more")).entry == 2
        await leader.close()

    virtually(script())


def test_a_log_is_held_again_for_the_next_try_even_if_it_missed_the_end_of_the_last() -> None:
    async def script() -> None:
        bookies = await Cluster.of(3)
        leader = await led(bookies)
        store = bookies.tree.session()
        await store.create(HOLD, b"a backup 1", ephemeral=True)
        await turns()
        await elapse(2 * HOLD_MS / 1000)
        # It is looked at once for both changes.
        await store.delete(HOLD)
        await store.create(HOLD, b"a backup 2", ephemeral=True)
        await turns()
        waiting = leader.append(b"moo")
        await elapse(0.1)
        assert not waiting.done()
        await store.delete(HOLD)
        assert (await waiting).entry == 1
        await leader.close()

    virtually(script())


def test_a_log_that_is_to_end_does_not_wait_for_a_hold() -> None:
    async def script() -> None:
        bookies = await Cluster.of(3)
        leader = await led(bookies)
        began_s = asyncio.get_running_loop().time()
        async with logs_held(bookies.tree.session(), "a backup", 1):
            await turns()
            waiting = leader.append(b"the last one")
            await leader.close()
            assert (await waiting).entry == 1
        assert asyncio.get_running_loop().time() - began_s < HOLD_MS / 2_000

    virtually(script())


def test_a_log_continues_if_the_metadata_store_cannot_say_whether_it_is_held() -> None:
    async def script() -> None:
        bookies = await Cluster.of(3)
        store = bookies.tree.session()
        bookies.client_clock = LoopClock()
        leader = await ReplicatedLog(bookies.client(store=store), "mine").lead()
        get = store.get

        async def lost(key: str) -> Versioned | None:
            if key == HOLD:
                raise MetadataUnavailable("it is away")
            return await get(key)

        store.get = lost  # type: ignore[method-assign]
        async with logs_held(bookies.tree.session(), "a backup", 1):
            await turns()
            assert (await leader.append(b"moo")).entry == 0
        await leader.close()

    virtually(script())


def test_a_hold_that_could_not_be_read_meanwhile_does_not_hold_a_log_twice() -> None:
    async def script() -> None:
        bookies = await Cluster.of(3)
        store = bookies.tree.session()
        bookies.client_clock = LoopClock()
        notices, watch, get = list[Callable[[], None]](), store.watch, store.get

        async def lost(key: str) -> Versioned | None:
            raise MetadataUnavailable("it is away")

        def watched(key: str, changed: Callable[[], None]) -> Callable[[], None]:
            notices.append(changed)
            return watch(key, changed)

        store.watch = watched  # type: ignore[method-assign]
        leader = await ReplicatedLog(bookies.client(store=store), "mine").lead()
        async with logs_held(bookies.tree.session(), "a backup", 1):
            await turns()
            waiting = leader.append(b"moo")
            await elapse(HOLD_MS / 2_000)
            assert not waiting.done()
            for found in (lost, get):
                # A watch may fire without a change, as after each new connection.
                store.get = found  # type: ignore[method-assign]
                for changed in notices:
                    changed()
                await turns()
            again = leader.append(b"moo")
            await turns()
            assert waiting.done() and again.done()
        await leader.close()

    virtually(script())


async def test_the_logs_of_one_session_read_the_hold_once_and_share_a_watch() -> None:
    bookies = await Cluster.of(3)
    store = bookies.tree.session()
    reads, watches, get, watch = list[str](), list[str](), store.get, store.watch

    async def counted(key: str) -> Versioned | None:
        reads.append(key)
        return await get(key)

    def watched(key: str, changed: Callable[[], None]) -> Callable[[], None]:
        watches.append(key)
        return watch(key, changed)

    store.watch, store.get = watched, counted  # type: ignore[method-assign]
    client = bookies.client(store=store)
    leaders = [await ReplicatedLog(client, f"log-{number}").lead() for number in range(5)]
    reads.clear()
    async with logs_held(bookies.tree.session(), "a backup", 1):
        await turns()
        waiting = [leader.append(b"moo") for leader in leaders]
        await turns()
        assert not any(each.done() for each in waiting)
        assert (reads.count(HOLD), watches.count(HOLD)) == (1, 1)
        await leaders.pop().close()
        assert not waiting[0].done()
    await asyncio.gather(*waiting)
    for leader in leaders:
        await leader.close()


async def test_one_backup_at_a_time_holds_the_logs_and_finds_its_own_hold_again() -> None:
    bookies = await Cluster.of(1)
    store = bookies.tree.session()
    await store.create(HOLD, b"mine 1", ephemeral=True)
    async with logs_held(store, "mine", 2):
        found = await store.get(HOLD)
        assert found is not None and found.value == b"mine 2"
        with pytest.raises(KeyExists):
            async with logs_held(bookies.tree.session(), "another", 1):
                raise AssertionError("two hold the logs")
    assert await store.get(HOLD) is None
