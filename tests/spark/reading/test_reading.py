"""Tables read by a real Spark, through the socket of a folder that this process owns."""

import datetime
import os
import threading
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types

import herdbook.spark
from herd.errors import ProgrammingError
from herdbook.book import Book

ROWS: Final = 1_000_000 if os.environ.get("HERDBOOK_ACCEPTANCE") == "full" else 2_000
LOOKS: Final = 5 if ROWS > 2_000 else 2
_MOMENT: Final = datetime.datetime(2026, 11, 22, 9, 30, 0, 123_456, tzinfo=datetime.UTC)
_DDL: Final = """CREATE TABLE kinds (
    id BIGINT PRIMARY KEY, flag BOOLEAN, tiny TINYINT, small SMALLINT, whole INTEGER, real REAL,
    double DOUBLE, money DECIMAL(10,2), wide DECIMAL(38,4), name VARCHAR(20), data BLOB, day DATE,
    clock TIME, moment TIMESTAMP, zoned TIMESTAMPTZ, uuid UUID, json JSON, floats FLOAT[])"""
_VALUES: Final[dict[str, Any]] = {
    "id": 1,
    "flag": True,
    "tiny": -8,
    "small": 300,
    "whole": -70_000,
    "real": 1.5,
    "double": 0.1,
    "money": Decimal("-12.34"),
    "wide": Decimal("9999999999999999999999999999999999.9999"),
    "name": "Elsa 🐄",
    "data": b"\x00\xff",
    "day": datetime.date(1969, 12, 31),
    "clock": datetime.time(9, 30, 0, 5),
    "moment": _MOMENT.replace(tzinfo=None),
    "zoned": _MOMENT,
    "uuid": UUID(int=7),
    "json": '{"a": 1}',
    "floats": [1.0, -2.5],
}


def run(book: Book, *statements: str) -> None:
    """Statements, each of its own."""
    with book.sql(autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def load(spark: SparkSession, table: str, **options: str) -> DataFrame:
    """A table, as `format("herd")` loads it."""
    return spark.read.format("herd").option("table", table).options(**options).load()


def one(frame: DataFrame) -> Any:
    """The value of a frame of one row and one column."""
    [row] = frame.collect()
    return row[0]


def told(error: PySparkException) -> str:
    """The line that names the cause."""
    lines = [line for line in str(error).splitlines() if line.startswith("herd.errors.")]
    assert len(lines) == 1, error
    return lines[0]


def test_every_type_keeps_its_values(spark: SparkSession, book: Book) -> None:
    run(book, _DDL, "INSERT INTO kinds (id) VALUES (2)")
    with book.sql(autocommit=True) as connection:
        marks = ", ".join("?" * len(_VALUES))
        connection.execute(f"INSERT INTO kinds VALUES ({marks})", tuple(_VALUES.values()))
    frame = load(spark, "kinds")
    types = {field.name: field.dataType for field in frame.schema}
    assert types["wide"] == spark_types.DecimalType(38, 4)
    assert types["moment"] == spark_types.TimestampNTZType()
    assert types["zoned"] == spark_types.TimestampType()
    assert types["floats"] == spark_types.ArrayType(spark_types.FloatType())
    assert [field.name for field in frame.schema if not field.nullable] == ["id"]
    full, empty = frame.orderBy("id").collect()
    found = full.asDict()
    clock = _VALUES["clock"]
    micros = ((clock.hour * 60 + clock.minute) * 60 + clock.second) * 1_000_000 + clock.microsecond
    assert found.pop("clock") == micros
    assert found.pop("uuid") == UUID(int=7).bytes
    assert found.pop("zoned").astimezone(datetime.UTC) == _MOMENT
    expected = {name: value for name, value in _VALUES.items() if name in found}
    assert found == expected
    assert [value for value in empty if value is not None] == [2]


def test_filters_of_one_query_are_no_other_query_s(spark: SparkSession, book: Book) -> None:
    run(book, "CREATE TABLE herd_a (id BIGINT PRIMARY KEY, name TEXT, born DATE)")
    with book.sql(autocommit=True) as connection:
        connection.executemany(
            "INSERT INTO herd_a VALUES (?, ?, ?)",
            [(n, f"cow {n}" if n % 3 else None, "2020-01-01") for n in range(90)],
        )
    frame = load(spark, "herd_a")
    assert frame.count() == 90
    assert frame.filter("id < 10 AND name IS NOT NULL").count() == 6
    assert frame.count() == 90, "a frame is whole again after a filter"
    few = frame.filter("id < 3").union(frame.filter("id >= 88"))
    assert sorted(row.id for row in few.collect()) == [0, 1, 2, 88, 89]
    assert frame.filter("NOT (name = 'cow 1') AND id IN (1, 2, 3)").count() == 1
    assert frame.filter("name LIKE '%1' AND born >= DATE'2020-01-01'").count() == 6
    assert frame.filter("name <=> NULL").count() == 30
    plan = frame.filter("id = 5")._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan and "BatchScan herd" in plan, "the source has taken the filter"


def test_a_frame_is_one_position_in_all_its_actions_and_joins(
    spark: SparkSession, book: Book
) -> None:
    run(book, "CREATE TABLE moving (id BIGINT PRIMARY KEY, n INT)")
    run(book, *[f"INSERT INTO moving VALUES ({n}, 1)" for n in range(20)])
    frame = load(spark, "moving")
    run(book, "UPDATE moving SET n = 2", "DELETE FROM moving WHERE id >= 10")
    both = frame.alias("a").join(frame.alias("b"), "id").where("a.n = b.n AND a.n = 1")
    assert both.count() == 20
    assert frame.count() == 20
    assert load(spark, "moving").count() == 10
    assert load(spark, "moving", snapshot="newest").count() == 10


def test_columns_that_came_and_went_after_a_page_are_right(spark: SparkSession, book: Book) -> None:
    run(
        book,
        "CREATE TABLE changing (id BIGINT PRIMARY KEY, gone TEXT, kept INT)",
        "INSERT INTO changing VALUES (1, 'a', 10), (2, 'b', 20)",
        "CHECKPOINT",
        "ALTER TABLE changing DROP COLUMN gone",
        "ALTER TABLE changing ADD COLUMN more INT DEFAULT 7",
    )
    frame = load(spark, "changing")
    assert [tuple(row) for row in frame.orderBy("id").collect()] == [(1, 10, 7), (2, 20, 7)]
    assert frame.filter("more = 7").count() == 2 and frame.filter("more > 7").count() == 0
    assert [row.more for row in load(spark, "changing", columns="more").collect()] == [7, 7]
    where = load(spark, "changing", columns="id", where="kept = 20 AND more <> 8")
    assert [tuple(row) for row in where.collect()] == [(2,)]


def test_an_empty_table_is_no_rows(spark: SparkSession, book: Book) -> None:
    run(book, "CREATE TABLE empty (id BIGINT PRIMARY KEY)")
    frame = load(spark, "empty")
    assert frame.count() == 0
    assert frame.filter("id > 3").count() == 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"table": "nowhere"}, "there is no table nowhere in tablespace default"),
        ({}, "no table is named"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(
    spark: SparkSession, book: Book, options: dict[str, str], line: str
) -> None:
    run(book, "CREATE TABLE IF NOT EXISTS known (id BIGINT PRIMARY KEY)")
    with pytest.raises(PySparkException) as caught:
        spark.read.format("herd").options(**options).load()
    assert line in told(caught.value)
    found = herdbook.spark.cause(caught.value)
    assert isinstance(found, ProgrammingError) and found.message.startswith(line)


def test_every_read_beside_transfers_adds_up(spark: SparkSession, book: Book) -> None:
    run(book, "CREATE TABLE accounts (id BIGINT PRIMARY KEY, money BIGINT)")
    with book.sql(autocommit=True) as connection:
        for start in range(0, ROWS, 10_000):
            rows = [(n, 100) for n in range(start, min(start + 10_000, ROWS))]
            connection.executemany("INSERT INTO accounts VALUES (?, ?)", rows)
    ended, transfers = threading.Event(), 0

    def transfer() -> None:
        nonlocal transfers
        with book.sql() as connection:
            while not ended.is_set():
                low = transfers * 7 % ROWS
                high = (low + 1 + transfers % (ROWS - 1)) % ROWS
                for account, change in ((low, -1), (high, 1)):
                    connection.execute(
                        "UPDATE accounts SET money = money + ? WHERE id = ?", (change, account)
                    )
                connection.commit()
                transfers += 1

    writer = threading.Thread(target=transfer)
    writer.start()
    try:
        for _ in range(LOOKS):
            before = transfers
            frame = load(spark, "accounts")
            assert one(frame.selectExpr("sum(money)")) == 100 * ROWS
            joined = frame.alias("a").join(frame.alias("b"), "id")
            assert one(joined.selectExpr("sum(a.money - b.money)")) == 0
            assert frame.filter("money <> 100").count() > 0 or not before
    finally:
        ended.set()
        writer.join()
    assert transfers > LOOKS
