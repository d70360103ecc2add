"""What is wrong is refused by one clear error, changes nothing, and ends nothing."""

import datetime
import math
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

import herd
from herd import errors
from herd.connection import Connection

TABLES = (
    "CREATE TABLE farm (id INT PRIMARY KEY, name VARCHAR(10) NOT NULL UNIQUE)",
    """CREATE TABLE cow (
        id INT PRIMARY KEY, farm INT REFERENCES farm (id), name VARCHAR(10) NOT NULL,
        milk DECIMAL(6, 2) CHECK (milk >= 0), born DATE, fed TIME, seen TIMESTAMP,
        told TIMESTAMPTZ, tag UUID, facts JSON, photo BLOB, sick BOOLEAN, legs TINYINT,
        weight REAL, height DOUBLE, vector FLOAT[], big BIGINT
    )""",
    "CREATE VIEW milker AS SELECT id, name FROM cow WHERE milk > 0",
    "INSERT INTO farm VALUES (1, 'Alm'), (2, 'Tal')",
    "INSERT INTO cow (id, farm, name, milk) VALUES (1, 1, 'Elsa', 21.5), (2, 1, 'Resi', 18)",
)
COWS = [(1, "Elsa", Decimal("21.50")), (2, "Resi", Decimal("18.00"))]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[herd.Herd]:
    with herd.open_herd(tmp_path_factory.mktemp("bad")) as opened:
        with opened.connect(autocommit=True) as connection:
            for text in TABLES:
                connection.execute(text)
        yield opened


@pytest.fixture
def connection(tables: herd.Herd) -> Iterator[Connection]:
    with tables.connect(autocommit=True) as connected:
        yield connected


def unharmed(connection: Connection) -> None:
    """Fail unless the tables are as they were, and can be written."""
    cows = connection.execute("SELECT id, name, milk FROM cow ORDER BY id").fetchall()
    assert [cow for cow in cows if cow[0] < 900] == COWS
    assert connection.execute("SELECT count(*) FROM farm WHERE id < 900").fetchone() == (2,)
    connection.execute("INSERT INTO farm VALUES (999, 'Probe')")
    assert connection.execute("DELETE FROM farm WHERE id = 999").rowcount == 1


def refused(
    connection: Connection, text: str, parameters: Any, kind: type[errors.Error], place: str = ""
) -> errors.Error:
    """Fail unless a statement raises exactly this, alone and in a transaction, harmlessly."""
    with pytest.raises(errors.Error) as alone:
        connection.execute(text, parameters)
    assert type(alone.value) is kind, f"{alone.value!r}"
    assert alone.value.code == kind.code and alone.value.message
    assert "Traceback" not in str(alone.value) and len(str(alone.value)) < 1_000
    unharmed(connection)
    connection.execute("BEGIN")
    connection.execute("INSERT INTO farm VALUES (900, 'Before')")
    with pytest.raises(kind):
        connection.execute(text, parameters)
    assert connection.in_transaction
    connection.execute("INSERT INTO farm VALUES (901, 'After')")
    assert connection.execute("SELECT count(*) FROM farm WHERE id >= 900").fetchone() == (2,)
    connection.rollback()
    unharmed(connection)
    if place:
        assert alone.value.place == text.index(place), alone.value
    return alone.value


BROKEN = {
    "a word is misspelt": ("SELEC * FROM cow", "SELEC"),
    "a word is missing": ("SELECT id cow WHERE", ""),
    "a bracket is open": ("SELECT (1 + 2 FROM cow", ""),
    "a bracket is closed twice": ("SELECT (1 + 2)) FROM cow", ""),
    "a quote is open": ("SELECT 'Elsa FROM cow", ""),
    "a comment is open": ("SELECT 1 /* FROM cow", ""),
    "there is a comma too many": ("SELECT id, FROM cow WHERE id = = 1", ""),
    "there is nothing": ("", ""),
    "there is only a comment": ("-- nothing", ""),
    "there is only a semicolon": (";", ""),
    "there are only words": ("moo moo moo", ""),
    "it is no text of SQL": ("\x01\x02\x03", ""),
    "an INSERT has no rows": ("INSERT INTO cow", ""),
    "an UPDATE sets nothing": ("UPDATE cow SET", ""),
    "a table has no columns": ("CREATE TABLE t ()", ""),
    "an index has no table": ("CREATE INDEX i", ""),
    "COMMIT is no COMMIT": ("COMMIT EVERYTHING", "COMMIT"),
    "SHOW shows nothing": ("SHOW MOO", "SHOW"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_sql_is_a_syntax_error(connection: Connection, name: str) -> None:
    text, place = BROKEN[name]
    with pytest.raises(errors.ProgrammingError) as caught:
        connection.execute(text)
    assert caught.value.code in ("42601", "42000")
    refused(connection, text, (), type(caught.value), place)


def test_several_statements_in_one_text_are_refused_and_none_runs(connection: Connection) -> None:
    for text in (
        "DELETE FROM cow; SELECT 1",
        "SELECT 1; DELETE FROM cow",
        "BEGIN; DELETE FROM cow",
    ):
        with pytest.raises(errors.DatabaseError) as caught:
            connection.execute(text)
        assert isinstance(caught.value, errors.NotSupportedError | errors.ProgrammingError)
        assert not connection.in_transaction
        unharmed(connection)
    assert connection.execute("SELECT 1;").fetchone() == (1,)


NO_SUCH: dict[str, tuple[str, type[errors.Error], str]] = {
    "table": ("SELECT * FROM horse", errors.NoSuchTable, "horse"),
    "table to insert into": ("INSERT INTO horse VALUES (1)", errors.NoSuchTable, "horse"),
    "table to update": ("UPDATE horse SET a = 1", errors.NoSuchTable, "horse"),
    "table to delete from": ("DELETE FROM horse", errors.NoSuchTable, "horse"),
    "table to drop": ("DROP TABLE horse", errors.NoSuchTable, "horse"),
    "table to alter": ("ALTER TABLE horse ADD COLUMN a INT", errors.NoSuchTable, "horse"),
    "table to truncate": ("TRUNCATE TABLE horse", errors.NoSuchTable, "horse"),
    "table to describe": ("DESCRIBE horse", errors.NoSuchTable, ""),
    "view": ("DROP VIEW horse", errors.NoSuchTable, "horse"),
    "table of a join": ("SELECT 1 FROM cow JOIN horse ON true", errors.NoSuchTable, "horse"),
    "column": ("SELECT hoof FROM cow", errors.NoSuchColumn, "hoof"),
    "column of a condition": ("SELECT id FROM cow WHERE hoof = 1", errors.NoSuchColumn, "hoof"),
    "column with its table": ("SELECT cow.hoof FROM cow", errors.NoSuchColumn, ""),
    "column to insert": ("INSERT INTO cow (hoof) VALUES (1)", errors.NoSuchColumn, "hoof"),
    "column to set": ("UPDATE cow SET hoof = 1 WHERE id = 1", errors.NoSuchColumn, "hoof"),
    "column to order by": ("SELECT id FROM cow ORDER BY hoof", errors.NoSuchColumn, "hoof"),
    "column to index": ("CREATE INDEX i ON cow (hoof)", errors.NoSuchColumn, "hoof"),
    "column to return": ("DELETE FROM cow RETURNING hoof", errors.NoSuchColumn, "hoof"),
    "index": ("DROP INDEX hoof", errors.NoSuchIndex, "hoof"),
    "savepoint": ("ROLLBACK TO hoof", errors.NoSuchIndex, ""),
}


@pytest.mark.parametrize("name", NO_SUCH)
def test_what_is_not_there_is_named_with_its_place(connection: Connection, name: str) -> None:
    text, kind, place = NO_SUCH[name]
    if name == "savepoint":
        connection.execute("BEGIN")
        with pytest.raises(kind):
            connection.execute(text)
        connection.rollback()
        unharmed(connection)
        return
    refused(connection, text, (), kind, place)


HINTS = {
    "SELECT nmae FROM cow": "is it name?",
    "SELECT c.nmae, f.id FROM cow c JOIN farm f ON f.id = c.farm": "is it name?",
    'SELECT id FROM cow WHERE name = "Elsa von der Alm"': "a text stands in single quotes",
    "SELECT zzzzzzzz FROM farm": "there are id, name",
    "UPDATE cow SET nmae = 'x' WHERE milk > 5": "it has id, farm",
    "SELECT * FROM cwo": "is it cow?",
    "SELCT 1": "is it SELECT?",
}


@pytest.mark.parametrize("text", HINTS)
def test_a_misspelt_name_is_asked_about(connection: Connection, text: str) -> None:
    with pytest.raises(herd.ProgrammingError) as caught:
        connection.execute(text)
    assert caught.value.hint.startswith(HINTS[text]), caught.value
    assert caught.value.place is not None


def test_an_unknown_function_is_named(connection: Connection) -> None:
    error = refused(connection, "SELECT moo(id) FROM cow", (), errors.ProgrammingError)
    assert "moo" in error.message


def test_a_view_takes_no_rows(connection: Connection) -> None:
    for text in (
        "INSERT INTO milker VALUES (3, 'Alma')",
        "UPDATE milker SET name = 'x'",
        "DELETE FROM milker",
        "TRUNCATE TABLE milker",
    ):
        error = refused(connection, text, (), errors.NotSupportedError)
        assert "view" in error.message


CONSTRAINTS: dict[str, tuple[str, type[errors.Error]]] = {
    "primary key": ("INSERT INTO farm VALUES (1, 'New')", errors.UniqueViolation),
    "unique key": ("INSERT INTO farm VALUES (3, 'Alm')", errors.UniqueViolation),
    "second row": ("INSERT INTO farm VALUES (3, 'a'), (3, 'b')", errors.UniqueViolation),
    "update to a key": ("UPDATE farm SET name = 'Alm' WHERE id = 2", errors.UniqueViolation),
    "not null": ("INSERT INTO farm (id) VALUES (3)", errors.NotNullViolation),
    "null key": ("INSERT INTO farm VALUES (NULL, 'x')", errors.NotNullViolation),
    "set to null": ("UPDATE cow SET name = NULL", errors.NotNullViolation),
    "no parent": (
        "INSERT INTO cow (id, farm, name) VALUES (3, 77, 'x')",
        errors.ForeignKeyViolation,
    ),
    "move to no parent": ("UPDATE cow SET farm = 77 WHERE id = 1", errors.ForeignKeyViolation),
    "parent of a child": ("DELETE FROM farm WHERE id = 1", errors.ForeignKeyViolation),
    "key of a parent": ("UPDATE farm SET id = 9 WHERE id = 1", errors.ForeignKeyViolation),
    "all rows": ("DELETE FROM farm", errors.ForeignKeyViolation),
    "table of a parent": ("DROP TABLE farm", errors.ForeignKeyViolation),
    "check": ("UPDATE cow SET milk = -1 WHERE id = 1", errors.CheckViolation),
    "check of a new row": (
        "INSERT INTO cow (id, name, milk) VALUES (3, 'x', -0.01)",
        errors.CheckViolation,
    ),
    "two cows": ("UPDATE cow SET id = 7", errors.UniqueViolation),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_constraint_is_an_integrity_error(connection: Connection, name: str) -> None:
    text, kind = CONSTRAINTS[name]
    error = refused(connection, text, (), kind)
    assert isinstance(error, herd.IntegrityError) and error.code.startswith("23")


VALUES: dict[str, tuple[str, Any, type[errors.Error]]] = {
    "text for a number": ("id", "one", errors.ValueInvalid),
    "half a number": ("id", 1.5, errors.ValueInvalid),
    "truth for a number": ("id", True, errors.ValueInvalid),
    "no number": ("id", math.nan, errors.ValueInvalid),
    "infinity": ("id", math.inf, errors.ValueInvalid),
    "bytes for a number": ("id", b"1", errors.ValueInvalid),
    "a list for a number": ("id", [1], errors.ValueInvalid),
    "a large number": ("id", 2**31, errors.ValueOutOfRange),
    "a huge number": ("big", 2**63, errors.ValueOutOfRange),
    "an endless number": ("big", 10**400, errors.ValueOutOfRange),
    "a small number's end": ("legs", 128, errors.ValueOutOfRange),
    "a decimal of too many digits": ("milk", Decimal("10000"), errors.ValueOutOfRange),
    "a decimal that is too fine": ("milk", Decimal("0.001"), errors.ValueInvalid),
    "a decimal that is none": ("milk", "much", errors.ValueInvalid),
    "no decimal": ("milk", Decimal("NaN"), errors.ValueInvalid),
    "a real that is too large": ("weight", 1e39, errors.ValueOutOfRange),
    "a double that is too large": ("height", 10**400, errors.ValueOutOfRange),
    "a long text": ("name", "Kunigunde von", errors.ValueTooLong),
    "bytes for a text": ("name", b"Elsa", errors.ValueInvalid),
    "half a letter": ("name", "\ud800", errors.ValueInvalid),
    "an object": ("name", object(), errors.ValueInvalid),
    "a text for bytes": ("photo", "jpg", errors.ValueInvalid),
    "a day that never was": ("born", "2026-02-30", errors.ValueInvalid),
    "a number for a day": ("born", 20260221, errors.ValueInvalid),
    "a moment for a day": ("born", datetime.datetime(2026, 2, 1, 12), errors.ValueInvalid),
    "a time past midnight": ("fed", "25:00", errors.ValueInvalid),
    "a moment with a zone": (
        "seen",
        datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC),
        errors.ValueInvalid,
    ),
    "a moment without a zone": ("told", datetime.datetime(2026, 2, 1), errors.ValueInvalid),
    "a tag that is none": ("tag", "moo", errors.ValueInvalid),
    "JSON that is none": ("facts", "{moo}", errors.ValueInvalid),
    "JSON that ends early": ("facts", '{"a":', errors.ValueInvalid),
    "a truth that is none": ("sick", "perhaps", errors.ValueInvalid),
    "a vector of texts": ("vector", ["a"], errors.ValueInvalid),
    "a vector that is none": ("vector", 1.0, errors.ValueInvalid),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_does_not_fit_is_a_data_error(connection: Connection, name: str) -> None:
    column, value, kind = VALUES[name]
    row = {"id": 950, "name": "x"} | {column: value}
    insert = f"INSERT INTO cow ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    error = refused(connection, insert, list(row.values()), kind)
    assert isinstance(error, herd.DataError) and error.code.startswith("22")
    assert f"cow.{column}" in error.message
    for where in ("id = 1", "milk > 0"):
        with pytest.raises(kind, match=f"cow.{column}"):
            connection.execute(f"UPDATE cow SET {column} = ? WHERE {where}", [value])
    good = {"id": 1, "name": "Elsa"}.get(column)
    for text, rows in (
        (insert, [[*({**row, "id": 951, column: good}).values()], list(row.values())]),
        (f"UPDATE cow SET {column} = ? WHERE id = ?", [(good, 1), (value, 2)]),
    ):
        with pytest.raises(kind, match=f"cow.{column}"):
            connection.executemany(text, rows)
    unharmed(connection)


WRONG: dict[str, tuple[str, type[errors.Error]]] = {
    "a text times a number": ("SELECT name * 2 FROM cow", errors.DatabaseError),
    "a sum of texts": ("SELECT sum(name) FROM cow", errors.TypeMismatch),
    "a text that is no number": ("SELECT CAST(name AS INT) FROM cow", errors.ValueInvalid),
    "too large a sum": ("SELECT 9223372036854775807 + id FROM cow", errors.ValueOutOfRange),
    "too large a product": ("UPDATE cow SET id = id * 9000000000", errors.ValueOutOfRange),
    "a column not grouped": ("SELECT name, count(*) FROM cow", errors.ProgrammingError),
    "a sum in WHERE": ("SELECT id FROM cow WHERE sum(id) > 1", errors.ProgrammingError),
    "two columns compared to one": (
        "SELECT id FROM cow WHERE id IN (SELECT id, name FROM cow)",
        errors.ProgrammingError,
    ),
    "unions of unlike width": ("SELECT 1 UNION SELECT 1, 2", errors.ProgrammingError),
    "values for more columns": ("INSERT INTO farm VALUES (1)", errors.ParametersMismatch),
    "a column named twice": ("INSERT INTO farm (id, id) VALUES (1, 2)", errors.SqlSyntaxError),
    "a table that is there": ("CREATE TABLE cow (a INT)", errors.NameTaken),
    "a view that is there": ("CREATE VIEW cow AS SELECT 1", errors.NameTaken),
    "two columns of a name": ("CREATE TABLE t (a INT, A INT)", errors.NameTaken),
    "a type that is none": ("CREATE TABLE t (a MOO)", errors.NotSupportedError),
    "two primary keys": (
        "CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY)",
        errors.ProgrammingError,
    ),
    "a key to no key": (
        "CREATE TABLE t (a INT PRIMARY KEY, b INT REFERENCES cow (legs))",
        errors.NoSuchIndex,
    ),
    "a key of another type": (
        "CREATE TABLE t (a INT PRIMARY KEY, b TEXT REFERENCES cow (id))",
        errors.TypeMismatch,
    ),
    "a trigger": ("CREATE TRIGGER t AFTER INSERT ON cow EXECUTE x", errors.DatabaseError),
    "a file": ("SELECT * FROM read_csv('/etc/passwd')", errors.DatabaseError),
    "a file by its name": ("SELECT * FROM '/etc/passwd'", errors.DatabaseError),
    "COPY": ("COPY cow TO '/tmp/cow.csv'", errors.DatabaseError),
    "ATTACH": ("ATTACH '/tmp/x.db'", errors.DatabaseError),
    "a setting of DuckDB": ("PRAGMA memory_limit = '1TB'", errors.DatabaseError),
    "INSTALL": ("INSTALL httpfs", errors.DatabaseError),
    "a moment that is no number": ("SELECT DATE 'moo'", errors.ValueInvalid),
    "an endless offset": ("SELECT id FROM cow LIMIT -1", errors.DatabaseError),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_statement_that_means_nothing_is_refused(connection: Connection, name: str) -> None:
    text, kind = WRONG[name]
    with pytest.raises(kind) as caught:
        connection.execute(text)
    assert not isinstance(caught.value, errors.InternalError | errors.OperationalError)
    assert type(caught.value) is not errors.DatabaseError, caught.value
    refused(connection, text, (), type(caught.value))


PARAMETERS: dict[str, tuple[str, Any]] = {
    "missing": ("SELECT * FROM cow WHERE id = ? AND name = ?", (1,)),
    "missing all": ("SELECT * FROM cow WHERE id = ?", ()),
    "too many": ("SELECT * FROM cow WHERE id = ?", (1, 2)),
    "too many for none": ("SELECT 1", (1,)),
    "a text": ("SELECT * FROM cow WHERE id = ?", "1"),
    "bytes": ("SELECT * FROM cow WHERE id = ?", b"1"),
    "a mapping for marks": ("SELECT * FROM cow WHERE id = ?", {"id": 1}),
    "a tuple for names": ("SELECT * FROM cow WHERE id = :id", (1,)),
    "a name that is missing": ("SELECT * FROM cow WHERE id = :id", {"name": 1}),
    "marks and names": ("SELECT * FROM cow WHERE id = ? AND name = :name", (1,)),
    "missing of an insert": ("INSERT INTO farm VALUES (?, ?)", (900,)),
    "missing of an update": ("UPDATE cow SET milk = ? WHERE id = ?", (900,)),
    "a number": ("SELECT * FROM cow WHERE id = ?", 1),
    "none": ("SELECT * FROM cow WHERE id = ?", None),
    "a set": ("SELECT * FROM cow WHERE id = ?", {1}),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_that_do_not_match_are_refused(connection: Connection, name: str) -> None:
    text, given = PARAMETERS[name]
    error = refused(connection, text, given, errors.ParametersMismatch)
    assert error.code == "07001"


def test_a_parameter_of_a_query_may_be_of_any_type_or_is_refused(connection: Connection) -> None:
    for value in (object(), {1, 2}, lambda: 1, "\ud800", [object()]):
        with pytest.raises(herd.DataError) as caught:
            connection.execute("SELECT id FROM cow WHERE name = ? OR name LIKE '%x'", [value])
        assert caught.value.code.startswith("22")
        unharmed(connection)
    for value in (1, None, uuid.UUID(int=1), Decimal("1.5"), datetime.date(2026, 1, 1), "x\0y"):
        answer = connection.execute(
            "SELECT count(*) FROM cow WHERE name = CAST(? AS VARCHAR)", [value]
        )
        assert answer.fetchone() == (0,)


def test_execute_takes_a_text(connection: Connection) -> None:
    for text in (None, 1, b"SELECT 1", ["SELECT 1"]):
        with pytest.raises(herd.InterfaceError):
            connection.execute(text)  # type: ignore[arg-type]
        with pytest.raises(herd.InterfaceError):
            connection.executemany(text, [(1,)])  # type: ignore[arg-type]
    unharmed(connection)


def test_executemany_does_all_or_nothing(connection: Connection) -> None:
    insert = "INSERT INTO farm VALUES (?, ?)"
    for rows, kind in (
        ([(910, "a"), (911, "b"), (910, "c")], errors.UniqueViolation),
        ([(910, "a"), (911, None)], errors.NotNullViolation),
        ([(910, "a"), (911,)], errors.ParametersMismatch),
        ([(910, "a"), "xy", 5], errors.ParametersMismatch),
        ([(910, "a"), ("x", "b")], errors.ValueInvalid),
    ):
        with pytest.raises(kind):
            connection.executemany(insert, rows)  # type: ignore[arg-type]
        assert connection.execute("SELECT count(*) FROM farm").fetchone() == (2,)
    with pytest.raises(herd.ProgrammingError):
        connection.executemany("SELECT ?", [(1,)])
    assert connection.executemany(insert, []).rowcount == 0
    unharmed(connection)


def test_what_was_closed_says_so(tables: herd.Herd) -> None:
    connection = tables.connect(autocommit=True)
    cursor = connection.execute("SELECT id FROM cow")
    cursor.close()
    for use in (cursor.fetchone, cursor.fetchall, cursor.fetchmany, cursor.fetch_arrow_table):
        with pytest.raises(herd.InterfaceError, match="closed"):
            use()
    with pytest.raises(herd.InterfaceError, match="closed"):
        cursor.execute("SELECT 1")
    other = connection.cursor()
    connection.close()
    connection.close()
    for again in (
        connection.cursor,
        connection.commit,
        connection.rollback,
        lambda: other.execute("SELECT 1"),
        lambda: other.executemany("INSERT INTO farm VALUES (?, ?)", [(1, "x")]),
        other.fetchone,
        lambda: connection.execute("SELECT 1"),
        connection.__enter__,
    ):
        with pytest.raises(herd.InterfaceError, match="closed"):
            again()
    with tables.connect(autocommit=True) as fresh:
        unharmed(fresh)


def test_fetching_where_there_is_nothing_is_refused(connection: Connection) -> None:
    cursor = connection.cursor()
    for prepare in ("", "UPDATE cow SET milk = milk WHERE id = 1", "BEGIN", "ROLLBACK"):
        if prepare:
            cursor.execute(prepare)
        for use in (cursor.fetchone, cursor.fetchall, cursor.fetch_arrow_table):
            with pytest.raises(herd.ProgrammingError):
                use()
    with pytest.raises(herd.ProgrammingError):
        connection.execute("SELECT id FROM cow").fetchmany(-1)


def test_a_failed_statement_leaves_no_old_rows_to_fetch(connection: Connection) -> None:
    cursor = connection.execute("SELECT id FROM cow")
    with pytest.raises(errors.NoSuchTable):
        cursor.execute("SELECT * FROM horse")
    with pytest.raises(herd.ProgrammingError):
        cursor.fetchone()
    assert cursor.description is None and cursor.rowcount == -1


def test_transactions_out_of_turn_are_refused(connection: Connection) -> None:
    for text in ("SAVEPOINT a", "RELEASE a", "ROLLBACK TO a"):
        with pytest.raises(herd.ProgrammingError):
            connection.execute(text)
    connection.execute("BEGIN")
    with pytest.raises(herd.ProgrammingError, match="open"):
        connection.execute("BEGIN")
    with pytest.raises(herd.ProgrammingError):
        connection.autocommit = False
    connection.execute("COMMIT")
    connection.execute("COMMIT")
    connection.execute("ROLLBACK")
    with pytest.raises(herd.NotSupportedError):
        connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    with pytest.raises(herd.DatabaseError):
        connection.execute("SET TRANSACTION ISOLATION LEVEL MOO")
    unharmed(connection)


def test_a_folder_or_a_tablespace_that_cannot_be_is_refused(tables: herd.Herd) -> None:
    with pytest.raises(herd.ProgrammingError, match="there is no tablespace"):
        tables.connect("sales")
    for name in ("", "a b", "../x", "x" * 100, "1st", "\0"):
        with pytest.raises(herd.ProgrammingError):
            tables.create_tablespace(name)
    for where in (1, None, b"x", 1.5):
        with pytest.raises(herd.InterfaceError):
            herd.connect(where)  # type: ignore[arg-type]
    with pytest.raises(herd.OperationalError):
        herd.connect("/dev/null/herd")
