"""What the platform does with Spark: its messages go in by the job `load`, its report comes out.

Invariants:
- The report is made of the objects' own bytes, hashed anew, beside the table's snapshot: it rests
  on nothing that the workers have counted but what it compares.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import functions as F

from herdbook.mailing.work import BUCKET
from herdbook.spark import place_of, register, session
from pipeline.job import Job
from pipeline.load import LoadReport, Target, load_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE: Final = "message"
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # A short run on a small machine gains from a quick start more than from the best code.
    "spark.sql.codegen.wholeStage": "false",
}
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_FOLDER_CHARACTERS_MAX: Final = 60
"""Spark's sockets lie in it, and a socket's path has an end."""


class TenantLine(NamedTuple):
    """A line of the report: a tenant's messages, and what is in them."""

    tenant: str
    messages: int
    size: int
    lines: int
    words: int


class SparkReport(NamedTuple):
    """What Spark has found. `different`: messages whose bytes are not those that were sent."""

    lines: list[TenantLine]
    different: int


@contextmanager
def spark_of(url: str) -> "Iterator[SparkSession]":
    """A session of the cluster as long as the block lasts; its Java may end before."""
    options, folder = _JAVA_OPTIONS, tempfile.gettempdir()
    if len(folder) <= _FOLDER_CHARACTERS_MAX:
        # What Java leaves when it is killed goes with all else.
        options += f" -Djava.io.tmpdir={folder}"
    settings = _SETTINGS | {"spark.driver.extraJavaOptions": options}
    spark = session(url, name="herdbook demo", settings=settings)
    try:
        spark.sparkContext.setLogLevel("OFF")
        yield spark
    finally:
        with suppress(Py4JError, OSError):
            spark.stop()


def load(spark: "SparkSession", url: str, folder: Path) -> LoadReport:
    """The folder's files as objects of the bucket, with a row for each."""
    registration = register(spark, url)
    job = Job(spark, place_of(url), registration.application)
    return load_files(job, str(folder), Target(BUCKET, table=TABLE))


def tasks_of(spark: "SparkSession") -> tuple[int, int]:
    """How many of its tasks Spark has done, and how many there are in the stages that have begun.

    A stage that is planned may be passed over, and never does any of its tasks.
    """
    tracker, done, planned = spark.sparkContext.statusTracker(), 0, 0
    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup())
    for stage in {stage for job in jobs if job is not None for stage in job.stageIds}:
        info = tracker.getStageInfo(stage)
        if info is not None and (info.numActiveTasks or info.numCompletedTasks):
            done += info.numCompletedTasks
            planned += info.numTasks
    return done, planned


def report(spark: "SparkSession") -> SparkReport:
    """By tenant, of the objects' bytes and the table's snapshot."""
    objects = (
        spark.read.format("blobit")
        .option("bucket", BUCKET)
        .load()
        .select("name", F.length("content").alias("size"), F.sha2("content", 256).alias("sha256"))
    )
    sent = (
        spark.read.format("herd")
        .option("table", "sent")
        .load()
        .select("name", "tenant", "lines", "words", F.col("sha256").alias("sent_sha256"))
    )
    same = F.col("sha256").eqNullSafe(F.col("sent_sha256"))
    rows = (
        objects.join(sent, "name", "full_outer")
        .groupBy("tenant")
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("size"),
            F.sum("lines").alias("lines"),
            F.sum("words").alias("words"),
            F.sum(F.when(same, 0).otherwise(1)).alias("different"),
        )
        .orderBy("tenant")
        .collect()
    )
    return SparkReport([TenantLine(*row[:-1]) for row in rows], sum(row[-1] for row in rows))
