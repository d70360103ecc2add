"""Rows that an index names, found without the query engine where they are few.

Invariants:
- Entries and rows are read in one turn of the event loop, in one view: a transaction's own, or what
  is committed.
- The whole condition is asked of each row. What cannot be evaluated here, and what an index names
  too many rows of, is for the query engine (`CannotEvaluate`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from sqlglot import exp

from herd.catalog import Catalog
from herd.errors import NoSuchColumn
from herd.plan import Plan
from herd.rows import Row, row_reader
from herd.schema import Table
from herd.sql.by_index import way_of
from herd.sql.expressions import Evaluate, compile_expression
from herd.sql.fast import limit_of, only_table, shown_columns
from herd.sql.parsing import Parsed
from herd.sql.ranges import conjuncts
from herd.sql.resolving import Source
from herd.sql.result import Result
from herd.sql.scalars import CannotEvaluate, truth
from herd.sql.statement import Given, Work

if TYPE_CHECKING:
    from herd.tablespace import Tablespace
    from herd.transaction import Transaction

ROWS_MAX: Final = 100
"""So many rows are looked up before anybody else runs."""
_BYTES_MAX: Final = 4 * 1024 * 1024


class View(Protocol):
    """Entries and rows as somebody sees them."""

    def entries(self, first: bytes, end: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        """At most `limit` entries of an index, in order."""
        ...

    def row(self, key: bytes) -> bytes | None:
        """A row with its position in front."""
        ...


class _Own:
    """As a transaction sees them."""

    def __init__(self, transaction: "Transaction") -> None:
        self.entries = transaction.scan_plain
        self.row = transaction.get


class _Committed:
    """As they are committed."""

    def __init__(self, space: "Tablespace") -> None:
        self.entries = space.rows_scan
        self.row = space.rows_get


def view_of(space: "Tablespace", own: "Transaction | None") -> View:
    """What a statement sees in a transaction, or without one."""
    return _Committed(space) if own is None else _Own(own)


class FoundRow(NamedTuple):
    """A row for which a condition is true."""

    key: bytes
    value: bytes
    """As it is stored, with its position in front."""
    row: Row


class Finder:
    """Finds the rows of one table for which a condition is true."""

    def __init__(self, table: Table, alias: str, where: exp.Expr, condition: Evaluate) -> None:
        self._conditions = list(conjuncts(where))
        self._condition = condition
        self._source = Source("", alias.lower(), exp.Table(), table)
        names = [node.name.lower() for node in where.find_all(exp.Column)]
        self._named = {c.number for name in names if (c := table.by_name.get(name)) is not None}

    def may_find(self, table: Table) -> bool:
        """Whether the condition names the first column of an index at all."""
        return any(index.columns[0] in self._named for index in table.indexes)

    def find(self, plan: Plan, view: View, given: Given) -> list[FoundRow]:
        """The rows, in the order of their keys. Raises `CannotEvaluate`, `LeaderUnavailable`."""
        if not self.may_find(plan.table):
            raise CannotEvaluate
        way = way_of(plan, self._conditions, self._source, True, given[:-1])
        if way is None or len(way.ranges) > ROWS_MAX:
            raise CannotEvaluate
        keys: list[bytes] = []
        for first, end in way.ranges:
            entries = view.entries(first, end, ROWS_MAX + 1 - len(keys))
            keys += [plan.prefix + primary for _, primary in entries]
            if len(keys) > ROWS_MAX:
                raise CannotEvaluate
        found: list[FoundRow] = []
        size_bytes = 0
        for key in sorted(keys):
            value = view.row(key)
            assert value is not None, f"an entry of {way.by.definition.name} names no row"
            size_bytes += len(value)
            if size_bytes > _BYTES_MAX:
                raise CannotEvaluate
            row = plan.decode(value)
            if truth(self._condition(row, given)):
                found.append(FoundRow(key, value, row))
        return found


class SelectByIndex:
    """SELECT columns FROM table WHERE a condition that leaves few entries of an index."""

    kind = "SELECT"
    needs_transaction = False

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Select)
        self.catalog = catalog
        self.table, names = only_table(tree, catalog)
        self.limit = limit_of(tree)
        where = tree.args.get("where")
        if where is None or not self.table.indexes:
            raise CannotEvaluate
        try:
            condition = compile_expression(where.this, names)
            columns, self.columns = shown_columns(tree, self.table, names)
        except NoSuchColumn:
            # The query engine knows other names, too: those of its outputs.
            raise CannotEvaluate from None
        alias = tree.args["from_"].this.alias_or_name
        self.finder = Finder(self.table, alias, where.this, condition)
        if not self.finder.may_find(self.table):
            raise CannotEvaluate
        self.read = row_reader(columns)

    async def run(self, work: Work, given: Given) -> Result:
        """Look the rows up. Raises `CannotEvaluate`, `LeaderUnavailable`."""
        own, space = work.own, work.space
        if own is None or not own.follows:
            await space.until_readable()
        if (space.catalog if own is None else own.catalog) is not self.catalog:
            raise CannotEvaluate
        plan = self.catalog.plan(self.table)
        found = self.finder.find(plan, view_of(space, own), given)
        rows = tuple([self.read(one.row) for one in found[: self.limit]])
        return Result(self.columns, rows, len(rows), None, "SELECT")
