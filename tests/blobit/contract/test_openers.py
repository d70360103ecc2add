"""One folder, two openers: the second reaches names through the first, and takes over from it."""

import asyncio
from pathlib import Path

import pytest

from blobit import BucketExists, BucketSettings, ConditionFailed, Kind
from tests.blobit.contract.objects_contract import body, owners_of
from tests.blobit.contract.stores import embedded
from tests.herd.wire.wiring import other_opener


async def test_two_openers_of_a_folder_have_the_same_buckets(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        one = await store.blobs.create_bucket("photos")
        async with (
            other_opener(store.herd, tmp_path) as other_herd,
            store.another(names=other_herd) as other,
        ):
            two = await other.bucket("photos")
            assert two.bucket_id == one.bucket_id
            assert two.core.rows.tablespace == one.core.rows.tablespace
            with pytest.raises(BucketExists):
                await other.create_bucket("photos")
            info = await one.put("cow", body(300))
            assert await two.get("cow") == body(300)
            await two.put("cow", body(20), if_match=info.etag)
            with pytest.raises(ConditionFailed):
                await one.put("cow", body(30), if_match=info.etag)
            buckets = (one, two)
            appends = [buckets[n % 2].append("log", b"<%d>" % n) for n in range(6)]
            puts = [buckets[n % 2].put("cow", body(40, n)) for n in range(20)]
            infos = await asyncio.gather(*puts, *appends)
            last = await one.stat("cow")
            assert last.etag in {info.etag for info in infos[:20]}
            assert sorted((await two.get("log")).decode()[1:-1].split("><")) == list("012345")
            assert await owners_of(two) == ["n:cow", "n:log"]
            await other.create_bucket("mine")
            assert [i.name for i in await store.blobs.buckets()] == ["mine", "photos"]


async def test_a_compressed_bucket_does_all_that_others_do(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        settings = BucketSettings(compression="zstd")
        bucket = await store.blobs.create_bucket("texts", settings)
        text = b"moo " * 400
        info = await bucket.put("cow", text)
        parts = await store.blobs.parts_of(info.object_id)
        assert {part.kind for part in parts} == {Kind.ZSTD}
        await bucket.append("cow", text)
        await bucket.copy("cow", "calf")
        await bucket.concat("herd", ["cow", "calf"], keep=True)
        assert await bucket.get("herd") == text * 4
        assert await bucket.get_range("herd", 1_590, 20) == (text * 2)[1_590:1_610]
        assert b"".join([piece async for piece in bucket.stream("herd", 7)]) == (text * 4)[7:]
        upload = await bucket.create_upload("parts")
        for number in (2, 1):
            await bucket.put_part(upload, number, text)
        await bucket.complete_upload(upload)
        assert await bucket.get("parts") == text * 2


@pytest.mark.parametrize("puts_before", [0, 1], ids=["a look", "a put"])
async def test_who_takes_over_from_the_owner_that_closed_puts_deletes_and_makes_buckets(
    tmp_path: Path, puts_before: int
) -> None:
    async with embedded(tmp_path) as store:
        one = await store.blobs.create_bucket("photos")
        await one.put("cow", body(300))
        async with (
            other_opener(store.herd, tmp_path) as other_herd,
            store.another(names=other_herd) as other,
        ):
            two = await other.bucket("photos")
            for number in range(puts_before):
                await two.put(f"before {number}", body(30))
            assert await two.get("cow") == body(300)
            await store.blobs.close()
            await store.herd.close()
            await two.put("calf", body(20))
            await two.append("log", body(20))
            await two.delete("cow")
            assert [info.name async for info in two.scan("c")] == ["calf"]
            mine = await other.create_bucket("mine")
            await asyncio.gather(*(mine.put(f"{number}", body(40)) for number in range(5)))
            # As quick as where they ran from the first.
            assert two.core.rows.at_once([]) is not None
            assert mine.core.rows.at_once([]) is not None
