"""Which ledgers of staged rows there are, and how they end."""

from pathlib import Path
from unittest.mock import patch

import pytest

from engine.errors import MetadataUnavailable, NoSuchLedger
from engine.ports.clock import SystemClock
from herd.errors import DataError, OperationalError, TypeMismatch
from herd.staging.layout import Job
from herd.staging.registry import (
    KEPT_MS,
    OWNER,
    Label,
    create_staging_ledger,
    drop_run,
    sweep,
)
from herd.store import AsyncHerd, open_folder
from tests.engine.metadata.late_store import LateStore, cancelled_at
from tests.herd.staging.staged import begun, rows_of, run
from tests.herd.staging.test_ingesting import cows

TABLE = "CREATE TABLE cow (id BIGINT PRIMARY KEY, name VARCHAR(3))"


async def ledgers_of_staging(herd: AsyncHerd) -> dict[int, bytes]:
    """The ledgers that hold staged rows, by their own metadata, and their jobs."""
    found = {}
    for ledger_id in await herd.client.list_ledgers():
        custom = (await herd.client.ledger_metadata(ledger_id)).custom
        if custom.get("owner") == OWNER:
            found[ledger_id] = custom["job"]
    return found


async def test_all_ledgers_of_a_run_go_with_it_and_no_others(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        await run(herd, TABLE)
        mine, other = [await begun(herd, "cow", job=Job(name)) for name in ("mine", "other")]
        parts = [await mine.stage(cows(number)) for number in range(3)]
        await other.stage(cows(7))
        # A task that was tried again told of its second try alone.
        mine.parts.pop()
        await mine.commit()
        dropped = await drop_run(herd.client, "default", mine.job.run)
        assert {part.index.ledger_id for part in parts if part.index} < set(dropped)
        assert set((await ledgers_of_staging(herd)).values()) == {other.job.name.encode()}
        assert await rows_of(herd, "SELECT id FROM cow ORDER BY id") == [(0,), (1,)]
        await other.commit()
        assert await rows_of(herd, "SELECT id FROM cow ORDER BY id") == [(0,), (1,), (7,)]


async def test_a_run_that_fails_leaves_others_of_its_job_what_they_have_staged(
    tmp_path: Path,
) -> None:
    async with open_folder(tmp_path) as herd:
        await run(herd, TABLE)
        failing, slow, quick = [await begun(herd, "cow", job=Job("nightly")) for _ in range(3)]
        for one in (failing, slow, quick):
            await one.stage(cows(1))
        await failing.give_up()
        assert await quick.commit() == (1, False)
        await quick.tidy_up()
        assert len(await ledgers_of_staging(herd)) == 1
        await slow.stage(cows(2))
        assert await slow.commit() == (0, True)
        await slow.tidy_up()
        assert not await ledgers_of_staging(herd)
        assert await rows_of(herd, "SELECT id FROM cow") == [(1,)]


async def test_a_write_that_is_done_is_done_though_nothing_can_be_tidied_up(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        await run(herd, TABLE)
        writing = await begun(herd, "cow")
        await writing.stage(cows(1))
        assert await writing.commit() == (1, False)
        away = MetadataUnavailable("no answer")
        with (
            patch.object(herd.client, "delete_ledger", side_effect=away),
            pytest.warns(UserWarning, match="the rows are written, .* no answer"),
        ):
            await writing.tidy_up()
        await writing.tidy_up()
        assert not await ledgers_of_staging(herd)


async def test_a_task_that_fails_half_way_leaves_what_its_run_takes_away(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        await run(herd, TABLE)
        writing = await begun(herd, "cow")
        with (
            patch("herd.staging.writing.RUN_BYTES", 1),
            pytest.raises(DataError, match=r"cow\.name: 4 characters"),
        ):
            await writing.stage(cows(1), cows(2), cows(3, name="long"))
        assert len(await ledgers_of_staging(herd)) == 1
        await writing.give_up()
        assert not await ledgers_of_staging(herd)
        with pytest.raises(TypeMismatch):
            await writing.stage(cows(1).set_column(1, "name", [7]))


async def test_a_task_that_outlives_its_run_leaves_nothing_and_the_next_run_is_free_to(
    tmp_path: Path,
) -> None:
    async with open_folder(tmp_path) as herd:
        await run(herd, TABLE)
        first, second = [await begun(herd, "cow", job=Job("nightly")) for _ in range(2)]
        await first.stage(cows(1))
        await first.give_up()
        with pytest.raises(OperationalError, match="was given up"):
            await first.stage(cows(2))
        assert not await ledgers_of_staging(herd)
        await second.stage(cows(3))
        await second.commit()
        await second.tidy_up()
        assert await rows_of(herd, "SELECT id FROM cow") == [(3,)]
        assert len(await herd.client.store.children("/herd/staging/default")) == 1
        now_ms = SystemClock().wall_ms()
        with patch.object(herd.client.clock, "wall_ms", lambda: now_ms + KEPT_MS + 60_000):
            await sweep(herd.client, "default")
        assert await herd.client.store.children("/herd/staging/default") == []


async def test_what_was_forgotten_is_swept_when_it_is_old(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        await run(herd, TABLE)
        writing = await begun(herd, "cow")
        part = await writing.stage(cows(1))
        assert part.index is not None
        assert await sweep(herd.client, "default") == []
        now_ms = SystemClock().wall_ms()
        with patch.object(herd.client.clock, "wall_ms", lambda: now_ms + KEPT_MS + 60_000):
            assert await sweep(herd.client, "default") == [part.index.ledger_id]
        with pytest.raises(NoSuchLedger):
            await herd.client.ledger_metadata(part.index.ledger_id)
        assert await drop_run(herd.client, "default", writing.job.run) == []


async def test_a_name_whose_ledger_was_never_made_goes_too(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        for name, value in (("0a.4711", b"\x00"), ("0a.4712", b"\xc1")):
            await herd.client.store.create(f"/herd/staging/default/{name}", value)
        await herd.client.store.create("/herd/staging/default/readme", b"somebody's")
        assert await sweep(herd.client, "default") == [4711, 4712]
        assert await herd.client.store.children("/herd/staging/default") == ["readme"]


async def test_a_ledger_created_after_its_run_was_dropped_is_swept(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        client, late = herd.client, 0
        deadlines = client.store
        store = deadlines._store = LateStore(deadlines._store)  # type: ignore[attr-defined]
        place, cut = 0, True
        while cut:
            place += 1
            label = Label(tablespace="default", job=Job("nightly", run=f"{place}"))
            cut = await cancelled_at(place, create_staging_ledger(client, label))
            await drop_run(client, "default", label.job.run)
            await store.land()
            late += len(await ledgers_of_staging(herd))
            now_ms = SystemClock().wall_ms()
            with patch.object(client.clock, "wall_ms", lambda at=now_ms: at + KEPT_MS + 60_000):
                await sweep(client, "default")
            assert not await ledgers_of_staging(herd), place
        assert late, "none was made late"
