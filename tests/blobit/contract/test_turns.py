"""Who reads many names lets others run."""

import asyncio
from pathlib import Path

from tests.blobit.contract.stores import embedded

NAMES = 1_000


async def test_a_scan_and_a_count_of_many_names_let_others_run_in_between(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        await bucket.put_many((f"{number:05}", b"") for number in range(NAMES))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        working = asyncio.create_task(other())
        await asyncio.sleep(0)
        for read in (bucket.scan(), bucket.core.rows.scan("objects")):
            turns = 0
            assert len([row async for row in read]) == NAMES
            assert turns >= NAMES // 250
        turns = 0
        assert (await bucket.usage()).objects == NAMES
        assert turns >= NAMES // 250
        working.cancel()
