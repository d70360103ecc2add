"""Expressions over rows at hand that only the query engine can evaluate.

Invariants:
- The rows are put into the query as they are, so what is answered is about them, whatever is
  stored meanwhile.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from sqlglot import exp

from herd.arrow import python_rows
from herd.errors import NotSupportedError
from herd.rows import Row
from herd.schema import Column
from herd.sql.expressions import Names
from herd.sql.literals import literal, with_values
from herd.sql.parsing import place_of
from herd.sql.statement import Given, Work
from herd.types import Stored, returning

_ROWS_AT_ONCE: Final = 1_000
_FEW_ROWS: Final = 20
"""A query over at most this many rows is built on the event loop."""
_ORDER: Final = "n"


def check_of_row(tree: exp.Expr, names: Names, hint: str) -> None:
    """Raise `NotSupportedError`, `NoSuchColumn` unless an expression is about a row alone."""
    other = tree.find(exp.Query, exp.AggFunc, exp.Window)
    if other is not None:
        raise NotSupportedError(
            f"{other.sql('duckdb')[:60]} here, where one row is looked at",
            hint=hint,
            place=place_of(other),
        )
    for node in tree.find_all(exp.Column):
        names.find(node)


async def evaluate_rows(
    work: Work, trees: Sequence[exp.Expr], names: Names, rows: Sequence[Row], given: Given
) -> list[tuple[Any, ...]]:
    """The values of expressions, which name columns by `names`, for each of some rows.

    Raises what the query engine raises.
    """
    found: list[tuple[Any, ...]] = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        make = partial(_query, trees, names, some, given)
        query = await work.made(make, long=len(some) > _FEW_ROWS)
        found += python_rows(await work.query.run(query, (), work.own))
    if len(found) != len(rows):
        raise NotSupportedError("an aggregate here, where one row is looked at")
    return found


def _over_places(tree: exp.Expr, names: Names, used: dict[int, Column]) -> exp.Expr:
    """The expression with each column under the name of its place."""

    def step(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        place, column = names.find(node)
        used[place] = column
        return exp.column(f"c{place}")

    changed: exp.Expr = tree.copy().transform(step)
    return changed


def _query(trees: Sequence[exp.Expr], names: Names, rows: Sequence[Row], given: Given) -> exp.Expr:
    used: dict[int, Column] = {}
    outputs = [_over_places(with_values(tree, given), names, used) for tree in trees]
    tuples = [
        exp.Tuple(expressions=[literal(number), *_values(used, row)])
        for number, row in enumerate(rows)
    ]
    columns = [exp.to_identifier(name) for name in (_ORDER, *(f"c{place}" for place in used))]
    alias = exp.TableAlias(this=exp.to_identifier("r"), columns=columns)
    named = [
        exp.alias_(output, f"value:{place}", quoted=True) for place, output in enumerate(outputs)
    ]
    query = exp.Select(expressions=named).from_(exp.Values(expressions=tuples, alias=alias))
    return query.order_by(exp.column(_ORDER))


def _values(used: dict[int, Column], row: Row) -> Iterator[exp.Expr]:
    for place, column in used.items():
        yield exp.cast(literal(_python(column, row[place])), column.type.sql, dialect="duckdb")


def _python(column: Column, stored: Stored) -> Any:
    convert = returning(column.type)
    return stored if convert is None or stored is None else convert(stored)
