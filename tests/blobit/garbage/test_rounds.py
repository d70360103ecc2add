"""Rounds over many buckets and tablespaces: what is away stops nobody else."""

from pathlib import Path

import pytest

from blobit import BucketInfo, BucketSettings, DiskFull, MetadataUnavailable
from blobit.committing import Committer
from blobit.registry import Registry
from tests.blobit.garbage.grounds import BUCKET, HOUR_MS, grounds

ELSEWHERE = BucketSettings(tablespace="elsewhere")


@pytest.mark.parametrize("error", [MetadataUnavailable, DiskFull])
async def test_a_tablespace_that_refuses_writes_stops_no_collection_of_other_buckets(
    error: type[MetadataUnavailable | DiskFull], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(tmp_path, grace_ms=0, orphan_ms=0) as ground:
        await ground.blobs.create_bucket("goats", ELSEWHERE)
        await ground.sealed({"heidi": b"meh"}, "goats")
        await ground.sealed({"elsa": b"moo"})
        await ground.bucket.delete("elsa")
        find = ground.blobs.committer

        async def away(tablespace: str, *, create: bool = False) -> Committer:
            if tablespace == "elsewhere":
                raise error("it takes nothing now: try again later")
            return await find(tablespace, create=create)

        with monkeypatch.context() as patched:
            patched.setattr(ground.blobs, "committer", away)
            report = await ground.blobs.collect()
            assert report.unreachable_buckets == ["goats"] and report.orphan_ledgers == 0
            assert report.total("deleted_ledgers") == 1
            with pytest.raises(error):
                await ground.blobs.collect("goats")
        assert (await ground.blobs.collect()).unreachable_buckets == []
        assert await (await ground.blobs.bucket("goats")).get("heidi") == b"meh"


async def test_a_deleted_bucket_takes_the_tablespace_of_its_own_along(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        goats = await ground.blobs.create_bucket("goats", ELSEWHERE)
        await goats.put("heidi", b"meh")
        await ground.blobs.delete_bucket("goats", force=True)
        assert (await ground.blobs.collect()).cleaned_buckets == ["goats"]
        assert await ground.rows("deleted_buckets") == []
        assert await ground.ledgers_there() == []


async def test_a_ledger_in_use_is_not_looked_at_before_its_writer_closed_it(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path, grace_ms=0, settle_ms=0) as ground:
        await ground.bucket.put("elsa", b"moo")
        await ground.bucket.delete("elsa")
        ground.clock.pass_ms(HOUR_MS)
        report = await ground.collect()
        assert (report.ledgers, report.dead_ledgers, report.sealed_ledgers) == (1, 0, 0)
        ground.clock.pass_ms(HOUR_MS)
        report = await ground.collect()
        assert (report.dead_ledgers, report.sealed_ledgers, report.deleted_ledgers) == (1, 1, 1)


async def test_a_bucket_whose_deletion_was_cut_short_is_collected_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut_short(registry: Registry, info: BucketInfo) -> None:
        raise MetadataUnavailable("the process that deletes it is gone")

    async with grounds(tmp_path, grace_ms=0, settle_ms=0) as ground:
        await ground.sealed({"elsa": b"moo"})
        await ground.bucket.delete("elsa")
        with monkeypatch.context() as patched:
            patched.setattr(Registry, "_close", cut_short)
            with pytest.raises(MetadataUnavailable):
                await ground.blobs.delete_bucket(BUCKET)
        report = await ground.blobs.collect()
        assert report.total("deleted_ledgers") == 1
        assert await ground.rows("dying") == [] and await ground.ledgers_there() == []
        assert (await ground.collect()).ledgers == 0
        # It goes on as if nobody had wanted to delete it.
        await (await ground.blobs.bucket(BUCKET)).put("berta", b"moo")
