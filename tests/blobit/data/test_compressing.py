"""Compressed objects: smaller in their ledgers, the same when they are read, whole or in part."""

import io
import random

import google_crc32c
import msgspec
import pytest
import zstandard

from blobit import BlobCorrupt, BlobSettings, Kind, ObjectId
from blobit.compressing import compress, decompress
from blobit.sources import put_source
from blobit.streaming import read_span, read_whole, stream_span
from blobit.upload import put_list
from blobit.writers import LedgerPlan
from engine.limits import KIB
from tests.blobit.data.stores import pool_and_readers

ZSTD = LedgerPlan(compression="zstd")


def text(length: int) -> bytes:
    return (b"moo and baa, " * (length // 13 + 1))[:length]


@pytest.mark.parametrize("length", [1, 9, 10, 11, 50, 51, 199, 200, 201, 1234])
async def test_a_compressed_object_of_any_length_comes_back_whole_and_in_ranges(
    length: int,
) -> None:
    _, pool, readers = await pool_and_readers(ZSTD)
    data = text(length)
    name = await put_source(pool, data)
    assert name.kind in (Kind.ZSTD, Kind.LIST)
    assert name.length == length and name.checksum == google_crc32c.value(data)
    assert ObjectId.parse(str(name)) == name
    assert await read_whole(readers, name) == data
    rng = random.Random(length)
    for _ in range(20):
        offset = rng.randint(0, length)
        size = rng.randint(0, length - offset)
        assert await read_span(readers, name, offset, size) == data[offset : offset + size]
        pieces = [piece async for piece in stream_span(readers, name, offset, size, 40)]
        assert b"".join(pieces) == data[offset : offset + size]
    await pool.close()


async def test_what_compresses_well_takes_less_than_its_length() -> None:
    _, pool, readers = await pool_and_readers(ZSTD, BlobSettings())
    data = text(300 * KIB)
    name = await put_source(pool, data)
    assert name.stored_bytes < name.length // 20
    assert name.entry_count == 5
    assert await read_whole(readers, name) == data
    streamed = await put_source(pool, io.BytesIO(text(5 * 1024 * KIB)))
    assert streamed.stored_bytes < streamed.length // 20
    assert await read_span(readers, streamed, 777_777, 70_000) == text(847_777)[777_777:]
    await pool.close()


async def test_plain_and_compressed_parts_make_one_object() -> None:
    _, plain, readers = await pool_and_readers()
    pool = plain.pools.pool(ZSTD)
    parts = [await put_source(plain, text(30)), await put_source(pool, text(47))]
    joined = await put_list(plain, parts)
    assert await read_whole(readers, joined) == text(30) + text(47)
    assert await read_span(readers, joined, 25, 30) == (text(30) + text(47))[25:55]
    await pool.close()
    await plain.close()


async def test_an_id_that_lies_about_what_is_compressed_is_corrupt() -> None:
    _, pool, readers = await pool_and_readers(ZSTD)
    name = await put_source(pool, text(30))
    longer = msgspec.structs.replace(name, length=29)
    with pytest.raises(BlobCorrupt):
        await read_whole(readers, longer)
    other = msgspec.structs.replace(name, checksum=5)
    with pytest.raises(BlobCorrupt, match="checksum"):
        await read_whole(readers, other)
    plain = await put_source(pool.pools.pool(), text(30))
    claimed = ObjectId(Kind.ZSTD, plain.ledger_id, 0, 10, 30, 30, plain.checksum)
    with pytest.raises(BlobCorrupt, match="no entry of it"):
        await read_whole(readers, claimed)
    await pool.close()


async def test_a_frame_that_holds_more_than_it_should_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(10 * 1024 * KIB))
    with pytest.raises(ValueError, match="does not say"):
        await decompress([bomb], [100], None)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"moo")
    with pytest.raises(ValueError, match="does not say"):
        await decompress([unsized], [3], None)
    (frame,) = await compress([b"moo" * 10], None)
    with pytest.raises(ValueError):
        await decompress([frame[:-3]], [30], None)
