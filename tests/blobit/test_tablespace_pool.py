"""The tablespaces that buckets share: which one a bucket goes to, and what it leaves behind."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blobit import (
    AsyncBlobs,
    BucketSettings,
    GarbageSettings,
    MetadataUnavailable,
    NoSuchBucket,
    ObjectInfo,
    PoolLimits,
    SettingsInvalid,
    bucket_removal,
    garbage,
)
from blobit.garbage_scope import BucketScope
from blobit.rows import Rows, RowsTransaction
from blobit.tables import REGISTRY, BucketState
from tests.blobit.contract.objects_contract import body
from tests.blobit.contract.stores import SMALL, clustered, embedded
from tests.blobit.garbage.grounds import HOUR_MS, StillClock

EAGER = replace(SMALL, garbage=GarbageSettings(grace_ms=0, settle_ms=0))
POOL = ["blobs__pool_1", "blobs__pool_2", "blobs__pool_3"]


async def place_of(blobs: AsyncBlobs, name: str) -> str:
    """Where a bucket's names are, by the registry."""
    return (await blobs.bucket(name)).core.info.tablespace


async def buckets_in(blobs: AsyncBlobs) -> dict[str, int]:
    """How many buckets the tablespaces of the pool have."""
    return {each.tablespace: each.buckets for each in await blobs.pool_tablespaces()}


async def test_buckets_of_a_cluster_share_a_tablespace_and_nothing_in_it(tmp_path: Path) -> None:
    async with clustered(tmp_path) as store, store.another() as other:
        cows = await store.blobs.create_bucket("cows")
        sheep = await other.create_bucket("sheep", BucketSettings(ttl_ms=3_600_000))
        assert cows.core.rows.tablespace == sheep.core.rows.tablespace == POOL[0]
        assert await store.blobs.herd.names() == ["blobs", POOL[0]]
        await asyncio.gather(cows.put("one", body(300)), sheep.put("one", body(20)))
        upload = await cows.create_upload("two")
        await cows.put_part(upload, 1, body(70))
        assert await cows.get("one") == body(300) and await sheep.get("one") == body(20)
        assert [info.name async for info in sheep.scan()] == ["one"]
        assert await sheep.uploads() == []
        await sheep.delete("one")
        assert await cows.get("one") == body(300)
        assert (await other.use("cows")).objects == 1 and (await other.use("sheep")).objects == 0


async def test_a_folder_keeps_all_buckets_in_one_tablespace(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        for name in ("cows", "sheep"):
            assert (await store.blobs.create_bucket(name)).core.rows.tablespace == REGISTRY
        assert await store.blobs.pool_tablespaces() == []
        own = await store.blobs.create_bucket("goats", own_tablespace=True)
        assert own.core.rows.tablespace.startswith("blobs_goats_")


async def test_a_bucket_has_the_tablespace_that_was_asked_for(tmp_path: Path) -> None:
    async with clustered(tmp_path) as store, store.another() as other:
        blobs = store.blobs
        for name, settings, more, begin in (
            ("pooled", None, {}, POOL[0]),
            ("own-one", None, {"own_tablespace": True}, "blobs_own-one_"),
            ("own-two", BucketSettings(own_tablespace=True), {}, "blobs_own-two_"),
            ("named", None, {"tablespace": "Farm"}, "farm"),
            ("named-too", BucketSettings(tablespace="farm", ttl_ms=9), {}, "farm"),
        ):
            made = await blobs.create_bucket(name, settings, **more)
            found = await other.bucket(name)
            assert found.core.rows.tablespace == made.core.rows.tablespace
            assert found.core.rows.tablespace.startswith(begin)
            assert found.settings.own_tablespace is name.startswith("own")
            assert found.settings.ttl_ms == (9 if settings and settings.ttl_ms else None)
            assert (found.settings.tablespace or "").lower() == (begin if begin == "farm" else "")
        assert await buckets_in(blobs) == {POOL[0]: 1}
        with pytest.raises(SettingsInvalid, match="no other name"):
            await blobs.create_bucket("both", tablespace="farm", own_tablespace=True)


async def test_the_pool_grows_when_a_tablespace_has_its_buckets_and_fills_up_what_was_left(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store:
        blobs = store.blobs
        assert await blobs.pool_limits() == PoolLimits()
        assert await blobs.set_pool_limits(buckets=2) == PoolLimits(buckets=2)
        for number in range(5):
            bucket = await blobs.create_bucket(f"bucket-{number}")
            await bucket.put("cow", body(40, number))
        assert await buckets_in(blobs) == {POOL[0]: 2, POOL[1]: 2, POOL[2]: 1}
        await blobs.delete_bucket("bucket-1", force=True)
        # Its rows are there until it is collected.
        await blobs.create_bucket("bucket-5")
        assert await place_of(blobs, "bucket-5") == POOL[2]
        for _ in range(3):
            await blobs.collect()
        assert await buckets_in(blobs) == {POOL[0]: 1, POOL[1]: 2, POOL[2]: 2}
        await blobs.create_bucket("bucket-6")
        assert await place_of(blobs, "bucket-6") == POOL[0]
        for number in (0, 2, 3, 4):
            assert await (await blobs.bucket(f"bucket-{number}")).get("cow") == body(40, number)
        with pytest.raises(SettingsInvalid):
            await blobs.set_pool_limits(buckets=0)


async def test_whoever_creates_at_once_no_tablespace_has_more_buckets_than_it_may(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path) as store, store.another() as other:
        await store.blobs.set_pool_limits(buckets=3)
        stores = (store.blobs, other)
        making = [stores[n % 2].create_bucket(f"bucket-{n}") for n in range(8)]
        made = await asyncio.gather(*making)
        found = [bucket.core.rows.tablespace for bucket in made]
        assert {name: found.count(name) for name in set(found)} == await buckets_in(other)
        assert await buckets_in(other) == {POOL[0]: 3, POOL[1]: 3, POOL[2]: 2}


@pytest.mark.parametrize("limit", [{"objects": 3}, {"size_bytes": 90}])
async def test_a_tablespace_whose_buckets_hold_much_takes_no_more_of_them(
    tmp_path: Path, limit: dict[str, int]
) -> None:
    async with clustered(tmp_path) as store:
        blobs = store.blobs
        clock = blobs.client.clock = blobs.client.time.clock = StillClock()
        await blobs.set_pool_limits(**limit)
        cows = await blobs.create_bucket("cows")
        await cows.put("one", body(30))
        await blobs.create_bucket("sheep")
        await cows.put_many([("two", body(30)), ("three", body(30))])
        await blobs.create_bucket("goats")
        assert await place_of(blobs, "goats") == POOL[0], "it was measured a moment ago"
        clock.pass_ms(60_000)
        await blobs.create_bucket("hens")
        assert await place_of(blobs, "hens") == POOL[1]
        [full, _] = await blobs.pool_tablespaces()
        assert (full.objects, full.bytes, full.buckets) == (3, 90, 3)
        await cows.delete_many(["one", "two"])
        await blobs.collect()
        await blobs.create_bucket("geese")
        assert await place_of(blobs, "geese") == POOL[0]


async def test_forgetting_a_bucket_drops_its_own_tablespace_and_never_one_of_the_pool(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        blobs = store.blobs
        kept = await blobs.create_bucket("kept")
        await kept.put("cow", body(40))
        own = await blobs.create_bucket("own", own_tablespace=True)
        old = await other.create_bucket("old")
        for bucket in (own, old):
            await bucket.put("cow", body(40))
            await blobs.delete_bucket(bucket.name, force=True)
        again = await blobs.create_bucket("old")
        await again.put("calf", body(9))
        for _ in range(3):
            await blobs.collect()
        assert await blobs.herd.names() == ["blobs", POOL[0]]
        assert await kept.get("cow") == body(40) and await again.get("calf") == body(9)
        for table in ("homes", "objects", "refs", "counts"):
            ids = {row["bucket_id"] async for row in kept.core.rows.scan(table)}
            assert ids == {kept.bucket_id, again.bucket_id}


@pytest.mark.parametrize("tablespace", [None, "farm"])
async def test_a_creation_that_ends_after_its_bucket_was_removed_leaves_no_rows(
    tablespace: str | None, tmp_path: Path
) -> None:
    async with clustered(tmp_path, settings=EAGER) as store:
        blobs, registry = store.blobs, store.blobs._registry
        await blobs.create_bucket("kept", tablespace=tablespace)
        slow = (await blobs.create_bucket("slow", tablespace=tablespace)).core
        await blobs.delete_bucket("slow")
        assert (await blobs.collect()).cleaned_buckets == ["slow"]
        # The last step of its creation is made after that.
        await registry._open(slow.info, new=True)
        assert await slow.rows.get("homes", (slow.bucket_id,)) is not None
        await blobs.collect()
        for table in ("homes", "open_buckets", "counts"):
            rows = [row async for row in slow.rows.scan(table)]
            assert slow.bucket_id not in {row["bucket_id"] for row in rows}, table
        await (await blobs.bucket("kept")).put("one", b"moo")


@pytest.mark.parametrize("cut_short", [False, True])
async def test_a_put_while_a_late_home_is_removed_leaves_no_ledger(
    cut_short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = replace(SMALL, garbage=GarbageSettings(grace_ms=1_000, settle_ms=0))
    async with clustered(tmp_path, settings=patient) as store, store.another() as other:
        blobs, registry = store.blobs, store.blobs._registry
        clock = blobs.client.clock = blobs.client.time.clock = StillClock()
        await blobs.create_bucket("kept")
        await blobs.create_bucket("slow")
        slow = await other.bucket("slow")
        await blobs.delete_bucket("slow")
        assert (await blobs.collect()).cleaned_buckets == ["slow"]
        await registry._open(slow.core.info, new=True)
        is_empty, puts = garbage._is_empty, list[ObjectInfo]()

        async def then_a_put(scope: BucketScope) -> bool:
            empty = await is_empty(scope)
            puts.append(await slow.put("one", body(300)))
            return empty

        async def leaderless(scope: BucketScope, ledger_ids: Sequence[int]) -> list[int]:
            raise MetadataUnavailable("the leader was lost")

        monkeypatch.setattr(garbage, "_is_empty", then_a_put)
        if cut_short:
            monkeypatch.setattr(bucket_removal, "let_die", leaderless)
        await blobs.collect()
        assert puts
        monkeypatch.undo()
        for _ in range(2):
            clock.pass_ms(HOUR_MS)
            await blobs.collect()
        for table in ("homes", "counts", "objects", "refs", "ledgers", "dying"):
            rows = [row async for row in slow.core.rows.scan(table)]
            assert slow.core.bucket_id not in {row["bucket_id"] for row in rows}, table


async def test_a_bucket_that_is_deleted_before_its_creator_hears_of_it_is_counted_once(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, settings=EAGER) as store:
        blobs, registry = store.blobs, store.blobs._registry
        row = {
            "name": "cows",
            "bucket_id": 4711,
            "state": int(BucketState.BEING_MADE),
            "tablespace": None,
            "settings": b"",
            "created_ms": 1,
        }
        await registry._named(row, BucketSettings())
        await blobs.delete_bucket("cows", force=True)
        # The creator did not hear that the first try was carried out.
        again = {**row, "tablespace": None}
        assert (await registry._named(again, BucketSettings()))["bucket_id"] == 4711
        with pytest.raises(NoSuchBucket):
            await blobs.bucket("cows")
        await blobs.collect()
        assert await buckets_in(blobs) == {POOL[0]: 0}


async def test_a_bucket_that_was_used_and_has_no_name_is_kept(tmp_path: Path) -> None:
    async with clustered(tmp_path, settings=EAGER) as store:
        blobs, registry = store.blobs, await store.blobs.rows(REGISTRY)
        bucket = await blobs.create_bucket("cows")
        await bucket.put("one", body(300))
        # As after a restore of an older registry alone.
        row = await registry.get("buckets", ("cows",))
        assert row is not None
        async with registry.transaction() as transaction:
            await transaction.write({("buckets", ("cows",)): None})
            await transaction.commit()
        await blobs._collector._remove_strays()
        async with registry.transaction() as transaction:
            await transaction.write({("buckets", ("cows",)): row})
            await transaction.commit()
        assert await (await blobs.bucket("cows")).get("one") == body(300)


async def test_a_version_that_knows_of_no_pool_takes_its_tablespaces_for_named_ones(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path) as store:
        await store.blobs.create_bucket("cows", BucketSettings(ttl_ms=9))
        await store.blobs.create_bucket("own", own_tablespace=True)
        rows = await store.blobs.rows(REGISTRY)
        stored = {row["name"]: row["settings"] async for row in rows.scan("buckets")}
        # These drop no tablespace that is named, and refuse settings that they do not know.
        kept = {name: msgspec.json.decode(packed) for name, packed in stored.items()}
        assert kept["cows"]["tablespace"] == POOL[0] and kept["cows"]["ttl_ms"] == 9
        assert kept["own"]["tablespace"] is None
        assert all("own_tablespace" not in each for each in kept.values())


async def test_a_store_of_a_version_without_a_pool_gets_one(tmp_path: Path) -> None:
    async with clustered(tmp_path) as store:
        own = await store.blobs.create_bucket("old", own_tablespace=True)
        await own.put("cow", body(40))
        for tablespace in (REGISTRY, own.core.rows.tablespace):
            session = await store.herd.session(tablespace)
            for table in ("pool_tablespaces", "pool_limits"):
                await session.execute(f"DROP TABLE {table}")
            await session.execute("DROP INDEX dying_by_bucket ON dying")
            await session.close()
        async with store.another() as other:
            assert await (await other.bucket("old")).get("cow") == body(40)
            assert (await other.create_bucket("new")).core.rows.tablespace == POOL[0]
            await other.collect()


async def test_what_a_deleted_bucket_held_is_removed_in_bounded_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(EAGER, garbage=replace(EAGER.garbage, batch_rows=5))
    removed: list[int] = []
    transaction = Rows.transaction

    @asynccontextmanager
    async def watched(self: Rows) -> AsyncIterator[RowsTransaction]:
        async with transaction(self) as made:
            write = made.write

            async def count(rows: Mapping[Any, Any]) -> None:
                removed.append(sum(row is None for row in rows.values()))
                await write(rows)

            made.write = count  # type: ignore[method-assign]
            yield made

    async with clustered(tmp_path, few) as store:
        bucket = await store.blobs.create_bucket("cows")
        await bucket.put_many([(f"cow {number}", body(10)) for number in range(40)])
        await store.blobs.delete_bucket("cows", force=True)
        monkeypatch.setattr(Rows, "transaction", watched)
        for _ in range(3):
            await store.blobs.collect()
        assert await buckets_in(store.blobs) == {POOL[0]: 0}
    assert sum(removed) > 80 and max(removed) <= 17, "all counts of a bucket go together"


async def test_a_round_for_one_bucket_reads_the_rows_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clustered(tmp_path, EAGER) as store:
        cows = await store.blobs.create_bucket("cows")
        await store.blobs.create_bucket("sheep")
        await cows.put("one", body(40))
        scanned: list[str] = []
        scan = Rows.scan

        def watched(self: Rows, table: str, **more: Any) -> Any:
            if not any(more.values()):
                scanned.append(table)
            return scan(self, table, **more)

        monkeypatch.setattr(Rows, "scan", watched)
        await store.blobs.collect("cows")
        assert set(scanned) <= {"moves"}
        await store.blobs.collect()
        assert {"ledgers", "dying"} <= set(scanned)
