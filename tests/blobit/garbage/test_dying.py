"""The rule of dying: what nobody names goes, and nothing else, whoever sleeps for how long ever."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blobit import BlobNotFound, BlobNotStored, ObjectId
from blobit.bucket_core import PartEnded
from blobit.sources import Source
from blobit.writers import LedgerPool
from engine.errors import MetadataUnavailable, NoSuchLedger
from tests.blobit.garbage.grounds import BUCKET, DAY_MS, HOUR_MS, Ground, grounds


async def test_a_ledger_of_which_everything_was_deleted_dies_and_goes_after_the_grace(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        await ground.sealed({"elsa": b"moo", "alma": b"muh"})
        assert await ground.bucket.delete_many(["elsa", "alma"]) == 2
        first = await ground.collect()
        assert (first.dead_ledgers, first.waiting_ledgers, first.deleted_ledgers) == (1, 1, 0)
        assert await ground.ledgers() == [] and len(await ground.ledgers_there()) == 1
        ground.clock.pass_ms(HOUR_MS - 1)
        assert (await ground.collect()).waiting_ledgers == 1
        ground.clock.pass_ms(1)
        assert (await ground.collect()).deleted_ledgers == 1
        assert await ground.rows("dying") == [] and await ground.ledgers_there() == []


async def test_a_ledger_that_one_name_needs_stays_with_all_its_bytes(tmp_path: Path) -> None:
    async with grounds(tmp_path, live_share_min=0.0) as ground:
        await ground.sealed({f"cow{number}": b"%03d" % number for number in range(9)})
        await ground.bucket.delete_many([f"cow{number}" for number in range(8)])
        ground.clock.pass_ms(DAY_MS)
        report = await ground.collect()
        assert (report.ledgers, report.stored_bytes, report.live_bytes) == (1, 27, 3)
        assert report.dead_ledgers == 0 and await ground.bucket.get("cow8") == b"008"


async def test_what_was_overwritten_is_let_go(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        await ground.sealed({"elsa": b"the first"})
        before = (await ground.bucket.stat("elsa")).object_id
        await ground.bucket.put("elsa", b"the second")
        assert (await ground.collect()).deleted_ledgers == 1
        assert await ground.bucket.get("elsa") == b"the second"
        with pytest.raises(BlobNotFound):
            await ground.blobs.get(before)


async def test_an_old_id_is_readable_as_long_as_the_grace(tmp_path: Path) -> None:
    async with grounds(tmp_path) as ground:
        await ground.sealed({"elsa": b"moo"})
        before = (await ground.bucket.stat("elsa")).object_id
        await ground.bucket.delete("elsa")
        await ground.collect()
        async with ground.store.another(ground.settings) as other:
            assert await other.get(before) == b"moo"
        ground.clock.pass_ms(HOUR_MS)
        await ground.collect()
        async with ground.store.another(ground.settings) as other:
            with pytest.raises(BlobNotFound):
                await other.get(before)


async def test_a_ledger_that_was_sealed_just_now_is_left_to_puts_that_are_about_to_commit(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        await ground.sealed({"elsa": b"moo"})
        await ground.bucket.delete("elsa")
        ground.clock.pass_ms(-1)
        assert (await ground.collect()).dead_ledgers == 0
        ground.clock.pass_ms(1)
        assert (await ground.collect()).dead_ledgers == 1


class Sleeper:
    """A put that sleeps between its data and its row."""

    def __init__(self, ground: Ground) -> None:
        self.awake = asyncio.Event()
        self.stored: asyncio.Future[ObjectId] = asyncio.get_running_loop().create_future()
        self._store, self._store_shared = ground.blobs.store, ground.blobs.store_shared
        ground.blobs.store = self.sleep  # type: ignore[method-assign]
        ground.blobs.store_shared = self.sleep_shared  # type: ignore[method-assign]

    async def sleep(
        self, pool: LedgerPool, source: Source, part_ended: PartEnded | None = None
    ) -> ObjectId:
        """As `AsyncBlobs.store`, the first time."""
        return await self._slept(await self._store(pool, source, part_ended))

    async def sleep_shared(self, pool: LedgerPool, data: bytes) -> ObjectId:
        """As `AsyncBlobs.store_shared`, the first time."""
        return await self._slept(await self._store_shared(pool, data))

    async def _slept(self, found: ObjectId) -> ObjectId:
        if not self.stored.done():
            self.stored.set_result(found)
            await self.awake.wait()
        return found


async def test_a_put_that_sleeps_for_an_hour_between_data_and_row_commits(tmp_path: Path) -> None:
    async with grounds(tmp_path) as ground:
        sleeper = Sleeper(ground)
        put = asyncio.create_task(ground.bucket.put("elsa", b"moo"))
        slept_on = await sleeper.stored
        async with ground.store.another(ground.settings) as other:
            for _ in range(6):
                ground.clock.pass_ms(HOUR_MS // 6)
                await other.collect()
        sleeper.awake.set()
        assert (await put).object_id == slept_on and await ground.bucket.get("elsa") == b"moo"


async def test_a_put_whose_ledger_died_while_it_slept_writes_its_data_again(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        sleeper = Sleeper(ground)
        put = asyncio.create_task(ground.bucket.put("elsa", b"moo"))
        slept_on = await sleeper.stored
        async with ground.store.another(ground.settings) as other:
            ground.clock.pass_ms(2 * HOUR_MS)
            assert (await other.collect(BUCKET)).buckets[0].sealed_ledgers == 1
            ground.clock.pass_ms(HOUR_MS // 2)
            assert (await other.collect(BUCKET)).buckets[0].dead_ledgers == 1
        sleeper.awake.set()
        info = await put
        assert info.object_id.ledger_id != slept_on.ledger_id
        ground.clock.pass_ms(HOUR_MS)
        assert (await ground.collect()).deleted_ledgers == 1
        assert await ground.bucket.get("elsa") == b"moo"


async def test_a_put_whose_bytes_are_gone_when_it_wakes_up_stores_them_again(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        sleeper = Sleeper(ground)
        put = asyncio.create_task(ground.bucket.put("elsa", b"moo"))
        await sleeper.stored
        await _collect_all(ground)
        sleeper.awake.set()
        await put
        assert await ground.bucket.get("elsa") == b"moo"


async def test_a_put_whose_list_of_parts_is_gone_when_it_wakes_up_stores_it_again(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        sleeper, body = Sleeper(ground), bytes(range(250)) * 2
        put = asyncio.create_task(ground.bucket.put("elsa", body))
        slept_on = await sleeper.stored
        async with ground.store.another(ground.settings) as other:
            for _ in range(3):
                ground.clock.pass_ms(2 * HOUR_MS)
                await other.collect()
        assert slept_on.ledger_id not in await ground.ledgers_there()
        sleeper.awake.set()
        await put
        assert await ground.bucket.get("elsa") == body


async def test_a_stream_whose_bytes_are_gone_when_it_wakes_up_is_refused(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"mo"
        yield b"o"

    async with grounds(tmp_path) as ground:
        sleeper = Sleeper(ground)
        put = asyncio.create_task(ground.bucket.put("elsa", pieces()))
        await sleeper.stored
        await _collect_all(ground)
        sleeper.awake.set()
        with pytest.raises(BlobNotStored):
            await put
        assert not await ground.bucket.exists("elsa")
        await ground.bucket.put("elsa", pieces())
        assert await ground.bucket.get("elsa") == b"moo"


async def _collect_all(ground: Ground) -> None:
    """Collect until no ledger is left, in another process."""
    async with ground.store.another(ground.settings) as other:
        for _ in range(3):
            ground.clock.pass_ms(2 * HOUR_MS)
            await other.collect()
    assert await ground.ledgers_there() == []


async def _others(ground: Ground) -> list[int]:
    """Ledgers that are none of the bucket's: a log's, another bucket's, one of no bucket."""
    bucket_id = str(ground.bucket.bucket_id).encode()
    client = ground.blobs.client
    made = [
        await client.create_ledger(metadata=custom)
        for custom in (
            {"owner": b"log:herd/system", "bucket": bucket_id},
            {"owner": b"blobit", "bucket": bucket_id + b"0"},
            {"owner": b"blobit"},
            {},
        )
    ]
    return [writer.ledger_id for writer in made]


async def test_a_row_that_names_a_ledger_of_somebody_else_deletes_nothing(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        others = await _others(ground)
        rows = await ground.blobs.rows("blobs")
        columns = ("ledger_id", "bucket_id", "since_ms")
        values = [(other, ground.bucket.bucket_id, 1) for other in others]
        dying = [dict(zip(columns, each, strict=True)) for each in values]
        async with rows.transaction() as transaction:
            await transaction.write({("dying", (row["ledger_id"],)): row for row in dying})
            await transaction.commit()
        would = await ground.collect(dry_run=True)
        report = await ground.collect()
        assert (report.deleted_ledgers, report.waiting_ledgers, report.foreign_ledgers) == (0, 4, 4)
        assert (would.deleted_ledgers, would.waiting_ledgers, would.foreign_ledgers) == (0, 4, 4)
        assert set(others) <= set(await ground.ledgers_there())
        assert await ground.rows("dying") == dying


async def test_a_row_that_names_a_ledger_of_somebody_else_fences_no_writer(tmp_path: Path) -> None:
    async with grounds(tmp_path) as ground:
        await ground.bucket.put("elsa", b"moo")
        [row] = await ground.rows("ledgers")
        log = await ground.blobs.client.create_ledger(metadata={"owner": b"log:broker"})
        rows = await ground.blobs.rows("blobs")
        async with rows.transaction() as transaction:
            forged = {**row, "ledger_id": log.ledger_id, "created_ms": 0}
            await transaction.write({("ledgers", (log.ledger_id,)): forged})
            await transaction.commit()
        report = await ground.collect()
        assert (report.foreign_ledgers, report.sealed_ledgers) == (1, 0)
        assert await log.append(b"acknowledged") == 0


async def test_a_round_that_was_cut_short_behind_the_row_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        await ground.sealed({"elsa": b"moo"})
        await ground.bucket.delete("elsa")

        async def away(ledger_id: int) -> None:
            raise MetadataUnavailable("the metadata store is away")

        with monkeypatch.context() as patched:
            patched.setattr(ground.blobs.client, "delete_ledger", away)
            report = await ground.collect()
        assert (report.dead_ledgers, report.deleted_ledgers, report.waiting_ledgers) == (1, 0, 1)
        assert len(await ground.ledgers_there()) == 1
        assert (await ground.collect()).deleted_ledgers == 1
        assert await ground.ledgers_there() == [] and await ground.rows("dying") == []


async def test_a_round_that_was_cut_short_behind_the_ledger_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        await ground.sealed({"elsa": b"moo"})
        await ground.bucket.delete("elsa")
        await ground.collect()
        [ledger_id] = await ground.ledgers_there()
        await ground.blobs.client.delete_ledger(ledger_id)
        ground.clock.pass_ms(HOUR_MS)
        assert (await ground.collect()).deleted_ledgers == 1
        assert await ground.rows("dying") == []


async def test_rounds_at_the_same_time_do_no_harm_to_each_other(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        await ground.sealed({f"cow{number}": b"%02d" % number for number in range(20)})
        await ground.bucket.delete_many([f"cow{number}" for number in range(13)])
        async with ground.store.another(ground.settings) as other:
            rounds = [ground.blobs.collect() for _ in range(3)] + [other.collect()]
            await asyncio.gather(*rounds)
        for number in range(13, 20):
            assert await ground.bucket.get(f"cow{number}") == b"%02d" % number
        assert await ground.rows("dying") == []


async def test_an_abandoned_ledger_is_sealed_and_its_writer_if_alive_takes_another(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        before = await ground.bucket.put("elsa", b"moo")
        ground.clock.pass_ms(2 * HOUR_MS)
        async with ground.store.another(ground.settings) as other:
            [report] = (await other.collect(BUCKET)).buckets
        assert report.sealed_ledgers == 1
        [row] = await ground.rows("ledgers")
        assert (row["state"], row["stored_bytes"]) == (2, 3)
        after = await ground.bucket.put("alma", b"muh")
        assert after.object_id.ledger_id != before.object_id.ledger_id
        assert await ground.bucket.get("elsa") == b"moo"
        assert await ground.bucket.get("alma") == b"muh"


async def test_a_writer_that_sleeps_between_row_and_ledger_loses_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(tmp_path) as ground:
        client, awake = ground.blobs.client, asyncio.Event()
        asleep, create = asyncio.Event(), client._create

        async def sleepy(*arguments: object) -> object:
            if not asleep.is_set():
                asleep.set()
                await awake.wait()
            return await create(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(client, "_create", sleepy)
        put = asyncio.create_task(ground.bucket.put("elsa", b"moo"))
        await asleep.wait()
        [ledger_id] = await ground.ledgers()
        with pytest.raises(NoSuchLedger):
            await client.ledger_metadata(ledger_id)
        for _ in range(3):
            ground.clock.pass_ms(2 * HOUR_MS)
            await ground.blobs.collect()
        assert await ground.ledgers() == []
        awake.set()
        assert (await put).object_id.ledger_id != ledger_id
        assert await ground.bucket.get("elsa") == b"moo"
        ground.clock.pass_ms(HOUR_MS)
        assert (await ground.blobs.collect()).orphan_ledgers == 1
        assert await ground.ledgers_there() == await ground.ledgers()
        assert await ground.bucket.get("elsa") == b"moo"
