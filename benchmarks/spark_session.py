"""A folder that a session of Spark uses, as a notebook would: what its scenarios have in common.

Invariants:
- The driver owns the folder; the workers read and write by its bookie, through its socket.
- Nothing of Spark is loaded before a scenario begins: who measures something else needs no Java.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from herdbook.book import Book

SUBJECT: Final = "spark"
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
}


@contextmanager
def opened(
    folder: Path, more: Mapping[str, str] | None = None
) -> "Iterator[tuple[Book, SparkSession]]":
    """An empty store and a session with it; `more` are settings of Spark."""
    import herdbook
    import herdbook.spark

    with herdbook.open(folder / "book") as book:
        settings = {
            **_SETTINGS,
            **(more or {}),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        spark = herdbook.spark.session(book, master="local[2]", settings=settings)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield book, spark
        finally:
            spark.stop()


def sink(frame: "DataFrame") -> float:
    """The seconds that reading all of a frame takes, by a sink that takes rows and forgets them."""
    begun_s = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun_s
