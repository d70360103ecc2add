"""The rows that an UPDATE, a DELETE or a SELECT … FOR UPDATE is about.

Invariants:
- Rows are found without locks, then locked one by one in the order of their keys, and read again.
  Others may change rows in between.
- A row that has changed meanwhile is checked again (READ COMMITTED), or the statement fails
  (SNAPSHOT). A row that was deleted is left out, or the statement fails.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from sqlglot import exp

from herd.arrow import KEY, POSITION, python_rows
from herd.errors import NotSupportedError
from herd.rows import POSITION_BYTES, Row
from herd.schema import Table
from herd.sql.expressions import Evaluate, Names, compile_expression
from herd.sql.finding import Finder, view_of
from herd.sql.literals import literal, with_values
from herd.sql.scalars import CannotEvaluate, truth
from herd.sql.statement import Given, Work, newest
from herd.turns import in_turns
from herd.types import returning

Found = tuple[bytes, Row, Sequence[Any]]
"""A row's key, the row, and the values that were asked for beside it."""

Named = tuple[bytes, bytes, Sequence[Any]]
"""A row's key, its position when it was found, and the values that were asked for beside it."""


class Target:
    """Rows of one table that a condition names."""

    def __init__(self, table: Table, names: Names, where: exp.Expr | None) -> None:
        self.table = table
        self.names = names
        self.where: exp.Expr | None = None if where is None else where.this
        self.condition: Evaluate | None = None
        if self.where is not None:
            try:
                self.condition = compile_expression(self.where, names)
            except CannotEvaluate:
                self.condition = None
        self.finder: Finder | None = None
        if self.where is not None and self.condition is not None:
            self.finder = Finder(table, table.name, self.where, self.condition)

    async def rows(self, work: Work, given: Given, extra: list[exp.Expr]) -> AsyncIterator[Found]:
        """The rows, locked. Raises `SerializationFailure`."""
        found: Sequence[Named] | None = None if extra else self._found(work, given)
        if found is None:
            found = await self._asked(work, lambda: self.query(given, extra))
        async for one in self.locked(work, given, found, extra):
            yield one

    def query(self, given: Given, extra: Sequence[exp.Expr] = ()) -> exp.Select:
        """The query that finds the rows, and the values of `extra` for each of them."""
        name = exp.to_identifier(self.table.name, quoted=True)
        alias = exp.TableAlias(this=name.copy())
        outputs: list[exp.Expr] = [exp.column(KEY), exp.column(POSITION)]
        outputs += [
            exp.alias_(with_values(each, given).copy(), f"extra:{place}", quoted=True)
            for place, each in enumerate(extra)
        ]
        tree = exp.Select(expressions=outputs).from_(exp.Table(this=name, alias=alias), copy=False)
        if self.where is not None:
            tree.set("where", exp.Where(this=with_values(self.where, given).copy()))
        return tree

    async def _asked(self, work: Work, make: Callable[[], exp.Expr]) -> list[Named]:
        found = await work.query.run(await work.made(make), (), work.transaction)
        return await work.query.off_loop(
            found.num_rows, lambda: [(row[0], row[1], row[2:]) for row in python_rows(found)]
        )

    def _found(self, work: Work, given: Given) -> Sequence[Named] | None:
        """The rows that an index names, if they are few."""
        transaction = work.transaction
        if self.finder is None:
            return None
        plan, view = transaction.catalog.plan(self.table), view_of(work.space, transaction)
        try:
            found = self.finder.find(plan, view, given)
        except CannotEvaluate:
            return None
        return [(key, value[:POSITION_BYTES], ()) for key, value, _ in found]

    async def locked(
        self, work: Work, given: Given, found: Sequence[Named], extra: list[exp.Expr]
    ) -> AsyncIterator[Found]:
        """Rows that a query found, locked, in the order of their keys. Raises as `rows`."""
        transaction, table = work.transaction, self.table
        decode = transaction.catalog.plan(table).decode
        async for key, position, extras in in_turns(sorted(found, key=lambda one: one[0])):
            await transaction.lock_row(table, key)
            value = newest(transaction, table, key)
            if value is None:
                continue
            row = decode(value)
            values: Sequence[Any] = extras
            if value[:POSITION_BYTES] != position:
                again = await self._again(work, given, row, extra)
                if again is None:
                    continue
                values = again
            yield key, row, values

    async def _again(
        self, work: Work, given: Given, row: Row, extra: list[exp.Expr]
    ) -> Sequence[Any] | None:
        """The values of a row that has changed; None if the condition no longer holds for it."""
        if not extra:
            if self.where is None:
                return ()
            if self.condition is not None:
                try:
                    return () if truth(self.condition(row, given)) else None
                except CannotEvaluate:
                    pass

        def make() -> exp.Expr:
            query = self.query(given, extra)
            if self.where is None:
                return query.where(self._of_key(row), copy=False)
            condition = query.args["where"].this
            query.set("where", exp.Where(this=exp.and_(exp.paren(condition), self._of_key(row))))
            return query

        found = await self._asked(work, make)
        return found[0][2] if found else None

    def _of_key(self, row: Row) -> exp.Expr:
        parts = []
        for number in self.table.primary:
            column = self.table.by_number[number]
            convert = returning(column.type)
            stored = row[number]
            value = stored if convert is None or stored is None else convert(stored)
            name = exp.column(exp.to_identifier(column.name, quoted=True))
            parts.append(exp.EQ(this=name, expression=literal(value)))
        return exp.and_(*parts)


def without_alias(tree: exp.Expr, alias: str, table: Table) -> exp.Expr:
    """A part of a statement with the table under its own name."""
    if not alias or alias.lower() == table.name.lower():
        return tree
    changed = tree.copy()
    for node in changed.find_all(exp.Column):
        if node.table.lower() == alias.lower():
            if node.find_ancestor(exp.Query) is not None:
                raise NotSupportedError(
                    f"{alias} inside a subquery", hint=f"call the table {table.name} there"
                )
            node.set("table", exp.to_identifier(table.name, quoted=True))
    return changed
