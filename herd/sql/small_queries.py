"""Small queries: they are cheap enough to run inside the node.

Running a query in a query process costs two switches between processes and a copy of its rows. A
query is small if its statement is plain and its tables are small. A statement is plain if no part
of it, except joins, can produce more rows or longer values than it reads. The tables are small if
even their cross product has few rows and few bytes.

Invariants:
- Whether a query is small is decided before it starts, from the current size of its tables, never
  from an estimate of the statement's cost.
- The rows are measured again after they were read, because the size of rows that an index finds is
  not known before.
- A small query that needs more memory than it may use in the node is run again in a query process.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from engine import limits
from herd.errors import TooLarge
from herd.reading import Size, TablePages
from herd.sql.duck import Work
from herd.sql.query_pool import QueryRunner
from herd.sql.query_settings import SMALL_BYTES, QuerySettings

_ROWS_MAX: Final = 1_000_000
_BYTES_MAX: Final = 4 * limits.MIB
_JOINED_BYTES_MAX: Final = 16 * limits.MIB
_BATCH_ROWS: Final = 2_048
_NODES_MAX: Final = 300
_COLUMNS_MAX: Final = 256
"""The maximum number of columns that all `*` stand for. DuckDB needs about 32 KiB for each."""
_PLAIN: Final = frozenset(
    {
        *(exp.Select, exp.From, exp.Join, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered),
        *(exp.Limit, exp.Offset, exp.Table, exp.TableAlias, exp.Alias, exp.Column, exp.Identifier),
        *(exp.Star, exp.Literal, exp.Placeholder, exp.Boolean, exp.Null, exp.Paren),
        *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is),
        *(exp.Between, exp.In, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg),
        *(exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg, exp.Distinct),
    }
)
"""None of these makes a value longer than its operands, or a row without an input row."""


def is_plain(tree: exp.Expr, columns: int = 0) -> bool:
    """Whether no part of a statement, except joins, makes more rows or longer values than it reads.

    Its tables have `columns` columns. All views must have been replaced by their queries.

    >>> from sqlglot import parse_one
    >>> is_plain(parse_one("SELECT a, count(*) FROM t WHERE b > 3 GROUP BY a"))
    True
    >>> is_plain(parse_one("SELECT repeat(a, 1000) FROM t"))
    False
    """
    stars = 0
    for count, node in enumerate(tree.walk()):
        if count >= _NODES_MAX or type(node) not in _PLAIN:
            return False
        stars += isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count)
    return stars * columns <= _COLUMNS_MAX and not _uses_outputs(tree)


def _uses_outputs(tree: exp.Expr) -> bool:
    """Whether an expression contains a name that may refer to an output column.

    DuckDB replaces such a name with that output's whole expression. In `a + a AS b, b + b AS c`
    each output is twice as long as the one before.
    """
    outputs = {node.alias.lower() for node in tree.find_all(exp.Alias)}
    return any(
        node.name.lower() in outputs
        for node in tree.find_all(exp.Column)
        if not isinstance(node.parent, exp.Alias | exp.Select | exp.Group | exp.Ordered)
    )


def constant_bytes(constants: Iterable[Any]) -> int:
    """The total length of all texts and binary values; other constants are short."""
    return sum(len(one) for one in constants if isinstance(one, str | bytes))


def is_small(sizes: Iterable[Size | None], outputs: int = 1, constants: int = 0) -> bool:
    """Whether a plain query reads few bytes, and the cross product of its tables is small, too.

    Each of its `outputs` may contain the longest value of a row, or all constants.
    """
    rows, all_bytes, joined_bytes = 1, 0, 0
    for size in sizes:
        if size is None:
            return False
        joined_bytes = joined_bytes * max(1, size.rows) + rows * size.size_bytes
        all_bytes += size.size_bytes
        rows *= max(1, size.rows)
    held_bytes = outputs * (joined_bytes + constants * min(rows, _BATCH_ROWS))
    return rows <= _ROWS_MAX and all_bytes <= _BYTES_MAX and held_bytes <= _JOINED_BYTES_MAX


def small_settings(settings: QuerySettings) -> QuerySettings:
    """The settings of a server's small queries: they share one memory limit and use no disk."""
    return replace(
        settings,
        threads=1,
        memory_bytes=SMALL_BYTES,
        disk_bytes=0,
        result_bytes_max=2 * _BYTES_MAX,
        batch_rows=_BATCH_ROWS,
        temporary="",
    )


class SmallQueries:
    """A `QueryRunner` that passes small queries to one runner and all others to another."""

    def __init__(self, small: QueryRunner, others: QueryRunner) -> None:
        self._small = small
        self._others = others

    async def run(self, work: Work) -> pa.Table:
        """Run one query; see `QueryRunner.run`."""
        if work.small is not None:
            try:
                return await self._small.run(_measured(work, work.small))
            except TooLarge:
                work.failures.clear()
        return await self._others.run(work)

    async def close(self) -> None:
        """Close both; see `QueryRunner.close`."""
        await self._small.close()
        await self._others.close()


def _measured(work: Work, is_still_small: Callable[[Iterable[Size]], bool]) -> Work:
    """The same query, but it raises `TooLarge` before it starts if its rows are too large."""
    sizes: list[Size] = []

    def measured(make: Callable[[], Any]) -> pa.Table:
        found = make()
        rows = found.table() if isinstance(found, TablePages) else found
        if isinstance(rows, pa.Table):
            sizes.append(Size(rows.num_rows, rows.nbytes))
        if not isinstance(rows, pa.Table) or not is_still_small(sizes):
            raise TooLarge("the rows of the query are too long to be read here")
        return rows

    inputs = {name: partial(measured, make) for name, make in work.inputs.items()}
    return replace(work, inputs=inputs)
