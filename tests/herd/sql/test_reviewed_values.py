"""Both ways of evaluating agree: the quick one asks the query engine where it is not sure."""

import asyncio

import pytest

from herd.errors import CheckViolation, DatabaseError, NotSupportedError, ValueInvalid
from herd.sql import scalars
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


MIXED = """
CREATE TABLE cow (
    id INT PRIMARY KEY, fat DECIMAL(10, 2), lean DECIMAL(10, 2), milk INT, name TEXT, day DATE,
    hour TIME, seen TIMESTAMP, heard TIMESTAMPTZ, wide DOUBLE, f TEXT
)"""
MIXED_ROW = """
INSERT INTO cow VALUES (
    1, NULL, 10.25, 7, 'Alma', '2024-02-03', '10:00:00.5', '2024-01-01 10:00:00',
    '2024-01-01 10:00:00+00', 1.5, NULL
)"""


@pytest.mark.parametrize(
    "expression",
    [
        "COALESCE(fat, 0)",
        "COALESCE(milk, 2.5)",
        "CASE WHEN milk > 1 THEN 1 ELSE 2.5 END",
        "'a' || COALESCE(fat, 0)",
        "CAST(COALESCE(fat, 1) AS TEXT)",
        "COALESCE(fat, 0) + 1",
        "CASE WHEN milk > 1 THEN name ELSE 'none' END",
        "NULLIF(lean, 0) || '!'",
        "-0.0 || ''",
        "CAST(CAST('1_0' AS INT) AS TEXT)",
        "name || milk || lean",
        "CAST((heard = seen) AS TEXT)",
        "CAST((heard <> seen) AS TEXT)",
        "CAST((hour > '9:00') AS TEXT)",
        "CAST((day > '2024-2-1') AS TEXT)",
        "CAST((day = '2024-02-03') AS TEXT)",
    ],
)
async def test_a_text_of_a_value_is_the_same_by_both_ways(expression: str) -> None:
    async with asking() as on:
        await on.run(MIXED, MIXED_ROW)
        [[wanted]] = await on.rows(f"SELECT CAST(({expression}) AS TEXT) FROM cow")
        await on.run(f"UPDATE cow SET f = {expression} WHERE id = 1")
        assert await on.rows("SELECT f FROM cow") == [(wanted,)]


async def test_digits_of_other_scripts_are_no_number_by_either_way() -> None:
    async with asking() as on:
        await on.run(MIXED, MIXED_ROW)
        for kind in ("INT", "DECIMAL(5, 2)"):
            by_query = await on.error(f"SELECT CAST('٣' AS {kind}) FROM cow")
            by_key = await on.error(f"UPDATE cow SET milk = CAST('٣' AS {kind}) WHERE id = 1")
            assert type(by_query) is type(by_key) is ValueInvalid


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE cow SET wide = wide * ? WHERE id = 1",
        "UPDATE cow SET wide = wide + ? WHERE id = 1",
        "UPDATE cow SET wide = wide / ? WHERE id = 1",
        "UPDATE cow SET wide = ? WHERE id = 1",
        "UPDATE cow SET milk = 1 WHERE id = 1 AND wide < ?",
        "UPDATE cow SET f = CASE WHEN wide = ? THEN 'a' END WHERE id = 1",
    ],
)
async def test_a_number_that_is_too_large_for_a_double_is_an_error_of_the_database(
    text: str,
) -> None:
    async with asking() as on:
        await on.run(MIXED, MIXED_ROW)
        assert isinstance(await on.error(text, (10**400,)), DatabaseError)
        assert await on.rows("SELECT wide, milk FROM cow") == [(1.5, 7)]


async def test_letters_beyond_ascii_change_their_case_as_in_a_query() -> None:
    known = 0
    async with asking() as on:
        text = (
            "SELECT chr(n::INT), lower(chr(n::INT)), upper(chr(n::INT)) FROM range(1, 65536) r(n) "
            "WHERE n NOT BETWEEN 55296 AND 57343"
        )
        for letter, low, high in await on.rows(text):
            for change, wanted in ((scalars.lower, low), (scalars.upper, high)):
                try:
                    assert change(letter) == wanted, hex(ord(letter))
                    known += 1
                except scalars.CannotEvaluate:
                    pass
    assert known > 120_000
    assert scalars.lower("ΑΣ") == "ασ"
    with pytest.raises(scalars.CannotEvaluate):
        scalars.upper("ß")


async def test_a_check_looks_at_letters_beyond_ascii() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT CHECK (lower(name) = name))")
        await on.run("INSERT INTO cow VALUES (1, 'jürgen'), (2, '日本'), (3, 'ольга')")
        for name in ("Jürgen", "Ольга"):
            error = await on.error("UPDATE cow SET name = ? WHERE id = 1", (name,))
            assert type(error) is CheckViolation
