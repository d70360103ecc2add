"""Statements that run for a long time, and statements with a long text."""

import asyncio
import gc
import sys
from itertools import pairwise
from types import FrameType

import pytest
from sqlglot.tokenizer_core import Token

from engine.access.principal import Grant, Principal
from engine.slow import SLOW
from herd.errors import Error, SqlSyntaxError, TooLarge
from herd.settings import HerdSettings
from herd.sql import long_lists
from herd.sql.parsing import NAME_CHARACTERS_MAX, _has_long_name, parse
from herd.sql.session import Session
from tests.herd.sql.querying import until
from tests.herd.sql.sessions import asking

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


async def _calls_on_loop(session: Session, text: str) -> int:
    """How many functions the thread of the loop calls until a statement has ended."""
    count = 0

    def called(frame: FrameType, event: str, told: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        await session.execute(text)
    except Error:
        pass
    finally:
        sys.setprofile(None)
    return count


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
    "repeated", ["1,", "1, ", "- ", "null,", "1e5,", " ", "é ", "$1,", "''", "?,"]
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
