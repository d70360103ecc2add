"""Statements and values of absurd size are taken, or refused by one clear error."""

from collections.abc import Iterator

import pytest

import herd
from herd import errors
from herd.connection import Connection
from herd.sql import parsing

MIB = 1024 * 1024
DEEP = 10_000


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[herd.Herd]:
    with herd.open_herd(tmp_path_factory.mktemp("sizes")) as held:
        with held.connect(autocommit=True) as connection:
            connection.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT, photo BLOB)")
            connection.execute("CREATE TABLE tag (name TEXT PRIMARY KEY)")
            connection.execute("INSERT INTO cow VALUES (1, 'Elsa', NULL), (2, 'Resi', NULL)")
        yield held


@pytest.fixture
def connection(opened: herd.Herd) -> Iterator[Connection]:
    with opened.connect(autocommit=True) as connected:
        yield connected
        assert connected.execute("SELECT count(*) FROM cow WHERE id < 3").fetchone() == (2,)
        connected.execute("UPDATE cow SET name = name WHERE id = 1")


NESTED = {
    "brackets": "SELECT " + "(" * DEEP + "1" + ")" * DEEP,
    "brackets never closed": "SELECT " + "(" * DEEP,
    "NOTs": "SELECT " + "NOT " * DEEP + "true",
    "signs": "SELECT " + "- " * DEEP + "1",
    "subqueries": "SELECT * FROM " + "(SELECT * FROM " * DEEP + "cow" + ")" * DEEP,
    "functions": "SELECT " + "abs(" * DEEP + "1" + ")" * DEEP,
    "CASEs": "SELECT " + "CASE WHEN true THEN " * DEEP + "1" + " END" * DEEP,
    "a condition": "UPDATE cow SET name = 'x' WHERE " + "(" * DEEP + "id = 1" + ")" * DEEP,
    "an inserted value": "INSERT INTO cow (id) VALUES (" + "(" * DEEP + "9" + ")" * DEEP + ")",
    "a CHECK": "CREATE TABLE t (a INT CHECK (" + "(" * DEEP + "a > 1" + ")" * DEEP + "))",
}


@pytest.mark.parametrize("name", NESTED)
def test_deep_nesting_is_too_large_and_no_crash(connection: Connection, name: str) -> None:
    with pytest.raises((errors.TooLarge, errors.SqlSyntaxError)) as caught:
        connection.execute(NESTED[name])
    assert caught.value.code in ("54000", "42601") and len(str(caught.value)) < 1_000


LONG = 1_500
CHAINS = {
    "sums": "SELECT " + "1 + " * LONG + "1",
    "ORs": "SELECT count(*) FROM cow WHERE " + "id = 1 OR " * LONG + "id = 2",
    "texts": "SELECT " + "'a' || " * LONG + "'b'",
    "unions": "SELECT 1" + " UNION ALL SELECT 1" * LONG,
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_long_chain_is_answered_or_too_large(connection: Connection, name: str) -> None:
    try:
        assert connection.execute(CHAINS[name]).fetchone() is not None
    except errors.TooLarge as error:
        assert error.code == "54000"


def test_a_list_of_twenty_thousand_is_answered(connection: Connection) -> None:
    values = ", ".join(map(str, range(20_000)))
    text = f"SELECT count(*) FROM cow WHERE id IN ({values})"
    assert connection.execute(text).fetchone() == (2,)


def test_thousands_of_parameters_are_answered(connection: Connection) -> None:
    text = f"SELECT count(*) FROM cow WHERE id IN ({', '.join('?' * 1_500)})"
    assert connection.execute(text, list(range(1_500))).fetchone() == (2,)


def test_parameters_past_the_limit_are_too_large(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "PARAMETERS_MAX", 1_000)
    text = f"SELECT count(*) FROM cow WHERE id IN ({', '.join('?' * 1_001)})"
    with pytest.raises(errors.TooLarge) as caught:
        connection.execute(text, list(range(1_001)))
    assert caught.value.code == "54000" and caught.value.hint


def test_a_long_list_means_what_a_short_one_does(connection: Connection) -> None:
    filler = ", ".join(f"'{number}'" for number in range(1_050))
    for text, count in (
        (f"name IN ({filler}, 'Elsa')", 1),
        (f"name IN ({filler}, 'El''sa', '(', ')')", 0),
        (f"name NOT IN ({filler}, 'Elsa')", 1),
        (f"name NOT IN ({filler}, NULL)", 0),
        (f"name IN ({filler}, ?)", 1),
        (f"name IN ({filler}, 'Re' || 'si')", 1),
        (f"-id IN ({', '.join(f'-{number}' for number in range(1_050))})", 2),
    ):
        given = ["Resi"] if "?" in text else []
        answer = connection.execute(f"SELECT count(*) FROM cow WHERE id < 3 AND {text}", given)
        assert answer.fetchone() == (count,), text[-30:]
    many = ", ".join(map(str, range(1_050)))
    assert connection.execute(f"UPDATE cow SET name = name WHERE id IN ({many})").rowcount == 2
    with pytest.raises(errors.SqlSyntaxError):
        connection.execute(f"SELECT count(*) FROM cow WHERE id IN ({many}")


def test_identifiers_of_a_mebibyte_are_refused_in_few_words(connection: Connection) -> None:
    long, name = "x" * MIB, "x" * 10_000
    for text in (
        f"SELECT * FROM {long}",
        f"SELECT {long}(id) FROM cow",
        f"SELECT {name} FROM cow",
        f"CREATE TABLE {name} (a INT)",
        f"CREATE TABLE t ({name} INT)",
        f"CREATE INDEX {name} ON cow (name)",
        f"CREATE VIEW {name} AS SELECT 1",
        f'INSERT INTO cow (id, "{name}") VALUES (5, 1)',
        f"SAVEPOINT {name}",
        f"ALTER TABLE cow ADD COLUMN {name} INT",
    ):
        with pytest.raises(errors.ProgrammingError) as caught:
            connection.execute(text)
        assert len(str(caught.value)) < 300, str(caught.value)[:100]


def test_nul_and_halves_of_letters_in_a_statement(connection: Connection) -> None:
    for text in (
        "SELECT '\ud800'",
        "SELECT * FROM cow WHERE name = '\udfff' OR id > 5",
        "INSERT INTO cow VALUES (9, '\ud800', NULL)",
        'SELECT "\ud800" FROM cow',
        'CREATE TABLE "\ud800" (a INT)',
        'CREATE TABLE "a\0b" (a INT)',
        'CREATE TABLE t ("a\0b" INT)',
        "SELECT * FROM \0",
    ):
        with pytest.raises(herd.DatabaseError) as caught:
            connection.execute(text)
        assert not isinstance(caught.value, errors.InternalError), caught.value
        str(caught.value).encode()
    assert connection.execute("SELECT length('a\0b'), 'a\0b'").fetchone() == (3, "a\0b")
    connection.execute("UPDATE cow SET name = ? WHERE id = 1", ["a\0b"])
    assert connection.execute("SELECT name FROM cow WHERE id = 1").fetchone() == ("a\0b",)
    connection.execute("UPDATE cow SET name = 'Elsa' WHERE name = ?", ["a\0b"])


def test_sixteen_mebibytes_fit_and_seventeen_do_not(connection: Connection) -> None:
    photo = bytes(range(256)) * (16 * MIB // 256)
    connection.execute("INSERT INTO cow VALUES (10, 'big', ?)", [photo])
    assert connection.execute("SELECT photo FROM cow WHERE id = 10").fetchone() == (photo,)
    answer = connection.execute("SELECT octet_length(photo) FROM cow WHERE name = 'big'")
    assert answer.fetchone() == (16 * MIB,)
    for value in (bytes(17 * MIB), "x" * (17 * MIB)):
        column = "photo" if isinstance(value, bytes) else "name"
        for text in (
            f"UPDATE cow SET {column} = ? WHERE id = 10",
            f"UPDATE cow SET {column} = ? WHERE name = 'big'",
            f"INSERT INTO cow (id, {column}) VALUES (11, ?)",
        ):
            with pytest.raises(errors.ValueTooLong) as caught:
                connection.execute(text, [value])
            assert caught.value.code == "22001" and len(str(caught.value)) < 300
    connection.execute("DELETE FROM cow WHERE id = 10")


def test_a_text_of_four_byte_letters_is_measured_in_bytes(connection: Connection) -> None:
    with pytest.raises(errors.ValueTooLong):
        connection.execute("INSERT INTO cow (id, name) VALUES (12, ?)", ["🐄" * (5 * MIB)])


def test_a_key_that_is_too_long_is_refused(connection: Connection) -> None:
    with pytest.raises(errors.ValueTooLong) as caught:
        connection.execute("INSERT INTO tag VALUES (?)", ["x" * (2 * MIB)])
    assert caught.value.code == "22001"


def test_a_statement_over_the_limit_is_too_large(connection: Connection) -> None:
    with pytest.raises(errors.TooLarge) as caught:
        connection.execute("SELECT '" + "x" * (5 * MIB) + "'")
    assert caught.value.hint or "characters" in caught.value.message


def test_a_table_of_too_many_columns_is_refused(connection: Connection) -> None:
    columns = ", ".join(f"c{number} INT" for number in range(2_000))
    with pytest.raises(errors.TooLarge):
        connection.execute(f"CREATE TABLE wide ({columns})")


def test_a_transaction_that_is_too_large_is_refused_and_can_be_rolled_back(
    connection: Connection,
) -> None:
    photo = bytes(15 * MIB)
    connection.execute("BEGIN")
    with pytest.raises(errors.TooLarge) as caught:
        for number in range(20, 30):
            connection.execute("INSERT INTO cow VALUES (?, 'x', ?)", [number, photo])
    assert caught.value.code == "54000" and caught.value.hint
    assert connection.execute("SELECT count(*) FROM cow WHERE id >= 20").fetchone() == (3,)
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM cow WHERE id >= 20").fetchone() == (0,)
