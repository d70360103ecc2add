"""Functions of the query engine that a statement may not call, and all that were reviewed.

A new version of the query engine adds functions. Each of them is reviewed once: functions that a
statement may not call go into `herd/sql/functions.py`, all others into `judged_functions.txt`.
"""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from sqlglot import exp

from herd.errors import NoSuchTable, NotSupportedError, SqlSyntaxError
from herd.schema import View
from herd.sql.dialect import Herd
from herd.sql.functions import REFUSED, check_function, is_refused
from herd.sql.parsing import parse_expression
from tests.herd.sql.querying import asked
from tests.herd.sql.sessions import Asking, asking

JUDGED = Path(__file__).with_name("judged_functions.txt")
TABLES = (
    "CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR)",
    "INSERT INTO t VALUES (1, 'a')",
)
IN_PLACE_OF_A_TABLE = {"generate_series", "range", "unnest"}
CALL = "current_setting('temp_directory')"


def names_of(*kinds: str) -> set[str]:
    """The functions that the query engine has, by their kinds."""
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions() WHERE list_contains($1, "
            "function_type)",
            [list(kinds)],
        ).fetchall()
    return {name for (name,) in found}


async def is_told(on: Asking, text: str) -> bool:
    """Whether a statement is refused because it calls a function that it may not call."""
    error = await on.error(text)
    told = isinstance(error, NotSupportedError) and bool(error.hint)
    return told and "may not be called" in error.message


def test_every_function_of_the_query_engine_is_judged() -> None:
    known = names_of("scalar", "aggregate", "macro", "window")
    judged = set(JUDGED.read_text().splitlines())
    allowed = {name for name in known if not is_refused(name)}
    assert allowed - judged == set(), "judge these: functions.py or judged_functions.txt"
    assert judged - allowed == set(), "these are in judged_functions.txt, and not there any more"
    assert known >= REFUSED, "these are refused, and not there any more"


async def test_each_refused_function_is_refused_in_whatever_way_it_is_written() -> None:
    async with asking() as on:
        await on.run(*TABLES)
        for name in sorted(REFUSED):
            for call in (
                f"{name}()",
                f"{name.upper()}('x')",
                f'"{name}"(1)',
                f"main.{name}('x', 1)",
                f"system.main.{name}(v)",
                f"(1).{name}()",
                f"v.{name}(1)",
                f"list_transform([1], x -> {name}(x))",
                f"[{name}(x) FOR x IN [1]]",
            ):
                assert await is_told(on, f"SELECT {call} FROM t"), call


async def test_no_name_of_another_function_is_translated_to_a_refused_one() -> None:
    for name in sorted(Herd.Parser.FUNCTIONS):
        for count in range(4):
            text = f"{name}({', '.join('abc'[:count])})"
            try:
                tree = parse_expression(text)
                written = tree.sql(dialect="duckdb")
            except Exception:
                # With this many arguments it is not the function of that name.
                continue
            if any(f"{other}(" in written.lower() for other in REFUSED):
                with pytest.raises(NotSupportedError):
                    for node in tree.find_all(exp.Func):
                        check_function(node)


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT {CALL}",
        f"SELECT 1 WHERE {CALL} IS NOT NULL",
        f"SELECT id FROM t ORDER BY {CALL}",
        "SELECT id FROM t LIMIT sleep_ms(1)",
        f"SELECT max(v) FILTER (WHERE {CALL} = v) FROM t",
        f"SELECT * REPLACE ({CALL} AS v) FROM t",
        f"SELECT * FROM unnest([{CALL}])",
        "SELECT * FROM range(sleep_ms(1))",
        f"SELECT * FROM (VALUES ({CALL})) AS x",
        f"SELECT * FROM t, LATERAL (SELECT {CALL})",
        f"WITH x AS (SELECT {CALL}) SELECT * FROM x",
        f"SELECT 1 UNION SELECT {CALL}",
        f"SELECT (SELECT {CALL})",
        f"SELECT * FROM t WHERE {CALL} = v FOR UPDATE",
        f"EXPLAIN SELECT {CALL}",
        f"CREATE VIEW w AS SELECT {CALL} AS a",
        f"CREATE TABLE u AS SELECT {CALL} AS a",
        f"INSERT INTO t VALUES (2, {CALL})",
        f"INSERT INTO t SELECT 2, {CALL}",
        f"INSERT INTO t VALUES (1, 'b') ON CONFLICT DO UPDATE SET v = {CALL}",
        f"INSERT INTO t VALUES (2, 'b') RETURNING {CALL}",
        f"UPDATE t SET v = {CALL}",
        f"UPDATE t SET v = 'b' WHERE {CALL} <> v",
        f"DELETE FROM t WHERE {CALL} <> v",
    ],
)
async def test_a_refused_function_is_refused_wherever_it_stands(text: str) -> None:
    async with asking() as on:
        await on.run(*TABLES)
        assert await is_told(on, text)
        assert await on.rows("FROM t") == [(1, "a")]


@pytest.mark.parametrize(
    "text",
    [
        f"CREATE TABLE u (id BIGINT PRIMARY KEY, v VARCHAR DEFAULT {CALL})",
        f"ALTER TABLE t ADD COLUMN w VARCHAR DEFAULT {CALL}",
        f"CREATE TABLE u (id BIGINT PRIMARY KEY, v VARCHAR CHECK (v <> {CALL}))",
        f"ALTER TABLE t ADD CHECK (v <> {CALL})",
    ],
)
async def test_no_definition_calls_a_refused_function(text: str) -> None:
    async with asking() as on:
        await on.run(*TABLES)
        assert isinstance(await on.error(text), NotSupportedError)


async def test_a_view_of_an_earlier_version_does_not_call_a_refused_function() -> None:
    async with asked() as on:
        transaction = on.space.begin()
        view = View("w", f"SELECT {CALL} AS a", ())
        transaction.set_catalog(*transaction.catalog.with_view(view, replace=False))
        await transaction.commit()
        with pytest.raises(NotSupportedError, match="may not be called"):
            await on.rows("SELECT * FROM w")


def places_of_tables(call: str) -> Iterator[str]:
    """Statements with a call in the place of a table."""
    yield f"SELECT * FROM {call}"
    yield f"FROM {call}"
    yield f"SELECT * FROM main.{call}"
    yield f"SELECT * FROM t, {call} AS x"
    yield f"SELECT * FROM t, LATERAL {call} AS x"
    yield f"SELECT * FROM t CROSS JOIN LATERAL {call} AS x"
    yield f"SELECT * FROM t POSITIONAL JOIN {call}"
    yield f"SELECT * FROM ({call})"
    yield f"SELECT * FROM t WHERE id IN (FROM {call})"
    yield f"WITH x AS (FROM {call}) FROM x"


async def test_no_function_but_three_may_stand_in_the_place_of_a_table() -> None:
    async with asking() as on:
        await on.run(*TABLES)
        for name in sorted(names_of("table", "table_macro") - IN_PLACE_OF_A_TABLE):
            for call in (f"{name}()", f"{name}('x')"):
                for text in places_of_tables(call):
                    error = await on.error(text)
                    kinds = NotSupportedError | SqlSyntaxError
                    assert isinstance(error, kinds), f"{text}: {error!r}"


async def test_lateral_still_takes_queries_and_lists() -> None:
    async with asking() as on:
        await on.run(*TABLES)
        for place in ("(SELECT id + 1)", "(VALUES (2)) AS x(b)", "unnest([2])", "range(2, 3)"):
            assert await on.rows(f"SELECT * FROM t, LATERAL {place}") == [(1, "a", 2)], place


async def test_no_pragma_is_a_statement() -> None:
    async with asking() as on:
        for name in sorted(names_of("pragma")):
            for text in (f"PRAGMA {name}", f"PRAGMA {name}('x')", f"PRAGMA {name}=1"):
                error = await on.error(text)
                assert isinstance(error, NotSupportedError | SqlSyntaxError), text
                assert "PRAGMA" in error.message, text


SYSTEM = "SELECT DISTINCT schema_name, view_name FROM duckdb_views()"


async def test_no_system_table_of_the_query_engine_can_be_read() -> None:
    with duckdb.connect() as connection:
        views = connection.execute(SYSTEM).fetchall()
    async with asking() as on:
        for schema, name in views:
            if schema == "information_schema":
                continue
            for text in (
                f"FROM {name}",
                f"FROM {schema}.{name}",
                f"FROM system.{schema}.{name}",
                # A CTE that the query engine does not see where this name is used.
                f"WITH RECURSIVE a AS (FROM {name}), {name} AS (SELECT 1) FROM a",
                f"WITH RECURSIVE {name} AS (FROM {name}) FROM {name}",
                f"WITH RECURSIVE {name} AS (FROM {name} EXCEPT SELECT 1) FROM {name}",
            ):
                assert isinstance(await on.error(text), NoSuchTable), text


async def test_a_letter_that_only_looks_like_another_one_opens_no_system_table() -> None:
    # The Kelvin sign is a k in lower case here, and not for the query engine.
    async with asking() as on:
        text = 'WITH "duc\u212adb_databases" AS (SELECT 1) SELECT * FROM duckdb_databases'
        assert await on.rows(text) == [(1,)]


async def test_a_recursive_cte_reads_the_table_that_a_later_one_hides() -> None:
    async with asking() as on:
        await on.run(*TABLES)
        text = "WITH RECURSIVE a AS (SELECT v FROM t), t AS (SELECT 7 AS v) "
        assert await on.rows(f"{text} SELECT a.v, t.v FROM a, t") == [("a", 7)]


@pytest.mark.parametrize(
    "body",
    [
        "DELETE FROM t RETURNING id",
        "INSERT INTO t VALUES (2, 'b') RETURNING id",
        "UPDATE t SET v = 'b' RETURNING id",
    ],
)
async def test_a_cte_only_reads(body: str) -> None:
    async with asking() as on:
        await on.run(*TABLES)
        error = await on.error(f"WITH x AS ({body}) SELECT * FROM x")
        assert isinstance(error, NotSupportedError), error
        assert "in a query" in error.message
