"""What went wrong in the system that came before, one test for each defect that is known of it.

1 to 11 are the database's. Where the contract has the test already, its name stands here.

12  settings without effect            buckets: what_is_no_setting_is_refused
13  overwriting never frees            objects: overwriting_frees_what_was_there
15  appends prepend, empty ones linger parts: appending_to_a_new_name_then_putting_replaces_it
16  offsets over unequal parts         parts: parts_of_unequal_size_are_read_from_any_offset
17  buckets share names                listing: listings_of_buckets_do_not_meet
18  collection by two clocks           tests/blobit/garbage
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blobit import BlobNotFound, BucketSettings, Kind, NoSuchObject, ObjectId
from blobit.bucket_core import Known, owner_of
from blobit.tables import LedgerKind
from tests.blobit.contract.objects_contract import body, owners_of, refs_count
from tests.blobit.contract.stores import embedded

GIB = 2**30


async def test_12_every_setting_reaches_the_ledgers_that_are_made(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        settings = BucketSettings(ensemble=2, write_quorum=2, ack_quorum=2)
        bucket = await store.blobs.create_bucket("photos", settings)
        info = await bucket.put("cow", body(40))
        metadata = await store.blobs.client.ledger_metadata(info.object_id.ledger_id)
        assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (2, 2, 2)
        assert metadata.custom["bucket"] == str(bucket.bucket_id).encode()


async def test_13_what_was_overwritten_is_held_by_nobody(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        old = await bucket.put("cow", body(700))
        await bucket.put("cow", body(30))
        new = (await bucket.stat("cow")).object_id
        held = {row["ledger_id"] async for row in bucket.core.rows.scan("refs")}
        assert held == {new.ledger_id}
        assert old.object_id.kind is Kind.LIST


async def test_14_an_object_of_a_hundred_gibibytes_is_read_behind_every_limit_of_32_bits(
    tmp_path: Path,
) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        core = bucket.core
        real = (await bucket.put("cow", body(50))).object_id
        gap = ObjectId(Kind.DATA, 10**9, 0, 2**20, 3 * GIB, 3 * GIB, 7)
        parts = [gap if number % 2 else real for number in range(67)]
        whole = await core.list_of(parts, core.pool(LedgerKind.NAMED), Known())
        assert whole.length == 33 * 3 * GIB + 34 * 50 > 2**36
        name = str(whole)
        last = whole.length - 50
        assert await store.blobs.get_range(name, last, 50) == body(50)
        for index in (1, 5, 33):
            offset = index * (3 * GIB + 50)
            assert await store.blobs.get_range(name, offset, 50) == body(50)
            rest = store.blobs.stream(name, offset + 7, 43)
            assert b"".join([piece async for piece in rest]) == body(50)[7:]
        with pytest.raises(BlobNotFound):
            await store.blobs.get_range(name, 2 * GIB, 100)


async def test_15_an_empty_object_is_an_object_like_any_other(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")

        async def nothing() -> AsyncIterator[bytes]:
            for piece in tuple[bytes, ...]():
                yield piece

        await bucket.put("stream", nothing())
        await bucket.append("appended", b"")
        await bucket.put("cow", b"")
        await bucket.put("cow", b"muh")
        assert await bucket.get("cow") == b"muh"
        for name in ("stream", "appended"):
            assert await bucket.get(name) == b""
            assert await bucket.delete(name)
            with pytest.raises(NoSuchObject):
                await bucket.get(name)


async def test_16_an_object_of_many_parts_goes_in_one_transaction(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        for number in range(5):
            await bucket.append("cow", body(30, number))
        assert await refs_count(bucket) == 6
        space = await store.herd.tablespace("blobs")
        commands: list[object] = []
        forget = space.watch(lambda position, command: commands.append(command))
        assert await bucket.delete("cow")
        forget()
        assert len(commands) == 1
        assert await refs_count(bucket) == 0


async def test_17_rows_of_two_buckets_in_a_tablespace_name_their_bucket(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        one = await store.blobs.create_bucket("one")
        two = await store.blobs.create_bucket("two")
        assert one.core.rows is two.core.rows
        await asyncio.gather(one.put("cow", body(30)), two.put("cow", body(40)))
        assert await owners_of(one) == [owner_of("cow")]
        ledgers = {
            row["ledger_id"]: row["bucket_id"] async for row in one.core.rows.scan("ledgers")
        }
        for bucket in (one, two):
            ledger_id = (await bucket.stat("cow")).object_id.ledger_id
            assert ledgers[ledger_id] == bucket.bucket_id
        await store.blobs.delete_bucket("one", force=True)
        assert await two.get("cow") == body(40)
