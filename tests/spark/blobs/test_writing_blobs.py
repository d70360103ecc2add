"""Spark puts rows into a bucket as objects: all of a job, once, or nothing."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import herdbook
from blobit import Blobs, Bucket
from herdbook.book import Book
from tests.spark.blobs.buckets import bucket_of
from tests.spark.running import RunningCluster


@pytest.fixture(scope="module")
def blobs(book: Book) -> Blobs:
    return book.blobs


def put(frame: DataFrame, bucket: Bucket | str, **options: Any) -> None:
    name = bucket if isinstance(bucket, str) else bucket.name
    frame.write.format("blobit").options(bucket=name, **options).mode("append").save()


def objects(spark: SparkSession, count: int, prefix: str = "") -> DataFrame:
    """So many objects, each of its number repeated, in two partitions."""
    content = F.expr("cast(repeat(cast(id as string), 100) as binary)")
    name = F.format_string(f"{prefix}%05d", F.col("id"))
    return spark.range(0, count, 1, 2).select(name.alias("name"), content.alias("content"))


def expected(count: int, prefix: str = "") -> dict[str, bytes]:
    return {f"{prefix}{number:05d}": b"%d" % number * 100 for number in range(count)}


def held_by_jobs(blobs: Blobs) -> list[str]:
    """What holds ledgers for tasks of jobs, seen by nobody; marks of jobs hold none."""

    async def look() -> list[str]:
        rows = (await blobs._blobs.rows("blobs")).scan("upload_parts")
        return [row["upload_id"] async for row in rows]

    return blobs._run(look)


def test_a_row_becomes_an_object_with_all_that_it_says(spark: SparkSession, blobs: Blobs) -> None:
    bucket = blobs.create_bucket("written")
    kinds = F.map_from_arrays(F.array(F.lit("kind")), F.array("name"))
    frame = objects(spark, 3_000).withColumns({"content_type": F.lit("x/y"), "metadata": kinds})
    put(frame, bucket)
    assert {info.name: bucket.get(info.name) for info in bucket.scan("000")} == {
        name: data for name, data in expected(3_000).items() if name.startswith("000")
    }
    info = bucket.stat("02999")
    assert (info.content_type, info.metadata) == ("x/y", {"kind": "02999"})
    assert bucket.usage().objects == 3_000 and held_by_jobs(blobs) == []
    big = [("big", bytes(5_000_000)), ("none", b"")]
    put(spark.createDataFrame(big, "name string, content binary"), bucket)
    assert bucket.get("big") == bytes(5_000_000) and bucket.get("none") == b""


def test_a_write_with_a_key_counts_once(spark: SparkSession, blobs: Blobs) -> None:
    bucket = blobs.create_bucket("keyed")
    put(objects(spark, 10), bucket, idempotency_key="load of today")
    etags = {info.name: info.etag for info in bucket.scan()}
    bucket.put("00001", b"changed since")
    put(objects(spark, 10), bucket, idempotency_key="load of today")
    assert bucket.get("00001") == b"changed since"
    assert {info.etag for info in bucket.scan() if info.name != "00001"} < set(etags.values())
    put(objects(spark, 10), bucket, idempotency_key="load of tomorrow")
    assert bucket.get("00001") == expected(10)["00001"]


def failing(rows: Iterable[Row], *, always: bool) -> Iterator[Row]:
    context = TaskContext.get()
    assert context is not None
    for number, row in enumerate(rows):
        if context.partitionId() == 1 and number == 20 and (always or not context.attemptNumber()):
            raise RuntimeError("a task fails in the midst")
        yield row


def test_a_task_that_is_tried_again_writes_nothing_twice(spark: SparkSession, blobs: Blobs) -> None:
    bucket = blobs.create_bucket("retried")
    frame = objects(spark, 100)
    rows = frame.rdd.mapPartitions(lambda rows: failing(rows, always=False))
    put(spark.createDataFrame(rows, frame.schema), bucket)
    assert {info.name: bucket.get(info.name) for info in bucket.scan()} == expected(100)
    assert held_by_jobs(blobs) == []


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, blobs: Blobs) -> None:
    bucket = blobs.create_bucket("failed")
    frame = objects(spark, 100)
    rows = frame.rdd.mapPartitions(lambda rows: failing(rows, always=True))
    with pytest.raises(Exception, match="a task fails in the midst"):
        put(spark.createDataFrame(rows, frame.schema), bucket)
    assert list(bucket.scan()) == [] and held_by_jobs(blobs) == []


def test_a_stream_that_is_started_again_puts_each_batch_once(
    spark: SparkSession, blobs: Blobs, tmp_path: Path
) -> None:
    bucket = blobs.create_bucket("streamed")
    source, mark = tmp_path / "source", str(tmp_path / "mark")
    for batch in range(2):
        objects(spark, 50, f"{batch}/").write.mode("append").parquet(str(source))
        stream = spark.readStream.schema("name string, content binary").parquet(str(source))
        query = (
            stream.writeStream.format("blobit")
            .option("checkpointLocation", mark)
            .trigger(availableNow=True)
            .start(bucket.name)
        )
        assert query.awaitTermination(120)
        newest = bucket.stat(f"{batch}/00001")
    # What was written and not yet noted is written again after a restart.
    for note in Path(mark, "commits").glob("*1*"):
        note.unlink()
    bucket.delete("0/00000")
    again = (
        spark.readStream.schema("name string, content binary")
        .parquet(str(source))
        .writeStream.format("blobit")
        .option("checkpointLocation", mark)
        .trigger(availableNow=True)
        .start(bucket.name)
    )
    assert again.awaitTermination(120)
    wanted = expected(50, "0/") | expected(50, "1/")
    del wanted["0/00000"]
    assert {info.name: bucket.get(info.name) for info in bucket.scan()} == wanted
    assert bucket.stat("1/00001") == newest


def test_what_cannot_be_written_is_named_in_a_line(spark: SparkSession, blobs: Blobs) -> None:
    bucket = blobs.create_bucket("refused")
    good = objects(spark, 2)
    for frame, options, said in (
        (good, {"bucket": "nobody"}, "there is no bucket nobody"),
        (good.drop("content"), {}, "an object needs a column content"),
        (good.withColumn("name", F.lit(None).cast("string")), {}, "a row has NULL as name"),
    ):
        with pytest.raises(Exception, match=said):
            put(frame, **{"bucket": "refused", **options})
    assert list(bucket.scan()) == [] and held_by_jobs(blobs) == []


def test_objects_are_written_into_a_cluster(spark: SparkSession, cluster: RunningCluster) -> None:
    with herdbook.connect(cluster.url) as there:
        bucket = bucket_of(there.blobs, "written")
        put(objects(spark, 200), bucket, url=cluster.url)
        assert {info.name: bucket.get(info.name) for info in bucket.scan()} == expected(200)
