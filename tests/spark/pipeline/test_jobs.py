"""The jobs of the pipeline, on one session of Spark over one folder."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import herdbook
import herdbook.spark
from blobit.errors import NoSuchBucket
from engine.application import Application
from herdbook.book import Book
from pipeline.errors import FolderTaken, PipelineError, SourceInvalid
from pipeline.export import export_changes, export_table
from pipeline.job import Job
from pipeline.load import Target, load_files, load_rows
from pipeline.scrub import scrub_bucket, scrub_ledgers
from pipeline.tasks import tasks
from pipeline.usage import DAY_MS, usage


@pytest.fixture(scope="session")
def job(spark: SparkSession, book: Book) -> Job:
    """A job over the book of all tests."""
    return Job(spark, herdbook.spark.place_of(book), Application())


def test_usage_counts_objects_by_folder_and_age(job: Job, book: Book) -> None:
    bucket = book.blobs.create_bucket("usage")
    book.blobs.create_bucket("usage-empty")
    for name, size in (("a/x/1", 10), ("a/y/2", 20), ("b/3", 5), ("top", 1)):
        bucket.put(name, b"m" * size)
    now_ms = bucket.stat("top").created_ms + 3 * DAY_MS
    report = usage(job, now_ms, bucket="usage", depth=1)
    found = {row.prefix: (row.objects, row.bytes) for row in report.rows}
    assert found == {"a/": (2, 30), "b/": (1, 5), "": (1, 1)}
    assert [row.prefix for row in report.rows] == ["a/", "b/", ""]
    ages = {age.name: age.objects for age in report.rows[0].ages}
    assert ages == {"day": 0, "week": 2, "month": 0, "year": 0, "older": 0}
    every = usage(job, now_ms)
    assert {"usage": 4, "usage-empty": 0}.items() <= {
        row.bucket: row.objects for row in every.rows
    }.items()
    with pytest.raises(NoSuchBucket):
        usage(job, now_ms, bucket="nowhere")


def test_tasks_counts_what_the_log_tells(spark: SparkSession, tmp_path: Path) -> None:
    with herdbook.open(tmp_path / "own") as book:
        job = Job(spark, herdbook.spark.place_of(book))
        assert tasks(job).position is None
        handles = [book.tasks.submit("milk", {"cow": n}, tenant=f"farm {n % 2}") for n in range(5)]
        book.tasks.cancel([int(handles[0])])
        book.tasks.delete([int(handles[0])])
        report = tasks(job)
    rows = {(row.tenant, row.type): row for row in report.rows}
    assert rows["farm 0", "milk"].states == {"waiting": 2, "cancelled": 1}
    assert rows["farm 0", "milk"].removed == 1
    assert rows["farm 1", "milk"].states == {"waiting": 2}
    assert report.since_ms == 0 and report.tasks == 5


def test_scrub_reads_every_replica_and_every_object(job: Job, book: Book) -> None:
    bucket = book.blobs.create_bucket("scrubbed")
    sizes = [0, 1, 100, 70_000, 3_000_000]
    for size in sizes:
        bucket.put(f"{size}", bytes(size))
    report = scrub_bucket(job, "scrubbed")
    assert report.objects is not None and report.sound
    assert (report.objects.subjects, report.objects.bytes) == (len(sizes), sum(sizes))
    assert report.ledgers.subjects >= 1 and report.ledgers.bytes >= sum(sizes)
    everything = scrub_ledgers(job)
    assert everything.sound and everything.ledgers.subjects > report.ledgers.subjects
    assert scrub_ledgers(job, []).ledgers.subjects == 0


def test_a_table_is_exported_whole_into_partitions(job: Job, book: Book, tmp_path: Path) -> None:
    with book.herd.connect() as connection:
        connection.execute("CREATE TABLE exported (id BIGINT PRIMARY KEY, breed VARCHAR)")
        connection.execute("INSERT INTO exported VALUES (1, 'jersey'), (2, 'angus'), (3, 'jersey')")
        connection.commit()
    to = tmp_path / "cows"
    report = export_table(job, "exported", str(to), partition_by=["breed"])
    assert report.rows == 3
    found = {(row.id, row.breed) for row in job.spark.read.parquet(str(to)).collect()}
    assert found == {(1, "jersey"), (2, "angus"), (3, "jersey")}
    assert sorted(path.name for path in to.glob("breed=*")) == ["breed=angus", "breed=jersey"]
    with pytest.raises(FolderTaken):
        export_table(job, "exported", str(to))
    again = export_table(job, "exported", str(to), where="id > 1", overwrite=True)
    assert again.rows == 2 and job.spark.read.parquet(str(to)).count() == 2
    assert [path.name for path in tmp_path.iterdir()] == ["cows"]


def test_exports_of_changes_follow_each_other(job: Job, book: Book, tmp_path: Path) -> None:
    to = str(tmp_path / "changes")
    with book.herd.connect() as connection:
        connection.execute("CREATE TABLE followed (id BIGINT PRIMARY KEY)")
        connection.execute("INSERT INTO followed VALUES (1), (2)")
        connection.commit()
        first = export_changes(job, to, tables=["followed"])
        connection.execute("INSERT INTO followed VALUES (3)")
        connection.commit()
    second = export_changes(job, to, tables=["followed"])
    assert (first.rows, second.rows) == (2, 1) and second.start == first.end
    found = job.spark.read.parquet(to).select("id", "export").orderBy("id").collect()
    assert [tuple(row) for row in found] == [(1, 1), (2, 1), (3, 2)]
    assert export_changes(job, to, tables=["followed"]).folder == ""
    with pytest.raises(PipelineError, match="goes on at"):
        export_changes(job, to, tables=["followed"], since="earliest")
    with pytest.raises(PipelineError, match="name another folder"):
        export_changes(job, to, tables=["other"])


def test_files_are_loaded_once_with_a_row_each(job: Job, book: Book, tmp_path: Path) -> None:
    bucket = book.blobs.create_bucket("loaded")
    contents = {"a b%20.txt": b"one", "deep/er/two": b"two2", "empty": b""}
    for name, content in contents.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "source" / ".hidden").write_bytes(b"no")
    target = Target("loaded", "in/", "loads")
    report = load_files(job, str(tmp_path / "source"), target)
    assert (report.objects, report.bytes, report.rows, report.hidden) == (3, 7, 3, 1)
    assert {name: bucket.get(f"in/{name}") for name in contents} == contents
    with book.herd.connect() as connection:
        connection.execute("UPDATE loads SET state = 'done' WHERE name = 'in/empty'")
        connection.commit()
        again = load_files(job, str(tmp_path / "source"), target)
        assert again.key == report.key and again.rows == 0
        assert again.repeated and not report.repeated
        rows = connection.execute("SELECT name, object_id, size, etag, state FROM loads").fetchall()
    info = bucket.stat("in/deep/er/two")
    assert ("in/deep/er/two", str(info.object_id), 4, info.etag, "new") in rows
    assert {row[0]: row[4] for row in rows}["in/empty"] == "done"


def test_rows_of_parquet_are_loaded_as_objects(job: Job, book: Book, tmp_path: Path) -> None:
    bucket = book.blobs.create_bucket("parquet-rows")
    source = str(tmp_path / "rows.parquet")
    job.spark.createDataFrame([("elsa", 7), ("berta", 9)], "cow string, age int").write.parquet(
        source
    )
    report = load_rows(job, source, Target("parquet-rows"), name_column="cow")
    assert report.objects == 2 and bucket.get("elsa") == b'{"cow":"elsa","age":7}'
    with pytest.raises(SourceInvalid, match="no column name"):
        load_rows(job, source, Target("parquet-rows"))
    with pytest.raises(SourceInvalid, match="is not there"):
        load_rows(job, source + "x", Target("parquet-rows"), name_column="cow")
    with pytest.raises(SourceInvalid, match="names 2 rows"):
        job.spark.createDataFrame([("elsa", 1)], "cow string, age int").write.mode(
            "append"
        ).parquet(source)
        load_rows(job, source, Target("parquet-rows"), name_column="cow")
