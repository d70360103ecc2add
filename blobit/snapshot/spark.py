"""The reader of `format("blobit")`: shares as partitions, batches as they are."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from blobit.errors import BlobError
from blobit.snapshot.bucket_snapshot import BucketSnapshot
from blobit.snapshot.filters import on_rows, shown_columns
from blobit.snapshot.object_rows import inferred_schema, json_batches, parquet_batches
from blobit.snapshot.planning import Share, plan, plan_ids
from blobit.snapshot.reading import ShareReader, schema_of
from blobit.snapshot.wanted import Mode, Wanted
from engine.place import Place, for_tasks
from engine.settling import settled
from herd.snapshot.conditions import Condition
from herd.snapshot.spark import condition_of


class BucketReader(DataSourceReader):
    """Reads objects. It travels to the executors."""

    def __init__(
        self, place: Place, wanted: Wanted, snapshot: BucketSnapshot | None, schema: StructType
    ) -> None:
        """`snapshot` is None where objects are named by their ids alone."""
        self._place = place
        self._wanted = wanted
        self._snapshot = snapshot
        self._schema = schema
        self._conditions: tuple[Condition, ...] = ()

    def partitions(self) -> list[InputPartition]:
        """A partition a share: objects with about as many bytes as others have."""
        wanted = self._wanted
        if wanted.ids:
            shares = plan_ids(wanted.ids, is_split=wanted.is_split)
        else:
            assert self._snapshot is not None
            shares = plan(self._snapshot, wanted, self._all_conditions())
        place = for_tasks(self._place)
        return [SharePartition(share, place) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one share that meet what was pushed."""
        # Spark makes one partition of none.
        if isinstance(partition, SharePartition):
            yield from settled(self._batches(partition.share, partition.place))

    def _batches(self, share: Share, place: Place) -> Iterator[pa.RecordBatch]:
        mode = self._wanted.mode
        snapshot = None if self._snapshot is None else self._snapshot.at(place)
        with ShareReader(place, self._wanted, snapshot, self._all_conditions()) as reader:
            if not self._wanted.has_rows:
                yield from reader.batches(share)
                return
            batches = json_batches if mode is Mode.JSON else parquet_batches
            yield from batches(reader, share, to_arrow_schema(self._schema, timezone="UTC"))

    def _all_conditions(self) -> tuple[Condition, ...]:
        if self._snapshot is None:
            return ()
        return (*self._snapshot.conditions, *self._conditions)


class PushingReader(BucketReader):
    """Takes filters, too. Only for a Spark that keeps those of one scan from others."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Take filters on name, size, etag and created; return what Spark has to apply."""
        conditions: list[Condition] = []
        for filter in filters:
            condition = self._condition(filter)
            if condition is None:
                yield filter
            else:
                conditions.append(condition)
        self._conditions = tuple(conditions)

    def _condition(self, filter: "Filter") -> Condition | None:
        """What a filter means for the names; None for one that only Spark can apply."""
        if self._snapshot is None or self._wanted.ids or self._wanted.has_rows:
            return None
        names = self._snapshot.names.table
        found = condition_of(shown_columns(names), filter)
        return None if found is None else on_rows(found, names)


class SharePartition(InputPartition):
    """A share of a bucket, and how tasks reach the store."""

    def __init__(self, share: Share, place: Place) -> None:
        self.share = share
        self.place = place


def spark_schema(place: Place, wanted: Wanted, snapshot: BucketSnapshot | None) -> StructType | str:
    """The columns of what is wanted: the mode's, those asked for, or those of the first object.

    Raises `BlobError` if there is no object to tell them.
    """
    if wanted.schema:
        return wanted.schema
    found = schema_of(wanted)
    if wanted.has_rows:
        found = _inferred(place, wanted, snapshot)
    schema: StructType = from_arrow_schema(found, prefer_timestamp_ntz=True)
    return schema


def _inferred(place: Place, wanted: Wanted, snapshot: BucketSnapshot | None) -> pa.Schema:
    shares: Sequence[Share]
    conditions: tuple[Condition, ...]
    if snapshot is None or wanted.ids:
        shares, conditions = plan_ids(wanted.ids, is_split=False), ()
    else:
        conditions = snapshot.conditions
        shares = plan(snapshot, wanted, conditions)
    with ShareReader(place, wanted, snapshot, conditions) as reader:
        for share in shares:
            found = inferred_schema(reader, share, is_json=wanted.mode is Mode.JSON)
            if found is not None:
                return found
    raise BlobError(
        "no object tells which columns there are: say .option('schema', 'id bigint, name string')"
    )
