"""Bad input: one clear error of the right class, nothing lost, the session stays usable."""

import pytest

from herd import errors
from tests.herd.sql.sessions import asking, at

COWS = (
    "CREATE TABLE cow (id INT PRIMARY KEY, name VARCHAR(5) NOT NULL, milk DECIMAL(4, 1), "
    "born DATE, CHECK (milk >= 0))"
)

BAD: list[tuple[str, type[errors.Error], str]] = [
    ("SELEC * FROM cow", errors.SqlSyntaxError, "SELEC"),
    ("SELECT * FORM cow", errors.SqlSyntaxError, "cow"),
    ("SELECT * FROM", errors.SqlSyntaxError, ""),
    ("FROBNICATE cow", errors.SqlSyntaxError, "FROB"),
    ("SELECT * FROM sheep", errors.NoSuchTable, "sheep"),
    ("SELECT * FROM cows", errors.NoSuchTable, "cows"),
    ("SELECT tail FROM cow", errors.NoSuchColumn, "tail"),
    ("SELECT tail FROM cow WHERE id = 1", errors.NoSuchColumn, "tail"),
    ("SELECT c.id FROM cow", errors.ProgrammingError, ""),
    ("SELECT wibble(id) FROM cow", errors.ProgrammingError, ""),
    ("SELECT id FROM cow GROUP BY name", errors.ProgrammingError, ""),
    ("SELECT name + 1 FROM cow", errors.TypeMismatch, ""),
    ("SELECT CAST('x' AS INT)", errors.ValueInvalid, ""),
    ("SELECT 9223372036854775807 + id FROM cow", errors.ValueOutOfRange, ""),
    ("INSERT INTO cow VALUES (2, 'Zenzi!', 1, NULL)", errors.ValueTooLong, ""),
    ("INSERT INTO cow VALUES (2, NULL, 1, NULL)", errors.NotNullViolation, ""),
    ("INSERT INTO cow VALUES (2, 'x', -1, NULL)", errors.CheckViolation, ""),
    ("INSERT INTO cow VALUES (2, 'x', 1000, NULL)", errors.ValueOutOfRange, ""),
    ("INSERT INTO cow VALUES (2, 'x', 1.25, NULL)", errors.ValueInvalid, ""),
    ("INSERT INTO cow VALUES (2, 'x', 1, 'soon')", errors.ValueInvalid, ""),
    ("INSERT INTO cow VALUES (1, 'x', 1, NULL)", errors.UniqueViolation, ""),
    ("INSERT INTO cow VALUES (99999999999, 'x', 1, NULL)", errors.ValueOutOfRange, ""),
    ("INSERT INTO cow VALUES (2, 'x')", errors.ParametersMismatch, "2, "),
    ("INSERT INTO sheep VALUES (1)", errors.NoSuchTable, "sheep"),
    ("INSERT INTO other.cow VALUES (1)", errors.NotSupportedError, "other"),
    ("UPDATE sheep SET milk = -1", errors.NoSuchTable, "sheep"),
    ("DELETE FROM sheep", errors.NoSuchTable, "sheep"),
    ("UPDATE cow SET milk = -1", errors.CheckViolation, ""),
    ("UPDATE cow SET name = 'far too long' WHERE id = 1", errors.ValueTooLong, ""),
    ("UPDATE cow SET milk = 'x' WHERE id = 1", errors.ValueInvalid, ""),
    ("DELETE FROM cow WHERE id = 'x'", errors.ValueInvalid, ""),
    ("CREATE TABLE cow (a INT)", errors.NameTaken, ""),
    ("DROP TABLE sheep", errors.NoSuchTable, "sheep"),
    ("ALTER TABLE cow ALTER COLUMN tail SET DEFAULT 1", errors.NoSuchColumn, "tail"),
    ("SELECT * FROM 'file.csv'", errors.NoSuchTable, ""),
    ("SELECT * FROM read_csv('file.csv')", errors.NotSupportedError, ""),
    ("SELECT ?", errors.ParametersMismatch, ""),
    ("SELECT * FROM cow AS OF CHECKPOINT 1", errors.NotSupportedError, ""),
]


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a transaction"])
async def test_bad_input_is_one_error_and_the_session_goes_on(inside: bool) -> None:
    async with asking() as on:
        await on.run(COWS, "INSERT INTO cow VALUES (1, 'Alma', 10, DATE '2020-02-29')")
        if inside:
            await on.run("BEGIN", "UPDATE cow SET milk = 11")
        rows = await on.rows("SELECT * FROM cow")
        for text, kind, where in BAD:
            error = await on.error(text)
            assert isinstance(error, kind), f"{text}: {error!r}"
            assert error.code != "HY000", text
            assert "\n" not in str(error), text
            if where:
                assert at(error, text).startswith(where), text
            assert await on.rows("SELECT * FROM cow") == rows, text
        if inside:
            await on.run("COMMIT")
            assert await on.rows("SELECT milk FROM cow") == [(11,)]


async def test_a_name_that_is_nearly_right_is_named() -> None:
    async with asking() as on:
        await on.run(COWS)
        assert "cow" in (await on.error("SELECT * FROM cows")).hint
        assert "milk" in (await on.error("SELECT mlk FROM cow WHERE id = 1")).hint


async def test_an_error_of_many_rows_leaves_none_of_them() -> None:
    async with asking() as on:
        await on.run(COWS)
        rows = [(n, "x", n, None) for n in range(50)] + [(50, "far too long", 1, None)]
        with pytest.raises(errors.ValueTooLong):
            await on.session.execute_many("INSERT INTO cow VALUES (?, ?, ?, ?)", rows)
        with pytest.raises(errors.ParametersMismatch):
            await on.session.execute_many("INSERT INTO cow VALUES (?, ?, ?, ?)", [(1, "x")])
        with pytest.raises(errors.ProgrammingError):
            await on.session.execute_many("SELECT ?", [(1,)])
        assert await on.rows("SELECT * FROM cow") == []


@pytest.mark.parametrize("depth", [200, 400, 800, 3_000])
@pytest.mark.parametrize("begin", ["", "EXPLAIN "])
async def test_a_statement_of_any_depth_is_refused_in_words_of_ours(begin: str, depth: int) -> None:
    async with asking() as on:
        error = await on.error(f"{begin}SELECT CAST(NULL AS INT{'[]' * depth})")
        assert isinstance(error, errors.TooLarge) and "nested too deeply" in error.message
