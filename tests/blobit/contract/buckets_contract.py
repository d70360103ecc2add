"""What the store promises of buckets themselves, however their names are reached."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blobit import (
    AsyncBlobs,
    BucketExists,
    BucketNotEmpty,
    BucketSettings,
    GarbageSettings,
    InvalidName,
    MetadataUnavailable,
    NoSuchBucket,
    SettingsInvalid,
)
from blobit.naming import is_of_pool
from blobit.tables import REGISTRY, BucketState, key_of
from tests.blobit.contract.objects_contract import Suite, body
from tests.blobit.contract.stores import SMALL


class BucketsContract(Suite):
    """Create, look up, list and delete; settings."""

    async def test_a_bucket_is_there_once_it_was_created_and_once_only(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            blobs = store.blobs
            with pytest.raises(NoSuchBucket):
                await blobs.bucket("photos")
            assert await blobs.buckets() == []
            settings = BucketSettings(ttl_ms=5_000_000, ensemble=2, write_quorum=2, ack_quorum=1)
            made = await blobs.create_bucket("photos", settings)
            with pytest.raises(BucketExists, match="exist_ok takes it"):
                await blobs.create_bucket("photos")
            same = await blobs.create_bucket("photos", exist_ok=True)
            assert same.bucket_id == made.bucket_id and same.settings == made.settings
            asked = msgspec.structs.replace(made.settings, own_tablespace=False)
            assert asked == settings
            async with store.another() as other:
                found = await other.bucket("photos")
                assert (found.bucket_id, found.settings) == (made.bucket_id, made.settings)
                await found.put("cow", b"moo")
            assert await made.get("cow") == b"moo"
            await blobs.create_bucket("a.b-c")
            assert [info.name for info in await blobs.buckets()] == ["a.b-c", "photos"]

    async def test_of_many_who_create_it_one_has_made_it(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store, store.another() as other:
            creating = [
                s.create_bucket("photos", exist_ok=n > 3)
                for n in range(8)
                for s in (store.blobs, other)
            ]
            answers = await asyncio.gather(*creating, return_exceptions=True)
            ids = {a.bucket_id for a in answers if not isinstance(a, BaseException)}
            assert len(ids) == 1
            errors = [a for a in answers if isinstance(a, BaseException)]
            # Who asked for a new one, and was not told otherwise, has made it.
            assert sum(not isinstance(a, BaseException) for a in answers[:8]) <= 1
            assert all(isinstance(error, BucketExists) for error in errors)
            assert len(await store.blobs.buckets()) == 1

    async def test_a_deleted_bucket_is_gone_and_its_name_free(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            blobs = store.blobs
            old = await blobs.create_bucket("photos")
            await old.put("cow", b"old")
            with pytest.raises(BucketNotEmpty):
                await blobs.delete_bucket("photos")
            await blobs.delete_bucket("photos", force=True)
            for call in (old.get("cow"), old.put("x", b""), old.list(), old.delete("cow")):
                with pytest.raises(NoSuchBucket):
                    await call
            for gone in (blobs.bucket("photos"), blobs.delete_bucket("photos")):
                with pytest.raises(NoSuchBucket):
                    await gone
            new = await blobs.create_bucket("photos")
            assert new.bucket_id != old.bucket_id
            assert [info async for info in new.scan()] == []
            await new.put("cow", b"new")
            assert await new.get("cow") == b"new"

    async def test_a_bucket_that_another_process_deleted_and_collected_is_gone_here(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            eager = GarbageSettings(grace_ms=0, settle_ms=0)
            async with store.another(replace(SMALL, garbage=eager)) as other:
                bucket = await store.blobs.create_bucket("photos")
                await bucket.put("cow", b"moo")
                await other.delete_bucket("photos", force=True)
                for _ in range(3):
                    await other.collect()
                for call in (
                    bucket.put("calf", b""),
                    bucket.get("cow"),
                    bucket.exists("cow"),
                    bucket.list(),
                    bucket.delete("cow"),
                ):
                    with pytest.raises(NoSuchBucket):
                        await call

    async def test_only_an_empty_bucket_goes_without_force(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("photos")
            await bucket.put("cow", b"")
            with pytest.raises(BucketNotEmpty):
                await store.blobs.delete_bucket("photos")
            await bucket.delete("cow")
            object_id = await bucket.put_unnamed(body(30))
            with pytest.raises(BucketNotEmpty):
                await store.blobs.delete_bucket("photos")
            await bucket.delete_unnamed(object_id)
            await store.blobs.delete_bucket("photos")
            assert await store.blobs.buckets() == []

    async def test_a_bucket_whose_deletion_was_cut_short_takes_objects_again(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("photos")
            registry = store.blobs._registry
            await registry._set_state(bucket.core.info, BucketState.CLOSING)
            await registry._close(bucket.core.info)
            with pytest.raises(NoSuchBucket):
                await bucket.put("cow", b"")
            assert [info.name for info in await store.blobs.buckets()] == ["photos"]
            async with store.another() as other:
                await (await other.bucket("photos")).put("cow", b"moo")
            assert await bucket.get("cow") == b"moo"
            with pytest.raises(BucketNotEmpty):
                await store.blobs.delete_bucket("photos")
            await bucket.put("calf", b"")
            await bucket.delete_many(["cow", "calf"])
            await store.blobs.delete_bucket("photos")
            assert await store.blobs.buckets() == []

    async def test_buckets_that_are_there_leave_no_tablespace_when_made_again(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            await store.blobs.create_bucket("photos")
            before = await store.blobs.herd.names()
            for _ in range(3):
                await store.blobs.create_bucket("photos", exist_ok=True)
                with pytest.raises(BucketExists):
                    await store.blobs.create_bucket("photos")
            assert await store.blobs.herd.names() == before

    async def test_a_put_that_meets_the_end_of_its_bucket_prevents_it_or_is_refused(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store, store.another() as other:
            ends: set[tuple[bool, bool]] = set()
            for number in range(12):
                name = f"bucket-{number}"
                await store.blobs.create_bucket(name)
                bucket = await other.bucket(name)
                puts = {0: bucket.put("cow", b""), 1: bucket.put("cow", body(30))}
                put = puts.get(number % 3) or bucket.put_unnamed(body(30))
                for unused in puts.values():
                    if unused is not put:
                        unused.close()
                deleted, stored = await asyncio.gather(
                    store.blobs.delete_bucket(name), put, return_exceptions=True
                )
                end = deleted is None, not isinstance(stored, BaseException)
                assert end in ((True, False), (False, True)), (deleted, stored)
                assert isinstance(deleted, BucketNotEmpty | None)
                assert end[1] or isinstance(stored, NoSuchBucket)
                ends.add(end)
            assert ends

    async def test_names_that_no_bucket_can_have_are_refused(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            bad = ("", "ab", "A-b", "a_b", "-ab", "ab-", "x" * 64, "a b", "äöü", "ab\n", "../x")
            for name in bad:
                for call in (store.blobs.create_bucket(name), store.blobs.bucket(name)):
                    with pytest.raises(InvalidName):
                        await call
            with pytest.raises(InvalidName):
                await store.blobs.create_bucket("abc", BucketSettings(tablespace="Blobs_abc"))
            for name in ("abc", "1.2", "x" * 63):
                bucket = await store.blobs.create_bucket(name)
                await bucket.put("cow", name.encode())
                assert await bucket.get("cow") == name.encode()

    async def test_what_is_no_setting_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError):
            BucketSettings(checksum=True)  # type: ignore[call-arg]
        wrongs: list[dict[str, Any]] = [
            {"ensemble": 0},
            {"ensemble": 9_999},
            {"write_quorum": 1, "ack_quorum": 3},
            {"ensemble": 2, "write_quorum": 3},
            {"compression": "lzo"},
            {"ledger_bytes_max": 5},
        ]
        for wrong in wrongs:
            with pytest.raises(SettingsInvalid):
                BucketSettings(**wrong)
        async with self.open(tmp_path) as store:
            for never in (
                BucketSettings(tablespace="Ä"),
                BucketSettings(tablespace="spaces", leader="nobody"),
            ):
                try:
                    with pytest.raises(SettingsInvalid):
                        await store.blobs.create_bucket("photos", never)
                except MetadataUnavailable:
                    # Whether a folder that is reached elsewhere has nodes is not known here.
                    assert never.leader
                    await store.blobs.delete_bucket("photos", force=True)
                assert await store.blobs.buckets() == []
            await store.blobs.create_bucket("photos")
            rows = await store.blobs.rows(REGISTRY)
            async with rows.transaction() as transaction:
                key = ("buckets", ("photos",))
                row = (await transaction.lock([key]))[key]
                assert row is not None
                settings = msgspec.json.encode({"shards": 7})
                await transaction.write({key: {**row, "settings": settings}})
                await transaction.commit()
            with pytest.raises(MetadataUnavailable, match="shards"):
                await store.blobs.bucket("photos")

    async def test_a_bucket_in_a_tablespace_of_its_own_is_finished_by_who_finds_it(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            settings = BucketSettings(tablespace="special")
            bucket = await store.blobs.create_bucket("photos", settings)
            assert bucket.core.rows.tablespace == "special"
            rows = await store.blobs.rows(REGISTRY)
            async with rows.transaction() as transaction:
                key = ("buckets", ("photos",))
                row = (await transaction.lock([key]))[key]
                assert row is not None
                undone = {**row, "state": int(BucketState.BEING_MADE)}
                await transaction.write({key: undone})
                await transaction.commit()
            assert await store.blobs.buckets() == []
            async with store.another() as other:
                with pytest.raises(BucketExists):
                    await other.create_bucket("photos")
                await (await other.bucket("photos")).put("cow", b"moo")
            assert [info.name for info in await store.blobs.buckets()] == ["photos"]
            assert await bucket.get("cow") == b"moo"

    async def test_a_tablespace_that_somebody_named_is_never_dropped(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            blobs, herd = store.blobs, store.blobs.herd
            await herd.make("crm")
            session = await herd.session("crm")
            await session.execute("CREATE TABLE customers (id BIGINT PRIMARY KEY)")
            await session.execute("INSERT INTO customers VALUES (1)")
            await herd.make("plain")
            named = {"photos": "crm", "own.one": None, "videos": "plain"}
            for name, tablespace in named.items():
                settings = BucketSettings(tablespace=tablespace)
                bucket = await blobs.create_bucket(name, settings)
                await bucket.put("cow", b"moo")
                own = bucket.core.rows.tablespace
                await blobs.delete_bucket(name, force=True)
                for table in ("objects", "refs", "ledgers", "open_buckets", "counts", "homes"):
                    async with bucket.core.rows.transaction() as transaction:
                        keys = [key_of(table, r) async for r in bucket.core.rows.scan(table)]
                        await transaction.write(dict.fromkeys(keys))
                        await transaction.commit()
                await blobs.forget_bucket(bucket.core.info)
                stays = own in ("crm", "plain", REGISTRY) or is_of_pool(own)
                assert (own in await herd.names()) is stays
            found = await session.execute("SELECT id FROM customers")
            assert list(found.rows) == [(1,)]
            await session.close()

    async def test_a_table_of_somebody_else_is_left_alone(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            herd = store.blobs.herd
            await herd.make("shop")
            session = await herd.session("shop")
            await session.execute("CREATE TABLE objects (id BIGINT PRIMARY KEY, name TEXT)")
            await session.close()
            with pytest.raises(SettingsInvalid, match="somebody else's"):
                await store.blobs.create_bucket("photos", BucketSettings(tablespace="shop"))
            assert await store.blobs.buckets() == []
            with pytest.raises(NoSuchBucket):
                await store.blobs.bucket("photos")
            await store.blobs.create_bucket("photos")

    async def test_objects_of_a_bucket_with_a_time_to_live_expire(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("mail", BucketSettings(ttl_ms=60_000))
            info = await bucket.put("cow", b"moo")
            assert info.expires_ms is not None
            # The time to live counts from the call, which is a moment before.
            assert abs(info.expires_ms - info.created_ms - 60_000) < 5_000
            assert (await bucket.append("cow", b"!")).expires_ms == info.expires_ms
            upload = await bucket.create_upload("parts")
            await bucket.put_part(upload, 1, b"1")
            made = await bucket.complete_upload(upload)
            assert made.expires_ms is not None
            assert made.expires_ms >= made.created_ms + 60_000 - 5_000
            await bucket.delete("parts")
            hints = [row["name"] async for row in bucket.core.rows.scan("expiries")]
            assert set(hints) == {"cow", "parts"}

    async def test_usage_counts_objects_and_ledgers(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("photos")
            await bucket.put("a", body(40))
            await bucket.put("b", body(700))
            usage = await bucket.usage()
            assert (usage.objects, usage.bytes) == (2, 740)
            assert usage.ledgers >= 3 and usage.stored_bytes >= 740

    async def test_a_buckets_ledgers_are_found_among_those_of_others(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            names = ("photos", "films", "none")
            photos, films, none = [await store.blobs.create_bucket(name) for name in names]
            rows = photos.core.rows
            # In a cluster each has a tablespace of its own.
            together = films.core.info.tablespace == photos.core.info.tablespace
            other = films if together else photos
            await photos.put("a", body(40))
            await films.put("b", body(700))
            made = {
                ("ledgers", (2**40 + number,)): {
                    "ledger_id": 2**40 + number,
                    "bucket_id": (photos if number % 3 else other).bucket_id,
                    "state": 2,
                    "kind": 1,
                    "created_ms": number,
                    "sealed_ms": number,
                    "stored_bytes": 1,
                    "newest_expiry_ms": None,
                }
                for number in range(900)
            }
            async with rows.transaction() as transaction:
                await transaction.write(made)
                await transaction.commit()
            every = [row async for row in rows.scan("ledgers")]
            for bucket in (photos, other):
                own = [row for row in every if row["bucket_id"] == bucket.bucket_id]
                assert await rows.ledgers(bucket.bucket_id) == own and len(own) > 300
                assert (await bucket.usage()).ledgers == len(own)
            assert await rows.ledgers(none.bucket_id) == []

    async def test_copies_between_buckets_stand_alone(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            one = await store.blobs.create_bucket("one")
            two = await store.blobs.create_bucket("two")
            end_ms = one.core.now_ms + 3_600_000
            await one.put(
                "cow", body(500), content_type="x", metadata={"a": "b"}, expires_ms=end_ms
            )
            made = await one.copy("cow", "calf", to=two)
            assert (made.content_type, made.metadata) == ("x", {"a": "b"})
            assert (await two.stat("calf")).expires_ms == end_ms, "no byte outlives its time"
            fleeting = await store.blobs.create_bucket("three", BucketSettings(ttl_ms=3_600_000))
            await fleeting.put("bull", body(5))
            kept = await fleeting.copy("bull", "bull", to=two)
            assert kept.expires_ms is None, "it was copied to be kept"
            await store.blobs.delete_bucket("one", force=True)
            assert await two.get("calf") == body(500)

    async def test_a_store_without_tablespaces_has_objects_by_id_alone(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store, AsyncBlobs(store.blobs.client) as plain:
            assert await plain.get(await plain.put(b"moo")) == b"moo"
            with pytest.raises(MetadataUnavailable):
                await plain.bucket("photos")
