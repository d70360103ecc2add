"""Statements about many rows let others run: a leader that answers nobody loses its lease."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from herd.arrow import python_rows
from herd.errors import TransactionEnded
from herd.sql.inserting import Insert
from herd.sql.returning import Returned
from herd.turns import ROWS_AT_ONCE
from tests.herd.sql.sessions import Asking, asking

ROWS = 3_000
# A new row is a lock and a change, and so is its entry in the index.
STEPS_MAX = 5 * ROWS_AT_ONCE


@asynccontextmanager
async def watched(on: Asking) -> AsyncIterator[Callable[[], int]]:
    """How much was locked and changed at most in one turn of the loop."""
    most = 0

    async def watch() -> None:
        nonlocal most
        before = 0
        while True:
            await asyncio.sleep(0)
            now = sum(_steps(one) for one in on.space.transactions)
            most, before = max(most, now - before), now

    watcher = asyncio.ensure_future(watch())
    try:
        yield lambda: most
    finally:
        watcher.cancel()


def _steps(transaction: Any) -> int:
    layers = transaction._layers + transaction._plain
    return len(transaction.locks) + sum(len(layer.rows) for layer in layers)


async def herd_of(on: Asking, count: int = ROWS) -> None:
    await on.run("CREATE TABLE cow (id INT PRIMARY KEY, milk INT, tag INT UNIQUE)")
    await on.run(f"INSERT INTO cow SELECT n, 0, n FROM range({count}) r(n)")


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE cow SET milk = milk + 1",
        "UPDATE cow SET tag = tag + 10000",
        "UPDATE cow SET id = id + 1",
        "DELETE FROM cow WHERE milk = 0",
        "SELECT * FROM cow WHERE milk = 0 FOR UPDATE",
        "SELECT * FROM cow ORDER BY milk FOR UPDATE",
        "INSERT INTO cow SELECT id + 10000, milk, tag + 10000 FROM cow",
        "INSERT INTO cow SELECT id, 5, tag FROM cow ON CONFLICT (id) DO UPDATE SET milk = 7",
        "CREATE TABLE calf AS SELECT * FROM cow",
    ],
)
async def test_others_run_between_the_rows_of_a_large_statement(text: str) -> None:
    async with asking() as on:
        await herd_of(on)
        async with watched(on) as most:
            assert await on.count(text) == ROWS
        assert 0 < most() <= STEPS_MAX
        on.check_indexes()


async def test_others_run_between_the_rows_of_executemany() -> None:
    async with asking() as on:
        await herd_of(on)
        async with watched(on) as most:
            text = "UPDATE cow SET milk = ? WHERE id = ?"
            changed = await on.session.execute_many(text, [(n, n) for n in range(ROWS)])
        assert changed.count == ROWS
        assert 0 < most() <= STEPS_MAX
        assert await on.rows("SELECT sum(milk) FROM cow") == [(ROWS * (ROWS - 1) // 2,)]


async def test_others_run_between_children_that_look_for_their_parents() -> None:
    async with asking() as on:
        await herd_of(on)
        await on.run("CREATE TABLE calf (id INT PRIMARY KEY, cow INT REFERENCES cow (id))")
        async with watched(on) as most:
            assert await on.count("INSERT INTO calf SELECT id, id FROM cow") == ROWS
        assert 0 < most() <= STEPS_MAX


async def test_a_large_statement_that_fails_after_its_pauses_changes_nothing() -> None:
    async with asking() as on:
        await herd_of(on)
        await on.run("UPDATE cow SET milk = 1 WHERE id = 2999")
        await on.error("INSERT INTO cow SELECT id + 10000, milk, (id + 1) % 3000 FROM cow")
        await on.error("UPDATE cow SET tag = CASE WHEN id = 2999 THEN 0 ELSE tag END")
        assert await on.rows("SELECT count(*), sum(milk) FROM cow") == [(ROWS, 1)]
        on.check_indexes()


async def test_the_values_of_many_rows_are_made_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = set[threading.Thread]()
    stored = Insert._stored_rows

    def noting(table: Any) -> list[tuple[Any, ...]]:
        threads.add(threading.current_thread())
        return python_rows(table)

    def storing(self: Insert, found: Any, given: Any) -> Any:
        threads.add(threading.current_thread())
        return stored(self, found, given)

    async with asking() as on:
        await herd_of(on)
        monkeypatch.setattr("herd.sql.query.python_rows", noting)
        monkeypatch.setattr(Insert, "_stored_rows", storing)
        await on.run(
            "UPDATE cow SET milk = milk + 1 WHERE milk = 0", "DELETE FROM cow WHERE tag > 4"
        )
        await on.run("INSERT INTO cow SELECT n, 0, n FROM range(3000, 6000) r(n)")
    assert threads and threading.current_thread() not in threads


async def test_a_large_transaction_that_ends_while_it_is_encoded_is_not_committed() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE cow (id INT PRIMARY KEY, note TEXT)")
        await on.run("BEGIN")
        assert await on.count("INSERT INTO cow SELECT n, repeat('x', 100000) FROM range(20) r(n)")
        transaction = on.session.transaction
        assert transaction is not None
        committing = asyncio.ensure_future(on.session.commit())
        while transaction.changed and transaction.busy is False and not committing.done():
            await asyncio.sleep(0)
            transaction.rollback()
        with pytest.raises(TransactionEnded):
            await committing
        assert await on.rows("SELECT count(*) FROM cow") == [(0,)]
        await on.run("INSERT INTO cow SELECT n, repeat('x', 100000) FROM range(20) r(n)")
        assert await on.rows("SELECT count(*) FROM cow") == [(20,)]


async def test_what_is_returned_of_many_rows_is_made_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    shown = Returned.shown

    def noting(self: Returned, rows: Sequence[Any], given: Any) -> list[tuple[Any, ...]]:
        sizes.append(len(rows))
        return shown(self, rows, given)

    monkeypatch.setattr(Returned, "shown", noting)
    async with asking() as on:
        await herd_of(on)
        returned = await on.rows("UPDATE cow SET milk = id + 1 WHERE milk = 0 RETURNING id, milk")
    assert returned == [(n, n + 1) for n in range(ROWS)]
    assert sum(sizes) == ROWS and max(sizes) == ROWS_AT_ONCE
