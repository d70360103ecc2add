"""Transactions that are cut short leave nothing behind for those who come next."""

import asyncio
from pathlib import Path

import pytest

from tests.blobit.contract.objects_contract import body
from tests.blobit.contract.stores import clustered, embedded


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
