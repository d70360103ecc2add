"""Bookies that die while an object goes in or out: nobody notices but the clock."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from blobit import AsyncBlobs, BlobUnreadable
from engine import cluster
from engine.limits import MIB

LENGTH = 12 * MIB + 345


@pytest.fixture(scope="module")
def data() -> bytes:
    return random.Random(1).randbytes(LENGTH)


@pytest.mark.parametrize("dying", [0, 1, 2])
async def test_a_download_survives_the_death_of_any_bookie_in_its_middle(
    dying: int, data: bytes, tmp_path: Path
) -> None:
    async with cluster.open(tmp_path, bookies=3) as client, AsyncBlobs(client) as blobs:
        object_id = await blobs.put(data)
        got: list[bytes] = []
        async with aclosing(blobs.stream(object_id)) as stream:
            async for piece in stream:
                got.append(piece)
                if len(got) == 3:
                    await client.stop_bookie(dying)
        assert b"".join(got) == data
        assert await blobs.get_range(object_id, 5 * MIB, 100) == data[5 * MIB : 5 * MIB + 100]


async def test_a_download_from_what_is_left_after_two_deaths_still_comes_whole(
    data: bytes, tmp_path: Path
) -> None:
    async with cluster.open(tmp_path, bookies=3) as client:
        async with AsyncBlobs(client) as blobs:
            object_id = await blobs.put(data)
        async with AsyncBlobs(client) as blobs:
            stream = blobs.stream(object_id)
            got = [await anext(stream)]
            await client.stop_bookie(0)
            got.append(await anext(stream))
            await client.stop_bookie(1)
            got += [piece async for piece in stream]
            assert b"".join(got) == data
            await client.stop_bookie(2)
            with pytest.raises(BlobUnreadable):
                await blobs.get(object_id)


async def test_an_upload_survives_the_death_of_a_bookie_in_its_middle(
    data: bytes, tmp_path: Path
) -> None:
    async with cluster.open(tmp_path, bookies=3) as client, AsyncBlobs(client) as blobs:

        async def pieces() -> AsyncGenerator[bytes, None]:
            for start in range(0, LENGTH, MIB):
                if start == 6 * MIB:
                    await client.stop_bookie(1)
                yield data[start : start + MIB]
                await asyncio.sleep(0)

        object_id = await blobs.put(pieces())
        assert await blobs.get(object_id) == data
