"""Buckets move between tablespaces while they are in use."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobit import (
    AsyncBlobs,
    AsyncBucket,
    BlobError,
    BucketSettings,
    GarbageSettings,
    NoSuchBucket,
    NoSuchObject,
    QuotaExceeded,
    SettingsInvalid,
    moving,
)
from blobit.counting import is_frozen
from blobit.garbage_scope import BucketScope
from blobit.moving import Phase
from blobit.tables import REGISTRY
from herd.wire import table_calls
from tests.blobit.contract.objects_contract import body
from tests.blobit.contract.stores import SMALL, Store, clustered, embedded

EAGER = replace(SMALL, garbage=GarbageSettings(grace_ms=0, settle_ms=0, orphan_ms=0, batch_rows=5))
FIRST, SECOND, THIRD = "blobs__pool_1", "blobs__pool_2", "blobs__pool_3"
OF_ONE = ("homes", "open_buckets", "ledgers", "objects", "expiries", "refs", "uploads", "counts")


@pytest.fixture(autouse=True)
def _soon_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "STILL_S", 0.5)
    monkeypatch.setattr(moving, "_BEAT_S", 0.05)
    monkeypatch.setattr(moving, "_PAUSE_S", 0.01)


async def filled(store: Store, name: str = "cows", **settings: Any) -> AsyncBucket:
    """A bucket with something of everything."""
    bucket = await store.blobs.create_bucket(name, BucketSettings(**settings))
    await bucket.put_many([(f"small {number:02}", body(20, number)) for number in range(17)])
    await bucket.put("large", body(700), metadata={"a": "b"}, expires_ms=2**50)
    await bucket.put("gone", body(30))
    await bucket.delete("gone")
    await bucket.copy("large", "copy")
    upload = await bucket.create_upload("parts")
    await bucket.put_part(upload, 1, body(120))
    await bucket.put_part(upload, 2, body(40))
    return bucket


async def content(bucket: AsyncBucket) -> dict[str, bytes]:
    """All objects, by their names."""
    return {info.name: await bucket.get(info.name) async for info in bucket.scan()}


async def rows_of(blobs: AsyncBlobs, tablespace: str, bucket_id: int) -> dict[str, list[Any]]:
    """The rows of a bucket in a tablespace."""
    rows = await blobs.rows(tablespace)
    return {
        table: [row async for row in rows.scan(table) if row["bucket_id"] == bucket_id]
        for table in OF_ONE
    }


async def test_a_bucket_that_moves_is_the_same_for_handles_that_were_open_before(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket = await filled(store)
        far = await other.bucket("cows")
        await far.put("far", body(90))
        kept = await bucket.put_unnamed(body(50))
        [upload] = await far.uploads()
        await store.blobs.set_quota("cows", quota_objects=30)
        before, there = await content(bucket), await rows_of(store.blobs, FIRST, bucket.bucket_id)
        use = await store.blobs.use("cows")
        info = await store.blobs.move_bucket("cows")
        assert info.tablespace == SECOND and bucket.core.rows.tablespace == SECOND
        assert await content(far) == await content(bucket) == before
        assert await other.use("cows") == await store.blobs.use("cows") == use
        moved = await rows_of(store.blobs, SECOND, bucket.bucket_id)
        counts, old_counts = moved.pop("counts"), there.pop("counts")
        assert moved == there
        assert sum(row["objects"] for row in counts) == sum(r["objects"] for r in old_counts)
        left = await rows_of(store.blobs, FIRST, bucket.bucket_id)
        # What tells others that it has left.
        assert len(left.pop("homes")) == 1
        assert all(map(is_frozen, left["counts"])) and not any(
            row["objects"] or row["size_bytes"] for row in left.pop("counts")
        )
        assert not any(left.values())
        assert {each.tablespace: each.buckets for each in await other.pool_tablespaces()} == {
            FIRST: 0,
            SECOND: 1,
        }
        assert [part.number for part in await far.parts(upload.upload_id)] == [1, 2]
        assert (await far.complete_upload(upload.upload_id)).length == 160
        assert await far.delete_unnamed(kept)
        await far.put_many([(f"more {number}", body(5)) for number in range(8)])
        with pytest.raises(QuotaExceeded):
            await bucket.put_many([(f"too much {number}", body(5)) for number in range(8)])
        for _ in range(3):
            await store.blobs.collect()
        assert (await content(far)).keys() >= before.keys()


async def test_who_has_not_looked_since_reads_changes_and_lists_what_is_there_now(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store:
        bucket = await filled(store)
        calls: list[Callable[[AsyncBucket], Awaitable[object]]] = [
            lambda far: far.get("new"),
            lambda far: far.list("new"),
            lambda far: far.put("other", body(9)),
            lambda far: far.delete("new"),
            lambda far: far.append("new", body(9)),
            lambda far: far.uploads(),
            lambda far: far.usage(),
            lambda far: far.create_upload("x"),
            lambda far: far.put_unnamed(body(9)),
            lambda far: far.rename("new", "newer"),
        ]
        for call in calls:
            async with store.another(EAGER) as other:
                far = await other.bucket("cows")
                await store.blobs.move_bucket("cows")
                await bucket.put("new", body(33))
                await call(far)
                here, there = far.core.rows.tablespace, bucket.core.rows.tablespace
                assert here == there, calls.index(call)
        async with store.another(EAGER) as other:
            far = await other.bucket("cows")
            await store.blobs.move_bucket("cows")
            await bucket.delete("large")
            with pytest.raises(NoSuchObject):
                await far.get("large")
            await store.blobs.move_bucket("cows")
            await store.blobs.delete_bucket("cows", force=True)
            with pytest.raises(NoSuchBucket):
                await far.put("x", b"")


async def test_a_bucket_with_a_tablespace_of_its_own_moves_to_the_pool_and_leaves_none(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        made = await store.blobs.create_bucket("own", own_tablespace=True)
        named = await store.blobs.create_bucket("named", tablespace="farm")
        await asyncio.gather(*(bucket.put("cow", body(40)) for bucket in (made, named)))
        far = await other.bucket("own")
        for bucket in (made, named):
            info = await store.blobs.move_bucket(bucket.name)
            assert info.tablespace == FIRST and info.settings == BucketSettings()
            assert await bucket.get("cow") == body(40)
        assert await store.blobs.herd.names() == ["blobs", FIRST, "farm"]
        assert await far.get("cow") == body(40)
        await far.put("calf", body(30))
        assert await made.get("calf") == body(30)


async def test_a_bucket_goes_where_it_is_told_to_and_nowhere_else(tmp_path: Path) -> None:
    async with clustered(tmp_path, EAGER) as store:
        blobs = store.blobs
        await blobs.set_pool_limits(buckets=1)
        for name in ("cows", "sheep"):
            await blobs.create_bucket(name)
        with pytest.raises(SettingsInvalid, match="has 1 buckets"):
            await blobs.move_bucket("cows", SECOND)
        with pytest.raises(SettingsInvalid, match="not a tablespace of the pool"):
            await blobs.move_bucket("cows", "blobs")
        assert (await blobs.move_bucket("cows")).tablespace == "blobs__pool_3"
        assert (await blobs.move_bucket("sheep", FIRST)).tablespace == FIRST
        assert (await blobs.move_bucket("sheep", FIRST)).tablespace == FIRST
        with pytest.raises(NoSuchBucket):
            await blobs.move_bucket("goats")
    async with embedded(tmp_path / "folder") as store:
        await store.blobs.create_bucket("cows")
        with pytest.raises(SettingsInvalid, match="one tablespace"):
            await store.blobs.move_bucket("cows")


class Writers:
    """They put, delete and append through handles by turns, and look through all after each."""

    def __init__(self, handles: tuple[AsyncBucket, ...]) -> None:
        self.stopped = False
        self.known: dict[str, bytes | None] = {}
        """What each name has by now; None: it was deleted."""
        self.log = b""
        self._handles = handles

    async def write(self, own: int) -> None:
        """Put and delete names of one's own."""
        for turn in range(1, 300):
            handle, name = self._handles[turn % len(self._handles)], f"w{own} {turn % 7}"
            wanted = None if turn % 5 == 0 else body(30 + turn % 60, turn)
            await (handle.delete(name) if wanted is None else handle.put(name, wanted))
            self.known[name] = wanted
            for one in self._handles:
                assert await found_by(one, name) == wanted, (name, turn)
            if self.stopped:
                return

    async def append(self) -> None:
        """Append to one object."""
        for turn in range(200):
            await self._handles[turn % len(self._handles)].append("log", b"<%d>" % turn)
            self.log += b"<%d>" % turn
            if self.stopped:
                return


async def found_by(handle: AsyncBucket, name: str) -> bytes | None:
    """What a handle reads under a name; None: nothing."""
    try:
        return await handle.get(name)
    except NoSuchObject:
        return None


async def test_nothing_acknowledged_is_lost_while_a_bucket_moves_to_and_fro(
    tmp_path: Path,
) -> None:
    roomy = replace(EAGER, ledger_bytes_max=5_000)
    async with clustered(tmp_path, roomy) as store, store.another(roomy) as other:
        bucket = await filled(store)
        far = await other.bucket("cows")
        writers = Writers((bucket, far))
        calls = writers.write(1), writers.write(2), writers.append()
        tasks = [asyncio.create_task(call) for call in calls]
        for number, target in enumerate((None, FIRST, SECOND)):
            await (store.blobs, other)[number % 2].move_bucket("cows", target)
            await other.collect()
        writers.stopped = True
        await asyncio.gather(*tasks)
        for _ in range(3):
            await store.blobs.collect()
        assert len(writers.log) > 9 and await far.get("log") == writers.log
        for name, wanted in writers.known.items():
            assert await found_by(bucket, name) == await found_by(far, name) == wanted
        use = await store.blobs.use("cows")
        assert use == await other.set_quota("cows", recount=True)


class _Cut(Exception):
    """The mover ends here."""


def cut_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[int]:
    """Let the mover end at one of its transactions, before it or after it."""
    passed = [0]
    change = moving._done

    async def watched(call: Callable[[], Awaitable[Any]]) -> Any:
        passed[0] += 1
        if passed[0] == step:
            raise _Cut
        answer = await change(call)
        if passed[0] == -step:
            raise _Cut
        return answer

    monkeypatch.setattr(moving, "_done", watched)
    return passed


async def test_a_move_that_is_cut_short_anywhere_is_finished_by_who_waits_for_it(
    tmp_path: Path,
) -> None:
    roomy = replace(EAGER, ledger_bytes_max=5_000, garbage=replace(EAGER.garbage, batch_rows=500))
    async with clustered(tmp_path, roomy) as store, store.another(roomy) as other:
        bucket = await filled(store)
        far = await other.bucket("cows")
        wanted, cuts, step = await content(bucket), 0, 0
        while True:
            step += 1
            with pytest.MonkeyPatch.context() as patch:
                cut_at(patch, step)
                try:
                    await store.blobs.move_bucket("cows")
                    break
                except _Cut:
                    cuts += 1
            name = f"after {step}"
            # It is refused or done where the bucket is; then whoever comes finishes the move.
            await far.put(name, body(25, step))
            wanted[name] = body(25, step)
            assert await content(bucket) == wanted
            if step % 3 == 0:
                await other.collect()
            elif step % 3 == 1:
                await other.moves.finish(bucket.bucket_id)
        assert cuts > 15
        places = {info.tablespace for info in await other.buckets()}
        assert len(places) == 1
        pool = {each.tablespace: each.buckets for each in await other.pool_tablespaces()}
        assert sum(pool.values()) == 1 and pool[places.pop()] == 1
        assert (await far.usage()).objects == len(wanted)


async def test_an_upload_that_ends_while_its_bucket_moves_leaves_no_parts_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "STILL_S", 0.02)
    # Heartbeats would count as steps.
    monkeypatch.setattr(moving, "_BEAT_S", 1_000.0)

    async def stop(self: Any) -> None:
        raise _Cut

    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        step, cut = 0, True
        while cut:
            step += 1
            bucket = await store.blobs.create_bucket(f"cows-{step}")
            upload = await bucket.create_upload("parts")
            await bucket.put_part(upload, 1, body(120))
            kept = await bucket.create_upload("kept")
            await bucket.put_part(kept, 1, body(60))
            with pytest.MonkeyPatch.context() as patch, pytest.raises(_Cut):
                patch.setattr(moving._Mover, "_freeze", stop)
                await store.blobs.move_bucket(bucket.name)
            target = await store.blobs.rows(SECOND)
            copied = {row["upload_id"] async for row in target.scan("upload_parts")}
            assert copied >= {upload, kept}
            await bucket.abort_upload(upload)
            with pytest.MonkeyPatch.context() as patch:
                cut_at(patch, step)
                try:
                    await other.moves.finish(bucket.bucket_id)
                    cut = False
                except _Cut:
                    await store.blobs.moves.finish(bucket.bucket_id)
            for tablespace in (FIRST, SECOND):
                rows = await store.blobs.rows(tablespace)
                left = [row["upload_id"] async for row in rows.scan("upload_parts")]
                assert upload not in left and left.count(kept) == (tablespace == SECOND), step
            assert [part.number for part in await bucket.parts(kept)] == [1]
        assert step > 10


async def test_a_mover_that_wakes_up_late_changes_nothing(tmp_path: Path) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket = await filled(store)
        far, asleep, woken = await other.bucket("cows"), asyncio.Event(), asyncio.Event()
        copied = moving._Mover._freeze

        async def slow(self: Any) -> None:
            if self._blobs is store.blobs and not asleep.is_set():
                asleep.set()
                await woken.wait()
            await copied(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving._Mover, "_freeze", slow)
            first = asyncio.create_task(store.blobs.move_bucket("cows"))
            await asleep.wait()
            await other.moves.finish(bucket.bucket_id)
            assert (await other.bucket("cows")).core.rows.tablespace == SECOND
            await far.put("large", body(5))
            # It is back where it was: there nobody may close it for the move of before.
            await other.move_bucket("cows", FIRST)
            woken.set()
            await first
        await far.put("new", body(8))
        assert await bucket.get("new") == body(8) and await bucket.get("large") == body(5)
        rows = await store.blobs.rows(REGISTRY)
        [move] = [row async for row in rows.scan("moves")]
        assert move["phase"] == Phase.DONE


async def test_a_mover_that_wakes_up_after_the_bucket_is_gone_leaves_nothing(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket, asleep, woken = await filled(store), asyncio.Event(), asyncio.Event()
        claimed = moving._Mover._claim_places

        async def slow(self: Any) -> None:
            if self._blobs is store.blobs:
                asleep.set()
                await woken.wait()
            await claimed(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving._Mover, "_claim_places", slow)
            first = asyncio.create_task(store.blobs.move_bucket("cows"))
            await asleep.wait()
            await other.moves.finish(bucket.bucket_id)
            await other.delete_bucket("cows", force=True)
            for _ in range(4):
                await other.collect()
            woken.set()
            with pytest.raises(NoSuchBucket):
                await first
        for tablespace in (REGISTRY, FIRST, SECOND):
            rows = await other.rows(tablespace)
            for table in (*OF_ONE, "moving_buckets"):
                assert [row async for row in rows.scan(table)] == [], (tablespace, table)


async def test_a_bucket_that_is_deleted_on_its_way_leaves_nothing_anywhere(tmp_path: Path) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        for step in range(2, 40, 7):
            bucket = await filled(store, f"bucket-{step}")
            far = await other.bucket(bucket.name)
            with pytest.MonkeyPatch.context() as patch, pytest.raises(_Cut):
                cut_at(patch, step)
                await store.blobs.move_bucket(bucket.name)
            await other.delete_bucket(bucket.name, force=True)
            for handle in (bucket, far):
                with pytest.raises(NoSuchBucket):
                    await handle.put("late", b"")
            again = await other.create_bucket(bucket.name)
            await again.put("cow", body(9))
            assert await content(again) == {"cow": body(9)}
            await other.delete_bucket(bucket.name, force=True)
        await store.blobs.close()
        for _ in range(4):
            await other.collect()
        names = [name for name in await other.herd.names() if name.startswith("blobs__pool_")]
        for tablespace in (REGISTRY, *names):
            rows = await other.rows(tablespace)
            for table in (*OF_ONE, "dying", "upload_parts", "moves", "moving_buckets"):
                assert [row async for row in rows.scan(table)] == [], (tablespace, table)


async def test_a_round_that_looked_before_the_move_lets_no_ledger_die(tmp_path: Path) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket = await filled(store)
        async with store.another(EAGER) as third:
            await (await third.bucket("cows")).put_many([("one", body(90)), ("two", body(90))])
        before = await content(bucket)
        collector = other._collector
        info = (await other.bucket("cows")).core.info
        ledgers = await (await other.rows(FIRST)).ledgers(bucket.bucket_id)
        scope: BucketScope = await collector._scope(info, False)
        clean = moving._Mover._clean

        async def in_between(self: Any) -> None:
            rows = self._source.committer.rows
            for ledger in ledgers:
                held = (ledger["ledger_id"], bucket.bucket_id)
                await self._remove("refs", rows.scan("refs", first=held, last=held))
            # Nothing holds them any more, where the round looks.
            report = await collector._round(info, ledgers, [], False)
            assert report.dead_ledgers == 0
            await clean(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving._Mover, "_clean", in_between)
            await store.blobs.move_bucket("cows")
        assert scope.bucket_id == bucket.bucket_id
        for _ in range(3):
            await other.collect()
        assert await content(bucket) == before


async def test_a_ledger_whose_bucket_moved_while_its_row_was_looked_for_is_no_orphan(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket = await filled(store)
        before = await content(bucket)
        find = other._collector._orphans.find

        async def late(known: Any, rows_of: Any, *more: Any) -> Any:
            async def moved(bucket_id: int) -> Any:
                rows = await rows_of(bucket_id)
                if bucket.core.rows.tablespace == FIRST:
                    await store.blobs.move_bucket("cows")
                return rows

            return await find(set(), moved, *more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(other._collector._orphans, "find", late)
            report = await other.collect()
        assert bucket.core.rows.tablespace == SECOND and report.orphan_ledgers == 0
        # Also where a bucket that is new makes the round look at all places again.
        with pytest.MonkeyPatch.context() as patch:

            async def again(known: Any, rows_of: Any, *more: Any) -> Any:
                async def moved(bucket_id: int) -> Any:
                    rows = await rows_of(bucket_id)
                    if bucket.core.rows.tablespace == SECOND:
                        await store.blobs.move_bucket("cows")
                        await rows_of((await filled(store, "sheep")).bucket_id)
                    return rows

                return await find(set(), moved, *more)

            patch.setattr(other._collector._orphans, "find", again)
            report = await other.collect()
        assert bucket.core.rows.tablespace == FIRST and report.orphan_ledgers == 0
        assert await content(bucket) == before


async def test_what_is_put_while_the_last_rows_are_copied_waits_and_is_there(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket = await filled(store)
        far = await other.bucket("cows")
        leave = moving._Mover._leave
        puts: list[asyncio.Task[Any]] = []

        async def late(self: Any) -> None:
            calls = (far.put("late", body(9)), far.delete("large"), far.put_unnamed(body(9)))
            puts.extend(map(asyncio.ensure_future, calls))
            done, _ = await asyncio.wait(puts, timeout=0.2)
            assert not done, "everything was copied already"
            # What was acknowledged before is read all the while.
            assert await far.get("large") == await bucket.get("large") == body(700)
            await leave(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving._Mover, "_leave", late)
            await store.blobs.move_bucket("cows")
        _, deleted, kept = await asyncio.gather(*puts)
        assert deleted and await bucket.get("late") == body(9)
        assert await store.blobs.get(kept) == body(9)
        with pytest.raises(NoSuchObject):
            await bucket.get("large")


async def test_a_server_of_an_older_version_is_asked_for_the_place_of_a_bucket_in_a_second_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table_calls._rows
    monkeypatch.setattr(table_calls, "_rows", lambda table, call, also=None: rows(table, call))
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket = await filled(store)
        far = await other.bucket("cows")
        await store.blobs.move_bucket("cows")
        await bucket.put("large", body(5))
        assert await far.get("large") == body(5)


async def test_pins_of_the_tablespaces_where_a_bucket_was_keep_its_ledgers(tmp_path: Path) -> None:
    async with clustered(tmp_path, EAGER) as store:
        bucket = await filled(store)
        await store.blobs.move_bucket("cows")
        asked: set[str] = set()
        pinned = store.blobs._collector._pinned
        holding = pinned.holding

        async def watched(tablespace: str, ledger_ids: Any) -> Any:
            asked.add(tablespace)
            return await holding(tablespace, ledger_ids)

        await bucket.delete("large")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pinned, "holding", watched)
            await store.blobs.collect("cows")
        assert asked == {FIRST, SECOND}


async def test_a_move_copies_and_removes_some_rows_in_a_transaction(tmp_path: Path) -> None:
    async with clustered(tmp_path, EAGER) as store:
        bucket = await filled(store)
        sizes: list[int] = []
        write = moving._Mover._write

        async def watched(self: Any, place: Any, rows: Any) -> None:
            sizes.append(len(rows))
            await write(self, place, rows)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving._Mover, "_write", watched)
            await store.blobs.move_bucket("cows")
        assert sum(sizes) > 100 and max(sizes) <= 18, "all counts of a bucket go together"
        assert len(await content(bucket)) == 19


async def test_what_went_wrong_with_a_move_is_told_and_it_can_be_called_again(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store:
        bucket = await filled(store)

        async def fail(self: Any) -> None:
            raise BlobError("the disk is on holiday")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving._Mover, "_switch", fail)
            with pytest.raises(BlobError, match="holiday"):
                await store.blobs.move_bucket("cows")
        assert (await store.blobs.move_bucket("cows", SECOND)).tablespace == SECOND
        await bucket.put("cow", body(3))
        assert await bucket.get("cow") == body(3)
