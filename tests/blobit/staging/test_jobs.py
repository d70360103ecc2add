"""Jobs that store objects first and name them in the end: all of it counts once, or goes."""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from blobit import BlobError, BlobNotStored, BlobSettings, MetadataUnavailable
from blobit.committing import Change
from blobit.naming import packed_metadata
from blobit.staging import naming
from blobit.staging.naming import drop, give_up, given_up, is_done, name_all, upload_id_of
from blobit.staging.storing import Staged, Stager, Unstored
from engine.expiry import CLOCK_DIFFERENCE_MS
from herd.staging.layout import Job
from tests.blobit.contract.stores import Store, clustered, embedded
from tests.blobit.garbage.grounds import BUCKET, DAY_MS, HOUR_MS, Ground, grounds

JOB = Job("one of today")
Opened = Callable[[Path, BlobSettings], AbstractAsyncContextManager[Store]]


async def staged(
    ground: Ground, objects: dict[str, bytes], *, job: Job = JOB, task: int = 1, run: str = "run"
) -> Staged:
    """What a task stores in a process that ends afterwards."""
    async with ground.store.another(ground.settings) as other:
        core = (await other.bucket(BUCKET)).core
        stager = Stager(core, upload_id_of(job, run, task), given_up(core, job, run))
        for name, data in objects.items():
            await stager.put([Unstored(name, data)])
        return await stager.end()


async def contents(ground: Ground) -> dict[str, bytes]:
    return {info.name: await ground.bucket.get(info.name) async for info in ground.bucket.scan()}


OBJECTS = {"a": b"small", "b": b"", "c": b"x" * 500, "d": b"listed " * 100}


async def test_nothing_is_visible_before_the_job_ends_and_then_all_is(tmp_path: Path) -> None:
    async with grounds(tmp_path) as ground:
        parts = [
            await staged(ground, {"a": OBJECTS["a"], "b": OBJECTS["b"]}),
            await staged(ground, {"c": OBJECTS["c"], "d": OBJECTS["d"]}, task=2),
        ]
        assert [one.objects for one in parts] == [2, 2] and await contents(ground) == {}
        assert await ground.bucket.uploads() == [], "nobody sees what holds the ledgers"
        await name_all(ground.bucket.core, JOB, parts, keyed=False)
        assert await contents(ground) == OBJECTS
        assert await ground.rows("uploads") == [] and await ground.rows("upload_parts") == []


async def test_what_is_stored_outlives_collection_until_the_job_ends(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        part = await staged(ground, OBJECTS)
        for _ in range(6):
            ground.clock.pass_ms(DAY_MS)
            await ground.blobs.collect()
        await name_all(ground.bucket.core, JOB, [part], keyed=False)
        ground.clock.pass_ms(DAY_MS)
        await ground.blobs.collect()
        assert await contents(ground) == OBJECTS


async def test_a_job_that_is_dropped_leaves_no_row_and_no_ledger(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        await staged(ground, OBJECTS)
        await staged(ground, OBJECTS, task=2)
        other = await staged(ground, {"kept": b"of another job"}, job=Job("other"))
        await drop(ground.bucket.core, JOB)
        ground.clock.pass_ms(HOUR_MS)
        await ground.blobs.collect()
        await name_all(ground.bucket.core, Job("other"), [other], keyed=False)
        assert await contents(ground) == {"kept": b"of another job"}
        assert await ground.rows("uploads") == []
        ledgers = {info.object_id.ledger_id async for info in ground.bucket.scan()}
        await ground.bucket.delete("kept")
        ground.clock.pass_ms(HOUR_MS)
        await ground.blobs.collect()
        assert ledgers and await ground.ledgers_there() == []


async def test_a_task_that_outlives_its_run_holds_nothing_and_the_next_run_is_free_to(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        core = ground.bucket.core
        await staged(ground, OBJECTS)
        await give_up(core, JOB, "run")
        with pytest.raises(BlobNotStored, match="its job was given up"):
            await staged(ground, OBJECTS, task=2)
        assert await ground.rows("upload_parts") == []
        part = await staged(ground, OBJECTS, task=3, run="the next run")
        await name_all(core, JOB, [part], keyed=True)
        assert await contents(ground) == OBJECTS
        ground.clock.pass_ms(ground.settings.upload_ttl_ms + CLOCK_DIFFERENCE_MS)
        await ground.blobs.collect()
        assert await ground.rows("uploads") == [], "marks go when an upload would have"


async def test_a_run_that_was_killed_leaves_no_ledger_to_the_run_after_it(tmp_path: Path) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        core = ground.bucket.core
        await staged(ground, OBJECTS, run="killed with its driver")
        # Its tasks have the same numbers: they begin again with each driver.
        await staged(ground, OBJECTS, run="started again")
        await drop(core, JOB)
        assert await ground.rows("refs") == []
        ground.clock.pass_ms(HOUR_MS)
        await ground.blobs.collect()
        assert await ground.ledgers_there() == []


async def test_what_another_attempt_stored_gets_no_name(tmp_path: Path) -> None:
    async with grounds(tmp_path) as ground:
        await staged(ground, {"a": b"of the attempt that failed", "z": b"nothing"})
        part = await staged(ground, OBJECTS, task=2)
        await name_all(ground.bucket.core, JOB, [part], keyed=False)
        assert await contents(ground) == OBJECTS
        assert await ground.rows("uploads") == []


async def test_a_job_with_a_key_counts_once_for_as_long_as_an_upload_may_take(
    tmp_path: Path,
) -> None:
    async with grounds(tmp_path) as ground:
        core = ground.bucket.core
        await name_all(core, JOB, [await staged(ground, OBJECTS)], keyed=True)
        await ground.bucket.delete("a")
        await name_all(core, JOB, [await staged(ground, OBJECTS, task=2)], keyed=True)
        assert "a" not in await contents(ground) and await is_done(core, JOB)
        ground.clock.pass_ms(ground.settings.upload_ttl_ms + CLOCK_DIFFERENCE_MS)
        await ground.blobs.collect()
        assert not await is_done(core, JOB)


async def test_a_job_that_was_cut_short_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(tmp_path) as ground:
        core = ground.bucket.core
        monkeypatch.setattr(naming, "NAMES_AT_ONCE", 2)
        first = await staged(ground, OBJECTS)
        with monkeypatch.context() as patched:
            fail_at_change(ground, 2, patched, BlobNotStored("the driver dies"))
            with pytest.raises(BlobNotStored):
                await name_all(core, JOB, [first], keyed=True)
        before = await contents(ground)
        assert len(before) == 2
        etags = {info.name: info.etag async for info in ground.bucket.scan()}
        again = await staged(ground, OBJECTS, task=2)
        await name_all(core, JOB, [again], keyed=True)
        assert await contents(ground) == OBJECTS
        after = {info.name: info.etag async for info in ground.bucket.scan()}
        assert etags.items() <= after.items()


def fail_at_change(
    ground: Ground, number: int, patched: pytest.MonkeyPatch, error: BlobError
) -> None:
    """Of the changes of rows that follow, one fails, the first being 1."""
    committer, count = ground.bucket.core.committer, 0
    change = committer.change

    async def fails(*arguments: object) -> object:
        nonlocal count
        count += 1
        if count == number:
            raise error
        return await change(*arguments)  # type: ignore[arg-type]

    patched.setattr(committer, "change", fails)


async def test_a_job_without_a_key_that_fails_in_the_midst_takes_its_names_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(tmp_path, grace_ms=0) as ground:
        core = ground.bucket.core
        monkeypatch.setattr(naming, "NAMES_AT_ONCE", 2)
        await ground.bucket.put("b", b"was there before")
        part = await staged(ground, dict(sorted(OBJECTS.items(), reverse=True)) | {"e": b"last"})
        with monkeypatch.context() as patched:
            fail_at_change(ground, 3, patched, BlobNotStored("the leader is away"))
            with pytest.raises(BlobNotStored, match="the leader is away"):
                await name_all(core, JOB, [part], keyed=False)
        await give_up(core, JOB, "run")
        assert await contents(ground) == {"b": OBJECTS["b"]}, "what b named before has gone"
        assert await ground.rows("refs") == []


async def test_a_name_that_somebody_else_has_put_since_is_not_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(tmp_path) as ground:
        core = ground.bucket.core
        monkeypatch.setattr(naming, "NAMES_AT_ONCE", 2)
        part = await staged(ground, OBJECTS)
        change, count = core.committer.change, 0

        async def overtaken(*arguments: object) -> object:
            nonlocal count
            count += 1
            if count == 2:
                monkeypatch.undo()
                await ground.bucket.put("a", b"of somebody else")
                raise BlobNotStored("the leader is away")
            return await change(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(core.committer, "change", overtaken)
        with pytest.raises(BlobNotStored):
            await name_all(core, JOB, [part], keyed=False)
        assert await contents(ground) == {"a": b"of somebody else"}


async def sizes_of_transactions(
    opening: AbstractAsyncContextManager[Store],
    patched: pytest.MonkeyPatch,
    objects: Iterable[Unstored],
) -> list[int]:
    """How many names each transaction gives that ends well."""
    async with opening as store:
        bucket = await store.blobs.create_bucket(BUCKET)
        core = bucket.core
        stager = Stager(core, upload_id_of(JOB, "run", 1))
        await stager.put([*objects])
        part = await stager.end()
        change, sizes = core.committer.change, list[int]()

        async def noted(asked: Change[bool]) -> bool:
            answer = await change(asked)
            if size := sum(table == "objects" for table, _ in asked.keys):
                sizes.append(size)
            return answer

        patched.setattr(core.committer, "change", noted)
        await name_all(core, JOB, [part], keyed=False)
        assert (await bucket.usage()).objects == sum(sizes)
        return sizes


@pytest.mark.parametrize("opened", [embedded, clustered])
async def test_nine_thousand_nine_hundred_and_ninety_nine_names_appear_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    metadata = packed_metadata({"of": "x" * 1_000})
    names = (f"photos/2026/11/22/{number:09d}.jpeg" for number in range(9_999))
    objects = [Unstored(name, b"x", "image/jpeg", metadata) for name in names]
    opening = opened(tmp_path, BlobSettings())
    assert await sizes_of_transactions(opening, monkeypatch, objects) == [9_999]


@pytest.mark.parametrize("opened", [embedded, clustered])
async def test_what_is_too_much_for_a_transaction_is_named_in_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    # What a transaction has to remove beside cannot be known beforehand.
    monkeypatch.setattr(naming, "_BYTES_AT_ONCE", 2**40)
    metadata = packed_metadata({"large": "x" * 60_000})
    objects = [Unstored(f"{number:03d}", b"", "", metadata) for number in range(900)]
    opening = opened(tmp_path, BlobSettings())
    assert await sizes_of_transactions(opening, monkeypatch, objects) == [450, 450]


async def test_a_job_that_is_done_is_no_failure_when_its_ledgers_cannot_be_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(tmp_path) as ground:
        part = await staged(ground, OBJECTS)
        with monkeypatch.context() as patched:
            fail_at_change(ground, 2, patched, MetadataUnavailable("the leader is away"))
            with pytest.warns(UserWarning, match="the job is done.*the leader is away"):
                await name_all(ground.bucket.core, JOB, [part], keyed=False)
        assert await contents(ground) == OBJECTS
        ground.clock.pass_ms(ground.settings.upload_ttl_ms + CLOCK_DIFFERENCE_MS)
        await ground.blobs.collect()
        assert await ground.rows("uploads") == []


async def test_of_rows_with_one_name_one_stays(tmp_path: Path) -> None:
    async with grounds(tmp_path) as ground:
        parts = [
            await staged(ground, {"a": data}, task=task) for task, data in enumerate((b"1", b"2"))
        ]
        await name_all(ground.bucket.core, JOB, parts, keyed=False)
        assert await contents(ground) == {"a": b"1"}
