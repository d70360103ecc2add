"""Tables as they were at a checkpoint, in SQL."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from herd.errors import (
    Error,
    NoSuchColumn,
    NoSuchTable,
    NotSupportedError,
    ProgrammingError,
    SqlSyntaxError,
)
from herd.sql.result import Result
from herd.store import AsyncHerd, open_folder
from tests.herd.sql.sessions import at


class Executes(Protocol):
    """A session, wherever the tablespace runs."""

    def execute(self, text: str, /) -> Awaitable[Result]: ...


async def rows(session: Executes, text: str) -> list[tuple[object, ...]]:
    return list((await session.execute(text)).rows)


async def failed(session: Executes, text: str) -> Error:
    with pytest.raises(Error) as found:
        await session.execute(text)
    return found.value


async def run(session: Executes, *texts: str) -> None:
    for text in texts:
        await session.execute(text)


@asynccontextmanager
async def session_after(folder: Path, *texts: str) -> AsyncIterator[tuple[AsyncHerd, Executes]]:
    """An open folder and a session that has executed these."""
    async with open_folder(folder) as herd:
        session = await herd.session()
        await run(session, *texts)
        yield herd, session
        await session.close()


async def test_a_table_is_read_with_the_columns_that_it_had(tmp_path: Path) -> None:
    async with session_after(
        tmp_path,
        "CREATE TABLE cow (id INT PRIMARY KEY, milk INT, name TEXT)",
        "INSERT INTO cow VALUES (1, 10, 'Elsa')",
        "CHECKPOINT",
        "CREATE VIEW old AS SELECT * FROM cow AS OF CHECKPOINT 1",
        "ALTER TABLE cow DROP COLUMN milk",
        "ALTER TABLE cow RENAME COLUMN name TO called",
        "ALTER TABLE cow ADD COLUMN born INT DEFAULT 2020",
        "CHECKPOINT",
    ) as (_, session):
        past = "SELECT * FROM cow AS OF CHECKPOINT"
        for number, names, found in (
            (1, ["id", "milk", "name"], (1, 10, "Elsa")),
            (2, ["id", "called", "born"], (1, "Elsa", 2020)),
        ):
            answer = await session.execute(f"{past} {number}")
            assert [column.name for column in answer.columns] == names
            assert list(answer.rows) == [found]
        assert await rows(session, "SELECT milk, name FROM old WHERE id = 1") == [(10, "Elsa")]
        both = (
            "SELECT was.name, new.called, new.born FROM cow AS OF CHECKPOINT 1 was "
            "JOIN cow AS OF CHECKPOINT 'newest' new USING (id) JOIN cow USING (id)"
        )
        assert await rows(session, both) == [("Elsa", "Elsa", 2020)]
        for text, hint in (
            ("SELECT born FROM cow AS OF CHECKPOINT 1", "milk"),
            ("SELECT milk FROM cow AS OF CHECKPOINT 2", "called"),
        ):
            error = await failed(session, text)
            assert isinstance(error, NoSuchColumn) and hint in error.hint, error
        # The same text asks for other columns once another checkpoint is the newest.
        newest = "SELECT * FROM cow AS OF CHECKPOINT 'newest'"
        assert await rows(session, newest) == [(1, "Elsa", 2020)]
        await run(session, "ALTER TABLE cow DROP COLUMN born", "CHECKPOINT")
        assert await rows(session, newest) == [(1, "Elsa")]


async def test_keys_and_positions_are_those_that_the_state_had(tmp_path: Path) -> None:
    async with session_after(
        tmp_path,
        "CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)",
        "INSERT INTO cow VALUES (1, 'Elsa'), (2, 'Emma')",
    ) as (_, session):
        now = await rows(session, "SELECT _key, _position, name FROM cow ORDER BY id")
        await run(session, "CHECKPOINT", "UPDATE cow SET name = 'Berta'")
        text = "SELECT _key, _position, name FROM cow AS OF CHECKPOINT 1 ORDER BY id"
        assert await rows(session, text) == now
        assert await rows(session, "SELECT _key FROM cow AS OF CHECKPOINT 1 WHERE id = 2") == [
            now[1][:1]
        ]


async def test_a_table_that_is_gone_is_read_and_one_that_came_later_is_not(tmp_path: Path) -> None:
    async with session_after(
        tmp_path,
        "CREATE TABLE cow (id INT PRIMARY KEY)",
        "INSERT INTO cow VALUES (1)",
        "CREATE TABLE barn (id INT PRIMARY KEY, cows INT)",
        "INSERT INTO barn VALUES (7, 2)",
        "CHECKPOINT",
        "DROP TABLE cow",
        "CREATE TABLE horse (id INT PRIMARY KEY)",
        "ALTER TABLE barn RENAME TO stable",
    ) as (herd, session):
        assert await rows(session, 'SELECT * FROM "default".cow AS OF CHECKPOINT 1') == [(1,)]
        assert await rows(session, "SELECT cows FROM barn AS OF CHECKPOINT 1") == [(2,)]
        # A table of the same name is another one.
        await run(session, "CREATE TABLE cow (name TEXT PRIMARY KEY)", "CHECKPOINT")
        assert await rows(session, "SELECT id FROM cow AS OF CHECKPOINT 1 WHERE id > 0") == [(1,)]
        assert await rows(session, "SELECT name FROM cow AS OF CHECKPOINT 2") == []
        for name, hint in (
            ("horse", "since"),
            ("stable", "it was called barn then"),
            ("barm", "barn"),
        ):
            text = f"SELECT * FROM {name} AS OF CHECKPOINT 1"
            error = await failed(session, text)
            assert isinstance(error, NoSuchTable), error
            assert f"no table {name} at checkpoint 1" in error.message and hint in error.hint
            assert at(error, text)
        text = "SELECT * FROM information_schema.cow AS OF CHECKPOINT 1"
        assert isinstance(await failed(session, text), NoSuchTable)
        text = "SELECT * FROM information_schema.tables AS OF CHECKPOINT 1"
        assert isinstance(await failed(session, text), NotSupportedError)
        checkpointer = (await herd.tablespace()).checkpointer
        assert checkpointer is not None and (await checkpointer.list.get()).pins == ()


async def test_a_table_is_read_as_it_was(tmp_path: Path) -> None:
    async with session_after(
        tmp_path,
        "CREATE TABLE cow (id INT PRIMARY KEY, milk INT)",
        "INSERT INTO cow VALUES (1, 10), (2, 20)",
        "CHECKPOINT",
        "UPDATE cow SET milk = 99 WHERE id = 1",
        "CHECKPOINT",
        "DELETE FROM cow",
    ) as (_, session):
        assert await rows(session, "SELECT * FROM cow") == []
        one = "SELECT id, milk FROM cow AS OF CHECKPOINT 1 WHERE id = 1"
        assert await rows(session, one) == [(1, 10)]
        newest = "SELECT sum(c.milk) FROM cow AS OF CHECKPOINT 'newest' AS c"
        assert await rows(session, newest) == [(119,)]
        both = (
            "SELECT old.id, now.milk - old.milk FROM cow AS OF CHECKPOINT 1 old "
            "JOIN cow AS OF CHECKPOINT 2 now ON now.id = old.id ORDER BY old.id"
        )
        assert await rows(session, both) == [(1, 89), (2, 0)]
        await session.execute("CREATE VIEW old AS SELECT * FROM cow AS OF CHECKPOINT 1")
        assert await rows(session, "SELECT count(*) FROM old") == [(2,)]
        await session.execute("INSERT INTO cow SELECT * FROM cow AS OF CHECKPOINT 1")
        assert await rows(session, "SELECT milk FROM cow WHERE id = 1") == [(10,)]

        text = "SELECT * FROM cow AS OF CHECKPOINT 7"
        error = await failed(session, text)
        assert type(error) is ProgrammingError
        assert "1, 2" in error.hint
        for text, kind in (
            ("SELECT * FROM cow AS OF CHECKPOINT 'oldest'", SqlSyntaxError),
            ("SELECT * FROM cow AS OF CHECKPOINT 0", SqlSyntaxError),
            ("SELECT * FROM cow AS OF CHECKPOINT id", SqlSyntaxError),
            ("SELECT * FROM cow VERSION AS OF 1", SqlSyntaxError),
            ("SELECT * FROM cow AT (VERSION => 1)", NotSupportedError),
            ("SELECT * FROM old AS OF CHECKPOINT 1", NotSupportedError),
            ("SELECT * FROM systables AS OF CHECKPOINT 1", NotSupportedError),
            ("WITH c AS (SELECT 1) SELECT * FROM c AS OF CHECKPOINT 1", NotSupportedError),
            ("UPDATE cow AS OF CHECKPOINT 1 SET milk = 1", NotSupportedError),
        ):
            error = await failed(session, text)
            assert isinstance(error, kind), f"{text}: {error!r}"
            assert error.place is not None, text
            assert at(error, text)
