"""Spark reads a bucket: 64 KiB objects with all their bytes, to a sink that takes and forgets them.

Invariants:
- One session; what is measured has been done before on fewer objects, so that all code is warm.
- The limit is the same session reading the same names and bytes from local Parquet.
"""

import os
import statistics
from typing import TYPE_CHECKING, Final

from benchmarks.result import Result
from benchmarks.setting import Setting
from benchmarks.spark_session import SUBJECT, opened, sink
from engine.limits import KIB, MIB

if TYPE_CHECKING:
    from herdbook.book import Book

OBJECT_BYTES: Final = 64 * KIB
_POOL_BYTES: Final = 64 * MIB
_AT_ONCE: Final = 256
_WARM_PREFIX: Final = "0000"
_SETTINGS: Final = {"spark.sql.parquet.compression.codec": "uncompressed"}


def read_blobs(setting: Setting) -> list[Result]:
    """2 GiB in objects of 64 KiB."""
    count = setting.size(32_768, 4_096)
    with setting.scratch() as folder, opened(folder, _SETTINGS) as (book, spark):
        _fill(book, count)
        frame = spark.read.format("blobit").option("bucket", "cows")
        sink(frame.option("prefix", _WARM_PREFIX).load())
        times_s = [sink(frame.load()) for _ in range(setting.rounds)]
        parquet = str(folder / "parquet")
        frame.load().select("name", "content").write.parquet(parquet)
        sink(spark.read.parquet(parquet).limit(1_000))
        limits_s = [sink(spark.read.parquet(parquet)) for _ in range(setting.rounds)]
    megabytes = count * OBJECT_BYTES / 1e6
    value, limit = (megabytes / statistics.median(some) for some in (times_s, limits_s))
    return [Result(SUBJECT, "read-blobs", round(value), "MB/s", round(limit))]


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
