"""One real Spark for all tests of a process, over a folder of its own and over a real cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import herdbook
import herdbook.spark
from herdbook.book import Book
from tests.spark.running import RunningCluster, running_cluster

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Book]:
    """A folder that this process owns; its tables and buckets are all tests': name your own."""
    with herdbook.open(tmp_path_factory.mktemp("book")) as opened:
        yield opened


@pytest.fixture(scope="session")
def spark(book: Book, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session over `book`, which outlives it; a task that fails is tried again."""
    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    settings = {**_SETTINGS, "spark.sql.warehouse.dir": str(warehouse)}
    session = herdbook.spark.session(book, master="local[2,3]", settings=settings)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    _forget_clusters()
    session.stop()


def _forget_clusters() -> None:
    """Clusters of tests are gone before the session is: it would ask each for its pins, in vain."""
    for registration in herdbook.spark._registered:
        for path, pin in registration.application.noted():
            if pin.place.is_cluster:
                path.unlink()


@pytest.fixture(autouse=True)
def active(request: pytest.FixtureRequest) -> None:
    """Java gives this thread another one now and then, which knows no session."""
    if "spark" in request.fixturenames:
        herdbook.spark.activate(request.getfixturevalue("spark"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """ZooKeeper, three bookies and a node as processes. Who kills one starts it again."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
