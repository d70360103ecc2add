"""The plans of a tablespace, as they are kept by text."""

import gc
import tracemalloc

import pytest

from engine.access.principal import Grant, Principal
from herd.catalog import Catalog
from herd.errors import AccessDenied
from herd.schema import Counters
from herd.sql.asking import alone
from herd.sql.fast import SelectByKey
from herd.sql.finding import SelectByIndex
from herd.sql.parsing import parse
from herd.sql.planning import CACHE_BYTES_MAX, Planned, Plans, plans_of
from herd.sql.session import Session
from tests.herd.sql.sessions import asking

CATALOG = Catalog({}, {}, Counters())


def planned(text: str) -> Planned:
    return Planned(parse(text), CATALOG)


def of_columns(count: int, number: int = 0) -> Planned:
    """The plan of a query with `count` more columns."""
    return planned(f"SELECT {number}{', 1' * count}")


async def test_a_plan_is_made_once_for_a_text() -> None:
    async with asking() as on:
        first = on.session.plan("SELECT 1")
        assert on.another().plan("SELECT 1") is first
        assert plans_of(on.space).known("SELECT 1") is first
        assert plans_of(on.space).known("SELECT 2") is None


def test_the_oldest_plans_go_when_there_are_too_many() -> None:
    plans, first = Plans(), of_columns(4_000)
    each = [first, *(of_columns(4_000, number) for number in range(1, 20))]
    assert first.size_bytes * len(each) > CACHE_BYTES_MAX
    for one in each:
        plans.keep(one)
    assert plans.known(each[0].parsed.text) is None
    assert plans.known(each[-1].parsed.text) is each[-1]


def test_the_plan_of_a_long_text_evicts_no_other_plan() -> None:
    plans, short = Plans(), planned("SELECT 1")
    plans.keep(short)
    long = [of_columns(9_000, number) for number in range(3)]
    assert long[0].size_bytes > CACHE_BYTES_MAX // 8
    for one in long:
        plans.keep(one)
        assert plans.known(one.parsed.text) is one
    assert plans.known("SELECT 1") is short
    assert plans.known(long[0].parsed.text) is None, "only the newest is kept"


async def test_a_plan_larger_than_the_whole_cache_is_not_kept() -> None:
    rows = ", ".join(f"({number}, 1)" for number in range(9_000))
    async with asking() as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, milk INT)")
        adding = f"INSERT INTO cow VALUES {rows}"
        assert await on.count(adding) == 9_000
        assert plans_of(on.space).known(adding) is None


@pytest.mark.parametrize("count", [1, 1_000])
async def test_the_plan_of_a_denied_statement_is_not_kept(count: int) -> None:
    rows = ", ".join(f"({number}, 1)" for number in range(count))
    async with asking() as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, milk INT)")
        reader = Principal("eve", grants=(Grant("tablespace", on.space.name, "read"),))
        adding = f"INSERT INTO cow VALUES {rows}"
        with pytest.raises(AccessDenied):
            await Session(on.space, on.engine, whose=reader).execute(adding)
        assert plans_of(on.space).known(adding) is None
        assert await on.count(adding) == count
        assert plans_of(on.space).known(adding) is not None


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO cow VALUES " + ", ".join(f"({number}, -1, 'a')" for number in range(1_000)),
        "SELECT " + ", ".join(["id"] * 2_000) + " FROM cow",
        "SELECT id FROM cow WHERE " + " OR ".join(["(id = 1 AND milk > 2)"] * 300),
        "SELECT id FROM cow WHERE id IN (" + ", ".join(["1"] * 20_000) + ")",
        "UPDATE cow SET milk = CASE " + "WHEN id > 1 THEN 2 " * 400 + "END WHERE milk = 3",
        f"INSERT INTO cow VALUES (1, 2, '{'a' * 100_000}')",
    ],
    ids=lambda text: text[:30],
)
async def test_the_estimated_size_of_a_plan_is_close_to_its_real_size(text: str) -> None:
    async with asking() as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, milk INT, name TEXT)")
        # The first one loads the modules that it needs.
        Planned(parse(text), on.space.catalog).look_through()
        taken = []
        for _ in range(3):
            gc.collect()
            tracemalloc.start()
            try:
                made = Planned(parse(text), on.space.catalog)
                made.look_through()
                gc.collect()
                taken.append(tracemalloc.get_traced_memory()[0])
            finally:
                tracemalloc.stop()
        # What threads of earlier tests take meanwhile is counted, too.
        assert min(taken) < 1.2 * made.size_bytes < 4 * min(taken)


async def test_a_read_by_key_with_a_limit_is_still_a_read_by_key() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        await on.run("INSERT INTO cow VALUES (7, 'Elsa')")
        said = alone("SELECT name FROM cow WHERE id = 7", 1_000).parsed
        assert isinstance(on.session.plan(said.text, said).statement, SelectByKey)
        assert await on.rows(said.text) == [("Elsa",)]


@pytest.mark.parametrize(
    ("limit", "count"),
    [
        *(("LIMIT 2", 2), ("LIMIT 9", 3), ("LIMIT 0", 0), ("LIMIT 1 + 1", 2), ("LIMIT ALL", 3)),
        *(("LIMIT 2 OFFSET 2", 1), ("LIMIT 50 PERCENT", 1), ("FETCH FIRST 2 ROWS ONLY", 2)),
    ],
)
async def test_a_limit_counts_whichever_way_the_rows_are_found(limit: str, count: int) -> None:
    async with asking() as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, barn INT)")
        await on.run("CREATE INDEX by_barn ON cow (barn)")
        await on.run("INSERT INTO cow VALUES (1, 5), (2, 5), (3, 5), (4, 6)")
        by_index = f"SELECT id FROM cow WHERE barn = 5 {limit}"
        assert len(await on.rows(by_index)) == count
        by_key = f"SELECT id FROM cow WHERE id = 4 {limit}"
        assert len(await on.rows(by_key)) == len(await on.rows(f"SELECT 4 AS id {limit}"))


async def test_a_plain_limit_does_not_keep_a_query_from_an_index() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, barn INT)")
        await on.run("CREATE INDEX by_barn ON cow (barn)")
        plan = on.session.plan("SELECT id FROM cow WHERE barn = 5 LIMIT 2")
        assert isinstance(plan.statement, SelectByIndex)
