"""What cursors give: rows and columns, by PEP 249 and by the names that people of Arrow know."""

import datetime
import sys
import types
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import herd
from herd import dbapi
from herd.arrow import python_rows
from herd.connection import Connection

MANY = 7_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("fetching")
    with herd.open_herd(path) as opened:
        with opened.connect(autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE cow (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(9), tag UUID,"
                " milk DECIMAL(6, 2), facts JSON, photo BLOB, seen TIMESTAMPTZ, sick BOOLEAN)"
            )
            connection.execute("CREATE TABLE many (id INT PRIMARY KEY, half DOUBLE)")
            rows = [(number, number / 2) for number in range(MANY)]
            connection.executemany("INSERT INTO many VALUES (?, ?)", rows)
        yield path


@pytest.fixture
def connection(folder: Path) -> Iterator[Connection]:
    with herd.connect(folder) as connected:
        yield connected
        connected.rollback()


def test_the_module_is_one_of_pep_249() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 2, "qmark")
    assert issubclass(dbapi.IntegrityError, dbapi.DatabaseError)
    assert issubclass(dbapi.DatabaseError, dbapi.Error) and issubclass(dbapi.Error, Exception)
    assert issubclass(dbapi.InterfaceError, dbapi.Error)
    assert not issubclass(dbapi.InterfaceError, dbapi.DatabaseError)
    for name in ("Warning", "Error", "DataError", "OperationalError", "NotSupportedError"):
        assert getattr(Connection, name) is getattr(dbapi, name)
    assert dbapi.Binary(bytearray(b"x")) == b"x"
    assert dbapi.Date(2026, 2, 3) == datetime.date(2026, 2, 3)
    assert dbapi.TimestampFromTicks(0).timestamp() == 0
    assert dbapi.NUMBER == "DECIMAL" and dbapi.NUMBER != "VARCHAR" and dbapi.STRING == "UUID"


def test_a_description_tells_names_types_and_digits(connection: Connection) -> None:
    connection.execute("INSERT INTO cow (name) VALUES ('Elsa')")
    for query in ("SELECT * FROM cow", "SELECT * FROM cow WHERE id = 1"):
        described = connection.execute(query).description
        assert described is not None
        assert [(column[0], column[1]) for column in described] == [
            ("id", "INTEGER"),
            ("name", "VARCHAR"),
            ("tag", "UUID"),
            ("milk", "DECIMAL"),
            ("facts", "JSON"),
            ("photo", "BLOB"),
            ("seen", "TIMESTAMPTZ"),
            ("sick", "BOOLEAN"),
        ]
        assert described[3] == ("milk", "DECIMAL", None, None, 6, 2, None)
        assert described[0][1] == dbapi.NUMBER and described[6][1] == dbapi.DATETIME


def test_statements_say_what_they_did(connection: Connection) -> None:
    cursor = connection.cursor()
    assert (cursor.statusmessage, cursor.rowcount, cursor.lastrowid) == (None, -1, None)
    cursor.execute("INSERT INTO cow (name) VALUES ('a'), ('b')")
    assert (cursor.statusmessage, cursor.rowcount) == ("INSERT 2", 2)
    last = cursor.lastrowid
    assert last is not None and last >= 2
    cursor.close()
    assert (cursor.rowcount, cursor.description) == (2, None)
    assert cursor.lastrowid == last
    cursor = connection.cursor()
    assert cursor.execute("UPDATE cow SET sick = true").statusmessage == "UPDATE 2"
    assert cursor.execute("SELECT * FROM cow").statusmessage == "SELECT 2"
    assert cursor.execute("DELETE FROM cow RETURNING name").statusmessage == "DELETE 2"
    assert cursor.execute("CREATE TABLE t (a INT)").statusmessage == "CREATE TABLE"


def test_rows_come_once_each_in_order_however_they_are_fetched(connection: Connection) -> None:
    for query in ("SELECT id FROM many ORDER BY id", "INSERT"):
        cursor = connection.cursor()
        if query == "INSERT":
            connection.execute("CREATE TABLE copy (id INT PRIMARY KEY)")
            values = [(number,) for number in range(MANY)]
            connection.executemany("INSERT INTO copy VALUES (?)", values)
            query = "DELETE FROM copy RETURNING id"
        cursor.execute(query)
        found = [cursor.fetchone() for _ in range(3)]
        found += cursor.fetchmany()
        cursor.arraysize = 1_998
        found += cursor.fetchmany()
        found += cursor.fetchmany(2)
        found += cursor.fetchmany(2_500)
        assert cursor.rownumber == len(found) == 3 + 1 + 1_998 + 2 + 2_500
        found.append(next(cursor))
        found += cursor.fetchall()
        assert [row[0] for row in found if row is not None] == list(range(MANY))
        assert (cursor.fetchone(), cursor.fetchmany(5), cursor.fetchall()) == (None, [], [])
        assert list(cursor) == []


def test_columns_hold_the_rows_that_are_left(connection: Connection) -> None:
    cursor = connection.execute("SELECT id, half FROM many ORDER BY id")
    cursor.fetchmany(10)
    table = cursor.fetch_arrow_table()
    assert table.num_rows == MANY - 10 and table.column("id")[0].as_py() == 10
    assert cursor.fetchone() is None
    again = connection.execute("SELECT id FROM many ORDER BY id")
    assert again.arrow().num_rows == MANY
    batches = connection.execute("SELECT id FROM many ORDER BY id").fetch_record_batch(1_000)
    sizes = [batch.num_rows for batch in batches]
    assert sum(sizes) == MANY and max(sizes) <= 1_000
    with pytest.raises(herd.ProgrammingError):
        connection.execute("SELECT id FROM many").fetch_record_batch(0)


def test_columns_of_a_row_by_key_have_the_types_of_the_table(connection: Connection) -> None:
    tag = uuid.UUID(int=5)
    moment = datetime.datetime(2026, 2, 3, tzinfo=datetime.UTC)
    values = (3, "Elsa", tag, Decimal("1.50"), '{"a": 1}', b"\x00", moment, True)
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO cow VALUES ({marks})", values)
    for query in ("SELECT * FROM cow WHERE id = 3", "SELECT * FROM cow WHERE name = 'Elsa'"):
        assert connection.execute(query).fetchall() == [values]
        table = connection.execute(query).fetch_arrow_table()
        assert table.schema.field("milk").type == pa.decimal128(6, 2)
        assert table.column("tag").to_pylist() == [str(tag)]
        assert python_rows(table) == [values]
        assert table.column("photo").to_pylist() == [b"\x00"]
        assert table.column("seen").to_pylist() == [moment]
    empty = connection.execute("SELECT * FROM cow WHERE id = 99").fetch_arrow_table()
    assert empty.num_rows == 0 and empty.num_columns == len(values)


def test_frames_are_made_of_columns(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    polars: Any = types.ModuleType("polars")
    polars.from_arrow = lambda table: ("polars", table.num_rows, table.schema.types)
    monkeypatch.setitem(sys.modules, "polars", polars)
    connection.execute("INSERT INTO cow (id, tag, facts) VALUES (4, ?, '1')", [uuid.UUID(int=1)])
    query = "SELECT tag, facts FROM cow WHERE id = 4"
    _, count, kinds = connection.execute(query).pl()
    assert count == 1 and not any(isinstance(kind, pa.BaseExtensionType) for kind in kinds)
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    for fetch in ("df", "fetchdf", "fetch_df", "pl", "fetch_polars"):
        with pytest.raises(herd.NotSupportedError, match="pip install"):
            getattr(connection.execute(query), fetch)()


async def test_the_same_is_awaited(folder: Path) -> None:
    async with await herd.aio.connect(folder, autocommit=True) as connection:
        cursor = await connection.execute("SELECT id FROM many ORDER BY id")
        found: list[Any] = [await cursor.fetchone(), *await cursor.fetchmany(2_500)]
        found += await cursor.fetchmany()
        async for row in cursor:
            found.append(row)
            if len(found) > 3_000:
                break
        found += await cursor.fetchall()
        assert [row[0] for row in found] == list(range(MANY))
        assert await cursor.fetchone() is None and await cursor.fetchall() == []
        table = await (await connection.execute("SELECT id FROM many")).fetch_arrow_table()
        assert table.num_rows == MANY
        with pytest.raises(herd.ProgrammingError):
            await connection.cursor().fetchall()
        assert connection.isolation_level == "READ COMMITTED"
        await connection.set_isolation_level("SNAPSHOT")
        assert connection.isolation_level == "SNAPSHOT"


def test_a_level_of_isolation_is_the_connections(connection: Connection) -> None:
    assert connection.isolation_level == "READ COMMITTED"
    connection.isolation_level = "SNAPSHOT"
    assert connection.isolation_level == "SNAPSHOT"
    with pytest.raises(herd.NotSupportedError):
        connection.isolation_level = "SERIALIZABLE"
