"""Backups of a tablespace, and what comes back of them."""

import asyncio
import datetime
import decimal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from engine.log.position import Position
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from engine.state import MemoryState
from herd.backup import back_up, check_backup, copy_checkpoint, restore
from herd.changing import Changer
from herd.checkpoint.unpacking import unpacked
from herd.errors import ProgrammingError, StorageFailed
from herd.keys import AUTO, catalog_key
from herd.rows import Row
from herd.schema import Column, Index, Table, View
from herd.store import open_folder
from herd.table import create_table
from herd.tablespace import Tablespace
from herd.types import BIGINT, TEXT, ColumnType, Kind, accepting
from tests.herd.checkpoint.test_building import Setup, change, opened, taken

VALUES: Final[dict[ColumnType, Any]] = {
    ColumnType(Kind.BOOLEAN): True,
    ColumnType(Kind.TINYINT): -128,
    ColumnType(Kind.SMALLINT): -32_768,
    ColumnType(Kind.INTEGER): 2**31 - 1,
    BIGINT: -(2**63),
    ColumnType(Kind.REAL): 0.1,
    ColumnType(Kind.DOUBLE): 1e300,
    ColumnType(Kind.DECIMAL, 12, 3): decimal.Decimal("-123456789.012"),
    ColumnType(Kind.DECIMAL, 38, 6): decimal.Decimal("-12345678901234567890123456789012.345678"),
    TEXT: "Kuh \U0001f404 \x00",
    ColumnType(Kind.BLOB): b"\x00\xff",
    ColumnType(Kind.DATE): datetime.date(1, 1, 1),
    ColumnType(Kind.TIME): datetime.time(23, 59, 59, 999_999),
    ColumnType(Kind.TIMESTAMP): datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),
    ColumnType(Kind.TIMESTAMPTZ): datetime.datetime(1969, 1, 1, tzinfo=datetime.UTC),
    ColumnType(Kind.UUID): uuid.UUID(int=7),
    ColumnType(Kind.JSON): '{"a": [1, null]}',
    ColumnType(Kind.FLOATS): [0.5, -1.0],
}


@asynccontextmanager
async def empty(setup: Setup, name: str) -> AsyncIterator[Tablespace]:
    space = await Tablespace.open(setup.client, name, MemoryState())
    try:
        yield space
    finally:
        await space.close()


def rows_in(space: Tablespace) -> dict[bytes, bytes]:
    """All rows without their positions, which differ after a restoration."""
    found, _ = space.stale_read(lambda rows: rows.scan(b"\x02", None, 10_000))
    return {key: value[16:] if key[5:7] == b"\x00\x00" else value for key, value in found}


async def make_types(setup: Setup) -> Table:
    """A table with a column of each type, an index, a view, and a value of AUTO_INCREMENT."""
    transaction = setup.space.begin()
    catalog, [number] = transaction.catalog.new_ids(1)
    columns = tuple(
        Column(place, f"c{place}", kind, nullable=place != 4) for place, kind in enumerate(VALUES)
    )
    table = Table(
        number,
        "types",
        number,
        columns,
        (4,),
        indexes=(Index(1, "by_text", (9,), unique=True),),
        next_column=len(columns),
        next_index=2,
    )
    catalog, changes = catalog.with_table(table)
    transaction.set_catalog(catalog, changes)
    catalog, changes = catalog.with_view(View("v", "SELECT 1"), replace=False)
    transaction.set_catalog(catalog, changes)
    transaction.set_plain(catalog_key(AUTO, number), (17).to_bytes(8))
    changer = Changer(transaction, table)
    await transaction.lock_table(table)
    whole: Row = [accepting(kind)(value) for kind, value in VALUES.items()]
    await changer.insert(whole)
    nothing: Row = [None] * len(columns)
    nothing[4] = 5
    await changer.insert(nothing)
    await transaction.commit()
    return table


async def test_what_is_restored_is_what_was_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        setup.space.checkpointer = setup.checkpointer
        workers = ThreadWorkers(asyncio.get_running_loop())
        await make_types(setup)
        await change(setup, {number: f"{number}" for number in range(1_234)})
        disk = SystemDisk(tmp_path)
        manifest = await back_up(setup.space, setup.client, workers, disk, "farm.backup")
        await change(setup, {1: "changed since"}, remove=range(2, 9))
        assert check_backup(tmp_path / "farm.backup") == manifest
        async with empty(setup, "copy") as copy:
            await restore(copy, workers, tmp_path / "farm.backup")
            assert copy.catalog.names == ["cow", "types", "v"]
            cow = copy.catalog.table("cow")
            key = copy.catalog.plan(cow).key_of([1, None])
            assert copy.catalog.plan(cow).decode(copy.rows_get(key) or b"")[1] == "1"
            auto = catalog_key(AUTO, copy.catalog.table("types").id)
            assert copy.rows_get(auto) == (17).to_bytes(8)
            restored = rows_in(copy)
        await change(setup, {1: "1"} | {number: f"{number}" for number in range(2, 9)})
        assert restored == rows_in(setup.space)
        await workers.close()


async def test_a_checkpoint_becomes_another_tablespace(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        await change(setup, {number: f"{number}" for number in range(555)})
        manifest = await taken(setup)
        async with empty(setup, "copy") as copy:
            await copy_checkpoint(copy, setup.client, workers, manifest)
            assert rows_in(copy) == rows_in(setup.space)
            with pytest.raises(ProgrammingError, match="not empty"):
                await copy_checkpoint(copy, setup.client, workers, manifest)
        await workers.close()


async def test_a_backup_that_was_changed_or_cut_anywhere_restores_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        setup.space.checkpointer = setup.checkpointer
        workers = ThreadWorkers(asyncio.get_running_loop())
        await change(setup, {1: "one", 2: "two"})
        await back_up(setup.space, setup.client, workers, SystemDisk(tmp_path), "whole")
        whole = (tmp_path / "whole").read_bytes()
        bad = tmp_path / "bad"
        async with empty(setup, "copy") as copy:
            for place in range(0, len(whole), 7):
                for broken in (whole[:place], _flipped(whole, place)):
                    bad.write_bytes(broken)
                    with pytest.raises(StorageFailed):
                        await restore(copy, workers, bad)
            assert copy.catalog.names == [] and rows_in(copy) == {}
        await workers.close()


async def test_a_backup_never_writes_over_a_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        setup.space.checkpointer = setup.checkpointer
        workers = ThreadWorkers(asyncio.get_running_loop())
        await change(setup, {1: "one"})
        (tmp_path / "mine").write_bytes(b"dear")
        with pytest.raises(FileExistsError):
            await back_up(setup.space, setup.client, workers, SystemDisk(tmp_path), "mine")
        assert (tmp_path / "mine").read_bytes() == b"dear"
        assert (await setup.checkpointer.list.get()).pins == ()
        await workers.close()


async def test_a_page_gives_back_the_rows_that_were_stored(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        table = await make_types(setup)
        from herd.checkpoint.pages import decode_page, encode_page

        decode = setup.space.catalog.plan(table).decode
        found, _ = setup.space.stale_read(
            lambda rows: rows.scan(table.prefix, table.prefix + b"\xff", 10)
        )
        batch = decode_page(table, encode_page(table, found))
        assert [row for _, row in unpacked(table, batch)] == [decode(value) for _, value in found]
        wider = msgspec.structs.replace(
            table, columns=(*table.columns, Column(18, "late", BIGINT, fill=3)), next_column=19
        )
        batch = decode_page(wider, encode_page(table, found))
        assert [row[18] for _, row in unpacked(wider, batch)] == [3, 3]
        assert Position(*setup.space.replica.position) > Position(0, 0)


def _flipped(whole: bytes, place: int) -> bytes:
    return whole[:place] + bytes((whole[place] ^ 4,)) + whole[place + 1 :]


async def test_a_folder_backs_a_tablespace_up_and_restores_it_under_a_new_name(
    tmp_path: Path,
) -> None:
    async with open_folder(tmp_path / "data") as herd:
        cows = await herd.create_table("cow", {"id": BIGINT, "name": TEXT}, ["id"])
        await cows.put_many([{"id": number, "name": f"{number}"} for number in range(2_000)])
        await herd.back_up(tmp_path / "backup")
        await cows.delete(7)
        await herd.restore(tmp_path / "backup", "before")
        again = await herd.table("cow", "before")
        assert await again.get(7) == {"id": 7, "name": "7"}
        assert await cows.get(7) is None
        with pytest.raises(ProgrammingError, match="already"):
            await herd.restore(tmp_path / "backup", "before")
        with pytest.raises(FileExistsError):
            await herd.back_up(tmp_path / "backup")


async def test_of_two_restorations_under_one_name_one_succeeds(tmp_path: Path) -> None:
    async with open_folder(tmp_path / "store") as book:
        await book.create_table("cow", {"id": BIGINT}, ["id"])
        await (await book.table("cow")).put({"id": 1})
        await book.back_up(tmp_path / "cows.herd")
        told = await asyncio.gather(
            *(book.restore(tmp_path / "cows.herd", "copy") for _ in range(2)),
            return_exceptions=True,
        )
        (failed,) = [one for one in told if one is not None]
        assert isinstance(failed, ProgrammingError) and "already" in str(failed)
        assert await (await book.table("cow", "copy")).get(1) == {"id": 1}


async def test_a_restoration_that_fails_takes_nothing_from_who_used_its_name_meanwhile(
    tmp_path: Path,
) -> None:
    async with open_folder(tmp_path / "store") as book:
        await book.create_table("cow", {"id": BIGINT}, ["id"])
        async with book._restored("copy"):
            mine = await book.create_table("mine", {"id": BIGINT}, ["id"], "copy")
            await mine.put({"id": 7})
            with pytest.raises(ProgrammingError, match="not empty"):
                async with book._restored("other"):
                    raise ProgrammingError("not empty")
        assert await book.names() == ["copy", "default"]
        with pytest.raises(StorageFailed):
            async with book._restored("third") as third:
                await create_table(third, "mine", {"id": BIGINT}, ["id"])
                raise StorageFailed("the backup is damaged")
        assert "third" in await book.names()
