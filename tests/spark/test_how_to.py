"""The page about reading a table from Spark is true; here, for a session takes seconds to start."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import herdbook
import herdbook.spark
from herdbook.book import Book
from tests.docs.blocks import blocks_of

PAGE = "docs/howto/read-a-table-from-spark.md"


def test_every_block_of_the_page_runs(
    spark: SparkSession, book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    try:
        for block in blocks_of(PAGE):
            assert block.kind == "python" and block.executed, block.place
            exec(compile(block.text, block.place, "exec"), names)
        with herdbook.open("./spark") as read, read.sql() as connection:
            totals = connection.execute("SELECT count(*) FROM total").fetchone()
    finally:
        herdbook.spark.session(book)
    assert totals == (3,)
