"""A thousand buckets in one folder, with as few files open as any process may have."""

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

import herdbook
from blobit import AsyncBlobs, AsyncBucket

BUCKETS = 1_000
FILES = 1_024
_AT_ONCE = 50


@pytest.fixture
def few_files() -> Iterator[None]:
    """The limit that processes have where nobody raised it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def fill(blobs: AsyncBlobs, number: int) -> AsyncBucket:
    bucket = await blobs.create_bucket(f"bucket-{number:04}")
    await bucket.put("cow", b"%d" % number)
    return bucket


async def test_a_thousand_buckets_work_with_1024_files(tmp_path: Path, few_files: None) -> None:
    async with herdbook.open_async(tmp_path) as book:
        blobs = book.blobs
        buckets: list[AsyncBucket] = []
        for start in range(0, BUCKETS, _AT_ONCE):
            made = (fill(blobs, number) for number in range(start, start + _AT_ONCE))
            buckets += await asyncio.gather(*made)
        assert len(await blobs.buckets()) == BUCKETS
        assert len({bucket.bucket_id for bucket in buckets}) == BUCKETS
        for number in range(0, BUCKETS, 37):
            assert await buckets[number].get("cow") == b"%d" % number
            await buckets[number].append("cow", b"!")
            assert (await buckets[number].stat("cow")).length == len(f"{number}!")
