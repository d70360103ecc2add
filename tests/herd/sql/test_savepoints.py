"""BEGIN, COMMIT, ROLLBACK, SAVEPOINT, isolation levels and autocommit."""

import asyncio

import pytest

from herd.errors import (
    NoSuchIndex,
    NotSupportedError,
    ProgrammingError,
    SqlSyntaxError,
    TransactionEnded,
    UniqueViolation,
)
from herd.settings import HerdSettings
from tests.engine.ledger.scripted import turns
from tests.herd.sql.querying import until
from tests.herd.sql.sessions import asking

COWS = "CREATE TABLE cow (id INT PRIMARY KEY, milk INT)"


async def test_going_back_to_a_savepoint_takes_back_what_came_after_it() -> None:
    async with asking() as on:
        await on.run(COWS, "BEGIN", "INSERT INTO cow VALUES (1, 1)", "SAVEPOINT a")
        await on.run("INSERT INTO cow VALUES (2, 2)", "SAVEPOINT b", "DELETE FROM cow")
        assert await on.rows("SELECT * FROM cow") == []
        await on.run("ROLLBACK TO b", "UPDATE cow SET milk = 9", "ROLLBACK TO SAVEPOINT b")
        assert await on.rows("SELECT * FROM cow ORDER BY id") == [(1, 1), (2, 2)]
        await on.run("ROLLBACK TRANSACTION TO SAVEPOINT A", "INSERT INTO cow VALUES (3, 3)")
        assert type(await on.error("ROLLBACK TO b")) is NoSuchIndex
        await on.run("RELEASE SAVEPOINT a", "COMMIT")
        assert await on.rows("SELECT * FROM cow ORDER BY id") == [(1, 1), (3, 3)]


async def test_a_name_means_the_last_savepoint_of_it() -> None:
    async with asking() as on:
        await on.run(COWS, "BEGIN", "SAVEPOINT a", "INSERT INTO cow VALUES (1, 1)", "SAVEPOINT a")
        await on.run("INSERT INTO cow VALUES (2, 2)", "ROLLBACK TO a")
        assert await on.rows("SELECT id FROM cow") == [(1,)]
        await on.run("RELEASE a", "ROLLBACK TO a")
        assert await on.rows("SELECT id FROM cow") == []
        await on.run("COMMIT")


async def test_a_statement_that_fails_takes_back_itself_and_no_more() -> None:
    async with asking() as on:
        await on.run(COWS, "BEGIN", "INSERT INTO cow VALUES (1, 1)")
        error = await on.error("INSERT INTO cow VALUES (2, 2), (1, 1)")
        assert type(error) is UniqueViolation
        await on.run("INSERT INTO cow VALUES (3, 3)", "COMMIT")
        assert await on.rows("SELECT id FROM cow ORDER BY id") == [(1,), (3,)]


async def test_without_autocommit_the_first_statement_begins_a_transaction() -> None:
    async with asking() as on:
        await on.run(COWS)
        session = on.another(autocommit=False)
        await session.execute("INSERT INTO cow VALUES (1, 1)")
        assert await on.rows("SELECT * FROM cow") == []
        await session.execute("COMMIT")
        assert await on.rows("SELECT * FROM cow") == [(1, 1)]
        await session.execute("DELETE FROM cow")
        await session.rollback()
        await session.execute("SET AUTOCOMMIT = 1")
        await session.execute("UPDATE cow SET milk = 2")
        assert await on.rows("SELECT * FROM cow") == [(1, 2)]
        await session.execute("COMMIT")
        await session.close()


async def test_levels_are_set_for_one_transaction_or_for_all() -> None:
    async with asking() as on:
        await on.run(COWS, "INSERT INTO cow VALUES (1, 1)")
        other = on.another()
        for begin in (
            ["START TRANSACTION ISOLATION LEVEL REPEATABLE READ"],
            ["BEGIN", "SET TRANSACTION ISOLATION LEVEL SNAPSHOT"],
            ["SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SNAPSHOT", "BEGIN WORK"],
        ):
            await on.run(*begin)
            [(before,)] = await on.rows("SELECT milk FROM cow WHERE id = 1")
            await other.execute("UPDATE cow SET milk = milk + 1")
            assert await on.rows("SELECT milk FROM cow") == [(before,)]
            await on.run("COMMIT")
        await on.run("BEGIN ISOLATION LEVEL READ COMMITTED")
        [(before,)] = await on.rows("SELECT milk FROM cow WHERE id = 1")
        await other.execute("UPDATE cow SET milk = milk + 1")
        assert await on.rows("SELECT milk FROM cow") == [(before + 1,)]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SAVEPOINT a", ProgrammingError),
        ("RELEASE a", ProgrammingError),
        ("ROLLBACK TO a", ProgrammingError),
        ("SAVEPOINT", SqlSyntaxError),
        ("COMMIT NOW", SqlSyntaxError),
        ("ROLLBACK NOW PLEASE", SqlSyntaxError),
        ("START", SqlSyntaxError),
        ("BEGIN ISOLATION LEVEL WHATEVER", SqlSyntaxError),
        ("BEGIN ISOLATION LEVEL SERIALIZABLE", NotSupportedError),
        ("SET colour = 'red'", NotSupportedError),
        ("SHOW everything", SqlSyntaxError),
        ("EXPLAIN COMMIT", NotSupportedError),
    ],
)
async def test_words_that_say_nothing_are_refused(text: str, kind: type[Exception]) -> None:
    async with asking() as on:
        assert type(await on.error(text)) is kind
        assert on.session.transaction is None


async def test_a_transaction_within_a_transaction_is_refused() -> None:
    async with asking() as on:
        await on.run("COMMIT", "ROLLBACK", "BEGIN")
        assert type(await on.error("BEGIN")) is ProgrammingError
        assert type(await on.error("SET AUTOCOMMIT = 0")) is ProgrammingError
        await on.run("END")


async def test_a_transaction_that_ended_by_itself_says_so_until_its_user_knows() -> None:
    hasty = HerdSettings(lock_timeout_ms=60_000, idle_timeout_ms=40)
    async with asking(hasty) as on:
        await on.run(COWS, "BEGIN", "INSERT INTO cow VALUES (1, 1)")
        transaction = on.session.transaction
        assert transaction is not None
        await until(lambda: transaction.ended)
        assert type(await on.error("INSERT INTO cow VALUES (2, 2)")) is TransactionEnded
        assert type(await on.error("COMMIT")) is TransactionEnded
        assert await on.rows("SELECT * FROM cow") == []


async def test_a_savepoint_waits_for_the_statement_that_another_thread_runs() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
        holder = on.another()
        await holder.execute("BEGIN")
        await holder.execute("DELETE FROM t WHERE id = 3")
        await on.run("BEGIN")
        statement = asyncio.ensure_future(on.session.execute("UPDATE t SET id = 30 WHERE id = 3"))
        await turns(50)
        savepoint = asyncio.ensure_future(on.session.execute("SAVEPOINT here"))
        await turns(50)
        assert not statement.done() and not savepoint.done()
        await holder.execute("ROLLBACK")
        await asyncio.gather(statement, savepoint)
        await on.run("DELETE FROM t", "ROLLBACK TO here", "COMMIT")
        assert await on.rows("SELECT id FROM t ORDER BY id") == [(1,), (2,), (30,)]
