"""What is damaged on disk is an error that names it, through a real Spark; never fewer rows."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import herdbook
from engine.place import Place, let_go
from tests.spark.pipeline.test_checking import BODY, damage


def test_a_damaged_page_and_a_damaged_object_are_named(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with herdbook.open(store) as book:
        with book.sql(autocommit=True) as connection:
            connection.execute("CREATE TABLE cows (id BIGINT PRIMARY KEY, name TEXT)")
            connection.execute("INSERT INTO cows VALUES (1, 'Elsa'), (2, 'Berta')")
            connection.execute("CHECKPOINT")
        photos = book.blobs.create_bucket("photos")
        photos.put("elsa", BODY)
        photos.put("berta", b"moo")
        spark.read.format("blobit").option("url", str(store)).load("photos").count()
    let_go(Place(url=str(store)))
    assert damage(store, b"_position") and damage(store, BODY)
    with herdbook.open(store):
        reader = spark.read.option("url", str(store)).option("snapshot", "newest")
        with pytest.raises(PySparkException, match="StorageFailed: page 0 of table cows"):
            reader.format("herd").load("cows").count()
        with pytest.raises(PySparkException, match="object 'elsa' of bucket photos"):
            reader.format("blobit").load("photos").collect()
        names = reader.format("blobit").option("content", "false").load("photos")
        assert names.count() == 2, "names are read without the bytes"
