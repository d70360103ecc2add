"""UPDATE and DELETE of the rows that any condition names.

Invariants:
- A statement changes all of its rows or none.
- Its rows are one change: keys may shift (`SET id = id + 1`) and rows may go together with those
  that refer to them.
"""

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from herd.catalog import Catalog
from herd.errors import DataError, NotSupportedError
from herd.rows import Row
from herd.schema import Column, Table
from herd.sql.expressions import Names, about
from herd.sql.fast import assignments, named_table
from herd.sql.parsing import Parsed, place_of
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
        catalog.table(node.name)
        raise NotSupportedError("changing anything but one table", place=place_of(node)) from None


def _refuse(tree: exp.Expr, parts: dict[str, str]) -> None:
    for part, hint in parts.items():
        if tree.args.get(part):
            word = part.rstrip("_").upper()
            raise NotSupportedError(f"{word} in this statement", hint=hint, place=place_of(tree))


class Update:
    """UPDATE table SET … [WHERE …]."""

    kind = "UPDATE"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Update)
        _refuse(
            tree,
            {
                "from_": "use a subquery in SET, and in WHERE … IN or EXISTS",
                "with_": "use subqueries",
                "order": "all rows of WHERE are changed at once",
                "limit": "name the rows in WHERE",
            },
        )
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
        except CannotEvaluate:
            raise NotSupportedError(
                "SET of a row by a subquery", hint="SET column by column"
            ) from None
        self.hard = [(column, without_alias(value, alias, self.table)) for column, value in hard]
        self.returned = Returned.of(tree, self.table, self.names)
        self.verify = verifier(self.table)

    async def run(self, work: Work, given: Given) -> Result:
        """Change the rows."""
        await lock_for_change(work, self.table, self.catalog)
        extra = [value for _, value in self.hard]
        changes: list[tuple[bytes, Row, Row]] = []
        async for key, row, values in self.target.rows(work, given, extra):
            changes.append((key, row, self._changed(row, values, given)))
        changer = changer_of(work, self.table, self.verify)
        await changer.update_all(changes)
        rows = [after for _, _, after in changes]
        return self.returned.result("UPDATE", rows, given, len(rows))

    def _changed(self, row: Row, values: Sequence[Any], given: Given) -> Row:
        changed = row.copy()
        for number, store in self.sets:
            changed[number] = store(row, given)
        for (column, _), value in zip(self.hard, values, strict=True):
            changed[column.number] = _stored(self.table, column, value)
        return changed


def _stored(table: Table, column: Column, value: Any) -> Stored:
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
        _refuse(
            tree,
            {
                "using": "use a subquery in WHERE … IN or EXISTS",
                "with_": "use subqueries",
                "order": "all rows of WHERE are removed at once",
                "limit": "name the rows in WHERE",
            },
        )
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
        return self.returned.result("DELETE", [row for _, row in going], given, len(going))
