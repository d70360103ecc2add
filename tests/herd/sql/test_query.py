"""Queries: names, views, parameters, what a transaction sees, words of its own."""

import asyncio
import datetime
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from msgspec.structs import replace
from sqlglot import exp

from herd.arrow import batch_of, column_type_of, python_rows
from herd.errors import (
    DataError,
    InterfaceError,
    NoSuchColumn,
    NoSuchTable,
    NotSupportedError,
    ParametersMismatch,
    ProgrammingError,
    TransactionEnded,
    TypeMismatch,
    ValueInvalid,
    ValueOutOfRange,
)
from herd.reading import Want
from herd.rows import encode_row
from herd.schema import Table
from herd.sql.duck import DuckThreads
from herd.sql.expressions import Names
from herd.sql.parsing import parse, parse_expression
from herd.sql.targets import Target
from herd.transaction import Isolation
from herd.types import ColumnType, Kind
from tests.herd.spaces import columns, delete, insert, made, update
from tests.herd.sql.querying import asked, cows, until


async def test_a_query_answers_over_joins_groups_and_subqueries() -> None:
    async with asked() as on:
        await cows(on)
        assert await on.rows(
            "SELECT h.b, count(*), sum(h.d) FROM cows h JOIN COWS o ON h.a = o.a "
            "WHERE h.a IN (SELECT a FROM cows) GROUP BY h.b ORDER BY h.b"
        ) == [(1, 2, 30.0), (2, 1, None), (None, 1, 5.5)]
        assert await on.rows(
            "WITH cows AS (SELECT 7 AS a) SELECT a FROM cows UNION ALL SELECT 8 ORDER BY 1"
        ) == [(7,), (8,)]
        assert await on.rows(
            "SELECT c, rank() OVER (ORDER BY d DESC NULLS LAST) FROM cows ORDER BY 2 LIMIT ?", [2]
        ) == [("Berta", 1), ("Alma", 2)]


async def test_a_cte_hides_a_table_only_where_it_stands() -> None:
    async with asked() as on:
        await cows(on)
        assert await on.rows(
            "SELECT (WITH cows AS (SELECT 99 AS a) SELECT max(a) FROM cows), max(a) FROM cows"
        ) == [(99, 4)]
        assert await on.rows("WITH x AS (SELECT a FROM cows), y AS (SELECT a FROM x) TABLE y") == [
            (1,),
            (2,),
            (3,),
            (4,),
        ]
        assert await on.rows(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) "
            "SELECT sum(i) FROM n"
        ) == [(6,)]


async def test_a_view_is_its_query_whoever_asks() -> None:
    async with asked() as on:
        await cows(on)
        await on.view("milkers", "SELECT c, d FROM cows WHERE d IS NOT NULL", ("name", "milk"))
        await on.view("best", "SELECT name, max(milk) OVER () FROM milkers")
        assert await on.rows("SELECT name FROM Milkers m WHERE m.milk > 9 ORDER BY 1") == [
            ("Alma",),
            ("Berta",),
        ]
        assert await on.rows("WITH milkers AS (SELECT 1) SELECT count(*) FROM best") == [(3,)]
        assert await on.rows(
            "SELECT x.n FROM milkers AS x(n, m) JOIN cows ON cows.c = x.n ORDER BY 1 LIMIT 1"
        ) == [("Alma",)]


async def test_columns_have_the_names_that_the_text_gives_them() -> None:
    async with asked() as on:
        await cows(on)
        tree = parse(
            "SELECT a, COUNT(*), sum(d) AS milk, b + 1, cows.c FROM cows GROUP BY ALL"
        ).tree
        assert tree is not None
        found = await on.engine.run(tree)
        assert found.schema.names == ["a", "count(*)", "milk", "b + 1", "c"]


async def test_parameters_are_passed_as_values_of_their_types() -> None:
    async with asked() as on:
        await cows(on)
        assert await on.rows("SELECT a FROM cows WHERE b = ? AND c LIKE ?", [1, "B%"]) == [(2,)]
        assert await on.rows("SELECT ?, ?, ?", ["x'; --", Decimal("1.50"), None]) == [
            ("x'; --", Decimal("1.50"), None)
        ]
        assert await on.rows("SELECT $2, $1, $2", [1, 2]) == [(2, 1, 2)]
        with pytest.raises(ParametersMismatch):
            await on.rows("SELECT ?, ?", [1])


async def test_a_sum_of_integers_is_an_exact_integer() -> None:
    async with asked() as on:
        table = await made(on.space, "t")
        await on.put(table, [1, 2**62, "a"], [2, 2**62, "b"], [3, 2**62, "c"])
        tree = parse("SELECT sum(b) AS s, avg(b) FROM t").tree
        assert tree is not None
        found = await on.engine.run(tree)
        assert column_type_of(found.schema.field("s")) == ColumnType(Kind.DECIMAL, 38, 0)
        [(total, _)] = await on.rows("SELECT sum(b), avg(b) FROM t")
        assert total == 3 * 2**62 and type(total) is int


async def test_a_query_sees_the_changes_of_its_own_transaction_and_no_other() -> None:
    async with asked() as on:
        table = await cows(on)
        assert await on.rows("SELECT count(*) FROM cows") == [(4,)]
        one, other = on.space.begin(), on.space.begin()
        await insert(one, table, [5, 9, "Elsa", 1.0])
        await update(one, table, (1, [1, 9, "Anna", 1.0]))
        await delete(one, table, 2)
        assert await on.rows("SELECT a, c FROM cows ORDER BY a", (), one) == [
            (1, "Anna"),
            (3, "Cilli"),
            (4, "Dora"),
            (5, "Elsa"),
        ]
        assert await on.rows("SELECT count(*), min(c) FROM cows", (), other) == [(4, "Alma")]
        assert await on.rows("SELECT c FROM cows WHERE a = 5", (), one) == [("Elsa",)]
        await one.commit()
        assert await on.rows("SELECT count(*), min(c) FROM cows", (), other) == [(4, "Anna")]


async def test_a_snapshot_transaction_reads_one_moment_to_its_end() -> None:
    async with asked() as on:
        table = await cows(on)
        early = on.space.begin(Isolation.SNAPSHOT)
        early.snapshot()
        assert await on.rows("SELECT count(*) FROM cows") == [(4,)]
        late = on.space.begin(Isolation.SNAPSHOT)
        late.snapshot()
        writer = on.space.begin()
        await update(writer, table, (1, [1, 1, "Anna", 1.0]))
        await delete(writer, table, 2)
        await insert(writer, table, [5, 1, "Elsa", 1.0])
        await writer.commit()
        for transaction in (early, late):
            assert await on.rows("SELECT a, c FROM cows ORDER BY a", (), transaction) == [
                (1, "Alma"),
                (2, "Berta"),
                (3, "Cilli"),
                (4, "Dora"),
            ]
        await insert(late, table, [6, 1, "Frida", 1.0])
        assert await on.rows("SELECT count(*) FROM cows", (), late) == [(5,)]
        assert await on.rows("SELECT count(*) FROM cows") == [(4,)]


async def test_the_rows_to_change_are_keys_and_positions_with_the_new_values() -> None:
    async with asked() as on:
        table = await cows(on)
        transaction = on.space.begin()
        await update(transaction, table, (1, [1, 1, "Anna", 7.0]))
        where = parse_expression("b = $1 AND cows.d IN (SELECT d FROM cows)")
        target = Target(table, Names.of(table), exp.Where(this=where))
        values = [parse_expression("d + $2"), parse_expression("upper(c)")]
        found = await on.engine.run(target.query((1, 2), values), (), transaction)
        first, second = sorted(python_rows(found))
        assert first == (table.prefix + table.encode_primary((1,)), bytes(16), 9.0, "ANNA")
        assert second[0] == table.prefix + table.encode_primary((2,))
        value = transaction.get(second[0])
        assert value is not None and second[1] == value[:16] != bytes(16)
        assert second[2:] == (22.0, "BERTA")
        every = Target(table, Names.of(table), None).query(())
        assert (await on.engine.run(every, (), transaction)).num_rows == 4


async def test_a_hidden_key_is_left_out_of_a_star_and_may_be_named() -> None:
    async with asked() as on:
        table = await made(on.space, "t")
        transaction = on.space.begin()
        hidden = replace(table, hidden_key=True)
        transaction.set_catalog(*transaction.catalog.with_table(hidden))
        await transaction.commit()
        await on.put(on.space.catalog.table("t"), [1, 2, "x"])
        assert await on.rows("SELECT * FROM t") == [(2, "x")]
        assert await on.rows("SELECT *, a FROM t") == [(2, "x", 1)]
        assert await on.rows("SELECT count(*) FROM t") == [(1,)]


async def test_functions_of_vectors_and_of_time() -> None:
    async with asked() as on:
        shape = columns(ColumnType(Kind.BIGINT), ColumnType(Kind.FLOATS))
        table = await made(on.space, "v", shape)
        await on.put(table, [1, [3.0, 4.0]], [2, [0.0, 1.0]])
        [(cosine, product, distance)] = await on.rows(
            "SELECT COSINE_SIMILARITY(b, ?), DOT_PRODUCT(b, ?), EUCLIDEAN_DISTANCE(b, ?) "
            "FROM v WHERE a = 1",
            [[3.0, 4.0], [1, 2], [0.0, 0.0]],
        )
        assert (round(cosine, 6), product, distance) == (1.0, 11.0, 5.0)
        moment = datetime.datetime(2026, 11, 21, 16, 30, 15)
        tree = parse(
            "SELECT CURRENT_TIMESTAMP, now() = CURRENT_TIMESTAMP, CURRENT_DATE, "
            "FLOOR(CURRENT_TIMESTAMP TO DAY), EXTRACT(hour FROM CURRENT_TIMESTAMP)"
        ).tree
        assert tree is not None
        found = (await on.engine.run(tree, moment=moment)).to_pylist()[0]
        day = datetime.datetime(2026, 11, 21)
        assert list(found.values()) == [moment, True, moment.date(), day, 16]


async def test_a_division_by_zero_is_null() -> None:
    async with asked() as on:
        await cows(on)
        assert (
            await on.rows("SELECT 1 / 0, a / (a - a), 1.5 / 0, 5 % 0, 7 // 0, 8 / 2 FROM cows")
            == [(None, None, None, None, None, 4.0)] * 4
        )


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("SELECT a FROM cow", NoSuchTable, 14),
        ("SELECT x.a FROM cows x JOIN nowhere.cows y ON true", NoSuchTable, None),
        ("SELECT milk FROM cows", NoSuchColumn, 7),
        ("SELECT x.milk FROM cows x", NoSuchColumn, 9),
        ("SELECT a FROM cows GROUP BY b", ProgrammingError, None),
        ("SELECT a FROM cows WHERE c > DATE '2020-01-01' + c", TypeMismatch, None),
        ("SELECT CAST(c AS INTEGER) FROM cows", ValueInvalid, None),
        ("SELECT a + 2147483647 FROM cows", ValueOutOfRange, None),
        ("SELECT CAST(300 AS TINYINT)", ValueOutOfRange, None),
        ("SELECT nothing_such(a) FROM cows", ProgrammingError, None),
        ("SELECT (SELECT a FROM cows)", DataError, None),
        ("SELECT 1 UNION SELECT 1, 2", ProgrammingError, None),
        ("SELECT * FROM read_csv('/etc/passwd')", NotSupportedError, None),
        ("SELECT * FROM '/etc/passwd'", NoSuchTable, None),
        ("SELECT * FROM duckdb_settings()", NotSupportedError, None),
        ("SELECT * FROM pg_catalog.pg_class", NoSuchTable, None),
    ],
)
async def test_what_is_wrong_with_a_query_is_said_as_an_error_of_its_kind(
    text: str, kind: type[Exception], place: int | None
) -> None:
    async with asked() as on:
        await cows(on)
        with pytest.raises(kind) as raised:
            await on.rows(text)
        assert "t:0" not in str(raised.value)
        if place is not None:
            assert getattr(raised.value, "place", None) == place
        assert await on.rows("SELECT count(*) FROM cows") == [(4,)]


async def test_a_cancelled_query_ends_and_leaves_the_engine_usable() -> None:
    async with asked() as on:
        await cows(on)
        slow = asyncio.ensure_future(
            on.rows("SELECT sum(x.i * y.i) FROM range(100000) x(i), range(1000000) y(i), cows")
        )
        await until(lambda: on.engine._pool.busy > 0)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert await on.rows("SELECT count(*) FROM cows") == [(4,)]


async def test_closing_ends_a_query_that_runs_and_one_that_waits_for_its_turn() -> None:
    async with asked() as on:
        await cows(on)
        text = "SELECT sum(x.i * y.i) FROM range(100000) x(i), range(1000000) y(i), cows"
        slow = [asyncio.ensure_future(on.rows(text)) for _ in range(3)]
        await until(lambda: on.engine._pool.busy == 2)
        await on.engine.close()
        assert on.engine._pool.busy == 0
        ends = await asyncio.gather(*slow, return_exceptions=True)
        assert [type(end) for end in ends] == [InterfaceError] * 3


async def test_an_engine_that_is_closed_while_its_first_query_begins_leaves_nothing_open() -> None:
    async with asked() as on:
        first = asyncio.ensure_future(on.rows("SELECT 1"))
        await until(lambda: on.engine._pool.busy == 1)
        await on.engine.close()
        with pytest.raises(InterfaceError, match="closed while the query ran"):
            await first
        runner = on.engine._pool._runner
        assert on.engine._pool.busy == 0
        assert isinstance(runner, DuckThreads) and runner._root is None


async def test_a_query_of_a_transaction_that_ended_says_so() -> None:
    async with asked() as on:
        await cows(on)
        transaction = on.space.begin()
        transaction.rollback()
        with pytest.raises(TransactionEnded):
            await on.rows("SELECT a FROM cows", (), transaction)


async def test_a_closed_engine_says_so() -> None:
    async with asked() as on:
        await on.engine.close()
        with pytest.raises(InterfaceError):
            await on.rows("SELECT 1")


async def test_a_checkpoint_is_read_where_somebody_keeps_them() -> None:
    async with asked() as on:
        table = await cows(on)
        tree = parse("SELECT a FROM cows AS OF CHECKPOINT 3").tree
        assert tree is not None
        with pytest.raises(NotSupportedError):
            await on.engine.run(tree)

        class OneRow:
            """A kept checkpoint and its table, which counts how often it is closed."""

            closed = 0
            catalog = on.space.catalog
            failures: list[BaseException] = []

            def __init__(self, number: int) -> None:
                self.number = number

            def table(self, table: Table) -> "OneRow":
                return self

            def read(self, want: Want) -> pa.Table:
                row = encode_row([self.number, None, "old", math.pi])
                made = batch_of(table, [(b"k", bytes(16) + row)])
                return pa.Table.from_batches([made]).select(want.names)

            def describe(self, want: Want) -> str:
                return "one row"

            async def close(self) -> None:
                OneRow.closed += 1

        async def kept(number: int) -> OneRow:
            return OneRow(number)

        on.engine.checkpoints = kept
        assert python_rows(await on.engine.run(tree)) == [(3,)]
        assert "cows: one row" in await on.engine.explain(tree)
        assert OneRow.closed == 2


async def test_explain_tells_what_is_read_of_each_table() -> None:
    async with asked() as on:
        await cows(on)
        tree = parse("SELECT c FROM cows WHERE a = ?").tree
        assert tree is not None
        told = await on.engine.explain(tree, [3])
        assert told.startswith("cows: the rows of a range of keys, from the storage")
        await on.rows("SELECT c FROM cows")
        assert "cows: 1 of 1 pages in memory, 4 rows" in await on.engine.explain(tree, [3])
