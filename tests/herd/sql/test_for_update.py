"""SELECT … FOR UPDATE."""

import asyncio

import pytest

from herd.errors import Deadlock, LockTimeout, NotSupportedError, SerializationFailure
from herd.settings import HerdSettings
from tests.herd.sql.sessions import Asking, asking, until_waiting

HASTY = HerdSettings(lock_timeout_ms=30)
COWS = "CREATE TABLE cow (id INT PRIMARY KEY, name TEXT, milk INT)"
THREE = "INSERT INTO cow VALUES (1, 'Alma', 10), (2, 'Berta', 20), (3, 'ß', NULL)"


async def made(on: Asking) -> None:
    await on.run(COWS, THREE)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM cow WHERE id = 1 FOR UPDATE",
        "SELECT * FROM cow WHERE milk = 10 FOR UPDATE",
        "SELECT * FROM cow c WHERE c.milk < 15 ORDER BY c.milk LIMIT 1 FOR UPDATE",
    ],
)
async def test_rows_that_are_selected_for_update_stay_as_they_are(text: str) -> None:
    async with asking(HASTY) as on:
        await made(on)
        other = on.another()
        await on.run("BEGIN")
        assert await on.rows(text) == [(1, "Alma", 10)]
        with pytest.raises(LockTimeout):
            await other.execute("UPDATE cow SET milk = 0 WHERE id = 1")
        with pytest.raises(LockTimeout):
            await other.execute("DELETE FROM cow WHERE milk = 10")
        assert (await other.execute("UPDATE cow SET milk = 0 WHERE id = 2")).count == 1
        assert list((await other.execute("SELECT milk FROM cow WHERE id = 1")).rows) == [(10,)]
        await on.run("UPDATE cow SET milk = 11 WHERE id = 1", "COMMIT")
        assert (await other.execute("UPDATE cow SET milk = milk + 1 WHERE id = 1")).count == 1
        assert await on.rows("SELECT milk FROM cow WHERE id = 1") == [(12,)]


async def test_who_waits_for_a_row_sees_it_as_it_is_then() -> None:
    async with asking() as on:
        await made(on)
        other = on.another()
        await on.run("BEGIN", "UPDATE cow SET milk = 15 WHERE id = 1")
        await other.execute("BEGIN")
        text = "SELECT id, milk FROM cow WHERE milk BETWEEN 10 AND 20 FOR UPDATE"
        waiting = asyncio.ensure_future(other.execute(text))
        await until_waiting(on.space, 1)
        await on.run("COMMIT")
        assert sorted((await waiting).rows) == [(1, 15), (2, 20)]
        await other.execute("ROLLBACK")


async def test_a_row_that_is_gone_or_fits_no_more_is_left_out() -> None:
    async with asking() as on:
        await made(on)
        other = on.another()
        await on.run(
            "BEGIN", "DELETE FROM cow WHERE id = 1", "UPDATE cow SET milk = 1 WHERE id = 2"
        )
        await other.execute("BEGIN")
        waiting = asyncio.ensure_future(
            other.execute("SELECT id FROM cow WHERE milk >= 10 ORDER BY id FOR UPDATE")
        )
        await until_waiting(on.space, 1)
        await on.run("COMMIT")
        assert list((await waiting).rows) == []


async def test_expressions_and_order_are_answered() -> None:
    async with asking() as on:
        await made(on)
        found = await on.rows(
            "SELECT id * 2 AS twice, upper(name) || '!', milk FROM cow "
            "WHERE milk IS NOT NULL ORDER BY id DESC FOR UPDATE"
        )
        assert found == [(4, "BERTA!", 20), (2, "ALMA!", 10)]
        result = await on.session.execute(
            "SELECT id, reverse(name) AS r FROM cow ORDER BY id LIMIT ? FOR UPDATE", (2,)
        )
        assert [column.name for column in result.columns] == ["id", "r"]
        assert list(result.rows) == [(1, "amlA"), (2, "atreB")]


async def test_a_snapshot_locks_no_row_that_changed_since() -> None:
    async with asking() as on:
        await made(on)
        await on.run("BEGIN ISOLATION LEVEL SNAPSHOT", "SELECT count(*) FROM cow")
        await on.another().execute("UPDATE cow SET milk = 0 WHERE id = 1")
        error = await on.error("SELECT * FROM cow WHERE id = 1 FOR UPDATE")
        assert type(error) is SerializationFailure
        assert await on.rows("SELECT milk FROM cow WHERE id = 2 FOR UPDATE") == [(20,)]


async def test_who_would_wait_in_a_circle_is_told_and_rolled_back() -> None:
    async with asking() as on:
        await made(on)
        other = on.another()
        await on.run("BEGIN", "SELECT * FROM cow WHERE id = 1 FOR UPDATE")
        await other.execute("BEGIN")
        await other.execute("SELECT * FROM cow WHERE id = 2 FOR UPDATE")
        waiting = asyncio.ensure_future(other.execute("SELECT * FROM cow WHERE id = 1 FOR UPDATE"))
        await until_waiting(on.space, 1)
        error = await on.error("SELECT * FROM cow WHERE id = 2 FOR UPDATE")
        assert type(error) is Deadlock
        assert len((await waiting).rows) == 1
        assert (await on.error("SELECT 1")).code == "25P02"
        await on.run("ROLLBACK", "SELECT 1")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) FROM cow FOR UPDATE",
        "SELECT DISTINCT name FROM cow FOR UPDATE",
        "SELECT name FROM cow GROUP BY name FOR UPDATE",
        "SELECT * FROM cow JOIN cow o ON o.id = cow.id FOR UPDATE",
        "SELECT row_number() OVER (ORDER BY id) FROM cow FOR UPDATE",
        "SELECT * FROM (SELECT * FROM cow FOR UPDATE) x",
        "SELECT * FROM good FOR UPDATE",
        "SELECT 1 FOR UPDATE",
        "SELECT * FROM cow WHERE id = 1 FOR UPDATE NOWAIT",
        "SELECT * FROM cow FOR UPDATE SKIP LOCKED",
        "SELECT * FROM cow FOR SHARE",
        "SELECT * FROM cow AS OF CHECKPOINT 1 FOR UPDATE",
        "SELECT id FROM cow UNION SELECT 1 FOR UPDATE",
    ],
)
async def test_what_has_no_rows_of_its_own_is_not_locked(text: str) -> None:
    async with asking() as on:
        await made(on)
        await on.run("CREATE VIEW good AS SELECT * FROM cow WHERE milk > 10")
        error = await on.error(text)
        assert type(error) is NotSupportedError, error
        assert error.hint
