"""Both ways of evaluating agree: the quick one asks the query engine where it is not sure."""

import asyncio

import pytest

from herd.errors import CheckViolation, NotSupportedError
from tests.herd.sql.sessions import asking, at, until_waiting

REALS = """
CREATE TABLE cow (
    id INT PRIMARY KEY, fat REAL CHECK (fat <= 0.1 OR fat > 3), milk INT, f TEXT
)"""


@pytest.mark.parametrize(
    "condition",
    [
        "day <= CURRENT_DATE",
        "day <= CURRENT_TIMESTAMP",
        "day < now()",
        "day < today()",
        "id > random()",
        "id > 0 AND (day IS NULL OR day <= CURRENT_DATE)",
        "id > ?",
    ],
)
async def test_a_check_of_what_changes_by_itself_is_refused_with_its_place(condition: str) -> None:
    async with asking() as on:
        text = f"CREATE TABLE cow (id INT PRIMARY KEY, day DATE, CHECK ({condition}))"
        error = await on.error(text, (1,) if "?" in condition else ())
        assert type(error) is NotSupportedError and error.hint
        assert at(error, text)
        await on.run(
            "CREATE TABLE cow (id INT PRIMARY KEY, day DATE)", "INSERT INTO cow VALUES (1, NULL)"
        )
        text = f"ALTER TABLE cow ADD CHECK ({condition})"
        assert type(await on.error(text, (1,) if "?" in condition else ())) is NotSupportedError
        await on.run("UPDATE cow SET day = '2020-01-01' WHERE id = 1")


async def test_between_symmetric_finds_rows_by_key_whatever_bound_stands_first() -> None:
    async with asking() as on:
        await on.run(
            "CREATE TABLE cow (id INT PRIMARY KEY)", "INSERT INTO cow VALUES (1), (4), (9)"
        )
        assert await on.rows("SELECT id FROM cow WHERE id BETWEEN SYMMETRIC 5 AND 0") == [
            (1,),
            (4,),
        ]
        assert await on.rows("SELECT id FROM cow WHERE id BETWEEN SYMMETRIC 0 AND 5") == [
            (1,),
            (4,),
        ]
        assert await on.rows("SELECT id FROM cow WHERE id BETWEEN SYMMETRIC ? AND ?", (9, 4)) == [
            (4,),
            (9,),
        ]
        assert await on.rows("SELECT id FROM cow WHERE id BETWEEN SYMMETRIC id AND 5") == [
            (1,),
            (4,),
            (9,),
        ]
        assert await on.rows("SELECT id FROM cow WHERE id BETWEEN 5 AND 0") == []
        assert await on.count("DELETE FROM cow WHERE id BETWEEN SYMMETRIC 5 AND 2") == 1


@pytest.mark.parametrize(
    "condition",
    [
        "fat = 0.1",
        "0.1 = fat",
        "fat <= 0.1",
        "fat >= 0.1",
        "fat <> 0.1",
        "fat IN (0.1, 5)",
        "fat BETWEEN 0.1 AND 0.1",
        "-fat = -0.1",
        "fat = 0.1000000001",
        "fat = 1e-1",
        "fat * 3 = 0.3",
        "fat + 0.2 = 0.3",
        "CASE fat WHEN 0.1 THEN TRUE ELSE FALSE END",
        "NULLIF(fat, 0.1) IS NULL",
        "COALESCE(fat, 1) = 0.1",
        "CAST(0.1 AS REAL) = 0.1",
        "fat IS NULL",
    ],
)
async def test_a_real_is_compared_in_its_own_24_bits_by_both_ways(condition: str) -> None:
    async with asking() as on:
        await on.run(REALS, "INSERT INTO cow VALUES (1, 0.1, 0, NULL)")
        [[wanted]] = await on.rows(f"SELECT ({condition})::TEXT FROM cow")
        await on.run(
            f"UPDATE cow SET f = CASE WHEN {condition} THEN 'true' ELSE 'false' END WHERE id = 1"
        )
        assert await on.rows("SELECT f FROM cow") == [(wanted,)]


async def test_a_check_of_a_real_takes_its_own_bound() -> None:
    async with asking() as on:
        await on.run(REALS, "INSERT INTO cow VALUES (1, 0.1, 0, NULL), (2, 3.5, 0, NULL)")
        assert type(await on.error("UPDATE cow SET fat = 3 WHERE id = 1")) is CheckViolation
        await on.run("UPDATE cow SET fat = NULL WHERE id = 1", "UPDATE cow SET fat = 0.1")
        assert await on.count("UPDATE cow SET milk = 1 WHERE fat = 0.1") == 2


async def test_a_real_of_a_row_that_changed_meanwhile_is_judged_as_before() -> None:
    async with asking() as on:
        await on.run(REALS, "INSERT INTO cow VALUES (1, 0.1, 0, NULL)")
        other = on.another()
        await other.execute("BEGIN")
        await other.execute("UPDATE cow SET milk = 5 WHERE id = 1")
        waiting = asyncio.ensure_future(on.count("UPDATE cow SET milk = milk + 1 WHERE fat = 0.1"))
        await until_waiting(on.space, 1)
        await other.commit()
        assert await waiting == 1
        assert await on.rows("SELECT milk, fat IS NOT NULL FROM cow") == [(6, True)]
