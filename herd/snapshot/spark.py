"""The reader of `format("herd")`: a snapshot's parts as partitions, its batches as they are."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from engine.carried import Carried
from engine.place import Place, for_tasks
from engine.settling import settled
from herd.schema import Column
from herd.snapshot.arrays import plain_schema
from herd.snapshot.conditions import Condition, Operator, condition_on
from herd.snapshot.parts import Part, carried_for, plan, read_part
from herd.snapshot.snapshot import Snapshot

_COMPARED: Final[dict[type[Filter], Operator]] = {
    EqualTo: Operator.EQUAL,
    EqualNullSafe: Operator.SAME,
    LessThan: Operator.BELOW,
    LessThanOrEqual: Operator.AT_MOST,
    GreaterThan: Operator.ABOVE,
    GreaterThanOrEqual: Operator.AT_LEAST,
    StringStartsWith: Operator.STARTS,
    StringEndsWith: Operator.ENDS,
    StringContains: Operator.CONTAINS,
}


def spark_schema(columns: Sequence[Column]) -> StructType:
    """The exact Spark types of a table's columns, as `herd.snapshot.arrays` lists them."""
    found: StructType = from_arrow_schema(plain_schema(columns), prefer_timestamp_ntz=True)
    return found


def condition_of(columns: Sequence[Column], filter: Any) -> Condition | None:
    """What a filter of Spark means for a table; None for one that only Spark can apply."""
    negated = isinstance(filter, Not)
    inner = filter.child if negated else filter
    named = {column.name.lower(): column for column in columns}
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    column = named.get(path[0].lower()) if len(path) == 1 else None
    if column is None:
        return None
    if isinstance(inner, IsNull | IsNotNull):
        negated ^= isinstance(inner, IsNotNull)
        return condition_on(column, Operator.NULL, negated=negated)
    if isinstance(inner, In):
        return condition_on(column, Operator.IN, inner.value, negated=negated)
    operator = _COMPARED.get(type(inner))
    if operator is None:
        return None
    return condition_on(column, operator, (inner.value,), negated=negated)


class PartPartition(InputPartition):
    """A part of a snapshot, and what its reader need not look up, nor ask ZooKeeper."""

    def __init__(self, part: Part, carried: Carried, place: Place) -> None:
        self.part = part
        self.carried = carried
        self.place = place


class TableReader(DataSourceReader):
    """Reads a snapshot. It travels to the executors; the pages' places travel with the parts."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._conditions: tuple[Condition, ...] = ()

    def partitions(self) -> list[InputPartition]:
        """A partition a part: pages side by side."""
        parts = plan(self._snapshot, self._conditions)
        carried = carried_for(self._snapshot.place, parts)
        place = for_tasks(self._snapshot.place)
        return [PartPartition(*both, place) for both in zip(parts, carried, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part that meet what was pushed."""
        if not isinstance(partition, PartPartition):
            # Spark makes one partition of none.
            return iter(())
        snapshot = self._snapshot.at(partition.place)
        return settled(read_part(snapshot, partition.part, self._conditions, partition.carried))


class PushingReader(TableReader):
    """Takes filters, too. Only for a Spark that keeps those of one scan from others."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Take what can be told from pages and columns; return what Spark has to apply."""
        conditions = []
        for filter in filters:
            condition = condition_of(self._snapshot.columns, filter)
            if condition is None:
                yield filter
            else:
                conditions.append(condition)
        self._conditions = tuple(conditions)
