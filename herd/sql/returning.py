"""RETURNING: what a changing statement answers of the rows that it changed.

Invariants:
- The rows are those that the statement put, or, for DELETE, removed.
- It is evaluated before the change is committed: what fails here changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from herd.rows import Row
from herd.schema import Table
from herd.sql.evaluating import check_of_row, evaluate_rows
from herd.sql.expressions import Evaluate, Names, compile_expression
from herd.sql.result import Result, ResultColumn
from herd.sql.scalars import CannotEvaluate
from herd.sql.statement import Given, Work
from herd.turns import in_parts

Shown = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Returned:
    """The columns of a RETURNING; none without one."""

    names: Names
    columns: tuple[ResultColumn, ...] = ()
    trees: tuple[exp.Expr, ...] = ()
    values: tuple[Evaluate, ...] = ()
    """Fewer than `trees` if one of them is for the query engine."""

    @classmethod
    def of(cls, tree: exp.Expr, table: Table, names: Names) -> "Returned":
        """What a statement returns. Raises `NotSupportedError`, `NoSuchColumn`."""
        clause = tree.args.get("returning")
        if clause is None:
            return cls(names)
        return cls.of_list(clause.expressions, table, names, "SELECT it afterwards")

    @classmethod
    def of_list(
        cls, items: Sequence[exp.Expr], table: Table, names: Names, hint: str
    ) -> "Returned":
        """The same of a list of expressions; `hint` is what to do about what cannot be answered."""
        columns: list[ResultColumn] = []
        trees: list[exp.Expr] = []
        for item in items:
            inner = item.this if isinstance(item, exp.Alias) else item
            all_of_table = isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)
            if all_of_table or isinstance(inner, exp.Star):
                for column in table.visible:
                    columns.append(ResultColumn(column.name, column.type))
                    trees.append(exp.column(exp.to_identifier(column.name, quoted=True)))
                continue
            check_of_row(inner, names, hint)
            kind = names.find(inner)[1].type if isinstance(inner, exp.Column) else None
            columns.append(ResultColumn(item.alias_or_name or inner.sql("duckdb"), kind))
            trees.append(inner)
        values: list[Evaluate] = []
        for inner in trees:
            try:
                values.append(compile_expression(inner, names))
            except CannotEvaluate:
                break
        return cls(names, tuple(columns), tuple(trees), tuple(values))

    def shown(self, rows: Sequence[Row], given: Given) -> Shown:
        """What is answered of rows. Raises `CannotEvaluate`."""
        if len(self.values) < len(self.trees):
            raise CannotEvaluate
        return [tuple([value(row, given) for value in self.values]) for row in rows]

    def answer(self, kind: str, shown: Shown, count: int) -> Result:
        """The result of a statement that changed so many rows."""
        if not self.trees:
            return Result((), (), count, None, kind)
        return Result(self.columns, shown, count, None, kind)

    async def result(
        self,
        work: Work,
        kind: str,
        rows: Sequence[Row],
        given: Given,
        last_id: int | None = None,
    ) -> Result:
        """The result of a statement that changed these rows."""
        if not self.trees:
            return Result((), (), len(rows), last_id, kind)
        shown: Shown = []
        try:
            async for some in in_parts(rows):
                shown += self.shown(some, given)
        except CannotEvaluate:
            shown = await evaluate_rows(work, self.trees, self.names, rows, given)
        return Result(self.columns, shown, len(rows), last_id, kind)
