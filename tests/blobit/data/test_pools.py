"""Pools of ledgers: who makes them, who hears of it, when they are closed, how many there are."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from blobit import BlobNotStored, BlobsClosed, Kind, ObjectId
from blobit.errors import NoSuchBucket
from blobit.sources import put_source
from blobit.upload import Upload, put_shared
from blobit.writers import LedgerPlan, LedgerPools
from engine.transport.contract import Status
from tests.blobit.data.stores import SMALL, client_of, pool_and_readers
from tests.engine.ledger.scripted import Cluster, turns
from tests.simulation.virtual import elapse, virtually


class Heard:
    """What the hooks of a plan were told."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.sealed: list[tuple[int, int]] = []

    async def on_made(self, ledger_id: int) -> None:
        await asyncio.sleep(0)
        self.made.append(ledger_id)

    async def on_sealed(self, ledger_id: int, stored_bytes: int) -> None:
        await asyncio.sleep(0)
        self.sealed.append((ledger_id, stored_bytes))

    def plan(self, **more: Any) -> LedgerPlan:
        return LedgerPlan(
            {"owner": b"blobit", "bucket": b"7"}, made=self.on_made, sealed=self.on_sealed, **more
        )


async def pools_of(**changes: Any) -> tuple[Cluster, LedgerPools]:
    cluster = await Cluster.of(1)
    return cluster, LedgerPools(client_of(cluster), replace(SMALL, **changes))


async def test_a_ledger_is_told_of_before_anything_lies_in_it_and_again_when_it_is_closed() -> None:
    heard = Heard()
    cluster, pool, _ = await pool_and_readers(heard.plan())
    object_id = await put_shared(pool, b"moo")
    assert heard.made == [object_id.ledger_id] and heard.sealed == []
    metadata = await client_of(cluster).ledger_metadata(object_id.ledger_id)
    assert metadata.custom == {"owner": b"blobit", "bucket": b"7"}
    await pool.close()
    assert heard.sealed == [(object_id.ledger_id, 3)]


async def test_nothing_is_stored_where_the_ledger_could_not_be_told_of() -> None:
    async def refuse(ledger_id: int) -> None:
        raise NoSuchBucket("deleted meanwhile")

    heard = Heard()
    plan = replace(heard.plan(), made=refuse)
    cluster, pool, _ = await pool_and_readers(plan)
    with pytest.raises(NoSuchBucket):
        await put_shared(pool, b"moo")
    upload = Upload(pool)
    with pytest.raises(NoSuchBucket):
        await upload.write(bytes(100))
    assert not any(kept for bookie in cluster.bookies for kept in bookie.entries.values())
    await pool.close()
    assert heard.sealed == []


async def test_a_full_ledger_is_sealed_with_its_bytes_while_the_next_one_takes_objects() -> None:
    heard = Heard()
    _, pool, _ = await pool_and_readers(heard.plan(bytes_max=25))
    ids = [await put_shared(pool, bytes(10)) for _ in range(5)]
    assert [one.ledger_id for one in ids] == [1, 1, 1, 2, 2]
    await turns()
    assert heard.sealed == [(1, 30)]
    await pool.close()
    assert heard.sealed == [(1, 30), (2, 20)]


def test_a_ledger_takes_objects_only_as_long_as_its_plan_says() -> None:
    async def script() -> None:
        heard = Heard()
        _, pool, _ = await pool_and_readers(heard.plan(open_ms_max=10_000))
        first = await put_shared(pool, b"moo")
        await elapse(9.0)
        assert (await put_shared(pool, b"moo")).ledger_id == first.ledger_id
        await elapse(2.0)
        assert (await put_shared(pool, b"moo")).ledger_id != first.ledger_id
        await pool.close()

    virtually(script())


def test_ledgers_without_work_are_closed_after_a_while_and_the_next_put_makes_another() -> None:
    async def script() -> None:
        heard = Heard()
        _, pools = await pools_of(ledger_idle_ms=8_000)
        pool = pools.pool(heard.plan())
        await put_shared(pool, b"moo")
        upload = Upload(pool)
        await upload.write(bytes(100))
        await upload.finish()
        await elapse(7.0)
        assert pool.open_count == 2 and heard.sealed == []
        await elapse(4.0)
        assert pool.open_count == 0 and len(heard.sealed) == 2
        assert (await put_shared(pool, b"moo")).ledger_id == 3
        await pools.close()

    virtually(script())


def test_a_stream_that_pauses_keeps_its_ledger() -> None:
    async def script() -> None:
        _, pools = await pools_of(ledger_idle_ms=8_000)
        pool = pools.pool()
        upload = Upload(pool)
        await upload.write(bytes(100))
        await elapse(100.0)
        await upload.write(bytes(60))
        object_id = await upload.finish()
        assert object_id.length == 160 and object_id.first_entry == 0
        await pools.close()

    virtually(script())


async def test_many_pools_together_keep_few_ledgers_open_and_the_longest_idle_one_goes() -> None:
    cluster, pools = await pools_of(ledgers_open_max=3)
    many = [pools.pool() for _ in range(20)]
    for pool in many:
        await put_shared(pool, b"moo")
        assert sum(each.open_count for each in many) <= 3
    assert [number for number, pool in enumerate(many) if pool.open_count] == [17, 18, 19]
    await put_shared(many[17], b"moo")
    assert len(await client_of(cluster).list_ledgers()) == 20
    await pools.close()


async def test_ledgers_with_work_are_never_closed_to_make_room() -> None:
    cluster, pools = await pools_of(ledgers_open_max=1, shared_pending_bytes_max=100)
    for bookie in cluster.bookies:
        bookie.holding = True
    many = [pools.pool() for _ in range(4)]
    puts = [asyncio.ensure_future(put_shared(pool, b"moo")) for pool in many]
    await turns(50)
    assert sum(pool.open_count for pool in many) == 4
    for bookie in cluster.bookies:
        bookie.holding = False
        bookie.release()
    assert len({one.ledger_id for one in await asyncio.gather(*puts)}) == 4
    await pools.close()


async def test_bytes_of_all_streams_together_are_bounded_while_they_are_not_durable() -> None:
    cluster, pools = await pools_of(streams_max=2)
    (bookie,) = cluster.bookies
    uploads = [Upload(pools.pool()) for _ in range(6)]
    bookie.holding = True
    writes = [asyncio.ensure_future(upload.write(bytes(60))) for upload in uploads]
    await turns(100)
    # Twice sixty bytes may be under way: three batches of forty.
    assert sum(run.count for run in bookie.runs_taken) == 6
    bookie.holding = False
    bookie.release()
    await asyncio.gather(*writes)
    ids = await asyncio.gather(*[upload.finish() for upload in uploads])
    assert [one.length for one in ids] == [60] * 6
    await pools.close()


async def test_any_number_of_uploads_may_be_open_in_one_task() -> None:
    _, pools = await pools_of(streams_max=2)
    pool = pools.pool()
    uploads = [Upload(pool) for _ in range(9)]
    for _ in range(3):
        for upload in uploads:
            await upload.write(bytes(100))
    ids = [await upload.finish() for upload in uploads]
    assert [one.length for one in ids] == [300] * 9
    await pools.close()


async def test_an_upload_of_which_a_write_failed_makes_no_object() -> None:
    cluster, pool, _ = await pool_and_readers()
    upload = Upload(pool)
    await upload.write(bytes(100))
    for bookie in cluster.bookies:
        bookie.append_status = Status.FENCED
    with pytest.raises(BlobNotStored):
        for _ in range(5):
            await upload.write(bytes(100))
    for bookie in cluster.bookies:
        bookie.append_status = Status.OK
    with pytest.raises(BlobNotStored, match="begin again"):
        await upload.write(bytes(100))
    with pytest.raises(BlobNotStored, match="begin again"):
        await upload.finish()
    await upload.abort()
    await pool.close()


async def test_an_upload_of_which_a_write_was_abandoned_makes_no_object() -> None:
    cluster, pool, _ = await pool_and_readers()
    (bookie,) = cluster.bookies
    upload = Upload(pool)
    bookie.holding = True
    write = asyncio.ensure_future(upload.write(bytes(300)))
    await turns(50)
    write.cancel()
    await asyncio.gather(write, return_exceptions=True)
    bookie.holding = False
    bookie.release()
    with pytest.raises(BlobNotStored, match="begin again"):
        await upload.finish()
    await upload.abort()
    await pool.close()


async def test_parts_are_told_of_as_they_end_but_the_last_and_a_refusal_ends_the_upload() -> None:
    _, pool, _ = await pool_and_readers()
    told: list[ObjectId] = []

    async def hear(part: ObjectId) -> None:
        told.append(part)

    object_id = await put_source(pool, [bytes(100)] * 7, part_ended=hear)
    assert object_id.kind is Kind.LIST and len(told) >= 2
    assert sum(part.length for part in told) < 700

    async def refuse(part: ObjectId) -> None:
        raise NoSuchBucket("deleted meanwhile")

    with pytest.raises(NoSuchBucket):
        await put_source(pool, [bytes(100)] * 7, part_ended=refuse)
    await pool.close()


def test_an_upload_that_rests_ends_its_part_and_goes_on_in_another() -> None:
    async def script() -> None:
        _, pools = await pools_of(ledger_idle_ms=5_000)
        pool = pools.pool()
        told: list[ObjectId] = []

        async def hear(part: ObjectId) -> None:
            told.append(part)

        upload = Upload(pool, part_ended=hear)
        await upload.write(bytes(100))
        await elapse(4.0)
        await upload.write(bytes(20))
        await elapse(4.0)
        assert told == []
        await elapse(2.0)
        assert [part.length for part in told] == [80]
        await upload.write(bytes(60))
        object_id = await upload.finish()
        assert object_id.kind is Kind.LIST and object_id.length == 180
        rested = Upload(pool, part_ended=hear)
        await rested.write(bytes(100))
        await elapse(10.0)
        await rested.abort()
        assert sum(part.length for part in told[1:]) == 80
        await pools.close()

    virtually(script())


def test_an_upload_of_whole_batches_that_rested_is_finished_as_any_other() -> None:
    async def script() -> None:
        _, pools = await pools_of(ledger_idle_ms=5_000)
        told: list[ObjectId] = []

        async def hear(part: ObjectId) -> None:
            told.append(part)

        pool = pools.pool()
        upload = Upload(pool, part_ended=hear)
        await upload.write(bytes(80))
        await elapse(10.0)
        assert [part.length for part in told] == [80]
        assert (await upload.finish()).length == 80
        await pools.close()

    virtually(script())


def test_an_upload_is_finished_while_it_is_about_to_rest() -> None:
    async def script() -> None:
        cluster, pools = await pools_of(ledger_idle_ms=100)
        (bookie,) = cluster.bookies

        async def hear(part: ObjectId) -> None:
            raise BlobNotStored("names are away")

        upload = Upload(pools.pool(), part_ended=hear)
        await upload.write(bytes(80))
        bookie.holding = True
        await upload.write(bytes(40))
        await elapse(0.15)
        finishing = asyncio.ensure_future(upload.finish())
        await turns()
        bookie.holding = False
        bookie.release()
        assert (await finishing).length == 120
        await pools.close()

    virtually(script())


async def test_all_who_wait_for_a_ledger_that_cannot_be_made_hear_so_at_once() -> None:
    tries = 0

    async def refuse(ledger_id: int) -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0)
        raise BlobNotStored("names are away")

    _, pool, _ = await pool_and_readers(LedgerPlan({"owner": b"blobit"}, made=refuse))
    puts = [put_shared(pool, b"moo") for _ in range(20)]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert all(isinstance(outcome, BlobNotStored) for outcome in outcomes)
    assert tries == 1
    await pool.close()


async def test_a_thousand_buckets_may_put_at_once_though_few_ledgers_stay_open() -> None:
    _, pools = await pools_of(ledgers_open_max=2, shared_pending_bytes_max=100)
    many = [pools.pool() for _ in range(1_000)]
    ids = await asyncio.gather(*[put_shared(pool, b"moo") for pool in many])
    assert len({one.ledger_id for one in ids}) == 1_000
    await put_shared(many[0], b"moo")
    assert sum(pool.open_count for pool in many) <= 3
    await pools.close()


async def test_a_ledger_that_is_to_be_forgotten_gets_no_more() -> None:
    _, pool, _ = await pool_and_readers()
    first = await put_shared(pool, b"moo")
    pool.forget(first.ledger_id)
    assert (await put_shared(pool, b"moo")).ledger_id != first.ledger_id
    await pool.close()


async def test_a_closed_pool_takes_nothing_and_the_others_go_on() -> None:
    _, pools = await pools_of()
    closed, other = pools.pool(), pools.pool()
    await closed.close()
    with pytest.raises(BlobsClosed, match="open it again"):
        await put_shared(closed, b"moo")
    await put_shared(other, b"moo")
    await pools.close()
    assert pools.pool().open_count == 0
    with pytest.raises(BlobsClosed):
        await put_shared(pools.pool(), b"moo")


async def test_ledgers_that_all_fail_end_the_put_with_what_to_do() -> None:
    cluster, pool, _ = await pool_and_readers()
    for bookie in cluster.bookies:
        bookie.append_status = Status.FENCED
    with pytest.raises(BlobNotStored, match="put the object again"):
        await put_shared(pool, b"moo")
    await pool.close()


async def test_a_stream_is_stored_though_all_idle_ledgers_were_taken_over_meanwhile() -> None:
    cluster, pools = await pools_of(streams_max=8)
    pool = pools.pool()
    uploads = [Upload(pool) for _ in range(6)]
    await asyncio.gather(*(upload.write(bytes(80)) for upload in uploads))
    stored = await asyncio.gather(*(upload.finish() for upload in uploads))
    taken_over = {one.ledger_id for one in stored}
    assert len(taken_over) == 6 and pool.open_count == 6
    for ledger_id in taken_over:
        await client_of(cluster).open_ledger(ledger_id)
    upload = Upload(pool)
    await upload.write(bytes(80))
    last = await upload.finish()
    assert last.ledger_id not in taken_over
    assert pool.open_count == 1
    await pool.close()


async def test_a_ledger_is_sealed_once_though_its_stream_and_its_pool_end_together() -> None:
    heard = Heard()
    _, pool, _ = await pool_and_readers(heard.plan())
    upload = Upload(pool)
    await upload.write(bytes(100))
    await upload._settle_oldest()
    closing = asyncio.ensure_future(pool.close())
    await turns(2)
    await upload.abort()
    await closing
    assert len(heard.sealed) == 1
