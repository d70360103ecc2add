"""Spark reads a bucket: 64 KiB objects with all their bytes, to a sink that takes and forgets them.

Invariants:
- The driver owns the folder; the workers read from its bookie through the folder's socket.
- One session; what is measured has been done before on fewer objects, so that all code is warm.
- The limit is the same session reading the same names and bytes from local Parquet.
"""

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.result import Result
from benchmarks.setting import Setting
from engine.limits import KIB, MIB

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from herdbook.book import Book

SUBJECT: Final = "spark"
OBJECT_BYTES: Final = 64 * KIB
_POOL_BYTES: Final = 64 * MIB
_AT_ONCE: Final = 256
_WARM_PREFIX: Final = "0000"
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.sql.parquet.compression.codec": "uncompressed",
}


def read_blobs(setting: Setting) -> list[Result]:
    """2 GiB in objects of 64 KiB."""
    count = setting.size(32_768, 4_096)
    with setting.scratch() as folder, _opened(folder) as (book, spark):
        _fill(book, count)
        frame = spark.read.format("blobit").option("bucket", "cows")
        _sink(frame.option("prefix", _WARM_PREFIX).load())
        times_s = [_sink(frame.load()) for _ in range(setting.rounds)]
        parquet = str(folder / "parquet")
        frame.load().select("name", "content").write.parquet(parquet)
        _sink(spark.read.parquet(parquet).limit(1_000))
        limits_s = [_sink(spark.read.parquet(parquet)) for _ in range(setting.rounds)]
    megabytes = count * OBJECT_BYTES / 1e6
    value, limit = (megabytes / statistics.median(some) for some in (times_s, limits_s))
    return [Result(SUBJECT, "read-blobs", round(value), "MB/s", round(limit))]


@contextmanager
def _opened(folder: Path) -> "Iterator[tuple[Book, SparkSession]]":
    # Who measures something else needs no Java.
    import herdbook
    import herdbook.spark

    with herdbook.open(folder / "book") as book:
        settings = {**_SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}
        spark = herdbook.spark.session(book, master="local[2]", settings=settings)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield book, spark
        finally:
            spark.stop()


def _fill(book: "Book", count: int) -> None:
    bucket = book.blobs.create_bucket("cows")
    pool = os.urandom(_POOL_BYTES)
    places = _POOL_BYTES // OBJECT_BYTES
    for first in range(0, count, _AT_ONCE):
        bucket.put_many(
            (f"{number:08d}", pool[OBJECT_BYTES * place : OBJECT_BYTES * (place + 1)])
            for number in range(first, min(first + _AT_ONCE, count))
            for place in [number % places]
        )


def _sink(frame: "DataFrame") -> float:
    """The seconds that reading all of a frame takes."""
    begun_s = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun_s
