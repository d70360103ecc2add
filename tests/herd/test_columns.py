"""The column cache: whatever happens to a table, what is read of it is what its rows are."""

import asyncio
import random
from typing import Any

from msgspec.structs import replace

from herd.columns import ColumnSettings
from herd.schema import Column, Table
from herd.transaction import Isolation, Transaction
from herd.types import BIGINT, TEXT
from tests.herd.spaces import delete, insert, made, update
from tests.herd.sql.querying import Asked, asked, until

SMALL = ColumnSettings(page_rows=100, fold_rows_min=50)
ALL = "SELECT a, b, c FROM t ORDER BY a"


async def _filled(on: Asked, count: int, name: str = "t") -> Table:
    table = await made(on.space, name)
    await on.put(table, *[[number, number % 7, f"row {number}"] for number in range(count)])
    return table


def _rows(space_rows: dict[int, list[Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row) for _, row in sorted(space_rows.items())]


def _kept(on: Asked, table: Table) -> tuple[int, int, int, int] | None:
    return on.engine.columns.statistics(table)


async def test_a_table_is_read_once_and_then_followed() -> None:
    async with asked(SMALL) as on:
        table = await _filled(on, 350)
        assert _kept(on, table) is None
        assert len(await on.rows(ALL)) == 350
        kept = _kept(on, table)
        assert kept is not None and kept[:3] == (350, 4, 0)
        transaction = on.space.begin()
        await update(transaction, table, (5, [5, 99, "new"]))
        await delete(transaction, table, 6)
        await insert(transaction, table, [1_000, 1, "last"])
        await transaction.commit()
        kept = _kept(on, table)
        assert kept is not None and kept[:3] == (350, 4, 3)
        rows = await on.rows(ALL)
        assert (len(rows), rows[5], rows[6][0], rows[-1]) == (
            350,
            (5, 99, "new"),
            7,
            (1_000, 1, "last"),
        )


async def test_random_changes_are_seen_while_pages_are_folded_anew() -> None:
    chance = random.Random(5)
    async with asked(SMALL) as on:
        table = await _filled(on, 300)
        model = {number: [number, number % 7, f"row {number}"] for number in range(300)}
        for turn in range(40):
            transaction = on.space.begin()
            for number in chance.sample(range(600), 25):
                row = [number, turn, chance.choice(["x", "y"]) * chance.randrange(9)]
                if number not in model:
                    await insert(transaction, table, row)
                    model[number] = row
                elif chance.random() < 0.5:
                    await delete(transaction, table, number)
                    del model[number]
                else:
                    await update(transaction, table, (number, row))
                    model[number] = row
            await transaction.commit()
            assert await on.rows(ALL) == _rows(model)
        kept = _kept(on, table)
        assert kept is not None and kept[0] != 300 and kept[2] < 300, "nothing was folded in"


async def test_snapshots_from_before_and_between_folds_read_their_own_moment() -> None:
    chance = random.Random(6)
    async with asked(SMALL) as on:
        table = await _filled(on, 200)
        await on.rows(ALL)
        model = {number: [number, number % 7, f"row {number}"] for number in range(200)}
        moments: list[tuple[Transaction, list[tuple[Any, ...]]]] = []
        for turn in range(20):
            snapshot = on.space.begin(Isolation.SNAPSHOT)
            snapshot.snapshot()
            moments.append((snapshot, _rows(model)))
            transaction = on.space.begin()
            for number in chance.sample(sorted(model), 12):
                if chance.random() < 0.3:
                    await delete(transaction, table, number)
                    del model[number]
                else:
                    model[number] = [number, -turn, "changed"]
                    await update(transaction, table, (number, model[number]))
            await transaction.commit()
            assert await on.rows(ALL) == _rows(model)
        for snapshot, rows in moments:
            assert await on.rows(ALL, (), snapshot) == rows
            snapshot.rollback()


async def test_a_snapshot_has_what_changed_between_the_pages_and_itself() -> None:
    async with asked(SMALL) as on:
        table = await _filled(on, 20)
        assert len(await on.rows(ALL)) == 20
        transaction = on.space.begin()
        await update(transaction, table, (5, [5, 99, "new"]))
        await delete(transaction, table, 6)
        await insert(transaction, table, [100, 1, "last"])
        await transaction.commit()
        snapshot = on.space.begin(Isolation.SNAPSHOT)
        rows = await on.rows(ALL, transaction=snapshot)
        assert rows == await on.rows(ALL)
        assert rows[5] == (5, 99, "new") and rows[-1] == (100, 1, "last") and len(rows) == 20
        transaction = on.space.begin()
        await update(transaction, table, (5, [5, 100, "newest"]))
        await insert(transaction, table, [101, 1, "later"])
        await transaction.commit()
        assert await on.rows(ALL, transaction=snapshot) == rows
        snapshot.rollback()


async def test_what_a_restored_snapshot_replaced_is_not_answered_any_more() -> None:
    async with asked(SMALL) as on:
        table = await _filled(on, 20)
        assert len(await on.rows(ALL)) == 20
        # As when a follower that was far behind begins anew: no command tells of the rows.
        replica = on.space.replica
        replica._state.delete(table.prefix + table.encode_primary((5,)))
        replica._state.commit(replica._state.position)
        replica._following.replaced += 1
        rows = await on.rows(ALL)
        assert len(rows) == 19 and rows[5][0] == 6


async def test_a_table_that_nobody_asks_for_is_dropped_and_not_followed() -> None:
    async with asked(SMALL) as on:
        table = await _filled(on, 200)
        await on.rows(ALL)
        for turn in range(3):
            await on.put(table, *[[1_000 * turn + n, 0, "new"] for n in range(1_000, 1_060)])
            await until(lambda: not on.engine.columns.folding)
        assert _kept(on, table) is None
        assert len(await on.rows(ALL)) == 380


async def test_another_definition_makes_other_columns() -> None:
    async with asked(SMALL) as on:
        table = await _filled(on, 120)
        assert len(await on.rows("SELECT * FROM t")) == 120
        transaction = on.space.begin()
        added = Column(3, "d", TEXT, fill="filled")
        renamed = replace(table.columns[1], name="z")
        columns = (table.columns[0], renamed, table.columns[2], added)
        other = replace(table, columns=columns, next_column=4)
        transaction.set_catalog(*transaction.catalog.with_table(other))
        assert await on.rows("SELECT z, d FROM t WHERE a = 8", (), transaction) == [(1, "filled")]
        assert await on.rows("SELECT max(z), max(d) FROM t", (), transaction) == [(6, "filled")]
        assert await on.rows("SELECT max(b) FROM t") == [(6,)]
        await transaction.commit()
        assert await on.rows("SELECT max(z), max(d) FROM t") == [(6, "filled")]
        kept = _kept(on, on.space.catalog.table("t"))
        assert kept is not None and kept[0] == 120


async def test_a_truncated_table_is_empty_for_who_truncated_it_first() -> None:
    async with asked(SMALL) as on:
        table = await _filled(on, 120)
        assert await on.rows("SELECT count(*) FROM t") == [(120,)]
        transaction = on.space.begin()
        catalog, [store] = transaction.catalog.new_ids(1)
        transaction.set_catalog(*catalog.with_table(replace(table, store=store)))
        await insert(transaction, transaction.catalog.table("t"), [1, 1, "only"])
        assert await on.rows("SELECT count(*) FROM t", (), transaction) == [(1,)]
        assert await on.rows("SELECT count(*) FROM t") == [(120,)]
        await transaction.commit()
        assert await on.rows(ALL) == [(1, 1, "only")]


async def test_what_is_too_large_to_keep_is_narrowed_and_then_streamed() -> None:
    async with asked(ColumnSettings(page_rows=100, bytes_max=32_000)) as on:
        table = await made(on.space, "t")
        await on.put(table, *[[number, 1, "x" * 100] for number in range(500)])
        assert await on.rows("SELECT sum(b) FROM t") == [(500,)]
        kept = _kept(on, table)
        assert kept is not None and kept[3] < 32_000
        # The text does not fit, so it is read anew each time; a stream may be read twice, too.
        for _ in range(2):
            assert await on.rows(
                "WITH q AS (SELECT a, c FROM t) SELECT count(*), min(length(x.c)) "
                "FROM q x JOIN q y ON x.a = y.a"
            ) == [(500, 100)]
        assert on.engine.columns.size_bytes < 32_000


async def test_tables_that_were_asked_for_longest_ago_make_room() -> None:
    async with asked(ColumnSettings(page_rows=100, bytes_max=30_000)) as on:
        one, two, three = [await _filled(on, 200, name) for name in ("one", "two", "three")]
        for name in ("one", "two", "one", "three"):
            assert await on.rows(f"SELECT count(*) FROM {name}") == [(200,)]
        assert _kept(on, one) is not None and _kept(on, three) is not None
        assert _kept(on, two) is None


async def test_queries_at_once_share_one_reading_of_a_table() -> None:
    async with asked(SMALL) as on:
        table = await _filled(on, 300)
        changing = asyncio.ensure_future(on.put(table, [300, 0, "meanwhile"]))
        found = await asyncio.gather(*[on.rows("SELECT count(*) FROM t") for _ in range(6)])
        await changing
        assert all(rows in ([(300,)], [(301,)]) for rows in found)
        assert await on.rows("SELECT count(*) FROM t") == [(301,)]


async def test_a_key_of_any_type_is_found_by_ranges_and_pages() -> None:
    async with asked(SMALL) as on:
        table = await made(
            on.space,
            "t",
            (Column(0, "a", TEXT, nullable=False), Column(1, "b", BIGINT, nullable=False)),
            primary=(0, 1),
        )
        await on.put(table, *[[f"{n % 20:02}", n] for n in range(1_000)])
        for cached in (False, True):
            if cached:
                await on.rows("SELECT count(*) FROM t")
            for condition, wanted in (
                ("a = '07'", 50),
                ("a = '07' AND b > 500", 25),
                ("b < 100 AND a = '07' AND b >= 27", 4),
                ("a BETWEEN '03' AND '05'", 150),
                ("'18' <= a", 100),
                ("a IN ('01', '03') AND b < 40", 4),
                ("a > '05' AND a < '03'", 0),
                ("a = '07' OR b = 1", 51),
                ("b = 7", 1),
                ("a = 7", 50),
            ):
                assert await on.rows(f"SELECT count(*) FROM t WHERE {condition}") == [(wanted,)]
            assert await on.rows("SELECT b FROM t WHERE a = ? AND b = ?", ["19", 999]) == [(999,)]
            assert await on.rows(
                "SELECT count(*) FROM t x LEFT JOIN t y ON x.b = y.b + 1 AND y.a = '07' "
                "WHERE x.a = '08'"
            ) == [(50,)]
