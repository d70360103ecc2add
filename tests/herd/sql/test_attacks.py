"""Every statement ends with an answer or an error of the database, and the next one works.

The statements of `attacks.py` are run over every interface. All errors are kept until the end,
because objects that an error refers to must not keep a connection of DuckDB busy.
"""

import asyncio
import datetime
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest

import herd
from herd.errors import DataError, Error, StorageFailed, TooLarge
from herd.sql.query_settings import QuerySettings
from herd.translating import database_error
from herd.wire.grpc_generated import herd_pb2 as wire
from tests.herd.sql.attacks import (
    ATTACKS,
    NESTED,
    QUERY_BYTES,
    REFUSED,
    RESULT_BYTES,
    TABLES,
    Attack,
)
from tests.herd.sql.querying import until
from tests.herd.sql.sessions import asking
from tests.herd.wire import wiring
from tests.herd.wire.test_grpc import Client, serving

Ask = Callable[[str], Awaitable[str]]
"""The answer of a statement as Python prints it. Raises the error that its user would see."""
LATE = "SELECT CASE WHEN range = 100000 THEN error('late') ELSE range END FROM range(200000)"
LARGE = "SELECT repeat('x', 3000000)"
NEXT = "SELECT count(*) FROM t"


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings with small limits for answers."""
    bounded = functools.partial(QuerySettings, result_bytes_max=RESULT_BYTES)
    monkeypatch.setattr("herd.sql.query.QuerySettings", bounded)
    monkeypatch.setattr("tests.herd.sql.sessions.SETTINGS", bounded(connections=2, threads=1))
    monkeypatch.setattr(wiring, "PATIENT", replace(wiring.PATIENT, query_bytes=QUERY_BYTES))


def errors_seen(error: BaseException) -> Iterator[BaseException]:
    """An error, and all that a traceback of it would show."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


async def attack(ask: Ask, other: Ask, attacks: list[Attack], *, shows_rows: bool = True) -> int:
    """Run all statements; fail at the first that ends in another way, or disturbs the next.

    Returns how many were refused.
    """
    held: list[BaseException] = []
    for one in attacks:
        code = rows = ""
        try:
            rows = await ask(one.text)
        except Exception as error:
            held.append(error)
            assert isinstance(error, Error), f"{one.text}: {error!r}"
            roots = {type(seen).__module__.partition(".")[0] for seen in errors_seen(error)}
            assert roots <= {"herd", "engine", "builtins"}, f"{one.text}: {roots}"
            code = error.code
        if shows_rows or one.code not in ("", "22003"):
            assert (code, rows) == (one.code, one.rows), one.text
        for each in (ask, other, ask, other):
            assert await each(NEXT) == "[(2,)]", f"after {one.text}"
    return len(held)


# Doors: each gives two that ask, of one tablespace


def asks(session: Any) -> Ask:
    """Of a session on the loop."""

    async def ask(text: str) -> str:
        return repr(list((await session.execute(text)).rows))

    return ask


@asynccontextmanager
async def through(opener: Any, path: Path) -> AsyncIterator[tuple[Ask, Ask]]:
    """Two sessions of a folder."""
    async with opener(path) as opened:
        sessions = [await opened.session("default") for _ in range(2)]
        for text in TABLES:
            await sessions[0].execute(text)
        yield asks(sessions[0]), asks(sessions[1])


@asynccontextmanager
async def through_connections(path: Path) -> AsyncIterator[tuple[Ask, Ask]]:
    """Two connections of PEP 249, each statement in a thread."""

    def asks_with(connection: herd.Connection) -> Ask:
        def run(text: str) -> str:
            cursor = connection.execute(text)
            return repr(cursor.fetchall() if cursor.description else [])

        return lambda text: asyncio.to_thread(run, text)

    async with wiring.embedded(path):
        # The connections reach the folder's opener, as those of another program do.
        opened = await asyncio.to_thread(herd.open_herd, path)
        try:
            one = await asyncio.to_thread(opened.connect, autocommit=True)
            two = await asyncio.to_thread(opened.connect, autocommit=True)
            for text in TABLES:
                await asyncio.to_thread(one.execute, text)
            yield asks_with(one), asks_with(two)
        finally:
            await asyncio.to_thread(opened.close)


DOORS: dict[str, Callable[[Path], AbstractAsyncContextManager[tuple[Ask, Ask]]]] = {
    "in this process": lambda path: through(wiring.embedded, path),
    "through a socket": lambda path: through(wiring.through_socket, path),
    "by connections of PEP 249": through_connections,
}


@pytest.mark.parametrize("door", DOORS)
async def test_every_statement_ends_and_the_next_of_anybody_works(
    door: str, tmp_path: Path
) -> None:
    async with DOORS[door](tmp_path) as (ask, other):
        assert await attack(ask, other, ATTACKS) == len([*REFUSED, *NESTED])


async def test_every_statement_ends_over_grpc_and_the_next_works(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        one, two = await client.open(), await client.open()
        for text in TABLES:
            await client.execute(one, text)
        asks_of = (grpc_asks(client, one), grpc_asks(client, two))
        assert await attack(*asks_of, ATTACKS, shows_rows=False) > len(NESTED)


def grpc_asks(client: Client, session: bytes) -> Ask:
    """Of a client that reads Arrow itself: which of its values it can show is its own affair."""

    async def ask(text: str) -> str:
        request = wire.ExecuteRequest(session=session, text=text)
        replies = await client.stream("Execute", request, wire.ExecuteReply)
        for reply in replies:
            if reply.HasField("failure"):
                kind = getattr(herd.errors, reply.failure.name)
                assert kind.code == reply.failure.code
                raise kind(reply.failure.message)
        if text == NEXT:
            [row] = pa.ipc.open_stream(replies[0].arrow).read_all().to_pylist()
            return repr([tuple(row.values())])
        return ""

    return ask


# One by one


def frames_of(trace: TracebackType | None) -> Iterator[dict[str, Any]]:
    """The variables that a traceback keeps."""
    while trace is not None:
        yield trace.tb_frame.f_locals
        trace = trace.tb_next


@pytest.mark.parametrize("text", [LARGE, LATE])
async def test_an_error_keeps_no_part_of_its_query_alive(text: str) -> None:
    async with asking() as on:
        error = await on.error(text)
        assert error.__cause__ is None and error.__context__ is None
        kept = [value for each in frames_of(error.__traceback__) for value in each.values()]
        results = {"DuckDBPyRelation", "RecordBatchReader", "RecordBatch", "Table"}
        assert not results & {type(value).__name__ for value in kept}


async def test_a_cancelled_query_leaves_its_connection_usable_for_the_next_query() -> None:
    async with asking() as on:
        slow = "SELECT count(*) FROM range(100000000) a JOIN range(1000) b ON a.range % 7 = b.range"
        for _ in range(5):
            task = asyncio.ensure_future(on.session.execute(slow))
            await until(lambda: on.engine._pool.busy == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await on.rows("SELECT 1") == [(1,)]


async def test_a_missing_temporary_folder_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = functools.partial(QuerySettings, temporary=str(tmp_path / "missing"))
    monkeypatch.setattr("tests.herd.sql.sessions.SETTINGS", missing())
    async with asking() as on:
        assert isinstance(await on.error("SELECT 1"), StorageFailed)
        (tmp_path / "missing").mkdir()
        assert await on.rows("SELECT 1") == [(1,)]


async def test_a_query_that_fails_in_a_transaction_leaves_it_open(tmp_path: Path) -> None:
    async with asking() as on:
        await on.run(*TABLES, "BEGIN", "DELETE FROM t WHERE id = 1")
        inserting = LATE.replace("range END", "range END + 10, NULL, NULL").replace(
            "SELECT ", "", 1
        )
        for text in (LATE, LARGE, f"INSERT INTO t SELECT {inserting}"):
            assert (await on.error(text)).code in ("22000", "54000")
            assert await on.rows(NEXT) == [(1,)]
        await on.run("COMMIT")
        assert await on.rows(NEXT) == [(1,)]


def test_a_column_of_texts_past_two_gibibytes_is_too_large() -> None:
    said = (
        "Invalid Input Error: Arrow Appender: The maximum total string size for regular string "
        "buffers is 2147483647 but the offset of 3000000000 exceeds this.\n* SET arrow_large_x=1"
    )
    error = database_error(OSError(said))
    assert isinstance(error, TooLarge) and "SET" not in error.message


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (MemoryError(), TooLarge),
        (RecursionError("maximum recursion depth"), TooLarge),
        (pa.ArrowMemoryError("malloc of size 9 failed"), TooLarge),
        (pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes"), TooLarge),
        (pa.ArrowInvalid("cannot be cast"), DataError),
        (OSError(28, "No space left on device"), StorageFailed),
        (OSError("IO Error: Could not write file: No space left on device"), StorageFailed),
        (Exception("IO error: No space left on device: /000012.sst"), StorageFailed),
        (OverflowError("date value out of range"), herd.errors.ValueOutOfRange),
        (KeyError("x"), herd.errors.InternalError),
    ],
)
def test_every_exception_of_a_library_is_translated(raised: Exception, kind: type[Error]) -> None:
    error = database_error(raised)
    assert type(error) is kind and error.message
    assert error.__cause__ is None and error.__context__ is None


async def test_an_interval_too_large_for_the_wire_is_out_of_range(tmp_path: Path) -> None:
    async with wiring.through_socket(tmp_path) as opened:
        session = await opened.session("default")
        with pytest.raises(herd.errors.ValueOutOfRange):
            await session.execute("SELECT ?", (datetime.timedelta(days=999_999_999),))
        deep: list[Any] = []
        for _ in range(5_000):
            deep = [deep]
        with pytest.raises(TooLarge):
            await session.execute("SELECT ?", (deep,))
        assert list((await session.execute("SELECT 1")).rows) == [(1,)]
