"""Small queries: those that cannot cost more than the answer of a key, so they stay in the node.

A query process costs each query two switches of processes and a copy of its rows. A query is small
if its statement is plain, which means that no part of it can make more of the rows than they are,
and if all its rows together are few.

Invariants:
- What is small is decided by what the rows are now, before the query begins, and never by a guess
  of what a statement costs.
- A small query that needs more memory than it may have here is run again in a process.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import pyarrow as pa
from sqlglot import exp

from engine import limits
from herd.errors import TooLarge
from herd.reading import Size
from herd.sql.duck import Work
from herd.sql.query_pool import QueryRunner
from herd.sql.query_settings import SMALL_BYTES, QuerySettings

_ROWS_MAX: Final = 1_000_000
_BYTES_MAX: Final = 4 * limits.MIB
_NODES_MAX: Final = 300
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


def is_plain(tree: exp.Expr) -> bool:
    """Whether no part of a statement makes more of its rows than they are, but for joins.

    >>> from sqlglot import parse_one
    >>> is_plain(parse_one("SELECT a, count(*) FROM t WHERE b > 3 GROUP BY a"))
    True
    >>> is_plain(parse_one("SELECT repeat(a, 1000) FROM t"))
    False
    """
    for count, node in enumerate(tree.walk()):
        if count >= _NODES_MAX or type(node) not in _PLAIN:
            return False
    return True


def is_small(sizes: Iterable[Size | None]) -> bool:
    """Whether a plain query reads few bytes, and few rows also if each is joined with each."""
    rows, all_bytes = 1, 0
    for size in sizes:
        if size is None:
            return False
        all_bytes += size.size_bytes
        rows *= max(1, size.rows)
    return rows <= _ROWS_MAX and all_bytes <= _BYTES_MAX


def small_settings(settings: QuerySettings) -> QuerySettings:
    """What small queries of a server may hold together, and nothing on disk."""
    return replace(
        settings,
        threads=1,
        memory_bytes=SMALL_BYTES,
        disk_bytes=0,
        result_bytes_max=2 * _BYTES_MAX,
        temporary="",
    )


class SmallQueries:
    """Runs small queries by one runner, and all others by another. A `QueryRunner`."""

    def __init__(self, small: QueryRunner, others: QueryRunner) -> None:
        self._small = small
        self._others = others

    async def run(self, work: Work) -> pa.Table:
        """Run one query; see `QueryRunner.run`."""
        if work.small:
            try:
                return await self._small.run(work)
            except TooLarge:
                work.failures.clear()
        return await self._others.run(work)

    async def close(self) -> None:
        """Close both; see `QueryRunner.close`."""
        await self._small.close()
        await self._others.close()
