"""INSERT, UPSERT and INSERT … ON CONFLICT, of values or of a query's rows.

Invariants:
- All rows of a statement are added or none.
- A column that is not named gets its default; an AUTO_INCREMENT column without a value, or with
  NULL, the next one.
- The row that stands in the way is locked before it is looked at.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from herd.arrow import python_rows
from herd.catalog import Catalog
from herd.changing import Changer
from herd.errors import (
    NotNullViolation,
    NotSupportedError,
    ParametersMismatch,
    SqlSyntaxError,
    UniqueViolation,
)
from herd.rows import Row
from herd.schema import Column, Table, key_of
from herd.sequences import Sequences
from herd.sql.conflicts import Conflict
from herd.sql.defaults import default_store, default_tree
from herd.sql.defining import known_table
from herd.sql.expressions import NO_NAMES, Names, Store, missing_column, storing
from herd.sql.fast import Writers
from herd.sql.parsing import Parsed, check_parts, place_of
from herd.sql.result import Result
from herd.sql.returning import Returned
from herd.sql.scalars import CannotEvaluate
from herd.sql.statement import Given, Work, changer_of, lock_for_change, verifier
from herd.sql.writing import stored_of
from herd.transaction import Transaction
from herd.turns import in_parts, in_turns

if TYPE_CHECKING:
    import pyarrow

    from herd.tablespace import Tablespace

Steps = list[tuple[int, Store]]
_NO_ROW: Final[Row] = []
_VALUES_AT_ONCE: Final = 500
_ROWS_AT_ONCE: Final = 2_000
"""So many rows Arrow makes values of without giving the interpreter away."""
_PARTS: Final = frozenset(
    {
        *("this", "expression", "conflict", "returning", "alternative", "ignore", "default"),
        *("with_", "is_function", "hint"),
    }
)
_HINTS: Final = {
    "overwrite": "DELETE FROM the table, or TRUNCATE it, and INSERT in one transaction",
    "by_name": "name the columns: INSERT INTO t (a, b)",
}


class Insert:
    """A planned INSERT."""

    kind = "INSERT"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog, *, general: bool = False) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Insert)
        check_parts(tree, _PARTS, _HINTS)
        self.catalog = catalog
        self.table, columns = _target(tree, catalog)
        self.names = Names.of(self.table, _alias(tree))
        self.source: exp.Expr | None = None
        self.rows: list[Steps] = []
        self.ctes: exp.Expr | None = None
        self.hard: list[tuple[int, Column, exp.Expr]] = []
        """Values for the query engine: which row's, which column's."""
        self.columns = columns
        self._plan_rows(tree, general)
        self.conflict = Conflict.of(tree, parsed.upsert, self.table, self.names)
        self.returned = Returned.of(tree, self.table, self.names)
        self.verify = verifier(self.table)
        self.auto = self.table.auto_column
        short = self.auto is None and self.conflict is None and len(self.rows) == 1
        short = short and not self.hard
        self._writers = Writers(self.table, catalog, self.verify) if short else None

    def start_short(self, space: "Tablespace", given: Given) -> "asyncio.Future[Result] | None":
        """Begin to add one row without a transaction."""
        writer = None if self._writers is None else self._writers.of(space)
        if writer is None:
            return None
        row = self.row(self.rows[0], given)
        if None in [row[number] for number in self.table.primary]:
            return None

        shown = self.returned.shown((row,), given)

        def add(before: Row | None) -> Row:
            if before is None:
                return row
            shown = ", ".join(repr(row[number]) for number in self.table.primary)
            raise UniqueViolation(
                f"{self.table.name} has a row with the primary key {shown} already"
            )

        answer = partial(self.returned.answer, "INSERT", shown, 1)
        return writer.write(key_of(self.table, row), add, answer)

    async def run(self, work: Work, given: Given) -> Result:
        """Add the rows."""
        await lock_for_change(work, self.table, self.catalog)
        if self.source is None:
            rows = [self.row(steps, given) async for steps in in_turns(self.rows)]
            if self.hard:
                await self._fill_in(work, given, rows)
        else:
            rows = await self._rows_of_query(work, given)
        return await self.add(work, rows, given)

    async def run_many(self, work: Work, many: Sequence[Given]) -> Result:
        """Add rows for each of many tuples of parameters."""
        await lock_for_change(work, self.table, self.catalog)
        if self.source is not None or self.hard or self.returned.trees:
            raise CannotEvaluate
        if self.conflict is not None and self.conflict.update:
            raise CannotEvaluate
        rows: list[Row] = []
        async for some in in_parts(many):
            rows += [self.row(steps, given) for given in some for steps in self.rows]
        return await self.add(work, rows, ())

    async def add(self, work: Work, rows: list[Row], given: Given) -> Result:
        """Add rows. Their table is locked."""
        transaction, auto, last_id = work.transaction, self.auto, None
        if auto is not None:
            async for row in in_turns(rows):
                last_id = _number(work.sequences, transaction, self.table, auto, row)
        changer = changer_of(work, self.table, self.verify)
        if self.conflict is None:
            await changer.insert_all(rows)
            return await self.returned.result(work, "INSERT", rows, given, last_id)
        put: list[Row] = []
        last_id = None
        async for row in in_turns(rows):
            # Only keys can be in a conflict: what else is wrong with a row is refused before.
            self._check(changer, row)
            kept = await self.conflict.put(work, changer, row, given)
            if kept is not None:
                put.append(kept)
                last_id = None if auto is None else int(str(kept[auto.number]))
        return await self.returned.result(work, "INSERT", put, given, last_id)

    def _check(self, changer: Changer, row: Row) -> None:
        for column in changer.plan.required:
            if row[column.number] is None:
                raise NotNullViolation(f"{self.table.name}.{column.name} may not be NULL")
        if self.verify is not None:
            self.verify(row)

    def row(self, steps: Steps, given: Given) -> Row:
        """One row of VALUES."""
        row: Row = [None] * self.table.width
        for number, store in steps:
            row[number] = store(_NO_ROW, given)
        return row

    # Planning

    def _plan_rows(self, tree: exp.Insert, general: bool) -> None:
        source = tree.expression
        if tree.args.get("default"):
            self.columns = ()
            self.rows = [self._defaults()]
            return
        if source is None:
            raise SqlSyntaxError("INSERT without rows", place=place_of(tree))
        if not isinstance(source, exp.Values):
            self.source = _with_ctes(tree, source)
            return
        self.ctes = tree.args.get("with_")
        defaults = self._defaults()
        for item in source.expressions:
            self.rows.append(self._plan_row(item, general) + defaults)

    def _plan_row(self, item: exp.Expr, general: bool) -> Steps:
        values = item.expressions if isinstance(item, exp.Tuple) else [item]
        self._check_count(len(values), item)
        steps: Steps = []
        for column, value in zip(self.columns, values, strict=True):
            if _is_default(value):
                value = default_tree(column)
            if isinstance(value, exp.Null):
                continue
            try:
                if general and not isinstance(value, exp.Literal | exp.Placeholder):
                    raise CannotEvaluate
                steps.append((column.number, storing(value, NO_NAMES, self.table, column)))
            except CannotEvaluate:
                self.hard.append((len(self.rows), column, value))
        return steps

    def _check_count(self, count: int, node: exp.Expr) -> None:
        if count != len(self.columns):
            raise ParametersMismatch(
                f"{count} values for {len(self.columns)} columns", place=place_of(node)
            )

    def _defaults(self) -> Steps:
        """What the columns get that the statement does not name."""
        named = {column.number for column in self.columns}
        found: Steps = []
        for column in self.table.columns:
            if column.number not in named:
                store = default_store(self.table, column)
                if store is not None:
                    found.append((column.number, store))
        return found

    # By the query engine

    async def _fill_in(self, work: Work, given: Given, rows: list[Row]) -> None:
        """Put the values into rows that only the query engine can evaluate."""
        for start in range(0, len(self.hard), _VALUES_AT_ONCE):
            some = self.hard[start : start + _VALUES_AT_ONCE]
            query = await work.made(partial(self._values_query, [value for _, _, value in some]))
            [found] = python_rows(await work.query.run(query, given[:-1], work.transaction))
            for (place, column, _), value in zip(some, found, strict=True):
                rows[place][column.number] = stored_of(self.table, column, value)

    def _values_query(self, values: Sequence[exp.Expr]) -> exp.Expr:
        named = [
            exp.alias_(value.copy(), f"value:{place}", quoted=True)
            for place, value in enumerate(values)
        ]
        query = exp.Select(expressions=named)
        if self.ctes is not None:
            query.set("with_", self.ctes.copy())
        return query

    async def _rows_of_query(self, work: Work, given: Given) -> list[Row]:
        assert self.source is not None
        found = await work.query.run(self.source, given[:-1], work.transaction)
        self._check_count(found.num_columns, self.source)
        return await work.query.off_loop(found.num_rows, lambda: self._stored_rows(found, given))

    def _stored_rows(self, found: "pyarrow.Table", given: Given) -> list[Row]:
        """In a thread, perhaps."""
        defaults = self._defaults()
        rows: list[Row] = []
        for batch in found.to_batches(max_chunksize=_ROWS_AT_ONCE):
            steps = [
                (column, values.to_pylist())
                for column, values in zip(self.columns, batch.columns, strict=True)
            ]
            for place in range(batch.num_rows):
                row: Row = [None] * self.table.width
                for column, values in steps:
                    row[column.number] = stored_of(self.table, column, values[place])
                for number, store in defaults:
                    row[number] = store(_NO_ROW, given)
                rows.append(row)
        return rows


def _number(
    sequences: Sequences, transaction: Transaction, table: Table, auto: Column, row: Row
) -> int:
    """Give a row its AUTO_INCREMENT value, or note the one that it has."""
    value = row[auto.number]
    if value is None:
        taken = row[auto.number] = sequences.take(transaction, table, auto)
        return taken
    assert isinstance(value, int)
    sequences.pass_over(transaction, table, auto, value)
    return value


def _is_default(value: exp.Expr) -> bool:
    is_name = isinstance(value, exp.Var | exp.Column)
    return is_name and value.name.upper() == "DEFAULT" and not value.args.get("table")


def _with_ctes(tree: exp.Insert, source: exp.Expr) -> exp.Expr:
    """The query of `WITH … INSERT INTO t SELECT …`, whose CTEs stand before all."""
    ctes = tree.args.get("with_")
    if ctes is None:
        return source
    if source.args.get("with_") is not None:
        raise NotSupportedError("WITH twice", hint="put both into one", place=place_of(source))
    source = source.copy()
    source.set("with_", ctes.copy())
    return source


def _alias(tree: exp.Insert) -> str:
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    return str(target.alias)


def _target(tree: exp.Insert, catalog: Catalog) -> tuple[Table, Sequence[Column]]:
    """The table of an INSERT and the columns that it names."""
    target = tree.this
    named: list[exp.Expr] = []
    if isinstance(target, exp.Schema):
        named, target = target.expressions, target.this
    table = known_table(catalog, target)
    if not named:
        return table, table.visible
    columns: list[Column] = []
    for name in named:
        column = table.by_name.get(name.name.lower())
        if column is None:
            raise missing_column(table, name)
        if column in columns:
            raise SqlSyntaxError(f"{column.name} is named twice", place=place_of(name))
        columns.append(column)
    return table, columns
