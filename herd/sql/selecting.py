"""Queries, by the query engine, and SELECT … FOR UPDATE.

Invariants:
- Rows that FOR UPDATE returns are locked and read again under the lock: nobody changes them before
  the transaction ends.
"""

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from herd.catalog import Catalog
from herd.errors import NotSupportedError
from herd.rows import row_reader
from herd.schema import Table
from herd.sql.expressions import Names
from herd.sql.fast import key_maker, named_table, shown_columns
from herd.sql.parsing import Parsed
from herd.sql.result import LazyRows, Result, ResultColumn
from herd.sql.scalars import CannotEvaluate
from herd.sql.statement import Given, Work, lock_for_change, newest
from herd.sql.targets import Target

if TYPE_CHECKING:
    import pyarrow

_LOCKED_PARTS = frozenset({"expressions", "from_", "where", "locks", "kind", "hint"})


def query_result(table: "pyarrow.Table") -> Result:
    """The result of what the query engine answered."""
    from herd.arrow import column_type_of, python_rows

    columns = tuple(ResultColumn(field.name, column_type_of(field)) for field in table.schema)
    rows = LazyRows(table.num_rows, lambda: python_rows(table))
    return Result(columns, rows, table.num_rows, None, "SELECT", table)


class Select:
    """Any query."""

    kind = "SELECT"
    needs_transaction = False

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        assert parsed.tree is not None
        self.tree = parsed.tree

    async def run(self, work: Work, given: Given) -> Result:
        """Ask the query engine."""
        return query_result(await work.query.run(self.tree, given[:-1], work.own))


class SelectForUpdate:
    """SELECT columns FROM table WHERE … FOR UPDATE."""

    kind = "SELECT"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        if not isinstance(tree, exp.Select):
            raise _not_lockable()
        if any(value and part not in _LOCKED_PARTS for part, value in tree.args.items()):
            raise _not_lockable()
        self.catalog = catalog
        try:
            source = tree.args.get("from_")
            if source is None:
                raise CannotEvaluate
            self.table, self.names = named_table(source.this, catalog)
            columns, self.columns = shown_columns(tree, self.table, self.names)
        except CannotEvaluate:
            raise _not_lockable() from None
        self.read = row_reader(columns)
        self.target = Target(self.table, self.names, tree.args.get("where"))
        self.key = _key_maker(self.table, tree.args.get("where"), self.names)

    async def run(self, work: Work, given: Given) -> Result:
        """Lock the rows and answer them as they are then."""
        await lock_for_change(work, self.table, self.catalog)
        rows: list[tuple[Any, ...]] = []
        if self.key is not None:
            key = self.key(given)
            if key is not None:
                await work.transaction.lock_row(self.table, key)
                value = newest(work.transaction, self.table, key)
                if value is not None:
                    rows.append(self.read(self.catalog.plan(self.table).decode(value)))
            return Result(self.columns, rows, len(rows), None, "SELECT")
        async for _, row, _ in self.target.rows(work, given, []):
            rows.append(self.read(row))
        return Result(self.columns, rows, len(rows), None, "SELECT")


def _key_maker(table: Table, where: exp.Expr | None, names: Names) -> Any:
    try:
        return key_maker(table, where, names)
    except CannotEvaluate:
        return None


def _not_lockable() -> NotSupportedError:
    return NotSupportedError(
        "FOR UPDATE of anything but columns of one table",
        hint="SELECT columns FROM table WHERE … FOR UPDATE",
    )
