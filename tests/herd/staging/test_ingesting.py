"""What a table holds after rows were staged and written, whichever way that went."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest

from herd.catalog import stores_to_erase
from herd.errors import (
    ForeignKeyViolation,
    NoSuchTable,
    ProgrammingError,
    StorageFailed,
    UniqueViolation,
)
from herd.keys import DATA, store_of
from herd.settings import HerdSettings
from herd.staging.layout import Job, Mode, Part
from herd.store import AsyncHerd, open_folder
from herd.tablespace import Tablespace
from tests.engine.ledger.scripted import turns
from tests.herd.staging.staged import begun, rows_of, run, write

WAYS = ("row by row", "a locked table", "in bulk")


@contextmanager
def going(way: str) -> Iterator[None]:
    """Few rows go the way that many would go."""
    alone = 10_000 if way == "row by row" else 0
    together = 0 if way == "in bulk" else 200_000
    with (
        patch("herd.staging.ingesting._ROWS_ALONE_MAX", alone),
        patch("herd.staging.ingesting._ROWS_TOGETHER_MAX", together),
        patch("herd.staging.writing.BLOCK_BYTES", 30),
        patch("herd.staging.writing.RUN_BYTES", 100),
    ):
        yield


Farm = AbstractAsyncContextManager[AsyncHerd]


@pytest.fixture(params=WAYS)
def farm(request: pytest.FixtureRequest, tmp_path: Path) -> Farm:
    return farm_in(tmp_path, request.param)


@asynccontextmanager
async def farm_in(folder: Path, way: str) -> AsyncIterator[AsyncHerd]:
    """A table with two cows."""
    settings = HerdSettings(lock_timeout_ms=500)
    async with open_folder(folder, settings=settings) as herd:
        await run(
            herd,
            "CREATE TABLE cow (id BIGINT PRIMARY KEY, name VARCHAR, stall INTEGER DEFAULT 7)",
            "INSERT INTO cow VALUES (3, 'Alma', 1), (5, 'Berta', 2)",
        )
        with going(way):
            yield herd


def cows(*ids: int, name: str = "new") -> pa.RecordBatch:
    """Rows of the table without their last column."""
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": [name] * len(ids)})


async def all_cows(herd: AsyncHerd) -> list[tuple[object, ...]]:
    return await rows_of(herd, "SELECT id, name, stall FROM cow ORDER BY id")


async def nothing_is_left(space: Tablespace) -> None:
    """Wait until no store is marked, and see that all rows are some table's."""
    while space.stale_read(stores_to_erase)[0]:
        await turns()
    live = {table.store for table in space.catalog.tables.values()}
    found, _ = space.stale_read(lambda rows: rows.scan(DATA, None, 100_000))
    assert {store_of(key)[0] for key, _ in found} <= live


async def test_appended_rows_come_to_those_that_are_there(farm: Farm) -> None:
    async with farm as herd:
        written = await write(herd, "cow", [cows(9, 1, 7), cows(4, 8)])
        assert written == (5, False)
        wanted = sorted(
            [*((n, "new", 7) for n in (1, 4, 7, 8, 9)), (3, "Alma", 1), (5, "Berta", 2)]
        )
        assert await all_cows(herd) == wanted
        await nothing_is_left(await herd.tablespace())
        # Queries have columns of their own by now; a key is looked up in the rows.
        assert await rows_of(herd, "SELECT name FROM cow WHERE id = 9") == [("new",)]


async def test_appending_a_key_that_is_there_names_it_and_writes_nothing(farm: Farm) -> None:
    async with farm as herd:
        with pytest.raises(UniqueViolation, match="cow has a row with the primary key 5 already"):
            await write(herd, "cow", [cows(*range(10, 30)), cows(1, 5)])
        assert await all_cows(herd) == [(3, "Alma", 1), (5, "Berta", 2)]
        await nothing_is_left(await herd.tablespace())


async def test_an_upsert_replaces_rows_and_adds_the_others(farm: Farm) -> None:
    async with farm as herd:
        await write(herd, "cow", [cows(5, 1), cows(9)], Mode.UPSERT)
        new = [(1, "new", 7), (5, "new", 7), (9, "new", 7)]
        assert await all_cows(herd) == sorted([*new, (3, "Alma", 1)])


async def test_an_overwrite_leaves_the_new_rows_alone(farm: Farm) -> None:
    async with farm as herd:
        await write(herd, "cow", [cows(*range(40)), cows(50)], Mode.OVERWRITE)
        assert await all_cows(herd) == [(number, "new", 7) for number in (*range(40), 50)]
        await nothing_is_left(await herd.tablespace())


async def test_an_overwrite_without_rows_empties_the_table(farm: Farm) -> None:
    async with farm as herd:
        await write(herd, "cow", [], Mode.OVERWRITE)
        assert await all_cows(herd) == []


@pytest.mark.parametrize("mode", Mode)
async def test_a_key_that_two_rows_have_is_refused(farm: Farm, mode: Mode) -> None:
    async with farm as herd:
        with pytest.raises(UniqueViolation, match=r"two of the rows .* have the primary key 22"):
            await write(herd, "cow", [cows(*range(10, 30)), cows(22)], mode)
        assert await all_cows(herd) == [(3, "Alma", 1), (5, "Berta", 2)]


async def test_a_job_that_is_written_again_is_answered_and_changes_nothing(
    farm: Farm,
) -> None:
    async with farm as herd:
        job = Job("nightly load")
        assert await write(herd, "cow", [cows(1)], job=job) == (1, False)
        assert (await begun(herd, "cow", job=job)).written
        assert await write(herd, "cow", [cows(1, 2)], job=job) == (0, True)
        assert [row[0] for row in await all_cows(herd)] == [1, 3, 5]


async def test_a_job_that_is_asked_for_by_two_at_once_is_written_once(farm: Farm) -> None:
    async with farm as herd:
        writing = await begun(herd, "cow", job=Job("twice"))
        await writing.stage(cows(1))
        both = await asyncio.gather(writing.commit(), writing.commit())
        assert sorted(both) == [(0, True), (1, False)]
        assert [row[0] for row in await all_cows(herd)] == [1, 3, 5]


async def test_the_batches_of_a_series_are_written_once_each(farm: Farm) -> None:
    async with farm as herd:
        for sequence, repeated in ((0, False), (1, False), (1, True), (2, False)):
            written = await write(herd, "cow", [cows(10 + sequence)], job=Job("query 7", sequence))
            assert written.repeated is repeated
        assert [row[0] for row in await all_cows(herd)] == [3, 5, 10, 11, 12]


async def test_a_table_with_a_quote_in_its_name_is_no_other_table(farm: Farm) -> None:
    async with farm as herd:
        with pytest.raises(NoSuchTable, match='no table co"w'):
            await begun(herd, 'co"w')
        for name in ('co"w', '"cow"'):
            quoted = name.replace('"', '""')
            await run(herd, f'CREATE TABLE "{quoted}" (id BIGINT PRIMARY KEY, name VARCHAR)')
            await write(herd, name, [cows(1)])
            assert await rows_of(herd, f'SELECT id FROM "{quoted}"') == [(1,)]
        assert [row[0] for row in await all_cows(herd)] == [3, 5]


async def test_indexes_know_the_rows_that_were_written(farm: Farm) -> None:
    async with farm as herd:
        await run(
            herd,
            "CREATE INDEX by_name ON cow (name)",
            "CREATE UNIQUE INDEX by_stall ON cow (stall)",
        )
        stalls = pa.record_batch({"id": [5, 8], "name": ["Clara", "Dora"], "stall": [4, 5]})
        await write(herd, "cow", [stalls], Mode.UPSERT)
        for name, found in (("Berta", []), ("Clara", [(5,)]), ("Dora", [(8,)]), ("Alma", [(3,)])):
            assert await rows_of(herd, f"SELECT id FROM cow WHERE name = '{name}'") == found
        taken = pa.record_batch({"id": [9], "name": ["Elsa"], "stall": [1]})
        with pytest.raises(UniqueViolation, match="by_stall"):
            await write(herd, "cow", [taken])
        assert [row[0] for row in await all_cows(herd)] == [3, 5, 8]


async def test_rows_name_parents_that_are_there(farm: Farm) -> None:
    async with farm as herd:
        await run(
            herd,
            "CREATE TABLE calf (id BIGINT PRIMARY KEY, mother BIGINT REFERENCES cow (id))",
        )
        await write(herd, "calf", [{"id": [1, 2, 3], "mother": [3, None, 5]}])
        with pytest.raises(ForeignKeyViolation):
            await write(herd, "calf", [{"id": [7], "mother": [99]}])
        with pytest.raises(ForeignKeyViolation, match="calf refers to cow"):
            await write(herd, "cow", [cows(3)], Mode.OVERWRITE)
        await write(herd, "cow", [cows(3, 5)], Mode.UPSERT)
        assert await rows_of(herd, "SELECT id, mother FROM calf ORDER BY id") == [
            *((1, 3), (2, None), (3, 5)),
        ]


async def test_rows_without_a_key_are_numbered_in_their_order(farm: Farm) -> None:
    async with farm as herd:
        await run(
            herd,
            "CREATE TABLE milk (no BIGINT AUTO_INCREMENT PRIMARY KEY, litres INTEGER)",
            "INSERT INTO milk (litres) VALUES (0)",
        )
        for _ in range(2):
            await write(herd, "milk", [{"litres": pa.array(range(1, 50), pa.int32())}])
        await run(herd, "INSERT INTO milk (litres) VALUES (100)")
        found = await rows_of(herd, "SELECT no, litres FROM milk ORDER BY no")
        assert [litres for _, litres in found] == [0, *range(1, 50), *range(1, 50), 100]
        assert [number for number, _ in found] == sorted({number for number, _ in found})


async def test_numbers_that_are_given_are_passed_over(farm: Farm) -> None:
    async with farm as herd:
        await run(herd, "CREATE TABLE milk (no BIGINT AUTO_INCREMENT PRIMARY KEY, litres INTEGER)")
        await write(herd, "milk", [{"no": [7, 40], "litres": pa.array([1, 2], pa.int32())}])
        await run(herd, "INSERT INTO milk (litres) VALUES (3)")
        assert await rows_of(herd, "SELECT no FROM milk ORDER BY no") == [(7,), (40,), (41,)]


async def test_a_table_without_a_key_takes_rows_as_they_come(farm: Farm) -> None:
    async with farm as herd:
        await run(herd, "CREATE TABLE log (line VARCHAR)")
        await write(herd, "log", [{"line": ["a", "a"]}, {"line": ["b"]}])
        assert sorted(await rows_of(herd, "SELECT line FROM log")) == [("a",), ("a",), ("b",)]


async def test_a_table_that_was_changed_since_takes_no_rows(farm: Farm) -> None:
    async with farm as herd:
        writing = await begun(herd, "cow")
        await writing.stage(cows(1))
        await run(herd, "ALTER TABLE cow ADD COLUMN weight INTEGER")
        with pytest.raises(ProgrammingError, match="definition of cow was changed"):
            await writing.commit()
        await run(herd, "DROP TABLE cow")
        with pytest.raises(ProgrammingError, match="dropped"):
            await writing.commit()


async def test_an_index_that_is_made_meanwhile_has_the_rows(farm: Farm) -> None:
    async with farm as herd:
        writing = await begun(herd, "cow")
        await writing.stage(cows(1, name="Zora"))
        await run(herd, "CREATE INDEX by_name ON cow (name)", "ALTER TABLE cow RENAME TO kuh")
        await writing.commit()
        assert await rows_of(herd, "SELECT id FROM kuh WHERE name = 'Zora'") == [(1,)]


async def test_ledgers_that_were_not_staged_for_the_tablespace_are_not_read(farm: Farm) -> None:
    async with farm as herd:
        writing = await begun(herd, "cow")
        part = await writing.stage(cows(1))
        assert part.index is not None
        staged = await herd.client.open_ledger(part.index.ledger_id)
        custom = staged.metadata.custom
        copies = {}
        for name, other in (("barn", {"tablespace": b"barn"}), ("log", {"owner": b"log:broker"})):
            writer = await herd.client.create_ledger(metadata={**custom, **other})
            async for entry in staged.read(0, staged.last_add_confirmed):
                await writer.append(entry.body)
            await writer.close()
            copies[name] = msgspec.structs.replace(part.index, ledger_id=writer.ledger_id)
        for copy in copies.values():
            writing.parts = [Part(copy)]
            with pytest.raises(ProgrammingError, match="no rows that were staged"):
                await writing.commit()
        assert [row[0] for row in await all_cows(herd)] == [3, 5]
        writing.parts = [part]
        await writing.commit()
        assert [row[0] for row in await all_cows(herd)] == [1, 3, 5]


async def test_staged_rows_that_are_damaged_or_gone_are_an_error(farm: Farm) -> None:
    async with farm as herd:
        writing = await begun(herd, "cow")
        part = await writing.stage(cows(1))
        assert part.index is not None
        wrong = msgspec.structs.replace(part.index, checksum=part.index.checksum ^ 1)
        writing.parts = [Part(wrong)]
        with pytest.raises(StorageFailed, match="checksum"):
            await writing.commit()
        await herd.client.delete_ledger(part.index.ledger_id)
        with pytest.raises(StorageFailed, match=f"ledger {part.index.ledger_id}"):
            await writing.commit()
        assert [row[0] for row in await all_cows(herd)] == [3, 5]
