"""Statements that run for a long time, and statements with a long text."""

import asyncio
import gc
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import FrameType
from typing import Final

import pytest
from sqlglot.tokenizer_core import Token

from engine.access.principal import Grant, Principal
from engine.slow import SLOW
from herd.errors import (
    AccessDenied,
    CheckViolation,
    Error,
    ProgrammingError,
    SqlSyntaxError,
    TooLarge,
)
from herd.nodes.following import FollowerSession
from herd.settings import HerdSettings
from herd.sql import long_lists, parsing, planning
from herd.sql.parsing import NAME_CHARACTERS_MAX, Parsed, _has_long_name, parse
from herd.sql.session import Session
from tests.herd.sql.querying import until
from tests.herd.sql.sessions import Asking, asking, until_waiting

LONG = {
    "columns": ("SELECT ", "id, ", "1 FROM cow"),
    "functions": ("SELECT ", "abs(id), ", "1 FROM cow"),
    "cases": ("SELECT ", "CASE WHEN id > 1 THEN 2 ELSE 3 END, ", "1 FROM cow"),
    "conditions": ("SELECT id FROM cow WHERE ", "(id = 1 AND milk > 2) OR ", "id = 3"),
    "a list": ("SELECT id FROM cow WHERE id IN (", "1, ", "2)"),
    "unions": ("SELECT 1", " UNION ALL SELECT id FROM cow", ""),
    "a column that is not there": ("SELECT ", "id, ", "hay FROM cow"),
    "a function that fails": ("SELECT ", "id, ", "error('no') FROM cow"),
    "a word too many": ("SELECT ", "id, ", "1 FROM cow)"),
    "too many words": ("SELECT ", "id, id, id, id, id, id, id, id, ", "1 FROM cow"),
    "too deep": ("SELECT ", "1 + (", "1"),
    "no right": ("UPDATE cow SET milk = ", "1 + ", "1"),
}
"""How a long statement begins, what is repeated in it, and how it ends."""

_SOME: Final = "(id = 1 AND milk > 2) OR "
_ASKED: Final = "(id = 1 AND strlen(upper('a')) > milk) OR "
"""A condition that only the query engine can evaluate."""
CHANGES = {
    "the condition of an UPDATE": ("UPDATE cow SET milk = 3 WHERE ", _SOME, "id = 3"),
    "the condition of a DELETE": ("DELETE FROM cow WHERE ", _SOME, "id = 3"),
    "rows to lock": ("SELECT id FROM cow WHERE ", _SOME, "id = 3 FOR UPDATE"),
    "rows to lock, in order": ("SELECT id FROM cow WHERE ", _SOME, "id = 3 ORDER BY 1 FOR UPDATE"),
    "a condition for the query engine": ("UPDATE cow SET milk = 3 WHERE ", _ASKED, "id = 3"),
    "a parameter": ("UPDATE cow SET milk = 3 WHERE ", _ASKED, "id = ?"),
    "a value": ("UPDATE cow SET milk = strlen(upper('a'))", " + 1", ""),
    "values that are returned": (
        "UPDATE cow SET milk = 3 WHERE id = 1 RETURNING strlen(upper('a'))",
        " + id",
        "",
    ),
    "EXPLAIN of an UPDATE": ("EXPLAIN UPDATE cow SET milk = 3 WHERE ", _SOME, "id = 3"),
    "values of an INSERT": ("INSERT INTO cow VALUES (?, strlen(upper('a'))", " + 1", ")"),
    "values of a conflict": (
        "INSERT INTO cow VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET milk = strlen(upper('a'))",
        " + 1",
        "",
    ),
}
"""The same for statements that change or lock rows, of which there is one."""


async def test_a_statement_outside_a_transaction_may_run_longer_than_the_idle_timeout() -> None:
    async with asking(HerdSettings(idle_timeout_ms=20)) as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, milk INT)")
        gate, ran = asyncio.Event(), on.engine.run

        async def slow(*given: object, **named: object) -> object:
            await gate.wait()
            return await ran(*given, **named)  # type: ignore[arg-type]

        on.engine.run = slow  # type: ignore[method-assign]
        adding = asyncio.ensure_future(on.count("INSERT INTO cow SELECT 1, 2"))
        await until(lambda: len(on.space.transactions) == 1)
        # It began later, and whoever is idle longer has been ended with it.
        idle = on.space.begin()
        await until(lambda: idle.ended)
        gate.set()
        assert await adding == 1
        assert await on.rows("SELECT milk FROM cow WHERE id = 1") == [(2,)]


@pytest.mark.parametrize("kind", LONG)
async def test_the_work_on_the_event_loop_does_not_grow_with_the_length_of_a_statement(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SLOW, "sql_s", 0.0)
    before, repeated, after = LONG[kind]
    async with asking() as on:
        await on.run(
            "CREATE TABLE cow (id INT PRIMARY KEY, milk INT)", "INSERT INTO cow VALUES (1, 2)"
        )
        reader = Principal("eve", grants=(Grant("tablespace", on.space.name, "read"),))
        counts: list[int] = []
        for times in (600, 600, 2_400):
            # The first one loads what it needs.
            session = Session(on.space, on.engine, whose=reader)
            text = before + times * repeated + after + f" -- {len(counts)}"
            counts.append(await _calls_on_loop(session, text))
        short, long = counts[1:]
        assert long < short + 2_000, f"{short} calls became {long}"


@pytest.mark.parametrize("kind", CHANGES)
async def test_a_long_change_is_planned_off_the_event_loop(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine, writing the slow log would be counted too.
    monkeypatch.setattr(SLOW, "sql_s", math.inf)
    before, repeated, after = CHANGES[kind]
    async with asking() as on:
        await furnished(on)
        counts: list[int] = []
        for times in (100, 100, 400):
            # The first one loads what it needs.
            text = before + times * repeated + after + f" -- {len(counts)}{' ' * 2_048}"
            given = [7 + len(counts)] * text.count("?")
            counts.append(await _calls_on_loop(on.session, text, given))
        short, long = counts[1:]
        assert long < short + 1_000, f"{short} calls became {long}"


async def _calls_on_loop(session: Session, text: str, given: Sequence[int] = ()) -> int:
    """How many functions the thread of the loop calls until a statement has ended."""
    count = 0

    def called(frame: FrameType, event: str, told: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        await session.execute(text, given)
    except Error:
        pass
    finally:
        sys.setprofile(None)
    return count


class Reading:
    """Records each parse and plan of a long text, and whether it ran in the event loop's thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = threading.get_ident()
        self.read: list[bool] = []
        self.planned: list[bool] = []
        read, plan = parsing.parse_tree, planning.make

        def reading(text: str) -> object:
            if len(text) > parsing.LONG_CHARACTERS:
                self.read.append(threading.get_ident() == self.loop)
            return read(text)

        def planned(parsed: Parsed, catalog: object) -> object:
            if len(parsed.text) > parsing.LONG_CHARACTERS:
                self.planned.append(threading.get_ident() == self.loop)
            return plan(parsed, catalog)  # type: ignore[arg-type]

        monkeypatch.setattr(parsing, "parse_tree", reading)
        monkeypatch.setattr(planning, "make", planned)

    def told(self) -> tuple[list[bool], list[bool]]:
        """What was parsed and planned since the last call."""
        told = self.read, self.planned
        self.read, self.planned = [], []
        return told


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    yield Reading(monkeypatch)


def listing(*more: int) -> str:
    """A query with a long list."""
    numbers = ", ".join(map(str, (*range(1_000), *more)))
    return f"SELECT id FROM cow WHERE id IN ({numbers})"


async def furnished(on: Asking) -> None:
    await on.run("CREATE TABLE cow (id INT PRIMARY KEY, milk INT)", "INSERT INTO cow VALUES (1, 2)")


async def test_explain_parses_and_plans_a_long_statement_once_in_a_worker(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_words(parsed: Parsed) -> list[str]:
        raise AssertionError("a long statement was split into words")

    async with asking() as on:
        await furnished(on)
        monkeypatch.setattr(Parsed, "pieces", property(no_words))
        assert "cow" in str(await on.rows("EXPLAIN " + listing()))
        assert reading.told() == ([False], [False])
        adding = "EXPLAIN INSERT INTO cow VALUES " + ", ".join(f"({n}, 1)" for n in range(2, 500))
        assert await on.rows(adding)
        assert reading.told() == ([False], [False])
        reader = Principal("eve", grants=(Grant("tablespace", on.space.name, "read"),))
        with pytest.raises(AccessDenied):
            await Session(on.space, on.engine, whose=reader).execute(f"{adding}, (500, 1)")
        assert reading.told() == ([False], [False])


async def test_a_follower_parses_and_plans_a_long_statement_once_in_a_worker(
    reading: Reading,
) -> None:
    async with asking() as on:
        await furnished(on)
        following = FollowerSession(on.space, on.engine)
        assert list((await following.execute(listing())).rows) == [(1,)]
        assert reading.told() == ([False], [False])
        # The schema changes while it waits for the previous statement of its connection.
        async with following.turn:
            waiting = asyncio.ensure_future(following.execute(listing(1_001)))
            await until(lambda: bool(reading.planned))
            await on.run("ALTER TABLE cow ADD COLUMN name TEXT")
            await on.rows(listing(1_002))
            reading.told()
        assert list((await waiting).rows) == [(1,)]
        assert reading.told() == ([], [False])


async def test_a_long_statement_is_planned_again_in_a_worker_after_a_schema_change(
    reading: Reading,
) -> None:
    async with asking() as on:
        await furnished(on)
        for _ in range(2):
            await on.rows(listing())
        assert reading.told() == ([False], [False])
        await on.run("CREATE TABLE calf (id INT PRIMARY KEY)")
        assert await on.rows(listing()) == [(1,)]
        assert reading.told() == ([], [False])


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_long_statement_that_waited_during_a_schema_change_is_not_parsed_again(
    reading: Reading, autocommit: bool
) -> None:
    async with asking() as on:
        await furnished(on)
        definer, adder = on.another(autocommit=False), on.another(autocommit=autocommit)
        await definer.execute("ALTER TABLE cow ADD COLUMN name TEXT")
        rows = ", ".join(f"({n}, 1)" for n in range(2, 1_500))
        adding = f"INSERT INTO cow (id, milk) VALUES {rows}"
        waiting = asyncio.ensure_future(adder.execute(adding))
        await until_waiting(on.space, 1)
        # Another long statement replaces its plan in the cache.
        await on.run(f"EXPLAIN {adding}, (1500, 1)")
        reading.told()
        await definer.commit()
        assert (await waiting).count == 1_498
        read, planned = reading.told()
        assert not read and planned and not any(planned)


@pytest.mark.parametrize("word", ["BEGIN", "ROLLBACK TO", "SHOW", "CREATE TABLESPACE", "INGEST"])
async def test_a_long_control_statement_is_refused_before_it_is_split_into_words(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking() as on:
        reader = Principal("eve", grants=(Grant("tablespace", on.space.name, "read"),))
        session = Session(on.space, on.engine, whose=reader)
        monkeypatch.setattr(Parsed, "pieces", property(lambda parsed: pytest.fail("split")))
        with pytest.raises(TooLarge):
            await session.execute(f"{word} " + "a " * 10_000)


def test_a_control_statement_may_have_a_long_list_of_nodes() -> None:
    nodes = ", ".join(f"node-{number:04}.of-a-cluster.example:7000" for number in range(200))
    assert parse(f"CREATE TABLESPACE farm WITH nodes = '{nodes}'").tree is None


@pytest.mark.parametrize("kind", ["a word too many", "too many words", "too deep"])
def test_an_error_does_not_keep_the_tokens_of_its_statement(kind: str) -> None:
    before, repeated, after = LONG[kind]
    gc.collect()
    gc.disable()
    try:
        with pytest.raises((SqlSyntaxError, TooLarge)) as caught:
            parse(before + 3_000 * repeated + after)
        kept = sum(isinstance(each, Token) for each in gc.get_objects())
    finally:
        gc.enable()
    assert caught.value.message and kept < 100


@pytest.mark.parametrize(
    "repeated",
    ["1,", "1, ", "- ", "null,", "1e5,", "1e+20,", "1_0,", " ", "é ", "$1,", "''", "?,", '""'],
)
def test_no_single_search_goes_through_a_long_text(repeated: str) -> None:
    # No other thread runs during a search of a regular expression.
    text = "SELECT " + repeated * (100_000 // len(repeated))
    ends = [0, *(part.end() for part in long_lists._PARTS.finditer(text))]
    assert ends[-1] == len(text)
    assert max(end - start for start, end in pairwise(ends)) <= 4_096


@pytest.mark.parametrize(
    "before", ["", "a,", "a " * 10_000, "," * 16_300, "," * 16_384, "," * 16_500]
)
def test_a_name_that_is_too_long_is_found_wherever_it_stands(before: str) -> None:
    longest = "b" * NAME_CHARACTERS_MAX
    assert not _has_long_name(f"{before} {longest[1:]} {before}")
    assert _has_long_name(f"{before} {longest} {before}")
    assert _has_long_name(f"{before} {longest}")


@pytest.mark.parametrize("mark", ['"', "`"])
@pytest.mark.parametrize("part", ["a b ", "(a),", "a'b "])
def test_the_length_limit_applies_to_quoted_names_with_any_characters(mark: str, part: str) -> None:
    longest = (part * NAME_CHARACTERS_MAX)[:NAME_CHARACTERS_MAX]
    assert parse(f"SELECT 1 AS {mark}{longest}{mark}").tree is not None
    with pytest.raises(ProgrammingError, match="a name has"):
        parse(f"SELECT 1 AS {mark}{longest}b{mark}")


ROWS = ", ".join("(1, 1)" for _ in range(20_100))


@pytest.mark.parametrize(
    "text",
    [
        f"INSERT INTO t VALUES {ROWS}",
        f"-- it's\nINSERT INTO t VALUES {ROWS}",
        f"/* select app='x' */ INSERT INTO t VALUES {ROWS}",
        f'INSERT INTO t (a, "select") VALUES {ROWS}',
        f"INSERT INTO `select` VALUES {ROWS}",
        f"SELECT 1 FROM t WHERE x IN ({', '.join(['1e+20'] * 20_100)})",
        f"SELECT 1 FROM t WHERE x IN ({', '.join(['-1.5e-7, 1.e5, 1_0e+3'] * 7_000)})",
    ],
    ids=lambda text: text[:40],
)
def test_the_quick_count_refuses_no_valid_statement(text: str) -> None:
    assert not long_lists.is_hopeless(text)
    assert not long_lists.is_hopeless(text.replace("INSERT", "upsert"))
    assert not long_lists.has_too_many_words(parsing._DIALECT.tokenize(text))


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "a," * 20_100 + "1",
        'SELECT "values",' + "a," * 20_100 + "1",
        "SELECT '" + "' + '" * 20_100 + "'",
        f"INSERT INTO t SELECT * FROM (VALUES {ROWS})",
        "INSERT INTO t VALUES (" + "a," * 100_100 + "1)",
    ],
    ids=lambda text: text[:40],
)
def test_the_quick_count_refuses_statements_with_too_many_words(text: str) -> None:
    assert long_lists.is_hopeless(text)


@pytest.mark.parametrize("count", [400, 600])
async def test_a_definition_may_contain_a_long_list_of_constants(count: int) -> None:
    numbers = ", ".join(map(str, range(count)))
    async with asking() as on:
        await on.run(
            f"CREATE TABLE cow (id INT PRIMARY KEY, milk INT, CHECK (milk IN ({numbers})))",
            "INSERT INTO cow VALUES (1, 5)",
            f"ALTER TABLE cow ADD CONSTRAINT known CHECK (id IN ({numbers}, -1))",
            f"ALTER TABLE cow ADD COLUMN old BOOLEAN DEFAULT (5 IN ({numbers}))",
            "INSERT INTO cow (id, milk) VALUES (2, NULL)",
            "UPDATE cow SET milk = 6 WHERE id = 1",
        )
        for wrong in ("(3, 5000)", "(5000, 5)"):
            error = await on.error(f"INSERT INTO cow (id, milk) VALUES {wrong}")
            assert isinstance(error, CheckViolation)
        rows = await on.rows("SELECT * FROM cow ORDER BY id")
        assert rows == [(1, 6, True), (2, None, True)]
        text = (await on.rows("SHOW CREATE TABLE cow"))[0][1]
        await on.run("DROP TABLE cow", text)


async def test_constants_in_a_definition_count_towards_the_token_limit() -> None:
    numbers = ", ".join(map(str, range(20_000)))
    async with asking() as on:
        error = await on.error(f"CREATE TABLE cow (id INT PRIMARY KEY CHECK (id IN ({numbers})))")
        assert isinstance(error, TooLarge)


@pytest.mark.parametrize("count", [3, 600])
@pytest.mark.parametrize(
    "between", ["/* ' */", "--'\n", "{# ' #}", "\u00a0/*'*/\u00a0", "/* /* 7, */ */", "1e0,"]
)
async def test_text_between_constants_means_the_same_in_short_and_long_lists(
    count: int, between: str
) -> None:
    numbers = ", ".join(map(str, range(1, count)))
    async with asking() as on:
        await furnished(on)
        query = f"SELECT id FROM cow WHERE id IN ('0', {between} 5, {between} {numbers}, 'it''s')"
        error = await on.error(query)
        assert "it's" in error.message
        assert await on.rows(query.replace(", 'it''s'", "")) == [(1,)]
