"""Deleting a bucket by force: programs that still have it open can put nothing more into it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from blobit import AsyncBlobs, AsyncBucket, NoSuchBucket, ObjectId, bucket_removal
from blobit.errors import CommitOutcomeUnknown, MetadataUnavailable
from blobit.garbage_scope import BucketScope
from blobit.holding import Holding
from blobit.quotas import set_quota
from blobit.staging.naming import give_up, given_up, name_all, upload_id_of
from blobit.staging.storing import Staged, Stager, Unstored
from blobit.tables import LedgerKind, Row
from herd.staging.layout import Job
from tests.blobit.contract.objects_contract import Suite

NAME = "photos"
JOB = Job("one of today")
Change = Callable[[AsyncBucket, Any], Awaitable[object]]
"""Changes through an open bucket, with uploads that began while the bucket existed."""


async def _upload(bucket: AsyncBucket) -> str:
    upload_id = await bucket.create_upload("whole")
    await bucket.put_part(upload_id, 1, b"begun")
    return upload_id


async def _staged(bucket: AsyncBucket) -> Staged:
    stager = Stager(bucket.core, upload_id_of(JOB, "run", 1), given_up(bucket.core, JOB, "run"))
    await stager.put([Unstored("staged", b"by a task")])
    return await stager.end()


async def _part(bucket: AsyncBucket) -> ObjectId:
    core = bucket.core
    return await core.blobs.store(core.pool(LedgerKind.NAMED), b"a part of a stream")


async def _nothing(_: AsyncBucket) -> None:
    return None


CHANGES: dict[str, tuple[Callable[[AsyncBucket], Awaitable[Any]], Change]] = {
    "put": (_nothing, lambda bucket, _: bucket.put("after", b"new")),
    "put in place of another": (_nothing, lambda bucket, _: bucket.put("old", b"of one size")),
    "put what is large": (_nothing, lambda bucket, _: bucket.put("after", b"large" * 100)),
    "put where there is none": (
        _nothing,
        lambda bucket, _: bucket.put("after", b"new", if_absent=True),
    ),
    "put without a name": (_nothing, lambda bucket, _: bucket.put_unnamed(b"new")),
    "append": (_nothing, lambda bucket, _: bucket.append("old", b"more")),
    "concat": (_nothing, lambda bucket, _: bucket.concat("all", ["old"], keep=True)),
    "rename": (_nothing, lambda bucket, _: bucket.rename("old", "other")),
    "copy": (_nothing, lambda bucket, _: bucket.copy("old", "other")),
    "delete": (_nothing, lambda bucket, _: bucket.delete("old")),
    "begin an upload": (_nothing, lambda bucket, _: bucket.create_upload("whole")),
    "put a part": (_upload, lambda bucket, begun: bucket.put_part(begun, 2, b"more")),
    "complete an upload": (_upload, lambda bucket, begun: bucket.complete_upload(begun)),
    "abort an upload": (_upload, lambda bucket, begun: bucket.abort_upload(begun)),
    "hold a part of a stream": (_part, lambda bucket, part: Holding(bucket.core).part_ended(part)),
    "name what a job has staged": (
        _staged,
        lambda bucket, staged: name_all(bucket.core, JOB, [staged], keyed=True),
    ),
    "give a job up": (_nothing, lambda bucket, _: give_up(bucket.core, JOB, "run")),
    "set a quota": (_nothing, lambda bucket, _: set_quota(bucket.core, 9, 9, recount=False)),
}


class DeletionContract(Suite):
    """Deletions by force while the bucket is open elsewhere."""

    async def test_nothing_is_put_into_a_bucket_after_its_deletion_has_returned(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket(NAME)
            await bucket.put("old", b"of one size")
            begun: dict[str, tuple[AsyncBlobs, AsyncBucket, Any]] = {}
            for name, (begin, _) in CHANGES.items():
                other = store.another()
                opened = await other.bucket(NAME)
                begun[name] = other, opened, await begin(opened)
            await store.blobs.delete_bucket(NAME, force=True)
            anew = await store.blobs.create_bucket(NAME)
            for name, (other, opened, prepared) in begun.items():
                with pytest.raises(NoSuchBucket):
                    await CHANGES[name][1](opened, prepared)
                with pytest.raises(NoSuchBucket):
                    await opened.get("old")
                assert [info.name async for info in anew.scan()] == [], name
                assert await anew.uploads() == [], name
                await other.close()
            await store.blobs.collect()
            await anew.put("new", b"moo")
            assert await anew.get("new") == b"moo"

    async def test_puts_beside_a_deletion_are_acknowledged_before_it_returns_or_never(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            await store.blobs.create_bucket(NAME)
            over, begun = False, asyncio.Event()

            async def put_on(blobs: AsyncBlobs, number: int) -> int:
                opened, count = await blobs.bucket(NAME), 0
                while True:
                    late = over
                    try:
                        await opened.put(f"{number}.{count}", b"moo")
                    except NoSuchBucket:
                        return count
                    assert not late, "acknowledged though it began after the deletion"
                    count += 1
                    if count == 3:
                        begun.set()

            async with store.another() as one, store.another() as two:
                tasks = [
                    asyncio.ensure_future(put_on(blobs, number))
                    for number, blobs in enumerate((one, two, one, two))
                ]
                await begun.wait()
                await store.blobs.delete_bucket(NAME, force=True)
                over = True
                assert min(await asyncio.gather(*tasks)) > 0

    async def test_a_deleted_bucket_takes_nothing_while_it_is_collected(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store, store.another() as other:
            await (await store.blobs.create_bucket(NAME)).put("old", b"moo")
            opened = await other.bucket(NAME)
            await store.blobs.delete_bucket(NAME, force=True)
            refused = 0

            async def put_on(collecting: "asyncio.Future[object]") -> None:
                nonlocal refused
                while not collecting.done():
                    # As one that has not heard yet.
                    opened.core.deleted = False
                    with pytest.raises(NoSuchBucket):
                        await opened.put("after", b"moo")
                    refused += 1
                    await asyncio.sleep(0)

            await put_on(asyncio.ensure_future(store.blobs.collect()))
            assert refused > 1

    async def test_garbage_collection_completes_an_interrupted_deletion(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.open(tmp_path) as store, store.another() as other:
            await (await store.blobs.create_bucket(NAME)).put("old", b"moo")
            opened = await other.bucket(NAME)

            async def cut_short(*_: object) -> None:
                raise MetadataUnavailable("the process has ended")

            monkeypatch.setattr("blobit.registry.shut_bucket", cut_short)
            with pytest.raises(CommitOutcomeUnknown, match="until it is collected"):
                await store.blobs.delete_bucket(NAME, force=True)
            monkeypatch.undo()
            with pytest.raises(NoSuchBucket):
                await store.blobs.bucket(NAME)
            removed = bucket_removal._remove_rows

            async def while_somebody_puts(scope: BucketScope, ledgers: Sequence[Row]) -> None:
                with pytest.raises(NoSuchBucket):
                    await opened.put("after", b"moo")
                await removed(scope, ledgers)

            monkeypatch.setattr(bucket_removal, "_remove_rows", while_somebody_puts)
            report = await store.blobs.collect()
            assert report.cleaned_buckets or report.buckets
            with pytest.raises(NoSuchBucket):
                await opened.put("after", b"moo")
