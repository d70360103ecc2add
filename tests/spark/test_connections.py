"""Tasks of Spark talk to bookies and nodes; the metadata store hears of none of them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from pyspark.sql import SparkSession

import herdbook
from engine.application import Renewable
from engine.errors import MetadataUnavailable
from engine.metadata.bookies import Bookies
from engine.metadata.cluster_url import parse_url
from engine.place import Place, held_client
from herd.reading_log import log_of
from herdbook.spark import drop_pins
from pipeline.job import Job
from pipeline.scrub import scrub_ledgers
from tests.spark.blobs.buckets import bucket_of
from tests.spark.connections import ports_of, task_processes
from tests.spark.running import RunningCluster

SPACE: Final = "connected"
ROWS: Final = 40
Work = Callable[[SparkSession, str], object]


@pytest.fixture(scope="module")
def url(cluster: RunningCluster) -> Iterator[str]:
    """A cluster with rows, objects and a ledger."""
    with herdbook.connect(cluster.url) as there:
        bucket = bucket_of(there.blobs, SPACE)
        for number in range(3):
            bucket.put(f"object {number}", b"moo" * number)
        there.herd.create_tablespace(SPACE)
        with there.sql(SPACE, autocommit=True) as connection:
            connection.execute("CREATE TABLE cows (id BIGINT PRIMARY KEY, name VARCHAR(9))")
            for table in ("written", "copied"):
                connection.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, name VARCHAR(9))")
            connection.executemany(
                "INSERT INTO cows VALUES (?, ?)", [(id, f"cow {id}") for id in range(ROWS)]
            )
    yield cluster.url


def read(spark: SparkSession, form: str, url: str, **options: str) -> int:
    """How many rows a source has; tasks read them."""
    return len(spark.read.format(form).options(url=url, **options).load().collect())


def write(spark: SparkSession, form: str, url: str, columns: list[str], **options: str) -> None:
    """Two tasks stage rows of two columns."""
    frame = spark.range(ROWS, numPartitions=2).selectExpr(*columns)
    frame.write.format(form).options(url=url, **options).mode("append").save()


def read_table(spark: SparkSession, url: str) -> None:
    assert read(spark, "herd", url, tablespace=SPACE, table="cows") == ROWS


def read_objects(spark: SparkSession, url: str) -> None:
    assert read(spark, "blobit", url, bucket=SPACE, prefix="object") == 3


def read_changes(spark: SparkSession, url: str) -> None:
    assert read(spark, "herd-changes", url, tablespace=SPACE, table="cows") == ROWS


def read_ledger(spark: SparkSession, url: str) -> None:
    assert read(spark, "ledger", url, log=log_of(SPACE)) > 0


def write_table(spark: SparkSession, url: str) -> None:
    columns = ["id", "concat('cow ', id) AS name"]
    write(spark, "herd", url, columns, tablespace=SPACE, table="written")
    assert read(spark, "herd", url, tablespace=SPACE, table="written") == ROWS


def write_objects(spark: SparkSession, url: str) -> None:
    columns = ["concat('new ', id) AS name", "CAST('moo' AS BINARY) AS content"]
    write(spark, "blobit", url, columns, bucket=SPACE)
    assert read(spark, "blobit", url, bucket=SPACE, prefix="new") == ROWS


def stream(spark: SparkSession, url: str, checkpoint: Path) -> None:
    changes = (
        spark.readStream.format("herd-changes")
        .options(url=url, tablespace=SPACE, table="cows")
        .load()
        .select("id", "name")
    )
    query = (
        changes.writeStream.format("herd")
        .options(url=url, tablespace=SPACE, table="copied", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60) and query.exception() is None
    assert read(spark, "herd", url, tablespace=SPACE, table="copied") == ROWS


def scrub(spark: SparkSession, url: str) -> None:
    job = Job(spark, Place(url=url))
    assert scrub_ledgers(job).ledgers.subjects > 0


@pytest.mark.parametrize(
    "work",
    [read_table, read_objects, read_changes, read_ledger, write_table, write_objects, scrub],
    ids=lambda work: work.__name__,
)
def test_no_task_has_a_connection_to_zookeeper(spark: SparkSession, url: str, work: Work) -> None:
    work(spark, url)
    assert tasks_at_zookeeper(url) == []


def test_no_task_of_a_stream_has_one(spark: SparkSession, url: str, tmp_path: Path) -> None:
    stream(spark, url, tmp_path)
    assert tasks_at_zookeeper(url) == []


def tasks_at_zookeeper(url: str) -> list[int]:
    """The processes of tasks that are connected to ZooKeeper; they go on after their tasks."""
    ports = {pid: ports_of(pid) for pid in task_processes()}
    held = held_client(Place(url=url))
    bookies = held.run(Bookies(held.client.store).available).values()
    of_bookies = {int(one.address.rpartition(":")[2]) for one in bookies}
    of_zookeeper = {int(one.rpartition(":")[2]) for one in parse_url(url).hosts.split(",")}
    assert of_zookeeper <= ports_of(os.getpid()), "who plans has a session, and it is seen"
    assert any(of_bookies & connected for connected in ports.values()), "tasks talk to bookies"
    return [pid for pid, connected in ports.items() if of_zookeeper & connected]


class Pin(msgspec.Struct, frozen=True):
    """A pin in a store that answers, or not."""

    place: Place
    asked: list[str]

    def renew(self) -> None:
        raise AssertionError("it is to be dropped")

    def drop(self) -> None:
        self.asked.append(self.place.url)
        if self.place.url == "away":
            raise MetadataUnavailable("nobody answers")

    def keeps(self, other: Renewable) -> bool:
        return False


def test_a_store_that_is_away_is_not_asked_for_each_pin_of_an_application() -> None:
    asked: list[str] = []
    drop_pins((Pin(Place(url=url), asked) for url in ("there", "away", "away", "there")), "app")
    assert asked == ["there", "away", "there"]
