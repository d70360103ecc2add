"""Spark's `format("blobit")`: the objects of a bucket, read in place, and rows put as objects.

    spark.read.format("blobit").option("bucket", "cows").load()
    frame.write.format("blobit").option("bucket", "cows").mode("append").save()

What may be asked for is in `blobit.snapshot.wanted` and `blobit.staging.wanted`.
`herdbook.spark.register` gives a session this format for a store.

Invariants:
- A DataFrame is one position of the bucket: its checkpoint is found and pinned as the schema is,
  and travels with the plan.
- A write pins nothing.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from blobit.errors import SettingsInvalid
from engine.application import Application
from engine.place import Place

if TYPE_CHECKING:
    from blobit.snapshot.bucket_snapshot import BucketSnapshot
    from blobit.snapshot.wanted import Wanted


class BlobSource(DataSource):
    """Objects of a bucket. `place` and `application` are told by who registers it."""

    place: Place = Place()
    application: Application = Application()
    pushdown: bool = False
    """Whether filters may be taken: see `herd.spark.HerdSource`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._wanted: Wanted | None = None
        self._snapshot: BucketSnapshot | None = None

    @classmethod
    def name(cls) -> str:
        """What `format` is told."""
        return "blobit"

    def schema(self) -> StructType | str:
        """The columns of the mode; the bucket's checkpoint is pinned from now on."""
        from blobit.snapshot.bucket_snapshot import take_snapshot
        from blobit.snapshot.spark import spark_schema
        from blobit.snapshot.wanted import parse_wanted

        wanted = self._wanted = parse_wanted(self._options)
        if wanted.bucket:
            self._snapshot = take_snapshot(self._there, self.application, wanted)
        return spark_schema(self._there, wanted, self._snapshot)

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads the position that the schema was taken at."""
        from blobit.snapshot.spark import BucketReader, PushingReader

        if self._wanted is None:
            raise SettingsInvalid(
                "objects have a schema of their own: leave out schema(...); for mode=json and "
                'mode=parquet say .option("schema", "id bigint, name string")'
            )
        said = self._wanted.pushdown
        pushes = self.pushdown if said is None else said
        made = PushingReader if pushes else BucketReader
        return made(self._there, self._wanted, self._snapshot, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """What puts a DataFrame's rows into a bucket."""
        from blobit.staging.spark import BucketWriter
        from blobit.staging.wanted import parse_write

        wanted = parse_write(self._options, overwrite=overwrite)
        return BucketWriter(self._there, wanted, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """What puts a stream's rows into a bucket."""
        from blobit.staging.spark import BucketStreamWriter
        from blobit.staging.wanted import parse_write

        wanted = parse_write(self._options, overwrite=overwrite)
        return BucketStreamWriter(self._there, wanted, schema)

    @property
    def _options(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.options.items()}

    @property
    def _there(self) -> Place:
        return self.place.at(self._options.get("url"), self._options.get("token"))
