"""Which pages a checkpoint writes, and which it names again."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import AsyncMock, patch

import pyarrow as pa
import pytest

import engine
from engine.errors import CannotRead, Deposed, NotFound
from engine.ledger.client import LedgerClient
from engine.log.position import Position
from engine.ports.system_workers import ThreadWorkers
from engine.state import open_rocks
from herd.catalog import rows_of
from herd.changing import Changer
from herd.checkpoint.blobs import read_blob, read_page
from herd.checkpoint.child import ReadPage, run_child
from herd.checkpoint.duty import keep_checkpoints
from herd.checkpoint.manifest import Locator, Manifest, ManifestRecord, Page
from herd.checkpoint.order import Order
from herd.checkpoint.pages import decode_page
from herd.checkpoint.reading import CheckpointReader
from herd.checkpoint.taking import Checkpointer
from herd.errors import ProgrammingError, StorageFailed
from herd.reading import Want
from herd.rows import Row
from herd.schema import Column, Table
from herd.tablespace import Tablespace
from herd.types import BIGINT, TEXT
from tests.herd.checkpoint.built_here import in_this_process

PAGE_ROWS = 100


class Setup(NamedTuple):
    client: LedgerClient
    space: Tablespace
    table: Table
    checkpointer: Checkpointer


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Setup]:
    """A tablespace with one table of cows, and its checkpointer with small pages."""
    async with engine.open(folder / "ledgers") as client:
        workers = ThreadWorkers(asyncio.get_running_loop())
        state = await open_rocks(folder / "state", workers)
        space = await Tablespace.open(client, "farm", state)
        if not space.catalog.tables:
            await make_table(space)
        checkpointer = Checkpointer(
            client,
            "farm",
            state,
            workers,
            folder / "taking",
            page_rows=PAGE_ROWS,
            build=in_this_process,
        )
        try:
            yield Setup(client, space, space.catalog.table("cow"), checkpointer)
        finally:
            await space.close()
            await workers.close()


async def make_table(space: Tablespace) -> None:
    transaction = space.begin()
    catalog, [number] = transaction.catalog.new_ids(1)
    columns = (Column(0, "id", BIGINT, nullable=False), Column(1, "name", TEXT))
    table = Table(number, "cow", number, columns, (0,), next_column=2)
    transaction.set_catalog(*catalog.with_table(table))
    await transaction.commit()


async def change(setup: Setup, put: dict[int, str], *, remove: range = range(0)) -> None:
    """One transaction: rows to set, rows to remove."""
    transaction = setup.space.begin()
    table = transaction.catalog.tables[setup.table.id]
    changer = Changer(transaction, table)
    await transaction.lock_table(table)
    for number, name in put.items():
        key = changer.plan.key_of([number, name])
        await transaction.lock_row(table, key)
        before = transaction.get_newest(key)
        row: Row = [number, name]
        if before is None:
            await changer.insert(row)
        else:
            await changer.update(key, changer.plan.decode(before), row)
    for number in remove:
        key = changer.plan.key_of([number, None])
        await transaction.lock_row(table, key)
        before = transaction.get_newest(key)
        assert before is not None
        await changer.delete(key, changer.plan.decode(before))
    await transaction.commit()


async def taken(setup: Setup) -> Manifest:
    record = await setup.checkpointer.take(setup.space.term)
    return await setup.checkpointer.manifest(record)


async def read(setup: Setup, manifest: Manifest) -> dict[int, str]:
    """What a manifest's pages hold; they must be in order and without overlap."""
    found: dict[int, str] = {}
    (pages,) = manifest.pages
    last_key = b""
    for page in pages.pages:
        assert last_key < page.first_key <= page.last_key
        last_key = page.last_key
        batch = decode_page(setup.table, *await read_page(setup.client, page))
        assert batch.num_rows == page.rows
        ids = batch.column("id").to_pylist()
        ranges = {one.column: one for one in page.ranges}
        assert ranges[0].lowest <= ids[0] and ids[-1] <= ranges[0].highest
        assert page.deltas or (ranges[0].lowest, ranges[0].highest) == (ids[0], ids[-1])
        found |= dict(zip(ids, batch.column("name").to_pylist(), strict=True))
    assert pages.rows == len(found)
    return found


async def test_a_checkpoint_holds_every_row_at_its_position(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        rows = {number: f"cow {number}" for number in range(-450, 1_000)}
        await change(setup, rows)
        manifest = await taken(setup)
        assert await read(setup, manifest) == rows
        assert manifest.position == setup.space.replica.position
        assert [table.name for table in manifest.tables] == ["cow"]


async def test_pages_that_did_not_change_are_named_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        rows = dict.fromkeys(range(1000), "old")
        await change(setup, rows)
        first = await taken(setup)
        await change(setup, {555: "new"})
        second = await taken(setup)
        (before,), (after,) = first.pages, second.pages
        assert len(before.pages) == len(after.pages) == 10
        assert [old == new for old, new in zip(before.pages, after.pages, strict=True)] == [
            place != 5 for place in range(10)
        ]
        assert await read(setup, second) == rows | {555: "new"}
        assert await read(setup, first) == rows


async def test_one_row_more_moves_no_other_page(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {10 * number: "old" for number in range(1_000)})
        first = await taken(setup)
        await change(setup, {1_005: "new"})
        second = await taken(setup)
        same = set(first.pages[0].pages) & set(second.pages[0].pages)
        assert len(same) == len(first.pages[0].pages) - 1


@pytest.mark.parametrize("seed", range(6))
async def test_checkpoints_are_right_whatever_changed_between_them(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    rows: dict[int, str] = {}
    async with opened(tmp_path) as setup:
        for number in range(5):
            start = rng.randrange(3_000)
            put = {
                start + step * rng.randint(1, 3): f"{number}" for step in range(rng.randint(1, 800))
            }
            gone = [key for key in rows if start - 700 < key < start - rng.randint(0, 600)]
            await change(setup, put)
            rows |= put
            for key in gone:
                if key in rows:
                    await change(setup, {}, remove=range(key, key + 1))
                    del rows[key]
            assert await read(setup, await taken(setup)) == rows


async def test_an_emptied_table_has_no_page_and_a_dropped_one_is_not_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "a", 2: "b"})
        await taken(setup)
        await change(setup, {}, remove=range(1, 3))
        assert (await taken(setup)).pages[0].pages == ()
        transaction = setup.space.begin()
        transaction.set_catalog(*transaction.catalog.without_table(setup.table))
        await transaction.commit()
        assert (await taken(setup)).tables == ()


async def test_ledgers_that_no_kept_checkpoint_names_are_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        logs = set(await setup.client.list_ledgers())
        await change(setup, dict.fromkeys(range(1000), "old"))
        for turn in range(6):
            await change(setup, dict.fromkeys(range(0, 1000, 3), f"{turn}"))
            manifest = await taken(setup)
        kept = (await setup.checkpointer.list.get()).kept
        assert [record.number for record in kept] == [5, 6]
        named = {record.locator.ledger_id for record in kept} | set(manifest.ledgers)
        before = await setup.checkpointer.manifest(kept[0])
        assert set(await setup.client.list_ledgers()) - logs == named | set(before.ledgers)


async def test_a_ledger_that_is_mostly_unused_is_written_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        rows = {number: f"{number:050d}" for number in range(1_000)}
        await change(setup, rows)
        first = await taken(setup)
        (ledger_id,) = first.ledgers
        await change(setup, dict.fromkeys(range(700), "new"))
        second = await taken(setup)
        assert ledger_id in second.ledgers
        third = await taken(setup)
        assert ledger_id not in third.ledgers
        assert await read(setup, third) == rows | dict.fromkeys(range(700), "new")


async def test_a_pinned_checkpoint_stays_until_it_is_let_go(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "first"})
        first = await taken(setup)
        pinned = await setup.checkpointer.list.pin("spark", None, 60_000)
        assert pinned.number == first.number == 1
        for turn in range(4):
            await change(setup, {1: f"{turn}"})
            await taken(setup)
        kept = (await setup.checkpointer.list.get()).kept
        assert [record.number for record in kept] == [1, 4, 5]
        assert await read(setup, first) == {1: "first"}
        with pytest.raises(NotFound):
            await setup.checkpointer.list.pin("late", 2, 60_000)
        await setup.checkpointer.list.unpin("spark")
        await taken(setup)
        kept = (await setup.checkpointer.list.get()).kept
        assert [record.number for record in kept] == [5, 6]


async def test_an_older_leader_names_no_checkpoint_after_a_newer_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        at = Locator(1, 0, 1, 0)
        newer = ManifestRecord(7, Position(1, 9), 5, 0, at)
        await setup.checkpointer.list.add(newer)
        assert (await setup.checkpointer.list.add(newer)).newest == newer
        for epoch, number in ((4, 8), (5, 6)):
            with pytest.raises(Deposed):
                await setup.checkpointer.list.add(
                    ManifestRecord(number, Position(1, 10), epoch, 0, at)
                )


async def test_a_deposed_leader_deletes_the_checkpoint_that_it_cannot_list(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "a"})
        before = await setup.client.list_ledgers()
        term = setup.space.term

        async def late(order: Order, read: ReadPage) -> bytes:
            await setup.checkpointer.list.claim(term + 1)
            return await in_this_process(order, read)

        setup.checkpointer.build = late
        with pytest.raises(Deposed):
            await setup.checkpointer.take(term)
        assert await setup.client.list_ledgers() == before


async def test_a_lost_checkpoint_does_not_prevent_new_ones(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "a"})
        await taken(setup)
        [lost] = (await setup.checkpointer.list.get()).kept
        await setup.client.delete_ledger(lost.locator.ledger_id)
        setup.checkpointer._manifests.clear()
        setup.space.settings = replace(setup.space.settings, checkpoint_ms=1)
        take, took = setup.checkpointer.take, asyncio.Event()

        async def told(epoch: int) -> ManifestRecord:
            record = await take(epoch)
            took.set()
            return record

        setup.checkpointer.take = told  # type: ignore[method-assign]
        keeping = asyncio.create_task(keep_checkpoints(setup.space, setup.checkpointer))
        for number in range(2, 4):
            took.clear()
            await change(setup, {number: "b"})
            async with asyncio.timeout(20):
                await took.wait()
        kept = (await setup.checkpointer.list.get()).kept
        assert lost not in kept and len(kept) == 2
        # Otherwise the keeper would sweep the orphan first.
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        orphan = await setup.client.create_ledger(
            metadata={"owner": b"herd:farm", "purpose": b"checkpoint", "epoch": b"0"}
        )
        await orphan.close()
        assert orphan.ledger_id in await setup.checkpointer.sweep(setup.space.term)


async def test_a_page_that_was_damaged_is_not_served(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "a"})
        manifest = await taken(setup)
        at = manifest.pages[0].pages[0].locator
        wrong = Locator(at.ledger_id, at.first_entry, at.size_bytes, at.checksum ^ 1)
        with pytest.raises(CannotRead, match="checksum"):
            await read_blob(setup.client, wrong)


async def test_a_checkpoint_that_is_cut_short_leaves_nothing_but_what_the_sweep_finds(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, dict.fromkeys(range(1000), "a"))
        before = set(await setup.client.list_ledgers())
        building = asyncio.Event()

        async def endless(order: Order, read: ReadPage) -> bytes:
            building.set()
            await asyncio.Event().wait()
            raise AssertionError("an event that nobody sets")

        setup.checkpointer.build = endless
        taking = asyncio.ensure_future(setup.checkpointer.take(setup.space.term))
        await building.wait()
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        assert not (tmp_path / "taking").exists()
        setup.checkpointer.build = in_this_process
        assert (await setup.checkpointer.list.get()).kept == ()
        orphan = await setup.client.create_ledger(
            metadata={"owner": b"herd:farm", "purpose": b"checkpoint", "epoch": b"0"}
        )
        await orphan.close()
        stranger = await setup.client.create_ledger(metadata={"owner": b"herd:other"})
        await stranger.close()
        await taken(setup)
        swept = await setup.checkpointer.sweep(setup.space.term)
        assert orphan.ledger_id in swept and stranger.ledger_id not in swept
        assert before <= set(await setup.client.list_ledgers())
        assert (await taken(setup)).pages[0].rows == 1_000


async def test_a_child_builds_what_this_process_would(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {number: f"{number}" for number in range(250)})
        here = await taken(setup)
        setup.checkpointer.build = run_child
        await change(setup, {0: "new"})
        there = await taken(setup)
        assert there.pages[0].pages[1:] == here.pages[0].pages[1:]
        assert (await read(setup, there))[0] == "new"


async def test_a_query_of_a_checkpoint_reads_the_pages_and_columns_it_needs_a_few_at_a_time(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        reader = CheckpointReader(setup.client, setup.checkpointer, workers)
        await change(setup, dict.fromkeys(range(2_000), "old"))
        await taken(setup)
        await change(setup, dict.fromkeys(range(2_000), "new"))
        read: list[Locator] = []

        async def counted(client: LedgerClient, page: Page) -> list[bytes]:
            read.append(page.locator)
            return await read_page(client, page)

        with patch("herd.checkpoint.streaming.read_page", counted):
            opened_one = await reader.open(1)
            assert opened_one.catalog.tables == {setup.table.id: setup.table}
            kept = opened_one.table(setup.table)
            first, end = rows_of(setup.table)
            names = setup.table.columns[1:]
            batches = kept.batches(Want(names, False, first, end))
            some = await workers.run(lambda: next(batches))
            assert some.schema.names == ["name"] and len(read) < 10
            assert [pin.number for pin in (await setup.checkpointer.list.get()).pins] == [1]
            rest = await workers.run(lambda: list(batches))
            assert {*some.column(0).to_pylist()} == {"old"}
            assert some.num_rows + sum(batch.num_rows for batch in rest) == 2_000
            assert len(read) == 20
            read.clear()
            plan = setup.space.catalog.plan(setup.table)
            one = plan.key_of([1_234, None])
            want = Want(setup.table.columns, False, one, one + b"\x00")
            found = await workers.run(lambda: pa.table(kept.read(want)))
            assert 1_234 in found.column("id").to_pylist() and len(read) == 1
            await opened_one.close()
            assert (await setup.checkpointer.list.get()).pins == ()
        await workers.close()


async def test_a_page_that_cannot_be_read_ends_the_query_with_its_own_error(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        reader = CheckpointReader(setup.client, setup.checkpointer, workers)
        await change(setup, {1: "old"})
        await taken(setup)
        checkpoint = await reader.open(0)
        kept = checkpoint.table(setup.table)
        want = Want(setup.table.columns, False, *rows_of(setup.table))
        lost = AsyncMock(side_effect=CannotRead("it is lost"))
        with patch("herd.checkpoint.streaming.read_page", lost), pytest.raises(StorageFailed):
            await workers.run(lambda: list(kept.batches(want)))
        assert [type(one) for one in kept.failures] == [StorageFailed]
        await checkpoint.close()
        await workers.close()


async def test_a_child_that_fails_is_told_in_a_line(tmp_path: Path) -> None:
    missing = Order(str(tmp_path / "no"), str(tmp_path / "out"), "farm", 1, 1, 0)
    with pytest.raises(CannotRead, match=r"could not be built: .*FolderError"):
        await run_child(missing, AsyncMock())


async def test_a_table_is_read_as_it_was_at_a_checkpoint(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        reader = CheckpointReader(setup.client, setup.checkpointer, workers)
        await change(setup, dict.fromkeys(range(500), "first"))
        await taken(setup)
        await change(setup, dict.fromkeys(range(700), "second"))
        await taken(setup)
        for number, name, rows in ((1, "first", 500), (2, "second", 700)):
            whole = pa.Table.from_batches(await reader.table(setup.table, number))
            assert whole.column("id").to_pylist() == list(range(rows))
            assert set(whole.column("name").to_pylist()) == {name}
        assert (await setup.checkpointer.list.get()).pins == ()
        with pytest.raises(ProgrammingError, match=r"checkpoint 7 is not kept.*1, 2"):
            await reader.table(setup.table, 7)
        stranger = Table(99, "horse", 99, setup.table.columns, (0,))
        with pytest.raises(ProgrammingError, match="no table horse"):
            await reader.table(stranger, 1)
        await workers.close()


async def test_a_column_that_came_later_has_its_fill_in_old_pages(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "a", 2: "b"})
        manifest = await taken(setup)
        blob = await read_blob(setup.client, manifest.pages[0].pages[0].locator)
        one, two = setup.table.columns
        columns = (one, Column(1, "renamed", two.type), Column(2, "weight", BIGINT, fill=600))
        wider = Table(1, "cow", 1, columns, (0,), next_column=3)
        batch = decode_page(wider, blob)
        assert batch.schema.field("weight").type == pa.int64()
        assert batch.to_pydict()["renamed"] == ["a", "b"]
        assert batch.to_pydict()["weight"] == [600, 600]
