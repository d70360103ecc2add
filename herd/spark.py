"""Spark's `format("herd")`: tables of a tablespace, read in place and written into.

    spark.read.format("herd").option("table", "cows").load()

What may be asked for is in `herd.snapshot.wanted`, and how values become Spark's in
`herd.snapshot.arrays`. `herdbook.spark.register` gives a session this format for a store.

Invariants:
- A DataFrame is one position of the log: the checkpoint is found and pinned as the schema is, and
  travels with the plan.
- A write pins nothing.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from engine.application import Application
from engine.place import Place
from herd.errors import ProgrammingError

if TYPE_CHECKING:
    from herd.snapshot.snapshot import Snapshot
    from herd.staging.wanted import WriteWanted


class HerdSource(DataSource):
    """A table. `place` and `application` are told by who registers it."""

    place: Place = Place()
    application: Application = Application()
    pushdown: bool = False
    """Whether filters may be taken: Spark 4.1 to 4.3, left alone, reads a whole frame by those that
    another query pushed into it."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._snapshot: Snapshot | None = None
        self._pushes = False

    @classmethod
    def name(cls) -> str:
        """What `format` is told."""
        return "herd"

    def schema(self) -> StructType:
        """The columns of the table at the checkpoint, which is pinned from now on."""
        from herd.snapshot.opening import open_snapshot
        from herd.snapshot.spark import spark_schema
        from herd.snapshot.wanted import parse_wanted

        options = {name.lower(): value for name, value in self.options.items()}
        place = self.place.at(options.get("url"), options.get("token"))
        wanted = parse_wanted(options)
        self._snapshot = open_snapshot(place, self.application, wanted)
        self._pushes = self.pushdown if wanted.pushdown is None else wanted.pushdown
        return spark_schema(self._snapshot.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads the snapshot that the schema was taken of."""
        from herd.snapshot.spark import PushingReader, TableReader

        if self._snapshot is None:
            raise ProgrammingError(
                "a table has a schema of its own", hint="leave out schema(...); use columns="
            )
        return (PushingReader if self._pushes else TableReader)(self._snapshot)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """What writes a DataFrame; the options are in `herd.staging.wanted`."""
        from herd.staging.spark import TableWriter

        return TableWriter(*self._writing(overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """What writes a stream, batch by batch."""
        from herd.staging.spark import TableStreamWriter

        return TableStreamWriter(*self._writing(overwrite), schema)

    def _writing(self, overwrite: bool) -> "tuple[Place, str, WriteWanted]":
        """Where to, who, and what."""
        from herd.staging.wanted import parse_write

        options = {name.lower(): value for name, value in self.options.items()}
        wanted = parse_write(options, overwrite=overwrite)
        return (
            self.place.at(options.get("url"), options.get("token")),
            self.application.name,
            wanted,
        )
