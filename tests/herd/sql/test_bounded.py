"""What a statement may take of the process that it is read and planned in."""

import asyncio
import re
from random import Random
from types import SimpleNamespace

import pytest
from sqlglot import exp

from engine import limits
from engine.access.principal import Principal
from engine.ports.system_workers import ThreadWorkers
from herd.catalog import Catalog
from herd.errors import CheckViolation, TooLarge
from herd.permits import Permits, asked_by
from herd.schema import Counters
from herd.sql import statement
from herd.sql.expressions import DEFINED, NO_NAMES, compile_expression
from herd.sql.literals import with_values
from herd.sql.parsing import parse, parse_expression
from herd.sql.prepared import PreparedQueries
from herd.sql.scalars import CannotEvaluate, like
from herd.turns import read_long
from tests.herd.sql.querying import until
from tests.herd.sql.sessions import asking


def test_a_pattern_means_what_its_letters_say() -> None:
    rng = Random(1)
    steps = {"%": ".*", "_": "."}
    for _ in range(5_000):
        value = "".join(rng.choices("ab\n.", k=rng.randrange(8)))
        pattern = "".join(rng.choices("ab%_.", k=rng.randrange(8)))
        said = "".join(steps.get(c) or re.escape(c) for c in pattern)
        assert like(value, pattern) == (re.fullmatch(said, value, re.DOTALL) is not None)


def test_a_pattern_of_many_parts_is_looked_for_once() -> None:
    assert not like("a" * 10_000, "%a" * 200 + "b")
    assert like("a" * 10_000 + "b", "%a" * 200 + "%b")


@pytest.mark.parametrize(
    "text",
    [
        "'a' || ?1",
        "upper(?1)",
        "?1 LIKE 'a%'",
        "CAST(?1 AS INT)",
        "+".join(["1"] * 300),
        "?1 = " + "9" * 5_000,
    ],
)
def test_what_takes_long_is_left_to_the_query_engine(text: str) -> None:
    marked = text.replace("?1", "$1")
    with pytest.raises(CannotEvaluate):
        compile_expression(numbered(marked), NO_NAMES)((), ("x" * 20_000, None))


def test_a_definition_computes_with_long_texts() -> None:
    holds = compile_expression(numbered("upper($1) = $1 AND $1 LIKE '%A'"), DEFINED)
    assert holds((), ("A" * 100_000, None)) is True


def numbered(text: str) -> exp.Expr:
    """An expression with its parameters' numbers."""
    tree = parse(f"SELECT {text}").tree
    assert tree is not None
    found: exp.Expr = tree.expressions[0]
    return found


def test_a_value_counts_wherever_it_is_written_into_a_statement() -> None:
    tree = numbered("||".join(["$1"] * 100))
    assert with_values(tree, ("x" * limits.KIB, None)).find(exp.Placeholder) is None
    with pytest.raises(TooLarge, match="parameters here have over"):
        with_values(tree, ("x" * limits.MIB, None))


async def test_a_check_is_computed_of_long_texts() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT CHECK (upper(name) = name))")
        assert await on.count("INSERT INTO cow VALUES (1, ?)", ("A" * 100_000,)) == 1


async def test_a_check_is_compiled_once_after_each_change_of_a_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []

    def compiling(text: str) -> exp.Expr:
        compiled.append(text)
        return parse_expression(text)

    monkeypatch.setattr(statement, "parse_expression", compiling)
    async with asking() as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, milk INT CHECK (milk IN (1, 2)))")
        for number in range(3):
            await on.run(f"INSERT INTO cow VALUES ({number}, 1)")
            await on.run(f"UPDATE cow SET milk = 2 WHERE id = {number}")
        assert compiled == ["milk IN (1, 2)"]
        await on.run("ALTER TABLE cow ADD COLUMN name TEXT", "INSERT INTO cow VALUES (8, 1, 'x')")
        assert compiled == 2 * ["milk IN (1, 2)"]
        with pytest.raises(CheckViolation):
            await on.run("INSERT INTO cow VALUES (9, 3, 'x')")


def test_queries_that_are_kept_are_bounded_in_bytes() -> None:
    kept = PreparedQueries("default")
    catalog = Catalog({}, {}, Counters())
    for number in range(40):
        tree = parse_expression(f"(SELECT '{number}' || '{'x' * 100_000}')").unnest()
        kept.of(tree, catalog, {})
        assert kept.size_bytes <= 32 * limits.MIB
    small = parse("SELECT 1").tree
    assert small is not None
    assert kept.of(small, catalog, {}) is kept.of(small, catalog, {})


async def test_long_statements_of_one_user_leave_a_thread_to_others() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    begun: list[str] = []
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(whose: str) -> None:
        loop.call_soon_threadsafe(begun.append, whose)
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

    async def read(whose: str) -> None:
        asked_by.set(Permits(lambda: Principal(whose), "default"))
        await read_long(workers, lambda: work(whose))

    reading = [asyncio.create_task(read("bob")) for _ in range(5)]
    await until(lambda: bool(begun))
    reading.append(asyncio.create_task(read("eve")))
    await until(lambda: len(begun) > 1)
    assert begun == ["bob", "eve"]
    gate.set()
    await asyncio.gather(*reading)
    await workers.close()


async def test_a_thread_that_parses_a_long_statement_pauses_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    # Not `time.sleep` itself, which threads of other tests may call.
    monkeypatch.setattr("herd.turns.time", SimpleNamespace(sleep=pauses.append))
    text = f"SELECT {'a, ' * 2_000} 1"
    parse(text)
    assert not pauses, "the event loop never pauses"
    await read_long(ThreadWorkers(asyncio.get_running_loop()), lambda: parse(text))
    assert len(pauses) > 50
