"""Committed changes, ledgers and logs as Spark is told of them."""

import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DecimalType, LongType, StructType, TimestampNTZType

import herdbook
from engine.ledger.writer import LedgerWriter
from engine.place import held_client
from herd.connection import Connection
from herdbook.book import Book
from herdbook.spark import place_of
from tests.spark.running import RunningCluster
from tests.spark.streams.killing import copying, grown

FULL = os.environ.get("HERDBOOK_ACCEPTANCE") == "full"
KILLS, CHANGES = (10, 100_000) if FULL else (2, 4_000)


def committed(book: Book, *statements: str) -> None:
    with book.sql() as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def changes_of(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("herd-changes").options(**options).load()


def test_a_batch_of_changes_has_exact_types_and_is_one_range_in_all_its_actions(
    spark: SparkSession, book: Book
) -> None:
    committed(
        book,
        "CREATE TABLE sold (id BIGINT PRIMARY KEY, price DECIMAL(10,2), at TIMESTAMP)"
        " WITH (changes = 'full')",
        "INSERT INTO sold VALUES (1, 2.50, '2026-01-02 03:04:05'), (2, NULL, NULL)",
    )
    committed(book, "UPDATE sold SET price = 3 WHERE id = 1")
    committed(book, "DELETE FROM sold WHERE id = 2")
    found = changes_of(spark, table="sold", before="true")
    kinds = {field.name: field.dataType for field in found.schema}
    assert kinds["id"] == LongType() and kinds["price"] == DecimalType(10, 2)
    assert kinds["at"] == TimestampNTZType() and isinstance(kinds["_before"], StructType)
    committed(book, "INSERT INTO sold VALUES (3, NULL, NULL)")
    rows = found.orderBy("_position", "_sequence").collect()
    assert [(row["_kind"], row["id"], row["price"]) for row in rows] == [
        ("insert", 1, Decimal("2.50")),
        ("insert", 2, None),
        ("update", 1, Decimal("3.00")),
        ("delete", 2, None),
    ]
    assert rows[2]["_before"]["price"] == Decimal("2.50")
    place = rows[2]["_position"]
    later = changes_of(spark, table="sold", start=f"{place.ledger}/{place.entry}")
    assert sorted(row["id"] for row in later.select("id").collect()) == [2, 3]


def test_all_tables_are_told_as_json(spark: SparkSession, book: Book) -> None:
    committed(book, "CREATE TABLESPACE aviary")
    with book.sql("aviary") as birds:
        birds.execute("CREATE TABLE ducks (id INT PRIMARY KEY, name TEXT)")
        birds.execute("CREATE TABLE geese (id INT PRIMARY KEY, weight DOUBLE)")
        birds.execute("INSERT INTO ducks VALUES (1, 'donald')")
        birds.execute("INSERT INTO geese VALUES (1, 2.5)")
        birds.commit()
    found = changes_of(spark, tablespace="aviary").where("_kind != 'define'").collect()
    assert {(row["_table"], row["key"], row["row"]) for row in found} == {
        ("ducks", '{"id":1}', '{"id":1,"name":"donald"}'),
        ("geese", '{"id":1}', '{"id":1,"weight":2.5}'),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "unicorns"}, "there is no table unicorns in tablespace default"),
        ({"tabel": "cows"}, 'format "herd-changes" has no option tabel'),
        ({"start": "soon"}, "'soon' is no position in a log"),
    ],
)
def test_the_driver_s_error_names_what_is_wrong_with_a_request(
    spark: SparkSession, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        changes_of(spark, **options)
    assert any(message in line for line in str(raised.value).splitlines())


def test_a_stream_ends_with_the_name_of_the_column_that_changed_and_goes_on_when_loaded_again(
    spark: SparkSession, book: Book, tmp_path: Path
) -> None:
    committed(book, "CREATE TABLE herds (id BIGINT PRIMARY KEY)", "INSERT INTO herds VALUES (1)")
    first = spark.readStream.format("herd-changes").option("table", "herds").load()
    committed(book, "ALTER TABLE herds ADD COLUMN name TEXT")
    committed(book, "INSERT INTO herds VALUES (2, 'north')")
    told: list[Any] = []

    def run(stream: DataFrame) -> None:
        def take(batch: DataFrame, number: int) -> None:
            told.extend(row.asDict() for row in batch.select("id", *batch.columns[5:]).collect())

        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(PySparkException, match=r"table herds: at .* column name was added"):
        run(first)
    assert told == [{"id": 1}]
    run(spark.readStream.format("herd-changes").option("table", "herds").load())
    assert told == [{"id": 1}, {"id": 2, "name": "north"}]


def test_changes_of_a_cluster_are_read_while_a_bookie_is_away(
    spark: SparkSession, cluster: RunningCluster
) -> None:
    with herdbook.connect(cluster.url) as opened:
        opened.herd.create_tablespace("afar")
        with opened.sql("afar") as connection:
            connection.execute("CREATE TABLE remote (id BIGINT PRIMARY KEY)")
            for number in range(20):
                connection.execute("INSERT INTO remote VALUES (?)", (number,))
                connection.commit()
    cluster.bookies[1].kill()
    try:
        found = changes_of(spark, url=cluster.url, tablespace="afar", table="remote")
        ids = [row["id"] for row in found.orderBy("_position").select("id").collect()]
    finally:
        cluster.bookies[1].start()
        cluster.until_registered(3)
    assert ids == list(range(20))


def written(book: Book, *bodies: bytes) -> LedgerWriter:
    """A ledger that stays open."""
    held = held_client(place_of(book))

    writer = held.run(held.client.create_ledger)
    append(book, writer, *bodies)
    return writer


def append(book: Book, writer: LedgerWriter, *bodies: bytes) -> None:
    """Append and wait for all."""

    async def write() -> None:
        for body in bodies:
            await writer.append(body)

    held_client(place_of(book)).run(write)


def test_a_ledger_is_a_batch_of_what_is_confirmed_and_a_stream_of_what_comes(
    spark: SparkSession, book: Book, tmp_path: Path
) -> None:
    writer = written(book, b"moo", b"", b"\x00\xff")
    options = {"ledger": f"{writer.ledger_id}"}
    found = spark.read.format("ledger").options(**options).load()
    stream = spark.readStream.format("ledger").options(**options, maxRows="2").load()
    append(book, writer, b"later")
    told = found.orderBy("entry").collect()
    assert [(row["ledger"], row["entry"], bytes(row["body"])) for row in told] == [
        (writer.ledger_id, place, body) for place, body in enumerate([b"moo", b"", b"\x00\xff"])
    ]
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(tmp_path / "copy"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [progress["numInputRows"] for progress in query.recentProgress] == [2, 2]
    copy = spark.read.parquet(str(tmp_path / "copy")).orderBy("entry").collect()
    assert [bytes(row["body"]) for row in copy] == [b"moo", b"", b"\x00\xff", b"later"]


def test_a_log_is_read_by_its_name(spark: SparkSession, book: Book) -> None:
    committed(book, "CREATE TABLE logged (id BIGINT PRIMARY KEY)")
    found = spark.read.format("ledger").option("log", "herd/default").load()
    bodies = [bytes(row["body"]) for row in found.select("body").collect()]
    assert sum(b"logged" in body for body in bodies) == 1


def test_a_ledger_that_is_deleted_while_it_is_read_is_an_error(
    spark: SparkSession, book: Book
) -> None:
    writer = written(book, b"moo")
    found = spark.read.format("ledger").option("ledger", f"{writer.ledger_id}").load()
    held = held_client(place_of(book))
    held.run(lambda: held.client.delete_ledger(writer.ledger_id))
    with pytest.raises(PySparkException, match=f"NoSuchLedger: .*{writer.ledger_id}"):
        found.collect()
    with pytest.raises(PySparkException, match=r"InvalidRequest: say which: "):
        spark.read.format("ledger").load()


class Writer:
    """Commits changes of a table, and remembers each in order."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._rng = random.Random(8)
        self.told: list[tuple[str, int, str | None]] = []

    def commit(self, changes: int) -> None:
        """Commit some more, a few in a transaction."""
        wanted = len(self.told) + changes
        with self._book.sql() as connection:
            while len(self.told) < wanted:
                numbers = self._rng.sample(range(500), self._rng.randint(1, 60))
                here = [self._changed(connection, number) for number in numbers]
                connection.commit()
                self.told += filter(None, here)

    def _changed(self, connection: Connection, number: int) -> tuple[str, int, str | None] | None:
        if self._rng.random() < 0.2:
            gone = connection.execute("DELETE FROM copied WHERE id = ?", (number,))
            return ("delete", number, None) if gone.rowcount else None
        value = f"{self._rng.random()}"
        connection.execute("UPSERT INTO copied VALUES (?, ?)", (number, value))
        return "put", number, value


def test_a_copy_that_is_killed_again_and_again_has_each_change_once(
    spark: SparkSession, book: Book, tmp_path: Path
) -> None:
    committed(book, "CREATE TABLE copied (id BIGINT PRIMARY KEY, name TEXT)")
    writer = Writer(book)
    # A batch was planned; its files are in the copy; it was told to the source.
    moments = [tmp_path / "checkpoint/offsets", tmp_path / "copy/_spark_metadata"]
    moments.append(tmp_path / "checkpoint/commits")
    for kill in range(KILLS):
        moment = moments[kill % len(moments)]
        files = len(list(moment.glob("[0-9]*")))
        with copying(book, tmp_path) as program:
            writer.commit(CHANGES // (KILLS + 1))
            grown(moment, program, files)
    writer.commit(CHANGES - len(writer.told))
    with copying(book, tmp_path, "finish") as last:
        assert last.wait(1_200) == 0, (tmp_path / "log").read_text()[-5_000:]
    rows = spark.read.parquet(str(tmp_path / "copy")).orderBy("_position", "_sequence").collect()
    places = {(row["_position"], row["_sequence"]) for row in rows}
    assert len(places) == len(rows) >= CHANGES
    assert [(row["_kind"], row["id"], row["name"]) for row in rows] == writer.told
