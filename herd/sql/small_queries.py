"""Small queries: those that cannot cost more than the answer of a key, so they stay in the node.

A query process costs each query two switches of processes and a copy of its rows. A query is small
if its statement is plain, which means that no part of it can make more of the rows than they are,
and if all its rows together are few, even if each is joined with each.

Invariants:
- What is small is decided by what the rows are now, before the query begins, and never by a guess
  of what a statement costs.
- The rows are measured again once they are read: how long those are that an index names is not
  known before.
- A small query that needs more memory than it may have here is run again in a process.
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
"""So many columns may all that is meant by `*` have. Each column takes DuckDB some 32 KiB."""
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
"""Nothing here makes a value that is longer than its operands, or a row of nothing."""


def is_plain(tree: exp.Expr, columns: int = 0) -> bool:
    """Whether no part of a statement makes more of its rows than they are, but for joins.

    Its tables have so many `columns`, and all its views have been replaced by their queries.

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
    """Whether an expression has a part that may be the name of an output.

    DuckDB puts the output's whole expression there, and so on: `a + a AS b, b + b AS c` doubles it
    with each output.
    """
    outputs = {node.alias.lower() for node in tree.find_all(exp.Alias)}
    return any(
        node.name.lower() in outputs
        for node in tree.find_all(exp.Column)
        if not isinstance(node.parent, exp.Alias | exp.Select | exp.Group | exp.Ordered)
    )


def constant_bytes(constants: Iterable[Any]) -> int:
    """How long texts and binary values are together; nothing else is long."""
    return sum(len(one) for one in constants if isinstance(one, str | bytes))


def is_small(sizes: Iterable[Size | None], outputs: int = 1, constants: int = 0) -> bool:
    """Whether a plain query reads few bytes, and few rows and bytes if each is joined with each.

    Each of its `outputs` may be the longest value of a row, or all its constants.
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
    """What small queries of a server may hold together, and nothing on disk."""
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
    """Runs small queries by one runner, and all others by another. A `QueryRunner`."""

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
    """The same query, which raises `TooLarge` before it begins if its rows are not few."""
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
