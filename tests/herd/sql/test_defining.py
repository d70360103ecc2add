"""CREATE and DROP of tables and views, TRUNCATE, SHOW CREATE."""

import pytest

from herd.errors import (
    ForeignKeyViolation,
    NameTaken,
    NoSuchColumn,
    NoSuchIndex,
    NoSuchTable,
    NotSupportedError,
    ProgrammingError,
    TypeMismatch,
    ValueInvalid,
    ValueOutOfRange,
)
from tests.herd.sql.sessions import asking, at

DEFINITION = """
CREATE TABLE everything (
    id BIGINT AUTO_INCREMENT PRIMARY KEY,
    code VARCHAR(8) NOT NULL UNIQUE,
    `my price` DECIMAL(10, 2) DEFAULT 1.5 CHECK (`my price` >= 0),
    at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    parent BIGINT REFERENCES everything (id) ON DELETE CASCADE ON UPDATE SET NULL,
    vector FLOAT[],
    note TEXT DEFAULT 'it''s',
    CONSTRAINT both UNIQUE (code, at),
    CONSTRAINT sane CHECK (length(note) < 100),
    KEY by_note (note)
) WITH (changes = 'full')
"""


async def test_show_create_table_makes_the_same_table_again() -> None:
    async with asking() as on:
        await on.run(DEFINITION)
        before = on.space.catalog.table("everything")
        [(name, text)] = await on.rows("SHOW CREATE TABLE Everything")
        assert name == "everything"
        await on.run("DROP TABLE everything", *text.split(";\n"))
        [(_, again)] = await on.rows("SHOW CREATE TABLE everything WITH INDEXES")
        assert again == text
        after = on.space.catalog.table("everything")
        assert [c.type for c in after.columns] == [c.type for c in before.columns]
        assert after.full_changes
        assert {(i.name, i.columns, i.unique) for i in after.indexes} == {
            (i.name, i.columns, i.unique) for i in before.indexes
        }
        rules = [(key.on_delete, key.on_update) for key in before.foreign_keys]
        assert [(key.on_delete, key.on_update) for key in after.foreign_keys] == rules


async def test_a_dump_of_mysql_says_more_of_a_table_than_matters() -> None:
    async with asking() as on:
        await on.run(
            "CREATE TABLE `t` (`id` int NOT NULL AUTO_INCREMENT COMMENT 'x', "
            "`a` varchar(5) DEFAULT NULL, PRIMARY KEY (`id`), UNIQUE KEY `u` (`a`), "
            "KEY `k` (`a`, `id`)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"
        )
        found = await on.rows("SHOW INDEXES FROM t")
        assert [row[:3] for row in found] == [
            ("PRIMARY", "YES", "id"),
            ("u", "YES", "a"),
            ("k", "NO", "a, id"),
        ]


async def test_a_table_is_made_of_a_query() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY, a DECIMAL(5, 2))")
        await on.run("INSERT INTO t VALUES (1, 1.5), (2, NULL)")
        assert await on.count("CREATE TABLE u AS SELECT id, a * 2 AS twice FROM t") == 2
        assert await on.rows("SELECT * FROM u ORDER BY id") == [(1, 3), (2, None)]
        await on.run("INSERT INTO u VALUES (3, 4)")
        await on.rows("CREATE TABLE v AS SELECT * FROM t WHERE id = ?", (2,))
        assert await on.rows("SELECT * FROM v") == [(2, None)]
        await on.run("CREATE TABLE w AS SELECT * FROM t WITH NO DATA")
        assert await on.rows("SELECT * FROM w") == []
        error = await on.error("CREATE TABLE x AS SELECT id, id FROM t")
        assert type(error) is NameTaken
        error = await on.error("CREATE TABLE x AS SELECT INTERVAL 1 DAY AS i")
        assert type(error) is TypeMismatch


async def test_truncate_empties_a_table_and_goes_on_counting() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, a INT UNIQUE)")
        await on.run("INSERT INTO t (a) VALUES (1), (2)", "TRUNCATE TABLE t")
        assert await on.rows("SELECT * FROM t") == []
        assert await on.rows("INSERT INTO t (a) VALUES (1) RETURNING id") == [(3,)]
        await on.run("BEGIN", "TRUNCATE t")
        assert await on.rows("SELECT count(*) FROM t") == [(0,)]
        await on.run("INSERT INTO t (a) VALUES (1)", "ROLLBACK")
        assert await on.rows("SELECT id, a FROM t") == [(3, 1)]
        on.check_indexes()


async def test_a_table_that_is_referred_to_stays() -> None:
    async with asking() as on:
        await on.run(
            "CREATE TABLE herd (id INT PRIMARY KEY)",
            "CREATE TABLE cow (id INT PRIMARY KEY, herd INT REFERENCES herd)",
        )
        for text in ("DROP TABLE herd", "TRUNCATE TABLE herd"):
            error = await on.error(text)
            assert type(error) is ForeignKeyViolation
            assert "cow" in error.message
        assert type(await on.error("DROP TABLE herd CASCADE")) is NotSupportedError
        await on.run("TRUNCATE TABLE herd, cow", "DROP TABLE herd, cow")
        assert await on.rows("SHOW TABLES") == []


async def test_views_are_made_replaced_and_dropped() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 5)")
        await on.run("CREATE VIEW v (x, y) AS SELECT id, a * 2 FROM t WHERE a > 1")
        assert await on.rows("SELECT y FROM v WHERE x = 1") == [(10,)]
        assert type(await on.error("CREATE VIEW v AS SELECT 1 AS a")) is NameTaken
        assert type(await on.error("CREATE TABLE v (a INT)")) is NameTaken
        await on.run("CREATE OR REPLACE VIEW v AS SELECT a FROM t")
        assert await on.rows("SHOW CREATE VIEW v") == [("v", 'CREATE VIEW "v" AS SELECT a FROM t')]
        for text in ("INSERT INTO v VALUES (1)", "UPDATE v SET a = 1", "DELETE FROM v"):
            assert type(await on.error(text)) is NotSupportedError
        assert type(await on.error("CREATE VIEW w AS SELECT nothing FROM t")) is NoSuchColumn
        assert type(await on.error("CREATE VIEW w AS SELECT a FROM nothing")) is NoSuchTable
        assert type(await on.error("CREATE VIEW w AS SELECT ? FROM t")) is ProgrammingError
        await on.run("DROP VIEW v", "DROP VIEW IF EXISTS v")
        assert type(await on.error("DROP VIEW v")) is NoSuchTable


async def test_definitions_belong_to_their_transaction() -> None:
    async with asking() as on:
        other = on.another()
        await on.run("BEGIN", "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        assert await on.rows("SELECT * FROM t") == [(1,)]
        with pytest.raises(NoSuchTable):
            await other.execute("SELECT * FROM t")
        await on.run("ROLLBACK", "CREATE TABLE t (id INT PRIMARY KEY, a INT)")
        assert (await other.execute("SELECT * FROM t")).columns[1].name == "a"
        await on.run("BEGIN", "DROP TABLE t", "CREATE TABLE t (b TEXT PRIMARY KEY)", "COMMIT")
        assert (await other.execute("SELECT * FROM t")).columns[0].name == "b"


async def test_statements_of_two_who_define_come_one_after_the_other() -> None:
    async with asking() as on:
        other = on.another()
        await on.run("BEGIN", "CREATE TABLE a (id INT PRIMARY KEY)")
        import asyncio

        waiting = asyncio.ensure_future(other.execute("CREATE TABLE b (id INT PRIMARY KEY)"))
        await asyncio.sleep(0)
        await on.run("COMMIT")
        await waiting
        assert await on.rows("SHOW TABLES") == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("text", "kind", "where"),
    [
        ("CREATE TABLE t (a WIBBLE)", NotSupportedError, ""),
        ("CREATE TABLE t (a UINTEGER)", NotSupportedError, ""),
        ("CREATE TABLE t (a DECIMAL(40, 2))", ValueOutOfRange, ""),
        ("CREATE TABLE t (a INT, A TEXT)", NameTaken, ""),
        ("CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY)", ProgrammingError, ""),
        ("CREATE TABLE t (a INT, PRIMARY KEY (b))", NoSuchColumn, "b)"),
        ("CREATE TABLE t (a JSON PRIMARY KEY)", TypeMismatch, ""),
        ("CREATE TABLE t (a INT DEFAULT 'x')", ValueInvalid, ""),
        ("CREATE TABLE t (a INT DEFAULT (SELECT 1))", NotSupportedError, ""),
        ("CREATE TABLE t (a INT CHECK (b > 1))", NoSuchColumn, "b >"),
        ("CREATE TABLE t (a INT CHECK (a IN (SELECT 1)))", NotSupportedError, ""),
        ("CREATE TABLE t (a INT REFERENCES u)", NoSuchTable, ""),
        ("CREATE TABLE t (a INT PRIMARY KEY, b INT, c INT REFERENCES t (b))", NoSuchIndex, ""),
        ("CREATE TABLE t (a INT PRIMARY KEY, c TEXT REFERENCES t (a))", TypeMismatch, ""),
        ("CREATE TABLE t (a TEXT AUTO_INCREMENT PRIMARY KEY)", TypeMismatch, "a TEXT"),
        ("CREATE TABLE t (a INT PRIMARY KEY, b INT AUTO_INCREMENT)", NotSupportedError, ""),
        ("CREATE TABLE t ()", ProgrammingError, ""),
        ("CREATE TABLE other.t (a INT)", NotSupportedError, "other"),
        ("CREATE TEMPORARY TABLE t (a INT)", NotSupportedError, ""),
        ("CREATE TABLE t (_pk INT)", NameTaken, "_pk"),
        ("CREATE TABLE t (a INT) WITH (changes = 'some')", NotSupportedError, "'some'"),
        ("CREATE TABLE t (a INT) WITH (colour = 'red')", NotSupportedError, ""),
        ("CREATE OR REPLACE TABLE t (a INT)", NotSupportedError, ""),
        ("CREATE TABLE t LIKE u", NotSupportedError, ""),
        ("CREATE TABLE t (a INT GENERATED ALWAYS AS (1))", NotSupportedError, ""),
        ("DROP TABLE t", NoSuchTable, "t"),
        ("TRUNCATE TABLE t", NoSuchTable, "t"),
        ("SHOW CREATE TABLE t", NoSuchTable, ""),
        ("MERGE INTO t USING u ON 1 = 1 WHEN MATCHED THEN DELETE", NotSupportedError, ""),
        ("PRAGMA x", NotSupportedError, ""),
        ("COPY t TO 'file'", NotSupportedError, ""),
        ("ATTACH 'file'", NotSupportedError, ""),
    ],
)
async def test_a_definition_of_what_cannot_be_is_refused(
    text: str, kind: type[Exception], where: str
) -> None:
    async with asking() as on:
        error = await on.error(text)
        assert type(error) is kind, error
        if where:
            assert at(error, text).startswith(where)
        assert await on.rows("SHOW TABLES") == []
