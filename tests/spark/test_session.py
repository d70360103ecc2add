"""What a session of Spark is given, and what becomes of it."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import herdbook.spark
from herdbook.book import Book


def test_a_session_runs_this_interpreter_and_pushes_filters(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.sparkContext.pythonExec == sys.executable


def test_a_book_is_named_by_its_folder(book: Book) -> None:
    assert Path(herdbook.spark.place_of(book).url).is_dir()
