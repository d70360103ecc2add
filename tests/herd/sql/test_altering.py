"""ALTER TABLE."""

import datetime
from decimal import Decimal

import pytest

from herd.errors import (
    CheckViolation,
    ForeignKeyViolation,
    NameTaken,
    NoSuchColumn,
    NoSuchIndex,
    NoSuchTable,
    NotNullViolation,
    NotSupportedError,
    ProgrammingError,
    TooLarge,
    UniqueViolation,
    ValueOutOfRange,
    ValueTooLong,
)
from herd.settings import HerdSettings
from tests.herd.sql.sessions import asking, at

COWS = "CREATE TABLE cow (id INT PRIMARY KEY, name VARCHAR(10), milk INT)"
THREE = "INSERT INTO cow VALUES (1, 'Alma', 10), (2, 'Berta', 20), (3, NULL, NULL)"


async def test_rows_from_before_a_column_have_its_default() -> None:
    async with asking() as on:
        await on.run(COWS, THREE)
        await on.run("ALTER TABLE cow ADD COLUMN legs INT NOT NULL DEFAULT 4, ADD note TEXT")
        await on.run("ALTER TABLE cow ALTER COLUMN legs SET DEFAULT 3")
        await on.run("INSERT INTO cow (id) VALUES (4)")
        assert await on.rows("SELECT id, legs, note FROM cow ORDER BY id") == [
            (1, 4, None),
            (2, 4, None),
            (3, 4, None),
            (4, 3, None),
        ]
        assert await on.rows("SELECT legs FROM cow WHERE id = 2") == [(4,)]


async def test_a_column_that_needs_a_value_is_only_added_to_an_empty_table() -> None:
    async with asking() as on:
        await on.run(COWS, "ALTER TABLE cow ADD COLUMN tag TEXT NOT NULL", "DELETE FROM cow")
        await on.run("INSERT INTO cow VALUES (1, 'Alma', 10, 'x')")
        text = "ALTER TABLE cow ADD COLUMN born DATE NOT NULL"
        error = await on.error(text)
        assert type(error) is NotNullViolation
        assert at(error, text).startswith("born")
        assert "DEFAULT" in error.hint


async def test_the_moment_of_the_statement_is_the_default_of_older_rows() -> None:
    async with asking() as on:
        await on.run(COWS, THREE)
        await on.run("ALTER TABLE cow ADD COLUMN seen TIMESTAMP DEFAULT CURRENT_TIMESTAMP")
        found = await on.rows("SELECT DISTINCT seen FROM cow")
        assert len(found) == 1
        assert isinstance(found[0][0], datetime.datetime)


async def test_a_column_that_is_there_is_added_only_if_not_exists() -> None:
    async with asking() as on:
        await on.run(COWS, "ALTER TABLE cow ADD COLUMN IF NOT EXISTS Milk TEXT")
        assert type(await on.error("ALTER TABLE cow ADD COLUMN Milk TEXT")) is NameTaken
        await on.run("ALTER TABLE IF EXISTS sheep ADD COLUMN a INT")
        assert type(await on.error("ALTER TABLE sheep ADD COLUMN a INT")) is NoSuchTable


async def test_a_dropped_column_takes_along_what_is_about_it_alone() -> None:
    async with asking() as on:
        await on.run(
            COWS,
            "CREATE INDEX cow_milk ON cow (milk)",
            "ALTER TABLE cow ADD CONSTRAINT positive CHECK (milk > 0)",
            "INSERT INTO cow VALUES (1, 'Alma', 10)",
            "ALTER TABLE cow DROP COLUMN milk",
            "INSERT INTO cow VALUES (2, 'Berta')",
            "ALTER TABLE cow ADD COLUMN milk INT",
        )
        assert await on.rows("SELECT * FROM cow ORDER BY id") == [
            (1, "Alma", None),
            (2, "Berta", None),
        ]
        assert on.space.catalog.table("cow").indexes == ()
        assert on.space.catalog.table("cow").checks == ()
        assert type(await on.error("ALTER TABLE cow DROP COLUMN tail")) is NoSuchColumn
        await on.run("ALTER TABLE cow DROP COLUMN IF EXISTS tail")


@pytest.mark.parametrize(
    ("made", "what"),
    [
        ("CREATE INDEX both ON cow (milk, name)", "both"),
        ("ALTER TABLE cow ADD CONSTRAINT both CHECK (milk > length(name))", "both"),
    ],
)
async def test_a_column_stays_while_something_joins_it_to_others(made: str, what: str) -> None:
    async with asking() as on:
        await on.run(COWS, made)
        error = await on.error("ALTER TABLE cow DROP COLUMN milk")
        assert type(error) is ProgrammingError
        assert what in error.message
        assert await on.rows("SELECT milk FROM cow") == []


async def test_the_primary_key_stays_as_it_is() -> None:
    async with asking() as on:
        await on.run(COWS)
        assert type(await on.error("ALTER TABLE cow DROP COLUMN id")) is ProgrammingError
        for text in (
            "ALTER TABLE cow DROP PRIMARY KEY",
            "ALTER TABLE cow ADD PRIMARY KEY (name)",
            "ALTER TABLE cow ADD CONSTRAINT key PRIMARY KEY (name)",
            "ALTER TABLE cow ADD COLUMN other INT PRIMARY KEY",
            "ALTER TABLE cow ADD COLUMN other INT AUTO_INCREMENT",
        ):
            error = await on.error(text)
            assert type(error) is NotSupportedError, text
            assert "CREATE TABLE" in error.hint
        error = await on.error("ALTER TABLE cow ALTER COLUMN id DROP NOT NULL")
        assert type(error) is ProgrammingError


async def test_a_renamed_column_keeps_its_rows_its_index_and_its_check() -> None:
    async with asking() as on:
        await on.run(
            COWS,
            "ALTER TABLE cow ADD CONSTRAINT positive CHECK (cow.milk > 0)",
            "CREATE INDEX cow_milk ON cow (milk)",
            "INSERT INTO cow VALUES (1, 'Alma', 10)",
            "ALTER TABLE cow RENAME COLUMN milk TO litres",
            "ALTER TABLE cow RENAME name TO title",
        )
        assert await on.rows("SELECT title, litres FROM cow") == [("Alma", 10)]
        assert type(await on.error("UPDATE cow SET litres = 0")) is CheckViolation
        assert type(await on.error("SELECT milk FROM cow WHERE id = 1")) is NoSuchColumn
        assert type(await on.error("ALTER TABLE cow RENAME title TO litres")) is NameTaken
        assert type(await on.error("ALTER TABLE cow RENAME title TO _key")) is NameTaken
        await on.run("ALTER TABLE cow RENAME title TO Title")


async def test_a_renamed_table_is_the_same_table_under_another_name() -> None:
    async with asking() as on:
        await on.run(
            COWS,
            "CREATE TABLE calf (id INT PRIMARY KEY, dam INT REFERENCES cow)",
            "ALTER TABLE cow ADD CONSTRAINT positive CHECK (cow.milk > 0)",
            THREE,
            "ALTER TABLE cow RENAME TO cattle",
            "INSERT INTO calf VALUES (1, 2)",
        )
        assert await on.rows("SELECT count(*) FROM cattle") == [(3,)]
        assert type(await on.error("DELETE FROM cattle WHERE id = 2")) is ForeignKeyViolation
        assert type(await on.error("UPDATE cattle SET milk = -1")) is CheckViolation
        assert type(await on.error("ALTER TABLE cattle RENAME TO calf")) is NameTaken
        assert type(await on.error("SELECT * FROM cow")) is NoSuchTable


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("SMALLINT", 7, "BIGINT"),
        ("BIGINT", 7, "SMALLINT"),
        ("VARCHAR(5)", "Alma", "VARCHAR(9)"),
        ("VARCHAR(5)", "Alma", "TEXT"),
        ("TEXT", "Alma", "VARCHAR(4)"),
        ("DECIMAL(4, 1)", Decimal("2.5"), "DECIMAL(18, 1)"),
        ("BIGINT", 7, "DECIMAL(18, 0)"),
        ("REAL", 1.5, "DOUBLE"),
        ("DOUBLE", 1.5, "REAL"),
        ("JSON", '{"a": 1}', "TEXT"),
    ],
)
async def test_a_type_changes_where_no_stored_value_does(
    before: str, value: object, after: str
) -> None:
    async with asking() as on:
        await on.run(f"CREATE TABLE t (id INT PRIMARY KEY, a {before}, b INT)")
        if before != "JSON":
            await on.run("CREATE INDEX t_a ON t (a)")
        await on.rows("INSERT INTO t VALUES (1, ?, 0), (2, NULL, 0)", (value,))
        assert await on.rows("SELECT a FROM t WHERE b = 0 AND id = 1") == [(value,)]
        await on.run(f"ALTER TABLE t ALTER COLUMN a TYPE {after}")
        assert await on.rows("SELECT a FROM t WHERE b = 0 AND id = 1") == [(value,)]
        assert await on.rows("SELECT a FROM t WHERE id = 1") == [(value,)]
        assert await on.rows("SELECT a FROM t WHERE a IS NOT NULL") == [(value,)]
        on.check_indexes()


@pytest.mark.parametrize(
    ("before", "value", "after", "kind"),
    [
        ("BIGINT", 1 << 40, "INT", ValueOutOfRange),
        ("TEXT", "Berta", "VARCHAR(4)", ValueTooLong),
        ("DECIMAL(9, 1)", Decimal("12345.6"), "DECIMAL(4, 1)", ValueOutOfRange),
        ("INT", 7, "TEXT", NotSupportedError),
        ("TEXT", "7", "INT", NotSupportedError),
        ("INT", 7, "DOUBLE", NotSupportedError),
        ("DECIMAL(9, 1)", Decimal("1.5"), "DECIMAL(9, 2)", NotSupportedError),
        ("DATE", datetime.date(2026, 11, 21), "TIMESTAMP", NotSupportedError),
    ],
)
async def test_a_type_that_would_change_a_value_is_refused(
    before: str, value: object, after: str, kind: type[Exception]
) -> None:
    async with asking() as on:
        await on.run(f"CREATE TABLE t (id INT PRIMARY KEY, a {before})")
        await on.rows("INSERT INTO t VALUES (1, ?)", (value,))
        error = await on.error(f"ALTER TABLE t ALTER COLUMN a SET DATA TYPE {after}")
        assert type(error) is kind
        assert error.hint
        assert await on.rows("SELECT a FROM t WHERE id = 1") == [(value,)]


async def test_what_a_foreign_key_joins_keeps_its_kind() -> None:
    async with asking() as on:
        await on.run(
            "CREATE TABLE herd (id INT PRIMARY KEY)",
            "CREATE TABLE cow (id INT PRIMARY KEY, herd INT REFERENCES herd)",
            "ALTER TABLE cow ALTER COLUMN herd TYPE BIGINT",
        )
        for text in (
            "ALTER TABLE cow ALTER COLUMN herd TYPE DECIMAL(18, 0)",
            "ALTER TABLE herd ALTER COLUMN id TYPE DECIMAL(18, 0)",
        ):
            assert type(await on.error(text)) is ProgrammingError


async def test_defaults_come_and_go() -> None:
    async with asking() as on:
        await on.run(COWS, "ALTER TABLE cow ALTER COLUMN milk SET DEFAULT 7")
        await on.run("INSERT INTO cow (id) VALUES (1)")
        await on.run("ALTER TABLE cow ALTER milk DROP DEFAULT")
        await on.run("INSERT INTO cow (id) VALUES (2)")
        assert await on.rows("SELECT milk FROM cow ORDER BY id") == [(7,), (None,)]
        error = await on.error("ALTER TABLE cow ALTER milk SET DEFAULT 'much'")
        assert error.code == "22P02"
        error = await on.error("ALTER TABLE cow ALTER milk SET DEFAULT milk + 1")
        assert type(error) is NoSuchColumn


async def test_not_null_is_checked_and_makes_the_entries_of_indexes_anew() -> None:
    async with asking() as on:
        await on.run(COWS, "CREATE INDEX a ON cow (milk)", "CREATE UNIQUE INDEX b ON cow (milk)")
        await on.run(THREE)
        error = await on.error("ALTER TABLE cow ALTER COLUMN milk SET NOT NULL")
        assert type(error) is NotNullViolation
        await on.run("UPDATE cow SET milk = 30 WHERE id = 3")
        await on.run("ALTER TABLE cow ALTER COLUMN milk SET NOT NULL")
        assert type(await on.error("INSERT INTO cow (id) VALUES (4)")) is NotNullViolation
        assert type(await on.error("INSERT INTO cow VALUES (4, '', 30)")) is UniqueViolation
        on.check_indexes()
        await on.run("ALTER TABLE cow ALTER COLUMN milk DROP NOT NULL")
        await on.run("INSERT INTO cow (id) VALUES (4), (5)")
        on.check_indexes()
        assert [index.name for index in on.space.catalog.table("cow").indexes] == ["a", "b"]


async def test_modify_and_change_say_a_column_anew() -> None:
    async with asking() as on:
        await on.run(COWS, "INSERT INTO cow VALUES (1, 'Alma', 10)")
        await on.run("ALTER TABLE cow MODIFY COLUMN milk BIGINT NOT NULL DEFAULT 5")
        await on.run("ALTER TABLE cow CHANGE name title VARCHAR(20) DEFAULT 'none'")
        await on.run("INSERT INTO cow (id) VALUES (2)")
        assert await on.rows("SELECT * FROM cow ORDER BY id") == [(1, "Alma", 10), (2, "none", 5)]
        assert await on.rows("DESCRIBE cow") == [
            ("id", "INTEGER", "NO", "PRI", None, ""),
            ("title", "VARCHAR(20)", "YES", "", "'none'", ""),
            ("milk", "BIGINT", "NO", "", "5", ""),
        ]


async def test_a_unique_constraint_is_added_if_all_rows_keep_it() -> None:
    async with asking() as on:
        await on.run(COWS, THREE, "ALTER TABLE cow ADD CONSTRAINT one UNIQUE (milk)")
        assert type(await on.error("UPDATE cow SET milk = 10")) is UniqueViolation
        on.check_indexes()
        await on.run("ALTER TABLE cow DROP CONSTRAINT one", "UPDATE cow SET milk = 10")
        error = await on.error("ALTER TABLE cow ADD UNIQUE (milk)")
        assert type(error) is UniqueViolation
        assert on.space.catalog.table("cow").indexes == ()


async def test_a_check_is_added_if_all_rows_keep_it() -> None:
    async with asking() as on:
        await on.run(COWS, THREE, "ALTER TABLE cow ADD CHECK (milk > 5)")
        assert type(await on.error("UPDATE cow SET milk = 1")) is CheckViolation
        assert type(await on.error("ALTER TABLE cow ADD CHECK (milk > 10)")) is CheckViolation
        assert len(on.space.catalog.table("cow").checks) == 1


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE calf (id INT PRIMARY KEY, dam INT REFERENCES other.cow)",
        "CREATE TABLE calf (id INT PRIMARY KEY, dam INT, FOREIGN KEY (dam) REFERENCES a.b.cow)",
        "ALTER TABLE cow ADD FOREIGN KEY (id) REFERENCES other.cow (id)",
    ],
)
async def test_a_foreign_key_to_another_tablespace_is_refused(text: str) -> None:
    async with asking() as on:
        await on.run(COWS)
        assert type(await on.error(text)) is NotSupportedError


async def test_a_foreign_key_is_added_if_all_rows_keep_it() -> None:
    async with asking() as on:
        await on.run(COWS, THREE, "CREATE TABLE calf (id INT PRIMARY KEY, dam INT)")
        await on.run("INSERT INTO calf VALUES (1, 1), (2, NULL), (3, 9)")
        added = "ALTER TABLE calf ADD CONSTRAINT dam FOREIGN KEY (dam) REFERENCES cow (id)"
        assert type(await on.error(added)) is ForeignKeyViolation
        await on.run("UPDATE calf SET dam = 2 WHERE id = 3", added)
        assert type(await on.error("DELETE FROM cow WHERE id = 2")) is ForeignKeyViolation
        assert type(await on.error("INSERT INTO calf VALUES (4, 9)")) is ForeignKeyViolation
        on.check_indexes()
        await on.run("ALTER TABLE calf DROP FOREIGN KEY dam", "DELETE FROM cow WHERE id = 2")


async def test_a_constraint_that_is_not_there_is_dropped_only_if_exists() -> None:
    async with asking() as on:
        await on.run(COWS, "CREATE INDEX i ON cow (milk)")
        text = "ALTER TABLE cow DROP CONSTRAINT nothing"
        error = await on.error(text)
        assert type(error) is NoSuchIndex
        assert at(error, text) == "nothing"
        await on.run("ALTER TABLE cow DROP CONSTRAINT IF EXISTS nothing")
        error = await on.error("ALTER TABLE cow DROP CONSTRAINT i")
        assert error.hint == "DROP INDEX i"
        await on.run("ALTER TABLE cow DROP INDEX i")


async def test_all_actions_happen_or_none() -> None:
    async with asking() as on:
        await on.run(COWS, THREE)
        before = on.space.catalog.table("cow")
        await on.error("ALTER TABLE cow ADD COLUMN a INT, RENAME milk TO b, DROP COLUMN tail")
        assert on.space.catalog.table("cow") == before
        await on.run("ALTER TABLE cow ADD a INT DEFAULT 1, DROP milk, RENAME a TO milk")
        assert await on.rows("SELECT * FROM cow WHERE id = 1") == [(1, "Alma", 1)]


async def test_alterations_are_part_of_their_transaction() -> None:
    async with asking() as on:
        await on.run(COWS, THREE, "CREATE INDEX i ON cow (milk)")
        await on.run("BEGIN", "ALTER TABLE cow ADD COLUMN a INT DEFAULT 1")
        await on.run("INSERT INTO cow VALUES (4, 'Dora', 5, 2)")
        await on.run("SAVEPOINT s", "ALTER TABLE cow DROP COLUMN milk", "ROLLBACK TO s")
        assert await on.rows("SELECT milk, a FROM cow WHERE id >= 3 ORDER BY id") == [
            (None, 1),
            (5, 2),
        ]
        await on.run("ALTER TABLE cow ALTER milk DROP DEFAULT", "ROLLBACK")
        assert len(await on.rows("SELECT * FROM cow WHERE id = 1")) == 1
        assert await on.rows("SELECT * FROM cow WHERE id = 4") == []
        on.check_indexes()


async def test_changes_are_logged_whole_where_a_table_says_so() -> None:
    async with asking() as on:
        await on.run(COWS, "ALTER TABLE cow SET changes = 'full'")
        assert on.space.catalog.table("cow").full_changes
        await on.run("ALTER TABLE cow SET (changes = 'plain')")
        assert not on.space.catalog.table("cow").full_changes
        assert type(await on.error("ALTER TABLE cow SET changes = 'some'")) is NotSupportedError
        assert type(await on.error("ALTER TABLE cow SET colour = 'red'")) is NotSupportedError


async def test_a_view_is_renamed() -> None:
    async with asking() as on:
        await on.run(COWS, THREE, "CREATE VIEW good AS SELECT * FROM cow WHERE milk > 10")
        await on.run("ALTER VIEW good RENAME TO better")
        assert await on.rows("SELECT id FROM better") == [(2,)]
        assert type(await on.error("SELECT * FROM good")) is NoSuchTable
        assert type(await on.error("ALTER VIEW good RENAME TO worse")) is NoSuchTable


async def test_what_a_view_is_made_of_keeps_its_name() -> None:
    async with asking() as on:
        await on.run(COWS, "CREATE TABLE calf (id INT PRIMARY KEY, milk INT)")
        await on.run("CREATE VIEW good AS SELECT c.name FROM cow c WHERE c.milk > 10")
        for text in (
            "ALTER TABLE cow RENAME TO cattle",
            "ALTER TABLE cow RENAME milk TO litres",
            "ALTER TABLE cow DROP COLUMN name",
        ):
            error = await on.error(text)
            assert type(error) is ProgrammingError
            assert "DROP VIEW good" in error.hint
        await on.run("ALTER TABLE calf RENAME milk TO litres", "ALTER TABLE calf RENAME TO young")
        assert await on.rows("SELECT * FROM good") == []


async def test_a_constraint_over_more_rows_than_fit_says_what_to_do() -> None:
    small = HerdSettings(lock_timeout_ms=60_000, transaction_bytes_max=2_000)
    async with asking(small) as on:
        await on.run(COWS)
        for start in range(0, 100, 10):
            rows = ", ".join(f"({n}, '', {n})" for n in range(start, start + 10))
            await on.run(f"INSERT INTO cow VALUES {rows}")
        error = await on.error("ALTER TABLE cow ADD UNIQUE (milk)")
        assert type(error) is TooLarge
        assert "CREATE UNIQUE INDEX" in error.hint


async def test_the_auto_increment_column_keeps_a_key_that_it_leads() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (a TEXT PRIMARY KEY, n INT AUTO_INCREMENT UNIQUE)")
        await on.run("INSERT INTO t (a) VALUES ('x'), ('y')")
        error = await on.error("ALTER TABLE t DROP CONSTRAINT t_n_key")
        assert type(error) is NotSupportedError
        assert await on.rows("INSERT INTO t (a) VALUES ('z') RETURNING n") == [(3,)]
