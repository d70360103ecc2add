"""`/api/v1/tablespaces`: what there is, and SQL.

Invariants:
- Who may only read may only look: what a statement does is decided before it is sent, and its
  session may do no more than its caller, wherever it runs.
- A statement is read once, and for nobody who may not even look; a long one in a worker's thread.
- A result is bounded in rows and in bytes, wherever it was cut off it says so.
- Each statement is a transaction of its own.
- A statement ends when nobody waits for it any more.
"""

import asyncio
import base64
import datetime
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request

from broker.http.routes import Told
from engine.access.principal import Principal
from herd.sql.result import Result
from herdbook.http.errors import HttpError
from herdbook.http.house import House
from herdbook.http.naming import session_in, tablespaces_of
from herdbook.http.routes import KNOWN, Ask, Judged, Need, Route

if TYPE_CHECKING:
    from herd.sql.asking import Alone

RESULT_BYTES_MAX: Final = 16 * 1024 * 1024
_EXACT_IN_JSON: Final = 2**53
_ROWS_ON_LOOP_MAX: Final = 100


class Tablespaces(msgspec.Struct):
    """Their names."""

    tablespaces: list[str]


class ColumnFacts(msgspec.Struct):
    """A column. `type` is "" where no type of a column tells it."""

    name: str
    type: str
    nullable: bool = True
    primary: bool = False


class TableFacts(msgspec.Struct):
    """A table and its columns."""

    name: str
    columns: list[ColumnFacts]


class Tables(msgspec.Struct):
    """Tables by name."""

    tables: list[TableFacts]


class QueryShape(msgspec.Struct, forbid_unknown_fields=True):
    """One statement. `parameters` are for its question marks; `limit` is how many rows at most."""

    sql: Annotated[str, Meta(max_length=1_000_000)]
    parameters: Annotated[list[str | int | float | bool | None], Meta(max_length=1_000)] = []
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    timeout_ms: Annotated[int, Meta(ge=1, le=300_000)] = 30_000


class ResultColumnFacts(msgspec.Struct):
    """A column of a result."""

    name: str
    type: str


class QueryResult(msgspec.Struct):
    """What a statement answered. `row_count` rows were changed, or are here; `truncated`: there
    are more.

    Numbers that JavaScript would round, decimals, times and dates are texts, bytes are base64.
    """

    kind: str
    columns: list[ResultColumnFacts]
    rows: list[list[Any]]
    row_count: int
    truncated: bool
    elapsed_ms: float


async def judge(house: House, body: QueryShape, who: Principal) -> Judged:
    """The right that a statement takes, and what it says. Raises `herd.errors.Error`."""
    # The parser of SQL is loaded with the first statement.
    from herd.sql.asking import alone
    from herd.sql.parsing import LONG_CHARACTERS
    from herd.turns import read_long

    if len(body.sql) > LONG_CHARACTERS:
        read = partial(alone, body.sql, body.limit + 1)
        said = await read_long(house.herd.workers, read, who.name)
    else:
        said = alone(body.sql, body.limit + 1)
    return Judged(said.right, said)


async def list_tablespaces(house: House, ask: Ask) -> Told:
    """Those that the caller may read."""
    return Told(Tablespaces(await tablespaces_of(house, ask.who)))


async def list_tables(house: House, ask: Ask) -> Told:
    """Definitions, from the tablespace's own tables of these."""
    session = await session_in(house, ask.path["name"], ask.who)
    try:
        tables = await session.execute("SELECT table_name FROM systables ORDER BY table_name")
        found = await session.execute(
            "SELECT table_name, column_name, data_type, is_nullable, primary_position "
            "FROM syscolumns ORDER BY table_name, ordinal_position"
        )
    finally:
        await session.close()
    told = {row[0]: TableFacts(row[0], []) for row in tables.rows}
    for table, column, kind, nullable, place in found.rows:
        if table in told:
            told[table].columns.append(ColumnFacts(column, kind, bool(nullable), place is not None))
    return Told(Tables(list(told.values())))


async def query(house: House, ask: Ask) -> Told:
    """Run one statement."""
    from herd.sql.session import Session

    asked: QueryShape = ask.body
    clock = house.ledgers.clock
    begun_s = clock.monotonic()
    said: Alone = ask.said
    session = await session_in(house, ask.path["name"], ask.who)
    try:
        async with asyncio.timeout(asked.timeout_ms / 1000) as late, _waited_for(ask.request, late):
            parsed = said.parsed
            if isinstance(session, Session):
                result = await session.execute(parsed.text, asked.parameters, parsed)
            else:
                result = await session.execute(parsed.text, asked.parameters)
    except TimeoutError:
        raise _late(asked.timeout_ms, said.reads) from None
    finally:
        await session.close()
    rows, truncated = await _rows(house, result, asked.limit)
    elapsed_ms = round((clock.monotonic() - begun_s) * 1000, 3)
    columns = [
        ResultColumnFacts(each.name, "" if each.type is None else each.type.sql)
        for each in result.columns
    ]
    count = len(rows) if result.columns else max(result.count, 0)
    lines: Any = rows
    return Told(QueryResult(result.kind, columns, lines, count, truncated, elapsed_ms))


@asynccontextmanager
async def _waited_for(request: Request, late: asyncio.Timeout) -> AsyncIterator[None]:
    """Whose client hangs up meanwhile is late at once."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        late.reschedule(0.0)

    watching = asyncio.create_task(watch(), name="waited for")
    try:
        yield
    finally:
        watching.cancel()


def _late(timeout_ms: int, reads: bool) -> HttpError:
    if reads:
        remedy = "ask for less, or give it more time by timeout_ms"
        return HttpError(408, "query_late", f"no answer in {timeout_ms:,} ms", remedy=remedy)
    return HttpError(
        504,
        "outcome_unknown",
        f"no answer in {timeout_ms:,} ms: it may or may not have happened",
        remedy="read to know",
    )


async def _rows(house: House, result: Result, limit: int) -> tuple[list[msgspec.Raw], bool]:
    """The rows as JSON, as many as there may be, and whether there are more."""
    if len(result.rows) <= _ROWS_ON_LOOP_MAX:
        return _encoded(result.rows, limit)
    return await house.herd.workers.run(lambda: _encoded(result.rows, limit))


def _encoded(rows: Sequence[tuple[Any, ...]], limit: int) -> tuple[list[msgspec.Raw], bool]:
    told: list[msgspec.Raw] = []
    size_bytes = 0
    for row in rows[:limit]:
        line = msgspec.json.encode([_value(each) for each in row])
        size_bytes += len(line)
        if size_bytes > RESULT_BYTES_MAX:
            return told, True
        told.append(msgspec.Raw(line))
    return told, len(rows) > limit


def _value(value: Any) -> Any:
    """A value as JSON has it without loss."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if -_EXACT_IN_JSON <= value <= _EXACT_IN_JSON else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [_value(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _value(each) for name, each in value.items()}
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)


READ: Final = Need("tablespace", "read", "name")
ROUTES: Final = (
    Route(
        "GET",
        "/tablespaces",
        "list_tablespaces",
        "List tablespaces.",
        KNOWN,
        list_tablespaces,
        reply=Tablespaces,
    ),
    Route(
        "GET",
        "/tablespaces/{name}/tables",
        "list_tables",
        "List tables and their columns.",
        READ,
        list_tables,
        reply=Tables,
        other_statuses=(400, 404),
    ),
    Route(
        "POST",
        "/tablespaces/{name}/query",
        "query",
        "Run one statement of SQL.",
        Need("tablespace", "read", "name", judge),
        query,
        body=QueryShape,
        reply=QueryResult,
        other_statuses=(400, 404, 408, 409, 413, 504),
    ),
)
