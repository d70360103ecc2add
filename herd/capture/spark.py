"""Spark's `format("herd-changes")`: committed changes of tables, as a stream or as a batch.

    changes = spark.readStream.format("herd-changes").option("table", "cows").load()
    changes.writeStream.format("parquet").option("path", "changes") \\
        .option("checkpointLocation", "changes.checkpoint").start()

What may be asked for is in `herd.capture.wanted`, the columns are in `herd.capture.shape`.

Invariants:
- An offset is a position of the log, between transactions; a query that goes on from its checkpoint
  is told each change after it once.
- Executors read the log from the bookies; only the driver knows where it is cut, and pins it.
"""

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)
from pyspark.sql.types import StructType

from engine.application import Application
from engine.log import Position
from engine.place import Place, for_tasks, held_client
from engine.settling import settled
from engine.spark import PositionStream
from herd.capture.reading import read_stretch
from herd.capture.source import Changes, Driver, Range, find_range
from herd.capture.survey import NO_LIMIT, Limit, Stretch
from herd.capture.wanted import Wanted, check_batch, check_stream, parse_wanted
from herd.errors import ProgrammingError


class ChangesSource(DataSource):
    """Changes of a tablespace. `place` and `application` are told by who registers it."""

    place: Place = Place()
    application: Application = Application()

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = {name.lower(): value for name, value in self.options.items()}
        self._range: Range | None = None

    @classmethod
    def name(cls) -> str:
        """What `format` is told."""
        return "herd-changes"

    def schema(self) -> StructType:
        """The columns by what the tables are now; a batch is of this moment from now on."""
        self._range = find_range(
            self.place.at(self._options.get("url"), self._options.get("token")), self._wanted
        )
        schema = self._range.changes.schema
        found: StructType = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads a batch."""
        check_batch(self._options)
        self._found.pin.hold(self.application)
        return ChangesReader(self._found)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """What reads a stream."""
        check_stream(self._options)
        return ChangesStream(self._found.changes, self._wanted)

    @property
    def _wanted(self) -> Wanted:
        return parse_wanted(self._options)

    @property
    def _found(self) -> Range:
        if self._range is None:
            raise ProgrammingError(
                "changes have a schema of their own", hint="leave out schema(...)"
            )
        return self._range


class StretchPartition(InputPartition):
    """A part of the log, and how tasks reach the store."""

    def __init__(self, stretch: Stretch, place: Place) -> None:
        self.stretch = stretch
        self.place = place


class ChangesReader(DataSourceReader):
    """Reads a batch. It travels to the executors."""

    def __init__(self, found: Range) -> None:
        self._range = found

    def partitions(self) -> list[InputPartition]:
        """A partition a stretch of the log."""
        return _partitions(self._range.changes, self._range.stretches())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one stretch."""
        return _read(self._range.changes, partition)


class ChangesStream(PositionStream[Driver]):
    """A stream of changes; the driver's own has a survey of the log."""

    def __init__(self, changes: Changes, wanted: Wanted) -> None:
        self._changes = changes
        self._wanted = wanted

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options maxRows and maxBytes say; both count if both are given."""
        limit = self._wanted.limit
        if limit.rows is not None:
            return ReadMaxRows(limit.rows)
        return ReadAllAvailable() if limit.size_bytes is None else ReadMaxBytes(limit.size_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one stretch."""
        return _read(self._changes, partition)

    def _follow(self) -> Driver:
        return Driver(self._changes, self._wanted)

    def _begin(self) -> Position:
        return self._following.begin()

    def _latest(self, start: Position, limit: ReadLimit) -> Position:
        return self._following.latest(start, self._limit(limit))

    def _parts(self, start: Position, end: Position) -> list[InputPartition]:
        return _partitions(self._changes, self._following.stretches(start, end))

    def _limit(self, limit: ReadLimit) -> Limit:
        own = self._wanted.limit
        if isinstance(limit, ReadMaxRows):
            return msgspec.structs.replace(own, rows=limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return msgspec.structs.replace(own, size_bytes=limit.max_bytes)
        return NO_LIMIT


def _partitions(changes: Changes, stretches: Iterable[Stretch]) -> list[InputPartition]:
    place = for_tasks(changes.place)
    return [StretchPartition(stretch, place) for stretch in stretches]


def _read(changes: Changes, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark makes one partition of none.
    if isinstance(partition, StretchPartition):
        held = held_client(partition.place)
        yield from settled(
            read_stretch(held, changes.tablespace, changes.interest, partition.stretch)
        )
