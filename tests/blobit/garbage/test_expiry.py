"""What ends by itself: objects with a time, buckets whose objects have one, uploads."""

from pathlib import Path
from typing import Any

import pytest

from blobit import BucketSettings, NoSuchObject, ObjectId, expiry
from blobit.bucket_core import BucketCore
from blobit.errors import NoSuchUpload
from blobit.holding import Holding
from blobit.staging.naming import give_up
from blobit.tables import LedgerKind
from engine.expiry import CLOCK_DIFFERENCE_MS
from herd.staging.layout import Job
from tests.blobit.contract.parts_contract import list_lost
from tests.blobit.garbage.grounds import BUCKET, DAY_MS, HOUR_MS, grounds

MORTAL = BucketSettings(ttl_ms=HOUR_MS)


async def test_an_object_is_invisible_from_its_time_on_and_a_round_removes_it(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path, MORTAL, grace_ms=0) as ground:
        await ground.sealed({"elsa": b"moo"})
        ground.clock.pass_ms(HOUR_MS - ground.settings.garbage.settle_ms - 1)
        assert await ground.bucket.get("elsa") == b"moo"
        assert (await ground.collect()).expired_objects == 0
        ground.clock.pass_ms(1)
        with pytest.raises(NoSuchObject):
            await ground.bucket.get("elsa")
        assert (await ground.bucket.list()).objects == []
        ground.clock.pass_ms(CLOCK_DIFFERENCE_MS - 1)
        assert (await ground.collect()).expired_objects == 0, "another's clock may be behind"
        assert len(await ground.rows("objects")) == 1
        ground.clock.pass_ms(1)
        report = await ground.collect()
        assert (report.expired_objects, report.dead_ledgers, report.deleted_ledgers) == (1, 1, 1)
        for table in ("objects", "refs", "expiries", "ledgers"):
            assert await ground.rows(table) == []


async def test_ledgers_of_objects_that_expire_are_never_compacted_and_go_whole(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path, MORTAL, grace_ms=0, live_share_min=1.0) as ground:
        await ground.sealed({f"cow{number}": b"%04d" % number for number in range(10)})
        await ground.bucket.delete_many([f"cow{number}" for number in range(9)])
        [row] = await ground.rows("ledgers")
        assert row["kind"] == LedgerKind.EXPIRING
        report = await ground.collect()
        assert (report.compacted_ledgers, report.dead_ledgers, report.live_bytes) == (0, 0, 4)
        ground.clock.pass_ms(HOUR_MS + CLOCK_DIFFERENCE_MS)
        assert (await ground.collect()).deleted_ledgers == 1


async def test_one_object_of_many_may_have_a_time(tmp_path: Path) -> None:
    async with grounds(tmp_path) as ground:
        end_ms = ground.clock.wall_ms() + HOUR_MS
        await ground.bucket.put("brief", b"moo", expires_ms=end_ms)
        await ground.bucket.put("lasting", b"muh")
        ground.clock.pass_ms(HOUR_MS + CLOCK_DIFFERENCE_MS)
        assert (await ground.collect()).expired_objects == 1
        assert [row["name"] for row in await ground.rows("objects")] == ["lasting"]


async def test_an_object_that_was_written_anew_outlives_the_time_of_the_old_one(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        now_ms = ground.clock.wall_ms()
        await ground.bucket.put("elsa", b"moo", expires_ms=now_ms + HOUR_MS)
        await ground.bucket.put("elsa", b"later", expires_ms=now_ms + DAY_MS)
        await ground.bucket.put("alma", b"moo", expires_ms=now_ms + HOUR_MS)
        await ground.bucket.put("alma", b"for ever")
        ground.clock.pass_ms(HOUR_MS + CLOCK_DIFFERENCE_MS)
        assert (await ground.collect()).expired_objects == 0
        assert await ground.bucket.get("elsa") == b"later"
        assert await ground.bucket.get("alma") == b"for ever"
        assert [row["expires_ms"] for row in await ground.rows("expiries")] == [now_ms + DAY_MS]


async def test_the_time_goes_along_when_an_object_is_renamed_or_grows(tmp_path: Path) -> None:
    async with grounds(tmp_path, MORTAL, grace_ms=0, settle_ms=0) as ground:
        await ground.bucket.put("elsa", b"moo")
        await ground.bucket.rename("elsa", "alma")
        await ground.bucket.append("alma", b"muh")
        ground.clock.pass_ms(HOUR_MS + CLOCK_DIFFERENCE_MS)
        assert (await ground.collect()).expired_objects == 1
        assert await ground.rows("refs") == [] and await ground.rows("expiries") == []


async def test_an_empty_object_ends_too(tmp_path: Path) -> None:
    async with grounds(tmp_path, MORTAL) as ground:
        await ground.bucket.put("nothing", b"")
        ground.clock.pass_ms(HOUR_MS + CLOCK_DIFFERENCE_MS)
        assert (await ground.collect()).expired_objects == 1
        assert await ground.rows("objects") == []


async def test_more_objects_than_one_batch_end_together(tmp_path: Path) -> None:
    async with grounds(tmp_path, MORTAL, batch_rows=3) as ground:
        await ground.sealed({f"cow{number}": b"moo" for number in range(10)})
        ground.clock.pass_ms(HOUR_MS + CLOCK_DIFFERENCE_MS)
        assert (await ground.collect(dry_run=True)).expired_objects == 10
        assert (await ground.collect()).expired_objects == 10
        assert await ground.rows("objects") == []


async def test_what_ends_goes_when_its_list_is_lost(tmp_path: Path) -> None:
    async with grounds(tmp_path, MORTAL, grace_ms=0) as ground:
        async with ground.store.another(ground.settings) as other:
            bucket = await other.bucket(BUCKET)
            list_lost(ground.store, (await bucket.put("large", b"x" * 300)).object_id)
            upload = await bucket.create_upload("whole")
            await bucket.put_part(upload, 1, b"y" * 300)
        [part] = await ground.rows("upload_parts")
        list_lost(ground.store, ObjectId.from_bytes(part["object_id"]))
        ground.clock.pass_ms(max(HOUR_MS, ground.settings.upload_ttl_ms) + CLOCK_DIFFERENCE_MS)
        report = await ground.collect()
        assert (report.expired_objects, report.expired_uploads) == (1, 1)
        assert await ground.rows("refs") == []


async def test_an_upload_that_nobody_completes_ends_with_its_parts(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        async with ground.store.another(ground.settings) as other:
            bucket = await other.bucket(BUCKET)
            upload = await bucket.create_upload("whole")
            await bucket.put_part(upload, 1, b"x" * 300)
            await bucket.put_part(upload, 2, b"small")
        ground.clock.pass_ms(ground.settings.upload_ttl_ms + CLOCK_DIFFERENCE_MS - 1)
        assert (await ground.collect()).expired_uploads == 0
        ground.clock.pass_ms(1)
        assert (await ground.collect(dry_run=True)).expired_uploads == 1
        report = await ground.collect()
        assert report.expired_uploads == 1 and report.deleted_ledgers == report.ledgers
        for table in ("uploads", "upload_parts", "refs", "ledgers"):
            assert await ground.rows(table) == []
        with pytest.raises(NoSuchUpload):
            await ground.bucket.put_part(upload, 3, b"late")


async def test_an_upload_renewed_while_a_round_looks_at_it_keeps_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        core = ground.bucket.core
        holding = Holding(core)
        pool = core.pool(LedgerKind.NAMED)
        await holding.part_ended(await ground.blobs.store(pool, b"first"))
        [upload] = await ground.rows("uploads")
        ground.clock.pass_ms(ground.settings.upload_ttl_ms + CLOCK_DIFFERENCE_MS)
        held = expiry._held_by_upload

        async def renewed_meanwhile(core: BucketCore, upload_id: str) -> Any:
            found = await held(core, upload_id)
            monkeypatch.undo()
            await holding.part_ended(await ground.blobs.store(pool, b"second"))
            return found

        monkeypatch.setattr(expiry, "_held_by_upload", renewed_meanwhile)
        assert (await ground.collect()).expired_uploads == 0
        [renewed] = await ground.rows("uploads")
        assert renewed["upload_id"] == upload["upload_id"]
        assert len(await ground.rows("upload_parts")) == 2


async def test_a_mark_that_is_renewed_while_a_round_looks_at_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(tmp_path) as ground:
        core, job = ground.bucket.core, Job("one of today")
        await give_up(core, job, "run")
        ground.clock.pass_ms(ground.settings.upload_ttl_ms + CLOCK_DIFFERENCE_MS)
        held = expiry._held_by_upload

        async def marked_meanwhile(core: BucketCore, upload_id: str) -> Any:
            monkeypatch.undo()
            await give_up(core, job, "run")
            return await held(core, upload_id)

        monkeypatch.setattr(expiry, "_held_by_upload", marked_meanwhile)
        assert (await ground.collect()).expired_uploads == 0
        [mark] = await ground.rows("uploads")
        assert mark["expires_ms"] > ground.clock.wall_ms()
