"""UPDATE and DELETE of any rows, by both ways, and beside each other."""

import asyncio

import pytest

from herd.errors import (
    NoSuchColumn,
    NoSuchTable,
    NotNullViolation,
    NotSupportedError,
    SerializationFailure,
    SqlSyntaxError,
    UniqueViolation,
    ValueInvalid,
    ValueOutOfRange,
)
from tests.herd.sql.sessions import Asking, asking, at, until_waiting

COWS = "CREATE TABLE cow (id INT PRIMARY KEY, name TEXT, milk INT DEFAULT 1, tag INT UNIQUE)"
FOUR = (
    "INSERT INTO cow VALUES "
    "(1, 'Alma', 10, 1), (2, 'Berta', 20, 2), (3, 'ß', NULL, 3), (4, NULL, 5, 4)"
)


async def all_of(on: Asking) -> list[tuple[object, ...]]:
    return await on.rows("SELECT id, name, milk FROM cow ORDER BY id")


async def test_rows_are_changed_by_key_and_by_any_condition() -> None:
    async with asking() as on:
        await on.run(COWS, FOUR)
        assert await on.count("UPDATE cow SET milk = milk + 1 WHERE id = 1") == 1
        assert (
            await on.count("UPDATE cow SET milk = milk * 2, name = name || '!' WHERE milk > 5") == 2
        )
        assert await on.count("UPDATE cow SET milk = DEFAULT WHERE milk IS NULL") == 1
        assert await on.count("UPDATE cow SET milk = 0 WHERE id = 9") == 0
        assert await all_of(on) == [(1, "Alma!", 22), (2, "Berta!", 40), (3, "ß", 1), (4, None, 5)]
        assert await on.count("DELETE FROM cow WHERE id = 4") == 1
        assert await on.count("DELETE FROM cow WHERE length(name) > 3") == 2
        assert await on.count("DELETE FROM cow") == 1
        on.check_indexes()


async def test_all_of_set_is_computed_of_the_row_before() -> None:
    async with asking() as on:
        await on.run(COWS, FOUR, "UPDATE cow SET milk = tag, tag = milk WHERE id <= 2")
        assert await on.rows("SELECT milk, tag FROM cow WHERE id <= 2 ORDER BY id") == [
            (1, 10),
            (2, 20),
        ]
        await on.run("UPDATE cow SET (name, milk) = ('x', milk + 1) WHERE id = 1")
        assert await on.rows("SELECT name, milk FROM cow WHERE id = 1") == [("x", 2)]


async def test_keys_may_be_shifted_and_swapped_among_the_rows_of_a_statement() -> None:
    async with asking() as on:
        await on.run(COWS, FOUR, "UPDATE cow SET id = id + 1, tag = 5 - tag")
        assert await on.rows("SELECT id, tag FROM cow ORDER BY id") == [
            (2, 4),
            (3, 3),
            (4, 2),
            (5, 1),
        ]
        assert type(await on.error("UPDATE cow SET id = 7")) is UniqueViolation
        assert type(await on.error("UPDATE cow SET tag = 4 WHERE id = 5")) is UniqueViolation
        on.check_indexes()


async def test_subqueries_stand_in_set_and_in_where() -> None:
    async with asking() as on:
        await on.run(COWS, FOUR)
        await on.run(
            "UPDATE cow AS c SET milk = (SELECT max(milk) FROM cow) + c.id "
            "WHERE c.id IN (SELECT id FROM cow WHERE milk < 20)"
        )
        assert await on.rows("SELECT id, milk FROM cow ORDER BY id") == [
            (1, 21),
            (2, 20),
            (3, None),
            (4, 24),
        ]
        await on.run("DELETE FROM cow WHERE EXISTS (SELECT 1 FROM cow o WHERE o.tag = cow.id + 1)")
        assert await on.rows("SELECT id FROM cow") == [(4,)]


async def test_what_python_would_do_otherwise_the_query_engine_does() -> None:
    async with asking() as on:
        await on.run(COWS, FOUR)
        assert await on.count("UPDATE cow SET name = upper(name), milk = id WHERE id = 3") == 1
        assert await on.count("UPDATE cow SET name = reverse(name) || 'é', milk = -id") == 4
        [(name, milk)] = await on.rows("SELECT name, milk FROM cow WHERE id = 3")
        assert name in ("ẞé", "ßé", "SSé")
        assert milk == -3
        assert await on.rows("SELECT name FROM cow WHERE id = 1") == [("amlAé",)]


async def test_parameters_stand_everywhere() -> None:
    async with asking() as on:
        await on.run(COWS, FOUR)
        assert await on.count("UPDATE cow SET milk = ? WHERE id = ?", (7, 1)) == 1
        assert (
            await on.count("UPDATE cow SET milk = milk + ? WHERE milk < ? OR id = ?", (1, 8, 2))
            == 3
        )
        found = await on.rows(
            "SELECT id FROM cow WHERE milk > :low ORDER BY id LIMIT :count", {"low": 5, "count": 2}
        )
        assert found == [(1,), (2,)]
        assert await on.count("DELETE FROM cow WHERE name = ?", ("Alma",)) == 1
        assert await on.count("UPDATE cow SET milk = 0 WHERE id = ?", ("2",)) == 1
        assert await on.count("UPDATE cow SET milk = 0 WHERE id = ?", (None,)) == 0
        assert await on.count("UPDATE cow SET milk = 0 WHERE id = -id") == 0
        assert await on.rows("SELECT name FROM cow WHERE CAST(tag AS INT) = id AND id = 2") != []


async def test_a_statement_changes_all_of_its_rows_or_none() -> None:
    async with asking() as on:
        await on.run(COWS, FOUR)
        before = await all_of(on)
        for text, kind in (
            ("UPDATE cow SET milk = 2147483600 + id * 20", ValueOutOfRange),
            ("UPDATE cow SET tag = 1", UniqueViolation),
            ("UPDATE cow SET id = NULL WHERE milk > 1", NotNullViolation),
            ("UPDATE cow SET milk = name", ValueInvalid),
        ):
            assert type(await on.error(text)) is kind, text
            assert await all_of(on) == before
        on.check_indexes()


async def test_an_update_looks_again_at_a_row_that_changed_while_it_waited() -> None:
    async with asking() as on:
        await on.run(COWS, FOUR)
        other = on.another()
        await on.run("BEGIN", "UPDATE cow SET milk = 100 WHERE id = 1")
        first = asyncio.ensure_future(
            other.execute("UPDATE cow SET name = 'rich' WHERE milk >= 20")
        )
        second = asyncio.ensure_future(
            on.another().execute("UPDATE cow SET milk = milk + 1 WHERE milk = 10")
        )
        await until_waiting(on.space, 1)
        await on.run("COMMIT")
        # Those who looked before the commit saw 10: one has the row no more, one never had it.
        assert (await second).count == 0
        assert (await first).count in (1, 2)
        assert await on.rows("SELECT milk FROM cow WHERE id = 1") == [(100,)]


async def test_a_snapshot_refuses_to_change_what_changed_since() -> None:
    async with asking() as on:
        await on.run(COWS, FOUR, "BEGIN ISOLATION LEVEL SNAPSHOT", "SELECT * FROM cow WHERE id = 1")
        await on.another().execute("UPDATE cow SET milk = 99 WHERE id = 1")
        assert await on.rows("SELECT milk FROM cow WHERE id = 1") == [(10,)]
        assert await on.rows("SELECT sum(milk) FROM cow") == [(35,)]
        for text in ("UPDATE cow SET milk = 0 WHERE id = 1", "UPDATE cow SET milk = 0"):
            assert type(await on.error(text)) is SerializationFailure
        assert await on.count("UPDATE cow SET milk = 0 WHERE id = 2") == 1
        await on.run("COMMIT")
        assert await on.rows("SELECT milk FROM cow WHERE id < 3 ORDER BY id") == [(99,), (0,)]


@pytest.mark.parametrize(
    ("text", "kind", "where"),
    [
        ("UPDATE cow SET tail = 1", NoSuchColumn, "tail"),
        ("UPDATE cow SET milk = tail", NoSuchColumn, "tail"),
        ("UPDATE cow SET milk = 1 WHERE tail = 1", NoSuchColumn, "tail"),
        ("UPDATE sheep SET milk = 1", NoSuchTable, ""),
        ("DELETE FROM sheep", NoSuchTable, ""),
        ("DELETE FROM cow WHERE tail > 1", NoSuchColumn, "tail"),
        ("UPDATE cow SET milk = 1, milk = 2", SqlSyntaxError, "milk = 2"),
        ("UPDATE cow SET milk = 1 FROM cow o WHERE o.id = cow.id", NotSupportedError, ""),
        ("UPDATE cow SET milk = 1 ORDER BY id LIMIT 1", NotSupportedError, ""),
        ("DELETE FROM cow USING cow o WHERE o.id = cow.id", NotSupportedError, ""),
        ("UPDATE cow SET milk = 'much' WHERE id = 1", ValueInvalid, ""),
        ("UPDATE cow SET (milk, tag) = (SELECT 1, 2)", NotSupportedError, ""),
    ],
)
async def test_a_change_that_says_what_there_is_not_is_refused(
    text: str, kind: type[Exception], where: str
) -> None:
    async with asking() as on:
        await on.run(COWS, FOUR)
        error = await on.error(text)
        assert type(error) is kind, error
        if where:
            assert at(error, text).startswith(where)
        assert await on.rows("SELECT count(*) FROM cow WHERE milk = 10") == [(1,)]
