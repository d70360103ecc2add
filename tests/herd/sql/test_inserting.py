"""INSERT, UPSERT, ON CONFLICT, and what RETURNING answers of them."""

import datetime
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest

from herd.errors import (
    CheckViolation,
    NoSuchColumn,
    NoSuchIndex,
    NotNullViolation,
    NotSupportedError,
    ParametersMismatch,
    SqlSyntaxError,
    TypeMismatch,
    UniqueViolation,
    ValueInvalid,
    ValueOutOfRange,
    ValueTooLong,
)
from tests.herd.sql.sessions import asking

COWS = "CREATE TABLE cow (id INT PRIMARY KEY, name TEXT DEFAULT 'none', milk INT UNIQUE)"

VALUES: list[tuple[str, Any]] = [
    ("BOOLEAN", True),
    ("TINYINT", -128),
    ("SMALLINT", 32_767),
    ("INTEGER", -(1 << 31)),
    ("BIGINT", (1 << 63) - 1),
    ("REAL", 0.5),
    ("DOUBLE", 1e300),
    ("DECIMAL(5, 2)", Decimal("-123.45")),
    ("DECIMAL(38, 10)", Decimal("1234567890123456789012345678.0123456789")),
    ("VARCHAR(5)", "späht"),
    ("TEXT", "a'b\n\u0000\U0001f404"),
    ("BLOB", b"\x00\xff"),
    ("DATE", datetime.date(1, 1, 1)),
    ("TIME", datetime.time(23, 59, 59, 999_999)),
    ("TIMESTAMP", datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)),
    ("TIMESTAMPTZ", datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)),
    ("UUID", uuid.UUID(int=7)),
    ("JSON", '{"a": [1, null]}'),
    ("FLOAT[]", [0.5, -1.0]),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[kind for kind, _ in VALUES])
async def test_a_value_of_every_type_comes_back_by_key_by_query_and_by_returning(
    kind: str, value: Any
) -> None:
    async with asking() as on:
        await on.run(f"CREATE TABLE t (id INT PRIMARY KEY, a {kind}, b {kind})")
        insert = "INSERT INTO t VALUES (?, ?, NULL) RETURNING a, b"
        assert await on.rows(insert, (1, value)) == [(value, None)]
        assert await on.rows("SELECT a, b FROM t WHERE id = 1") == [(value, None)]
        assert await on.rows("SELECT a, b FROM t") == [(value, None)]
        await on.run("INSERT INTO t SELECT id + 1, a, b FROM t")
        assert await on.rows("SELECT a, b FROM t WHERE id = 2") == [(value, None)]
        if kind not in ("JSON", "FLOAT[]"):
            found = await on.rows("SELECT id FROM t WHERE a = ? ORDER BY id", (value,))
            assert found == [(1,), (2,)]


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("TINYINT", 128, ValueOutOfRange),
        ("BIGINT", 1 << 63, ValueOutOfRange),
        ("INTEGER", "many", ValueInvalid),
        ("INTEGER", 1.5, ValueInvalid),
        ("REAL", 1e300, ValueOutOfRange),
        ("DECIMAL(3, 1)", Decimal(100), ValueOutOfRange),
        ("DECIMAL(3, 1)", Decimal("0.25"), ValueInvalid),
        ("VARCHAR(3)", "Alma", ValueTooLong),
        ("BLOB", "text", ValueInvalid),
        ("BOOLEAN", "maybe", ValueInvalid),
        ("DATE", "yesterday", ValueInvalid),
        ("TIMESTAMPTZ", datetime.datetime(2026, 1, 1), ValueInvalid),
        ("UUID", "x", ValueInvalid),
        ("JSON", "{", ValueInvalid),
        ("FLOAT[]", ["x"], ValueInvalid),
    ],
)
async def test_a_value_that_does_not_fit_is_refused_with_the_name_of_its_column(
    kind: str, value: Any, error: type[Exception]
) -> None:
    async with asking() as on:
        await on.run(f"CREATE TABLE t (id INT PRIMARY KEY, a {kind})")
        found = await on.error("INSERT INTO t VALUES (1, NULL), (2, ?)", (value,))
        assert type(found) is error
        assert "t.a" in found.message
        assert await on.rows("SELECT * FROM t") == []


async def test_columns_that_are_not_named_get_their_defaults() -> None:
    async with asking() as on:
        await on.run(
            COWS, "INSERT INTO cow (id) VALUES (1)", "INSERT INTO cow VALUES (2, DEFAULT, 5)"
        )
        await on.run("INSERT INTO cow (milk, id) VALUES (7, 3)")
        assert await on.rows("SELECT * FROM cow ORDER BY id") == [
            (1, "none", None),
            (2, "none", 5),
            (3, "none", 7),
        ]
        await on.run("CREATE TABLE d (id INT PRIMARY KEY AUTO_INCREMENT, a INT DEFAULT 3)")
        assert await on.rows("INSERT INTO d DEFAULT VALUES RETURNING *") == [(1, 3)]


async def test_a_table_without_a_key_counts_in_hiding() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (5), (5)")
        assert await on.rows("SELECT * FROM t") == [(5,), (5,)]
        assert await on.rows("SELECT _pk FROM t ORDER BY _pk") == [(1,), (2,)]
        assert await on.rows("INSERT INTO t VALUES (6) RETURNING *") == [(6,)]


async def test_numbers_are_counted_after_the_highest_that_was_given() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id BIGINT PRIMARY KEY AUTO_INCREMENT, a INT)")
        result = await on.session.execute("INSERT INTO t (a) VALUES (1), (2)")
        assert result.last_id == 2
        await on.run("INSERT INTO t VALUES (10, 3)", "INSERT INTO t VALUES (NULL, 4)")
        assert await on.rows("INSERT INTO t (a) SELECT a FROM t ORDER BY a RETURNING id") == [
            (12,),
            (13,),
            (14,),
            (15,),
        ]
        await on.run("BEGIN", "INSERT INTO t (a) VALUES (9)", "ROLLBACK")
        assert await on.rows("INSERT INTO t (a) VALUES (9) RETURNING id") == [(17,)]


async def test_a_statement_adds_all_rows_or_none() -> None:
    async with asking() as on:
        await on.run(COWS, "INSERT INTO cow VALUES (1, 'Alma', 10)")
        for text, kind in (
            ("INSERT INTO cow VALUES (2, 'x', 20), (1, 'x', 30)", UniqueViolation),
            ("INSERT INTO cow VALUES (2, 'x', 20), (3, 'x', 10)", UniqueViolation),
            ("INSERT INTO cow VALUES (2, 'x', 20), (NULL, 'x', 30)", NotNullViolation),
            ("INSERT INTO cow SELECT id + n, name, 9 FROM cow, range(1, 3) r (n)", UniqueViolation),
        ):
            assert type(await on.error(text)) is kind
            assert await on.rows("SELECT id FROM cow") == [(1,)]
        on.check_indexes()


async def test_expressions_are_evaluated_where_values_stand() -> None:
    async with asking() as on:
        await on.run(COWS)
        await on.rows("INSERT INTO cow VALUES (1 + 1, upper('é') || 'x', ? * 2)", (21,))
        await on.rows("INSERT INTO cow VALUES (5, (SELECT max(name) FROM cow), length('four'))")
        assert await on.rows("SELECT * FROM cow ORDER BY id") == [(2, "Éx", 42), (5, "Éx", 4)]


async def test_rows_come_from_queries_and_from_with() -> None:
    async with asking() as on:
        await on.run(COWS, "INSERT INTO cow SELECT i, 'cow ' || i, i * 10 FROM range(1, 4) r (i)")
        await on.run("WITH w AS (SELECT 9 AS n) INSERT INTO cow (id) SELECT n FROM w")
        assert await on.rows("SELECT * FROM cow ORDER BY id") == [
            (1, "cow 1", 10),
            (2, "cow 2", 20),
            (3, "cow 3", 30),
            (9, "none", None),
        ]
        assert await on.count("INSERT INTO cow SELECT id + 100, name, NULL FROM cow") == 4


async def test_upsert_and_replace_put_a_row_in_the_place_of_the_old_one() -> None:
    async with asking() as on:
        await on.run(COWS, "INSERT INTO cow VALUES (1, 'Alma', 10)")
        assert await on.count("UPSERT INTO cow VALUES (1, 'Berta', 20), (2, 'Cilli', 30)") == 2
        await on.run("REPLACE INTO cow (id, milk) VALUES (2, 40)")
        assert await on.rows("SELECT * FROM cow ORDER BY id") == [(1, "Berta", 20), (2, "none", 40)]
        assert type(await on.error("UPSERT INTO cow VALUES (3, 'x', 40)")) is UniqueViolation
        on.check_indexes()


async def test_a_conflict_does_nothing_where_the_statement_says_so() -> None:
    async with asking() as on:
        await on.run(COWS, "INSERT INTO cow VALUES (1, 'Alma', 10)")
        text = "INSERT INTO cow VALUES (1, 'x', 20), (2, 'y', 10), (3, 'z', 30)"
        assert await on.rows(f"{text} ON CONFLICT DO NOTHING RETURNING id") == [(3,)]
        assert type(await on.error(f"{text} ON CONFLICT (id) DO NOTHING")) is UniqueViolation
        assert await on.count("INSERT OR IGNORE INTO cow VALUES (1, 'x', 5)") == 0


async def test_only_keys_are_in_conflicts() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, b INT CHECK (b > 0))")
        await on.run("INSERT INTO t VALUES (1, 1, 1)")
        for clause in ("DO NOTHING", "(id) DO UPDATE SET a = 2"):
            error = await on.error(f"INSERT INTO t VALUES (1, NULL, 1) ON CONFLICT {clause}")
            assert type(error) is NotNullViolation
            error = await on.error(f"INSERT INTO t VALUES (1, 1, 0) ON CONFLICT {clause}")
            assert type(error) is CheckViolation


async def test_a_conflict_is_one_of_the_unique_index_among_several() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "CREATE INDEX i ON t (a)")
        await on.run("CREATE UNIQUE INDEX u ON t (a)", "INSERT INTO t VALUES (1, 5)")
        assert await on.count("INSERT INTO t VALUES (2, 5) ON CONFLICT DO NOTHING") == 0
        text = "INSERT INTO t VALUES (2, 5) ON CONFLICT (a) DO UPDATE SET a = 6"
        assert await on.count(text) == 1
        assert await on.rows("SELECT * FROM t") == [(1, 6)]


async def test_a_conflict_updates_the_row_in_the_way() -> None:
    async with asking() as on:
        await on.run(COWS, "INSERT INTO cow VALUES (1, 'Alma', 10), (2, 'Berta', 20)")
        text = (
            "INSERT INTO cow VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET milk = cow.milk + excluded.milk, name = excluded.name WHERE cow.milk < 20 "
            "RETURNING id, name, milk"
        )
        assert await on.rows(text, (1, "Anna", 5)) == [(1, "Anna", 15)]
        assert await on.rows(text, (2, "Bella", 5)) == []
        assert await on.rows(text, (3, "Cilli", 5)) == [(3, "Cilli", 5)]
        by_unique = (
            "INSERT INTO cow VALUES (9, 'x', 20) ON CONFLICT (milk) DO UPDATE SET name = 'u'"
        )
        assert await on.count(by_unique) == 1
        assert await on.rows("SELECT * FROM cow ORDER BY id") == [
            (1, "Anna", 15),
            (2, "u", 20),
            (3, "Cilli", 5),
        ]
        on.check_indexes()


async def test_what_only_the_query_engine_can_evaluate_is_evaluated_once() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY, a TEXT, n INT)")
        await on.run("INSERT INTO t VALUES (1, 'ß', 0)")
        text = (
            "INSERT INTO t VALUES (2, 'x', 0), (1, 'y', 0) ON CONFLICT (id) DO UPDATE "
            "SET n = t.n + 1, a = repeat(t.a, 2) || excluded.a WHERE upper(t.a) <> 'x'"
        )
        assert await on.count(text) == 2
        assert await on.rows("SELECT * FROM t ORDER BY id") == [(1, "ßßy", 1), (2, "x", 0)]
        assert await on.rows("UPDATE t SET n = n + 1 RETURNING id, repeat(a, 2), n") == [
            (1, "ßßyßßy", 2),
            (2, "xx", 1),
        ]
        assert await on.rows("UPDATE t SET n = n + 1 WHERE id = 1 RETURNING repeat(a, 1)") == [
            ("ßßy",)
        ]
        assert await on.rows("INSERT INTO t VALUES (3, 'ß', 0) RETURNING md5(a) = md5('ß')") == [
            (True,)
        ]
        assert await on.rows("DELETE FROM t WHERE id = 3 RETURNING reverse(a), n") == [("ß", 0)]
        assert await on.rows("SELECT n FROM t ORDER BY id") == [(3,), (1,)]


async def test_many_rows_are_one_statement() -> None:
    async with asking() as on:
        await on.run(COWS)
        result = await on.session.execute_many(
            "INSERT INTO cow VALUES (?, ?, ?)", [(n, "x", n) for n in range(200)]
        )
        assert result.count == 200
        with pytest.raises(UniqueViolation):
            await on.session.execute_many(
                "INSERT INTO cow VALUES (?, ?, ?)", [(300, "x", 300), (5, "x", 301)]
            )
        result = await on.session.execute_many(
            "INSERT INTO cow VALUES (?, 'x', ?) ON CONFLICT (id) DO UPDATE SET milk = -cow.id",
            [(n, n) for n in range(198, 202)],
        )
        assert result.count == 4
        await on.session.execute_many(
            "INSERT INTO cow VALUES (?, 'x', ?) RETURNING id + ?", [(900, 900, 1), (901, 901, 1)]
        )
        await on.run("DELETE FROM cow WHERE id >= 900")
        assert await on.rows("SELECT count(*), min(milk) FROM cow") == [(202, -199)]


async def test_a_check_is_asked_of_every_row() -> None:
    async with asking() as on:
        await on.run(
            "CREATE TABLE t (id INT PRIMARY KEY, a INT CHECK (a > 0), b INT, CHECK (a < b))"
        )
        await on.run("INSERT INTO t VALUES (1, 1, 2), (2, NULL, 0)")
        await on.run("CREATE TABLE u (a TEXT PRIMARY KEY CHECK (a NOT LIKE 'x%'))")
        await on.run("CREATE INDEX i ON u (a)", "INSERT INTO u VALUES ('ax')")
        assert type(await on.error("INSERT INTO u VALUES ('xa')")) is CheckViolation
        assert await on.rows("SELECT a FROM u WHERE a NOT LIKE 'b%'") == [("ax",)]
        for values in ("(3, 0, 5)", "(3, 5, 5)"):
            assert type(await on.error(f"INSERT INTO t VALUES {values}")) is CheckViolation
        await on.run("CREATE TABLE f (id INT PRIMARY KEY, d DOUBLE CHECK (d < 5))")
        assert type(await on.error("INSERT INTO f VALUES (1, ?)", (math.nan,))) in (
            CheckViolation,
            ValueInvalid,
        )


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("INSERT INTO cow (id, tail) VALUES (1, 2)", NoSuchColumn),
        ("INSERT INTO cow (id, id) VALUES (1, 2)", SqlSyntaxError),
        ("INSERT INTO cow (id) VALUES (1, 2)", ParametersMismatch),
        ("INSERT INTO cow SELECT 1", ParametersMismatch),
        ("INSERT INTO cow (id) VALUES (1) ON CONFLICT (name) DO NOTHING", NoSuchIndex),
        ("INSERT INTO cow (id) VALUES (1) ON CONFLICT DO UPDATE SET milk = 1", SqlSyntaxError),
        ("INSERT INTO cow (id) VALUES (1) ON DUPLICATE KEY UPDATE milk = 1", NotSupportedError),
        (
            "INSERT INTO cow (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET milk = (SELECT 1)",
            NotSupportedError,
        ),
        ("INSERT INTO cow (id) VALUES (1) RETURNING count(*)", NotSupportedError),
        ("INSERT INTO cow (id) VALUES (1) RETURNING (SELECT 1)", NotSupportedError),
        ("INSERT INTO cow (id) VALUES (1) RETURNING tail", NoSuchColumn),
        ("INSERT OVERWRITE cow VALUES (1, 'x', 1)", NotSupportedError),
        ("INSERT INTO cow BY NAME SELECT 1 AS id", NotSupportedError),
        ("INSERT INTO cow (id) VALUES (milk)", NoSuchColumn),
    ],
)
async def test_an_insert_that_says_what_there_is_not_is_refused(
    text: str, kind: type[Exception]
) -> None:
    async with asking() as on:
        await on.run(COWS)
        error = await on.error(text)
        assert type(error) in (kind, TypeMismatch) if kind is NoSuchColumn else type(error) is kind
        assert await on.rows("SELECT * FROM cow") == []
