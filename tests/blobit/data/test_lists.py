"""Lists of parts: made without reading, read as they are needed, right up to 100 GiB and beyond."""

import random
import tracemalloc

import google_crc32c
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobit import BlobCorrupt, BlobNotFound, Kind, ObjectId, RangeInvalid
from blobit.checksum import combine
from blobit.object_id import EMPTY, PartsParser, pack_parts, parse_parts
from blobit.streaming import _chunks, parts_of, read_span, read_whole, stream_span
from blobit.upload import put_list, put_shared
from engine.limits import KIB, MIB
from tests.blobit.data.stores import pool_and_readers

GIB = 1024 * MIB


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_the_checksum_of_a_whole_comes_from_those_of_its_pieces(pieces: list[bytes]) -> None:
    total = 0
    for piece in pieces:
        total = combine(total, google_crc32c.value(piece), len(piece))
    assert total == google_crc32c.value(b"".join(pieces))


def test_checksums_of_huge_pieces_combine_as_those_of_their_halves() -> None:
    zeros = google_crc32c.value(bytes(MIB))
    length = MIB
    while length < 128 * GIB:
        zeros, length = combine(zeros, zeros, length), 2 * length
    in_steps, steps = 0, google_crc32c.value(bytes(MIB))
    for _ in range(1024):
        in_steps = combine(in_steps, steps, MIB)
    whole = 0
    for _ in range(128):
        whole = combine(whole, in_steps, GIB)
    assert whole == zeros


async def test_a_list_is_made_without_reading_its_parts_and_reads_as_one_object() -> None:
    cluster, pool, readers = await pool_and_readers()
    rng = random.Random(3)
    pieces = [rng.randbytes(rng.randrange(40)) for _ in range(30)]
    parts = [await put_shared(pool, piece) for piece in pieces]
    reads = sum(bookie.unfenced_reads for bookie in cluster.bookies)
    joined = await put_list(pool, parts)
    assert sum(bookie.unfenced_reads for bookie in cluster.bookies) == reads
    data = b"".join(pieces)
    assert joined.kind is Kind.LIST and joined.length == len(data)
    assert joined.checksum == google_crc32c.value(data)
    assert await read_whole(readers, joined) == data
    for _ in range(40):
        offset = rng.randint(0, len(data))
        length = rng.randint(0, len(data) - offset)
        assert await read_span(readers, joined, offset, length) == data[offset : offset + length]
        streamed = [piece async for piece in stream_span(readers, joined, offset, length, 30)]
        assert b"".join(streamed) == data[offset : offset + length]
    await pool.close()


async def test_a_list_of_nothing_is_the_empty_object_and_of_one_part_that_part() -> None:
    _, pool, _ = await pool_and_readers()
    part = await put_shared(pool, b"moo")
    assert await put_list(pool, []) == EMPTY == await put_list(pool, [EMPTY, EMPTY])
    assert await put_list(pool, [EMPTY, part, EMPTY]) == part
    await pool.close()


async def test_a_list_too_long_for_a_shared_ledger_has_one_alone() -> None:
    _, pool, readers = await pool_and_readers()
    part = await put_shared(pool, b"moo")
    joined = await put_list(pool, [part] * 300)
    assert joined.stored_bytes > 100 * pool.settings.entry_bytes
    assert joined.ledger_id != part.ledger_id
    assert await read_whole(readers, joined) == b"moo" * 300
    assert await read_span(readers, joined, 898, 2) == b"oo"
    await pool.close()


async def test_a_list_that_lies_is_no_object() -> None:
    _, pool, readers = await pool_and_readers()
    part = await put_shared(pool, b"moo")
    joined = await put_list(pool, [part, part])
    longer = msgspec.structs.replace(joined, length=7)
    with pytest.raises(BlobCorrupt, match="add up"):
        await read_whole(readers, longer)
    cut = msgspec.structs.replace(joined, stored_bytes=joined.stored_bytes - 1)
    with pytest.raises(BlobCorrupt):
        await read_whole(readers, cut)
    with pytest.raises(RangeInvalid, match="the object has 6"):
        await read_span(readers, joined, 5, 2)
    await pool.close()


async def test_pieces_before_a_missing_part_come_before_the_error() -> None:
    _, pool, readers = await pool_and_readers()
    first, second = await put_shared(pool, bytes(40)), await put_shared(pool, b"moo")
    lost = msgspec.structs.replace(second, checksum=1, first_entry=99)
    joined = await put_list(pool, [first, lost])
    got: list[bytes] = []
    with pytest.raises(BlobNotFound, match="no entry 99"):
        async for piece in stream_span(readers, joined, 1, None, 1000):
            got.append(piece)
    assert b"".join(got) == bytes(39)
    await pool.close()


def huge(count: int, part_bytes: int) -> list[ObjectId]:
    entry_bytes = 256 * KIB
    return [
        ObjectId(Kind.DATA, 1_000 + number, 12, entry_bytes, part_bytes, part_bytes, number + 1)
        for number in range(count)
    ]


class Listed:
    """Readers that hold nothing but the list of a huge object."""

    chunk_bytes = 64 * KIB

    def __init__(self, packed: bytes, entry_bytes: int) -> None:
        self._entries = [
            packed[start : start + entry_bytes] for start in range(0, len(packed), entry_bytes)
        ]

    async def read(self, part: ObjectId, first: int, last: int) -> list[bytes]:
        assert part.kind is Kind.LIST
        return self._entries[first - part.first_entry : last - part.first_entry + 1]


def listed(parts: list[ObjectId]) -> tuple[ObjectId, Listed]:
    packed, length = pack_parts(parts), sum(part.length for part in parts)
    name = ObjectId(Kind.LIST, 7, 5, 64 * KIB, length, len(packed), 9)
    return name, Listed(packed, 64 * KIB)


@pytest.mark.parametrize("offset", [0, 99 * GIB + 17, 100 * GIB - 5, 256 * MIB - 2])
async def test_any_range_of_100_gib_is_found_by_arithmetic(offset: int) -> None:
    name, readers = listed(huge(400, 256 * MIB))
    assert name.length == 100 * GIB and ObjectId.parse(str(name)) == name
    end = min(offset + 3 * MIB, name.length)
    position = offset
    async for chunk in _chunks(readers, name, offset, end, MIB):  # type: ignore[arg-type]
        at = (chunk.part.ledger_id - 1_000) * 256 * MIB
        at += (chunk.first - 12) * 256 * KIB + chunk.skip_bytes
        assert at == position
        position += chunk.wanted_bytes
        assert (chunk.last - chunk.first + 1) * 256 * KIB <= MIB
    assert position == end


async def test_a_list_of_ten_thousand_parts_is_read_with_flat_memory() -> None:
    name, readers = listed(huge(10_000, 10 * MIB))
    assert name.length > 97 * GIB and name.stored_bytes > 3 * readers.chunk_bytes
    tracemalloc.start()
    try:
        count = length = 0
        async for part in parts_of(readers, name):  # type: ignore[arg-type]
            count, length = count + 1, length + part.length
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (count, length) == (10_000, name.length)
    assert peak_bytes < 2 * MIB


@given(st.lists(st.integers(1, 60), max_size=60))
def test_a_list_is_parsed_the_same_however_it_is_cut(sizes: list[int]) -> None:
    parts = huge(20, MIB)
    packed = pack_parts(parts)
    parser, found, start = PartsParser(), [], 0
    for size in sizes:
        found += parser.feed(packed[start : start + size])
        start += size
    found += parser.feed(packed[start:])
    parser.end()
    assert found == parts == parse_parts(packed)
