"""The collector forgets a ledger only when the metadata store has denied it twice."""

from collections.abc import Sequence

import pytest

from engine.bookie.garbage import Collector, GarbageSettings
from engine.errors import FolderMismatch, MetadataUnavailable, Unavailable
from engine.metadata.contract import Page, Versioned
from engine.metadata.memory import MemoryStore, MemoryTree
from engine.metadata.restoring import Restoration, mark_restoration

HOUR_S = 3_600.0
INTERVAL_S = 600.0


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0


class Herd:
    """A bookie that holds ledgers, beside a store that knows some of them."""

    def __init__(self, held: int, **settings: float) -> None:
        self.cluster_id = "meadow"
        self.tree = MemoryTree("meadow")
        self.store = WatchedStore(self.tree)
        self.clock = HandClock()
        self.held = set(range(held))
        self.written: dict[int, float] = {}
        self.buried: list[int] = []
        self.collector = Collector(
            self,
            self.store,
            self.clock,
            GarbageSettings(**settings),  # type: ignore[arg-type]
        )

    async def ledgers(self, above: int, limit: int) -> list[int]:
        return sorted(one for one in self.held if one > above)[:limit]

    def written_s(self, ledger_id: int) -> float:
        return self.written.get(ledger_id, 0.0)

    async def bury(self, ledger_ids: Sequence[int]) -> None:
        self.buried.extend(ledger_ids)
        self.held.difference_update(ledger_ids)

    async def know(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            await self.store.create(f"/ledgers/{ledger_id}", b"cow")


class WatchedStore(MemoryStore):
    """Counts what it is asked, fails on demand, and forgets some keys in its listings."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree, 99)
        self.syncs = 0
        self.fail_at_get: int | None = None
        self.gets = 0
        self.listings = 0
        self.fail_at_listing = False
        self.unlisted: set[int] = set()

    async def sync(self) -> None:
        self.syncs += 1
        await super().sync()

    async def get(self, key: str) -> Versioned | None:
        self.gets += key.startswith("/ledgers/")
        if self.fail_at_get is not None and self.gets >= self.fail_at_get:
            raise MetadataUnavailable("away")
        return await super().get(key)

    async def page(self, prefix: str, above: int = -1) -> Page:
        self.listings += 1
        if self.fail_at_listing:
            raise MetadataUnavailable("away")
        numbers, _ = await super().page(prefix, above)
        numbers = [number for number in numbers if number not in self.unlisted][:400]
        return Page(numbers, more=bool(numbers))


async def test_a_ledger_goes_after_two_denials_an_interval_apart() -> None:
    herd = Herd(10)
    await herd.know(*range(9))
    herd.clock.now_s = HOUR_S
    first = await herd.collector.collect()
    assert (first.missing, first.buried) == (1, ())
    herd.clock.now_s += INTERVAL_S - 1
    assert (await herd.collector.collect()).buried == ()
    herd.clock.now_s += 1
    assert (await herd.collector.collect()).buried == (9,)
    assert herd.buried == [9] and herd.store.syncs == 3


async def test_many_ledgers_are_looked_for_in_listings_which_prove_no_absence() -> None:
    herd = Herd(2_000)
    await herd.know(*range(1_000), *range(1_001, 2_000))
    herd.store.unlisted = {7, 1_500}
    herd.clock.now_s = HOUR_S
    first = await herd.collector.collect()
    assert (first.held, first.missing) == (2_000, 1)
    assert herd.store.gets == 3 and herd.store.listings <= 8
    herd.clock.now_s += INTERVAL_S
    assert (await herd.collector.collect()).buried == (1_000,)
    herd.store.fail_at_listing = True
    with pytest.raises(MetadataUnavailable):
        await herd.collector.collect()


async def test_few_ledgers_among_many_are_asked_for_one_by_one() -> None:
    herd = Herd(0)
    herd.held = {number * 10_000 for number in range(40)}
    await herd.know(*herd.held, *range(1, 5_000))
    herd.clock.now_s = HOUR_S
    assert (await herd.collector.collect()).missing == 0
    assert herd.store.listings <= 2 and herd.store.gets >= 38


async def test_a_known_ledger_never_goes() -> None:
    herd = Herd(10)
    await herd.know(*range(10))
    for hour in range(1, 5):
        herd.clock.now_s = hour * HOUR_S
        assert (await herd.collector.collect()).buried == ()
    assert herd.buried == []


async def test_a_ledger_that_comes_back_between_the_answers_starts_anew() -> None:
    herd = Herd(10)
    await herd.know(*range(9))
    herd.clock.now_s = HOUR_S
    await herd.collector.collect()
    await herd.know(9)
    herd.clock.now_s += INTERVAL_S
    await herd.collector.collect()
    await herd.store.delete("/ledgers/9")
    herd.clock.now_s += INTERVAL_S
    assert (await herd.collector.collect()).buried == ()
    herd.clock.now_s += INTERVAL_S
    assert (await herd.collector.collect()).buried == (9,)


async def test_a_ledger_written_in_the_last_hour_is_not_asked_about() -> None:
    herd = Herd(10)
    await herd.know(*range(9))
    herd.clock.now_s = 3 * HOUR_S
    herd.written[9] = 2 * HOUR_S + 1
    assert (await herd.collector.collect()).missing == 0
    assert herd.store.gets == 9
    herd.clock.now_s += 1
    assert (await herd.collector.collect()).missing == 1


async def test_a_write_between_the_answers_voids_the_first() -> None:
    herd = Herd(10, quiet_ms=0)
    await herd.know(*range(9))
    await herd.collector.collect()
    herd.clock.now_s = INTERVAL_S
    herd.written[9] = INTERVAL_S - 1
    assert (await herd.collector.collect()).buried == ()
    herd.clock.now_s += INTERVAL_S - 1
    assert (await herd.collector.collect()).buried == ()
    herd.clock.now_s += 1
    assert (await herd.collector.collect()).buried == (9,)


@pytest.mark.parametrize("fail_at", range(1, 11))
async def test_a_store_that_does_not_answer_forgets_nothing(fail_at: int) -> None:
    herd = Herd(10)
    await herd.know(*range(1, 10))
    herd.clock.now_s = HOUR_S
    await herd.collector.collect()
    herd.clock.now_s += INTERVAL_S
    herd.store.fail_at_get = herd.store.gets + fail_at
    with pytest.raises(MetadataUnavailable):
        await herd.collector.collect()
    assert herd.buried == []
    herd.store.fail_at_get = None
    assert (await herd.collector.collect()).buried == (0,)


async def test_another_clusters_store_forgets_nothing() -> None:
    herd = Herd(10)
    herd.cluster_id = "stable"
    herd.clock.now_s = HOUR_S
    with pytest.raises(FolderMismatch):
        await herd.collector.collect(confirmed=10)
    assert herd.store.gets == 0 and herd.buried == []


async def test_above_a_fifth_of_all_ledgers_it_stops_and_asks() -> None:
    herd = Herd(100)
    await herd.know(*range(21, 100))
    herd.clock.now_s = HOUR_S
    await herd.collector.collect()
    herd.clock.now_s += INTERVAL_S
    asked = await herd.collector.collect()
    assert (asked.asks, asked.doomed, asked.buried) == (True, 21, ())
    assert (await herd.collector.collect()).asks
    confirmed = await herd.collector.collect(confirmed=21)
    assert (confirmed.asks, confirmed.buried) == (False, tuple(range(21)))


async def test_a_fifth_of_all_ledgers_goes_unasked() -> None:
    herd = Herd(100)
    await herd.know(*range(20, 100))
    herd.clock.now_s = HOUR_S
    await herd.collector.collect()
    herd.clock.now_s += INTERVAL_S
    assert (await herd.collector.collect()).buried == tuple(range(20))


async def test_a_confirmation_holds_for_one_round() -> None:
    herd = Herd(10)
    await herd.know(0)
    herd.clock.now_s = HOUR_S
    first = await herd.collector.collect(confirmed=10)
    assert first.buried == ()
    herd.clock.now_s += INTERVAL_S
    assert (await herd.collector.collect()).asks


async def test_no_more_ledgers_go_than_were_confirmed() -> None:
    herd = Herd(100)
    await herd.know(*range(60, 100))
    herd.clock.now_s = HOUR_S
    await herd.collector.collect()
    herd.clock.now_s += INTERVAL_S
    done = await herd.collector.collect(confirmed=50)
    assert (done.asks, done.doomed, done.buried) == (False, 60, tuple(range(50)))
    assert (await herd.collector.collect()).buried == tuple(range(50, 60))


async def test_an_empty_store_is_never_taken_at_its_word() -> None:
    herd = Herd(2)
    herd.clock.now_s = HOUR_S
    await herd.collector.collect()
    herd.clock.now_s += INTERVAL_S
    assert (await herd.collector.collect()).asks
    assert herd.buried == []


async def test_few_ledgers_of_a_small_store_go_unasked() -> None:
    herd = Herd(3)
    await herd.know(0, 1)
    herd.clock.now_s = HOUR_S
    await herd.collector.collect()
    herd.clock.now_s += INTERVAL_S
    assert (await herd.collector.collect()).buried == (2,)


async def test_more_ledgers_than_a_page_are_all_asked_about() -> None:
    herd = Herd(3_000)
    await herd.know(*(one for one in range(3_000) if one % 10))
    herd.clock.now_s = HOUR_S
    await herd.collector.collect()
    herd.clock.now_s += INTERVAL_S
    done = await herd.collector.collect()
    assert done.held == 3_000 and done.buried == tuple(range(0, 3_000, 10))


async def test_nothing_is_collected_while_the_store_is_being_filled() -> None:
    herd = Herd(4)
    await herd.know(0, 1, 2)
    await mark_restoration(herd.store, Restoration("meadow", 1, 2, under_way=True))
    for _ in range(3):
        herd.clock.now_s += HOUR_S
        with pytest.raises(Unavailable, match="herdbook store restore"):
            await herd.collector.collect()
    await mark_restoration(herd.store, Restoration("meadow", 1, 2))
    for _ in range(2):
        herd.clock.now_s += HOUR_S
        await herd.collector.collect()
    assert herd.buried == [3]
