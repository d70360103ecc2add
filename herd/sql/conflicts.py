"""What an INSERT does about a row that has its key already: UPSERT, INSERT … ON CONFLICT.

Invariants:
- The key is locked before it is looked at, the row in its way before it is read.
- Only the key that the clause names is forgiven; another unique key is refused as ever.
"""

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from herd.changing import Changer
from herd.errors import NoSuchIndex, NotSupportedError, SqlSyntaxError
from herd.plan import IndexPlan
from herd.rows import Row
from herd.schema import Building, Column, Table
from herd.sql.evaluating import check_of_row, evaluate_rows
from herd.sql.expressions import Evaluate, Names, Store, compile_expression
from herd.sql.fast import assigned_trees, assignments
from herd.sql.parsing import check_parts, place_of
from herd.sql.scalars import CannotEvaluate, truth
from herd.sql.statement import Given, Work, newest
from herd.sql.writing import stored_of
from herd.transaction import Transaction

_PARTS: Final = frozenset({"expressions", "action", "conflict_keys", "constraint", "where"})
_HINT: Final = "UPDATE it in a transaction"


@dataclass(frozen=True, slots=True)
class Conflict:
    """What to do. `keys` are the unique keys looked at, as columns."""

    keys: tuple[tuple[int, ...], ...]
    replace: bool = False
    """UPSERT: the new row takes the old one's place."""
    update: "Update | None" = None
    """DO UPDATE SET; None: DO NOTHING."""

    @classmethod
    def of(cls, tree: exp.Insert, upsert: bool, table: Table, names: Names) -> "Conflict | None":
        """What a statement says. Raises `NoSuchIndex`, `NotSupportedError`."""
        clause = tree.args.get("conflict")
        alternative = str(tree.args.get("alternative") or "").upper()
        if upsert or alternative == "REPLACE":
            return cls((table.primary,), replace=True)
        if clause is None:
            ignored = alternative == "IGNORE" or tree.args.get("ignore")
            return cls(_all_keys(table)) if ignored else None
        return cls._of_clause(clause, table, names)

    @classmethod
    def _of_clause(cls, clause: exp.Expr, table: Table, names: Names) -> "Conflict":
        if clause.args.get("duplicate"):
            raise NotSupportedError(
                "ON DUPLICATE KEY", hint="use ON CONFLICT (…) DO UPDATE SET", place=place_of(clause)
            )
        check_parts(clause, _PARTS)
        keys = _keys_of(clause, table)
        if "NOTHING" in str(clause.args.get("action") or "").upper():
            return cls(keys)
        if len(keys) > 1:
            raise SqlSyntaxError(
                "DO UPDATE needs the columns of the key: ON CONFLICT (…)", place=place_of(clause)
            )
        return cls(keys, update=Update.of(clause, table, names))

    async def put(self, work: Work, changer: Changer, row: Row, given: Given) -> Row | None:
        """Add a row or do what is said; answers what stands there now, None if nothing changed."""
        found = await self._in_the_way(changer, work.transaction, row)
        if found is None:
            await changer.insert(row)
            return row
        key, before = found
        if self.replace:
            await changer.update(key, before, row)
            return row
        if self.update is None:
            return None
        changed = await self.update.changed(work, before, row, given)
        if changed is not None:
            await changer.update(key, before, changed)
        return changed

    async def _in_the_way(
        self, changer: Changer, transaction: Transaction, row: Row
    ) -> tuple[bytes, Row] | None:
        table, plan = changer.table, changer.plan
        for columns in self.keys:
            if columns == table.primary:
                if None in [row[number] for number in columns]:
                    continue
                key = plan.key_of(row)
            else:
                # Another index that is not unique may be over the same columns.
                index = next(
                    index
                    for index in plan.indexes
                    if index.definition.unique and index.definition.columns == columns
                )
                primary = await self._holder(transaction, table, index, row)
                if primary is None:
                    continue
                key = plan.prefix + primary
            await transaction.lock_row(table, key)
            value = newest(transaction, table, key)
            if value is not None:
                return key, plan.decode(value)
        return None

    async def _holder(
        self, transaction: Transaction, table: Table, index: IndexPlan, row: Row
    ) -> bytes | None:
        entry, unique = index.entry(row, b"")
        if not unique:
            return None
        await transaction.lock_row(table, entry)
        return transaction.get_newest_plain(entry)


@dataclass(frozen=True, slots=True)
class Update:
    """DO UPDATE SET …: computed of the old row with the new one, `excluded`, behind it."""

    table: Table
    names: Names
    sets: tuple[tuple[int, Store], ...]
    """Fewer than `trees` if one of them is for the query engine."""
    trees: tuple[tuple[Column, exp.Expr], ...]
    where: Evaluate | None
    where_tree: exp.Expr | None

    @classmethod
    def of(cls, clause: exp.Expr, table: Table, names: Names) -> "Update":
        """What a clause says. Raises `NotSupportedError`, `NoSuchColumn`."""
        both = Names({**names.tables, "excluded": (table, table.width)})
        where = clause.args.get("where")
        try:
            trees = assigned_trees(clause, table)
            sets, _ = assignments(clause, table, both)
        except CannotEvaluate:
            raise NotSupportedError(
                "SET of a row by a subquery", hint=_HINT, place=place_of(clause)
            ) from None
        for _, tree in trees:
            check_of_row(tree, both, _HINT)
        condition = None
        if where is not None:
            check_of_row(where.this, both, _HINT)
            try:
                condition = compile_expression(where.this, both)
            except CannotEvaluate:
                sets = []
        where_tree = None if where is None else where.this
        return cls(table, both, tuple(sets), tuple(trees), condition, where_tree)

    async def changed(self, work: Work, before: Row, row: Row, given: Given) -> Row | None:
        """The row as it will be; None where WHERE does not hold."""
        both = before + row
        try:
            return self._changed(before, both, given)
        except CannotEvaluate:
            return await self._changed_by_query(work, before, both, given)

    def _changed(self, before: Row, both: Row, given: Given) -> Row | None:
        if len(self.sets) < len(self.trees):
            raise CannotEvaluate
        if self.where is not None and not truth(self.where(both, given)):
            return None
        changed = before.copy()
        for number, store in self.sets:
            changed[number] = store(both, given)
        return changed

    async def _changed_by_query(
        self, work: Work, before: Row, both: Row, given: Given
    ) -> Row | None:
        if self.where_tree is not None:
            [[holds]] = await evaluate_rows(work, [self.where_tree], self.names, [both], given)
            if not holds:
                return None
        trees = [tree for _, tree in self.trees]
        [values] = await evaluate_rows(work, trees, self.names, [both], given)
        changed = before.copy()
        for (column, _), value in zip(self.trees, values, strict=True):
            changed[column.number] = stored_of(self.table, column, value)
        return changed


def _all_keys(table: Table) -> tuple[tuple[int, ...], ...]:
    unique = [i.columns for i in table.indexes if i.unique and i.state is Building.READY]
    return (table.primary, *unique)


def _keys_of(clause: exp.Expr, table: Table) -> tuple[tuple[int, ...], ...]:
    named = clause.args.get("conflict_keys") or ()
    if clause.args.get("constraint"):
        name = clause.args["constraint"].name.lower()
        for index in table.indexes:
            if index.unique and index.name.lower() == name:
                return (index.columns,)
        raise NoSuchIndex(f"table {table.name} has no unique key {name}", place=place_of(clause))
    if not named:
        return _all_keys(table)
    wanted = []
    for item in named:
        column = item.this if isinstance(item, exp.Ordered) else item
        wanted.append(table.column(column.name).number)
    for columns in _all_keys(table):
        if set(columns) == set(wanted):
            return (columns,)
    names = ", ".join(item.this.name for item in named)
    raise NoSuchIndex(
        f"table {table.name} has no unique key over ({names})",
        hint="name the columns of its primary key or of a unique index",
        place=place_of(clause),
    )
