"""Which part of a table a condition leaves: a range of keys, and the bounds of any column.

Invariants:
- A range holds every row for which the condition is true; the query engine still asks each row.
- What is not understood, and a value that is not of its column's own type, narrows nothing.
"""

import datetime
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp

from herd.catalog import rows_of
from herd.errors import Error
from herd.keys import key_encoder, successor
from herd.schema import Column, Table
from herd.sql.resolving import Source
from herd.types import INTEGER_BITS, ColumnType, Kind, Stored, accepting

Range = tuple[bytes, bytes]
Bounds = tuple[Stored, Stored]
"""The lowest and the highest value, None for no bound."""

_SAME: Final[dict[Kind, tuple[type, ...]]] = {
    **dict.fromkeys(INTEGER_BITS, (int,)),
    Kind.BOOLEAN: (bool,),
    Kind.DECIMAL: (int, Decimal),
    Kind.VARCHAR: (str,),
    Kind.BLOB: (bytes,),
    Kind.DATE: (datetime.date, str),
    Kind.TIMESTAMP: (datetime.datetime, str),
    Kind.UUID: (uuid.UUID, str),
}


def range_of(source: Source, sources: int, parameters: Sequence[Any]) -> Range:
    """From which key on and under which one the rows lie that a query can need of a source.

    `sources` is how many the whole query has.
    """
    table = source.table
    assert table is not None
    first, end = rows_of(table)
    conditions, alone = conditions_of(source, sources)
    if not conditions:
        return first, end
    return _keys(table, all_bounds(conditions, source, alone, parameters))


def conditions_of(source: Source, sources: int) -> tuple[list[exp.Expr], bool]:
    """What is true of every row of a source that its query needs.

    And whether a name without a table's is one of its columns.
    """
    query = source.node.parent_select
    where = query.args.get("where") if query is not None else None
    if where is None or query is None or not _stands_in(source.node, query):
        return [], False
    alone = sources == 1 and not query.args.get("joins")
    return list(conjuncts(where.this)), alone


def all_bounds(
    conditions: Sequence[exp.Expr], source: Source, alone: bool, parameters: Sequence[Any]
) -> dict[int, Bounds]:
    """The bounds that conditions put to columns, by their numbers."""
    bounds: dict[int, Bounds] = {}
    for condition in conditions:
        found = _bounds_of(condition, source, alone, parameters)
        if found is not None:
            number, added = found
            bounds[number] = _narrowed(bounds.get(number, (None, None)), added)
    return bounds


def _stands_in(node: exp.Expr, query: exp.Expr) -> bool:
    """Whether a table stands in the FROM of the query itself."""
    parent = node.parent
    while isinstance(parent, exp.Join | exp.From):
        parent = parent.parent
    return parent is query


def conjuncts(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions that are all true where a condition is."""
    if isinstance(tree, exp.And):
        yield from tree.flatten()
    elif isinstance(tree, exp.Paren):
        yield from conjuncts(tree.this)
    else:
        yield tree


def _bounds_of(
    node: exp.Expr, source: Source, alone: bool, parameters: Sequence[Any]
) -> tuple[int, Bounds] | None:
    while isinstance(node, exp.Paren):
        node = node.this
    column = column_of(node.this, source, alone)
    turned = False
    other = node.args.get("expression")
    if column is None and isinstance(other, exp.Expr):
        column, other, turned = column_of(other, source, alone), node.this, True
    if column is None:
        return None

    def value(tree: Any) -> Stored:
        return value_of(tree, column.type, parameters)

    if isinstance(node, exp.Between):
        low, high = value(node.args.get("low")), value(node.args.get("high"))
        if not node.args.get("symmetric"):
            return column.number, (low, high)
        if low is None or high is None:
            return None
        return column.number, (_low(low, high), _high(low, high))
    if isinstance(node, exp.In) and not node.args.get("query"):
        values = [value(tree) for tree in node.expressions]
        if not values or None in values:
            return None
        low, *_, high = sorted([*values, values[0]], key=_order)
        return column.number, (low, high)
    if isinstance(node, exp.EQ):
        return column.number, (value(other), value(other))
    if isinstance(node, exp.LT | exp.LTE if not turned else exp.GT | exp.GTE):
        return column.number, (None, value(other))
    if isinstance(node, exp.GT | exp.GTE if not turned else exp.LT | exp.LTE):
        return column.number, (value(other), None)
    return None


def _order(value: Any) -> Any:
    return value


def column_of(node: Any, source: Source, alone: bool) -> Column | None:
    """The column of a source that a node names, if it names one."""
    assert source.table is not None
    if not isinstance(node, exp.Column):
        return None
    if node.table.lower() != source.alias if node.table else not alone:
        return None
    return source.table.by_name.get(node.name.lower())


def value_of(tree: Any, kind: ColumnType, parameters: Sequence[Any]) -> Stored:
    """The stored value of a constant of the type's own kind, else None."""
    constant = constant_of(tree, parameters)
    if constant is None or not isinstance(constant, _SAME.get(kind.kind, ())):
        return None
    if isinstance(constant, bool) and kind.kind is not Kind.BOOLEAN:
        return None
    if kind.wide:
        return None
    try:
        stored: Stored = accepting(kind)(constant)
    except Error:
        return None
    return stored


def constant_of(tree: Any, parameters: Sequence[Any]) -> Any:
    """The value of a literal or a parameter, else None."""
    if isinstance(tree, exp.Placeholder) and tree.name.isdigit():
        place = int(tree.name) - 1
        return parameters[place] if place < len(parameters) else None
    if isinstance(tree, exp.Neg) and isinstance(tree.this, exp.Literal):
        number = constant_of(tree.this, parameters)
        return None if number is None or isinstance(number, str) else -number
    if isinstance(tree, exp.Boolean):
        return bool(tree.this)
    if isinstance(tree, exp.Literal):
        if tree.is_string:
            return tree.name
        return int(tree.name) if tree.name.isdigit() else None
    return None


def _narrowed(one: Bounds, other: Bounds) -> Bounds:
    low = other[0] if one[0] is None else one[0] if other[0] is None else _high(one[0], other[0])
    high = other[1] if one[1] is None else one[1] if other[1] is None else _low(one[1], other[1])
    return low, high


def _high(one: Any, other: Any) -> Stored:
    return max(one, other)  # type: ignore[no-any-return]


def _low(one: Any, other: Any) -> Stored:
    return min(one, other)  # type: ignore[no-any-return]


def _keys(table: Table, bounds: dict[int, Bounds]) -> Range:
    """The range of keys, by the columns of the key in their order, as far as they are bound."""
    first, end = rows_of(table)
    equal: list[Stored] = []
    types: list[ColumnType] = []
    for number in table.primary:
        low, high = bounds.get(number, (None, None))
        kind = table.by_number[number].type
        types.append(kind)
        encode = key_encoder(tuple(types), (False,) * len(types))
        try:
            if low is not None:
                first = max(first, table.prefix + encode([*equal, low]))
            if high is not None:
                end = min(end, successor(table.prefix + encode([*equal, high])))
        except Error:
            break
        if low is None or low != high:
            break
        equal.append(low)
    return first, max(first, end)
