"""Puts of a bucket that lives in this process take one turn of the loop, or the long way."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import pytest

from blobit import AsyncBucket, ObjectExists
from blobit.at_once import ROWS_MAX, Batch
from blobit.committing import Committer
from blobit.rows import Rows
from blobit.tables import Row, RowKey
from herd.transaction import Transaction
from tests.blobit.contract.objects_contract import owners_of, refs_count
from tests.blobit.contract.stores import embedded


async def put_all(bucket: AsyncBucket, texts: dict[str, bytes]) -> None:
    await asyncio.gather(*[bucket.put(name, data) for name, data in texts.items()])


async def test_puts_and_what_they_replace_need_no_transaction(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        await bucket.put("first", b"makes a ledger, and its row")
        long_ways = 0
        commit = Transaction.commit

        async def counted(self: Transaction) -> None:
            nonlocal long_ways
            long_ways += 1
            await commit(self)

        with patch.object(Transaction, "commit", counted):
            await put_all(bucket, {"a": b"1", "b": b"22", "empty": b""})
            await put_all(bucket, {"a": b"333", "b": b"", "empty": b"4"})
            await bucket.put("later", b"5", expires_ms=2**50)
        # The pool of what expires makes a ledger of its own.
        assert long_ways <= 1
        assert await bucket.get("a") == b"333" and await bucket.get("empty") == b"4"
        assert await owners_of(bucket) == ["n:a", "n:empty", "n:first", "n:later"]
        assert await refs_count(bucket) == 4


async def test_where_a_row_is_locked_a_put_waits_the_long_way(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        await bucket.put("cow", b"1")
        async with bucket.core.rows.transaction() as transaction:
            key = bucket.core.object_key("cow")
            await transaction.lock([key])
            waiting = asyncio.ensure_future(put_all(bucket, {"cow": b"2", "calf": b"3"}))
            for _ in range(50):
                await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
        assert await bucket.get("cow") == b"2" and await bucket.get("calf") == b"3"


async def test_what_was_counted_before_a_put_takes_the_long_way_is_counted_once(
    tmp_path: Path,
) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        await bucket.put("cow", b"1")
        written = Batch.write
        refused: list[object] = []

        def in_the_way(self: Batch, rows: Mapping[RowKey, Row | None]) -> object:
            answered = written(self, rows)
            if answered is None:
                refused.append(rows)
            return answered

        with patch.object(Batch, "write", in_the_way):
            async with bucket.core.rows.transaction() as transaction:
                # A put keeps the row that says that its bucket is open, when it writes.
                await transaction.lock([("open_buckets", (bucket.bucket_id,))])
                waiting = asyncio.ensure_future(put_all(bucket, {"cow": b"22", "calf": b"333"}))
                for _ in range(50):
                    await asyncio.sleep(0)
                assert not waiting.done()
            await waiting
        assert refused, "the short way was decided and not gone"
        use = await store.blobs.use("photos")
        assert (use.objects, use.bytes) == (2, 5)


async def test_what_changes_very_many_rows_takes_the_long_way(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        core = (await store.blobs.create_bucket("photos")).core
        keys: list[RowKey] = [core.object_key(f"{number}") for number in range(ROWS_MAX + 1)]
        assert core.rows.at_once(keys) is None
        batch = core.rows.at_once(keys[:-1])
        assert batch is not None and len(batch.found) == ROWS_MAX
        assert batch.write(dict.fromkeys(keys)) is None
        batch.drop()
        written = core.rows.at_once(keys[:-1])
        assert written is not None
        answered = written.write(dict.fromkeys(keys[:-1]))
        assert answered is not None
        await answered


async def test_a_refused_put_leaves_those_beside_it_alone(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        both = [bucket.put("cow", data, if_absent=True) for data in (b"1", b"2")]
        one, other, calf = await asyncio.gather(
            *both, bucket.put("calf", b"3"), return_exceptions=True
        )
        assert not isinstance(one, BaseException) and isinstance(other, ObjectExists)
        assert not isinstance(calf, BaseException)
        assert await bucket.get("cow") == b"1"
        assert await owners_of(bucket) == ["n:calf", "n:cow"]


@pytest.mark.parametrize("short", [True, False])
async def test_both_ways_leave_the_same_rows(tmp_path: Path, short: bool) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        with patch.object(Rows, "at_once", Rows.at_once if short else lambda *_: None):
            await put_all(bucket, {"a": b"1", "b": b"2", "x" * 60: b"3"})
            await bucket.append("a", b"more")
            await put_all(bucket, {"a": b"over a list", "b": b"over one"})
            await bucket.put("b", b"4", expires_ms=2**50)
            await bucket.rename("x" * 60, "y")
            await bucket.delete("a")
        rows = bucket.core.rows
        objects = [row async for row in rows.scan("objects")]
        assert [(row["name"], row["length"], row["expires_ms"]) for row in objects] == [
            ("b", 1, 2**50),
            ("y", 1, None),
        ]
        assert [row["object_id"] for row in objects] == [
            (await bucket.stat(name)).packed_id for name in ("b", "y")
        ]
        refs = [row async for row in rows.scan("refs")]
        assert sorted((row["owner"], row["part"]) for row in refs) == [("n:b", 0), ("n:y", 0)]
        hints = [row async for row in rows.scan("expiries")]
        assert [(row["name"], row["expires_ms"]) for row in hints] == [("b", 2**50)]


async def test_a_put_whose_ledger_is_collected_meanwhile_writes_its_bytes_again(
    tmp_path: Path,
) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        first = await bucket.put("first", b"1")
        await bucket.delete("first")
        change = Committer.change
        ledgers: list[int] = []

        async def collected(self: Committer, given: object) -> object:
            if not ledgers:
                ledgers.append(first.object_id.ledger_id)
                async with self.rows.transaction() as transaction:
                    await transaction.write({("ledgers", (ledgers[0],)): None})
                    await transaction.commit()
            return await change(self, given)  # type: ignore[arg-type]

        with patch.object(Committer, "change", collected):
            again = await bucket.put("cow", b"2")
        assert again.object_id.ledger_id not in ledgers
        assert await bucket.get("cow") == b"2"
