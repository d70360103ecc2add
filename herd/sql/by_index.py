"""Which entries of a secondary index a condition leaves: the ways to rows that are no whole scan.

Invariants:
- A way leads to every row for which the condition is true; whoever takes it still asks each row.
- Only an index that is READY leads anywhere, and only by values of its columns' own types.
- The ranges of a way do not overlap, so it leads to no row twice.
- A way is taken only where it is short: how many entries it has is counted before.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from sqlglot import exp

from engine.ports.workers import Workers
from herd.catalog import rows_of
from herd.errors import Error
from herd.keys import encoder, key_encoder, successor
from herd.plan import IndexPlan, Plan
from herd.schema import Building, Table
from herd.sql.ranges import (
    Bounds,
    Range,
    all_bounds,
    column_of,
    conditions_of,
    constant_of,
    range_of,
    value_of,
)
from herd.sql.resolving import Source
from herd.tablespace import Tablespace
from herd.types import Kind, Stored

ENTRIES_MAX: Final = 10_000
"""Of more entries than these the whole table is read."""
TABLE_SHARE: Final = 1_000
"""Of a table whose columns are kept one row in so many is fetched by an index at most: to fetch a
row takes as long as to look at about a thousand in columns."""
_ENTRIES_MIN: Final = 16
RANGES_MAX: Final = 1_000
"""So many combinations of the values of IN are looked for one by one."""
_NARROW_ENTRIES: Final = 256
"""A range of the primary key is left for an index with so few entries."""
_AT_ONCE_ENTRIES: Final = 256
_AT_ONCE_RANGES: Final = 32
_NOT_NULL: Final = b"\x02"
_WILD: Final = frozenset("%_\\")

Scan = Callable[[bytes, bytes, int], Sequence[tuple[bytes, bytes]]]


class Way(NamedTuple):
    """Ranges of the entries of one index, in order."""

    table: Table
    by: IndexPlan
    ranges: Sequence[Range]
    equal: int
    """How many columns of the index are bound to values."""
    single: bool
    """Whether a range has one entry at most."""
    rows: int = 0
    """How many entries there are, if that was counted."""

    def counted(self, scan: Scan, limit: int) -> int:
        """How many entries there are; no more than `limit` are counted."""
        found = 0
        for first, end in self.ranges:
            found += len(scan(first, end, limit - found))
            if found >= limit:
                break
        return found


class _Bound:
    """What a condition says of columns, by their numbers."""

    def __init__(
        self, conditions: Sequence[exp.Expr], source: Source, alone: bool, parameters: Sequence[Any]
    ) -> None:
        self._ranges = all_bounds(conditions, source, alone, parameters)
        self._lists: dict[int, list[Stored]] = {}
        self._beginnings: dict[int, str] = {}
        self.nothing = False
        """Whether a column is compared with NULL, which is true of no row."""
        for condition in conditions:
            node = condition.unnest()
            if isinstance(node, exp.EQ):
                self._see_null(node, source, alone, parameters)
            elif isinstance(node, exp.In) and len(node.expressions) <= RANGES_MAX:
                self._add_list(node, source, alone, parameters)
            elif isinstance(node, exp.Like) and not node.args.get("negate"):
                self._add_beginning(node, source, alone, parameters)

    def _see_null(
        self, node: exp.EQ, source: Source, alone: bool, parameters: Sequence[Any]
    ) -> None:
        for one, other in ((node.this, node.expression), (node.expression, node.this)):
            if is_null(other, parameters) and column_of(one, source, alone) is not None:
                self.nothing = True

    def _add_list(
        self, node: exp.In, source: Source, alone: bool, parameters: Sequence[Any]
    ) -> None:
        column = column_of(node.this, source, alone)
        if column is None or node.args.get("query"):
            return
        values = {value_of(tree, column.type, parameters) for tree in node.expressions}
        if values and None not in values:
            self._lists.setdefault(column.number, list(values))

    def _add_beginning(
        self, node: exp.Like, source: Source, alone: bool, parameters: Sequence[Any]
    ) -> None:
        column = column_of(node.this, source, alone)
        pattern = constant_of(node.expression, parameters)
        if column is None or column.type.kind is not Kind.VARCHAR or not isinstance(pattern, str):
            return
        stop = next((place for place, letter in enumerate(pattern) if letter in _WILD), None)
        beginning = value_of(exp.Literal.string(pattern[:stop]), column.type, ())
        if isinstance(beginning, str) and beginning:
            self._beginnings.setdefault(column.number, beginning)

    def values(self, number: int) -> list[Stored] | None:
        """The only values that a column may have."""
        low, high = self._ranges.get(number, (None, None))
        if low is not None and low == high:
            return [low]
        return self._lists.get(number)

    def range(self, number: int) -> Bounds:
        """The lowest and the highest value of a column, None for no bound."""
        return self._ranges.get(number, (None, None))

    def beginning(self, number: int) -> str | None:
        """What the text in a column begins with."""
        return self._beginnings.get(number)


def is_null(tree: Any, parameters: Sequence[Any]) -> bool:
    """Whether it is the constant NULL, or a parameter that is."""
    if isinstance(tree, exp.Placeholder) and tree.name.isdigit():
        place = int(tree.name) - 1
        return place < len(parameters) and parameters[place] is None
    return isinstance(tree, exp.Null)


def way_of(
    plan: Plan, conditions: Sequence[exp.Expr], source: Source, alone: bool, given: Sequence[Any]
) -> Way | None:
    """The best way that an index of a table offers; None if there is none.

    None, too, where the conditions name the whole primary key.
    """
    table = plan.table
    ready = [index for index in plan.indexes if index.definition.state is Building.READY]
    if not ready or not conditions:
        return None
    bound = _Bound(conditions, source, alone, given)
    if bound.nothing:
        return Way(table, ready[0], (), 0, True)
    if all(len(bound.values(number) or ()) == 1 for number in table.primary):
        return None
    ways = []
    for index in ready:
        try:
            way = _by(table, index, bound)
        except Error:
            # A value that is too long for any entry.
            continue
        if way is not None:
            ways.append(way)
    return max(ways, key=lambda way: (way.single, way.equal), default=None)


def _by(table: Table, index: IndexPlan, bound: _Bound) -> Way | None:
    definition = index.definition
    columns = [table.by_number[number] for number in definition.columns]
    beginnings = [index.prefix]
    equal = 0
    for column in columns:
        values = bound.values(column.number)
        if values is None or len(values) * len(beginnings) > RANGES_MAX:
            break
        encode = key_encoder((column.type,), (column.nullable,))
        ends = [encode((value,)) for value in values]
        beginnings = [beginning + end for beginning in beginnings for end in ends]
        equal += 1
    ranges = [(beginning, successor(beginning)) for beginning in beginnings]
    if equal < len(columns):
        column = columns[equal]
        low, high = bound.range(column.number)
        text = bound.beginning(column.number)
        present = _NOT_NULL if column.nullable else b""
        encode_value = encoder(column.type)
        if low is not None or high is not None:
            ranges = [
                (
                    beginning + present + (b"" if low is None else encode_value(low)),
                    successor(beginning + present + (b"" if high is None else encode_value(high))),
                )
                for beginning in beginnings
            ]
        elif text is not None:
            # As text is in a key, without what ends it.
            begun = present + text.encode().replace(b"\x00", b"\x00\xff")
            ranges = [(beginning + begun, successor(beginning + begun)) for beginning in beginnings]
        elif not equal:
            return None
    whole = [one for one in sorted(ranges) if one[0] < one[1]]
    single = definition.unique and equal == len(columns)
    return Way(table, index, whole, equal, single)


async def short_way(
    space: Tablespace,
    workers: Workers,
    plan: Plan,
    source: Source,
    sources: int,
    parameters: Sequence[Any],
    rows_kept: int | None,
) -> Way | None:
    """The way by an index that a query takes to a table; None if the table is better scanned.

    `rows_kept` is how many rows the columns have that are kept of the table, None if none are.
    """
    table = plan.table
    if not table.indexes:
        return None
    conditions, alone = conditions_of(source, sources)
    way = way_of(plan, conditions, source, alone, parameters)
    if way is None:
        return None
    if way.single:
        return way._replace(rows=len(way.ranges))
    limit = ENTRIES_MAX
    if rows_kept is not None:
        limit = min(limit, max(rows_kept // TABLE_SHARE, _ENTRIES_MIN))
    if range_of(source, sources, parameters) != rows_of(table):
        limit = min(limit, _NARROW_ENTRIES)
    count = 0
    if len(way.ranges) <= _AT_ONCE_RANGES:
        most = min(limit, _AT_ONCE_ENTRIES) + 1
        count = space.stale_read(lambda rows: way.counted(rows.scan, most))[0]
        if count < most or most > limit:
            return way._replace(rows=count) if count <= limit else None
    snapshot = space.view()
    try:
        count = await workers.run(lambda: way.counted(snapshot.scan, limit + 1))
    finally:
        snapshot.close()
    return way._replace(rows=count) if count <= limit else None
