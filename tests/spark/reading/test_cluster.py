"""Tables read by a real Spark from three bookies: one is killed meanwhile, a task is retried."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from engine.application import Application
from engine.carried import HeldReader, held_reader
from engine.place import Place
from herd.place import HeldHerd, held_herd
from herd.snapshot.opening import open_snapshot
from herd.snapshot.parts import carried_for, plan, read_part
from herd.snapshot.wanted import Wanted
from tests.spark.running import RunningCluster, until

ROWS: Final = 3_000
TABLE: Final = "cluster_cows"


def filled(cluster: RunningCluster) -> HeldHerd:
    """The cluster's tablespaces, with the table."""
    held = held_herd(Place(url=cluster.url))

    async def fill() -> None:
        await held.herd.make("default")
        session = await held.herd.session("default")
        try:
            await session.execute(
                f"CREATE TABLE IF NOT EXISTS {TABLE} (id BIGINT PRIMARY KEY, n BIGINT)"
            )
            await session.execute_many(
                f"INSERT INTO {TABLE} VALUES (?, ?) ON CONFLICT DO NOTHING",
                [(number, number % 7) for number in range(ROWS)],
            )
        finally:
            await session.close()

    held.run(fill)
    return held


def load(spark: SparkSession, cluster: RunningCluster) -> DataFrame:
    """The table as a frame."""
    return spark.read.format("herd").options(table=TABLE, url=cluster.url).load()


def test_a_bookie_killed_in_mid_job_and_a_task_that_fails_lose_no_row(
    spark: SparkSession, cluster: RunningCluster, tmp_path: Path
) -> None:
    filled(cluster)
    frame = load(spark, cluster)
    begun, killed = tmp_path / "begun", tmp_path / "killed"

    def gate(rows: Iterable[Row]) -> Iterable[int]:
        """The first attempt waits for the kill, reads and fails; the next one reads again."""
        from pyspark import TaskContext

        begun.touch()
        until("the bookie is killed", killed.exists)
        for row in rows:
            yield row.id
        context = TaskContext.get()
        if context is None or context.attemptNumber() == 0:
            raise OSError("this attempt is lost")

    def kill() -> None:
        until("a task runs", begun.exists)
        cluster.bookies[0].kill()
        killed.touch()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = frame.rdd.mapPartitions(gate).collect()
        assert sorted(found) == list(range(ROWS))
        assert load(spark, cluster).where("n = 3 AND id < 700").count() == 100
    finally:
        killer.join()
        cluster.bookies[0].kill()
        cluster.bookies[0].start()
        cluster.until_registered(3)


def test_who_is_told_the_ledgers_asks_bookies_alone(cluster: RunningCluster) -> None:
    filled(cluster)
    place = Place(url=cluster.url)
    snapshot = open_snapshot(place, Application("app"), Wanted(TABLE))
    parts = plan(snapshot)
    carried = carried_for(place, parts)
    reader = held_reader(place, carried[0])
    read = list(read_part(snapshot, parts[0], (), carried[0]))
    assert sum(batch.num_rows for batch in read) == ROWS
    assert isinstance(reader, HeldReader)
    store = reader.client.carried
    assert [store.reached] == [False], "no session of ZooKeeper"
    # What was carried of another cluster's life is of no use: the store itself is asked.
    reader.run(lambda: store.sync())
    assert [store.reached] == [True]
    again = list(read_part(snapshot, parts[0], (), carried[0]))
    assert pa.Table.from_batches(again).equals(pa.Table.from_batches(read))
