"""Spark reads a table in place: all of it, two columns of it, and one hundredth of its keys.

Invariants:
- One session; each read has been done before, so that all code is warm and the frame is planned.
- The limit is the same session reading the same rows from local Parquet. `mapped` is a bare source
  in Python that maps the same rows in uncompressed Arrow files.
- What is measured takes turns, so that a busy moment of the machine hits all alike.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.result import Result
from benchmarks.setting import Setting, note
from benchmarks.spark_session import SUBJECT, opened, sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from herdbook.book import Book

_TABLE: Final = (
    "CREATE TABLE sale (id BIGINT PRIMARY KEY, customer BIGINT, amount DECIMAL(12,2), "
    "price DOUBLE, day DATE, moment TIMESTAMPTZ, name VARCHAR(40), note TEXT)"
)
_COLUMNS: Final = (
    "id",
    "id * 7919 % 1000003 AS customer",
    "cast(id * 31 % 1000000 / 100 AS decimal(12, 2)) AS amount",
    "id * 0.37D AS price",
    "date_add(DATE'2020-01-01', cast(id % 1500 AS int)) AS day",
    "timestamp_seconds(1577836800 + id) AS moment",
    "concat('customer ', id * 7919 % 1000003) AS name",
    "concat('line ', id % 977, ' of order ', id div 7) AS note",
)
_TWO: Final = ("customer", "price")
_PRUNED_SHARE: Final = 100


def read(setting: Setting) -> list[Result]:
    """Five million rows of eight columns."""
    count = setting.size(5_000_000, 200_000)
    with setting.scratch() as folder, opened(folder) as (book, spark):
        _fill(book, spark, count)
        frames = _frames(folder, book, spark, count)
        note("warming up ...")
        for frame in frames.values():
            sink(frame)
        taken = _taken(frames, setting.rounds)
    few = count // _PRUNED_SHARE
    return [
        Result(
            SUBJECT,
            "read-all",
            round(count / taken["all"]),
            "rows/s",
            round(count / taken["all-parquet"]),
            {"mapped": round(count / taken["all-mapped"])},
        ),
        Result(
            SUBJECT,
            "read-aggregate",
            round(count / taken["two"]),
            "rows/s",
            round(count / taken["two-parquet"]),
        ),
        Result(
            SUBJECT,
            "read-pruned",
            round(taken["all"] / taken["few"], 1),
            f"times quicker than all, {few:,} rows",
            round(taken["all-parquet"] / taken["few-parquet"], 1),
        ),
        Result(
            SUBJECT,
            "read-filtered",
            round(taken["all"] / taken["filtered"], 1),
            f"times quicker than all, {few:,} rows by a filter of Spark's",
            round(taken["all-parquet"] / taken["few-parquet"], 1),
        ),
    ]


def _fill(book: "Book", spark: "SparkSession", count: int) -> None:
    note(f"writing {count:,} rows ...")
    with book.sql(autocommit=True) as connection:
        connection.execute(_TABLE)
    frame = spark.range(0, count, 1, 4).selectExpr(*_COLUMNS)
    frame.write.format("herd").option("table", "sale").mode("append").save()


def _frames(
    folder: Path, book: "Book", spark: "SparkSession", count: int
) -> "dict[str, DataFrame]":
    """What is read, by name: ours, and beside it Parquet's and the mapped files'."""
    from benchmarks.mapped.spark import MappedSource

    note("taking a checkpoint, writing the same rows to Parquet and Arrow files ...")
    table = spark.read.format("herd").option("table", "sale")
    whole = table.load()
    table = table.option("snapshot", "newest")
    parquet, mapped = folder / "parquet", folder / "mapped"
    whole.write.parquet(str(parquet))
    mapped.mkdir()
    _write_mapped(book, mapped)
    spark.dataSource.register(MappedSource)
    first = count // 2
    few = f"id >= {first} AND id < {first + count // _PRUNED_SHARE}"
    few_rows = spark.read.format("herd").options(table="sale", snapshot="newest", where=few)
    same = spark.read.parquet(str(parquet))
    return {
        "all": whole,
        "all-parquet": same,
        "all-mapped": spark.read.format("mapped").option("folder", str(mapped)).load(),
        "two": _added(table.option("columns", ",".join(_TWO)).load()),
        "two-parquet": _added(same.select(*_TWO)),
        "few": few_rows.load(),
        "filtered": whole.filter(few),
        "few-parquet": same.where(few),
    }


def _added(frame: "DataFrame") -> "DataFrame":
    return frame.selectExpr("sum(customer)", "sum(price)")


def _write_mapped(book: "Book", folder: Path) -> None:
    import pyarrow as pa

    from engine.application import Application
    from herd.snapshot.opening import open_snapshot
    from herd.snapshot.parts import plan, read_part
    from herd.snapshot.wanted import Wanted
    from herdbook.spark import place_of

    wanted = Wanted("sale", fresh=False)
    snapshot = open_snapshot(place_of(book), Application("benchmark"), wanted)
    for number, part in enumerate(plan(snapshot)):
        batches = list(read_part(snapshot, part))
        with pa.ipc.new_file(str(folder / f"{number:05d}.arrow"), batches[0].schema) as file:
            for batch in batches:
                file.write_batch(batch)


def _taken(frames: "Mapping[str, DataFrame]", rounds: int) -> dict[str, float]:
    """The median seconds of each."""
    times_s: dict[str, list[float]] = {name: [] for name in frames}
    for _ in range(rounds):
        for name, frame in frames.items():
            times_s[name].append(sink(frame))
    note(", ".join(f"{name} {min(some):.2f} s" for name, some in times_s.items()))
    return {name: statistics.median(some) for name, some in times_s.items()}
