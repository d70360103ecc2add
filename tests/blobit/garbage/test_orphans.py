"""Ledgers that no row names, and buckets that were deleted: nothing is left, nothing else goes."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from blobit import MetadataUnavailable, NoSuchBucket
from blobit.committing import Committer
from blobit.orphans import OrphanScan
from blobit.ownership import LEDGER_OWNER
from blobit.rows import Rows
from herd.errors import CommitUnknown, LeaderUnavailable
from tests.blobit.garbage.grounds import BUCKET, DAY_MS, HOUR_MS, Ground, grounds
from tests.blobit.garbage.test_dying import Sleeper
from tests.engine.ledger.scripted import QUICK, Cluster

PER_BUCKET = (
    *("objects", "expiries", "refs", "uploads", "upload_parts", "ledgers", "dying"),
    *("homes", "open_buckets", "moving_buckets", "counts", "buckets", "deleted_buckets"),
)
"""The tables that hold rows of a bucket."""


async def orphan(ground: Ground, bucket_id: int) -> int:
    """A ledger of a bucket that has no row."""
    metadata = LEDGER_OWNER | {"bucket": b"%d" % bucket_id, "kind": b"1"}
    writer = await ground.blobs.client.create_ledger(metadata=metadata)
    await writer.append(b"lost")
    await writer.close()
    return writer.ledger_id


async def test_a_ledger_of_a_bucket_without_a_row_is_deleted_when_it_is_old(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        await ground.sealed({"elsa": b"moo"})
        lost = [await orphan(ground, ground.bucket.bucket_id), await orphan(ground, 4711)]
        ground.clock.pass_ms(HOUR_MS - ground.settings.garbage.settle_ms)
        assert (await ground.blobs.collect()).orphan_ledgers == 0
        ground.clock.pass_ms(ground.settings.garbage.settle_ms)
        assert (await ground.blobs.collect(dry_run=True)).orphan_ledgers == 2
        assert set(lost) <= set(await ground.ledgers_there())
        assert (await ground.blobs.collect()).orphan_ledgers == 2
        assert await ground.ledgers_there() == await ground.ledgers()
        assert await ground.bucket.get("elsa") == b"moo"


async def test_ledgers_of_others_and_of_objects_without_a_bucket_are_never_touched(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path, orphan_ms=0, grace_ms=0) as ground:
        loose = await ground.blobs.put(b"loose")
        client = ground.blobs.client
        for metadata in ({}, {"owner": b"log", "bucket": b"7"}, {"owner": b"blobit"}):
            await client.create_ledger(metadata=metadata)
        there = await ground.ledgers_there()
        ground.clock.pass_ms(DAY_MS)
        for _ in range(2):
            assert (await ground.blobs.collect()).orphan_ledgers == 0
        assert await ground.ledgers_there() == there
        assert await ground.blobs.get(loose) == b"loose"


async def test_a_bucket_that_is_made_while_a_round_goes_on_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(tmp_path, orphan_ms=0, grace_ms=0) as ground:
        owners = ground.blobs.client.owners
        ledgers_of = owners.ledgers_of

        async def late(owner: bytes) -> list[int]:
            fresh = await ground.blobs.create_bucket("fresh")
            await fresh.put("heidi", b"meh")
            await orphan(ground, 4711)
            return await ledgers_of(owner)

        with monkeypatch.context() as patched:
            patched.setattr(owners, "ledgers_of", late)
            assert (await ground.blobs.collect()).orphan_ledgers == 1
        fresh = await ground.blobs.bucket("fresh")
        assert await ground.ledgers_there() == await ground.ledgers()
        assert await fresh.get("heidi") == b"meh"


async def test_a_tablespace_that_does_not_answer_is_asked_only_once() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client(QUICK)
    metadata = [LEDGER_OWNER | {"bucket": bucket} for bucket in (b"7", b"8", b"9")]
    ledgers = [(await client.create_ledger(metadata=each)).ledger_id for each in 2 * metadata]
    asked: list[str] = []

    async def place_of(bucket_id: int) -> str | None:
        return {7: "away", 8: "away"}.get(bucket_id)

    async def rows_in(tablespace: str) -> Rows:
        asked.append(tablespace)
        raise LeaderUnavailable("nobody leads")

    found = await OrphanScan(client).find(set(), place_of, rows_in, 2**60, 0)
    assert found == {ledgers[2]: 9, ledgers[5]: 9}, "only ledgers of buckets without a tablespace"
    assert asked == ["away"]


async def test_a_ledger_that_is_dying_is_no_orphan(tmp_path: Path) -> None:
    async with grounds(tmp_path, orphan_ms=0) as ground:
        await ground.sealed({"elsa": b"moo"})
        await ground.bucket.delete("elsa")
        for _ in range(2):
            assert (await ground.blobs.collect()).orphan_ledgers == 0
        assert len(await ground.ledgers_there()) == 1


async def test_a_dying_ledger_of_a_deleted_bucket_is_no_orphan(tmp_path: Path) -> None:
    async with grounds(tmp_path, orphan_ms=0) as ground:
        await ground.sealed({"elsa": b"moo"})
        object_id = (await ground.bucket.stat("elsa")).object_id
        await ground.blobs.delete_bucket(BUCKET, force=True)
        for _ in range(2):
            assert (await ground.blobs.collect()).orphan_ledgers == 0
        assert await ground.blobs.get(object_id) == b"moo"


async def test_a_round_of_one_bucket_looks_for_no_orphans(tmp_path: Path) -> None:
    async with grounds(tmp_path, orphan_ms=0) as ground:
        await orphan(ground, ground.bucket.bucket_id)
        await ground.collect()
        assert len(await ground.ledgers_there()) == 1
        with pytest.raises(NoSuchBucket):
            await ground.blobs.collect("goats")


async def test_of_a_deleted_bucket_nothing_is_left(tmp_path: Path) -> None:
    async with grounds(tmp_path, batch_rows=4) as ground:
        await ground.sealed({f"cow{number}": b"%03d" % number for number in range(10)})
        await ground.bucket.put("long", b"x" * 300)
        await ground.bucket.put("empty", b"")
        await ground.bucket.put_unnamed(b"kept")
        await ground.bucket.put("brief", b"moo", expires_ms=ground.clock.wall_ms() + DAY_MS)
        upload = await ground.bucket.create_upload("whole")
        await ground.bucket.put_part(upload, 1, b"part")
        await ground.blobs.delete_bucket(BUCKET, force=True)
        first = await ground.blobs.collect()
        assert first.cleaned_buckets == [] and await ground.rows("homes") == []
        ground.clock.pass_ms(HOUR_MS)
        assert (await ground.blobs.collect()).cleaned_buckets == [BUCKET]
        for table in PER_BUCKET:
            assert await ground.rows(table) == [], table
        assert await ground.ledgers_there() == []


async def test_nothing_of_a_deleted_bucket_is_left_whichever_transaction_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, left = Committer._attempt, -1

    async def lose(self: Committer, batch: Any) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise CommitUnknown("the leader went away")
        await attempt(self, batch)

    monkeypatch.setattr(Committer, "_attempt", lose)
    for number in range(1_000):
        async with grounds(tmp_path / str(number), grace_ms=0, orphan_ms=0) as ground:
            await ground.sealed({"elsa": b"moo"})
            await ground.bucket.put("brief", b"moo", expires_ms=ground.clock.wall_ms() + DAY_MS)
            upload = await ground.bucket.create_upload("whole")
            await ground.bucket.put_part(upload, 1, b"part")
            await ground.blobs.delete_bucket(BUCKET, force=True)
            left = number
            for _ in range(3):
                with suppress(MetadataUnavailable):
                    await ground.blobs.collect()
            for table in PER_BUCKET:
                assert await ground.rows(table) == [], (number, table)
            assert await ground.ledgers_there() == []
        if left >= 0:
            break
    assert number > 10


async def test_a_new_bucket_of_a_deleted_ones_name_keeps_what_is_put_into_it(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path, grace_ms=0, orphan_ms=0) as ground:
        await ground.sealed({"elsa": b"the old one"})
        await ground.blobs.delete_bucket(BUCKET, force=True)
        fresh = await ground.blobs.create_bucket(BUCKET)
        await fresh.put("elsa", b"the new one")
        assert (await ground.blobs.collect()).cleaned_buckets == [BUCKET]
        assert await fresh.get("elsa") == b"the new one"
        assert [row["bucket_id"] for row in await ground.rows("homes")] == [fresh.bucket_id]


@pytest.mark.parametrize("body", [b"moo", b""])
async def test_a_put_that_sleeps_while_its_bucket_is_deleted_and_cleaned_is_refused(
    tmp_path: Path, body: bytes
) -> None:
    async with grounds(tmp_path, grace_ms=0, orphan_ms=0) as ground:
        sleeper = Sleeper(ground)
        put = asyncio.create_task(ground.bucket.put("elsa", body))
        await sleeper.stored
        async with ground.store.another(ground.settings) as other:
            await other.delete_bucket(BUCKET, force=True)
            assert (await other.collect()).cleaned_buckets == [BUCKET]
        sleeper.awake.set()
        with pytest.raises(NoSuchBucket):
            await put
        await ground.blobs.close()
        for table in ("objects", "refs", "ledgers", "homes"):
            assert await ground.rows(table) == []


@pytest.mark.parametrize("body", [b"moo", b""])
async def test_a_put_that_sleeps_while_its_empty_bucket_is_deleted_is_refused(
    tmp_path: Path, body: bytes
) -> None:
    async with grounds(tmp_path) as ground:
        sleeper = Sleeper(ground)
        put = asyncio.create_task(ground.bucket.put("elsa", body))
        await sleeper.stored
        async with ground.store.another(ground.settings) as other:
            await other.delete_bucket(BUCKET)
        assert [row["bucket_id"] for row in await ground.rows("homes")] == [ground.bucket.bucket_id]
        sleeper.awake.set()
        with pytest.raises(NoSuchBucket):
            await put
        for table in ("objects", "refs"):
            assert await ground.rows(table) == []


async def test_a_dry_run_tells_what_a_round_does_and_changes_nothing(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        await ground.sealed({f"cow{number}": b"%04d" % number for number in range(10)})
        await ground.sealed({"calf": b"muh"})
        await ground.bucket.delete_many(["calf", *[f"cow{number}" for number in range(8)]])
        tables = ("objects", "refs", "ledgers", "dying")
        before = [await ground.rows(table) for table in tables]
        told = await ground.collect(dry_run=True)
        assert before == [await ground.rows(table) for table in tables]
        assert (told.ledgers, told.stored_bytes, told.live_bytes) == (2, 43, 8)
        assert (told.dead_ledgers, told.dead_bytes) == (1, 35)
        assert (told.compacted_ledgers, told.moved_objects, told.moved_bytes) == (1, 2, 8)
        done = await ground.collect()
        assert (done.compacted_ledgers, done.moved_objects, done.moved_bytes) == (1, 2, 8)
        assert (done.dead_bytes, done.deleted_ledgers) == (35, 2)
