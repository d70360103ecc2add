"""Tables as they were at a checkpoint, in SQL."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

import pytest

from herd.errors import Error, NotSupportedError, ProgrammingError, SqlSyntaxError
from herd.sql.result import Result
from herd.store import open_folder
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


async def test_a_table_is_read_as_it_was(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        session = await herd.session()
        for text in (
            "CREATE TABLE cow (id INT PRIMARY KEY, milk INT)",
            "INSERT INTO cow VALUES (1, 10), (2, 20)",
            "CHECKPOINT",
            "UPDATE cow SET milk = 99 WHERE id = 1",
            "CHECKPOINT",
            "DELETE FROM cow",
        ):
            await session.execute(text)
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
        await session.close()
