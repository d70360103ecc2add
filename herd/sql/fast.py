"""Statements about one row that is named by its whole primary key.

Invariants:
- Nothing of the text is looked at when one runs: it is closures over numbers of columns.
- The values of a key must be of its columns' very types; for others the general way decides what
  they are equal to (`CannotEvaluate`).
"""

import asyncio
import datetime
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from herd.autocommit import RowWriter
from herd.catalog import Catalog
from herd.changing import Verify
from herd.errors import DataError, SqlSyntaxError
from herd.rows import Row, row_reader
from herd.schema import Column, Table
from herd.sql.expressions import (
    NO_NAMES,
    Evaluate,
    Names,
    Store,
    compile_expression,
    constant,
    storing,
)
from herd.sql.parsing import Parsed, place_of
from herd.sql.result import Result, ResultColumn
from herd.sql.returning import Returned
from herd.sql.scalars import CannotEvaluate
from herd.sql.statement import Given, Work, changer_of, lock_for_change, newest, verifier
from herd.types import Kind, accepting

if TYPE_CHECKING:
    from herd.tablespace import Tablespace

MakeKey = Callable[[Given], bytes | None]
_TYPES: Final[dict[Kind, tuple[type, ...]]] = {
    Kind.BOOLEAN: (bool,),
    Kind.TINYINT: (int,),
    Kind.SMALLINT: (int,),
    Kind.INTEGER: (int,),
    Kind.BIGINT: (int,),
    Kind.DOUBLE: (float, int),
    Kind.DECIMAL: (Decimal, int),
    Kind.VARCHAR: (str,),
    Kind.BLOB: (bytes,),
    Kind.DATE: (datetime.date,),
    Kind.TIME: (datetime.time,),
    Kind.TIMESTAMP: (datetime.datetime,),
    Kind.UUID: (uuid.UUID,),
}


def key_maker(table: Table, where: exp.Expr | None, names: Names) -> MakeKey:
    """What makes the key of the row that a condition names.

    Raises `CannotEvaluate` if it is not one of the form `key = value AND …` over the whole key.
    """
    if where is None:
        raise CannotEvaluate
    wanted: dict[int, exp.Expr] = {}
    condition = where.this.unnest()
    parts = condition.flatten() if isinstance(condition, exp.And) else [condition]
    for part in parts:
        number, value = _equality(part.unnest(), names)
        if number in wanted:
            raise CannotEvaluate
        wanted[number] = value
    if set(wanted) != set(table.primary):
        raise CannotEvaluate
    steps = [_step(table.by_number[number], wanted[number]) for number in table.primary]
    prefix, encode = table.prefix, table.encode_primary
    if len(steps) == 1:
        return _one_step(prefix, encode, *steps[0])

    def make(given: Given) -> bytes | None:
        values = []
        for evaluate, types, accept in steps:
            value = evaluate((), given)
            if value is None:
                return None
            if type(value) not in types:
                raise CannotEvaluate
            try:
                values.append(accept(value))
            except DataError:
                raise CannotEvaluate from None
        return prefix + encode(values)

    return make


def _one_step(
    prefix: bytes,
    encode: Callable[[Any], bytes],
    evaluate: Evaluate,
    types: tuple[type, ...],
    accept: Callable[[Any], Any],
) -> MakeKey:
    def make(given: Given) -> bytes | None:
        value = evaluate((), given)
        if type(value) not in types:
            if value is None:
                return None
            raise CannotEvaluate
        try:
            return prefix + encode((accept(value),))
        except DataError:
            raise CannotEvaluate from None

    return make


def _equality(part: exp.Expr, names: Names) -> tuple[int, exp.Expr]:
    if not isinstance(part, exp.EQ):
        raise CannotEvaluate
    for column, value in ((part.this, part.expression), (part.expression, part.this)):
        given = isinstance(value.unnest(), exp.Literal | exp.Placeholder | exp.Neg | exp.Cast)
        if isinstance(column, exp.Column) and given and constant(value):
            return names.find(column)[0], value
    raise CannotEvaluate


def _step(
    column: Column, value: exp.Expr
) -> tuple[Evaluate, tuple[type, ...], Callable[[Any], Any]]:
    types = _TYPES.get(column.type.kind)
    if types is None:
        raise CannotEvaluate
    return compile_expression(value, NO_NAMES), types, accepting(column.type)


class Writers:
    """Makes the writer of single rows once it is wanted."""

    def __init__(self, table: Table, catalog: Catalog, verify: Verify | None) -> None:
        self._table = table
        self._catalog = catalog
        self._verify = verify
        self._writer: RowWriter | None = None

    def of(self, space: "Tablespace") -> RowWriter | None:
        """The writer; None if the definitions are others by now."""
        if space.known_catalog is not self._catalog:
            return None
        if self._writer is None:
            self._writer = RowWriter(space, self._table, self._verify)
        return self._writer


class SelectByKey:
    """SELECT columns FROM table WHERE the whole key: at most one row, whatever the LIMIT is."""

    kind = "SELECT"
    needs_transaction = False

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Select)
        self.catalog = catalog
        self.table, names = only_table(tree, catalog)
        limit_of(tree)
        self.key = key_maker(self.table, tree.args.get("where"), names)
        columns, self.columns = shown_columns(tree, self.table, names)
        self.decode = catalog.plan(self.table).decode
        self.read = row_reader(columns)

    async def run(self, work: Work, given: Given) -> Result:
        """Look the row up."""
        key = self.key(given)
        if key is None:
            return self.answer(None)
        own = work.own
        return self.answer(work.space.rows_get(key) if own is None else own.get(key))

    def answer(self, value: bytes | None) -> Result:
        """The result for a row's value."""
        if value is None:
            return Result(self.columns, (), 0, None, "SELECT")
        return Result(self.columns, (self.read(self.decode(value)),), 1, None, "SELECT")


UPDATE_PARTS: Final = frozenset({"this", "expressions", "where", "returning"})
DELETE_PARTS: Final = frozenset({"this", "where", "returning"})
_SELECT_PARTS: Final = frozenset({"expressions", "from_", "where", "kind", "hint", "limit"})


def only_table(tree: exp.Select, catalog: Catalog) -> tuple[Table, Names]:
    """The table of a SELECT that has but a list, a table and a condition.

    Raises `CannotEvaluate` for any other.
    """
    for part, value in tree.args.items():
        if value and part not in _SELECT_PARTS:
            raise CannotEvaluate
    source = tree.args.get("from_")
    if source is None:
        raise CannotEvaluate
    return named_table(source.this, catalog)


def limit_of(tree: exp.Select) -> int | None:
    """The number in LIMIT; None without LIMIT. Raises `CannotEvaluate` for 0 or an expression."""
    limit = tree.args.get("limit")
    if limit is None:
        return None
    number = limit.args.get("expression")
    if not isinstance(number, exp.Literal) or not number.is_int:
        raise CannotEvaluate
    if any(value for part, value in limit.args.items() if part != "expression"):
        # For example, a percentage.
        raise CannotEvaluate
    count = int(number.this)
    if not count:
        raise CannotEvaluate
    return count


def named_table(node: exp.Expr, catalog: Catalog) -> tuple[Table, Names]:
    """A plain table in a statement, with what its columns are called.

    Raises `CannotEvaluate` if it is anything else.
    """
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        raise CannotEvaluate
    if any(value for part, value in node.args.items() if part not in ("this", "alias")):
        raise CannotEvaluate
    found = catalog.find(node.name)
    if not isinstance(found, Table):
        raise CannotEvaluate
    return found, Names.of(found, node.alias)


def shown_columns(
    tree: exp.Select, table: Table, names: Names
) -> tuple[list[Column], tuple[ResultColumn, ...]]:
    """The columns of a plain list. Raises `CannotEvaluate` for any other."""
    columns: list[Column] = []
    shown: list[ResultColumn] = []
    for item in tree.expressions:
        if isinstance(item, exp.Star) and not any(item.args.values()):
            columns += table.visible
            shown += [ResultColumn(column.name, column.type) for column in table.visible]
            continue
        inner = item.this if isinstance(item, exp.Alias) else item
        if not isinstance(inner, exp.Column) or isinstance(inner.this, exp.Star):
            raise CannotEvaluate
        column = names.find(inner)[1]
        columns.append(column)
        shown.append(ResultColumn(item.alias or column.name, column.type))
    return columns, tuple(shown)


def assignments(
    tree: exp.Expr, table: Table, names: Names
) -> tuple[list[tuple[int, Store]], list[tuple[Column, exp.Expr]]]:
    """The SET of an UPDATE: what can be evaluated here, and what only the query engine can."""
    easy: list[tuple[int, Store]] = []
    hard: list[tuple[Column, exp.Expr]] = []
    for column, value in assigned_trees(tree, table):
        try:
            easy.append((column.number, storing(value, names, table, column)))
        except CannotEvaluate:
            hard.append((column, value))
    return easy, hard


def assigned_trees(tree: exp.Expr, table: Table) -> list[tuple[Column, exp.Expr]]:
    """The columns that a SET names, with their expressions.

    Raises `NoSuchColumn`, `SqlSyntaxError`, `CannotEvaluate` for a row that is set by a query.
    """
    found: dict[int, tuple[Column, exp.Expr]] = {}
    for item in tree.expressions:
        for column, value in _pairs(item, table):
            if column.number in found:
                raise SqlSyntaxError(f"{column.name} is set twice", place=place_of(item))
            found[column.number] = (column, _value(value, column))
    if not found:
        raise SqlSyntaxError("SET names no column", hint="SET column = value, …")
    return list(found.values())


def _pairs(item: exp.Expr, table: Table) -> list[tuple[Column, exp.Expr]]:
    targets, value = item.this.unnest(), item.expression
    if isinstance(targets, exp.Tuple):
        if not isinstance(value, exp.Tuple) or len(value.expressions) != len(targets.expressions):
            raise CannotEvaluate
        pairs = list(zip(targets.expressions, value.expressions, strict=True))
    else:
        pairs = [(targets, value)]
    found = []
    names = Names.of(table)
    for target, one in pairs:
        if not isinstance(target, exp.Column):
            raise CannotEvaluate
        plain = exp.Column(this=target.this.copy())
        plain.this.meta.update(target.this.meta)
        found.append((names.find(plain)[1], one))
    return found


def _value(tree: exp.Expr, column: Column) -> exp.Expr:
    """The value of an assignment: `DEFAULT` stands for the column's own."""
    from herd.sql.defaults import default_tree

    if isinstance(tree, exp.Column) and not tree.table and tree.name.upper() == "DEFAULT":
        return default_tree(column)
    return tree


class UpdateByKey:
    """UPDATE table SET … WHERE the whole key."""

    kind = "UPDATE"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Update)
        if any(value and part not in UPDATE_PARTS for part, value in tree.args.items()):
            raise CannotEvaluate
        self.catalog = catalog
        self.table, names = named_table(tree.this, catalog)
        self.key = key_maker(self.table, tree.args.get("where"), names)
        self.sets, hard = assignments(tree, self.table, names)
        if hard:
            raise CannotEvaluate
        self.returned = Returned.of(tree, self.table, names)
        self.decode = catalog.plan(self.table).decode
        self.verify = verifier(self.table)
        moved = {number for number, _ in self.sets} & set(self.table.primary)
        self._writers = None if moved else Writers(self.table, catalog, self.verify)

    def start_short(self, space: "Tablespace", given: Given) -> "asyncio.Future[Result] | None":
        """Begin to change the row without a transaction."""
        writer = None if self._writers is None else self._writers.of(space)
        key = self.key(given)
        if writer is None or key is None:
            return None
        sets, returned, shown = self.sets, self.returned, list[tuple[Any, ...]]()

        def change(before: Row | None) -> Row | None:
            if before is None:
                return None
            after = before.copy()
            for number, store in sets:
                after[number] = store(before, given)
            shown.extend(returned.shown((after,), given))
            return after

        return writer.write(key, change, lambda: returned.answer("UPDATE", shown, len(shown)))

    async def run(self, work: Work, given: Given) -> Result:
        """Change the row, if it is there."""
        key, table, transaction = self.key(given), self.table, work.transaction
        await lock_for_change(work, table, self.catalog)
        value = None
        if key is not None:
            await transaction.lock_row(table, key)
            value = newest(transaction, table, key)
        if key is None or value is None:
            return self.returned.answer("UPDATE", [], 0)
        row = self.decode(value)
        changed = row.copy()
        for number, store in self.sets:
            changed[number] = store(row, given)
        await changer_of(work, table, self.verify).update(key, row, changed)
        return await self.returned.result(work, "UPDATE", [changed], given)


class DeleteByKey:
    """DELETE FROM table WHERE the whole key."""

    kind = "DELETE"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Delete)
        if any(value and part not in DELETE_PARTS for part, value in tree.args.items()):
            raise CannotEvaluate
        self.catalog = catalog
        self.table, names = named_table(tree.this, catalog)
        self.key = key_maker(self.table, tree.args.get("where"), names)
        self.returned = Returned.of(tree, self.table, names)
        self.decode = catalog.plan(self.table).decode
        self._writers = Writers(self.table, catalog, None)

    def start_short(self, space: "Tablespace", given: Given) -> "asyncio.Future[Result] | None":
        """Begin to remove the row without a transaction."""
        writer, key = self._writers.of(space), self.key(given)
        if writer is None or key is None:
            return None
        returned, shown = self.returned, list[tuple[Any, ...]]()

        def change(before: Row | None) -> Row | None:
            if before is not None:
                shown.extend(returned.shown((before,), given))
            return None

        return writer.write(key, change, lambda: returned.answer("DELETE", shown, len(shown)))

    async def run(self, work: Work, given: Given) -> Result:
        """Remove the row, if it is there."""
        key, table, transaction = self.key(given), self.table, work.transaction
        await lock_for_change(work, table, self.catalog)
        value = None
        if key is not None:
            await transaction.lock_row(table, key)
            value = newest(transaction, table, key)
        if key is None or value is None:
            return self.returned.answer("DELETE", [], 0)
        row = self.decode(value)
        await changer_of(work, table, None).delete(key, row)
        return await self.returned.result(work, "DELETE", [row], given)
