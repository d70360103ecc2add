"""What a bucket may hold: counted exactly, kept to by all who put, changed while they do."""

import asyncio
import random
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from blobit import AsyncBucket, BucketUse, NoSuchBucket, QuotaExceeded, SettingsInvalid
from blobit.counting import SHARES, all_keys
from blobit.rows import Rows
from blobit.tables import Row, RowKey
from herd.errors import AccessDenied
from tests.blobit.contract.stores import SMALL, Store


async def _counts(bucket: AsyncBucket) -> list[Row]:
    return await bucket.core.rows.counts(bucket.bucket_id)


async def _scanned(bucket: AsyncBucket) -> tuple[int, int]:
    infos = [info async for info in bucket.scan()]
    return len(infos), sum(info.length for info in infos)


class _Written:
    """A store's ledgers, to see whether bytes are sent for what is refused."""

    def __init__(self, bucket: AsyncBucket, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        blobs: Any = bucket.core.blobs
        for name in ("store", "store_shared"):
            monkeypatch.setattr(blobs, name, self._counting(getattr(blobs, name)))

    def _counting(self, real: Any) -> Any:
        def called(*args: Any) -> Any:
            self.calls += 1
            return real(*args)

        return called


class QuotasContract:
    """Run over each store."""

    @staticmethod
    @abstractmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        """A store in a new folder."""

    async def test_a_bucket_that_holds_a_little_more_than_its_new_quota_stays_usable(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("cows")
            for number in range(10):
                await bucket.put(f"cow {number}", b"m")
            await store.blobs.set_quota("cows", quota_objects=9, quota_bytes=9)
            with pytest.raises(QuotaExceeded):
                await bucket.put("one more", b"m")
            await bucket.delete("cow 0")
            await store.blobs.set_quota("cows", quota_objects=0, quota_bytes=0)
            await bucket.put("one more", b"m")

    async def test_a_put_over_the_quota_is_refused_before_a_byte_of_it_is_sent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("full")
            await bucket.put("a", b"x" * 60)
            told = await store.blobs.set_quota("full", quota_bytes=100)
            assert told == BucketUse(1, 60, 0, 100)
            written = _Written(bucket, monkeypatch)
            for size in (41, 90, 500):
                with pytest.raises(QuotaExceeded, match="60 of 100 bytes"):
                    await bucket.put("b", b"y" * size)
            with pytest.raises(QuotaExceeded):
                await bucket.check_room("b", 41)
            assert written.calls == 0
            await bucket.put("b", b"y" * 30)
            with pytest.raises(QuotaExceeded, match="90 of 100 bytes"):
                await bucket.put("c", b"y" * 11)
            assert written.calls == 1
            await bucket.put("b", b"y" * 40)
            assert await store.blobs.use("full") == BucketUse(2, 100, 0, 100)

    async def test_what_comes_in_pieces_is_refused_when_it_would_get_its_name(
        self, tmp_path: Path
    ) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"x" * 90
            yield b"y" * 20

        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("full")
            await store.blobs.set_quota("full", quota_bytes=100)
            with pytest.raises(QuotaExceeded, match="0 of 100 bytes"):
                await bucket.put("a", pieces())
            assert not await bucket.exists("a")
            await bucket.append("a", b"z" * 99)
            with pytest.raises(QuotaExceeded):
                await bucket.append("a", b"zz")
            with pytest.raises(QuotaExceeded):
                await bucket.copy("a", "b")
            assert await store.blobs.use("full") == BucketUse(1, 99, 0, 100)

    async def test_overwriting_counts_the_difference_and_deleting_gives_back_at_once(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("full")
            await store.blobs.set_quota("full", quota_bytes=100, quota_objects=2)
            await bucket.put("a", b"x" * 90)
            await bucket.put("a", b"x" * 95)
            with pytest.raises(QuotaExceeded):
                await bucket.put("a", b"x" * 101)
            await bucket.put("b", b"x" * 5)
            with pytest.raises(QuotaExceeded, match="2 of 2 objects"):
                await bucket.put("c", b"")
            await bucket.rename("b", "c")
            assert await bucket.delete("a")
            await bucket.put("d", b"x" * 95)
            assert await store.blobs.use("full") == BucketUse(2, 100, 2, 100)

    async def test_many_who_put_at_once_fill_a_bucket_to_its_quota_and_never_over_it(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store, store.another(SMALL) as second:
            first = await store.blobs.create_bucket("full")
            await store.blobs.set_quota("full", quota_bytes=1_000, quota_objects=70)
            buckets = (first, await second.bucket("full"))
            puts = [buckets[n % 2].put(f"{n}", b"x" * 20) for n in range(80)]
            answers = await asyncio.gather(*puts, return_exceptions=True)
            assert {type(answer) for answer in answers if isinstance(answer, Exception)} == {
                QuotaExceeded
            }
            assert await store.blobs.use("full") == BucketUse(50, 1_000, 70, 1_000)
            assert await _scanned(first) == (50, 1_000)

    async def test_random_operations_leave_the_counts_that_looking_at_each_object_gives(
        self, tmp_path: Path
    ) -> None:
        rng = random.Random(11)
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("model")
            held: dict[str, int] = {}
            quota = 0
            for _ in range(60):
                name, size = f"n{rng.randrange(8)}", rng.randrange(120)
                step = rng.randrange(6)
                if step == 0:
                    quota = rng.choice((0, 100, 300, 600))
                    await store.blobs.set_quota("model", quota_bytes=quota)
                elif step == 1:
                    assert await bucket.delete(name) is (held.pop(name, None) is not None)
                elif step == 2 and held:
                    source = rng.choice(sorted(held))
                    await bucket.rename(source, name)
                    held[name] = held.pop(source)
                else:
                    grown = size + (held.get(name, 0) if step == 3 else 0)
                    more = grown - held.get(name, 0)
                    call = bucket.append if step == 3 else bucket.put
                    if quota and more > 0 and sum(held.values()) + more > quota:
                        with pytest.raises(QuotaExceeded):
                            await call(name, b"x" * size)
                    else:
                        await call(name, b"x" * size)
                        held[name] = grown
                use = await store.blobs.use("model")
                assert (use.objects, use.bytes) == (len(held), sum(held.values()))
            assert await _scanned(bucket) == (len(held), sum(held.values()))

    async def test_shares_add_up_to_the_quota_and_go_with_it(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("full")
            await bucket.put_many([(f"{n}", b"x" * 7) for n in range(40)])
            await store.blobs.set_quota("full", quota_bytes=1_003)
            rows = await _counts(bucket)
            assert len(rows) == SHARES + 1
            assert sum(row["bytes_max"] for row in rows if row["number"]) == 1_003
            await store.blobs.set_quota("full", quota_bytes=100)
            with pytest.raises(QuotaExceeded):
                await bucket.put("more", b"x")
            await bucket.put("0", b"")
            await store.blobs.set_quota("full", quota_bytes=0)
            await bucket.put("more", b"x")
            assert all(row["bytes_max"] is None for row in await _counts(bucket))

    async def test_a_bucket_that_nobody_counted_is_counted_once_while_others_put(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("old")
            await bucket.put_many([(f"{n}", b"x" * 7) for n in range(30)])
            gone: dict[RowKey, Row | None] = dict.fromkeys(all_keys(bucket.bucket_id))
            async with bucket.core.rows.transaction() as transaction:
                await transaction.write(gone)
                await transaction.commit()
            puts = [bucket.put(f"new{n}", b"y" * 3) for n in range(30)]
            deletes = [bucket.delete(f"{n}") for n in range(10)]
            await asyncio.gather(*puts, store.blobs.use("old"), *deletes)
            use = await store.blobs.use("old")
            assert (use.objects, use.bytes) == (50, 20 * 7 + 30 * 3)
            told = await store.blobs.set_quota("old", quota_objects=50, recount=True)
            assert told == BucketUse(50, 20 * 7 + 30 * 3, 50, 0)

    async def test_a_bucket_of_a_version_that_did_not_count_is_read_written_and_counted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def denied(_: Rows) -> None:
            raise AccessDenied("no user makes tables here")

        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("old")
            await bucket.put_many([("a", b"x" * 7), ("b", b"x" * 8)])
            for tablespace in {"blobs", bucket.core.rows.tablespace}:
                session = await store.blobs.herd.session(tablespace)
                await session.execute("DROP TABLE counts")
                await session.close()
            async with store.another() as reading:
                with monkeypatch.context() as patched:
                    patched.setattr(Rows, "_make", denied)
                    assert await (await reading.bucket("old")).get("a") == b"x" * 7
            async with store.another() as newer:
                await (await newer.bucket("old")).put("c", b"x" * 9)
                assert await newer.use("old") == BucketUse(3, 24, 0, 0)

    async def test_a_deleted_bucket_has_no_counts_and_a_quota_is_a_number(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("gone")
            await bucket.put("a", b"x")
            with pytest.raises(SettingsInvalid):
                await store.blobs.set_quota("gone", quota_bytes=-1)
            await store.blobs.delete_bucket("gone", force=True)
            await store.blobs.collect()
            with pytest.raises(NoSuchBucket):
                await store.blobs.set_quota("gone", quota_bytes=1)
            await store.blobs.create_bucket("gone")
            assert await store.blobs.use("gone") == BucketUse(0, 0, 0, 0)
