"""Compaction: objects of half-dead ledgers move under everybody's eyes, and nobody notices."""

import asyncio
import gc
from pathlib import Path

import pytest

from blobit import BlobNotFound, BlobNotStored, ObjectId
from blobit import compaction as compacting
from blobit.copying import copy_part
from blobit.object_id import Kind
from blobit.writers import LedgerPool
from engine.ledger.reader import LedgerReader
from tests.blobit.garbage.grounds import BUCKET, HOUR_MS, Ground, grounds

HERD = {f"cow{number}": b"%04d" % number for number in range(10)}


async def half_dead(ground: Ground) -> list[str]:
    """A sealed ledger of which most is dead; returns the names that live."""
    await ground.sealed(HERD)
    await ground.bucket.delete_many([f"cow{number}" for number in range(7)])
    return ["cow7", "cow8", "cow9"]


async def test_named_objects_move_with_their_etag_and_the_ledger_goes_after_the_grace(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        names = await half_dead(ground)
        before = [await ground.bucket.stat(name) for name in names]
        report = await ground.collect()
        assert (report.compacted_ledgers, report.moved_objects, report.moved_bytes) == (1, 3, 12)
        assert (report.dead_ledgers, report.dead_bytes, report.live_bytes) == (1, 28, 12)
        old_ledger = before[0].object_id.ledger_id
        for was in before:
            now = await ground.bucket.stat(was.name)
            assert now.object_id.ledger_id != old_ledger
            assert (now.etag, now.created_ms, now.length) == (was.etag, was.created_ms, was.length)
            assert await ground.bucket.get(was.name) == HERD[was.name]
            assert await ground.blobs.get(was.object_id) == HERD[was.name], "within the grace"
        ground.clock.pass_ms(HOUR_MS)
        assert (await ground.collect()).deleted_ledgers == 1
        assert old_ledger not in await ground.ledgers_there()
        async with ground.store.another(ground.settings) as other:
            with pytest.raises(BlobNotFound):
                await other.get(before[0].object_id)
            assert await (await other.bucket(BUCKET)).get("cow9") == HERD["cow9"]


async def test_a_ledger_of_which_half_is_live_is_left_as_it_is(tmp_path: Path) -> None:
    async with grounds(tmp_path) as ground:
        await ground.sealed(HERD)
        await ground.bucket.delete_many([f"cow{number}" for number in range(5)])
        report = await ground.collect()
        assert (report.compacted_ledgers, report.moved_objects, report.live_bytes) == (0, 0, 20)


async def test_a_round_moves_so_many_names_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0, names_max=4) as ground:
        for turn in range(3):
            await ground.sealed({f"cow{turn}-{number}": b"%04d" % number for number in range(10)})
            gone = [f"cow{turn}-{number}" for number in range(7)]
            await ground.bucket.delete_many(gone)
        for _ in range(3):
            report = await ground.collect()
            assert (report.compacted_ledgers, report.moved_objects) == (1, 3)
        assert (await ground.collect()).compacted_ledgers == 0
        assert await ground.bucket.get("cow2-9") == b"0009"


async def test_what_changes_while_it_is_copied_stays_as_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        await half_dead(ground)
        changing = asyncio.Lock()

        async def slow(reader: LedgerReader, part: ObjectId, pool: LedgerPool) -> ObjectId:
            copied = await copy_part(reader, part, pool)
            async with changing:
                await ground.bucket.put("cow7", b"written anew")
                await ground.bucket.delete("cow8")
                if await ground.bucket.exists("cow9"):
                    await ground.bucket.rename("cow9", "cow10")
            return copied

        with monkeypatch.context() as patched:
            patched.setattr(compacting, "copy_part", slow)
            assert (await ground.collect()).moved_objects == 0
        assert await ground.bucket.get("cow7") == b"written anew"
        assert not await ground.bucket.exists("cow8")
        assert (await ground.collect()).moved_objects == 1, "the one that was renamed"
        assert await ground.bucket.get("cow10") == HERD["cow9"]


async def test_a_copy_that_fails_after_its_round_was_cancelled_troubles_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unheard: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unheard.append(told))
    async with grounds(tmp_path) as ground:
        await half_dead(ground)
        begun, may_fail, failed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def fail(reader: LedgerReader, part: ObjectId, pool: LedgerPool) -> ObjectId:
            begun.set()
            await may_fail.wait()
            failed.set()
            raise BlobNotStored("no ledger could be created")

        with monkeypatch.context() as patched:
            patched.setattr(compacting, "copy_part", fail)
            collecting = asyncio.ensure_future(ground.collect())
            await begun.wait()
            collecting.cancel()
            await asyncio.wait([collecting])
            may_fail.set()
            await failed.wait()
        assert (await ground.collect()).moved_objects == 3
    del collecting
    gc.collect()
    assert not unheard


async def test_a_reader_in_the_middle_goes_on_where_the_object_has_moved(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        await ground.sealed({"head": b"h" * 40, "a": b"a" * 45, "b": b"b" * 45})
        await ground.sealed({"tail": b"t" * 40, "c": b"c" * 45, "d": b"d" * 45})
        await ground.bucket.concat("whole", ["head", "tail"])
        await ground.bucket.delete_many("abcd")
        before = await ground.ledgers_there()
        stream = ground.bucket.stream("whole")
        got = [await anext(stream)]
        async with ground.store.another(ground.settings) as other:
            [report] = (await other.collect(BUCKET)).buckets
        assert (report.moved_objects, report.deleted_ledgers) == (1, 2)
        assert len(set(before) & set(await ground.ledgers_there())) == len(before) - 2
        got += [piece async for piece in stream]
        assert b"".join(got) == b"h" * 40 + b"t" * 40


async def test_unnamed_objects_never_move(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0, live_share_min=1.0) as ground:
        async with ground.store.another(ground.settings) as other:
            bucket = await other.bucket(BUCKET)
            ids = [await bucket.put_unnamed(b"%04d" % number) for number in range(10)]
        ground.clock.pass_ms(HOUR_MS)
        for gone in ids[:9]:
            assert await ground.bucket.delete_unnamed(gone)
        report = await ground.collect()
        assert (report.moved_objects, report.dead_ledgers, report.live_bytes) == (0, 0, 4)
        assert await ground.blobs.get(ids[9]) == b"0009"
        await ground.bucket.delete_unnamed(ids[9])
        assert (await ground.collect()).deleted_ledgers == 1


async def test_a_ledger_that_holds_a_part_of_an_upload_waits_for_it(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        async with ground.store.another(ground.settings) as other:
            bucket = await other.bucket(BUCKET)
            await bucket.put_many(HERD.items())
            upload = await bucket.create_upload("whole")
            await bucket.put_part(upload, 1, b"part")
        ground.clock.pass_ms(HOUR_MS)
        await ground.bucket.delete_many(list(HERD)[1:])
        report = await ground.collect()
        assert (report.compacted_ledgers, report.moved_objects) == (0, 0)
        await ground.bucket.complete_upload(upload)
        report = await ground.collect()
        assert (report.compacted_ledgers, report.moved_objects) == (1, 2)
        assert await ground.bucket.get("whole") == b"part"


async def test_what_two_names_share_is_copied_once(tmp_path: Path) -> None:
    async with grounds(tmp_path) as ground:
        await half_dead(ground)
        await ground.bucket.copy("cow9", "twin")
        report = await ground.collect()
        assert (report.moved_objects, report.moved_bytes, report.live_bytes) == (4, 12, 12)
        twin, cow = await ground.bucket.stat("twin"), await ground.bucket.stat("cow9")
        assert twin.packed_id == cow.packed_id and twin.etag != cow.etag
        assert await ground.bucket.get("twin") == HERD["cow9"]


async def test_an_object_of_many_appends_becomes_one_piece_when_it_moves(tmp_path: Path) -> None:
    async with grounds(tmp_path) as ground:
        async with ground.store.another(ground.settings) as other:
            bucket = await other.bucket(BUCKET)
            for number in range(9):
                await bucket.append("log", b"%d" % number)
        ground.clock.pass_ms(HOUR_MS)
        before = await ground.bucket.stat("log")
        report = await ground.collect()
        assert report.compacted_ledgers and report.moved_objects == 1
        after = await ground.bucket.stat("log")
        assert after.object_id.kind is Kind.DATA and after.etag == before.etag
        assert after.object_id.checksum == before.object_id.checksum
        assert await ground.bucket.get("log") == b"012345678"


async def test_parts_of_a_large_object_that_lie_elsewhere_stay_where_they_are(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        await ground.sealed({"head": b"h" * 30, **HERD, "more": b"m" * 40})
        await ground.sealed({"tail": b"t" * 45})
        await ground.bucket.concat("whole", ["head", "tail"])
        await ground.bucket.delete_many([*HERD, "more"])
        assert (await ground.bucket.stat("whole")).length == 75
        [head, tail] = await ground.blobs.parts_of((await ground.bucket.stat("whole")).object_id)
        report = await ground.collect()
        assert (report.compacted_ledgers, report.moved_objects, report.moved_bytes) == (1, 1, 30)
        after = await ground.blobs.parts_of((await ground.bucket.stat("whole")).object_id)
        assert after[1] == tail and after[0].ledger_id != head.ledger_id
        assert await ground.bucket.get("whole") == b"h" * 30 + b"t" * 45


async def test_a_part_that_is_larger_than_what_is_shared_moves_in_a_ledger_of_its_own(
    tmp_path: Path,
) -> None:
    body = bytes(range(120))
    async with grounds(tmp_path, grace_ms=0) as ground:
        async with ground.store.another(ground.settings) as other:
            bucket = await other.bucket(BUCKET)
            await bucket.put("dead", body + b"x" * 15)
            info = await bucket.put("live", body[:60])
        ground.clock.pass_ms(HOUR_MS)
        await ground.bucket.delete("dead")
        report = await ground.collect()
        assert report.compacted_ledgers == 1 and report.moved_bytes == 60
        assert (await ground.bucket.stat("live")).packed_id != info.packed_id
        assert await ground.bucket.get("live") == body[:60]


async def test_what_cannot_be_read_is_left_to_the_next_round(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        names = await half_dead(ground)
        for bookie in ground.store.cluster.bookies:
            bookie.mute = True
        report = await ground.collect()
        assert (report.unreadable_ledgers, report.dead_ledgers) == (1, 0)
        for bookie in ground.store.cluster.bookies:
            bookie.mute = False
        assert (await ground.collect()).compacted_ledgers == 1
        for name in names:
            assert await ground.bucket.get(name) == HERD[name]


async def test_copies_whose_ledger_was_collected_are_made_again_in_another(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        await half_dead(ground)
        # The store's open ledger looks abandoned to another one, which lets it die.
        await ground.bucket.put("calf", b"muh")
        [*_, target] = await ground.ledgers()
        await ground.bucket.delete("calf")
        ground.clock.pass_ms(2 * HOUR_MS)
        rows = await ground.blobs.rows("blobs")
        async with rows.transaction() as transaction:
            await transaction.write({("ledgers", (target,)): None})
            await transaction.commit()
        assert (await ground.collect()).moved_objects == 0
        assert (await ground.collect()).moved_objects == 3
        assert await ground.bucket.get("cow9") == HERD["cow9"]


async def test_an_object_of_parts_in_several_ledgers_comes_to_rest(tmp_path: Path) -> None:
    """The list of its parts moves with each of them, and is garbage where it was."""
    async with grounds(tmp_path, grace_ms=0, live_share_min=1.0) as ground:
        await ground.sealed({"a": b"a" * 40, "gone": b"x" * 40})
        async with ground.store.another(ground.settings) as other:
            bucket = await other.bucket(BUCKET)
            await bucket.put("b", b"b" * 40)
            await bucket.concat("whole", ["a", "b"])
        ground.clock.pass_ms(HOUR_MS)
        await ground.bucket.delete_many(["a", "b", "gone"])
        moved = []
        for _ in range(8):
            ground.clock.pass_ms(HOUR_MS)
            async with ground.store.another(ground.settings) as other:
                [report] = (await other.collect(BUCKET)).buckets
            moved.append(report.moved_objects)
        assert moved[0] == 1 and moved[-4:] == [0] * 4
        assert await ground.bucket.get("whole") == b"a" * 40 + b"b" * 40
