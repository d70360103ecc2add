"""Transactions that are cut short leave nothing behind for those who come next."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from blobit.errors import NoSuchObject
from tests.blobit.contract.objects_contract import body
from tests.blobit.contract.stores import clustered, embedded
from tests.engine.metadata.late_store import LateStore, cancelled_at


@pytest.mark.parametrize("opening", [embedded, clustered])
async def test_whoever_is_cancelled_at_whatever_moment_stops_nobody_else(
    tmp_path: Path, opening: type
) -> None:
    async with opening(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        await bucket.put("cow", body(30))
        rows = bucket.core.rows
        key = bucket.core.object_key("cow")

        async def cut_short() -> None:
            async with rows.transaction() as transaction:
                found = await transaction.lock([key])
                await transaction.write({key: found[key]})
                await transaction.commit()

        async def refused() -> None:
            async with rows.transaction() as transaction:
                home = ("open_buckets", (bucket.bucket_id,))
                await transaction.lock([home])
                await transaction.write({home: None})

        for turns in range(80):
            working = asyncio.ensure_future((refused if turns % 2 else cut_short)())
            for _ in range(turns // 2):
                await asyncio.sleep(0)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await bucket.put("cow", body(30, turns))
        assert await bucket.get("cow") == body(30, 79)


@pytest.mark.parametrize("size", [30, 150], ids=["beside others", "in parts"])
async def test_a_put_cancelled_at_any_await_happens_completely_or_not_at_all(
    tmp_path: Path, size: int
) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        late_stores = []
        for client in (store.blobs.client, store.herd.client):
            deadlines = client.store
            late = deadlines._store = LateStore(deadlines._store)  # type: ignore[attr-defined]
            late_stores.append(late)
        place, cut = 0, True
        while cut:
            place += 1
            cut = await cancelled_at(place, bucket.put(f"cut {place}", body(size, place)))
            await bucket.put(f"next {place}", body(30, place))
            if place % 2:
                for late in late_stores:
                    await late.land()
        assert place > 2, "nothing was cancelled"
        async with store.another() as again:
            found = await again.bucket("photos")
            assert await found.get(f"cut {place}") == body(size, place)
            for number in range(1, place):
                assert await found.get(f"next {number}") == body(30, number)
                with suppress(NoSuchObject):
                    assert await found.get(f"cut {number}") == body(size, number)
