"""RETURNING: what a changing statement answers of the rows that it changed.

Invariants:
- The rows are those that the statement put, or, for DELETE, removed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from herd.errors import NotSupportedError
from herd.rows import Row
from herd.schema import Table
from herd.sql.expressions import Evaluate, Names, compile_expression
from herd.sql.parsing import place_of
from herd.sql.result import Result, ResultColumn
from herd.sql.scalars import CannotEvaluate
from herd.sql.statement import Given


@dataclass(frozen=True, slots=True)
class Returned:
    """The columns of a RETURNING; none without one."""

    columns: tuple[ResultColumn, ...]
    values: tuple[Evaluate, ...]

    @classmethod
    def of(cls, tree: exp.Expr, table: Table, names: Names) -> "Returned":
        """What a statement returns. Raises `NotSupportedError`, `NoSuchColumn`."""
        clause = tree.args.get("returning")
        columns: list[ResultColumn] = []
        values: list[Evaluate] = []
        for item in clause.expressions if clause is not None else ():
            inner = item.this if isinstance(item, exp.Alias) else item
            if isinstance(inner, exp.Star) or isinstance(inner.this, exp.Star):
                for column in table.visible:
                    columns.append(ResultColumn(column.name, column.type))
                    node = exp.column(exp.to_identifier(column.name, quoted=True))
                    values.append(compile_expression(node, names))
                continue
            try:
                values.append(compile_expression(inner, names))
            except CannotEvaluate:
                raise NotSupportedError(
                    "RETURNING cannot do that", hint="SELECT it afterwards", place=place_of(item)
                ) from None
            kind = names.find(inner)[1].type if isinstance(inner, exp.Column) else None
            columns.append(ResultColumn(item.alias_or_name or inner.sql("duckdb"), kind))
        return cls(tuple(columns), tuple(values))

    def result(
        self, kind: str, rows: Sequence[Row], given: Given, count: int, last_id: int | None = None
    ) -> Result:
        """The answer of a statement that changed these rows."""
        if not self.values:
            return Result((), (), count, last_id, kind)
        shown = [tuple([value(row, given) for value in self.values]) for row in rows]
        return Result(self.columns, shown, count, last_id, kind)
