"""What every job works with: a session of Spark, and the store that it is about.

Invariants:
- A job reads and writes the store through formats that the session was given, or on executors
  that reach it by its `Place`; it opens none by itself.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from blobit.blobs import AsyncBlobs
from blobit.tables import BucketInfo
from engine.application import Application
from engine.place import Place
from herd.place import HeldHerd, held_herd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession


class Job(NamedTuple):
    """A session with a store's formats (`herdbook.spark.register`), the store, and whose pins."""

    spark: "SparkSession"
    place: Place
    application: Application = Application()

    def writer(self, frame: "DataFrame", form: str) -> "DataFrameWriter":
        """What appends a frame by one of the store's formats.

        Spark looks a writer's format up in the session that its thread last worked with, which in
        a thread that Java made anew is none.
        """
        java: Any = self.spark._jvm
        java.SparkSession.setActiveSession(self.spark._jsparkSession)
        return frame.write.format(form).mode("append")


def buckets_of(place: Place, name: str = "") -> list[BucketInfo]:
    """A bucket by its name, or all there are. Blocks.

    Raises `NoSuchBucket`, `MetadataUnavailable`.
    """
    held = held_herd(place)
    return held.run(lambda: _buckets(held, name))


async def _buckets(held: HeldHerd, name: str) -> list[BucketInfo]:
    async with AsyncBlobs(held.ledgers, herd=held.herd) as blobs:
        if name:
            return [(await blobs.bucket(name)).core.info]
        return await blobs.buckets()
