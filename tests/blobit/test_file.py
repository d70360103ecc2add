"""An object as a file: which bytes it asks for, and what it does when they have gone elsewhere."""

import asyncio
import io
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

import herdbook
from blobit import AsyncBlobs, NoSuchObject, ObjectChanged, ObjectId, ObjectInfo
from blobit.file import WINDOW_BYTES_MAX, WINDOW_BYTES_MIN, ObjectFile, ObjectVersion
from engine.ports.system_loop import background_loop


@dataclass
class Shelf:
    """A bucket of one object, whose row a test changes."""

    info: ObjectInfo | None
    bucket_id: int | None = None

    async def stat(self, name: str) -> ObjectInfo:
        if self.info is None:
            raise NoSuchObject(name)
        return self.info


def info_of(object_id: ObjectId, etag: str = "first") -> ObjectInfo:
    return ObjectInfo("elsa", object_id.length, etag, "", 0, None, object_id.to_bytes())


def gone(object_id: ObjectId) -> ObjectId:
    """The same bytes in a ledger that there is not."""
    return msgspec.structs.replace(object_id, ledger_id=object_id.ledger_id + 1_000_000)


@asynccontextmanager
async def stored(path: Path, data: bytes) -> AsyncIterator[tuple[AsyncBlobs, ObjectId]]:
    async with herdbook.open_async(path) as book:
        yield book.blobs, await book.blobs.put(data)


async def test_a_version_that_was_moved_is_read_on_where_it_is_now(tmp_path: Path) -> None:
    async with stored(tmp_path, b"0123456789") as (blobs, object_id):
        version = ObjectVersion(blobs, Shelf(info_of(object_id)), info_of(gone(object_id)))
        assert await version.read(2, 5) == b"23456"
        assert version.info.object_id == object_id
        assert await version.read(0, 10) == b"0123456789"


async def test_a_version_that_was_overwritten_or_deleted_is_told(tmp_path: Path) -> None:
    async with stored(tmp_path, b"0123456789") as (blobs, object_id):
        other = Shelf(info_of(object_id, "second"))
        version = ObjectVersion(blobs, other, info_of(gone(object_id)))
        with pytest.raises(ObjectChanged, match="overwritten"):
            await version.read(0, 10)
        other.info = None
        with pytest.raises(ObjectChanged, match="deleted"):
            await version.read(0, 10)


async def test_a_range_over_many_parts_is_put_together(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(300_000)
    async with herdbook.open_async(tmp_path) as book:
        bucket = await book.blobs.create_bucket("cows")
        for start in range(0, len(data), 30_000):
            await bucket.append("elsa", data[start : start + 30_000])
        version = ObjectVersion(book.blobs, bucket, await bucket.stat("elsa"))
        draw = random.Random(2)
        for _ in range(50):
            low, high = sorted(draw.choices(range(len(data) + 1), k=2))
            if low < high:
                assert await version.read(low, high - low) == data[low:high]


@dataclass
class Counting:
    """A version that says what it was asked for."""

    data: bytes
    asked: list[tuple[int, int]] = field(default_factory=list)

    @property
    def info(self) -> ObjectInfo:
        return ObjectInfo("elsa", len(self.data), "e", "", 0, None, b"")

    async def read(self, offset: int, length: int) -> bytes:
        self.asked.append((offset, length))
        await asyncio.sleep(0)
        return self.data[offset : offset + length]


def counted(size: int) -> tuple[ObjectFile, Counting]:
    version = Counting(random.Random(size).randbytes(size))
    return ObjectFile(background_loop(), version), version  # type: ignore[arg-type]


def test_who_jumps_gets_what_was_asked_for_and_no_more() -> None:
    file, version = counted(10_000_000)
    for place in (9_000_000, 5_000_000, 7_000_000):
        file.seek(place)
        assert file.read(100) == version.data[place : place + 100]
    assert version.asked == [(9_000_000, 100), (5_000_000, 100), (7_000_000, 100)]


def test_who_reads_on_is_read_ahead_for_in_growing_windows() -> None:
    file, version = counted(20_000_000)
    got = b"".join(iter(lambda: file.read(50_000), b""))
    assert got == version.data
    ends = [offset + length for offset, length in version.asked]
    assert [offset for offset, _ in version.asked] == [0, *ends[:-1]]
    lengths = [length for _, length in version.asked]
    assert lengths[1] == WINDOW_BYTES_MIN and max(lengths) == WINDOW_BYTES_MAX
    assert len(lengths) < 12


def test_a_huge_read_asks_for_windows() -> None:
    file, version = counted(20_000_000)
    assert file.readall() == version.data
    assert max(length for _, length in version.asked) <= WINDOW_BYTES_MAX
    file.seek(0)
    into = bytearray(20_000_000)
    assert io.BufferedReader(file).readinto(into) == len(into) and bytes(into) == version.data


def test_a_closed_file_holds_nothing_and_says_so() -> None:
    file, _ = counted(2_000_000)
    file.read(10)
    file.close()
    file.close()
    for call in (file.tell, file.readall, lambda: file.seek(0), lambda: file.read(1)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_place_that_no_file_has_is_refused() -> None:
    file, _ = counted(10)
    with pytest.raises(ValueError, match="before"):
        file.seek(-11, os.SEEK_END)
    with pytest.raises(ValueError, match="whence"):
        file.seek(0, 7)
    assert file.name == "elsa" and file.mode == "rb" and file.tell() == 0
