"""Spark writes a table: rows of local Parquet, all of them by one commit.

Invariants:
- One session; what is measured has been done before with fewer rows, so that all code is warm.
- Each time the table has no rows before. What was written is counted afterwards.
- The limit is the same session writing the same rows to local Parquet.
"""

import statistics
import time
from typing import TYPE_CHECKING, Final

from benchmarks.result import Result
from benchmarks.setting import Setting
from benchmarks.spark_session import SUBJECT, opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_TABLE: Final = (
    "CREATE TABLE cow (id BIGINT PRIMARY KEY, name VARCHAR, stall INTEGER, weight DOUBLE, "
    "price DECIMAL(10,2), born TIMESTAMP)"
)
_COLUMNS: Final = (
    "id",
    "concat('cow ', id % 1000) AS name",
    "cast(id % 100 AS int) AS stall",
    "id / 7.0D AS weight",
    "cast(id % 1000 / 100 AS decimal(10, 2)) AS price",
    "cast(timestamp_micros(id * 1000000) AS timestamp_ntz) AS born",
)


def write_table(setting: Setting) -> list[Result]:
    """Five million rows of six columns."""
    count = setting.size(5_000_000, 500_000)
    with setting.scratch() as folder, opened(folder) as (book, spark):
        with book.sql(autocommit=True) as connection:
            connection.cursor().execute(_TABLE)
        source, copy = str(folder / "source"), str(folder / "copy")
        spark.range(0, count, 1, 4).selectExpr(*_COLUMNS).write.parquet(source)
        frame = spark.read.parquet(source)
        _write(frame.limit(count // 50))
        times_s = [_write(frame) for _ in range(setting.rounds)]
        with book.sql(autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT count(*) FROM cow")
            [written] = cursor.fetchone() or (0,)
        limits_s = [_copy(frame, copy) for _ in range(setting.rounds)]
    if written != count:
        raise AssertionError(f"{written} rows are there, {count} were written")
    value, limit = (count / statistics.median(some) for some in (times_s, limits_s))
    return [Result(SUBJECT, "write-table", round(value), "rows/s", round(limit))]


def _write(frame: "DataFrame") -> float:
    """The seconds that putting a frame in place of a table's rows takes."""
    begun_s = time.perf_counter()
    frame.write.format("herd").option("table", "cow").mode("overwrite").save()
    return time.perf_counter() - begun_s


def _copy(frame: "DataFrame", path: str) -> float:
    """The seconds that writing a frame as Parquet takes."""
    begun_s = time.perf_counter()
    frame.write.mode("overwrite").parquet(path)
    return time.perf_counter() - begun_s
