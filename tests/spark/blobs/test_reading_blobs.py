"""Spark reads the objects of a bucket: all of them, at one position, byte for byte."""

import datetime
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import herdbook
from blobit import Blobs, Bucket, BucketSettings
from herdbook.book import Book
from tests.spark.blobs.buckets import bucket_of
from tests.spark.running import RunningCluster

MIB = 2**20


def loaded(spark: SparkSession, bucket: Bucket | str, **options: Any) -> DataFrame:
    name = bucket if isinstance(bucket, str) else bucket.name
    reader = spark.read.format("blobit").option("bucket", name)
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load()


def contents(frame: DataFrame) -> dict[str, bytes]:
    rows = frame.select("name", "content").collect()
    found = {row.name: bytes(row.content) for row in rows}
    assert len(found) == len(rows), "no name comes twice"
    return found


def fail_of(frame: DataFrame) -> str:
    with pytest.raises(Exception) as caught:
        frame.collect()
    return str(caught.value)


@pytest.fixture(scope="module")
def blobs(book: Book) -> Blobs:
    return book.blobs


def test_every_object_comes_once_with_its_bytes_and_what_is_known_of_it(
    spark: SparkSession, blobs: Blobs
) -> None:
    settings = BucketSettings(ledger_bytes_max=MIB, compression="zstd")
    bucket = blobs.create_bucket("every", settings)
    wanted = {f"small/{number:03d}": b"%d" % number * 50 for number in range(300)}
    wanted |= {"empty": b"", "of/parts": bytes(range(256)) * 20_000, "z": b"zebu"}
    bucket.put_many((name, data) for name, data in wanted.items() if name != "z")
    bucket.put("z", wanted["z"], metadata={"kind": "zebu"})
    blobs.create_bucket("others").put("small/000", b"not this one")
    frame = loaded(spark, bucket)
    rows = {row.name: row for row in frame.collect()}
    assert {name: bytes(row.content) for name, row in rows.items()} == wanted
    assert frame.columns == ["id", "name", "size", "etag", "created", "metadata", "content"]
    row, info = rows["z"], bucket.stat("z")
    created = datetime.datetime.fromtimestamp(info.created_ms / 1000, datetime.UTC)
    assert (row.id, row.size, row.etag) == (str(info.object_id), 4, info.etag)
    assert row.metadata == {"kind": "zebu"}
    assert row.created.astimezone(datetime.UTC) == created


def test_a_frame_is_one_position_whatever_is_put_and_deleted_meanwhile(
    spark: SparkSession, blobs: Blobs
) -> None:
    bucket = blobs.create_bucket("position")
    bucket.put_many([("a", b"first"), ("b", b"stays")])
    frame = loaded(spark, bucket)
    bucket.put("a", b"second")
    bucket.delete("b")
    bucket.put("c", b"came later")
    blobs.collect("position")
    assert contents(frame) == {"a": b"first", "b": b"stays"}
    both = frame.alias("x").join(frame.alias("y"), "name").where("x.etag = y.etag")
    assert both.count() == 2
    assert contents(loaded(spark, bucket)) == {"a": b"second", "c": b"came later"}


def test_what_is_asked_of_names_is_found(spark: SparkSession, blobs: Blobs) -> None:
    bucket = blobs.create_bucket("filters")
    bucket.put_many((f"{number:02d}", b"x" * number) for number in range(40))
    names = loaded(spark, bucket, content="false")
    assert names.columns == ["id", "name", "size", "etag", "created", "metadata"]
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    asked = [
        (F.col("name").startswith("3") & (F.col("size") != 33), [30, 31, 32, *range(34, 40)]),
        ((F.col("created") < moment) & ((F.col("size") > 38) | (F.col("name") < "01")), [0, 39]),
    ]
    for condition, wanted in asked:
        assert sorted(row.size for row in names.where(condition).collect()) == wanted
    plan = names.where("name = '17'")._jdf.queryExecution().executedPlan().toString()
    assert " Filter " not in plan, "names are looked at where they are read"
    where = "name > '03' AND size <= 9 AND created > '2024-01-01 00:00:00+00:00'"
    assert loaded(spark, bucket, content="false", snapshot="newest", where=where).count() == 6


def test_big_objects_come_in_ranges_and_texts_in_lines(spark: SparkSession, blobs: Blobs) -> None:
    bucket = blobs.create_bucket("ranges")
    lines = [f"line {number} of many ü" for number in range(60_000)]
    text = "\n".join(lines).encode()
    bucket.put("big", text)
    bucket.put("small", b"one\r\ntwo\n")
    rows = loaded(spark, bucket, mode="ranges", range_bytes=MIB).collect()
    pieces = sorted((row.offset, bytes(row.content)) for row in rows if row.name == "big")
    assert b"".join(piece for _, piece in pieces) == text
    assert {len(piece) for _, piece in pieces[:-1]} == {MIB}
    frame = loaded(spark, bucket, mode="lines", snapshot="newest")
    rows = sorted(frame.drop("id").collect())
    assert [row.line for row in rows] == [*lines, "one", "two"]
    assert [row.offset for row in rows[-2:]] == [0, 5]
    assert rows[777].offset == text.index(b"line 777 ")


def test_rows_that_objects_hold_are_read_as_rows(spark: SparkSession, blobs: Blobs) -> None:
    bucket = blobs.create_bucket("rows")
    bucket.put("j/1.json", b'{"id": 1, "name": "elsa"}\n{"id": 2, "other": true}\n')
    bucket.put("j/2.json", b'{"id": 3, "name": "alma", "litres": 2.5}')
    schema = "id bigint, name string, litres double"
    frame = loaded(spark, bucket, prefix="j/", mode="json", schema=schema)
    wanted = [(1, "elsa", None), (2, None, None), (3, "alma", 2.5)]
    assert sorted(map(tuple, frame.collect())) == wanted
    table = pa.table({"id": pa.array(range(1_000), pa.int64()), "name": ["cow"] * 1_000})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=100)
    bucket.put("p/1.parquet", sink.getvalue())
    bucket.put("j/3.json", b'{"id": "none"}')
    parquet = loaded(spark, bucket, prefix="p/", mode="parquet")
    assert parquet.dtypes == [("id", "bigint"), ("name", "string")]
    assert parquet.agg(F.sum("id"), F.count("name")).collect()[0] == (499_500, 1_000)
    broken = loaded(spark, bucket, prefix="j/", mode="json", schema=schema, snapshot="newest")
    assert "object 'j/3.json'" in fail_of(broken)


def test_objects_are_read_by_their_ids_alone(spark: SparkSession, blobs: Blobs) -> None:
    ids = [str(blobs.put(b"%d" % number * 1_000)) for number in range(20)]
    frame = spark.read.format("blobit").option("ids", ",".join(ids)).load()
    found = {row.id: bytes(row.content) for row in frame.collect()}
    assert found == {name: b"%d" % number * 1_000 for number, name in enumerate(ids)}


def test_an_empty_bucket_is_no_rows(spark: SparkSession, blobs: Blobs) -> None:
    blobs.create_bucket("empty")
    assert loaded(spark, "empty").collect() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bucket": "nobody"}, "there is no bucket nobody"),
        ({"bucket": "wrong", "modes": "lines"}, 'format "blobit" has no option modes'),
        ({"bucket": "wrong", "snapshot": "999"}, "checkpoint 999 of tablespace blobs"),
        ({"bucket": "wrong", "mode": "json"}, "no object tells which"),
    ],
)
def test_what_cannot_be_read_is_named_in_a_line(
    spark: SparkSession, blobs: Blobs, options: dict[str, str], said: str
) -> None:
    blobs.create_bucket("wrong", exist_ok=True)
    with pytest.raises(Exception, match=said):
        spark.read.format("blobit").options(**options).load()


def test_bytes_that_are_gone_are_an_error_that_names_the_object(
    spark: SparkSession, book: Book
) -> None:
    bucket = book.blobs.create_bucket("gone")
    bucket.put("elsa", b"moo")
    frame = loaded(spark, bucket)
    ledger_id = bucket.stat("elsa").object_id.ledger_id
    client = book._book.ledgers
    book._loop.run(lambda: client.delete_ledger(ledger_id))
    said = fail_of(frame)
    assert "object 'elsa' of bucket gone" in said and "load again" in said


def test_a_cluster_is_read_from_its_bookies_while_one_of_them_is_away(
    spark: SparkSession, cluster: RunningCluster
) -> None:
    wanted = {f"{number:04d}": b"%d" % number * 2_000 for number in range(500)}
    with herdbook.connect(cluster.url) as there:
        bucket_of(there.blobs, "away").put_many(wanted.items())
        frame = loaded(spark, "away", url=cluster.url)
        cluster.bookies[0].kill()
        try:
            assert contents(frame) == wanted
        finally:
            cluster.bookies[0].start()
            cluster.until_registered(3)
