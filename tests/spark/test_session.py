"""What a session of Spark is given, and what becomes of it."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import herdbook.spark
from engine.place import held_client
from herd.checkpoint.record import CheckpointList
from herd.snapshot.pinning import CheckpointPin
from herdbook.book import Book


def test_a_session_runs_this_interpreter_and_pushes_filters(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.sparkContext.pythonExec == sys.executable


def test_a_book_is_named_by_its_folder(book: Book) -> None:
    assert Path(herdbook.spark.place_of(book).url).is_dir()


def test_pins_are_renewed_while_a_registration_lasts_and_dropped_with_it(
    spark: SparkSession, book: Book
) -> None:
    with book.sql(autocommit=True) as connection:
        connection.execute("CREATE TABLE pinned (id BIGINT PRIMARY KEY)")
    registration = herdbook.spark.register(spark, book)
    try:
        frame = spark.read.format("herd").option("table", "pinned").load()
        [(_, noted)] = registration.application.noted()
        assert isinstance(noted, CheckpointPin)
        held = held_client(registration.place)
        kept = CheckpointList(held.client.store, "default", held.client.clock)

        def expiry_ms() -> list[int]:
            pins = held.run(kept.get).pins
            return [pin.expires_ms for pin in pins if pin.name == noted.name]

        [before_ms] = expiry_ms()
        registration.renew()
        assert expiry_ms() > [before_ms]
        assert frame.count() == 0
        registration.close()
        assert expiry_ms() == []
    finally:
        registration.close()
        herdbook.spark.register(spark, book)
