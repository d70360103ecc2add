"""The reader of `format("blobit")`: shares as partitions, batches as they are."""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from blobit.errors import BlobError
from blobit.snapshot.bucket_snapshot import BucketSnapshot
from blobit.snapshot.object_rows import inferred_schema, json_batches, parquet_batches
from blobit.snapshot.planning import Share, plan, plan_ids
from blobit.snapshot.reading import ShareReader, schema_of
from blobit.snapshot.wanted import Mode, Wanted
from engine.place import Place
from herd.schema import Column
from herd.snapshot.conditions import Condition, Operator, condition_on
from herd.snapshot.spark import condition_of

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_MS: Final = 1_000
_MOMENTS: Final[dict[type[Filter], tuple[Operator, int]]] = {
    EqualTo: (Operator.EQUAL, 0),
    GreaterThan: (Operator.ABOVE, 0),
    LessThanOrEqual: (Operator.AT_MOST, 0),
    GreaterThanOrEqual: (Operator.AT_LEAST, _MS - 1),
    LessThan: (Operator.BELOW, _MS - 1),
}
"""What is asked of a moment in milliseconds, and what is added before microseconds are cut off."""


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

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Take filters on name, size and created; return what Spark has to apply."""
        conditions = []
        for filter in filters:
            condition = self._condition(filter)
            if condition is not None:
                conditions.append(condition)
            else:
                yield filter
        self._conditions = tuple(conditions)

    def partitions(self) -> list[InputPartition]:
        """A partition a share: objects with about as many bytes as others have."""
        wanted = self._wanted
        if wanted.ids:
            return list(map(SharePartition, plan_ids(wanted.ids, is_split=wanted.is_split)))
        assert self._snapshot is not None
        shares = plan(self._snapshot, wanted, self._all_conditions())
        return list(map(SharePartition, shares))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one share that meet what was pushed."""
        # Spark makes one partition of none.
        if not isinstance(partition, SharePartition):
            return
        share, mode = partition.share, self._wanted.mode
        conditions = self._all_conditions()
        with ShareReader(self._place, self._wanted, self._snapshot, conditions) as reader:
            if not self._wanted.has_rows:
                yield from reader.batches(share)
                return
            batches = json_batches if mode is Mode.JSON else parquet_batches
            yield from batches(reader, share, to_arrow_schema(self._schema, timezone="UTC"))

    def _all_conditions(self) -> tuple[Condition, ...]:
        if self._snapshot is None:
            return ()
        return (*self._snapshot.conditions(self._wanted.prefix), *self._conditions)

    def _condition(self, filter: "Filter") -> Condition | None:
        """What a filter means for the names; None for one that only Spark can apply."""
        snapshot = self._snapshot
        if snapshot is None or self._wanted.ids or self._wanted.has_rows:
            return None
        path = getattr(filter, "attribute", ())
        if tuple(path) == ("created",):
            return _moment_condition(snapshot.column("created_ms"), filter)
        size = msgspec.structs.replace(snapshot.column("length"), name="size")
        return condition_of([snapshot.column("name"), snapshot.column("etag"), size], filter)


class SharePartition(InputPartition):
    """A share of a bucket."""

    def __init__(self, share: Share) -> None:
        self.share = share


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
        conditions = snapshot.conditions(wanted.prefix)
        shares = plan(snapshot, wanted, conditions)
    with ShareReader(place, wanted, snapshot, conditions) as reader:
        for share in shares:
            found = inferred_schema(reader, share, is_json=wanted.mode is Mode.JSON)
            if found is not None:
                return found
    raise BlobError(
        "no object tells which columns there are: say .option('schema', 'id bigint, name string')"
    )


def _moment_condition(column: Column, filter: Any) -> Condition | None:
    """A condition on a column of milliseconds, of a filter with a moment."""
    found = _MOMENTS.get(type(filter))
    value = getattr(filter, "value", None)
    if found is None or not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return None
    operator, added = found
    moment_us = (value - _EPOCH) // _MICROSECOND
    if operator is Operator.EQUAL and moment_us % _MS:
        return None
    return condition_on(column, operator, ((moment_us + added) // _MS,))
