"""What buckets promise of single objects, however their names are reached."""

import abc
import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from blobit import (
    AsyncBucket,
    BlobNotStored,
    BlobsClosed,
    ConditionFailed,
    GarbageSettings,
    InvalidName,
    InvalidObjectId,
    NoSuchObject,
    NoSuchUpload,
    ObjectExists,
    ObjectId,
    RangeInvalid,
)
from tests.blobit.contract.stores import SMALL, Store


def body(length: int, seed: int = 0) -> bytes:
    return random.Random(length * 1_000 + seed).randbytes(length)


async def pieces_of(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def owners_of(bucket: AsyncBucket) -> list[str]:
    """Who holds ranges of ledgers."""
    return sorted({row["owner"] async for row in bucket.core.rows.scan("refs")})


async def refs_count(bucket: AsyncBucket) -> int:
    return len([row async for row in bucket.core.rows.scan("refs")])


class Suite(abc.ABC):
    """A suite over one way."""

    @staticmethod
    @abc.abstractmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        """A store without buckets."""

    @asynccontextmanager
    async def bucket(self, path: Path) -> AsyncIterator[AsyncBucket]:
        """A bucket in a store of its own."""
        async with self.open(path) as store:
            yield await store.blobs.create_bucket("photos")


class ObjectsContract(Suite):
    """Put, get, stat, delete, conditions, rename and copy."""

    async def test_what_was_put_is_there_whole_with_its_properties(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            for length in (0, 1, 10, 50, 51, 199, 200, 201, 1_000):
                data = body(length)
                info = await bucket.put(
                    f"cows/{length}", data, content_type="text/x", metadata={"herd": "Ä"}
                )
                assert (info.length, info.content_type) == (length, "text/x")
                assert info.metadata == {"herd": "Ä"} and info.expires_ms is None
                assert info.object_id.checksum == google_crc32c.value(data)
                assert await bucket.stat(f"cows/{length}") == info
                assert await bucket.get(f"cows/{length}") == data
                assert b"".join([p async for p in bucket.stream(f"cows/{length}")]) == data

    async def test_ranges_are_read_and_wrong_ones_refused(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            data = body(333)
            await bucket.put("cow", data)
            for offset, length in ((0, 0), (0, 333), (7, 100), (199, 2), (332, 1), (333, 0)):
                assert await bucket.get_range("cow", offset, length) == data[offset:][:length]
                pieces = [p async for p in bucket.stream("cow", offset, length)]
                assert b"".join(pieces) == data[offset:][:length]
            for offset, length in ((-1, 2), (0, 334), (334, 0), (5, -1)):
                with pytest.raises(RangeInvalid):
                    await bucket.get_range("cow", offset, length)
            with pytest.raises(RangeInvalid):
                await anext(bucket.stream("cow", 334))

    async def test_a_stream_of_unknown_length_is_visible_when_it_is_complete(
        self, tmp_path: Path
    ) -> None:
        async with self.bucket(tmp_path) as bucket:
            data = body(777)
            seen: list[bool] = []

            async def source() -> AsyncIterator[bytes]:
                async for piece in pieces_of(data, 50):
                    seen.append(await bucket.exists("cow"))
                    yield piece

            await bucket.put("cow", source())
            assert not any(seen) and await bucket.get("cow") == data
            upload = bucket.upload("other", content_type="x/y")
            await upload.write(data)
            assert not await bucket.exists("other")
            assert (await upload.finish()).content_type == "x/y"
            assert await bucket.get("other") == data

    async def test_what_a_slow_stream_has_stored_is_held_until_it_has_its_name(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            eager = GarbageSettings(grace_ms=0, settle_ms=0, orphan_ms=0)
            async with store.another(replace(SMALL, garbage=eager)) as collector:
                bucket = await store.blobs.create_bucket("photos")
                upload = bucket.upload("cow")
                whole = b""
                for number in range(5):
                    await upload.write(body(300, number))
                    whole += body(300, number)
                    # As if hours had passed: whatever nobody names goes, bytes and all.
                    await collector.collect()
                held = await owners_of(bucket)
                assert held and all(owner.startswith("m:") for owner in held)
                assert await bucket.uploads() == []
                with pytest.raises(NoSuchUpload):
                    await bucket.abort_upload(held[0][2:])
                await upload.finish()
                await collector.collect()
                assert await bucket.get("cow") == whole
                assert await owners_of(bucket) == ["n:cow"]
                assert [row async for row in bucket.core.rows.scan("uploads")] == []
                assert [row async for row in bucket.core.rows.scan("upload_parts")] == []

    async def test_a_source_that_breaks_leaves_nothing(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:

            async def source() -> AsyncIterator[bytes]:
                yield body(900)
                raise OSError("cut short")

            with pytest.raises(OSError, match="cut short"):
                await bucket.put("cow", source())
            upload = bucket.upload("cow")
            await upload.write(body(900))
            assert await refs_count(bucket) > 1
            await upload.abort()
            with pytest.raises(BlobsClosed):
                await upload.finish()
            assert not await bucket.exists("cow")
            assert await refs_count(bucket) == 0

    async def test_overwriting_frees_what_was_there(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            first = await bucket.put("cow", body(1_000))
            held = await refs_count(bucket)
            assert held > 2
            second = await bucket.put("cow", body(20))
            assert first.etag != second.etag
            assert await refs_count(bucket) == 1
            await bucket.put("cow", b"")
            assert await refs_count(bucket) == 0
            assert await bucket.get("cow") == b""

    async def test_deleting_says_whether_there_was_one_and_leaves_nothing(
        self, tmp_path: Path
    ) -> None:
        async with self.bucket(tmp_path) as bucket:
            for data in (b"", b"moo", body(900)):
                await bucket.put("cow", data)
                assert await bucket.delete("cow")
                assert not await bucket.delete("cow")
                assert await refs_count(bucket) == 0
                for look in (bucket.get("cow"), bucket.stat("cow"), bucket.get_range("cow", 0, 0)):
                    with pytest.raises(NoSuchObject):
                        await look

    async def test_many_are_put_and_deleted_together(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            given = [(f"cow {number}", body(number)) for number in range(120)]
            infos = await bucket.put_many(given)
            assert [info.name for info in infos] == [name for name, _ in given]
            for name, data in given[::17]:
                assert await bucket.get(name) == data
            assert await bucket.delete_many([name for name, _ in given] + ["none"]) == 120
            assert await refs_count(bucket) == 0

    async def test_if_absent_lets_one_of_many_win(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            puts = [bucket.put("cow", body(9, n), if_absent=True) for n in range(10)]
            answers = await asyncio.gather(*puts, return_exceptions=True)
            lost = [answer for answer in answers if isinstance(answer, ObjectExists)]
            assert len(lost) == 9
            (won,) = [answer for answer in answers if not isinstance(answer, BaseException)]
            assert (await bucket.stat("cow")).etag == won.etag
            assert await refs_count(bucket) == 1

    async def test_if_match_replaces_only_the_version_it_names(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            with pytest.raises(ConditionFailed):
                await bucket.put("cow", b"0", if_match="nothing")
            first = await bucket.put("cow", b"1")
            second = await bucket.put("cow", b"2", if_match=first.etag)
            with pytest.raises(ConditionFailed):
                await bucket.put("cow", b"3", if_match=first.etag)
            with pytest.raises(ConditionFailed):
                await bucket.delete("cow", if_match=first.etag)
            assert await bucket.get("cow") == b"2"
            puts = [bucket.put("cow", b"%d" % n, if_match=second.etag) for n in range(5)]
            answers = await asyncio.gather(*puts, return_exceptions=True)
            assert sum(isinstance(answer, ConditionFailed) for answer in answers) == 4
            assert await bucket.delete("cow", if_match=(await bucket.stat("cow")).etag)

    async def test_a_rename_keeps_bytes_and_etag_and_frees_the_target(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            info = await bucket.put("old", body(700), metadata={"a": "b"})
            await bucket.put("new", body(600))
            with pytest.raises(ObjectExists):
                await bucket.rename("old", "new", if_absent=True)
            moved = await bucket.rename("old", "new")
            assert (moved.name, moved.etag, moved.metadata) == ("new", info.etag, {"a": "b"})
            assert await bucket.get("new") == body(700)
            assert await owners_of(bucket) == ["n:new"]
            assert (await bucket.rename("new", "new")).etag == info.etag
            with pytest.raises(NoSuchObject):
                await bucket.rename("old", "newer")

    async def test_a_copy_shares_bytes_until_both_are_gone(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            for data in (b"", body(40), body(700)):
                info = await bucket.put("one", data, content_type="x", metadata={"a": "b"})
                made = await bucket.copy("one", "two")
                assert (made.content_type, made.metadata) == ("x", {"a": "b"})
                assert made.etag != info.etag and made.packed_id == info.packed_id
                await bucket.delete("one")
                assert await bucket.get("two") == data
                again = await bucket.copy("two", "two")
                assert again.etag != made.etag and await bucket.get("two") == data
                await bucket.delete("two")
                assert await refs_count(bucket) == 0
            with pytest.raises(NoSuchObject):
                await bucket.copy("one", "two")

    async def test_an_object_whose_time_is_over_is_not_there(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            await bucket.put("cow", b"moo", expires_ms=1)
            assert not await bucket.exists("cow")
            assert (await bucket.list()).objects == []
            assert not await bucket.delete("cow")
            await bucket.put("cow", b"moo", expires_ms=1)
            later = bucket.core.now_ms + 3_600_000
            info = await bucket.put("cow", b"muh", if_absent=True, expires_ms=later)
            assert (await bucket.stat("cow")).expires_ms == info.expires_ms == later
            assert await bucket.get("cow") == b"muh"
            assert await refs_count(bucket) == 1

    async def test_unnamed_objects_stay_until_they_are_deleted(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            ids: list[ObjectId] = [
                await bucket.put_unnamed(body(length)) for length in (0, 30, 1_000)
            ]
            for object_id, length in zip(ids, (0, 30, 1_000), strict=True):
                assert await bucket.core.blobs.get(object_id) == body(length)
            assert [await bucket.delete_unnamed(object_id) for object_id in ids] == [
                False,
                True,
                True,
            ]
            assert not await bucket.delete_unnamed(str(ids[1]))
            assert await refs_count(bucket) == 0
            with pytest.raises(InvalidObjectId):
                await bucket.delete_unnamed("tampered")

    async def test_names_that_no_object_can_have_are_refused(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            bad: Sequence[str] = ("", "a\x00b", "x" * 1_025, "ä" * 513, "\ud800")
            for name in bad:
                for call in (
                    bucket.put(name, b""),
                    bucket.get(name),
                    bucket.delete(name),
                    bucket.rename("a", name),
                    bucket.concat("a", [name]),
                ):
                    with pytest.raises(InvalidName):
                        await call
            with pytest.raises(InvalidName):
                await bucket.put("a", b"", metadata={"a": "x" * 70_000})
            with pytest.raises(InvalidName):
                await bucket.put("a", b"", content_type="x" * 300)
            good = ("/", "a/../b", "x" * 1_024, "ä" * 512, "\U0010ffff", " \n", "a'b\"c")
            for name in good:
                await bucket.put(name, name.encode())
                assert await bucket.get(name) == name.encode()
            names = [info.name async for info in bucket.scan()]
            assert names == sorted(good, key=str.encode)

    async def test_what_is_no_source_of_bytes_is_refused(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            with pytest.raises(TypeError):
                await bucket.put("cow", "text")  # type: ignore[arg-type]
            assert not await bucket.exists("cow")

    async def test_bookies_beyond_the_quorum_lost_leave_the_old_object(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("photos")
            await bucket.put("cow", body(40))
            for bookie in store.cluster.bookies[:2]:
                bookie.down = True
            with pytest.raises(BlobNotStored):
                await bucket.put("cow", body(30))
            with pytest.raises(BlobNotStored):
                await bucket.append("cow", body(100))
            assert await bucket.get("cow") == body(40)
            assert (await bucket.stat("cow")).length == 40
