"""DataFrames and streams written into tables by a real Spark: all of it once, or nothing."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery

from engine.place import Place
from herd.place import held_herd
from herdbook.book import Book
from tests.spark.running import RunningCluster, until

_STREAM_S = 120


def sql(book: Book, *statements: str) -> list[tuple[Any, ...]]:
    """Statements, each committed; the rows of the last one."""
    connection = book.sql(autocommit=True)
    try:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []
    finally:
        connection.close()


def staged_in(book: Book) -> list[str]:
    """Ledgers of staged rows; marks of jobs that were given up hold none."""
    held = held_herd(Place(url=str(book.url)))
    names = held.run(lambda: held.ledgers.store.children("/herd/staging/default"))
    return [name for name in names if "!" not in name]


def write(frame: DataFrame, table: str, mode: str = "append", **options: str) -> None:
    frame.write.format("herd").option("table", table).options(**options).mode(mode).save()


def cows(spark: SparkSession, first: int, end: int) -> DataFrame:
    """Rows in two tasks."""
    return spark.range(first, end, 1, 2).selectExpr("id", "concat('cow ', id) AS name")


def test_a_frame_is_appended_upserted_and_put_in_place_of_all(
    spark: SparkSession, book: Book
) -> None:
    sql(book, "CREATE TABLE w_modes (id BIGINT PRIMARY KEY, name VARCHAR, at INTEGER DEFAULT 7)")
    write(cows(spark, 0, 1_000), "w_modes")
    write(cows(spark, 500, 1_500).selectExpr("id", "'new' AS name"), "w_modes", upsert="true")
    found = sql(book, "SELECT name = 'new', count(*), min(at) FROM w_modes GROUP BY 1 ORDER BY 1")
    assert found == [(False, 500, 7), (True, 1_000, 7)]
    write(cows(spark, 7, 9), "w_modes", "overwrite")
    assert sql(book, "SELECT id FROM w_modes ORDER BY id") == [(7,), (8,)]
    assert staged_in(book) == []


def test_what_is_read_can_be_written_as_it_is(spark: SparkSession, book: Book) -> None:
    columns = (
        "id BIGINT PRIMARY KEY, a BOOLEAN, b TINYINT, c REAL, d DOUBLE, e DECIMAL(10,2), "
        "f DECIMAL(38,1), g VARCHAR, h BLOB, i DATE, j TIME, k TIMESTAMP, l TIMESTAMPTZ, m UUID, "
        "n JSON, o FLOAT[]"
    )
    row = (
        "(1, TRUE, -8, 1.5, 0.1, -12.34, 123456789012345678901234567.5, 'Ü', NULL, "
        "'2026-11-22', '12:30:01.5', '2026-11-22 10:00:00.25', '2026-11-22 10:00:00+02', "
        "'6f9619ff-8b86-d011-b42d-00c04fc964ff', '[1]', [1.5, 2.5])"
    )
    sql(
        book,
        *(f"CREATE TABLE w_{name} ({columns})" for name in ("from", "into")),
        f"INSERT INTO w_from VALUES {row}",
        "INSERT INTO w_from (id) VALUES (2)",
    )
    book.herd.table("w_from").update(1, {"h": b"\x00\xff"})
    write(spark.read.format("herd").option("table", "w_from").load(), "w_into")
    query = "SELECT * FROM w_{} ORDER BY id"
    assert sql(book, query.format("into")) == sql(book, query.format("from"))


def test_a_task_that_fails_leaves_no_row_and_no_ledger(spark: SparkSession, book: Book) -> None:
    sql(book, "CREATE TABLE w_failing (id BIGINT PRIMARY KEY, name VARCHAR(9))")
    with pytest.raises(PySparkException, match=r"w_failing\.name: 10 characters do not fit"):
        write(cows(spark, 99_000, 100_001), "w_failing")
    assert sql(book, "SELECT count(*) FROM w_failing") == [(0,)]
    assert staged_in(book) == []


def test_a_task_that_is_tried_again_writes_its_rows_once(spark: SparkSession, book: Book) -> None:
    sql(book, "CREATE TABLE w_retried (id BIGINT PRIMARY KEY, name VARCHAR)")

    def failing_at_first(number: int) -> int:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and number % 50 == 49:
            raise RuntimeError("the first try of each task fails at its end")
        return number

    once = udf(failing_at_first, "BIGINT", useArrow=False)
    frame = cows(spark, 0, 100).select(once("id").alias("id"), "name")
    write(frame, "w_retried")
    assert sql(book, "SELECT count(*), sum(id) FROM w_retried") == [(100, 4_950)]
    assert staged_in(book) == []


def test_what_is_wrong_is_told_before_any_task_and_names_it(
    spark: SparkSession, book: Book
) -> None:
    sql(book, "CREATE TABLE w_wrong (id BIGINT PRIMARY KEY, name VARCHAR)")
    sql(book, "CREATE TABLE w_log (name VARCHAR)")
    frame = cows(spark, 0, 10)
    numbers = frame.select("name")
    wrong: tuple[tuple[DataFrame, dict[str, str], str], ...] = (
        (frame.selectExpr("id", "id AS name"), {}, r"w_wrong\.name is VARCHAR, and is given int64"),
        (frame, {"table": "w_nowhere"}, "no table w_nowhere"),
        (frame, {"upsrt": "true"}, "no option upsrt"),
        (numbers, {"table": "w_log", "upsert": "true"}, "have no primary key"),
    )
    for given, options, said in wrong:
        with pytest.raises(PySparkException, match=said):
            write(given, **{"table": "w_wrong", **options})
    assert sql(book, "SELECT count(*) FROM w_wrong") == [(0,)]


def test_a_write_that_has_a_name_is_done_once(spark: SparkSession, book: Book) -> None:
    for name in ("w_named", "w_other"):
        sql(book, f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, name VARCHAR)")
    for name in ("w_named", "w_named", "w_other"):
        write(cows(spark, 0, 10), name, idempotency_key="load of monday")
    assert sql(book, "SELECT count(*) FROM w_other") == [(10,)]
    write(cows(spark, 10, 12), "w_named", idempotency_key="load of tuesday")
    assert sql(book, "SELECT count(*) FROM w_named") == [(12,)]
    with pytest.raises(PySparkException, match="w_named has a row with the primary key"):
        write(cows(spark, 5, 20), "w_named")
    assert staged_in(book) == []


def streamed(spark: SparkSession, folder: Path, table: str, **options: str) -> StreamingQuery:
    """All files that have come since, each a batch."""
    source = spark.readStream.schema("id BIGINT, name STRING").option("maxFilesPerTrigger", "1")
    query = (
        source.json(str(folder / "files"))
        .writeStream.format("herd")
        .options(table=table, checkpointLocation=str(folder / "checkpoint"), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(_STREAM_S)
    return query


def test_a_stream_that_is_started_again_loses_nothing_and_writes_nothing_twice(
    spark: SparkSession, book: Book, tmp_path: Path
) -> None:
    sql(book, "CREATE TABLE w_stream (id BIGINT PRIMARY KEY, name VARCHAR)")
    (tmp_path / "files").mkdir()

    def come(number: int) -> None:
        rows = [{"id": 10 * number + place, "name": "x"} for place in range(10)]
        text = "\n".join(map(json.dumps, rows))
        (tmp_path / "files" / f"{number}.json").write_text(text)

    for number in range(3):
        come(number)
    assert streamed(spark, tmp_path, "w_stream").exception() is None
    # It died when the last batch was in the table, and Spark had not yet noted that.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    commits[-1].unlink()
    for side in (tmp_path / "checkpoint" / "commits").glob(f".{commits[-1].name}.crc"):
        side.unlink()
    come(3)
    assert streamed(spark, tmp_path, "w_stream").exception() is None
    assert sql(book, "SELECT count(*), count(DISTINCT id) FROM w_stream") == [(40, 40)]
    assert staged_in(book) == []


def test_a_node_that_is_killed_while_it_writes_leaves_all_or_nothing(
    spark: SparkSession, cluster: RunningCluster
) -> None:
    held = held_herd(Place(url=cluster.url))
    rows = 250_000

    async def execute(text: str) -> list[tuple[Any, ...]]:
        session = await held.herd.session("default")
        try:
            return list((await session.execute(text)).rows)
        finally:
            await session.close()

    def count(folder: str) -> int:
        return len(held.run(lambda: held.ledgers.store.children(folder)))

    until("a node is there", lambda: count("/herd/nodes") == 1)
    held.run(lambda: held.herd.make("default"))
    held.run(lambda: execute("CREATE TABLE w_killed (id BIGINT PRIMARY KEY, name VARCHAR)"))

    def kill_half_way() -> None:
        # Two tasks and the order: the node is at it.
        until("all is staged", lambda: count("/herd/staging/default") == 3)
        cluster.node.kill()
        cluster.node.start()

    with ThreadPoolExecutor(1) as others:
        killing = others.submit(kill_half_way)
        write(cows(spark, 0, rows), "w_killed", url=cluster.url)
        # A write that was quicker than the look was not killed.
        killing.result()
    found = held.run(lambda: execute("SELECT count(*), sum(id) FROM w_killed"))
    assert found == [(rows, rows * (rows - 1) // 2)]
    assert count("/herd/staging/default") == 0
