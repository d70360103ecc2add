"""Small objects read in order are fetched ahead, those read at random are not."""

import asyncio
import random

import msgspec
import pytest

from blobit import BlobNotFound, BlobUnreadable, ObjectId
from blobit.nearby import WINDOW_AGE_S, WINDOWS_MAX
from blobit.reading import Readers
from blobit.streaming import read_whole
from blobit.upload import put_shared
from blobit.writers import LedgerPool
from tests.blobit.data.stores import pool_and_readers
from tests.engine.ledger.scripted import Cluster
from tests.simulation.virtual import elapse, virtually


async def stored(count: int) -> tuple[Cluster, LedgerPool, Readers, list[ObjectId]]:
    cluster, pool, readers = await pool_and_readers()
    pool_ids = [await put_shared(pool, b"%07d" % number) for number in range(count)]
    for bookie in cluster.bookies:
        bookie.unfenced_reads = 0
    return cluster, pool, readers, pool_ids


def reads(cluster: Cluster) -> int:
    return sum(bookie.unfenced_reads for bookie in cluster.bookies)


async def test_objects_in_order_are_read_with_few_reads_and_each_comes_right() -> None:
    cluster, pool, readers, ids = await stored(25)
    for number, object_id in enumerate(ids):
        assert await read_whole(readers, object_id) == b"%07d" % number
    assert reads(cluster) <= 5
    await pool.close()


async def test_a_new_object_of_an_open_ledger_is_read_without_the_metadata_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _cluster, pool, readers, ids = await stored(1)
    await read_whole(readers, ids[0])

    async def away(*_: object) -> None:
        raise AssertionError("the metadata store is away")

    for method in ("get", "sync"):
        monkeypatch.setattr(readers._client.store, method, away)
    for number in range(4):
        object_id = await put_shared(pool, b"new %03d" % number)
        assert object_id.ledger_id == ids[0].ledger_id
        assert await read_whole(readers, object_id) == b"new %03d" % number
    monkeypatch.undo()
    await pool.close()


async def test_many_callers_who_take_turns_share_the_reads() -> None:
    cluster, pool, readers, ids = await stored(25)
    rest = iter(enumerate(ids))

    async def caller() -> None:
        for number, object_id in rest:
            assert await read_whole(readers, object_id) == b"%07d" % number

    await asyncio.gather(*[caller() for _ in range(6)])
    assert reads(cluster) <= 8
    await pool.close()


async def test_objects_at_random_are_read_alone() -> None:
    cluster, pool, readers, ids = await stored(25)
    for number in [20, 3, 17, 9, 1, 14]:
        assert await read_whole(readers, ids[number]) == b"%07d" % number
    assert reads(cluster) == 6
    await pool.close()


async def test_each_is_handed_out_once_and_read_anew_the_second_time() -> None:
    cluster, pool, readers, ids = await stored(6)
    for object_id in ids[:4]:
        await read_whole(readers, object_id)
    before = reads(cluster)
    assert await read_whole(readers, ids[2]) == b"%07d" % 2
    assert reads(cluster) == before + 1
    await pool.close()


def test_what_was_read_ahead_is_not_handed_out_for_long() -> None:
    async def script() -> None:
        cluster, pool, readers, ids = await stored(20)
        for object_id in ids[:3]:
            await read_whole(readers, object_id)
        for bookie in cluster.bookies:
            bookie.entries[ids[3].ledger_id].clear()
        assert await read_whole(readers, ids[3]) == b"%07d" % 3
        await elapse(WINDOW_AGE_S + 0.1)
        with pytest.raises(BlobNotFound):
            await read_whole(readers, ids[4])
        await pool.close()

    virtually(script())


async def test_a_read_ahead_that_fails_is_nobodys_answer() -> None:
    cluster, pool, readers, ids = await stored(20)
    await read_whole(readers, ids[0])
    for bookie in cluster.bookies:
        bookie.damaged.add((ids[1].ledger_id, ids[1].first_entry))
    with pytest.raises(BlobUnreadable):
        await read_whole(readers, ids[1])
    assert await read_whole(readers, ids[2]) == b"%07d" % 2
    await pool.close()


async def test_a_caller_who_leaves_takes_nothing_from_the_others() -> None:
    _, pool, readers, ids = await stored(20)
    await read_whole(readers, ids[0])
    first = asyncio.ensure_future(read_whole(readers, ids[1]))
    second = asyncio.ensure_future(read_whole(readers, ids[2]))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == b"%07d" % 2
    await pool.close()


async def test_few_windows_are_held_however_many_ledgers_are_read() -> None:
    _, pool, _, _ = await stored(0)
    readers = Readers(pool._client, 1_000)
    for number in range(3 * WINDOWS_MAX):
        ids = [await put_shared(pool, b"moo") for _ in range(5)]
        for object_id in ids[:3]:
            await read_whole(readers, object_id)
        pool.forget(ids[0].ledger_id)
        assert len(readers._shelf._windows) <= min(number + 1, WINDOWS_MAX)
    readers.close()
    assert len(readers._shelf._windows) == 0
    await pool.close()


async def test_random_ids_of_a_ledger_never_mix() -> None:
    _, pool, readers, ids = await stored(25)
    rng = random.Random(5)
    for _ in range(300):
        start = rng.randrange(25)
        for number in range(start, min(25, start + rng.randrange(5))):
            assert await read_whole(readers, ids[number]) == b"%07d" % number
    wrong = msgspec.structs.replace(ids[3], first_entry=ids[4].first_entry)
    with pytest.raises(BlobUnreadable):
        await read_whole(readers, wrong)
    await pool.close()
