"""Small queries run in the node, and nothing else does."""

import asyncio
from collections.abc import Sequence

import pyarrow as pa
import pytest

from engine.ports.system_workers import ThreadWorkers
from herd.errors import TooLarge
from herd.reading import Size
from herd.schema import Index
from herd.sql.duck import DuckThreads, Work
from herd.sql.parsing import parse
from herd.sql.query import QueryEngine
from herd.sql.query_pool import QueryPool
from herd.sql.small_queries import SmallQueries, is_plain, is_small, small_settings
from herd.tablespace import Tablespace
from tests.herd.spaces import insert, made, opened
from tests.herd.sql.querying import SETTINGS, Asked, asked

PLAIN = (
    "SELECT 1",
    "SELECT a, count(*) FROM t WHERE b > ? AND c IS NOT NULL GROUP BY a HAVING count(*) > 1",
    "SELECT x.a, sum(y.b) / 2 AS half FROM t x JOIN u AS y ON x.a = y.a ORDER BY 2 DESC LIMIT 5",
    "SELECT a + 1 AS b, b AS c, count(*) AS d FROM t GROUP BY b ORDER BY d, b",
    "SELECT DISTINCT a FROM t WHERE a BETWEEN 1 AND 5 OR a IN (7, 8)",
)
COSTLY = (
    "SELECT repeat(a, 1000) FROM t",
    "SELECT a || a FROM t",
    "SELECT sum(i) FROM range(1000000000) r(i)",
    "SELECT (SELECT max(b) FROM u) FROM t",
    "SELECT a FROM t UNION ALL SELECT a FROM t",
    "SELECT a FROM t WHERE a IN (SELECT a FROM u)",
    "SELECT a FROM t WHERE EXISTS (SELECT a FROM u)",
    "SELECT a FROM t, LATERAL (SELECT a FROM u) s",
    "WITH x AS (SELECT 1) SELECT * FROM x, x y, x z",
    "SELECT list(a) FROM t",
    "SELECT a FROM t WHERE b LIKE '%a%b%c%'",
    "SELECT CAST(a AS INT[]) FROM t",
    "SELECT sum(a) OVER (ORDER BY b) FROM t",
    "SELECT a FROM (SELECT a FROM t) s",
    "VALUES (1), (2)",
    "SELECT " + " + ".join(["1"] * 400),
    "SELECT a + a AS b, b + b AS c, c + c AS d FROM t",
    "SELECT a + a AS b FROM t WHERE B * 2 > b",
)


@pytest.mark.parametrize("text", PLAIN)
def test_statements_that_make_no_more_of_their_rows_are_plain(text: str) -> None:
    tree = parse(text).tree
    assert tree is not None and is_plain(tree)


@pytest.mark.parametrize("text", COSTLY)
def test_statements_that_may_make_more_of_their_rows_are_not_plain(text: str) -> None:
    tree = parse(text).tree
    assert tree is not None and not is_plain(tree)


@pytest.mark.parametrize(
    ("sizes", "small"),
    [
        ([], True),
        ([Size(1_000_000, 4_000_000)], True),
        ([Size(1_000_001, 0)], False),
        ([Size(10, 5_000_000)], False),
        ([Size(1_000, 100), Size(1_000, 100)], True),
        ([Size(1_000, 100), Size(1_000, 100), Size(2, 1)], False),
        ([Size(0, 0), Size(1_000_001, 0)], False),
        ([Size(5, 5), None], False),
    ],
)
def test_rows_count_as_if_each_were_joined_with_each(
    sizes: Sequence[Size | None], small: bool
) -> None:
    assert is_small(sizes) is small


@pytest.mark.parametrize(
    ("sizes", "outputs", "constants", "small"),
    [
        ([Size(1, 3_000_000), Size(1_000, 8_000)], 1, 0, False),
        ([Size(1_000, 50_000), Size(1_000, 50_000)], 1, 0, False),
        ([Size(100, 5_000), Size(100, 5_000)], 4, 0, True),
        ([Size(1_000, 3_000_000)], 5, 0, True),
        ([Size(1_000, 3_000_000)], 6, 0, False),
        ([Size(1_000, 8_000)], 1, 1_000_000, False),
        ([Size(200_000, 2_000_000)], 4, 500, True),
        ([], 100, 1_000_000, False),
    ],
)
def test_values_count_as_often_as_the_answer_may_repeat_them(
    sizes: Sequence[Size], outputs: int, constants: int, small: bool
) -> None:
    assert is_small(sizes, outputs, constants) is small


def test_many_stars_of_wide_tables_are_not_plain() -> None:
    one, three = parse("SELECT * FROM t").tree, parse("SELECT *, *, * FROM t").tree
    assert one is not None and three is not None
    assert is_plain(one, 200) and not is_plain(one, 1_600)
    assert is_plain(three, 20) and not is_plain(three, 200)


class Recorded:
    """A runner of others that only notes what it was given."""

    def __init__(self) -> None:
        self.asked: list[Work] = []

    async def run(self, work: Work) -> pa.Table:
        """Answer that it was here."""
        self.asked.append(work)
        return pa.table({"here": ["a process"]})

    async def close(self) -> None:
        """Nothing is held."""


async def placed(
    space: Tablespace, text: str, parameters: Sequence[object] = ()
) -> list[tuple[object, ...]]:
    """Where a query of a server runs: its answer, or that of a process."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    small = DuckThreads(workers, small_settings(SETTINGS))
    pool = QueryPool(SmallQueries(small, Recorded()), SETTINGS)
    engine = QueryEngine(space, workers, pool=pool)
    try:
        return await Asked(space, engine).rows(text, parameters)
    finally:
        await engine.close()
        await pool.close()
        await workers.close()


async def test_a_query_of_few_rows_runs_in_the_node_and_one_of_many_does_not() -> None:
    async with opened() as space:
        few, many = await made(space, "few"), await made(space, "many")
        transaction = space.begin()
        await insert(transaction, few, *[[number, number % 3, "x"] for number in range(100)])
        await insert(
            transaction, many, *[[number, number % 3, "x" * 900] for number in range(5_000)]
        )
        await transaction.commit()
        assert await placed(space, "SELECT count(*) FROM few WHERE b = 1") == [(33,)]
        assert await placed(space, "SELECT count(*) FROM many") == [("a process",)]
        joined = "SELECT count(*) FROM few x JOIN few y ON x.a = y.a"
        assert await placed(space, joined) == [(100,)]
        assert await placed(space, "SELECT repeat('x', 9)") == [("a process",)]
        named = 'SELECT b + b, "b + b" + "b + b" AS c FROM few'
        assert await placed(space, named) == [("a process",)]


async def test_a_view_costs_what_its_query_costs() -> None:
    async with asked() as on:
        await on.view("many", "SELECT sum(i) FROM range(1000000000) r(i)")
        assert await placed(on.space, "SELECT * FROM many") == [("a process",)]


async def test_long_rows_that_an_index_names_are_not_few() -> None:
    async with opened() as space:
        table = await made(space, "notes", indexes=[Index(1, "by_b", (1,))])
        transaction = space.begin()
        rows = [[number, number % 2, "x" * 500_000 * (number % 2)] for number in range(20)]
        await insert(transaction, table, *rows)
        await transaction.commit()
        assert await placed(space, "SELECT max(a) FROM notes WHERE b = 0") == [(18,)]
        assert await placed(space, "SELECT max(c) FROM notes WHERE b = 1") == [("a process",)]


async def test_a_long_parameter_is_not_repeated_in_each_row_of_an_answer_here() -> None:
    async with opened() as space:
        table = await made(space, "few")
        transaction = space.begin()
        await insert(transaction, table, *[[number, 0, "x"] for number in range(1_000)])
        await transaction.commit()
        asked_for = "SELECT count(*) FROM few WHERE c <> ?"
        assert await placed(space, asked_for, ["long" * 1_000]) == [(1_000,)]
        assert await placed(space, "SELECT ? FROM few", ["long" * 100_000]) == [("a process",)]


async def test_a_small_query_that_needs_more_memory_runs_again_in_a_process() -> None:
    class Full(Recorded):
        """Has no memory left."""

        async def run(self, work: Work) -> pa.Table:
            """Refuse it."""
            await super().run(work)
            raise TooLarge("the query needs more memory")

    full, others = Full(), Recorded()
    queries = SmallQueries(full, others)
    found = await queries.run(Work("SELECT 1", (), {}, small=is_small))
    assert len(full.asked) == len(others.asked) == 1 and found["here"].to_pylist() == ["a process"]
    await queries.run(Work("SELECT 1", (), {}))
    assert len(full.asked) == 1 and len(others.asked) == 2
