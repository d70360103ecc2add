"""What the blob store promises, over the real ledger client and bookies that do as told."""

import asyncio
import io
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise

import google_crc32c
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blobit import (
    AsyncBlobs,
    BlobCorrupt,
    BlobNotFound,
    BlobNotStored,
    BlobsClosed,
    BlobSettings,
    BlobUnreadable,
    InvalidObjectId,
    Kind,
    ObjectId,
    RangeInvalid,
)
from blobit.budget import ByteBudget
from engine.transport.contract import Status
from tests.engine.ledger.scripted import QUICK, Cluster, turns

SMALL = BlobSettings(
    entry_bytes=10,
    stream_entry_bytes=10,
    ledger_bytes_max=200,
    shared_object_bytes_max=50,
    shared_pending_bytes_max=100,
    stream_pending_bytes_max=60,
    batch_bytes=30,
    read_ahead_bytes=25,
    readers_max=4,
    streams_max=2,
)


def body(length: int) -> bytes:
    return random.Random(length).randbytes(length)


async def store(bookies: int = 1) -> tuple[Cluster, AsyncBlobs]:
    cluster = await Cluster.of(bookies)
    return cluster, blobs_of(cluster)


def blobs_of(cluster: Cluster, chosen: BlobSettings = SMALL) -> AsyncBlobs:
    ensemble = len(cluster.bookies)
    settings = replace(
        QUICK,
        ensemble=ensemble,
        write_quorum=ensemble,
        ack_quorum=min(2, ensemble),
        # A few entries a read, so that most objects take several.
        read_bytes_max=30,
    )
    return AsyncBlobs(cluster.client(settings), chosen)


async def pieces_of(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("length", [1, 9, 10, 11, 49, 50, 51, 100, 199, 200, 201, 1000])
async def test_an_object_of_any_length_comes_back_whole(length: int) -> None:
    _, blobs = await store()
    data = body(length)
    object_id = await blobs.put(data)
    assert await blobs.get(object_id) == data
    assert object_id.length == length
    assert object_id.checksum == google_crc32c.value(data)
    assert b"".join([piece async for piece in blobs.stream(str(object_id))]) == data
    await blobs.close()


async def test_the_empty_object_needs_no_ledger() -> None:
    cluster, blobs = await store()
    object_id = await blobs.put(b"")
    assert await blobs.get(object_id) == b""
    assert await blobs.get_range(object_id, 0, 0) == b""
    assert [piece async for piece in blobs.stream(object_id)] == []
    assert await blobs.put(pieces_of(b"", 5)) == object_id
    assert await cluster.client().list_ledgers() == []


async def test_every_kind_of_source_gives_the_same_object() -> None:
    _, blobs = await store()
    data = body(130)
    chunks = [data[start : start + 7] for start in range(0, 130, 7)]
    sources = (data, bytearray(data), memoryview(data), chunks, iter(chunks), io.BytesIO(data))
    for source in (*sources, pieces_of(data, 33)):
        assert await blobs.get(await blobs.put(source)) == data


async def test_what_is_no_source_of_bytes_is_refused_by_its_type() -> None:
    _, blobs = await store()
    for source in ("text", 5, None):
        with pytest.raises(TypeError, match="no source of bytes"):
            await blobs.put(source)  # type: ignore[arg-type]


@settings(max_examples=25)
@given(st.lists(st.integers(0, 120), max_size=12), st.integers(0, 2**16))
def test_a_stream_cut_anywhere_comes_back_whole_and_in_ranges(sizes: list[int], seed: int) -> None:
    async def run() -> None:
        _, blobs = await store()
        rng = random.Random(seed)
        chunks = [rng.randbytes(size) for size in sizes]
        data = b"".join(chunks)
        object_id = await blobs.put(chunks)
        assert await blobs.get(object_id) == data
        for _ in range(5):
            offset = rng.randint(0, len(data))
            length = rng.randint(0, len(data) - offset)
            got = await blobs.get_range(object_id, offset, length)
            assert got == data[offset : offset + length]
        await blobs.close()

    asyncio.run(run())


async def test_an_object_bigger_than_a_ledger_gets_an_id_that_lists_its_parts() -> None:
    cluster, blobs = await store()
    data = body(1234)
    object_id = await blobs.put(pieces_of(data, 100))
    assert object_id.kind is Kind.LIST
    assert object_id.length == 1234
    assert len(await cluster.client().list_ledgers()) >= 6
    assert await blobs.get(object_id) == data
    assert await blobs.get_range(object_id, 195, 410) == data[195:605]


async def test_an_object_is_read_with_nothing_but_its_id() -> None:
    cluster, blobs = await store()
    texts = [str(await blobs.put(body(length))) for length in (5, 60, 900)]
    other = blobs_of(cluster)
    assert [len(await other.get(text)) for text in texts] == [5, 60, 900]
    await blobs.close()
    third = blobs_of(cluster)
    assert [await third.get(text) for text in texts] == [body(5), body(60), body(900)]


async def test_reading_does_not_disturb_the_writer_of_the_same_ledger() -> None:
    cluster, blobs = await store()
    other = blobs_of(cluster)
    for length in range(1, 15):
        object_id = await blobs.put(body(length))
        assert await other.get(object_id) == body(length)
    assert len(await cluster.client().list_ledgers()) == 1


async def test_small_objects_put_at_once_share_one_ledger_and_one_request() -> None:
    cluster, blobs = await store()
    await blobs.put(b"first")
    before = len(cluster.bookies[0].requests)
    ids = await asyncio.gather(*[blobs.put(body(4)) for _ in range(10)])
    assert len({object_id.ledger_id for object_id in ids}) == 1
    assert [object_id.first_entry for object_id in ids] == list(range(1, 11))
    assert len(cluster.bookies[0].requests) == before + 1


async def test_streams_at_once_never_share_a_ledger() -> None:
    _, blobs = await store()
    data = [body(90 + number) for number in range(6)]
    ids = await asyncio.gather(*[blobs.put(pieces_of(each, 20)) for each in data])
    assert [await blobs.get(object_id) for object_id in ids] == data
    ranges: dict[int, list[tuple[int, int]]] = {}
    for object_id in ids:
        span = (object_id.first_entry, object_id.last_entry)
        ranges.setdefault(object_id.ledger_id, []).append(span)
    for spans in ranges.values():
        ends = sorted(spans)
        assert all(low[1] < high[0] for low, high in pairwise(ends))
    assert len(ranges) >= 2


async def test_a_full_ledger_is_closed_and_the_next_one_begun() -> None:
    cluster, blobs = await store()
    ids = [await blobs.put(body(50)) for _ in range(9)]
    await blobs.close()
    client = cluster.client()
    ledgers = await client.list_ledgers()
    assert sorted({object_id.ledger_id for object_id in ids}) == ledgers and len(ledgers) == 3
    assert all([(await client.ledger_metadata(ledger_id)).closed for ledger_id in ledgers])


async def test_a_fenced_shared_ledger_is_replaced_and_the_put_written_again() -> None:
    cluster, blobs = await store()
    first = await blobs.put(b"before")
    reader = await cluster.client().open_ledger(first.ledger_id, recover=True)
    second = await blobs.put(b"after")
    assert second.ledger_id != reader.ledger_id
    assert (await blobs.get(first), await blobs.get(second)) == (b"before", b"after")


async def test_a_stream_whose_ledger_is_fenced_goes_on_in_another_part() -> None:
    cluster, blobs = await store()
    data = body(170)
    upload = blobs.upload()
    await upload.write(data[:120])
    fenced = (await cluster.client().list_ledgers())[-1]
    await turns()
    await cluster.client().open_ledger(fenced, recover=True)
    await upload.write(data[120:])
    object_id = await upload.finish()
    assert object_id.kind is Kind.LIST
    assert await blobs.get(object_id) == data


async def test_batches_that_were_never_acknowledged_are_written_again_in_order() -> None:
    cluster, blobs = await store()
    data = body(190)
    upload = blobs.upload()
    await upload.write(data[:60])
    bookie = cluster.bookies[0]
    await turns()
    bookie.holding = True
    await upload.write(data[60:110])
    await turns()
    fenced = (await cluster.client().list_ledgers())[-1]
    bookie.fenced.add(fenced)
    bookie.holding = False
    bookie.held.clear()
    await upload.write(data[110:])
    object_id = await upload.finish()
    assert await blobs.get(object_id) == data


async def test_a_put_gives_up_when_ledger_after_ledger_fails() -> None:
    cluster, blobs = await store()
    cluster.bookies[0].append_status = Status.FENCED
    with pytest.raises(BlobNotStored):
        await blobs.put(b"moo")
    with pytest.raises(BlobNotStored):
        await blobs.put(body(150))


async def test_a_put_without_enough_bookies_says_so() -> None:
    cluster, blobs = await store()
    await cluster.registry.unregister("b0")
    cluster.bookies[0].down = True
    with pytest.raises(BlobNotStored, match="no ledger could be created"):
        await blobs.put(b"moo")


async def test_a_stream_holds_no_more_than_its_bound() -> None:
    cluster, blobs = await store()
    await blobs.put(body(60))
    cluster.bookies[0].holding = True
    given = 0

    async def source() -> AsyncIterator[bytes]:
        nonlocal given
        for _ in range(100):
            given += 10
            yield bytes(10)

    putting = asyncio.ensure_future(blobs.put(source()))
    await turns(200)
    assert given <= SMALL.stream_pending_bytes_max + 3 * SMALL.batch_bytes
    while not putting.done():
        cluster.bookies[0].release()
        await turns(1)
    assert (await putting).length == 1000


async def test_small_puts_beyond_the_bound_wait_their_turn() -> None:
    cluster, blobs = await store()
    await blobs.put(b"x")
    bookie = cluster.bookies[0]
    bookie.holding = True
    puts = [asyncio.ensure_future(blobs.put(body(40))) for _ in range(5)]
    await turns()
    assert sum(last - first + 1 for _, first, last in bookie.requests) == 1 + 2 * 4
    while not all(put.done() for put in puts):
        bookie.release()
        await turns(1)
    assert [await blobs.get(await put) for put in puts] == [body(40)] * 5


async def test_a_cancelled_put_frees_what_it_had_taken() -> None:
    cluster, blobs = await store()
    await blobs.put(b"x")
    bookie = cluster.bookies[0]
    bookie.holding = True
    puts = [asyncio.ensure_future(blobs.put(body(40))) for _ in range(5)]
    await turns()
    for put in puts:
        put.cancel()
    await turns()
    bookie.holding = False
    bookie.release()
    assert await blobs.get(await blobs.put(body(50))) == body(50)


async def test_a_put_that_is_cancelled_while_it_waits_lets_the_next_one_in() -> None:
    budget = ByteBudget(10)
    await budget.take(8)
    waits = [asyncio.ensure_future(budget.take(size)) for size in (9, 8, 2)]
    await turns()
    # The first is cancelled in the same turn in which bytes come free: it must not be given any.
    waits[0].cancel()
    budget.give_back(8)
    await turns()
    assert [wait.done() for wait in waits] == [True, True, True] and waits[0].cancelled()
    budget.give_back(10)
    await budget.take(10)
    last = asyncio.ensure_future(budget.take(1))
    behind = asyncio.ensure_future(budget.take(1))
    await turns()
    budget.give_back(10)
    last.cancel()
    await turns()
    assert last.cancelled() and behind.done()
    budget.give_back(1)
    await asyncio.wait_for(budget.take(10), 1)


async def test_a_source_that_fails_leaves_no_object_and_a_store_that_works() -> None:
    _, blobs = await store()

    async def source() -> AsyncIterator[bytes]:
        yield body(150)
        raise OSError("the source broke")

    for _ in range(2 * SMALL.streams_max):
        with pytest.raises(OSError, match="the source broke"):
            await blobs.put(source())
    assert await blobs.get(await blobs.put(body(150))) == body(150)


async def test_an_unknown_ledger_is_not_found() -> None:
    _, blobs = await store()
    object_id = await blobs.put(b"moo")
    with pytest.raises(BlobNotFound, match="ledger 4711"):
        await blobs.get(msgspec.structs.replace(object_id, ledger_id=4711))


async def test_an_object_of_a_deleted_ledger_is_not_found() -> None:
    cluster, blobs = await store()
    object_id = await blobs.put(b"moo")
    await blobs.close()
    await cluster.client().delete_ledger(object_id.ledger_id)
    for read in (blobs_of(cluster).get, anext_of(blobs_of(cluster))):
        with pytest.raises(BlobNotFound):
            await read(object_id)


def anext_of(blobs: AsyncBlobs):  # type: ignore[no-untyped-def]
    async def first(object_id: ObjectId) -> bytes:
        return await anext(blobs.stream(object_id))

    return first


async def test_entries_past_the_end_of_a_closed_ledger_are_not_found() -> None:
    cluster, blobs = await store()
    object_id = await blobs.put(b"moo")
    await blobs.close()
    with pytest.raises(BlobNotFound, match="ends before"):
        await blobs_of(cluster).get(msgspec.structs.replace(object_id, first_entry=5))


async def test_a_bookie_that_does_not_answer_makes_an_object_unreadable_not_absent() -> None:
    cluster, blobs = await store()
    object_id = await blobs.put(b"moo")
    cluster.bookies[0].down = True
    with pytest.raises(BlobUnreadable):
        await blobs_of(cluster).get(object_id)
    cluster.bookies[0].down = False
    assert await blobs.get(object_id) == b"moo"


async def test_a_damaged_entry_makes_an_object_unreadable_not_absent() -> None:
    cluster, blobs = await store()
    object_id = await blobs.put(b"moo")
    cluster.bookies[0].damaged.add((object_id.ledger_id, object_id.first_entry))
    with pytest.raises(BlobUnreadable):
        await blobs.get(object_id)


async def test_an_entry_of_another_length_is_not_the_object() -> None:
    _, blobs = await store()
    object_id = await blobs.put(b"moo")
    other = msgspec.structs.replace(object_id, length=4, stored_bytes=4)
    with pytest.raises(BlobCorrupt, match="3 bytes, not 4"):
        await blobs.get(other)


async def test_bytes_with_another_checksum_are_not_the_object() -> None:
    _, blobs = await store()
    for length in (3, 150, 900):
        object_id = await blobs.put(body(length))
        other = msgspec.structs.replace(object_id, checksum=object_id.checksum ^ 1)
        with pytest.raises(BlobCorrupt, match="checksum"):
            await blobs.get(other)
        with pytest.raises(BlobCorrupt, match="checksum"):
            async for _ in blobs.stream(other):
                pass


async def test_a_list_that_does_not_add_up_is_not_the_object() -> None:
    _, blobs = await store()
    object_id = await blobs.put(body(900))
    with pytest.raises(BlobCorrupt, match="add up"):
        await blobs.get(msgspec.structs.replace(object_id, length=901))
    garbage = await blobs.put(body(40))
    listed = ObjectId(Kind.LIST, garbage.ledger_id, garbage.first_entry, 10, 900, 40, 1)
    with pytest.raises(BlobCorrupt):
        await blobs.get(listed)


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 61), (60, 1), (0, -1), (61, 0)])
async def test_a_range_outside_the_object_is_refused(offset: int, length: int) -> None:
    _, blobs = await store()
    object_id = await blobs.put(body(60))
    with pytest.raises(RangeInvalid, match="the object has 60"):
        await blobs.get_range(object_id, offset, length)


async def test_a_range_reads_only_the_entries_that_hold_it() -> None:
    cluster, blobs = await store()
    object_id = await blobs.put(body(45))
    # The other entries are gone: only the two asked for can be read.
    for entry in (0, 3, 4):
        cluster.bookies[0].damaged.add((object_id.ledger_id, object_id.first_entry + entry))
    assert await blobs.get_range(object_id, 12, 16) == body(45)[12:28]


async def test_garbage_for_an_id_is_refused_before_anything_is_looked_up() -> None:
    _, blobs = await store()
    for read in (blobs.get, blobs.stream):
        with pytest.raises(InvalidObjectId):
            await read("no id")  # type: ignore[misc]


async def test_a_stream_that_is_left_early_stops_reading() -> None:
    _, blobs = await store()
    object_id = await blobs.put(body(900))
    stream = blobs.stream(object_id)
    assert body(900).startswith(await anext(stream))
    assert len(asyncio.all_tasks()) > 1
    await stream.aclose()
    await turns()
    assert len(asyncio.all_tasks()) == 1


async def test_more_ledgers_than_readers_are_remembered_can_be_read() -> None:
    cluster, blobs = await store()
    ids = [await blobs.put(body(50)) for _ in range(40)]
    other = blobs_of(cluster)
    got = await asyncio.gather(*[other.get(object_id) for object_id in ids * 2])
    assert got == [body(50)] * 80


async def test_a_lost_bookie_of_three_is_noticed_by_nobody() -> None:
    cluster, blobs = await store(3)
    first = await blobs.put(body(150))
    cluster.bookies[1].down = True
    second = await blobs.put(body(900))
    assert await blobs.get(first) == body(150)
    assert await blobs_of(cluster).get(second) == body(900)


async def test_a_closed_store_refuses_every_call() -> None:
    _, blobs = await store()
    object_id = await blobs.put(b"moo")
    upload = blobs.upload()
    await blobs.close()
    await blobs.close()
    for call in (blobs.put(b"x"), blobs.get(object_id), blobs.get_range(object_id, 0, 1)):
        with pytest.raises(BlobsClosed):
            await call
    with pytest.raises(BlobsClosed):
        blobs.stream(object_id)
    await upload.write(b"x")
    with pytest.raises(BlobsClosed):
        await upload.finish()
