"""UPDATE and DELETE of the rows that any condition names.

Invariants:
- A statement changes all of its rows or none.
- Its rows are one change: keys may shift (`SET id = id + 1`) and rows may go together with those
  that refer to them.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlglot import exp

from herd.catalog import Catalog
from herd.errors import DataError, NotSupportedError
from herd.rows import Row
from herd.schema import Column, Table
from herd.sql.defining import known_table
from herd.sql.expressions import Names, Store, about
from herd.sql.fast import (
    DELETE_PARTS,
    UPDATE_PARTS,
    assigned_trees,
    assignments,
    named_table,
)
from herd.sql.parsing import Parsed, check_parts, place_of
from herd.sql.result import Result
from herd.sql.returning import Returned
from herd.sql.scalars import CannotEvaluate, assigned
from herd.sql.statement import Given, Work, changer_of, lock_for_change, verifier
from herd.sql.targets import Target, without_alias
from herd.types import Stored, accepting


def _target_of(tree: exp.Expr, catalog: Catalog) -> tuple[Table, Names]:
    node = tree.this
    try:
        return named_table(node, catalog)
    except CannotEvaluate:
        known_table(catalog, node)
        raise NotSupportedError("changing anything but one table", place=place_of(node)) from None


_UPDATE_HINTS: Final = {
    "from_": "use a subquery in SET, and in WHERE … IN or EXISTS",
    "with_": "use subqueries",
    "order": "all rows of WHERE are changed at once",
    "limit": "name the rows in WHERE",
}
_DELETE_HINTS: Final = {
    "using": "use a subquery in WHERE … IN or EXISTS",
    "with_": "use subqueries",
    "tables": "DELETE FROM one table",
    "order": "all rows of WHERE are removed at once",
    "limit": "name the rows in WHERE",
}


class Update:
    """UPDATE table SET … [WHERE …]."""

    kind = "UPDATE"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Update)
        check_parts(tree, UPDATE_PARTS, _UPDATE_HINTS)
        self.catalog = catalog
        self.table, self.names = _target_of(tree, catalog)
        alias = tree.this.alias
        where = tree.args.get("where")
        if where is not None:
            where = without_alias(where, alias, self.table)
        own = Names.of(self.table)
        self.target = Target(self.table, own, where)
        try:
            self.sets, hard = assignments(tree, self.table, self.names)
            every = assigned_trees(tree, self.table)
        except CannotEvaluate:
            raise NotSupportedError(
                "SET of a row by a subquery", hint="SET column by column"
            ) from None
        self.hard = [(column, without_alias(value, alias, self.table)) for column, value in hard]
        self.every = [(column, without_alias(value, alias, self.table)) for column, value in every]
        self.returned = Returned.of(tree, self.table, self.names)
        self.verify = verifier(self.table)

    async def run(self, work: Work, given: Given) -> Result:
        """Change the rows."""
        await lock_for_change(work, self.table, self.catalog)
        try:
            changes = await self._changes(work, given, self.sets, self.hard)
        except CannotEvaluate:
            # A value of some row is for the query engine: so are all.
            changes = await self._changes(work, given, [], self.every)
        changer = changer_of(work, self.table, self.verify)
        await changer.update_all(changes)
        rows = [after for _, _, after in changes]
        return await self.returned.result(work, "UPDATE", rows, given)

    async def _changes(
        self,
        work: Work,
        given: Given,
        sets: Sequence[tuple[int, Store]],
        hard: Sequence[tuple[Column, exp.Expr]],
    ) -> list[tuple[bytes, Row, Row]]:
        extra = [value for _, value in hard]
        changes: list[tuple[bytes, Row, Row]] = []
        async for key, row, values in self.target.rows(work, given, extra):
            changed = row.copy()
            for number, store in sets:
                changed[number] = store(row, given)
            for (column, _), value in zip(hard, values, strict=True):
                changed[column.number] = stored_of(self.table, column, value)
            changes.append((key, row, changed))
        return changes


def stored_of(table: Table, column: Column, value: Any) -> Stored:
    """A value of a query as a column stores it. Raises `DataError`."""
    if value is None:
        return None
    try:
        stored: Stored = accepting(column.type)(assigned(value, column.type.kind))
        return stored
    except DataError as error:
        raise about(f"{table.name}.{column.name}", error) from None


class Delete:
    """DELETE FROM table [WHERE …]."""

    kind = "DELETE"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Delete)
        check_parts(tree, DELETE_PARTS, _DELETE_HINTS)
        self.catalog = catalog
        self.table, self.names = _target_of(tree, catalog)
        where = tree.args.get("where")
        if where is not None:
            where = without_alias(where, tree.this.alias, self.table)
        self.target = Target(self.table, Names.of(self.table), where)
        self.returned = Returned.of(tree, self.table, self.names)

    async def run(self, work: Work, given: Given) -> Result:
        """Remove the rows."""
        await lock_for_change(work, self.table, self.catalog)
        going: list[tuple[bytes, Row]] = []
        async for key, row, _ in self.target.rows(work, given, []):
            going.append((key, row))
        await changer_of(work, self.table, None).delete_all(going)
        rows = [row for _, row in going]
        return await self.returned.result(work, "DELETE", rows, given)
