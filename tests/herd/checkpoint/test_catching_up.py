"""What a query reads after an opening: a checkpoint's pages and the log since, never old rows."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

import engine
from engine.errors import CannotRead
from engine.log.position import START, Position
from engine.ports.system_workers import ThreadWorkers
from engine.state import open_rocks
from herd.checkpoint.catching_up import CatchingUp, Changes
from herd.checkpoint.manifest import Page
from herd.checkpoint.reading import CheckpointReader
from herd.checkpoint.taking import Checkpointer
from herd.schema import Column, Table
from herd.sql.query import QueryEngine
from herd.tablespace import Tablespace
from herd.types import BIGINT, TEXT, ColumnType, Kind
from tests.herd.checkpoint.built_here import in_this_process
from tests.herd.spaces import columns, delete, insert, made, update
from tests.herd.sql.querying import SETTINGS, Asked

ALL = "SELECT a, b, c FROM t ORDER BY a"
PAGE_ROWS = 50


class Setup(NamedTuple):
    """A tablespace in a folder, its queries and its checkpoints."""

    on: Asked
    catching_up: CatchingUp
    checkpointer: Checkpointer
    found: list[bool]
    """Whether pages and log told a table's rows, for each time that it was asked."""

    async def checkpoint(self) -> None:
        """Take one."""
        await self.checkpointer.take(self.on.space.term)

    def again(self) -> Asked:
        """Queries that have read nothing yet."""
        workers = self.on.engine.columns._workers
        fresh = QueryEngine(self.on.space, workers, settings=SETTINGS)
        fresh.columns.checkpointed = self.noted
        return Asked(self.on.space, fresh)

    async def noted(
        self, table: Table, position: Position, bytes_max: int
    ) -> tuple[Sequence[pa.RecordBatch], Changes] | None:
        """Ask, and remember whether there was an answer."""
        found = await self.catching_up.rows(table, position, bytes_max)
        self.found.append(found is not None)
        return found

    async def rows(self, text: str = ALL) -> list[tuple[Any, ...]]:
        """What a query answers that has read nothing yet."""
        asked = self.again()
        try:
            return await asked.rows(text)
        finally:
            await asked.engine.close()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Setup]:
    async with engine.open(folder / "ledgers") as client:
        workers = ThreadWorkers(asyncio.get_running_loop())
        state = await open_rocks(folder / "state", workers)
        space = await Tablespace.open(client, "farm", state)
        taking = folder / "taking"
        checkpointer = Checkpointer(
            client, "farm", state, workers, taking, page_rows=PAGE_ROWS, build=in_this_process
        )
        reader = CheckpointReader(client, checkpointer, workers)
        catching_up = CatchingUp(client, "farm", checkpointer, reader, workers)
        queries = QueryEngine(space, workers, settings=SETTINGS)
        try:
            yield Setup(Asked(space, queries), catching_up, checkpointer, [])
        finally:
            await queries.close()
            await space.close()
            await workers.close()


async def filled(setup: Setup, count: int) -> Table:
    """A table of so many rows."""
    table = await made(setup.on.space, "t")
    await setup.on.put(table, *[[number, number % 7, f"row {number}"] for number in range(count)])
    return table


async def test_pages_and_the_log_tell_every_row(tmp_path: Path) -> None:
    chance = random.Random(3)
    async with opened(tmp_path) as setup:
        table = await filled(setup, 400)
        model = {number: [number, number % 7, f"row {number}"] for number in range(400)}
        await setup.checkpoint()
        for turn in range(5):
            transaction = setup.on.space.begin()
            for number in chance.sample(range(500), 15):
                if number not in model:
                    model[number] = [number, turn, "new"]
                    await insert(transaction, table, model[number])
                elif chance.random() < 0.5:
                    del model[number]
                    await delete(transaction, table, number)
                else:
                    model[number] = [number, -turn, "changed"]
                    await update(transaction, table, (number, model[number]))
            await transaction.commit()
            assert await setup.rows() == [tuple(row) for _, row in sorted(model.items())]
        assert setup.found == [True] * 5


async def test_after_an_opening_the_rows_come_from_the_pages(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        table = await filled(setup, 200)
        await setup.checkpoint()
        await setup.on.put(table, [1_000, 1, "late"])
    async with opened(tmp_path) as setup:
        asked = setup.again()
        rows = await asked.rows(ALL)
        assert (len(rows), rows[-1]) == (201, (1_000, 1, "late"))
        # What comes later is followed, as with pages that were made of the rows.
        await setup.on.put(table, [1_001, 1, "later"])
        assert (await asked.rows(ALL))[-1] == (1_001, 1, "later")
        await asked.engine.close()
        assert setup.found == [True]


async def test_values_of_every_type_come_back_as_they_are_stored(tmp_path: Path) -> None:
    kinds = (
        BIGINT,
        ColumnType(Kind.UUID),
        ColumnType(Kind.JSON),
        ColumnType(Kind.DECIMAL, 10, 2),
        ColumnType(Kind.DECIMAL, 30, 3),
        ColumnType(Kind.TIMESTAMPTZ),
        ColumnType(Kind.FLOATS),
        ColumnType(Kind.BLOB),
        ColumnType(Kind.BOOLEAN),
    )
    wide = (123).to_bytes(16, signed=True)
    async with opened(tmp_path) as setup:
        table = await made(setup.on.space, "t", columns(*kinds))
        row = [1, b"u" * 16, '{"a": 1}', 1250, wide, 10**15, [0.5, 1.5], b"\x00\xff", True]
        await setup.on.put(table, row, *[[number] + [None] * 8 for number in range(2, 20)])
        before = await setup.rows("SELECT * FROM t ORDER BY a")
        await setup.checkpoint()
        await setup.on.put(table, [20, *row[1:]])
        after = await setup.rows("SELECT * FROM t ORDER BY a")
        assert after[:-1] == before and after[-1][1:] == before[0][1:]
        assert setup.found == [False, True]


async def test_where_the_pages_say_too_little_the_rows_are_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        table = await filled(setup, 100)
        assert len(await setup.rows()) == 100, "there is no checkpoint"
        await setup.checkpoint()
        await setup.on.put(table, *[[number, 0, "new"] for number in range(100, 200)])
        assert len(await setup.rows()) == 200, "too much has changed"
        catalog, [store] = setup.on.space.catalog.new_ids(1)
        transaction = setup.on.space.begin()
        transaction.set_catalog(*catalog.with_table(replace(table, store=store)))
        await transaction.commit()
        assert await setup.rows() == [], "the table was truncated"
        await made(setup.on.space, "u")
        assert await setup.rows("SELECT * FROM u") == [], "the table is newer"
        assert setup.found == [False] * 4


async def test_pages_that_cannot_be_read_are_no_reason_to_fail(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await filled(setup, 100)
        await setup.checkpoint()

        async def unreadable(
            table: Table, number: int, *, bytes_max: int | None = None
        ) -> Sequence[pa.RecordBatch]:
            raise CannotRead("all copies are damaged")

        setup.catching_up._reader.table = unreadable  # type: ignore[method-assign]
        assert len(await setup.rows()) == 100
        assert setup.found == [False]


async def test_a_column_that_came_after_the_checkpoint_is_filled(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        table = await filled(setup, 100)
        await setup.checkpoint()
        added = Column(3, "d", TEXT, fill="filled")
        transaction = setup.on.space.begin()
        other = replace(table, columns=(*table.columns, added), next_column=4)
        transaction.set_catalog(*transaction.catalog.with_table(other))
        await transaction.commit()
        await setup.on.put(setup.on.space.catalog.table("t"), [200, 1, "x", "given"])
        assert await setup.rows("SELECT d, count(*) FROM t GROUP BY d ORDER BY d") == [
            ("filled", 100),
            ("given", 1),
        ]
        assert setup.found == [True]


async def test_a_checkpoint_of_a_later_moment_is_not_used(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        table = await filled(setup, 100)
        await setup.checkpoint()
        assert await setup.catching_up.rows(table, START, 2**30) is None


async def test_pages_that_are_too_many_to_keep_are_not_all_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        table = await filled(setup, 1_000)
        await setup.checkpoint()
        position = setup.on.space.replica.position
        read: list[object] = []
        one = setup.catching_up._reader._batch

        async def counted(of: Table, page: Page) -> pa.RecordBatch:
            read.append(page)
            return await one(of, page)

        setup.catching_up._reader._batch = counted  # type: ignore[method-assign, assignment]
        assert await setup.catching_up.rows(table, position, 5_000) is None
        assert 0 < len(read) < 1_000 // PAGE_ROWS
        assert await setup.catching_up.rows(table, position, 2**30) is not None
