"""What every `MetadataStore` does, whatever keeps its state.

A subclass says in `run_with_sessions` how a scenario gets sessions over one shared state.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine.errors import InvalidRequest, KeyExists, MetadataUnavailable, VersionConflict
from engine.metadata.contract import MetadataStore, Versioned, pages

Open = Callable[[], Awaitable[MetadataStore]]
Scenario = Callable[[Open], Awaitable[None]]


async def cancel_and_look(store: MetadataStore, turns: int) -> bool:
    """Cancel a set, a creation and a deletion after so many turns of the loop.

    Whether the reads right after each told what became of it.
    """
    told = True
    cow, gone, new = "/cow", f"/gone/{turns}", f"/new/{turns}"
    await store.create(gone, b"")
    found = await store.get(cow)
    assert found is not None

    async def look() -> tuple[list[Versioned | None], list[list[str]]]:
        names = [await store.children(prefix) for prefix in ("/gone", "/new")]
        return [await store.get(key) for key in (cow, gone, new)], names

    for write in (
        store.set(cow, b"%d" % turns, found.version),
        store.create(new, b""),
        store.delete(gone),
    ):
        writing = asyncio.ensure_future(write)
        for _ in range(turns):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        seen = await look()
        # What was on its way has arrived when a later write has returned.
        await store.create(f"/later/{turns}/{len(await store.children(f'/later/{turns}'))}", b"")
        told = told and await look() == seen
    return told


async def numbers(store: MetadataStore, prefix: str, above: int = -1) -> list[int]:
    return [number async for page in pages(store, prefix, above) for number in page]


class StoreContract:
    """Run over every implementation of `MetadataStore`."""

    def run_with_sessions(self, scenario: Scenario) -> None:
        """Run `scenario(open)` on an empty store; each `await open()` is one more session."""
        raise NotImplementedError

    async def expire(self, store: MetadataStore) -> None:
        """End a session from outside, as after too long a silence."""
        raise NotImplementedError

    def test_a_key_is_made_read_set_and_deleted(self) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            assert await store.get("/cows/berta") is None
            assert await store.create("/cows/berta", b"calf") == 0
            assert await store.get("/cows/berta") == (b"calf", 0)
            assert await store.set("/cows/berta", b"heifer", 0) == 1
            assert await store.set("/cows/berta", b"cow", 1) == 2
            assert await store.get("/cows/berta") == (b"cow", 2)
            await store.delete("/cows/berta")
            assert await store.get("/cows/berta") is None

        self.run_with_sessions(scenario)

    def test_a_key_is_made_once(self) -> None:
        async def scenario(open_session: Open) -> None:
            first, second = await open_session(), await open_session()
            await first.create("/cow", b"berta")
            with pytest.raises(KeyExists):
                await second.create("/cow", b"alma")
            with pytest.raises(KeyExists):
                await second.create("/cow", b"alma", ephemeral=True)
            assert await second.get("/cow") == (b"berta", 0)

        self.run_with_sessions(scenario)

    def test_a_set_that_names_another_version_changes_nothing(self) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            await store.create("/cow", b"0")
            await store.set("/cow", b"1", 0)
            for version in (0, 2, 7):
                with pytest.raises(VersionConflict):
                    await store.set("/cow", b"x", version)
            with pytest.raises(VersionConflict):
                await store.delete("/cow", 0)
            assert await store.get("/cow") == (b"1", 1)
            await store.delete("/cow", 1)
            assert await store.get("/cow") is None

        self.run_with_sessions(scenario)

    def test_a_gone_key_conflicts_with_a_set_and_not_with_a_delete(self) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            with pytest.raises(VersionConflict):
                await store.set("/cow", b"x", 0)
            await store.delete("/cow")
            await store.delete("/cow", 3)

        self.run_with_sessions(scenario)

    def test_a_key_made_again_starts_over(self) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            await store.create("/cow", b"0")
            await store.set("/cow", b"1", 0)
            await store.delete("/cow")
            assert await store.create("/cow", b"again") == 0
            assert await store.get("/cow") == (b"again", 0)

        self.run_with_sessions(scenario)

    def test_of_many_that_set_one_version_exactly_one_wins(self) -> None:
        async def scenario(open_session: Open) -> None:
            stores = [await open_session() for _ in range(4)]
            await stores[0].create("/cow", b"")

            async def race(number: int) -> int | None:
                try:
                    await stores[number % 4].set("/cow", b"%d" % number, 0)
                except VersionConflict:
                    return None
                return number

            winners = [n for n in await asyncio.gather(*map(race, range(20))) if n is not None]
            assert len(winners) == 1
            assert await stores[0].get("/cow") == (b"%d" % winners[0], 1)

        self.run_with_sessions(scenario)

    def test_of_many_that_make_one_key_exactly_one_wins(self) -> None:
        async def scenario(open_session: Open) -> None:
            stores = [await open_session() for _ in range(4)]

            async def race(number: int) -> int | None:
                try:
                    await stores[number % 4].create("/cow", b"%d" % number)
                except KeyExists:
                    return None
                return number

            winners = [n for n in await asyncio.gather(*map(race, range(20))) if n is not None]
            assert len(winners) == 1
            assert await stores[3].get("/cow") == (b"%d" % winners[0], 0)

        self.run_with_sessions(scenario)

    def test_concurrent_increments_lose_none(self) -> None:
        async def scenario(open_session: Open) -> None:
            stores = [await open_session() for _ in range(3)]
            await stores[0].create("/herd", b"0")

            async def add_ten(store: MetadataStore) -> None:
                added = 0
                while added < 10:
                    found = await store.get("/herd")
                    assert found is not None
                    try:
                        await store.set("/herd", b"%d" % (int(found.value) + 1), found.version)
                    except VersionConflict:
                        continue
                    added += 1

            await asyncio.gather(*map(add_ten, stores))
            assert await stores[0].get("/herd") == (b"30", 30)

        self.run_with_sessions(scenario)

    def test_a_write_that_was_cancelled_is_seen_by_the_next_read_or_never_happens(self) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            await store.create("/cow", b"")
            for turns in range(12):
                assert await cancel_and_look(store, turns), turns

        self.run_with_sessions(scenario)

    def test_children_are_the_sorted_names_under_a_key(self) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            assert await store.children("/ledgers") == []
            for name in ("17", "2", "100"):
                await store.create(f"/ledgers/{name}", b"")
            await store.create("/ledgersx", b"")
            await store.create("/other/17", b"")
            assert await store.children("/ledgers") == ["100", "17", "2"]
            await store.delete("/ledgers/17")
            assert await store.children("/ledgers") == ["100", "2"]

        self.run_with_sessions(scenario)

    @pytest.mark.parametrize("prefix", ["/ledgers", "/repair/ledgers", "/cows"])
    def test_pages_have_all_numbers_under_a_key_in_order(self, prefix: str) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            assert await numbers(store, prefix) == []
            wanted = [0, 2, 17, 9_999, 10_000, 10_001, 123_456, 2**62]
            for number in reversed(wanted):
                await store.create(f"{prefix}/{number}", b"%d" % number)
            above = [-1, 0, 1, 16, 17, 9_999, 123_455, 2**62, 2**63]
            for least in above:
                assert await numbers(store, prefix, least) == [n for n in wanted if n > least]
            for name in ("x", "017", "+1", "-5", "1_0", "١"):
                await store.create(f"{prefix}/{name}", b"")
            # Not in the folder of the number 120,005 either, however that is named.
            await store.create(f"{prefix}/12/120005", b"")
            for least in above:
                assert await numbers(store, prefix, least) == [n for n in wanted if n > least]
            names = await store.children(prefix)
            assert names == sorted(["x", "017", "+1", "-5", "1_0", "١", *map(str, wanted)])
            for number in wanted:
                assert await store.get(f"{prefix}/{number}") == (b"%d" % number, 0)
                await store.delete(f"{prefix}/{number}")
                assert await store.get(f"{prefix}/{number}") is None
            assert await numbers(store, prefix) == []
            assert await numbers(store, f"{prefix}/12") == [120_005]

        self.run_with_sessions(scenario)

    def test_a_watch_of_numbered_keys_fires_whichever_comes_or_goes(self) -> None:
        async def scenario(open_session: Open) -> None:
            store, other = await open_session(), await open_session()
            changed = asyncio.Event()
            end = store.watch("/repair/ledgers", changed.set)
            for number in (5, 3, 70_000, 70_001):
                changed.clear()
                await other.create(f"/repair/ledgers/{number}", b"")
                await changed.wait()
            for number in (3, 70_001, 70_000):
                changed.clear()
                await other.delete(f"/repair/ledgers/{number}")
                await changed.wait()
            await store.sync()
            assert await numbers(store, "/repair/ledgers") == [5]
            end()

        self.run_with_sessions(scenario)

    def test_a_key_and_the_names_under_it_know_nothing_of_each_other(self) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            await store.create("/herds/alps/cows/berta", b"b")
            assert await store.get("/herds/alps") is None
            assert await store.children("/herds") == []
            assert await store.children("") == await store.children("/") == []
            with pytest.raises(VersionConflict):
                await store.set("/herds/alps", b"x", 0)
            assert await store.create("/herds/alps", b"green", ephemeral=True) == 0
            assert await store.set("/herds/alps", b"white", 0) == 1
            assert await store.children("/herds") == ["alps"]
            await store.create("/herds/alps/cows/alma", b"a")
            await store.delete("/herds/alps", 1)
            assert await store.get("/herds/alps/cows/berta") == (b"b", 0)
            assert await store.children("/herds/alps/cows") == ["alma", "berta"]
            assert await store.children("/herds") == []

        self.run_with_sessions(scenario)

    def test_a_name_may_be_any_word(self) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            names = ["+", "a", "a b", "a!", "a#", "a#=", "a+", "a+=", "a=", "a==", "zookeeper", "é"]
            for number, name in enumerate(names):
                await store.create(f"/names/{name}", b"%d" % number)
                await store.create(f"/names/{name}/below", b"")
                await store.next_id(f"/names/{name}")
            assert await store.children("/names") == sorted(names)
            for number, name in enumerate(names):
                assert await store.get(f"/names/{name}") == (b"%d" % number, 0)
                assert await store.children(f"/names/{name}") == ["below"]

        self.run_with_sessions(scenario)

    def test_sessions_see_each_others_writes_after_a_sync(self) -> None:
        async def scenario(open_session: Open) -> None:
            writer, reader = await open_session(), await open_session()
            assert writer.cluster_id and writer.cluster_id == reader.cluster_id
            await writer.create("/cow", b"berta")
            await reader.sync()
            assert await reader.get("/cow") == (b"berta", 0)

        self.run_with_sessions(scenario)

    def test_numbers_of_a_counter_are_never_given_twice(self) -> None:
        async def scenario(open_session: Open) -> None:
            stores = [await open_session() for _ in range(3)]
            assert await stores[0].next_id("/ids/ledger") >= 1
            before = await stores[1].next_id("/ids/ledger")
            given = await asyncio.gather(
                *(stores[number % 3].next_id("/ids/ledger") for number in range(50))
            )
            assert len(set(given)) == 50 and min(given) > before
            assert await stores[2].next_id("/ids/ledger") > max(given)
            assert await stores[2].next_id("/ids/other") < before + 50

        self.run_with_sessions(scenario)

    def test_an_ephemeral_key_goes_with_its_session_and_no_other(self) -> None:
        async def scenario(open_session: Open) -> None:
            owner, other = await open_session(), await open_session()
            await owner.create("/bookies/a", b"a", ephemeral=True)
            await other.create("/bookies/b", b"b", ephemeral=True)
            await owner.create("/ledgers/1", b"")
            assert await other.set("/bookies/a", b"A", 0) == 1
            await owner.close()
            await other.sync()
            assert await other.children("/bookies") == ["b"]
            assert await other.get("/bookies/a") is None
            assert await other.get("/ledgers/1") == (b"", 0)
            await other.create("/bookies/a", b"again", ephemeral=True)

        self.run_with_sessions(scenario)

    def test_an_ephemeral_key_deleted_and_made_by_another_stays_with_the_other(self) -> None:
        async def scenario(open_session: Open) -> None:
            old, new = await open_session(), await open_session()
            await old.create("/bookies/a", b"old", ephemeral=True)
            await new.delete("/bookies/a")
            await new.create("/bookies/a", b"new", ephemeral=True)
            await old.close()
            await new.sync()
            assert await new.get("/bookies/a") == (b"new", 0)

        self.run_with_sessions(scenario)

    def test_a_lost_session_is_told_and_its_ephemeral_keys_go_and_no_others(self) -> None:
        async def scenario(open_session: Open) -> None:
            owner, other = await open_session(), await open_session()
            losses: list[str] = []
            lost, gone = asyncio.Event(), asyncio.Event()
            owner.watch_session(lambda: losses.append("owner"))
            owner.watch_session(lost.set)
            other.watch_session(lambda: losses.append("other"))
            await owner.create("/bookies/a", b"a", ephemeral=True)
            await owner.create("/ledgers/1", b"")
            other.watch("/bookies", gone.set)
            await other.sync()
            gone.clear()
            await self.expire(owner)
            async with asyncio.timeout(20):
                await lost.wait()
            while await other.get("/bookies/a") is not None:
                await gone.wait()
                gone.clear()
            assert await other.get("/ledgers/1") == (b"", 0)
            assert losses == ["owner"]

        self.run_with_sessions(scenario)

    def test_a_session_that_is_closed_is_not_lost_and_an_ended_watch_hears_of_none(self) -> None:
        async def scenario(open_session: Open) -> None:
            closing, expiring = await open_session(), await open_session()
            losses: list[str] = []
            witness = asyncio.Event()
            closing.watch_session(lambda: losses.append("closed"))
            end = expiring.watch_session(lambda: losses.append("ended"))
            expiring.watch_session(witness.set)
            end()
            end()
            await closing.close()
            await self.expire(expiring)
            await witness.wait()
            assert losses == []

        self.run_with_sessions(scenario)

    def test_a_watch_tells_of_each_kind_of_change(self) -> None:
        async def scenario(open_session: Open) -> None:
            store, other = await open_session(), await open_session()
            value_changed, names_changed = asyncio.Event(), asyncio.Event()
            store.watch("/cows/berta", value_changed.set)
            store.watch("/cows", names_changed.set)

            async def told(*events: asyncio.Event) -> None:
                for event in events:
                    await event.wait()
                    event.clear()

            await other.create("/cows/berta", b"calf")
            await told(value_changed, names_changed)
            await other.set("/cows/berta", b"cow", 0)
            await told(value_changed)
            await other.delete("/cows/berta")
            await told(value_changed, names_changed)
            await other.create("/cows/alma", b"calf", ephemeral=True)
            await told(names_changed)
            await other.close()
            await told(names_changed)
            assert await store.children("/cows") == []

        self.run_with_sessions(scenario)

    def test_an_ended_watch_tells_nothing_more(self) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            ended, witness = asyncio.Event(), asyncio.Event()
            end = store.watch("/cow", ended.set)
            store.watch("/cow", witness.set)
            end()
            end()
            await store.create("/cow", b"")
            await witness.wait()
            assert not ended.is_set()

        self.run_with_sessions(scenario)

    def test_a_closed_session_is_unavailable_and_closes_twice(self) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            await store.create("/cow", b"")
            await store.close()
            await store.close()
            with pytest.raises(MetadataUnavailable):
                await store.get("/cow")
            with pytest.raises(MetadataUnavailable):
                await store.set("/cow", b"x", 0)
            with pytest.raises(MetadataUnavailable):
                await store.children("/")

        self.run_with_sessions(scenario)

    @pytest.mark.parametrize("key", ["", "cow", "/", "/cow/", "//cow", "/a//b", "/a/../b", "/a\0b"])
    def test_what_is_not_a_key_is_an_invalid_request(self, key: str) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            with pytest.raises(InvalidRequest):
                await store.create(key, b"")

        self.run_with_sessions(scenario)

    def test_a_value_has_at_most_a_mebibyte(self) -> None:
        async def scenario(open_session: Open) -> None:
            store = await open_session()
            await store.create("/cow", bytes(2**20 - 1024))
            with pytest.raises(InvalidRequest):
                await store.create("/bull", bytes(2**20 + 1))
            with pytest.raises(InvalidRequest):
                await store.set("/cow", bytes(2**20 + 1), 0)
            assert await store.get("/bull") is None

        self.run_with_sessions(scenario)
