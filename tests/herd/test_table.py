"""Tables as keys and values: what is written is there, and constraints hold."""

import asyncio
import datetime
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import herd
from herd.errors import (
    LockTimeout,
    NameTaken,
    NoSuchColumn,
    NoSuchTable,
    NotNullViolation,
    ProgrammingError,
    TypeMismatch,
    UniqueViolation,
    ValueInvalid,
    ValueOutOfRange,
)
from herd.schema import Index
from herd.table import AsyncTable
from herd.types import BIGINT, TEXT, ColumnType, Kind

COWS = {"id": BIGINT, "name": TEXT, "weight": ColumnType(Kind.DECIMAL, 8, 2)}
ALMA = {"id": 1, "name": "Alma", "weight": Decimal("612.50")}


@asynccontextmanager
async def cows(path: Path) -> AsyncIterator[AsyncTable]:
    async with herd.open_folder(path) as opened:
        yield await opened.create_table("cows", COWS, ["id"])


async def test_what_was_put_is_got_and_replaced_and_deleted(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        await table.put(ALMA)
        assert await table.get(1) == ALMA
        assert await table.get_row(1) == (1, "Alma", Decimal("612.50"))
        await table.put({"id": 1, "name": "Berta"})
        assert await table.get(1) == {"id": 1, "name": "Berta", "weight": None}
        assert await table.delete(1) is True
        assert await table.get(1) is None
        assert await table.delete(1) is False


async def test_rows_are_there_after_the_folder_was_closed(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        await table.put(ALMA)
    async with herd.open_folder(tmp_path) as opened:
        table = await opened.table("COWS")
        assert await table.get(1) == ALMA


async def test_an_insert_refuses_a_key_that_is_taken(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        await table.insert(ALMA)
        with pytest.raises(UniqueViolation):
            await table.insert({**ALMA, "name": "Berta"})
        assert await table.get(1) == ALMA


async def test_an_update_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        await table.put(ALMA)
        assert await table.update(1, {"NAME": "Berta"}) is True
        assert await table.get(1) == {**ALMA, "name": "Berta"}
        assert await table.update(2, {"name": "Nobody"}) is False
        assert await table.get(2) is None


async def test_updates_by_a_function_lose_nothing(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as opened:
        table = await opened.create_table("counters", {"id": BIGINT, "n": BIGINT}, ["id"])
        await table.put({"id": 1, "n": 0})

        async def count() -> None:
            for _ in range(10):
                await table.update(1, lambda row: {"n": row["n"] + 1})

        await asyncio.gather(*[count() for _ in range(8)])
        assert await table.get(1) == {"id": 1, "n": 80}


async def test_an_update_whose_wait_is_cancelled_keeps_its_lock_until_it_is_applied(
    tmp_path: Path,
) -> None:
    async with herd.open_folder(tmp_path) as opened:
        table = await opened.create_table("counters", {"id": BIGINT, "n": BIGINT}, ["id"])
        await table.put({"id": 1, "n": 0})
        for _ in range(20):
            first = asyncio.ensure_future(table.update(1, lambda row: {"n": row["n"] + 1}))
            await asyncio.sleep(0)
            first.cancel()
            await table.update(1, lambda row: {"n": row["n"] + 1})
        assert await table.get(1) == {"id": 1, "n": 40}


async def test_a_commit_whose_wait_is_cancelled_keeps_its_locks_until_it_is_applied(
    tmp_path: Path,
) -> None:
    async with herd.open_folder(tmp_path) as opened:
        table = await opened.create_table("counters", {"id": BIGINT, "n": BIGINT}, ["id"])
        await table.put({"id": 1, "n": 0})
        for _ in range(10):
            transaction = table.space.begin()
            grow = {"n": (await table.get(1) or {})["n"] + 1}
            await table.update(1, grow, transaction=transaction)
            committing = asyncio.ensure_future(transaction.commit())
            await asyncio.sleep(0)
            committing.cancel()
            await asyncio.gather(committing, return_exceptions=True)
            await table.update(1, lambda row: {"n": row["n"] + 1})
        assert await table.get(1) == {"id": 1, "n": 20}
        assert len(table.space.locks) == 0


async def test_a_short_write_waits_for_a_transaction_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    async with cows(tmp_path) as table:
        await table.put(ALMA)
        transaction = table.space.begin()
        await table.update(1, {"name": "Berta"}, transaction=transaction)
        waiting = asyncio.ensure_future(table.update(1, {"weight": 1}))
        await asyncio.sleep(0)
        assert not waiting.done()
        await transaction.commit()
        await waiting
        assert await table.get(1) == {"id": 1, "name": "Berta", "weight": Decimal("1.00")}
        assert len(table.space.locks) == 0


async def test_a_write_that_waits_too_long_says_so_and_changes_nothing(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        await table.put(ALMA)
        table.space.lock_timeout_ms = 1
        transaction = table.space.begin()
        await table.update(1, {"name": "Berta"}, transaction=transaction)
        with pytest.raises(LockTimeout):
            await table.delete(1)
        transaction.rollback()
        assert await table.get(1) == ALMA


async def test_a_transaction_sees_its_own_changes_and_others_do_not(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        transaction = table.space.begin()
        await table.put(ALMA, transaction=transaction)
        assert await table.get(1, transaction=transaction) == ALMA
        assert await table.get(1) is None
        transaction.rollback()
        assert await table.get(1) is None


async def test_many_rows_are_put_all_or_none(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        with pytest.raises(ValueInvalid, match=r"cows\.name"):
            await table.put_many([ALMA, {"id": 2, "name": b"no text"}])
        assert await table.get(1) is None
        assert await table.put_many({"id": number} for number in range(2_500)) == 2_500
        got = await table.get_many([0, 2_499, 2_500])
        assert [row and row["id"] for row in got] == [0, 2_499, None]


async def test_a_scan_gives_rows_in_the_order_of_their_keys(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        await table.put_many({"id": number} for number in range(-1_500, 1_500))

        async def ids(**bounds: Any) -> list[int]:
            return [row["id"] async for row in table.scan(**bounds)]

        assert await ids() == list(range(-1_500, 1_500))
        assert await ids(first=-2, last=3) == [-2, -1, 0, 1, 2, 3]
        assert await ids(first=1_400, limit=5) == [1_400, 1_401, 1_402, 1_403, 1_404]
        assert await ids(limit=1_001) == list(range(-1_500, -499))
        assert await ids(limit=0) == [] and await ids(first=5, last=4) == []


async def test_keys_of_several_columns_are_scanned_by_their_beginning(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as opened:
        columns = {"farm": TEXT, "born": ColumnType(Kind.DATE), "n": BIGINT}
        table = await opened.create_table("calves", columns, ["farm", "born"])
        days = [datetime.date(2026, 11, day) for day in (1, 2, 3)]
        farms = ("east", "eastern", "w\0st")
        rows = [{"farm": farm, "born": day, "n": 1} for farm in farms for day in days]
        await table.put_many(rows)
        assert await table.get(("east", days[1])) == rows[1]
        assert [row async for row in table.scan(prefix=("east",))] == rows[:6]
        assert [row async for row in table.scan(prefix=("east", days[2]))] == [rows[2]]
        assert [row async for row in table.scan(first=("east",), last=("east",))] == rows[:3]
        assert [row async for row in table.scan(prefix="w\0")] == rows[6:]
        with pytest.raises(ProgrammingError, match="2 values"):
            await table.get("east")


async def test_bad_rows_are_refused_by_name_and_leave_nothing_locked(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        with pytest.raises(NoSuchColumn, match="colour"):
            await table.put({"id": 1, "colour": "red"})
        with pytest.raises(ValueInvalid, match=r"cows\.id"):
            await table.get("one")
        with pytest.raises(ValueOutOfRange, match=r"cows\.weight"):
            await table.put({"id": 1, "weight": 10**9})
        with pytest.raises(NotNullViolation, match=r"cows\.id"):
            await table.put_many([{"name": "nobody"}])
        await table.put(ALMA)
        with pytest.raises(NotNullViolation, match=r"cows\.id"):
            await table.update(1, {"id": None})
        assert await table.get(1) == ALMA and len(table.space.locks) == 0


async def test_a_changed_key_moves_the_row(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        await table.put(ALMA)
        assert await table.update(1, {"id": 9}) is True
        assert await table.get(1) is None
        assert await table.get(9) == {**ALMA, "id": 9}


async def test_indexes_follow_short_writes(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        await _add_indexes(table)
        await table.put(ALMA)
        await table.update(1, {"name": "Berta"})
        await table.put({"id": 2, "name": "Cora", "weight": 2})
        with pytest.raises(UniqueViolation):
            await table.put({"id": 3, "weight": 2})
        await table.put({"id": 3, "name": "Cora", "weight": 3})
        await table.update(3, {"weight": 4})
        await table.delete(2)
        table.space.catalog.table("cows")
        by_name, by_weight = table.bound.plan.indexes
        found = [_entries(table, index.prefix) for index in (by_name, by_weight)]
        keys = [table.bound.key(key)[len(table.bound.plan.prefix) :] for key in (1, 3)]
        assert [sorted(each) for each in found] == [sorted(keys), sorted(keys)]


async def test_a_table_that_changes_is_seen_as_it_is_now(tmp_path: Path) -> None:
    async with cows(tmp_path) as table:
        await table.put(ALMA)
        await _add_indexes(table)
        assert len(table.bound.plan.indexes) == 2
        transaction = table.space.begin()
        definition = transaction.catalog.table("cows")
        transaction.set_catalog(*transaction.catalog.without_table(definition))
        await transaction.commit()
        with pytest.raises(NoSuchTable):
            await table.get(1)


async def test_a_table_is_made_once_and_with_a_key_that_has_an_order(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as opened:
        await opened.create_table("cows", COWS, ["id"])
        with pytest.raises(NameTaken):
            await opened.create_table("Cows", COWS, ["id"])
        with pytest.raises(TypeMismatch):
            await opened.create_table("bad", {"id": ColumnType(Kind.JSON)}, ["id"])
        with pytest.raises(NoSuchColumn):
            await opened.create_table("bad", {"id": BIGINT}, ["no"])
        with pytest.raises(NoSuchTable):
            await opened.table("bad")


def test_threads_read_and_write_one_table(tmp_path: Path) -> None:
    with herd.open_herd(tmp_path) as opened:
        table = opened.create_table("counters", {"id": BIGINT, "n": BIGINT}, ["id"])
        table.put_many({"id": number, "n": 0} for number in range(4))
        failed: list[BaseException] = []

        def count(thread: int) -> None:
            try:
                for call in range(40):
                    key = (thread + call) % 4
                    table.update(key, lambda row: {"n": row["n"] + 1})
                    assert (table.get(key) or {})["n"] > 0
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=count, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert [row["n"] for row in table.scan()] == [80] * 4


def test_a_table_in_threads_is_the_whole_of_it(tmp_path: Path) -> None:
    with herd.open_herd(tmp_path) as opened:
        table = opened.create_table("cows", COWS, ["id"])
        table.insert(ALMA)
        with pytest.raises(UniqueViolation):
            table.insert(ALMA)
        assert table.get(1) == ALMA and table.get_row(1) == tuple(ALMA.values())
        assert table.get_many([1, 2]) == [ALMA, None]
        assert table.put_many({"id": number} for number in range(2, 2_000)) == 1_998
        assert [row["id"] for row in table.scan(limit=1_500)] == list(range(1, 1_501))
        assert [row["id"] for row in table.scan(first=1_998)] == [1_998, 1_999]
        assert table.delete(1) and not table.delete(1)
        assert opened.table("COWS").get(2) == {"id": 2, "name": None, "weight": None}


async def _add_indexes(table: AsyncTable) -> None:
    transaction = table.space.begin()
    definition = transaction.catalog.table("cows")
    indexes = (Index(1, "by_name", (1,)), Index(2, "by_weight", (2,), unique=True))
    changed = structs.replace(definition, indexes=indexes, next_index=3)
    transaction.set_catalog(*transaction.catalog.with_table(changed))
    await transaction.commit()


def _entries(table: AsyncTable, prefix: bytes) -> list[bytes]:
    return [value for _, value in table.space.rows_scan(prefix, prefix + b"\xff", 100)]
